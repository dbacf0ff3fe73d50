from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, strength
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth


class InfeasibleAlignment(Cause):
    """CTC target that does not fit its input.

    ## What it does
    Finds a CTC loss that is infinite because a target (with a blank between repeated labels) is longer than its input.

    ## Why is this bad?
    No alignment exists, so the probability is 0 and the loss inf; its gradient is NaN.

    ## Guideline
    Filter such samples, reduce the downsampling, or pass `zero_infinity=True`.

    ## Fix safety
    Safe: `zero_infinity=True` changes nothing for feasible targets and drops the others.

    ## References
    PyTorch documentation of `torch.nn.CTCLoss`.
    """

    code, slug = "NAN704", "infeasible-alignment"
    bad = """
import torch
import torch.nn.functional as F

logits = torch.zeros(3, 1, 5, requires_grad=True)

def loss():
    target = torch.tensor([[1, 1, 2, 3]])
    return F.ctc_loss(logits.log_softmax(2), target, torch.tensor([3]), torch.tensor([4]))
"""
    good = """
import torch
import torch.nn.functional as F

logits = torch.zeros(3, 1, 5, requires_grad=True)

def loss():
    target = torch.tensor([[1, 1, 2, 3]])
    return F.ctc_loss(logits.log_softmax(2), target, torch.tensor([3]), torch.tensor([4]), zero_infinity=True)
"""

    def claim(self, birth: Birth) -> Claim | None:
        if "ctc_loss" not in birth.op or birth.operand(0).bad or not (math.isinf(birth.value) or birth.backward):
            return None
        where = birth.module_made_at if birth.module_type == "CTCLoss" else None
        return Claim(strength(birth, 0.96), "the CTC loss is infinite: a target is longer than its input allows, so no alignment exists",
                     also=(where,) if where else ())  # fmt: skip

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if isinstance(node, ast.Call) and _edits.called(node) == "ctc_loss" and _edits.keyword(node, "zero_infinity") is None:
            yield [_edits.add_keyword(source, node, "zero_infinity=True", "drops infeasible targets")]
