from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.facts import Form, Kind, Site, Suspicion, Value
from nanopsy.findings import Confidence, Edit, Finding, Location
from nanopsy.ranges import Birth, Operand, OriginKind

DIVISIONS = ("div", "true_divide", "reciprocal", "rsqrt", "addcdiv", "remainder", "fmod", "_weight_norm_interface", "pow", "linalg_inv_ex")


def divisor(birth: Birth) -> Operand | None:
    """The operand below the line."""
    if birth.op in ("reciprocal", "rsqrt", "pow", "_weight_norm_interface"):
        return birth.operand(0)
    if birth.op == "addcdiv":
        return birth.operand(2)
    return birth.operand(1) if len(birth.operands) > 1 else None


class DivisionByZero(Cause):
    """Division by exactly zero.

    ## What it does
    Finds a division (also reciprocal, rsqrt, a negative power, weight normalisation) whose divisor is exactly 0 and is not a count: a
    norm of a zero vector, the standard deviation of equal values, a maximum of dead activations, a depth, a disparity, z in a projection.

    ## Why is this bad?
    x / 0 is inf and 0 / 0 is NaN; the gradient with respect to the divisor divides by its square.

    ## Guideline
    Bound the divisor away from zero before dividing, by something meaningful for the quantity (a minimum depth, not 1e-12), and mask what the
    bound touches. Beware `x.abs().clamp(min=eps) * x.sign()`: sign(0) is 0.

    ## Fix safety
    Unsafe: quotients with near-zero divisors change, and their gradient with respect to the divisor is 0.

    ## References
    nianticlabs/monodepth2 issue 277 (depth from disparity); ClementPinard/SfmLearner-Pytorch issue 17 (projection by z).
    """

    code, slug = "NAN209", "division-by-zero"
    sites = ("divide", "rsqrt", "power")
    replacement = "nanopsy.stable.divide"
    bad = """
import torch

disparity = torch.tensor([-0.2, 0.5], requires_grad=True)

def loss():
    return (0.54 / torch.relu(disparity)).mean()
"""
    good = """
import torch

disparity = torch.tensor([-0.2, 0.5], requires_grad=True)

def loss():
    return (0.54 / torch.relu(disparity).clamp(min=0.01)).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        below = site.operand if site.op in ("rsqrt", "power") else site.other
        if below is None or below.lo > 0 or below.hi < 0 or below.has(Form.COUNT | Form.DETERMINANT_OF_SUMS):
            return None
        if site.op == "power" and (site.other is None or site.other.number is None or site.other.number >= 0):
            return None
        if below.has(Form.SIGNED) and below.has(Form.EPSILON) and not below.has(Form.NORMALIZED | Form.MASK):
            if below.has(Form.PRODUCT | Form.DIFFERENCE | Form.DETERMINANT):
                message = "a small constant is added to a value that takes both signs: the sum is still 0 where the value is minus the constant"
                dot = site.gradient and below.has(Form.TOTAL) and below.has(Form.PRODUCT)
                return Suspicion(message, Confidence.LIKELY if dot else Confidence.DEPENDS, "if the value comes that close to minus the constant")
            return None
        reason = _why_zero(below)
        written = _divisor_text(site)
        if re.search(r"\bdet(?:erminant)?\b", written) and below.has(Form.SIGNED):
            reason = _DETERMINANT
        if not reason and below.kind != Kind.NUMBER and not below.has(Form.MASK) and _MEASURED.match(written):
            message = "division by a depth, a disparity or a z: it is 0 where nothing was measured, or in the plane of the camera"
            return Suspicion(message, Confidence.DEPENDS, "if the divisor was measured, or nothing bounds it")
        if not reason or re.search(r"\b(?:rays?|ray_dirs?|viewdirs?)\b", written):
            return None
        facts = (("sign", "nonnegative" if below.lo >= 0 else "signed"), ("kind", "number" if below.kind == Kind.NUMBER else "tensor"))
        labels = below.role == "label" and below.has(Form.DEVIATION | Form.SPREAD)
        surely = labels or (site.gradient and _surely(site, below, reason))
        confidence = Confidence.LIKELY if surely else Confidence.DEPENDS
        return Suspicion(f"division by a value that reaches 0: {reason}", confidence, "" if surely else "if a zero gets there", facts=facts)

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in DIVISIONS:
            return None
        below = divisor(birth)
        if below is None or below.origin.passed(OriginKind.COUNT, OriginKind.ROUNDING):
            return None
        if below.origin.cancellation is not None and below.origin.cancellation.determinant:
            return None
        location: Location | None = None
        if birth.op == "_weight_norm_interface":
            location = below.origin.made_at or birth.module_made_at
            message = f"weight normalisation divides by the norm of a zero weight vector ({below.origin.what}); {elements(birth)}"
            return Claim(strength(birth, 0.95), message, location=location)
        if below.value != 0 or (below.integral and not below.from_weights):
            return None
        if birth.op == "pow":
            exponent = birth.settings.get("exponent", birth.operand(1).value)
            if not isinstance(exponent, (int, float)) or exponent >= 0:
                return None
        if birth.op == "rsqrt" and birth.backward:
            return None
        kind = {
            OriginKind.NORM: "a norm", OriginKind.STD: "a standard deviation", OriginKind.MAX: "a maximum",
            OriginKind.SIGN: "a product with sign(0)", OriginKind.RELU: "a rectified value",
        }.get(below.origin.kind, "a value")  # fmt: skip
        above = birth.operand(0).value if birth.op in ("div", "true_divide") else 1.0
        ratio = "0/0" if above == 0 else f"{above:.4g}/0" if math.isfinite(above) else "x/0"
        message = f"division by {kind} that is exactly 0 ({ratio}): {came_from(below.origin)}; {elements(birth)}"
        also = tuple(step.location for step in below.origin.steps[:3] if step.location is not None)
        return Claim(strength(birth, 0.9), message, also=also, evidence={"divisor_from": str(below.origin.kind)})

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        if facts.get("sign") != "nonnegative":
            return
        for source, _, node in _edits.divisions(finding.location):
            if facts.get("kind") == "number":
                yield [_edits.replace_node(source, node, f"max({source.code(node)}, 1e-6)", "bounds the divisor away from zero")]
            else:
                yield [_edits.method(source, node, "clamp(min=1e-6)", "bounds the divisor away from zero")]

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        below = divisor(birth)
        nonnegative = below is not None and not below.low < 0
        for source, _, node in _edits.divisions(finding.location):
            code, bound = _edits.text(source, node), _edits.floor_for(birth.dtype)
            if nonnegative:
                yield [_edits.method(source, node, f"clamp(min={bound})", "bounds the divisor away from zero")]
            yield [_edits.replace_node(source, node, f"({code} + {bound})", "moves the divisor away from zero")]


_MEASURED = re.compile(r"(?:self\.|batch\.)?(?:\w+_)?(?:depths?|disp(?:s|arity|arities)?|z)(?:_(?:gts?|map|maps|target))?(?:\[[^\]]*\])?$", re.IGNORECASE)
_DETERMINANT = "a determinant (difference of products) is 0 for collinear or repeated rows"
_PRODUCTS = "a sum of products (a difference) that takes both signs crosses 0"


def _surely(site: Site, below: Value, reason: str) -> bool:
    """Whether ordinary input makes a divisor 0, by what kind of value it is."""
    if reason == _DETERMINANT:
        return False
    if reason == _PRODUCTS:
        return site.module and below.has(Form.PRODUCT)
    if below.has(Form.NORM | Form.SUM_OF_SQUARES) and not below.has(Form.MEAN):
        return below.has(Form.NORM) and below.base in (site.operand.sym, site.operand.base)  # its own norm
    if below.has(Form.DEVIATION | Form.VARIANCE):
        return re.search(r"loss|norm|criterion", f"{Path(site.source.file).name} {site.owner} {site.function}".lower()) is not None
    if site.op == "divide" and below.has(Form.MEAN | Form.TOTAL) and not below.has(Form.ABSOLUTE | Form.SPREAD | Form.RELU):
        return False  # every element would have to be 0
    return not below.has(Form.SQUARE) or below.origin is not None or below.has(Form.MEAN_OF_SQUARES | Form.SUM_OF_SQUARES)


def _divisor_text(site: Site) -> str:
    """The divisor as it is written."""
    node = _edits.denominator(site.node) if isinstance(site.node, ast.expr) else None
    return site.text(node) if node is not None else ""


def _why_zero(below: Value) -> str:
    """The input that makes a denominator 0, if one is known."""
    if below.has(Form.SPREAD) and below.has(Form.ZERO):
        return "maximum minus minimum is 0 for a constant map"
    if below.has(Form.DETERMINANT):
        return _DETERMINANT
    if below.has(Form.NORM | Form.SUM_OF_SQUARES):
        return "a norm is 0 for a zero vector"
    if below.has(Form.DEVIATION | Form.VARIANCE):
        return "the spread of equal values is 0"
    if below.has(Form.GUARDED_BY_SIGN) and below.origin is not None:
        return below.origin.what
    if below.lo >= 0 and below.has(Form.ZERO):
        if below.has(Form.SUMMED) and not below.has(Form.SQUARE):
            return ""
        if below.role in ("label", "image") and not below.has(Form.MEAN | Form.MAXIMUM | Form.RELU):
            return ""
        return below.origin.what if below.origin is not None else "every term of it can be 0"
    if (
        below.lo >= 0
        and below.has(Form.SIGMOID)
        and below.has(Form.UNDERFLOW)
        and not below.has(Form.MEAN | Form.MAXIMUM)
        and below.kind == Kind.TENSOR
        and below.origin is not None
    ):
        return below.origin.what if below.origin.what.startswith("a sigmoid") else ""
    if below.has(Form.SIGNED) and below.has(Form.PRODUCT | Form.DIFFERENCE) and not below.has(Form.NETWORK | Form.LOGARITHM) and below.lo < 0 < below.hi:
        return _PRODUCTS
    return ""
