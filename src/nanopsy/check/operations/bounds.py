"""Clamps and extrema."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import Arguments, Keywords, argument, carry, first_of, made, operation
from nanopsy.facts import INF, Form, Hazard, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "hardtanh")
def clamp(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value, name = first_of(args), flow.called(node)
    low_bound, high_bound = argument(args, kw, "min", 1) or kw.get("a_min"), argument(args, kw, "max", 2) or kw.get("a_max")
    if name.startswith("clamp_max"):
        low_bound, high_bound = None, argument(args, kw, "max", 1)
    elif name.startswith("clamp_min"):
        high_bound = None
    low, high, forms = value.lo, value.hi, value.forms
    origin = value.origin
    if low_bound is not None and low_bound.kind != Kind.NONE:
        bound = low_bound.lo
        if low_bound.kind not in (Kind.NUMBER,) and not low_bound.known:
            bound = low_bound.lo if low_bound.lo > -INF else 1e-30
        if bound >= low:
            low = bound
            if bound >= 0:
                forms &= ~Form.CANCELLING  # rounding noise cannot be negative any more
            forms &= ~(Form.SIGNED | Form.ZERO | Form.UNDERFLOW | Form.MINUS_INFINITY)
            if bound > 0:
                forms |= Form.FLOORED
            elif bound == 0 and high > 0:
                forms |= Form.ZERO
                origin = flow.origin(node, "clamped at 0")
    if high_bound is not None and high_bound.kind != Kind.NONE:
        high = min(high, high_bound.hi) if high_bound.hi < INF or high_bound.kind == Kind.NUMBER else min(high, 1e30)
        if high_bound.kind != Kind.NUMBER and high == INF:
            high = 1e30
        forms &= ~Form.NETWORK
    bounded = frozenset[Hazard]()
    if value.has(Form.EXP) and high_bound is not None and value.hi == INF:
        bounded = flow.site("clip", node, value)
    return carry(made(flow, [value], low, max(high, low), forms, origin=origin, base=value.base, count_of=value.count_of), bounded)


@operation("maximum", "fmax")
def maximum(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    first, second = (*args, Value(), Value())[:2]
    low = max(first.lo, second.lo)
    forms = (first.forms | second.forms) & (Form.NETWORK | (0 if low > 0 else Form.ZERO))
    return made(flow, [first, second], low, max(first.hi, second.hi), forms)


@operation("minimum", "fmin")
def minimum(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    first, second = (*args, Value(), Value())[:2]
    forms = (first.forms | second.forms) & (Form.ZERO | Form.UNDERFLOW | Form.SIGMOID | Form.SOFTMAX)
    return made(flow, [first, second], min(first.lo, second.lo), min(first.hi, second.hi), forms, origin=first.origin or second.origin)


@operation("max", "amax", "min", "amin", "cummax", "aminmax")
def extremum(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    name = flow.called(node)
    if len(args) > 1 and args[1].kind in (Kind.TENSOR, Kind.ARRAY) and "dim" not in kw:
        return (maximum if "max" in name else minimum)(flow, node, args, kw)
    value = first_of(args)
    forms = value.forms & (Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.ABSOLUTE | Form.SIGMOID | Form.SOFTMAX | Form.NETWORK | Form.MASK | Form.INTEGER)
    forms |= Form.MAXIMUM if "max" in name else Form.MINIMUM
    whole = len(args) <= 1 and "dim" not in kw and "axis" not in kw
    hazards = flow.site("extremum", node, value) if whole else frozenset()
    counted = value.sym if whole and value.has(Form.MASK) and "max" in name else 0
    made_value = made(flow, [value], value.lo, value.hi, forms, key=(name,), base=value.sym, origin=value.origin, count_of=counted)
    if whole:
        made_value.selected = 0
    return carry(made_value, hazards)
