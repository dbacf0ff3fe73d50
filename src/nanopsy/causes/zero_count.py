from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.causes.division_by_zero import divisor
from nanopsy.facts import Form, Kind, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding, Safety
from nanopsy.ranges import Birth, OriginKind


class ZeroCount(Cause):
    """Division by a count of zero.

    ## What it does
    Finds a division whose divisor counts something (the sum of a mask, a number of elements or boxes) and is 0.

    ## Why is this bad?
    `(x * mask).sum() / mask.sum()` is 0/0 for an empty mask: the loss is NaN *and so is every gradient*, because the sum ran over all pixels.

    ## Guideline
    `… / mask.sum().clamp(min=1)`: an empty mask then gives 0 with zero gradient.

    ## Fix safety
    Safe: counts of one and more are untouched.

    ## References
    clks-wzz/FAS-SGTD issue 22.
    """

    code, slug = "NAN303", "zero-count"
    sites = ("divide",)
    replacement = "nanopsy.stable.masked_mean"
    bad = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
depth = torch.tensor([0.0, 0.0])

def loss():
    mask = (depth > 0).float()
    return ((prediction - depth) * mask).sum() / mask.sum()
"""
    good = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
depth = torch.tensor([0.0, 0.0])

def loss():
    mask = (depth > 0).float()
    return ((prediction - depth) * mask).sum() / mask.sum().clamp(min=1)
"""

    def match(self, site: Site) -> Suspicion | None:
        below = site.other
        if below is None or not below.has(Form.COUNT) or below.lo > 0 or below.hi < 0 or below.has(Form.EPSILON | Form.DETERMINANT_OF_SUMS):
            return None
        message = "division by the count of a mask that can select nothing: 0/0 in the value, and 0 * inf = NaN in the gradient of every element"
        if not below.has(Form.MASK) and site.operand.ref is not None and not below.count_of:
            message = "division by a sum of weights that can all be 0: 0/0 in the value, and NaN in the gradient"
        counted = "whole" if below.has(Form.INTEGER) and not below.has(Form.MEAN | Form.SQUARE) and below.hi > 0 else ""
        facts = (("count", counted), ("kind", "number" if below.kind == Kind.NUMBER else "tensor"))
        if below.hi <= 0 or below.has(Form.MEAN | Form.SQUARE):
            facts = (("count", "no"), *facts[1:])
        confidence = Confidence.DEPENDS if site.operand.has(Form.GRID) or site.operand.kind == Kind.NUMBER else Confidence.LIKELY
        return Suspicion(message, confidence, "if no element is selected", facts=facts)

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in ("div", "true_divide", "reciprocal"):
            return None
        below = divisor(birth)
        if below is None or below.value != 0:
            return None
        if not (below.origin.kind is OriginKind.COUNT or (below.integral and not below.from_weights)):
            return None
        what = came_from(below.origin) if below.origin.kind is OriginKind.COUNT else "a whole number that is 0"
        return Claim(strength(birth, 0.97), f"division by a count of 0: {what}; {elements(birth)}")

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        safety = Safety.SAFE if facts.get("count") == "whole" else Safety.UNSAFE
        if facts.get("count") == "no":
            return
        for source, _, below in _edits.divisions(finding.location):
            note = "an empty selection gives 0"
            if facts.get("kind") == "number":
                yield [_edits.replace_node(source, below, f"max({source.code(below)}, 1)", note, safety)]
            else:
                yield [_edits.method(source, below, "clamp(min=1)", note, safety)]

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        for source, _, below in _edits.divisions(finding.location):
            note = "an empty selection gives 0"
            yield [_edits.method(source, below, "clamp(min=1)", note, Safety.SAFE)]
            yield [_edits.replace_node(source, below, f"max({source.code(below)}, 1)", note, Safety.SAFE)]
