from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.facts import Form, Origin, Site, Suspicion, ordered
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth, OriginKind

SINGULAR = ("log", "log2", "log10", "log1p", "div", "reciprocal", "rsqrt", "pow", "sqrt", "exp", "acos", "asin", "true_divide")


_REDUCED = Form.COUNT | Form.TOTAL | Form.MEAN | Form.DEVIATION | Form.VARIANCE | Form.SPREAD | Form.MAXIMUM


class ZeroTimesInf(Cause):
    """Infinite value multiplied by a zero mask.

    ## What it does
    Finds an invalid element (log of a zero label, division by a zero depth) that is "masked" by multiplying with 0.

    ## Why is this bad?
    0 * inf is NaN: a multiplication cannot remove what is not a number. The same happens in backward when only the gradient is infinite.

    ## Guideline
    Select the valid elements (`x[mask]`) or make the argument harmless before the operator (`torch.where(mask, x, 1.0)`), then multiply.

    ## Fix safety
    Unsafe: the bound replaces values at masked elements; unmasked ones keep theirs if they lie above it.

    ## References
    zhengqili/MegaDepth issue 38.
    """

    code, slug = "NAN403", "zero-times-inf"
    sites = ("mask",)
    bad = """
import torch

prediction = torch.tensor([0.5, 1.0], requires_grad=True)
depth = torch.tensor([0.0, 3.0])

def loss():
    mask = (depth > 0).float()
    return ((prediction - torch.log(depth)) * mask).sum()
"""
    good = """
import torch

prediction = torch.tensor([0.5, 1.0], requires_grad=True)
depth = torch.tensor([0.0, 3.0])

def loss():
    mask = (depth > 0).float()
    safe = torch.where(depth > 0, depth, torch.ones_like(depth))
    return ((prediction - torch.log(safe)) * mask).sum()
"""

    def match(self, site: Site) -> Suspicion | None:
        for hazard in ordered(site.operand.hazards):
            inner = hazard.site
            if not hazard.code or inner.op not in ("log", "divide") or hazard.suspicion.needs_gradient:
                continue
            if site.operand.has(Form.MEAN | Form.TOTAL):
                continue  # one number: it was reduced before the mask
            if inner.op == "divide" and inner.other is not None and inner.other.has(_REDUCED):
                continue  # one divisor for all elements: selecting first would not help
            message = "a mask multiplies a value that is infinite where it is 0: 0 * inf is NaN; select (or replace the argument) before the singular operation"
            sure = Confidence.DEPENDS if hazard.suspicion.open else Confidence.LIKELY
            return Suspicion(message, sure, hazard.suspicion.condition, also=(Origin(inner.source.file, inner.node, "the singular operation"),))
        return None

    def claim(self, birth: Birth) -> Claim | None:
        if birth.backward and birth.sink == "gradient":
            return self._in_backward(birth)
        source = birth.nan_from
        marks = [operand for operand in birth.operands if operand.scalar and math.isinf(operand.value)]
        if birth.op == "mul" and marks and any(operand.value == 0 for operand in birth.operands if not operand.scalar):
            message = f"a mask with zeros is multiplied by {marks[0].value}: 0 * inf = nan where nothing should be masked; {elements(birth)}"
            return Claim(0.97, message)
        if birth.op != "mul" or source is None or not math.isnan(birth.value) or source.op not in SINGULAR:
            return None
        zeros = [operand for operand in birth.operands if operand.value == 0 and operand.binary and not operand.from_weights]
        if not zeros:
            return None
        if source.operand(0).origin.kind is OriginKind.CONSTANT or (source.op == "pow" and source.operand(0).value != 0):
            return None
        saturated = source.operand(0).origin.passed(OriginKind.SIGMOID, OriginKind.SOFTMAX)
        message = f"{source.op} gave {source.value} at an invalid element, and the 0/1 mask multiplied it: 0 * inf = nan; {elements(birth)}"
        also = (birth.location,) if birth.location else ()
        return Claim(0.85 if saturated else 1.03, message, location=source.location, also=also)

    @staticmethod
    def _in_backward(birth: Birth) -> Claim | None:
        origin = birth.incoming_origin
        if birth.incoming != 0 or origin is None or birth.discard is not None or birth.op not in SINGULAR:
            return None
        multiplied = [step for step in origin.steps if step.op == "mul" and step.node.startswith("Mul")]
        if not multiplied or not origin.passed(OriginKind.DATA, OriginKind.CONSTANT, OriginKind.COUNT, OriginKind.UNKNOWN):
            return None
        message = f"{birth.op} at {birth.operand(0).value:.6g} is multiplied by a 0 mask: its infinite slope times 0 is nan; {elements(birth)}"
        place = multiplied[0].location
        return Claim(0.94, message, also=(place,) if place else ())

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(
            finding.location, (*SINGULAR, "/", "**"), f"clamp(min={_edits.floor_for(birth.dtype)})", "makes masked elements harmless before the operator"
        )
