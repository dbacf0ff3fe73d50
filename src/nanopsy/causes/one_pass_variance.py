from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth, Cancellation, Operand
from nanopsy.sources import Source

GUARDED = ("sqrt", "rsqrt", "pow", "log", "log2", "log10", "div", "reciprocal", "true_divide")


def cancelled(birth: Birth) -> tuple[Operand, Cancellation] | None:
    """The operand of a root, log or division whose sign or size a cancellation decided."""
    if birth.op not in GUARDED:
        return None
    for operand in birth.operands:
        lost = operand.origin.cancellation
        if lost is not None and operand.value <= 0:
            return operand, lost
    return None


def numbers(lost: Cancellation) -> str:
    """The difference in both precisions."""
    exact = f" (in float64: {lost.exact:.6g})" if lost.exact is not None else ""
    return f"{lost.left:.9g} - {lost.right:.9g} = {lost.result:.4g}{exact}"


class OnePassVariance(Cause):
    """Variance as mean of squares minus squared mean.

    ## What it does
    Finds E[x**2] - E[x]**2 (means, sums, box filters) that cancelled to a negative number or to zero and then entered a root or a divisor.

    ## Why is this bad?
    Both terms are of the size of the squared mean; their difference keeps only the digits that are left, and may be negative: `sqrt` of it is
    NaN. Data far from zero with a small spread (log-depth offsets, grey air around a patient, bfloat16 features) is all it takes. It is part of the
    third cause of NaN in monocular depth training (SILog with lambda = 1 is exactly this form).

    ## Guideline
    Two passes: `((x - x.mean()) ** 2).mean()`, or `torch.var(x, correction=0)`. They cannot be negative.

    ## Fix safety
    Unsafe in the last digits only: the two-pass value is the more exact one.

    ## References
    Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance"; arXiv 2311.03938, vulnerability 3.
    """

    code, slug = "NAN501", "one-pass-variance"
    sites = ("sqrt", "rsqrt", "log", "power")
    replacement = "nanopsy.stable.masked_var"
    bad = """
import torch

x = torch.tensor([2.3000002, 2.3, 2.3, 2.3, 2.3000002], requires_grad=True)

def loss():
    var = (x ** 2).mean() - x.mean() ** 2
    return (var - 1e-7).sqrt() if False else torch.sqrt(var * 1e3 - 0.0)
"""
    good = """
import torch

x = torch.tensor([2.3000002, 2.3, 2.3, 2.3, 2.3000002], requires_grad=True)

def loss():
    var = ((x - x.mean()) ** 2).mean() + 1e-12
    return torch.sqrt(var)
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if not value.has(Form.CANCELLING) or value.has(Form.FLOORED) or (site.op == "power" and site.other is not None and site.other.number in (1.0, 2.0)):
            return None
        weighted = value.origin is not None and "weighted" in value.origin.what
        message = (
            "the variance under it is E[x²] - E[x]² in one pass: when the mean is large beside the spread the terms cancel, "
            "and rounding noise, even a negative number, is left: NaN"
        )
        also = (value.origin,) if value.origin is not None else ()
        return Suspicion(
            message, Confidence.DEPENDS if weighted else Confidence.LIKELY, "if the weight of the squared mean is 1" if weighted else "", also=also
        )

    def claim(self, birth: Birth) -> Claim | None:
        found = cancelled(birth)
        if found is None or not found[1].one_pass:
            return None
        operand, lost = found
        message = f"{birth.op} of {operand.value:.4g}: a one-pass variance cancelled, {numbers(lost)}; {elements(birth)}"
        also = tuple(place for place in (birth.location,) if place is not None)
        return Claim(strength(birth, 0.97 if operand.value < 0 else 0.8), message, location=lost.location or birth.location, also=also)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            new = _two_pass(source, node)
            if new is not None:
                yield [_edits.replace_node(source, node, new, "two-pass variance: cannot be negative")]
                yield [_edits.replace_node(source, node, f"({new} + 1e-12)", "two-pass variance, kept above zero for the root")]
            yield [_edits.method(source, node, f"clamp(min={_edits.floor_for(birth.dtype)})", "keeps the variance positive")]


def _two_pass(source: Source, node: ast.BinOp) -> str | None:
    """``(x ** 2).mean(d) - x.mean(d) ** 2`` as ``((x - x.mean(d, keepdim)) ** 2).mean(d)``."""
    left, right = node.left, node.right
    if not isinstance(left, ast.Call) or _edits.called(left) != "mean" or _edits.is_function(left):
        return None
    squared, base = _edits.subject(left), None
    if (isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Pow)) or (
        isinstance(squared, ast.BinOp) and isinstance(squared.op, ast.Mult) and ast.dump(squared.left) == ast.dump(squared.right)
    ):
        base = squared.left
    elif isinstance(squared, ast.Call) and _edits.called(squared) in ("pow", "square"):
        base = _edits.subject(squared)
    if base is None:
        return None
    places = [source.code(place) for place in left.args] + [f"{word.arg}={source.code(word.value)}" for word in left.keywords]
    if not isinstance(right, ast.BinOp):
        return None
    inner = _edits.text(source, base)
    kept = ", ".join([*places, "keepdim=True"]) if places and not any("keepdim" in place for place in places) else ", ".join(places)
    return f"(({inner} - {inner}.mean({kept})) ** 2).mean({', '.join(places)})"
