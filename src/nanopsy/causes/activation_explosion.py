from __future__ import annotations

import math

from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.ranges import Birth, OriginKind

PRODUCTS = ("mul", "bmm", "pow", "square", "baddbmm", "cumprod", "prod", "matmul")


class ActivationExplosion(Cause):
    """Activations multiplied by activations until they overflow.

    ## What it does
    Finds an overflow in a product of two values that both depend on weights and are both already huge: unbounded gating or
    attention, powers of features, repeated multiplicative feedback.

    ## Why is this bad?
    A product of activations grows with the square of their scale, and a stack of them doubly exponentially: no single weight is large.

    ## Guideline
    Bound the multiplier (sigmoid, tanh, softmax), or normalise between the products.

    ## Fix safety
    No automatic edit: a bounded gate is a different model.

    ## References
    XiandaGuo/OpenStereo issue 175 (unbounded attention on a cost volume).
    """

    code, slug = "NAN212", "activation-explosion"
    bad = """
import torch

x = torch.full((4,), 30.0, requires_grad=True)

def loss():
    y = x
    for _ in range(6):
        y = y * (y + 1.0)
    return y.sum()
"""
    good = """
import torch

x = torch.full((4,), 30.0, requires_grad=True)

def loss():
    y = x
    for _ in range(6):
        y = y * torch.sigmoid(y + 1.0)
    return y.sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in PRODUCTS or not birth.forward or birth.dtype == "float16":
            return None
        tensors = [operand for operand in birth.operands if not operand.scalar]
        if len(tensors) == 1 and birth.op in ("pow", "square", "cumprod", "prod"):
            tensors = tensors * 2
        if len(tensors) < 2 or not all(operand.from_weights for operand in tensors[:2]):
            return None
        if any(operand.origin.kind is OriginKind.PARAMETER and not operand.origin.steps for operand in tensors[:2]):
            return None
        peaks = [operand.largest for operand in tensors[:2]]
        if not all(math.isfinite(peak) and peak > 1e6 for peak in peaks):
            return None
        message = f"{birth.op} of two activations up to {peaks[0]:.3g} and {peaks[1]:.3g} overflowed {birth.dtype}; {elements(birth)}"
        score = 0.78 if birth.op in ("pow", "square") else 0.92
        return Claim(strength(birth, score), message)
