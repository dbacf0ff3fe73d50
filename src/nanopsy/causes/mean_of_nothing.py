from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, strength
from nanopsy.causes.bessel_of_one import VARIANCES
from nanopsy.facts import Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth

LOSSES = (
    "smooth_l1_loss", "mse_loss", "l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss",
    "nll_loss_forward", "nll_loss2d_forward", "kl_div", "multi_margin_loss", "multilabel_margin_loss_forward", "cross_entropy_loss",
)  # fmt: skip


class MeanOfNothing(Cause):
    """Mean over an empty selection.

    ## What it does
    Finds a mean, a mean-reduced loss or a variance over zero elements: an empty mask, an empty slice, labels that are all `ignore_index`.

    ## Why is this bad?
    0/0 is NaN. With index masking the gradient of such a loss is zero, so the step would not have hurt the weights, but the logged
    loss is NaN, a scheduler or early stopping that reads it breaks, and added to another term it destroys that too.

    ## Guideline
    Sum and divide by the count clamped to one, or skip the batch; say which in the code. Check why the mask is empty: the sign of a
    disparity, a depth cap, a unit.

    ## Fix safety
    Safe for non-empty selections: sum / max(count, 1) is the mean to an ulp; an empty one gives 0 with zero gradient.

    ## References
    pytorch/pytorch issue 70348 (all labels ignored).
    """

    code, slug = "NAN302", "mean-of-nothing"
    sites = ("mean", "loss", "variance")
    replacement = "nanopsy.stable.masked_mean"
    bad = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
depth = torch.tensor([0.0, 0.0])

def loss():
    valid = depth > 0
    return (prediction[valid] - depth[valid]).abs().mean()
"""
    good = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
depth = torch.tensor([0.0, 0.0])

def loss():
    valid = depth > 0
    return (prediction[valid] - depth[valid]).abs().sum() / valid.sum().clamp(min=1)
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if not value.selected or site.count >= 1:
            return None
        name = site.settings["name"]
        if site.op == "variance":
            if site.settings["correction"] != 0 or not site.settings["whole"]:
                return None
        message = f"{name} over a selection whose size depends on the data: over 0 elements it is 0/0 = NaN"
        if site.settings.get("unseen"):
            message = f"{name}(…) of a selection whose size depends on the data: a mean over 0 elements is 0/0 = NaN"
            return Suspicion(message, Confidence.DEPENDS, "if nothing is selected and the loss averages")
        return Suspicion(message, Confidence.LIKELY, "if nothing is selected")

    def claim(self, birth: Birth) -> Claim | None:
        first = birth.operand(0)
        empty = first.count == 0 and birth.total > 0
        if birth.op in ("mean", "nanmean", "median", *VARIANCES) and empty:
            message = f"{birth.op} over 0 elements (shape {list(first.shape)})"
        elif birth.op in LOSSES and (empty or (birth.op.startswith("nll_loss") and self._all_ignored(birth))):
            why = "0 elements" if empty else f"labels that are all ignore_index ({birth.settings.get('ignore_index', -100)})"
            message = f"{birth.op} averages over {why}"
        else:
            return None
        selection = f": {came_from(first.origin)}" if first.origin.what else ""
        return Claim(strength(birth, 0.96), message + selection)

    @staticmethod
    def _all_ignored(birth: Birth) -> bool:
        target = birth.operand(1)
        ignored = birth.settings.get("ignore_index", -100)
        return birth.operand(0).bad == 0 and target.low == target.high == ignored

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None or birth.op == "variance":
            return
        node = found[1]
        if isinstance(node, ast.Call) and _edits.called(node) == "mean":
            argument = _edits.subject(node)
            if not isinstance(argument, (ast.Name, ast.Attribute)):
                return  # written twice, a longer expression would be computed twice
        yield from self.remedies(birth, finding)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if not isinstance(node, ast.Call):
            return
        name, argument = _edits.called(node), _edits.subject(node)
        note = "0 for an empty selection"
        if name == "mean" and argument is not None and not node.keywords and len(node.args) == (1 if _edits.is_function(node) else 0):
            code = _edits.text(source, argument)
            yield [_edits.replace_node(source, node, f"({code}.sum() / max({code}.numel(), 1))", note)]
        elif name in LOSSES and len(node.args) >= 2 and _edits.keyword(node, "reduction") is None and not name.startswith(("nll", "cross")):
            start, end = source.span(node)
            whole = source.text[start : end - 1].rstrip().rstrip(",")
            new = f'({whole}, reduction="sum") / max({_edits.text(source, node.args[0])}.numel(), 1))'
            yield [_edits.replace_node(source, node, new, note)]
        elif name == "cross_entropy" and len(node.args) >= 2 and _edits.keyword(node, "reduction") is None and _edits.keyword(node, "weight") is None:
            start, end = source.span(node)
            whole = source.text[start : end - 1].rstrip().rstrip(",")
            word = _edits.keyword(node, "ignore_index")
            ignored = source.code(word.value) if word is not None else "-100"
            new = f'({whole}, reduction="sum") / ({source.code(node.args[1])} != {ignored}).sum().clamp(min=1))'
            yield [_edits.replace_node(source, node, new, note)]
