from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.causes.division_by_zero import DIVISIONS, divisor
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth, OriginKind


class EpsilonBelowResolution(Cause):
    """Protective epsilon that rounds to zero in its format.

    ## What it does
    Finds a division (or log, root) guarded by an epsilon that the tensor's format cannot hold: 1e-8 is exactly 0 in float16.

    ## Why is this bad?
    The guard is there, the reader sees it, and it does nothing: the smallest positive float16 is 6e-8.

    ## Guideline
    Choose the epsilon for the format (`torch.finfo(x.dtype).eps`), at least 1e-4 for float16 divisors, or compute the normalisation in float32.

    ## Fix safety
    Unsafe: near-zero divisors are raised to the bound.

    ## References
    lightonai/pylate issue 239; pytorch/pytorch issue 40497.
    """

    code, slug = "NAN208", "epsilon-below-resolution"
    sites = ("divide", "log", "sqrt")
    bad = """
import torch

scores = torch.full((2, 4), 3.0, requires_grad=True)

def loss():
    s = scores.half()
    lo, hi = s.min(), s.max()
    return ((s - lo) / (hi - lo + 1e-8)).float().mean()
"""
    good = """
import torch

scores = torch.full((2, 4), 3.0, requires_grad=True)

def loss():
    s = scores.float()
    lo, hi = s.min(), s.max()
    return ((s - lo) / (hi - lo + 1e-8)).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.other if site.op == "divide" else site.operand
        if value is None or not value.has(Form.EPSILON) or value.lo >= 6e-8:
            return None
        small = _epsilon(site)
        if small is None or not 0 < small < 6e-8:
            return None
        if site.op == "divide" and value.has(Form.SIGNED) and small <= 1e-9 and value.has(Form.DIFFERENCE):
            message = f"{small:g} is added to a signed difference: in float16 it is 0 (0/0 on flat regions), in float32 the gradient there is {1 / small:.0e}"
            return Suspicion(message, Confidence.LIKELY, facts=(("fix", "none"),))
        if site.op == "divide" and value.has(Form.SPREAD | Form.NORM | Form.DEVIATION) and _HALF.search(site.source.text):
            return Suspicion(
                f"{small:g} is below float16's smallest number (6e-8), and this file computes in half precision: the guard is 0", Confidence.LIKELY
            )
        if value.has(Form.HALF):
            return Suspicion(f"{small:g} is below float16's smallest number (6e-8): the guard is 0", Confidence.LIKELY)
        return None

    def claim(self, birth: Birth) -> Claim | None:
        below = divisor(birth) if birth.op in DIVISIONS else birth.operand(0) if birth.op in ("log", "log2", "log10", "sqrt") else None
        if below is None or below.value != 0 or below.origin.kind is not OriginKind.ROUNDING or below.origin.lost is None:
            return None
        smallest = birth.format.smallest
        message = (
            f"{birth.op} by exactly 0 although an epsilon of {below.origin.lost:g} was added: {birth.dtype} cannot hold it "
            f"(smallest positive {smallest:.2g}); {elements(birth)}"
        )
        also = (below.origin.location,) if below.origin.location else ()
        return Claim(strength(birth, 0.97), message, also=also, evidence={"epsilon": below.origin.lost})

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        return iter(()) if facts.get("fix") == "none" else self.remedies(birth, finding)  # a bound would turn negative values round

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        for source, _, below in _edits.divisions(finding.location):
            yield [_edits.method(source, below, f"clamp(min={_edits.floor_for(birth.dtype)})", "a bound that the format resolves")]


_HALF = re.compile(r"\.half\(\)|float16|autocast|GradScaler|precision=.16")


def _epsilon(site: Site) -> float | None:
    """The literal that was added, where it is written in the operation itself; the default of the argument that was."""
    if isinstance(site.scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        positional = [*site.scope.args.posonlyargs, *site.scope.args.args]
        defaults = dict(zip((each.arg for each in positional[::-1]), site.scope.args.defaults[::-1], strict=False))
        for node in ast.walk(site.node):
            if isinstance(node, ast.Name) and node.id in defaults and "eps" in node.id.lower():
                default = defaults[node.id]
                if isinstance(default, ast.Constant) and isinstance(default.value, float):
                    return default.value
    for node in ast.walk(site.node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            for side in (node.right, node.left):
                if isinstance(side, ast.Constant) and isinstance(side.value, float):
                    return side.value
    return None
