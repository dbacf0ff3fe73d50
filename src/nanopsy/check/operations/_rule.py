"""The register of rules, and what every rule makes its result with."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from nanopsy.facts import INF, Form, Hazard, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow

Arguments = Sequence[Value]
Keywords = dict[str, Value]
Rule = Callable[["Flow", ast.expr, Arguments, Keywords], Value]
OPERATIONS: dict[str, Rule] = {}
"""Last name of a torch function or method -> its rule. A method's object is the first argument."""


KEPT = Form.ZERO | Form.UNDERFLOW | Form.SIGNED


def operation(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            if name in OPERATIONS:
                raise ValueError(f"the operation {name} has two rules")
            OPERATIONS[name] = rule
        return rule

    return register


def made(flow: Flow, sources: Arguments, lo: float = -INF, hi: float = INF, forms: int = 0, *, key: tuple[object, ...] | None = None, **facts: object) -> Value:
    """A tensor computed from ``sources``: gradient, selection, role and hazards come from them."""
    grad = False
    selected = 0
    role = None
    hazards: frozenset[Hazard] = frozenset()
    kind = Kind.TENSOR
    array = bool(sources)
    for source in sources:
        if source.kind == Kind.NUMBER:
            continue
        array = array and source.kind == Kind.ARRAY
        grad = grad or source.grad
        selected = selected or source.selected
        if source.kind != Kind.NONE:
            role = source.role if role is None or role == source.role else ""
        if source.hazards:
            hazards |= source.hazards
    if array and any(source.kind == Kind.ARRAY for source in sources):
        kind = Kind.ARRAY
    if sources and all(source.kind == Kind.NUMBER for source in sources):
        kind = Kind.NUMBER
    sym = flow.number((*key, *(source.sym for source in sources))) if key is not None and all(source.sym for source in sources) else flow.fresh()
    value = Value(kind, lo, hi, forms, grad=grad and not flow.no_grad, role=role or "", sym=sym, selected=selected, hazards=hazards)
    for name, fact in facts.items():
        setattr(value, name, fact)
    return value


def carry(value: Value, hazards: frozenset[Hazard]) -> Value:
    """``value`` with hazards of its own making."""
    if hazards:
        value.hazards |= hazards
    return value


def first_of(args: Arguments) -> Value:
    return args[0] if args else Value()


def keyword_number(args: Arguments, kw: Keywords, name: str, position: int) -> float | None:
    """A numeric argument by name or place; the lower bound of what is known to be a positive setting."""
    value = kw.get(name) or (args[position] if len(args) > position else None)
    if value is None:
        return None
    if value.number is not None:
        return value.number
    return None


def argument(args: Arguments, kw: Keywords, name: str, position: int) -> Value | None:
    return kw.get(name) or (args[position] if len(args) > position else None)
