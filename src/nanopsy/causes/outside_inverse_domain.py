from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth


class OutsideInverseDomain(Cause):
    """Inverse cosine or sine of a value outside [-1, 1].

    ## What it does
    Finds `acos`, `asin`, `atanh` (beyond +-1) or `acosh` (below 1) of a value outside the domain.

    ## Why is this bad?
    The cosine of two unit vectors is often 1.0000001 after rounding: acos of it is NaN. Nothing is wrong with the vectors.

    ## Guideline
    Clamp strictly inside the domain: `x.clamp(-1 + 1e-6, 1 - 1e-6)`. Clamping to exactly +-1 only moves the NaN into the gradient.

    ## Fix safety
    Unsafe: angles very near 0 or pi are moved and have gradient 0.

    ## References
    pytorch/pytorch issue 8069.
    """

    code, slug = "NAN205", "outside-inverse-domain"
    sites = ("acos",)
    bad = """
import torch

cosine = torch.tensor([1.0000001, 0.5], requires_grad=True)

def loss():
    return torch.acos(cosine).sum()
"""
    good = """
import torch

cosine = torch.tensor([1.0000001, 0.5], requires_grad=True)

def loss():
    return torch.acos(cosine.clamp(-1 + 1e-6, 1 - 1e-6)).sum()
"""

    def match(self, site: Site) -> Suspicion | None:
        value, name = site.operand, site.settings["name"]
        if name not in ("acos", "arccos", "asin", "arcsin", "acosh", "atanh") or (value.lo >= -1 and value.hi <= 1):
            return None
        if value.has(Form.PARAMETER) and not value.known:
            return Suspicion(f"{name} of an argument that nothing bounds", Confidence.DEPENDS, "if rounding carries it past 1 or -1", open=True)
        return Suspicion(f"{name} of a value that rounding carries past 1 (a product of unit vectors, a trace): NaN outside [-1, 1]", Confidence.LIKELY)

    def claim(self, birth: Birth) -> Claim | None:
        value = birth.operand(0).value
        outside = (birth.op in ("acos", "asin", "atanh", "erfinv") and abs(value) > 1) or (birth.op == "acosh" and value < 1)
        outside = outside or (birth.forward and birth.op in ("atanh", "erfinv") and abs(value) == 1)
        if not outside:
            return None
        message = f"{birth.op} of {value:.9g}, outside its domain; {elements(birth)}"
        return Claim(strength(birth, 0.95), message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        gap = _edits.below_one(birth.dtype)
        yield from _edits.bounded(
            finding.location, ("acos", "asin", "arccos", "arcsin", "atanh"), f"clamp(-1 + {gap}, 1 - {gap})", "stays strictly inside the domain"
        )
