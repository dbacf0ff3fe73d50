from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.facts import Origin, Site, Suspicion, ordered
from nanopsy.findings import Confidence, Edit, Finding, Safety
from nanopsy.ranges import Birth

_INSIDE = {"acos": 0.5, "asin": 0.5, "atanh": 0.5, "acosh": 2.0, "erfinv": 0.5}
"""A value well inside the domain, where 1 is not."""


class WhereTrap(Cause):
    """Undefined branch hidden behind `where`.

    ## What it does
    Finds an operator evaluated outside its domain whose bad elements `torch.where` then replaces: the forward value is fine, the gradient is not.

    ## Why is this bad?
    `where` evaluates both branches. Backward sends a zero into the branch that was not taken, and 0 * inf (or 0/0) there is NaN.

    ## Guideline
    Mask the *input*, not the output ("double where"): `safe = torch.where(ok, x, 1.0); torch.where(ok, f(safe), 0.0)`.

    ## Fix safety
    Safe: every selected value stays as it was.

    ## References
    pytorch/pytorch issue 68425; JAX FAQ, "gradients contain NaN where using where".
    """

    code, slug = "NAN401", "where-trap"
    sites = ("where",)
    replacement = "nanopsy.stable.where_safe"
    bad = """
import torch

x = torch.tensor([0.0, 2.0], requires_grad=True)

def loss():
    return torch.where(x > 0, torch.log(x), torch.zeros_like(x)).sum()
"""
    good = """
import torch

x = torch.tensor([0.0, 2.0], requires_grad=True)

def loss():
    safe = torch.where(x > 0, x, torch.ones_like(x))
    return torch.where(x > 0, torch.log(safe), torch.zeros_like(x)).sum()
"""

    def match(self, site: Site) -> Suspicion | None:
        for hazard in ordered(site.settings["guarded"]):
            inner = hazard.site
            if inner.op not in ("log", "divide", "power", "acos", "rsqrt", "exp", "sqrt"):
                continue
            subject = inner.other if inner.op == "divide" and inner.other is not None else inner.operand
            if not inner.gradient or not subject.grad:
                continue
            message = (
                "torch.where replaces the result of this operation where it is singular: the branch that was not taken still sends 0 * inf = NaN back; "
                "replace the argument first"
            )
            at = Origin(inner.source.file, inner.node, "the singular operation")
            branch = (("branch", site.settings.get("branch", "")),)
            return Suspicion(
                message, Confidence.LIKELY, needs_gradient=True, facts=branch, also=(Origin(site.source.file, site.node, "replaced here, too late"),), at=at
            )
        return None

    def claim(self, birth: Birth) -> Claim | None:
        drop = birth.discard
        if birth.sink != "gradient" or drop is None or drop.op != "where":
            return None
        argument = birth.operand(0)
        message = (
            f"{birth.op} was evaluated at {argument.value:.6g}, outside its domain or at its edge; torch.where dropped the result in "
            f"forward, but its gradient comes back as 0 * inf; {elements(birth)}"
        )
        return Claim(0.95, message, also=(drop.location,) if drop.location else ())

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        """Only where the call of ``where`` itself holds the operation and compares its very argument: nothing else can then depend on the value."""
        found = _edits.expression(finding.location)
        place = _edits.expression(birth.discard.location) if birth.discard is not None else None
        if found is None or place is None or found[0].file != place[0].file:
            return
        node = found[1]
        chooser = place[1]
        argument = _edits.denominator(node) or _edits.subject(node)
        if argument is None or not isinstance(chooser, ast.Call) or not chooser.args:
            return
        if not any(child is node for branch in chooser.args[1:] for child in ast.walk(branch)):
            return
        compared = chooser.args[0]
        if isinstance(compared, ast.Compare) and ast.dump(compared.left) == ast.dump(argument):
            yield from self.remedies(birth, finding)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        place = _edits.expression(birth.discard.location) if birth.discard is not None else None
        if found is None or place is None:
            return
        source, node = found
        _, chooser = place
        if not isinstance(chooser, ast.Call) or _edits.called(chooser) != "where" or not _edits.is_function(chooser) or len(chooser.args) < 3:
            return
        condition = source.code(chooser.args[0])
        inside = [branch for branch in chooser.args[1:3] if any(child is node for child in ast.walk(branch))]
        argument = _edits.denominator(node) or _edits.subject(node)
        side = birth.discard.by if birth.discard is not None else ""
        takes = inside[0] is chooser.args[1] if inside else {"self": True, "other": False}.get(side)
        if argument is None or takes is None:
            return
        code = source.code(argument)
        harmless = f"torch.full_like({code}, {_INSIDE.get(birth.op, 1.0)})"
        new = f"torch.where({condition}, {code}, {harmless})" if takes else f"torch.where({condition}, {harmless}, {code})"
        yield [_edits.replace_node(source, argument, new, "masks the input instead of the output", Safety.SAFE)]
