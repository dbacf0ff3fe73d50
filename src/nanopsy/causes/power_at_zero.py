from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth


class PowerAtZero(Cause):
    """Fractional power differentiated at zero.

    ## What it does
    Finds `x ** p` with 0 < p < 1 that was differentiated where x is exactly 0.

    ## Why is this bad?
    The derivative p * x ** (p - 1) is infinite at 0. Silent audio frames, empty histogram bins and black pixels are exact zeros.

    ## Guideline
    Add a small epsilon before the power, `(x + 1e-12) ** p`, or clamp from below.

    ## Fix safety
    Unsafe: a value of exactly 0 becomes the bound to the power p, and the gradient below the bound is 0.

    ## References
    speechbrain/speechbrain issue 184 (power-law compression of silent frames).
    """

    code, slug = "NAN103", "power-at-zero"
    sites = ("power",)
    replacement = "nanopsy.stable.power"
    bad = """
import torch

energy = torch.tensor([0.0, 2.0], requires_grad=True)
exponent = 0.3

def loss():
    return (energy ** exponent).sum()
"""
    good = """
import torch

energy = torch.tensor([0.0, 2.0], requires_grad=True)
exponent = 0.3

def loss():
    return ((energy + 1e-12) ** exponent).sum()
"""
    source_bad = """
import torch

def compress(spectrum, exponent=0.3):
    return spectrum.abs() ** exponent
"""
    source_good = """
import torch

def compress(spectrum, exponent=0.3):
    return (spectrum.abs() + 1e-12) ** exponent
"""

    def match(self, site: Site) -> Suspicion | None:
        base, exponent = site.operand, site.other
        number = exponent.number if exponent is not None else None
        if number is None or not 0 < number < 1 or base.lo > 0 or not base.has(Form.ZERO) or base.has(Form.SIGNED):
            return None
        why = base.origin.what if base.origin is not None else "its terms can all be 0"
        message = f"a power with exponent {number:g} < 1 has an infinite slope at 0, and the base gets there: {why}"
        return Suspicion(message, Confidence.LIKELY, needs_gradient=True)

    def claim(self, birth: Birth) -> Claim | None:
        base = birth.operand(0)
        exponent = birth.settings.get("exponent")
        if exponent is None and len(birth.operands) > 1:
            exponent = birth.operand(1).value
        if not birth.backward or not birth.node.startswith("Pow") or base.value != 0 or not isinstance(exponent, (int, float)):
            return None
        if not 0 < exponent < 1:
            return None
        message = (
            f"x ** {exponent:g} was differentiated at exactly 0, where its slope is infinite; {elements(birth)}; the base is 0 because {came_from(base.origin)}"
        )
        return Claim(strength(birth, 0.88), message, evidence={"exponent": exponent})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, ("**", "pow", "sqrt"), f"clamp(min={_edits.floor_for(birth.dtype)})", "keeps the base positive")
