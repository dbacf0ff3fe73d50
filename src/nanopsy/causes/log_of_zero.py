from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.causes.log_of_sigmoid import LOGS
from nanopsy.facts import Form, Kind, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
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
    sites = ("log",)
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

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.lo > 0 or value.has(Form.SIGMOID | Form.SOFTMAX | Form.EXPLOGIT) or value.kind == Kind.NUMBER or value.has(Form.MASK):
            return None
        also = (value.origin,) if value.origin is not None else ()
        name = site.settings["name"]
        if value.lo == 0 and value.has(Form.ZERO) and value.role != "label":
            return Suspicion(
                f"{name} of a value that is exactly 0 at times: {value.origin.what if value.origin else 'nothing keeps it positive'}",
                Confidence.LIKELY,
                also=also,
            )
        if value.lo == 0 and value.has(Form.UNDERFLOW):
            return Suspicion(
                f"{name} of a value that underflows to 0: {value.origin.what if value.origin else 'nothing keeps it positive'}", Confidence.LIKELY, also=also
            )
        if value.role in ("label", "image") or value.known or not value.grad or value.has(Form.EPSILON | Form.FLOORED):
            return None
        if value.role == "prediction" or value.has(Form.PARAMETER):
            message = f"{name} of a prediction that nothing here keeps positive: 0 gives -inf, and a NaN gradient behind a saturated head"
            return Suspicion(message, Confidence.DEPENDS, "if the network's output can reach 0", open=True, facts=(("role", value.role),))
        return None

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
