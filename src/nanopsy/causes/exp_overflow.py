from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth


class ExpOverflow(Cause):
    """Exponential of a large finite number.

    ## What it does
    Finds `exp`, `expm1`, `sinh` or `cosh` of a finite argument whose result exceeds the format: above 88.7 in float32 and bfloat16, 11.1 in float16.

    ## Why is this bad?
    inf enters the loss; the next subtraction or product makes it NaN. An unscaled feature or an unbounded log-variance head is enough.

    ## Guideline
    Bound the exponent *before* the exp (`logvar.clamp(-30, 20).exp()`): `exp().clamp(max=…)` still has an infinite gradient. Stay in log space:
    `logsumexp`, `softplus`, `log1p`.

    ## Fix safety
    Unsafe: exponents above the bound have gradient 0.

    ## References
    vanderschaarlab/synthcity issue 331.
    """

    code, slug = "NAN206", "exp-overflow"
    replacement = "nanopsy.stable.exp"
    bad = """
import torch

logvar = torch.tensor([95.0, 0.1], requires_grad=True)

def loss():
    return torch.exp(logvar).mean()
"""
    good = """
import torch

logvar = torch.tensor([95.0, 0.1], requires_grad=True)

def loss():
    return torch.exp(logvar.clamp(-30, 20)).mean()
"""

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        if birth.op not in ("exp", "exp2", "expm1", "sinh", "cosh") or not math.isfinite(argument.value):
            return None
        limit = math.log(birth.format.max) - 0.01
        if abs(argument.value) < limit * (1.0 if birth.op != "exp2" else 1.44):
            return None
        if birth.dtype == "float16" and abs(argument.value) < 88:
            return None
        message = f"{birth.op}({argument.value:.6g}) exceeds {birth.dtype} (largest exponent {limit:.1f}); {came_from(argument.origin)}; {elements(birth)}"
        return Claim(0.94, message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, ("exp", "expm1", "exp2", "sinh", "cosh"), "clamp(max=20)", "bounds the exponent before the exp")
