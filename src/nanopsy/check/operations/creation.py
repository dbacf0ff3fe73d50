"""Tensors made of nothing: constants, grids and random samples."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import Arguments, Keywords, first_of, keyword_number, made, operation
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("tensor", "as_tensor", "Tensor", "FloatTensor", "Parameter", "new_tensor")
def tensor(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    """A tensor of literals: their interval, unless it is trained."""
    value = args[-1] if flow.called(node) == "new_tensor" and args else first_of(args)
    parts = flow.spread([value]) if value.kind == Kind.SEQUENCE else [value]
    if parts and all(part.kind == Kind.NUMBER for part in parts):
        low, high = min(part.lo for part in parts), max(part.hi for part in parts)
        zero = any(part.lo == part.hi == 0 for part in parts)
        forms = (Form.ZERO if zero else 0) | (Form.MINUS_INFINITY if low == -INF else 0)
        return Value(Kind.TENSOR, low, high, forms, sym=flow.fresh(), origin=flow.origin(node, "one of its elements is the constant 0") if zero else None)
    return made(flow, parts) if value.kind == Kind.SEQUENCE else value


@operation("zeros", "zeros_like", "new_zeros", "empty_like", "empty", "new_empty")
def zeros(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return Value(Kind.TENSOR, 0.0, 0.0, Form.ZERO, sym=flow.fresh())


@operation("ones", "ones_like", "new_ones", "eye")
def ones(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return Value(Kind.TENSOR, 1.0, 1.0, Form.ONES, sym=flow.fresh())


@operation("full", "full_like", "new_full")
def full(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    fill = kw.get("fill_value") or (args[-1] if args else None)
    if fill is not None and fill.number == -INF:
        return Value(Kind.TENSOR, forms=Form.MINUS_INFINITY, sym=flow.fresh())
    if fill is not None and fill.number is not None:
        return Value(Kind.TENSOR, fill.number, fill.number, sym=flow.fresh())
    return Value(Kind.TENSOR, sym=flow.fresh())


@operation("arange", "linspace", "meshgrid", "range")
def grid(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    low, high = 0.0, INF
    numbers = [value.number for value in args]
    if numbers and all(number is not None for number in numbers[:2]) and len(numbers) >= 2:
        known = [number for number in numbers[:2] if number is not None]
        low, high = min(known), max(known)
    elif args and args[0].kind != Kind.NUMBER and args[0].lo < 0:
        low = -INF
    elif len(args) >= 2:
        low = args[0].lo
    return Value(Kind.TENSOR, low, high, Form.GRID | (Form.ZERO if low == 0 else 0), sym=flow.fresh())


@operation("rand", "rand_like", "uniform")
def rand(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return Value(Kind.TENSOR, 0.0, 1.0, Form.UNDERFLOW, sym=flow.fresh(), origin=flow.origin(node, "a uniform sample can be exactly 0"))


@operation("randn", "randn_like", "normal")
def randn(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return Value(Kind.TENSOR, -INF, INF, Form.SIGNED | Form.RANDOM, sym=flow.fresh())


@operation("uniform_")
def uniform_(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    low = keyword_number(args, kw, "a", 1)
    high = keyword_number(args, kw, "b", 2)
    floor = 0.0 if low is None else low
    forms = Form.UNDERFLOW if floor == 0 else 0
    return Value(Kind.TENSOR, floor, 1.0 if high is None else high, forms, sym=flow.fresh(), origin=flow.origin(node, "a uniform sample can be exactly 0"))
