from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence
from nanopsy.ranges import Birth


class LogsumexpOfNothing(Cause):
    """logsumexp of entries that are all -inf.

    ## What it does
    Finds a `logsumexp` over nothing but -inf (log of zero total probability): -inf in forward, which is right, and NaN in backward.

    ## Why is this bad?
    The gradient is softmax(x) = exp(x - logsumexp(x)), and -inf - -inf is NaN. Forward algorithms (HMM, CRF, CTC) start from such states.

    ## Guideline
    Represent log(0) by a large negative *finite* number (`torch.finfo(dtype).min / 4`), or compute only over reachable states.

    ## Fix safety
    No automatic edit: the constant is yours; any finite value below -1e4 serves in float32.

    ## References
    pytorch/pytorch issue 31829.
    """

    code, slug = "NAN406", "logsumexp-of-nothing"
    sites = ("logsumexp",)
    replacement = "nanopsy.stable.masked_logsumexp"
    bad = """
import torch

e = torch.zeros(2, requires_grad=True)

def loss():
    alpha = torch.full((2,), float("-inf")) + e
    total = torch.logsumexp(alpha, dim=0)
    return torch.logaddexp(total, e.sum())
"""
    good = """
import torch

e = torch.zeros(2, requires_grad=True)

def loss():
    alpha = torch.full((2,), torch.finfo(torch.float32).min / 4) + e
    total = torch.logsumexp(alpha, dim=0)
    return torch.logaddexp(total, e.sum())
"""

    def match(self, site: Site) -> Suspicion | None:
        if not site.operand.has(Form.MINUS_INFINITY):
            return None
        return Suspicion(
            "logsumexp over entries that may all be -inf: its gradient is NaN there", Confidence.DEPENDS, "if every entry is -inf", needs_gradient=True
        )

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in ("logsumexp", "logaddexp", "logcumsumexp", "logaddexp2"):
            return None
        both = birth.op.startswith("logaddexp") and all(operand.value == float("-inf") for operand in birth.operands[:2])
        if not (birth.settings.get("row_all_minus_inf") or both):
            return None
        message = f"{birth.op} over entries that are all -inf: its gradient computes -inf - -inf; {elements(birth)}"
        return Claim(0.96, message)
