from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.causes.division_by_zero import DIVISIONS, divisor
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth, OriginKind


class EpsilonBelowResolution(Cause):
    """Protective epsilon that rounds to zero in its format.

    ## What it does
    Finds a division (or log, root) guarded by an epsilon that the tensor's format cannot hold: 1e-8 is exactly 0 in float16.

    ## Why is this bad?
    The guard is there, the reader sees it, and it does nothing: the smallest positive float16 is 6e-8.

    ## Guideline
    Choose the epsilon for the format (`torch.finfo(x.dtype).eps`), at least 1e-4 for float16 divisors, or compute the normalisation in float32.

    ## Fix safety
    Unsafe: near-zero divisors are raised to the bound.

    ## References
    lightonai/pylate issue 239; pytorch/pytorch issue 40497.
    """

    code, slug = "NAN208", "epsilon-below-resolution"
    bad = """
import torch

scores = torch.full((2, 4), 3.0, requires_grad=True)

def loss():
    s = scores.half()
    lo, hi = s.min(), s.max()
    return ((s - lo) / (hi - lo + 1e-8)).float().mean()
"""
    good = """
import torch

scores = torch.full((2, 4), 3.0, requires_grad=True)

def loss():
    s = scores.float()
    lo, hi = s.min(), s.max()
    return ((s - lo) / (hi - lo + 1e-8)).mean()
"""

    def claim(self, birth: Birth) -> Claim | None:
        below = divisor(birth) if birth.op in DIVISIONS else birth.operand(0) if birth.op in ("log", "log2", "log10", "sqrt") else None
        if below is None or below.value != 0 or below.origin.kind is not OriginKind.ROUNDING or below.origin.lost is None:
            return None
        smallest = birth.format.smallest
        message = (
            f"{birth.op} by exactly 0 although an epsilon of {below.origin.lost:g} was added: {birth.dtype} cannot hold it "
            f"(smallest positive {smallest:.2g}); {elements(birth)}"
        )
        also = (below.origin.location,) if below.origin.location else ()
        return Claim(strength(birth, 0.97), message, also=also, evidence={"epsilon": below.origin.lost})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        for source, _, below in _edits.divisions(finding.location):
            yield [_edits.method(source, below, f"clamp(min={_edits.floor_for(birth.dtype)})", "a bound that the format resolves")]
