from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding, Safety
from nanopsy.ranges import Birth
from nanopsy.sources import Source


class NormAtZero(Cause):
    """Hand-written norm of a zero vector.

    ## What it does
    Finds `sqrt((x ** 2).sum())`, or the same with `** 0.5`, differentiated where all components are zero.

    ## Why is this bad?
    The derivative of the root is infinite at 0 and that of the square is 0: their product is NaN. Duplicated samples,
    identical embeddings and zero-initialised rotations bring it about. `torch.linalg.vector_norm` and `torch.norm` define the
    subgradient at zero as 0 and are safe; the hand-written form is not.

    ## Guideline
    Use `torch.linalg.vector_norm(x, dim=…)`, or add an epsilon under the root.

    ## Fix safety
    Safe: the library norm has the same value and the same gradient everywhere but at zero.

    ## References
    PyTorch, autograd notes on non-differentiable functions; UKPLab/sentence-transformers pull request 4033.
    """

    code, slug = "NAN102", "norm-at-zero"
    sites = ("sqrt",)
    replacement = "nanopsy.stable.norm"
    bad = """
import torch

a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
b = torch.tensor([[1.0, 2.0], [0.0, 0.0]])

def loss():
    return torch.sqrt(((a - b) ** 2).sum(-1)).mean()
"""
    good = """
import torch

a = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
b = torch.tensor([[1.0, 2.0], [0.0, 0.0]])

def loss():
    return torch.linalg.vector_norm(a - b, dim=-1).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.lo > 0 or not value.has(Form.ZERO) or value.has(Form.MEAN_OF_SQUARES | Form.VARIANCE | Form.ONE_PASS | Form.SIGNED):
            return None
        if not value.has(Form.SUM_OF_SQUARES):
            return None
        message = "a norm written as the root of a sum of squares: for a zero vector its gradient is 0/0 = NaN (torch.linalg.norm has 0 there)"
        components = sum(isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) for node in ast.walk(site.node))
        _, end = site.source.span(site.node)
        too_late = re.match(r"\)*\s*\+\s*(?:1e-|self\.eps|eps)", site.source.text[end : end + 24]) is not None  # an epsilon beside the root
        if components >= 2 and not too_late:
            return Suspicion(message, Confidence.DEPENDS, "if all components can be 0 together", needs_gradient=True)
        return Suspicion(message, Confidence.CERTAIN if value.has(Form.TOTAL) else Confidence.LIKELY, needs_gradient=True)

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        if not birth.backward or not birth.node.startswith(("Sqrt", "Pow")) or argument.value != 0:
            return None
        if birth.op == "pow" and birth.settings.get("exponent") != 0.5:
            return None
        if not argument.origin.of_squares or not any(step.op in ("sum", "dot", "linalg_vector_norm") for step in argument.origin.steps[:2]):
            return None
        message = f"a hand-written norm, the root of a sum of squares, was differentiated at the zero vector: inf * 0; {elements(birth)}"
        return Claim(strength(birth, 0.93), message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        argument = _edits.subject(node)
        if argument is None or _edits.called(node) not in ("sqrt", "**", "pow"):
            return
        new = _vector_norm(source, argument)
        if new is not None:
            yield [_edits.replace_node(source, node, new, "the library norm has gradient 0 at zero", Safety.SAFE)]
        yield [_edits.method(source, argument, "clamp(min=1e-12)", "keeps the argument of the root positive")]


def _vector_norm(source: Source, argument: ast.expr) -> str | None:
    """``(E ** 2).sum(…)`` as ``torch.linalg.vector_norm(E, …)``."""
    if not isinstance(argument, ast.Call) or _edits.called(argument) != "sum":
        return None
    squared = _edits.subject(argument)
    inner: ast.expr | None = None
    if (isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Pow) and isinstance(squared.right, ast.Constant) and squared.right.value == 2) or (
        isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Mult) and ast.dump(squared.left) == ast.dump(squared.right)
    ):
        inner = squared.left
    elif isinstance(squared, ast.Call) and _edits.called(squared) in ("pow", "square"):
        extra = squared.args[1:] if _edits.is_function(squared) else squared.args
        if _edits.called(squared) == "square" or (len(extra) == 1 and isinstance(extra[0], ast.Constant) and extra[0].value == 2):
            inner = _edits.subject(squared)
    if inner is None:
        return None
    if len(argument.args) > (2 if _edits.is_function(argument) else 1) or any(
        word.arg not in ("dim", "axis", "keepdim", "keepdims") for word in argument.keywords
    ):
        return None  # keepdim by place, a dtype: not the same call
    places = argument.args[1:] if _edits.is_function(argument) else argument.args
    parts = [source.code(inner)]
    parts += [f"dim={source.code(place)}" for place in places[:1]]
    parts += [f"{'dim' if word.arg == 'axis' else word.arg}={source.code(word.value)}" for word in argument.keywords]
    return f"torch.linalg.vector_norm({', '.join(parts)})"
