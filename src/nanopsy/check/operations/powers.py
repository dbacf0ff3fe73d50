"""Roots and powers."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import KEPT, Arguments, Keywords, argument, carry, first_of, made, operation
from nanopsy.check.operations.arithmetic import divided, squared
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("sqrt", "sqrt_", "rsqrt", "rsqrt_")
def root(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    name = flow.called(node).rstrip("_")
    value = flow.refined(first_of(args))
    return square_root(flow, node, value, inverse=name == "rsqrt")


def square_root(flow: Flow, node: ast.expr, value: Value, *, inverse: bool = False) -> Value:
    low, high = math.sqrt(max(value.lo, 0.0)), math.sqrt(value.hi) if value.hi >= 0 else INF
    forms = value.forms & (KEPT & ~Form.SIGNED)
    if value.has(Form.SUM_OF_SQUARES):
        forms |= Form.NORM
    if value.has(Form.VARIANCE):
        forms |= Form.DEVIATION
    hazards = flow.site("rsqrt" if inverse else "sqrt", node, value)
    if inverse:
        return carry(made(flow, [value], 0.0, 1 / low if low > 0 else INF, 0), hazards)
    return carry(made(flow, [value], low, high, forms, key=("sqrt",), origin=value.origin, base=value.sym), hazards)


@operation("pow", "pow_", "float_power")
def power(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    if len(args) < 2 and "exponent" not in kw:
        return made(flow, args)
    base, exponent = first_of(args), argument(args, kw, "exponent", 1) or Value()
    return raised(flow, node, base, exponent)


def raised(flow: Flow, node: ast.expr, base: Value, exponent: Value) -> Value:
    value, number = flow.refined(base), exponent.number
    if value.kind == Kind.NUMBER and exponent.kind == Kind.NUMBER:
        if value.number is not None and number is not None:
            try:
                result = value.number**number
            except (OverflowError, ZeroDivisionError, ValueError):
                return Value(Kind.NUMBER)
            if isinstance(result, (int, float)):
                return Value(Kind.NUMBER, float(result), float(result), sym=flow.fresh())
        return Value(Kind.NUMBER, 0.0 if value.lo >= 0 else -INF, sym=flow.fresh(), forms=value.forms & Form.ZERO)
    if number is None:
        if value.kind == Kind.NUMBER and value.lo > 0:
            forms = Form.EXP | (Form.UNDERFLOW if exponent.lo == -INF else 0)
            return carry(made(flow, [base, exponent], 0.0, INF, forms), flow.site("exp", node, exponent))
        hazards = flow.site("power", node, value, exponent)
        low = 0.0 if value.lo >= 0 else -INF
        return carry(
            made(flow, [base, exponent], low, max(1.0, value.hi) if value.hi <= 1 and exponent.lo >= 0 else INF, value.forms & KEPT & ~Form.SIGNED), hazards
        )
    if number == 0.5 and _literal(node, 0.5):
        return square_root(flow, node, value)
    if number == -0.5:
        return square_root(flow, node, value, inverse=True)
    if number == 2:
        return squared(flow, value)
    if number == -1:
        return divided(flow, node, Value(Kind.NUMBER, 1.0, 1.0), value)
    if number.is_integer():
        even = number % 2 == 0 and number > 0
        low = 0.0 if even or value.lo >= 0 else -INF
        forms = (Form.ZERO if even else value.forms & KEPT) | (Form.SQUARE if even else 0)
        return made(flow, [value], low, INF if value.hi > 1 else 1.0, forms, key=("pow", number))
    hazards = flow.site("power", node, value, exponent)
    return carry(made(flow, [value], 0.0, INF, value.forms & KEPT & ~Form.SIGNED, key=("pow", number), origin=value.origin), hazards)


def _literal(node: ast.AST, number: float) -> bool:
    """Whether the source says a number itself rather than by a name."""
    return any(isinstance(inner, ast.Constant) and inner.value == number for inner in ast.walk(node)) or any(
        isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Div) and isinstance(inner.left, ast.Constant) and isinstance(inner.right, ast.Constant)
        for inner in ast.walk(node)
    )
