from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.causes.log_of_sigmoid import LOGS
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth, OriginKind


class NonPositiveLabel(Cause):
    """Zero or negative label under a logarithm.

    ## What it does
    Finds a `log` of a value that comes from the data, not from the network, and is 0 or negative: the invalid pixels of a depth map.

    ## Why is this bad?
    Depth 0 means "no measurement". Its log is -inf, and a mask that lets it through (`>=` for `>`, a wrong minimum, interpolation) makes the loss inf or NaN.

    ## Guideline
    Mask with a positive minimum, `depth > 1e-3`, before taking the log; resize sparse depth with nearest neighbour only.

    ## Fix safety
    Unsafe: a clamp gives invalid pixels a made-up depth; the mask is the cure.

    ## References
    shariqfarooq123/AdaBins issue 16.
    """

    code, slug = "NAN702", "non-positive-label"
    sites = ("log",)
    bad = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
target = torch.tensor([[5.0], [3.0], [0.0]]).flatten()[1:]

def loss():
    mask = target >= 0
    return (torch.log(prediction[mask]) - torch.log(target[mask])).pow(2).mean()
"""
    good = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
target = torch.tensor([[5.0], [3.0], [0.0]]).flatten()[1:]

def loss():
    mask = target > 1e-3
    return (torch.log(prediction[mask]) - torch.log(target[mask])).pow(2).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.role != "label" or value.lo > 0 or value.has(Form.EPSILON | Form.FLOORED):
            return None
        name = site.settings["name"]
        if value.lo == 0 and value.selected:
            return Suspicion(f"{name} of labels selected by a bound that lets 0 through", Confidence.LIKELY)
        return Suspicion(
            f"{name} of labels before the invalid ones are taken out: a missing depth is 0, log 0 is -inf", Confidence.DEPENDS, "if labels hold zeros"
        )

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        edge = -1.0 if birth.op == "log1p" else 0.0
        if birth.op not in LOGS or not argument.value <= edge or argument.from_weights:
            return None
        if not argument.origin.passed(OriginKind.DATA):
            return None
        message = f"{birth.op} of a label that is {argument.value:g}: {came_from(argument.origin)}; {elements(birth)}"
        also = tuple(step.location for step in argument.origin.steps if step.location is not None)[:4]
        return Claim(strength(birth, 0.95), message, also=also)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, LOGS, "clamp(min=1e-3)", "the better cure: a mask with a positive minimum depth")
