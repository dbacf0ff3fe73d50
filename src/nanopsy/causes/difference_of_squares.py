from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.causes.log_of_sigmoid import LOGS
from nanopsy.causes.one_pass_variance import cancelled, numbers
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth


class DifferenceOfSquares(Cause):
    """Difference of squares under a root, log or in a divisor.

    ## What it does
    Finds a subtraction of two nearly equal numbers (a**2 - b**2, 1 - cos(x)**2, a discriminant) whose rounding decided the sign or
    made it zero, before a root, a log or a division.

    ## Why is this bad?
    The exact difference is positive; the computed one is a few ulp of the operands and can be negative: NaN for a root or a log.

    ## Guideline
    Factor: (a - b) * (a + b); use `sin` for sqrt(1 - cos**2), `log1p`, `expm1`, `hypot`; or clamp the difference at a positive bound.

    ## Fix safety
    Unsafe: the bound changes values that rounding had decided anyway.

    ## References
    Higham, "Accuracy and Stability of Numerical Algorithms", chapter 1.7 (cancellation).
    """

    code, slug = "NAN502", "difference-of-squares"
    bad = """
import torch

c = torch.tensor([1.0000001, 0.5], requires_grad=True)

def loss():
    return torch.sqrt(1.0 - c * c).sum()
"""
    good = """
import torch

c = torch.tensor([1.0000001, 0.5], requires_grad=True)

def loss():
    return torch.sqrt((1.0 - c * c).clamp(min=1e-12)).sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        found = cancelled(birth)
        if found is None or found[1].one_pass or not (found[1].squares or found[1].determinant) or (found[1].determinant and birth.op in ("div", "reciprocal")):
            return None
        operand, lost = found
        if (operand.value == 0 and birth.op not in ("log", "log2", "log10", "rsqrt")) or (not operand.value < 0 and birth.op in ("div", "reciprocal")):
            return None
        message = f"{birth.op} of {operand.value:.4g}: a difference of close numbers lost its digits, {numbers(lost)}; {elements(birth)}"
        also = tuple(place for place in (lost.location,) if place is not None)
        return Claim(strength(birth, 0.9), message, also=also)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(
            finding.location, (*LOGS, "sqrt", "rsqrt", "**", "pow"), f"clamp(min={_edits.floor_for(birth.dtype)})", "keeps the difference positive"
        )
