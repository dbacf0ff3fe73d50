"""Masks: how they are made, and what they choose, fill and repair."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check import selections
from nanopsy.check.operations._rule import Arguments, Keywords, carry, first_of, made, operation
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("isnan", "isinf", "isfinite")
def isnan(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return Value(
        Kind.TENSOR,
        0.0,
        1.0,
        Form.MASK,
        sym=flow.number((flow.called(node), value.sym)),
        ref=("isnan", value) if flow.called(node) != "isfinite" else ("finite", value),
    )


@operation(
    "logical_and", "logical_or", "logical_not", "logical_xor", "eq", "ne", "gt", "lt", "ge", "le", "greater", "less", "isclose", "bitwise_and", "bitwise_or"
)
def comparison(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    names = {"gt": ast.Gt, "greater": ast.Gt, "lt": ast.Lt, "less": ast.Lt, "ge": ast.GtE, "le": ast.LtE, "eq": ast.Eq, "ne": ast.NotEq}
    kind = names.get(flow.called(node))
    if kind is not None and len(args) > 1:
        return selections.compared(flow, kind, args[0], args[1])
    return Value(Kind.TENSOR, 0.0, 1.0, Form.MASK, sym=flow.number((flow.called(node), *(value.sym for value in args))))


@operation("nonzero", "argwhere")
def nonzero(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return Value(
        Kind.TENSOR,
        0.0,
        INF,
        Form.MASK | Form.INTEGER,
        sym=value.sym or flow.fresh(),
        selected=value.sym or flow.fresh(),
        ref=value.ref or ("cmp", ast.NotEq, value, Value(Kind.NUMBER, 0.0, 0.0)),
    )


@operation("masked_select")
def masked_select(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    if len(args) < 2:
        return made(flow, args)
    return selections.select(flow, args[0], args[1])


@operation("masked_fill", "masked_fill_")
def masked_fill(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value, mask, fill = (*args, Value(), Value(), Value())[:3]
    fill = kw.get("value", fill)
    forms = value.forms & ~Form.REPAIRED
    number = fill.number
    if number is not None and number == -INF:
        forms |= Form.MINUS_INFINITY
    guarded = selections.where(flow, node, mask, fill, value)
    return guarded.but(forms=guarded.forms | forms & Form.MINUS_INFINITY, lo=guarded.lo if number != -INF else value.lo)


@operation("where")
def where(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    if len(args) < 3:
        value = first_of(args)
        index = Value(Kind.TENSOR, 0.0, INF, Form.MASK | Form.INTEGER, sym=value.sym or flow.fresh(), selected=value.sym, ref=value.ref)
        return Value(Kind.SEQUENCE, ref=(index, index, index), sym=value.sym, forms=Form.MASK, selected=value.sym)
    return selections.where(flow, node, args[0], args[1], args[2])


@operation("nan_to_num", "nan_to_num_")
def nan_to_num(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    hazards = flow.site("repair", node, value, name="nan_to_num")
    result = made(flow, [value], value.lo, value.hi, value.forms | Form.REPAIRED, origin=value.origin, base=value.base)
    result.hazards = frozenset(hazard for hazard in result.hazards if hazard.suspicion.needs_gradient or hazard.suspicion.open)
    return carry(result, hazards)
