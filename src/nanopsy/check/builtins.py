"""What Python's own functions make of values."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

from nanopsy.check.expressions import length
from nanopsy.check.operations._rule import made
from nanopsy.check.operations.arithmetic import absolute
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow

Builtin = Callable[["Flow", list[Value]], Value]


def _len(flow: Flow, args: list[Value]) -> Value:
    return length(flow, args[0]) if args else Value(Kind.NUMBER)


def _float(flow: Flow, args: list[Value]) -> Value:
    value = args[0] if args else Value()
    if value.kind == Kind.TEXT and value.ref is not None:
        try:
            number = float(str(value.ref))
        except ValueError:
            return Value(Kind.NUMBER)
        return Value(Kind.NUMBER, number, number, sym=flow.number(("constant", number)))
    flow.use(value, gradient=False)
    return value.but(kind=Kind.NUMBER, grad=False, hazards=frozenset())


def _builtin_extremum(name: str) -> Builtin:
    def rule(flow: Flow, args: list[Value]) -> Value:
        members = flow.spread(args)
        if not members:
            return Value(sym=flow.fresh())
        low = max(member.lo for member in members) if name == "max" else min(member.lo for member in members)
        high = max(member.hi for member in members) if name == "max" else min(member.hi for member in members)
        value = made(flow, members, low, high)
        if name == "max" and low > 0:
            value.count_of = 0
        elif len(members) > 0:
            value.forms |= members[0].forms & (Form.ZERO | Form.COUNT)
            value.count_of = members[0].count_of
        return value

    return rule


def _builtin_abs(flow: Flow, args: list[Value]) -> Value:
    return absolute(flow, ast.Constant(0), args, {})


def _builtin_sum(flow: Flow, args: list[Value]) -> Value:
    members = flow.spread(args[:1])
    value = made(flow, members, 0.0 if members and all(member.lo >= 0 for member in members) else -INF, INF)
    if members and all(member.reaches_zero for member in members):
        value.forms |= Form.ZERO
    return value


def _enumerate(flow: Flow, args: list[Value]) -> Value:
    member = flow.member(args[0]) if args else Value()
    pair = Value(Kind.SEQUENCE, ref=(Value(Kind.NUMBER, 0.0, INF, sym=flow.fresh()), member), sym=flow.fresh())
    return Value(Kind.SEQUENCE, attributes={"*": pair}, sym=flow.fresh())


def _zip(flow: Flow, args: list[Value]) -> Value:
    pair = Value(Kind.SEQUENCE, ref=tuple(flow.member(each) for each in args), sym=flow.fresh())
    return Value(Kind.SEQUENCE, attributes={"*": pair}, sym=flow.fresh())


def _list(flow: Flow, args: list[Value]) -> Value:
    if not args:
        return Value(Kind.SEQUENCE, ref=(), sym=flow.fresh())
    return args[0] if args[0].kind == Kind.SEQUENCE else Value(Kind.SEQUENCE, attributes={"*": flow.member(args[0])}, sym=flow.fresh(), hazards=args[0].hazards)


def _dict(flow: Flow, args: list[Value]) -> Value:
    return Value(Kind.MAPPING, attributes={}, sym=flow.fresh())


def _range(flow: Flow, args: list[Value]) -> Value:
    return Value(Kind.SEQUENCE, attributes={"*": Value(Kind.NUMBER, args[0].lo if len(args) > 1 else 0.0, INF, sym=flow.fresh())}, sym=flow.fresh())


def _text(flow: Flow, args: list[Value]) -> Value:
    return Value(Kind.TEXT)


BUILTINS: dict[str, Builtin] = {
    "len": _len, "float": _float, "int": _float, "max": _builtin_extremum("max"), "min": _builtin_extremum("min"), "abs": _builtin_abs, "sum": _builtin_sum,
    "enumerate": _enumerate, "zip": _zip, "list": _list, "tuple": _list, "dict": _dict, "range": _range, "str": _text, "repr": _text, "format": _text,
    "reversed": _list, "sorted": _list, "tqdm": _list, "iter": _list,
}  # fmt: skip
