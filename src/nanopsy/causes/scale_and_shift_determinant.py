from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth


class ScaleAndShiftDeterminant(Cause):
    """Least-squares alignment with a determinant near zero.

    ## What it does
    Finds a division by a 2-by-2 determinant a00 * a11 - a01 * a01 that cancelled to zero: the scale-and-shift alignment of MiDaS-style losses on a
    (nearly) constant prediction.

    ## Why is this bad?
    A constant prediction, one valid pixel or an empty mask makes the normal equations singular: x / 0.

    ## Guideline
    Centre before solving (scale = cov / var, shift = mean - scale * mean), add a ridge to the variance, and treat masks with fewer than two
    pixels apart.

    ## Fix safety
    Unsafe: the bound changes the scale of nearly constant predictions.

    ## References
    Ranftl et al. 2020 (MiDaS), scale- and shift-invariant loss, section 5.
    """

    code, slug = "NAN503", "scale-and-shift-determinant"
    sites = ("divide",)
    replacement = "nanopsy.stable.align_scale_and_shift"
    bad = """
import torch

p = torch.full((8,), 0.5, requires_grad=True)
t = torch.linspace(1.0, 2.0, 8)
valid = torch.ones(8)

def loss():
    a00, a01, a11 = (valid * p * p).sum(), (valid * p).sum(), valid.sum()
    det = a00 * a11 - a01 * a01
    scale = (a11 * (valid * p * t).sum() - a01 * (valid * t).sum()) / det
    return (scale * p - t).abs().mean()
"""
    good = """
import torch

p = torch.full((8,), 0.5, requires_grad=True)
t = torch.linspace(1.0, 2.0, 8)

def loss():
    centred = p - p.mean()
    scale = (centred * (t - t.mean())).sum() / ((centred ** 2).sum() + 1e-6)
    return (scale * centred - (t - t.mean())).abs().mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        below = site.other
        if below is None or not below.has(Form.DETERMINANT_OF_SUMS) or not below.has(Form.DETERMINANT) or below.has(Form.COUNT | Form.FLOORED):
            return None
        message = (
            "the determinant of a scale-and-shift fit, n*sum(x²) - (sum x)², is a variance in one pass: for a nearly constant prediction it is rounding noise, "
            "and dividing by it gives an arbitrary scale"
        )
        return Suspicion(message, Confidence.LIKELY, "if the prediction is nearly constant inside the mask")

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in ("div", "reciprocal", "true_divide") or len(birth.operands) < 1:
            return None
        below = birth.operands[-1]
        lost = below.origin.cancellation
        if below.value != 0 or lost is None or not lost.determinant:
            return None
        message = f"division by a determinant that is 0: {lost.left:.6g} - {lost.right:.6g}; the system is singular; {elements(birth)}"
        return Claim(strength(birth, 0.96), message, also=(lost.location,) if lost.location else ())

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        for source, _, below in _edits.divisions(finding.location):
            yield [_edits.method(source, below, f"clamp(min={_edits.floor_for(birth.dtype)})", "a ridge on the determinant")]
