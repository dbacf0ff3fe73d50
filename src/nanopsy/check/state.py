"""What holds at one point of a function: the names, the facts that branches established, the counts of masks."""

from __future__ import annotations

import itertools

from nanopsy.facts import INF, Form, Kind, Value

UNION = ~(Form.FLOORED | Form.REPAIRED | Form.EPSILON | Form.HALF | Form.INTEGER | Form.MASK | Form.NORMALIZED | Form.COSINE)


class State:
    """Names and facts on one path; copied at branches, joined after them."""

    __slots__ = ("counts", "facts", "names")

    def __init__(self, names: dict[str, Value], facts: dict[int, tuple[float, float]] | None = None, counts: dict[int, float] | None = None) -> None:
        self.names = names
        self.facts = facts or {}
        """Narrower intervals of values by number; an open bound at zero is written as the smallest positive number."""
        self.counts = counts or {}
        """The least number of elements that a mask is known to select, by the number of the mask."""

    def copy(self) -> State:
        return State(self.names.copy(), self.facts.copy(), self.counts.copy())

    def join(self, other: State) -> None:
        """What holds whichever of two paths was taken."""
        if other.names is not self.names:
            mine = self.names
            for name, value in other.names.items():
                here = mine.get(name)
                if here is None:
                    mine[name] = value
                elif here is not value:
                    mine[name] = join(here, value)
        if self.facts:
            self.facts = {sym: (min(low, other.facts[sym][0]), max(high, other.facts[sym][1])) for sym, (low, high) in self.facts.items() if sym in other.facts}
        if self.counts:
            self.counts = {sym: min(count, other.counts[sym]) for sym, count in self.counts.items() if sym in other.counts}


_CALLABLE = (Kind.LAYER, Kind.INSTANCE, Kind.FUNCTION, Kind.CLASS, Kind.CHOICE)
_joined = itertools.count(1)


def join(first: Value, second: Value) -> Value:
    """A value that is one or the other."""
    if first is second:
        return first
    if first.kind == Kind.NONE:
        return second
    if second.kind == Kind.NONE:
        return first
    if first.kind in _CALLABLE and second.kind in _CALLABLE and first.ref is not second.ref:
        options = [*(first.ref if first.kind == Kind.CHOICE else (first,)), *(second.ref if second.kind == Kind.CHOICE else (second,))]
        unique = {(each.kind, each.ref if isinstance(each.ref, str) else id(each.ref)): each for each in options}
        return Value(Kind.CHOICE, ref=tuple(unique.values())[:8], sym=-next(_joined))
    kind = first.kind if first.kind == second.kind else Kind.TENSOR if Kind.TENSOR in (first.kind, second.kind) else Kind.UNKNOWN
    if first.kind != second.kind and Kind.UNKNOWN in (first.kind, second.kind):
        kind = max(first.kind, second.kind) if max(first.kind, second.kind) in (Kind.TENSOR, Kind.ARRAY) else Kind.UNKNOWN
    both = first.forms & second.forms
    if (first.has(Form.MASK) and second.has(Form.ONES | Form.MASK)) or (second.has(Form.MASK) and first.has(Form.ONES)):
        both |= Form.MASK
    either = (first.forms | second.forms) & UNION
    ref = first.ref
    if first.ref is not second.ref:
        ref = None
        if kind == Kind.SEQUENCE and isinstance(first.ref, tuple) and isinstance(second.ref, tuple) and len(first.ref) == len(second.ref):
            ref = tuple(join(a, b) for a, b in zip(first.ref, second.ref, strict=True))
        elif kind == Kind.SEQUENCE:
            return _any_of(first, second)
        elif kind in (Kind.INSTANCE, Kind.FUNCTION, Kind.CLASS, Kind.LAYER, Kind.MODULE):
            ref = first.ref
    worse = first if first.lo <= second.lo and first.origin is not None else second if second.origin is not None else first
    return Value(
        kind,
        min(first.lo, second.lo),
        max(first.hi, second.hi),
        both | either,
        grad=first.grad or second.grad,
        role=first.role if first.role == second.role else first.role or second.role,
        sym=first.sym if first.sym == second.sym else -next(_joined),
        base=first.base if first.base == second.base else 0,
        selected=first.selected or second.selected,
        count_of=first.count_of if first.count_of == second.count_of else first.count_of or second.count_of,
        origin=worse.origin,
        hazards=first.hazards | second.hazards,
        ref=ref,
        attributes=first.attributes if first.attributes is second.attributes else first.attributes or second.attributes,
    )


def _any_of(first: Value, second: Value) -> Value:
    """Two sequences of different lengths: one value stands for every element."""
    member: Value | None = None
    for each in (first, second):
        parts = [part for part in each.ref if isinstance(part, Value)] if isinstance(each.ref, tuple) else []
        if each.attributes and "*" in each.attributes:
            parts.append(each.attributes["*"])
        for part in parts:
            member = part if member is None else join(member, part)
    return Value(Kind.SEQUENCE, sym=-next(_joined), hazards=first.hazards | second.hazards, attributes={"*": member} if member is not None else None)


def widened(value: Value) -> Value:
    """What is left of a value that a loop changes."""
    if value.kind == Kind.NUMBER:
        return value.but(lo=0.0 if value.lo >= 0 else -INF, hi=INF, sym=0, forms=value.forms & ~Form.EPSILON)
    return value
