from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements
from nanopsy.facts import INF, Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding, Safety
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
    sites = ("exp", "clip", "logspace", "log")
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
    source_bad = """
import torch

def ranking_loss(better, worse):
    return torch.log(1 + torch.exp(worse - better)).mean()
"""
    source_good = """
import torch

def ranking_loss(better, worse):
    return torch.nn.functional.softplus(worse - better).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if site.op == "clip":
            if value.origin is not None and re.search(r"log|prob|old", site.source.code(value.origin.node) if value.origin.file == site.source.file else ""):
                return None  # a ratio of probabilities, as exp of a difference of logarithms
            message = (
                "the exponential is bounded after it was taken: the value is cut, but its gradient is still 0 * inf = NaN after an overflow; bound the exponent"
            )
            return Suspicion(message, Confidence.CERTAIN, needs_gradient=True)
        if site.op == "logspace":
            if not _is_range(site):
                return None
            return Suspicion(
                "logspace takes exponents, not end points: 10**80 is inf in float32 (bins of a depth range want the logarithms of its ends)", Confidence.CERTAIN
            )
        if site.op == "log":
            if not value.has(Form.EXPLOGIT) or value.hi < INF:
                return None
            return Suspicion(
                "log(1 + exp(x)) overflows to inf for x > 88.7 (11.1 in float16), and its gradient is NaN; softplus is the same function without it",
                Confidence.CERTAIN,
            )
        if value.hi < 89 or value.has(Form.LOGARITHM):
            return None
        if value.lo >= 0 and value.hi == INF and value.has(Form.NORM | Form.SUM_OF_SQUARES) and not value.has(Form.RATIO):
            return Suspicion("the exponential of a norm or square that nothing bounds: inf above 88.7 (11.1 in float16)", Confidence.LIKELY)
        if value.has(Form.TEMPERATURE) and value.has(Form.RATIO) and not value.has(Form.SIGNED):
            message = (
                "the exponential of logits over a temperature without subtracting their maximum: inf for logits above 88.7 times the temperature, then inf/inf"
            )
            return Suspicion(message, Confidence.LIKELY)
        if value.has(Form.NETWORK):
            return Suspicion(
                "the exponential of a layer's output that nothing bounds: inf above 88.7 (11.1 in float16)",
                Confidence.DEPENDS,
                "if the output grows that large",
            )
        return None

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

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None or birth.op != "log":
            return
        source, node = found
        if isinstance(node, ast.Call) and _edits.called(node) == "log1p":
            inside = _edits.subject(node)
            exponent = _edits.subject(inside) if isinstance(inside, ast.Call) and _edits.called(inside) == "exp" else None
            if exponent is not None:
                new = f"torch.nn.functional.softplus({source.code(exponent)})"
                yield [_edits.replace_node(source, node, new, "the same function without the overflow", Safety.SAFE)]
            return
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and _edits.called(inner) == "exp" and isinstance(node, ast.Call) and _edits.called(node) == "log":
                exponent, whole = _edits.subject(inner), _edits.subject(node)
                if exponent is not None and isinstance(whole, ast.BinOp) and isinstance(whole.op, ast.Add) and _is_one_plus(whole, inner):
                    new = f"torch.nn.functional.softplus({source.code(exponent)})"
                    yield [_edits.replace_node(source, node, new, "the same function without the overflow", Safety.SAFE)]
                    return

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, ("exp", "expm1", "exp2", "sinh", "cosh"), "clamp(max=20)", "bounds the exponent before the exp")


def _is_range(site: Site) -> bool:
    """Whether the end points of a logspace are written as depths (or other extremes), not as their logarithms."""
    words = site.text().lower()
    return (
        re.search(r"(?:min|max)_?(?:depth|val|dist|d\b)|(?:depth|d)_?(?:min|max)|far|near", words) is not None and "log10" not in words and "log(" not in words
    )


def _is_one_plus(whole: ast.BinOp, exponential: ast.Call) -> bool:
    """Whether an expression is 1 + exp(x), either way round."""
    sides = (whole.left, whole.right)
    return exponential in sides and any(isinstance(side, ast.Constant) and side.value in (1, 1.0) for side in sides)
