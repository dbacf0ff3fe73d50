from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.causes.log_of_sigmoid import LOGS
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth, OriginKind


class LogOfZero(Cause):
    """Logarithm of exactly zero.

    ## What it does
    Finds a `log` of 0 whose zero is neither a sigmoid's, a softmax's nor a label's: a relu output, an underflowed `exp`, a
    configuration constant (`min_depth = 0`), a random sample that came out 0.

    ## Why is this bad?
    log(0) is -inf, its gradient is infinite, and the first product with 0 is NaN.

    ## Guideline
    Bound the argument away from zero *before* the log (`x.clamp(min=eps).log()`), at a value that your format resolves; sample uniforms from
    (0, 1); give configuration bounds a positive minimum.

    ## Fix safety
    Unsafe: clamped elements have gradient 0.

    ## References
    pytorch/pytorch issue 22586 (Gumbel noise from a zero sample); MDE-Toolbox issue 79 (log of a zero lower depth bound).
    """

    code, slug = "NAN202", "log-of-zero"
    replacement = "nanopsy.stable.log"
    bad = """
import torch

x = torch.tensor([-1.0, 2.0], requires_grad=True)

def loss():
    return torch.log(torch.relu(x)).sum()
"""
    good = """
import torch

x = torch.tensor([-1.0, 2.0], requires_grad=True)

def loss():
    return torch.log(torch.relu(x).clamp(min=1e-6)).sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        zero = -1.0 if birth.op == "log1p" else 0.0
        at_zero = birth.op in LOGS and argument.value == zero
        if birth.op == "xlogy" and birth.operand(1).value == 0:
            argument, at_zero = birth.operand(1), True
        if birth.op == "logit" and argument.value in (0.0, 1.0):
            at_zero = True
        if not at_zero or argument.origin.passed(OriginKind.SIGMOID, OriginKind.SOFTMAX):
            return None
        if argument.origin.kind is OriginKind.DATA and not argument.from_weights:
            return None
        message = f"{birth.op} of exactly {argument.value:g}: {came_from(argument.origin)}; {elements(birth)}"
        return Claim(strength(birth, 0.92), message, evidence={"zero_from": str(argument.origin.kind)})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, LOGS, f"clamp(min={_edits.floor_for(birth.dtype)})", "keeps the argument of the log positive")
