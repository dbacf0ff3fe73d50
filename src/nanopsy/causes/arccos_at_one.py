from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth


class ArccosAtOne(Cause):
    """Inverse cosine (or sine) differentiated at the edge of its domain.

    ## What it does
    Finds `acos`, `asin`, `acosh` or `atanh` that was differentiated at an argument of exactly +-1.

    ## Why is this bad?
    The derivative -1 / sqrt(1 - x**2) is infinite at the edge. `clamp(-1, 1)` makes the forward value legal and puts the
    argument exactly where the gradient is infinite: equal rotations, aligned normals and unit cosines land there.

    ## Guideline
    Clamp strictly inside, `x.clamp(-1 + 1e-6, 1 - 1e-6)`, or use `atan2(sin, cos)`, which is smooth.

    ## Fix safety
    Unsafe: angles within 1.4 mrad (float32) of 0 or pi are moved there and have gradient 0.

    ## References
    papagina/RotationContinuity issue 11; pytorch/pytorch issue 8069.
    """

    code, slug = "NAN104", "arccos-at-one"
    sites = ("acos",)
    replacement = "nanopsy.stable.acos"
    bad = """
import torch

cosine = torch.tensor([1.0, 0.2], requires_grad=True)

def loss():
    return torch.acos(cosine.clamp(-1.0, 1.0)).mean()
"""
    good = """
import torch

cosine = torch.tensor([1.0, 0.2], requires_grad=True)

def loss():
    return torch.acos(cosine.clamp(-1.0 + 1e-6, 1.0 - 1e-6)).mean()
"""
    _OPS = ("acos", "asin", "acosh", "atanh")

    def match(self, site: Site) -> Suspicion | None:
        value, name = site.operand, site.settings["name"]
        if name not in ("acos", "arccos", "asin", "arcsin") or value.lo < -1 or value.hi > 1 or (value.lo > -1 and value.hi < 1) or value.lo == value.hi:
            return None
        component = value.has(Form.NORMALIZED) and not value.has(Form.COSINE | Form.PRODUCT)
        sure = Confidence.DEPENDS if component else Confidence.LIKELY
        edge = "1" if value.hi == 1 else "-1"
        return Suspicion(f"{name} has an infinite slope at {edge}, and its argument gets there (equal or opposite directions)", sure, needs_gradient=True)

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        if birth.op not in self._OPS or not birth.backward or abs(argument.value) != 1:
            return None
        message = f"{birth.op} was differentiated at exactly {argument.value:g}, the edge of its domain, where its slope is infinite; {elements(birth)}"
        return Claim(strength(birth, 0.95), message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        argument = _edits.subject(node)
        if argument is None or _edits.called(node) not in ("acos", "asin", "arccos", "arcsin"):
            return
        gap = _edits.below_one(birth.dtype)
        inner = argument
        if isinstance(argument, ast.Call) and _edits.called(argument) in ("clamp", "clip") and _edits.subject(argument) is not None:
            inner = _edits.subject(argument) or argument
        new = f"{_edits.text(source, inner)}.clamp(-1 + {gap}, 1 - {gap})"
        yield [_edits.replace_node(source, argument, new, "stays strictly inside the domain")]
