from __future__ import annotations

import math

from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.ranges import Birth, OriginKind

ARITHMETIC = ("add", "sub", "rsub", "mul", "sum", "pow", "square", "cumsum", "addcmul", "mean", "dot", "linalg_vector_norm")


class SentinelOverflow(Cause):
    """Arithmetic on a sentinel as large as the format's largest number.

    ## What it does
    Finds an overflow whose large operand is a constant near `finfo.max` (a "no hit" or "infinite distance" marker), not a computed value.

    ## Why is this bad?
    max + max, max * 2 and max ** 2 are inf, and inf - inf is NaN: a marker is not a number to compute with.

    ## Guideline
    Select the valid elements before any arithmetic, or mark invalid ones by a mask and a harmless value.

    ## Fix safety
    No automatic edit: what an invalid element should count for is yours to say.

    ## References
    ashawkey/torch-ngp issue 198 (rays that miss the box).
    """

    code, slug = "NAN211", "sentinel-overflow"
    bad = """
import torch

near = torch.tensor([torch.finfo(torch.float32).max, 0.5])
w = torch.ones(2, requires_grad=True)

def loss():
    far = near * 1.0
    return (w * (near + far)).sum()
"""
    good = """
import torch

near = torch.tensor([torch.finfo(torch.float32).max, 0.5])
w = torch.ones(2, requires_grad=True)

def loss():
    hit = near < 1e6
    safe = torch.where(hit, near, 1.0)
    return (w * (safe + safe)).sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in ARITHMETIC or birth.dtype == "float16":
            return None
        for operand in birth.operands:
            if not math.isfinite(operand.value) or abs(operand.value) < birth.format.max / 64:
                continue
            if operand.scalar or (not operand.from_weights and operand.origin.passed(OriginKind.CONSTANT, OriginKind.DATA, OriginKind.CLAMP)):
                steps = operand.origin.steps
                marks = [step for step in steps if abs(step.value) >= birth.format.max / 64 and step.location is not None]
                also = tuple(step.location for step in marks if step.location is not None)
                message = f"{birth.op} of {operand.value:.4g}, a marker near the largest {birth.dtype}: {came_from(operand.origin)}; {elements(birth)}"
                return Claim(strength(birth, 0.94), message, also=also)
        return None
