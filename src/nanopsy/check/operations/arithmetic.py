"""Addition, subtraction, multiplication and division: where counts, spreads, variances and determinants are recognised."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from nanopsy.check.guards import selected_bounds
from nanopsy.check.operations._rule import KEPT, Arguments, Keywords, carry, first_of, made, operation
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow

_DIMENSIONLESS = 1e-3
"""Constants up to this size that are added to something count as an epsilon."""


def _times(first: float, second: float) -> float:
    return 0.0 if first == 0 or second == 0 else first * second


@operation("mul", "mul_", "multiply")
def multiply(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return multiplied(flow, node, args[0], args[1]) if len(args) > 1 else made(flow, args)


def multiplied(flow: Flow, node: ast.expr, first: Value, second: Value) -> Value:
    if first.sym and first.sym == second.sym and first.kind != Kind.NUMBER:
        return squared(flow, first)
    corners = [_times(a, b) for a in (first.lo, first.hi) for b in (second.lo, second.hi)]
    low, high = min(corners), max(corners)
    numeric = first if first.kind == Kind.NUMBER else second if second.kind == Kind.NUMBER else None
    other = second if numeric is first else first
    if numeric is not None and other.kind != Kind.NUMBER:
        forms = other.forms if numeric.number != 0 else Form.ZERO
        if numeric.number is None or not numeric.number.is_integer():
            forms &= ~Form.INTEGER
        if numeric.hi < 0 and forms & Form.MAXIMUM:
            forms &= ~Form.MAXIMUM
        origin, base, sym_key = other.origin, other.base, ("*",)
        value = made(flow, [first, second], low, high, forms, key=sym_key, origin=origin, base=base, count_of=other.count_of)
        if other.has(Form.SIGMOID) and low == 0 and numeric.has(Form.MAXIMUM):
            flow.checker.heads.append((flow.module.file, getattr(node, "lineno", 0), flow.where_am_i(), "sigmoid"))
        if other.has(Form.SQUARED_MEAN):
            value.ref = ("scaled", numeric.number)
    else:
        # -inf..inf corners of an unknown factor say nothing; signs of one side alone decide little
        signed = (first.has(Form.SIGNED) and not second.has(Form.MASK)) or (second.has(Form.SIGNED) and not first.has(Form.MASK))
        forms = Form.PRODUCT | (
            (first.forms | second.forms) & (Form.ZERO | Form.UNDERFLOW | Form.SIGMOID | Form.SOFTMAX | Form.MINUS_INFINITY | Form.NETWORK | Form.RANDOM)
        )
        forms |= (Form.SIGNED if signed else 0) | first.forms & second.forms & (Form.ONE_PASS | Form.CANCELLING | Form.VARIANCE)
        if first.lo < 0 and second.lo < 0 and not first.has(Form.MASK) and not second.has(Form.MASK):
            forms |= Form.DOT
        if first.has(Form.COUNT) or second.has(Form.COUNT):
            forms |= Form.DETERMINANT_OF_SUMS
        for side, weight in ((first, second), (second, first)):
            if side.has(Form.SQUARED_MEAN) and weight.kind == Kind.UNKNOWN and not weight.role:
                return made(flow, [first, second], 0.0, INF, side.forms, key=("*",), origin=side.origin, base=side.base, ref=("scaled", None))
        if first.has(Form.MEAN | Form.TOTAL) and second.has(Form.MEAN | Form.TOTAL) and first.base == second.base and first.base:
            forms |= Form.SQUARED_MEAN
        reference: object = ("product", first.sym, second.sym)
        if first.has(Form.MASK) and second.has(Form.MASK):
            forms |= Form.MASK
            reference = ("and", first, second)
        elif second.has(Form.MASK) or first.has(Form.MASK):
            chosen, mask = (first, second) if second.has(Form.MASK) else (second, first)
            least, most = selected_bounds(mask, chosen.sym)
            if least > chosen.lo or most < chosen.hi:
                low, high = min(0.0, max(chosen.lo, least)), max(0.0, min(chosen.hi, most))
        if first.has(Form.RELU) or second.has(Form.RELU):
            forms |= Form.RELU
        origin = first.origin or second.origin
        for side, bounded in ((first, second), (second, first)):
            if side.has(Form.SIGN) and bounded.lo > 0:
                forms, origin = forms | Form.GUARDED_BY_SIGN, side.origin
        value = made(flow, [first, second], low, high, forms, key=("*",), origin=origin, ref=reference)
    if first.kind != Kind.NUMBER and second.kind != Kind.NUMBER and (first.hazards or second.hazards):
        masked = second if first.hazards and second.has(Form.MASK) else first if second.hazards and first.has(Form.MASK) else None
        if masked is not None:
            carry(value, flow.site("mask", node, second if masked is first else first, masked))
    return value


@operation("add", "add_")
def add(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return added(flow, args[0], args[1]) if len(args) > 1 else made(flow, args)


def added(flow: Flow, first: Value, second: Value) -> Value:
    low, high = first.lo + second.lo, first.hi + second.hi
    if math.isnan(low):
        low = -INF
    if math.isnan(high):
        high = INF
    numeric = first if first.kind == Kind.NUMBER else second if second.kind == Kind.NUMBER else None
    other = second if numeric is first else first
    if numeric is not None and other.kind != Kind.NUMBER:
        small = numeric.lo > 0 and (numeric.number is not None or numeric.hi <= 1)
        forms = other.forms & ~(Form.MINUS_INFINITY)
        if numeric.number == 0:
            return other
        if numeric.number is not None and 0 < numeric.number <= 1 and other.has(Form.EXP):
            forms |= Form.EXPLOGIT
        if small:
            forms |= Form.EPSILON
        if not (numeric.lo == -INF and numeric.hi == INF) and not 0 < numeric.lo <= _DIMENSIONLESS:
            forms &= ~(Form.SIGNED | Form.COUNT | Form.NORM)
        forms |= numeric.forms & Form.LOGARITHM
        if low > 0 or (numeric.number is not None and abs(numeric.number) > _DIMENSIONLESS) or numeric.lo > _DIMENSIONLESS:
            forms &= ~(Form.ZERO | Form.UNDERFLOW)
        return made(flow, [first, second], low, high, forms, key=("+",), origin=other.origin, base=other.base, count_of=other.count_of)
    both = first.forms & second.forms
    forms = both & (Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.SQUARE | Form.MEAN | Form.LOGARITHM | Form.RELU | Form.MASK)
    forms |= (first.forms | second.forms) & (Form.PRODUCT | Form.RANDOM) | Form.SUMMED
    if (first.forms & Form.SIGNED and not second.known) or (second.forms & Form.SIGNED and not first.known):
        forms |= Form.SIGNED
    if first.has(Form.SQUARE | Form.SUM_OF_SQUARES) and second.has(Form.SQUARE | Form.SUM_OF_SQUARES):
        forms |= Form.SUM_OF_SQUARES
    if low > 0:
        forms &= ~(Form.ZERO | Form.UNDERFLOW)
    elif low == 0 and first.reaches_zero and second.reaches_zero:
        forms |= Form.ZERO if (first.forms | second.forms) & Form.ZERO else Form.UNDERFLOW
    if (first.has(Form.COUNT) and second.number == 0) or (second.has(Form.COUNT) and first.number == 0):
        forms |= Form.COUNT
    forms |= (first.forms | second.forms) & Form.MINUS_INFINITY
    if (first.lo == 1 == first.hi and second.has(Form.EXP)) or (second.lo == 1 == second.hi and first.has(Form.EXP)):
        forms |= Form.EXPLOGIT
    return made(flow, [first, second], low, high, forms, key=("+",), origin=first.origin or second.origin, count_of=first.count_of or second.count_of)


@operation("sub", "sub_", "subtract")
def subtract(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return subtracted(flow, node, args[0], args[1]) if len(args) > 1 else made(flow, args)


def subtracted(flow: Flow, node: ast.AST, first: Value, second: Value) -> Value:
    low, high = first.lo - second.hi, first.hi - second.lo
    if math.isnan(low):
        low = -INF
    if math.isnan(high):
        high = INF
    forms = 0
    origin = first.origin or second.origin
    base = 0
    if first.kind == Kind.NUMBER and second.kind == Kind.NUMBER:
        if first.has(Form.MAXIMUM) and (second.has(Form.MINIMUM) or second.number is not None):
            low = max(low, 0.0)
        return made(flow, [first, second], low, high, (first.forms | second.forms) & Form.DATA, key=("-",))
    if first.has(Form.MAXIMUM) and second.has(Form.MINIMUM):
        forms = Form.SPREAD | (Form.ZERO if first.kind != Kind.NUMBER and second.kind != Kind.NUMBER else 0)
        low = max(low, 0.0)
        if not (first.base and first.base == second.base):
            forms = Form.SPREAD if first.kind == Kind.NUMBER or second.kind == Kind.NUMBER else forms
    elif first.has(Form.MEAN_OF_SQUARES | Form.SUM_OF_SQUARES) and second.has(Form.SQUARED_MEAN):
        forms, low = Form.ONE_PASS | Form.VARIANCE | Form.ZERO, 0.0
        weight = second.ref[1] if isinstance(second.ref, tuple) and second.ref[:1] == ("scaled",) else 1.0
        if weight is None or weight >= 0.99:
            origin = flow.origin(node, "second moment minus squared mean" if weight is not None else "second moment minus a weighted squared mean")
            forms |= Form.CANCELLING
    elif first.has(Form.PRODUCT | Form.SQUARE) and second.has(Form.PRODUCT | Form.SQUARE):
        forms = Form.DETERMINANT | Form.SIGNED | Form.DIFFERENCE
        if second.has(Form.SQUARE) or first.has(Form.DETERMINANT_OF_SUMS):
            forms |= Form.DETERMINANT_OF_SUMS
    elif second.kind == Kind.NUMBER:
        forms = (first.forms & (Form.SIGNED | Form.MASK | Form.CANCELLING | Form.VARIANCE)) | (
            Form.SIGNED if second.number != 0 and ((first.lo == 0 and first.hi == INF and second.lo >= 0) or (first.has(Form.GRID) and first.lo == 0)) else 0
        )
        if second.lo <= 0 < second.hi or (second.number is not None and second.number >= 0):
            forms |= first.forms & Form.GRID
        origin = first.origin
    elif first.kind == Kind.NUMBER:
        if first.number == 1 and second.has(Form.SIGMOID | Form.SOFTMAX):
            forms = second.forms & (Form.SIGMOID | Form.SOFTMAX) | (Form.UNDERFLOW if low <= 0 else 0)
            low = max(low, 0.0)
        elif first.number == 1 and second.has(Form.MASK):
            forms = Form.MASK
        elif second.lo == 0 and low == 0 and second.hi == first.number:
            forms = Form.UNDERFLOW
    elif first.sym and first.sym == second.sym:
        return made(flow, [first, second], 0.0, 0.0, Form.ZERO)
    else:
        forms = Form.DIFFERENCE | (Form.SIGNED if low < 0 < high else 0)
        if first.has(Form.MASK) and second.has(Form.MASK):
            forms |= Form.MASK
        if first.has(Form.LOGARITHM) and second.has(Form.LOGARITHM):
            forms |= Form.LOGARITHM
        if second.has(Form.MAXIMUM) and second.base == first.sym and first.sym:
            high = min(high, 0.0)
    if low > 0:
        forms &= ~(Form.ZERO | Form.UNDERFLOW)
    forms |= (first.forms | second.forms) & (Form.MINUS_INFINITY | (0 if forms & Form.ONE_PASS else Form.NETWORK))
    return made(flow, [first, second], low, high, forms, key=("-",), origin=origin, base=base)


@operation("div", "div_", "true_divide", "divide", "reciprocal", "reciprocal_")
def divide(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    if flow.called(node).startswith("reciprocal"):
        return divided(flow, node, Value(Kind.NUMBER, 1.0, 1.0), first_of(args))
    return divided(flow, node, args[0], args[1]) if len(args) > 1 else made(flow, args)


def divided(flow: Flow, node: ast.AST, first: Value, second: Value) -> Value:
    below = flow.refined(second)
    if first.kind == Kind.NUMBER and below.kind == Kind.NUMBER:
        if first.number is not None and below.number:
            return Value(Kind.NUMBER, first.number / below.number, first.number / below.number, sym=flow.fresh())
        low = 0.0 if first.lo >= 0 and below.lo >= 0 else -INF
        low = min(low, 1e-300) if low < 0 else (1e-300 if first.lo > 0 and below.lo > 0 else 0.0)
        return made(flow, [first, below], low, INF, key=("/",))
    weights = first.ref if isinstance(first.ref, tuple) and first.ref[:1] == ("product",) else ()
    weighted = below.has(Form.TOTAL) and below.base and below.base in weights[1:]
    if weighted and not below.lo > 0 and not below.has(Form.SOFTMAX | Form.SIGMOID | Form.FLOORED | Form.SQUARE):
        below = below.but(forms=below.forms | Form.COUNT)  # sum(w*x)/sum(w): weights that may all be 0
    hazards = flow.site("divide", node, first, below) if below.kind != Kind.NUMBER or below.has(Form.ZERO) else frozenset()
    forms = 0
    low, high = -INF, INF
    if below.lo > 0 or (below.lo == 0 and below.hi > 0):
        if first.lo >= 0:
            low = 0.0 if below.hi == INF or first.lo <= 0 else first.lo / below.hi
            high = first.hi / below.lo if below.lo > 0 and first.hi < INF else INF
        elif first.hi <= 0:
            high = 0.0
    if below.kind == Kind.NUMBER or below.lo > 0:
        forms = first.forms & ~(Form.COUNT | Form.LOGARITHM)
        if below.kind == Kind.NUMBER and first.has(Form.LOGARITHM):
            forms |= Form.LOGARITHM
    else:
        forms = first.forms & (KEPT | Form.SQUARE | Form.SQUARED_MEAN | (Form.TOTAL if below.kind == Kind.UNKNOWN else 0))
    if below.kind == Kind.NUMBER and first.has(Form.SIGMOID) and low == 0 and below.has(Form.MINIMUM):
        flow.checker.heads.append((flow.module.file, getattr(node, "lineno", 0), flow.where_am_i(), "sigmoid"))
    if below.has(Form.TEMPERATURE):
        forms |= Form.TEMPERATURE
    if (below.has(Form.MAXIMUM) and below.base and below.base == first.sym) or (first.sym and below.base == first.sym and below.has(Form.MAXIMUM)):
        high = 1.0
        low = 0.0 if first.lo >= 0 else -1.0
    if below.has(Form.NORM):
        forms |= Form.NORMALIZED
        low, high = max(low, -1.0), min(high, 1.0)
    forms |= Form.RATIO
    value = made(flow, [first, below], low, high, forms & ~Form.EPSILON, key=("/",), origin=first.origin, base=first.base)
    if below.kind == Kind.NUMBER and first.has(Form.SUM_OF_SQUARES):
        value.forms |= Form.MEAN_OF_SQUARES
    if below.has(Form.COUNT) or below.count_of:
        if first.has(Form.SUM_OF_SQUARES):
            value.forms |= Form.MEAN_OF_SQUARES
            value.base = first.base
        elif not first.has(Form.SQUARE):
            value.forms |= Form.MEAN
            value.base = first.base or first.sym
    return carry(value, hazards)


@operation("neg", "negative")
def negative(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return negated(flow, first_of(args))


def negated(flow: Flow, value: Value) -> Value:
    forms = value.forms & (KEPT | Form.NETWORK | Form.INTEGER | Form.LOGARITHM | Form.DIFFERENCE | Form.TEMPERATURE | Form.PARAMETER | Form.COUNT)
    return made(flow, [value], -value.hi, -value.lo, forms, key=("neg",), origin=value.origin, count_of=value.count_of)


@operation("abs", "abs_", "absolute")
def absolute(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    if value.lo >= 0:
        return value
    top = max(abs(value.lo), abs(value.hi))
    forms = Form.ABSOLUTE | (Form.ZERO if value.lo <= 0 <= value.hi else 0) | value.forms & Form.SUM_OF_SQUARES
    return made(flow, [value], 0.0 if value.hi >= 0 else -value.hi, top, forms, key=("abs",), base=value.sym, origin=value.origin)


@operation("square", "square_")
def square(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return squared(flow, first_of(args))


def squared(flow: Flow, value: Value) -> Value:
    top = max(value.lo * value.lo, value.hi * value.hi) if value.lo > -INF and value.hi < INF else INF
    low = 0.0 if value.lo <= 0 <= value.hi else min(value.lo * value.lo, value.hi * value.hi)
    forms = Form.SQUARE | (Form.ZERO if low == 0 else 0)
    if value.has(Form.MEAN | Form.TOTAL):
        forms |= Form.SQUARED_MEAN
    if value.has(Form.DETERMINANT):
        forms &= ~Form.DETERMINANT
    forms |= value.forms & Form.COUNT
    return made(
        flow,
        [value],
        low,
        top,
        forms,
        key=("square",),
        count_of=value.count_of,
        base=value.base if value.has(Form.MEAN | Form.TOTAL) else value.sym,
        origin=value.origin,
    )
