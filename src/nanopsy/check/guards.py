"""What a branch taught: the intervals and the counts that hold where a condition was true, or was not."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow

ABOVE_ZERO = 5e-324
_NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq}
_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Eq: ast.Eq, ast.NotEq: ast.NotEq}


def assume(flow: Flow, test: ast.expr, *, truth: bool) -> None:
    """Narrow what is known on the path where ``test`` is true (or false)."""
    if isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is truth:
            for part in test.values:
                assume(flow, part, truth=truth)
        return
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        assume(flow, test.operand, truth=not truth)
        return
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        kind: type[ast.cmpop] | None = type(test.ops[0])
        if not truth:
            kind = _NEGATED.get(type(test.ops[0]))
        if kind is not None and kind in _NEGATED:
            compare(flow, kind, flow.quietly(test.left), flow.quietly(test.comparators[0]))
        elif isinstance(test.ops[0], (ast.Is, ast.IsNot)) and isinstance(test.left, ast.Name):
            _none(flow, test, truth=truth)
        return
    value = flow.quietly(test)
    hold(flow, value, truth=truth)


def _none(flow: Flow, test: ast.Compare, *, truth: bool) -> None:
    other = test.comparators[0]
    if isinstance(other, ast.Constant) and other.value is None and isinstance(test.left, ast.Name):
        known = flow.state.names.get(test.left.id)
        if known is not None and known.kind == Kind.NONE and isinstance(test.ops[0], ast.Is) is not truth:
            flow.state.names[test.left.id] = flow.named(test.left.id)


def excludes_zero(mask: Value, sym: int) -> bool:
    """Whether a mask lets through only elements of the value with this number that are not 0."""
    reference = mask.ref
    if not sym or not isinstance(reference, tuple) or not reference:
        return False
    if reference[0] == "and":
        return any(excludes_zero(part, sym) for part in reference[1:])
    if reference[0] != "cmp" or len(reference) != 4 or not isinstance(reference[2], Value) or reference[2].sym != sym:
        return False
    return reference[1] is ast.NotEq and reference[3].number == 0


def hold(flow: Flow, value: Value, *, truth: bool) -> None:
    """A value was true, or false, as a condition."""
    if truth and value.sym and value.lo >= 0 and not value.has(Form.MASK):
        low, high = flow.state.facts.get(value.sym, (-INF, INF))
        flow.state.facts[value.sym] = (max(low, ABOVE_ZERO), high)
    if value.count_of:
        if truth:
            at_least(flow, value.count_of, 1)
        return
    if isinstance(value.ref, tuple) and value.ref[:1] == ("all",) and not truth:
        at_least(flow, flow.number(("not", value.ref[1].sym)), 1)
        return
    if value.ref and isinstance(value.ref, tuple) and value.ref[0] == "cmp" and len(value.ref) == 4:
        kind = value.ref[1] if truth else _NEGATED.get(value.ref[1])
        if kind is not None:
            compare(flow, kind, value.ref[2], value.ref[3])
    elif value.ref and isinstance(value.ref, tuple) and value.ref[0] == "and" and truth:
        for part in value.ref[1:]:
            hold(flow, part, truth=True)


def at_least(flow: Flow, sym: int, count: float) -> None:
    counts = flow.state.counts
    counts[sym] = max(counts.get(sym, 0.0), count)


def compare(flow: Flow, kind: type[ast.cmpop], left: Value, right: Value) -> None:
    """``left kind right`` holds."""
    if left.kind == Kind.NUMBER and left.number is not None and right.number is None:
        left, right, kind = right, left, _MIRRORED[kind]
    if left.count_of:
        bound = right.number if right.number is not None else (right.lo if right.lo > -INF else 1.0)
        if kind is ast.Gt:
            at_least(flow, left.count_of, math.floor(max(bound, 0.0)) + 1)
        elif kind is ast.GtE:
            at_least(flow, left.count_of, max(math.ceil(bound), 1) if right.number is None or bound > 0 else 0)
        elif kind is ast.NotEq and bound == 0:
            at_least(flow, left.count_of, 1)
        elif kind is ast.Eq and bound > 0:
            at_least(flow, left.count_of, bound)
    facts = flow.state.facts
    if left.sym:
        low, high = facts.get(left.sym, (-INF, INF))
        if right.number is not None:
            bound = right.number
            if kind is ast.Gt:
                low = max(low, bound if bound else ABOVE_ZERO)
            elif kind is ast.GtE:
                low = max(low, bound)
            elif kind is ast.Lt or kind is ast.LtE:
                high = min(high, bound)
            elif kind is ast.Eq:
                low = high = bound
            elif kind is ast.NotEq and bound == 0 and left.lo >= 0:
                low = max(low, ABOVE_ZERO)
            facts[left.sym] = (low, high)
        elif right.lo > 0 and kind in (ast.Gt, ast.GtE):
            facts[left.sym] = (max(low, right.lo), high)
    if left.sym and right.sym and right.number is None:
        difference = flow.number(("-", left.sym, right.sym))
        backward = flow.number(("-", right.sym, left.sym))
        if kind is ast.Gt or kind is ast.NotEq:
            facts[difference] = (ABOVE_ZERO, INF)
        if kind is ast.Lt or kind is ast.NotEq:
            facts[backward] = (ABOVE_ZERO, INF)
            if kind is ast.NotEq:
                facts[difference] = (ABOVE_ZERO, INF)


def selected_bounds(mask: Value, sym: int) -> tuple[float, float]:
    """The interval that a mask lets through for the value with this number."""
    low, high = -INF, INF
    reference = mask.ref
    if not isinstance(reference, tuple) or not reference:
        return low, high
    if reference[0] == "and":
        for part in reference[1:]:
            a, b = selected_bounds(part, sym)
            low, high = max(low, a), min(high, b)
    elif reference[0] == "not" and isinstance(reference[1].ref, tuple) and reference[1].ref[:1] == ("cmp",) and len(reference[1].ref) == 4:
        kind, left, right = reference[1].ref[1:]
        if kind in _NEGATED:
            return selected_bounds(mask.but(ref=("cmp", _NEGATED[kind], left, right)), sym)
    elif reference[0] == "cmp" and len(reference) == 4:
        kind, left, right = reference[1:]
        if right.sym == sym and left.sym != sym:
            kind, left, right = _MIRRORED.get(kind, kind), right, left
        if left.sym == sym and sym and (right.number is not None or right.lo > 0 or right.kind == Kind.NUMBER):
            bound = right.number if right.number is not None else max(right.lo, ABOVE_ZERO if right.lo >= 0 else -INF)
            if kind is ast.Gt:
                low = bound if bound > 0 else ABOVE_ZERO if bound == 0 else bound
            elif kind is ast.GtE:
                low = bound
            elif kind in (ast.Lt, ast.LtE) and right.number is not None:
                high = right.number
            elif kind is ast.NotEq and right.number == 0 and left.lo >= 0:
                low = ABOVE_ZERO
    return low, high


def mentions(mask: Value, sym: int) -> bool:
    """Whether a mask was made by comparing (or testing) the value with this number."""
    reference = mask.ref
    if not sym or not isinstance(reference, tuple) or not reference:
        return False
    if reference[0] in ("and", "or", "not"):
        return any(mentions(part, sym) for part in reference[1:])
    if reference[0] == "cmp":
        return any(isinstance(part, Value) and (part.sym == sym or part.base == sym) for part in reference[2:])
    return reference[0] in ("isnan", "finite") and reference[1].sym == sym


def numeric(value: Value) -> bool:
    return value.kind == Kind.NUMBER or value.has(Form.INTEGER)
