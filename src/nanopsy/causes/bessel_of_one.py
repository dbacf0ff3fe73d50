from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth

VARIANCES = ("var", "std", "var_mean", "std_mean")


def sample(birth: Birth) -> tuple[float, float]:
    """How many elements a variance ran over, and its correction."""
    correction = birth.settings.get("correction", 1)
    if correction is None:
        correction = 1
    if birth.settings.get("unbiased") is False:
        correction = 0
    count = birth.operand(0).count / max(birth.total, 1)
    return count, float(correction) if isinstance(correction, (int, float)) else 1.0


def _stands_in_for_layer_norm(scope: ast.AST, node: ast.AST) -> bool:
    """Whether another branch of the ``if`` around ``node``, or one that returns before it, calls ``layer_norm``."""

    def calls(part: Sequence[ast.stmt]) -> bool:
        return any(isinstance(inner, ast.Call) and _edits.called(inner) == "layer_norm" for statement in part for inner in ast.walk(statement))

    def holds(part: Sequence[ast.stmt]) -> bool:
        return any(inner is node for statement in part for inner in ast.walk(statement))

    for branch in (each for each in ast.walk(scope) if isinstance(each, ast.If)):
        if (holds(branch.body) and calls(branch.orelse)) or (holds(branch.orelse) and calls(branch.body)):
            return True
        leaves = isinstance(branch.body[-1], ast.Return) and branch.lineno < getattr(node, "lineno", 0)
        if leaves and not holds(branch.body) and calls(branch.body):
            return True
    return False


class BesselOfOne(Cause):
    """Sample variance of one element.

    ## What it does
    Finds `var` or `std` with Bessel's correction (the default, `correction=1`) over a single element: N - 1 = 0, and 0/0 is NaN.

    ## Why is this bad?
    The number of selected pixels depends on the data. A random crop of a sparse LiDAR map holds exactly one valid pixel
    now and then (0.33 % of 352x704 crops of DDAD), and one such image turns every weight to NaN. It is the third cause of NaN in
    monocular depth training, hidden because dense data sets never show it.

    ## Guideline
    Use the population variance, `torch.var(x, correction=0)`: a loss is no estimate of a population's variance. Skip normalisation of batches of one.

    ## Fix safety
    Unsafe: `correction=0` changes the value by the factor (N - 1) / N, 0.1 % at a thousand pixels.

    ## References
    arXiv 2311.03938, vulnerability 3 (variance implementations).
    """

    code, slug = "NAN301", "bessel-of-one"
    sites = ("variance",)
    replacement = "nanopsy.stable.masked_var"
    bad = """
import torch

g = torch.tensor([0.3, 0.9, 0.2], requires_grad=True)
depth = torch.tensor([0.0, 12.0, 0.0])

def loss():
    return torch.var(g[depth > 0])
"""
    good = """
import torch

g = torch.tensor([0.3, 0.9, 0.2], requires_grad=True)
depth = torch.tensor([0.0, 12.0, 0.0])

def loss():
    return torch.var(g[depth > 0], correction=0)
"""

    def match(self, site: Site) -> Suspicion | None:
        correction, value = site.settings["correction"], site.operand
        if correction is None or correction == 0:
            return None
        if value.selected and site.count < 1 + correction and site.settings["whole"]:
            message = (
                f"{site.settings['name']} with Bessel's correction over a selection that can hold a single element: N - 1 = 0, 0/0 is NaN in value and gradient"
            )
            return Suspicion(message, Confidence.CERTAIN, "if one element is selected")
        if not site.settings["whole"] and site.scope is not None and _stands_in_for_layer_norm(site.scope, site.node):
            message = (
                "a normalisation layer divides by the population variance, and the other branch of this function calls layer_norm, which does; "
                "Bessel's correction here gives another result"
            )
            return Suspicion(message, Confidence.LIKELY)
        if site.settings["whole"] and not value.selected and not value.has(Form.RANDOM):
            message = f"{site.settings['name']} with Bessel's correction over everything it is given: one element is 0/0"
            return Suspicion(message, Confidence.DEPENDS, "if it is called with a single element, as the last batch of an epoch may be")
        return None

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in VARIANCES or birth.operand(0).count == 0:
            return None
        count, correction = sample(birth)
        if not count - correction <= 0 or count < 1:
            return None
        what = f"{count:g} element{'s' if count > 1 else ''} with correction {correction:g}"
        message = f"{birth.op} over {what}: N - {correction:g} = {count - correction:g}, 0/0"
        return Claim(strength(birth, 0.98), message, evidence={"elements": count, "correction": correction})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if not isinstance(node, ast.Call) or _edits.called(node) not in VARIANCES:
            return
        note = "population variance: 0 for one element"
        for name in ("correction", "unbiased"):
            word = _edits.keyword(node, name)
            if word is not None:
                yield [_edits.replace_node(source, word.value, "0" if name == "correction" else "False", note)]
                return
        flags = [value for value in node.args if isinstance(value, ast.Constant) and isinstance(value.value, bool)]
        if flags:
            yield [_edits.replace_node(source, flags[0], "False", note)]
            return
        yield [_edits.add_keyword(source, node, "correction=0", note)]
