from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth


class HalfOverflow(Cause):
    """Value beyond 65,504 in float16.

    ## What it does
    Finds an operator in float16 whose finite operands gave an infinite result that float32 would hold.

    ## Why is this bad?
    float16 ends at 65,504: a sum over a feature map, a squared error, `finfo.min` plus a negative score reach it easily. Autocast keeps many
    reductions in float32, but not those on tensors that were cast by hand.

    ## Guideline
    Reduce losses and attention scores in float32 (`x.float().sum()`), mask with `masked_fill(mask, finfo.min)` rather than by adding, or train in bfloat16.

    ## Fix safety
    Unsafe in dtype only: the result is float32 and more exact.

    ## References
    HuangJunJie2017/BEVDet issue 50; huggingface/transformers pull request 17306.
    """

    code, slug = "NAN207", "half-overflow"
    bad = """
import torch

x = torch.full((300,), 300.0, requires_grad=True)

def loss():
    return x.half().sum().float()
"""
    good = """
import torch

x = torch.full((300,), 300.0, requires_grad=True)

def loss():
    return x.half().float().sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.dtype != "float16" or not math.isinf(birth.value):
            return None
        if any(operand.bad for operand in birth.operands):
            return None
        if birth.op in ("div", "reciprocal", "true_divide", "rsqrt", "log", "log2", "log10", "log1p", "atanh") and self._divides_by_zero(birth):
            return None
        if birth.op in ("exp", "expm1") and birth.operand(0).value >= 88:
            return None
        if birth.op == "pow" and birth.operand(0).value == 0:
            return None
        shown = ", ".join(f"{operand.largest:.5g}" for operand in birth.operands if math.isfinite(operand.largest))
        message = f"{birth.op} overflowed float16 (largest finite 65504); operands up to {shown}; {elements(birth)}"
        return Claim(strength(birth, 0.95 if birth.forward else 0.85), message)

    @staticmethod
    def _divides_by_zero(birth: Birth) -> bool:
        below = birth.operands[-1] if birth.op in ("div", "true_divide") else birth.operand(0)
        return below.value == 0 or birth.op.startswith("log") or birth.op == "atanh"

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) and birth.op in ("add", "sub"):
            names = f"torch.finfo({_edits.text(source, node)}.dtype)"
            new = f"({source.code(node)}).clamp({names}.min, {names}.max)"
            yield [_edits.replace_node(source, node, new, "stays within the format")]
        if isinstance(node, ast.BinOp):
            new = f"{_edits.text(source, node.left)}.float() {_symbol(node)} {_edits.text(source, node.right)}.float()"
            yield [_edits.replace_node(source, node, new, "computes in float32")]
            return
        argument = _edits.subject(node)
        if argument is not None:
            yield [_edits.method(source, argument, "float()", "computes in float32")]


def _symbol(node: ast.BinOp) -> str:
    return {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}.get(type(node.op), "+")
