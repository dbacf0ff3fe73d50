from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.findings import Edit, Finding, Location
from nanopsy.ranges import Birth, Operand, OriginKind

DIVISIONS = ("div", "true_divide", "reciprocal", "rsqrt", "addcdiv", "remainder", "fmod", "_weight_norm_interface", "pow", "linalg_inv_ex")


def divisor(birth: Birth) -> Operand | None:
    """The operand below the line."""
    if birth.op in ("reciprocal", "rsqrt", "pow", "_weight_norm_interface"):
        return birth.operand(0)
    if birth.op == "addcdiv":
        return birth.operand(2)
    return birth.operand(1) if len(birth.operands) > 1 else None


class DivisionByZero(Cause):
    """Division by exactly zero.

    ## What it does
    Finds a division (also reciprocal, rsqrt, a negative power, weight normalisation) whose divisor is exactly 0 and is not a count: a
    norm of a zero vector, the standard deviation of equal values, a maximum of dead activations, a depth, a disparity, z in a projection.

    ## Why is this bad?
    x / 0 is inf and 0 / 0 is NaN; the gradient with respect to the divisor divides by its square.

    ## Guideline
    Bound the divisor away from zero before dividing, by something meaningful for the quantity (a minimum depth, not 1e-12), and mask what the
    bound touches. Beware `x.abs().clamp(min=eps) * x.sign()`: sign(0) is 0.

    ## Fix safety
    Unsafe: quotients with near-zero divisors change, and their gradient with respect to the divisor is 0.

    ## References
    nianticlabs/monodepth2 issue 277 (depth from disparity); ClementPinard/SfmLearner-Pytorch issue 17 (projection by z).
    """

    code, slug = "NAN209", "division-by-zero"
    replacement = "nanopsy.stable.divide"
    bad = """
import torch

disparity = torch.tensor([-0.2, 0.5], requires_grad=True)

def loss():
    return (0.54 / torch.relu(disparity)).mean()
"""
    good = """
import torch

disparity = torch.tensor([-0.2, 0.5], requires_grad=True)

def loss():
    return (0.54 / torch.relu(disparity).clamp(min=0.01)).mean()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in DIVISIONS:
            return None
        below = divisor(birth)
        if below is None or below.origin.passed(OriginKind.COUNT, OriginKind.ROUNDING):
            return None
        if below.origin.cancellation is not None and below.origin.cancellation.determinant:
            return None
        location: Location | None = None
        if birth.op == "_weight_norm_interface":
            location = below.origin.made_at or birth.module_made_at
            message = f"weight normalisation divides by the norm of a zero weight vector ({below.origin.what}); {elements(birth)}"
            return Claim(strength(birth, 0.95), message, location=location)
        if below.value != 0 or (below.integral and not below.from_weights):
            return None
        if birth.op == "pow":
            exponent = birth.settings.get("exponent", birth.operand(1).value)
            if not isinstance(exponent, (int, float)) or exponent >= 0:
                return None
        if birth.op == "rsqrt" and birth.backward:
            return None
        kind = {
            OriginKind.NORM: "a norm", OriginKind.STD: "a standard deviation", OriginKind.MAX: "a maximum",
            OriginKind.SIGN: "a product with sign(0)", OriginKind.RELU: "a rectified value",
        }.get(below.origin.kind, "a value")  # fmt: skip
        above = birth.operand(0).value if birth.op in ("div", "true_divide") else 1.0
        ratio = "0/0" if above == 0 else f"{above:.4g}/0" if math.isfinite(above) else "x/0"
        message = f"division by {kind} that is exactly 0 ({ratio}): {came_from(below.origin)}; {elements(birth)}"
        also = tuple(step.location for step in below.origin.steps[:3] if step.location is not None)
        return Claim(strength(birth, 0.9), message, also=also, evidence={"divisor_from": str(below.origin.kind)})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        below = divisor(birth)
        nonnegative = below is not None and not below.low < 0
        for source, _, node in _edits.divisions(finding.location):
            code, bound = _edits.text(source, node), _edits.floor_for(birth.dtype)
            if nonnegative:
                yield [_edits.method(source, node, f"clamp(min={bound})", "bounds the divisor away from zero")]
            yield [_edits.replace_node(source, node, f"({code} + {bound})", "moves the divisor away from zero")]
