"""Masks at work: what a comparison makes, what a mask selects, what ``torch.where`` and ``x[mask] = c`` leave."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check import guards
from nanopsy.check.state import join
from nanopsy.facts import INF, Form, Kind, Site, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


def compared(flow: Flow, kind: type[ast.cmpop], left: Value, right: Value) -> Value:
    """The mask (or truth value) of a comparison."""
    if (
        left.has(Form.MASK)
        and right.number is not None
        and (
            (kind in (ast.Gt, ast.NotEq) and right.number == 0)
            or (kind is ast.Eq and right.number == 1)
            or (kind is ast.GtE and 0 < right.number <= 1)
            or (kind is ast.Gt and 0 < right.number < 1)
        )
    ):
        return left
    if right.number is not None and right.number != right.number:
        for hazard in flow.site("nan-compare", flow.comparing or ast.Constant(0), left.but(kind=Kind.TENSOR), right):
            hazard.live = True
    if left.kind == Kind.NUMBER and right.kind == Kind.NUMBER:
        return Value(Kind.NUMBER, 0.0, 1.0, sym=flow.number(("cmp", kind.__name__, left.sym or left.lo, right.sym or right.lo)), ref=("cmp", kind, left, right))
    key = ("cmp", kind.__name__, left.sym or left.number, right.sym or right.number)
    known = (left.sym or left.number is not None) and (right.sym or right.number is not None)
    return Value(Kind.TENSOR, 0.0, 1.0, Form.MASK, sym=flow.number(key) if known else flow.fresh(), ref=("cmp", kind, left, right))


def select(flow: Flow, value: Value, mask: Value) -> Value:
    """The elements of ``value`` that ``mask`` chooses: how many there are depends on the data."""
    low, high = guards.selected_bounds(mask, value.sym)
    low, high = max(low, value.lo), min(high, value.hi)
    if value.role == "label" and low < 0 and not mask.ref:
        low = guards.ABOVE_ZERO
    forms = value.forms & ~Form.PARAMETER
    if low > 0:
        if value.lo <= 0 and low == guards.ABOVE_ZERO and mask.ref:
            forms |= Form.SELF_SELECTED
        forms &= ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED)
    if (
        isinstance(mask.ref, tuple)
        and mask.ref[:1] == ("cmp",)
        and mask.ref[1] in (ast.Gt, ast.GtE)
        and mask.ref[2].has(Form.ABSOLUTE)
        and mask.ref[2].base == value.sym
    ):
        forms = forms & ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED) | Form.FLOORED
    if guards.excludes_zero(mask, value.sym):
        forms = forms & ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED) | Form.FLOORED
    sym = flow.number(("select", value.sym, mask.sym)) if value.sym and mask.sym else flow.fresh()
    chosen = value.but(
        kind=Kind.TENSOR if value.kind == Kind.UNKNOWN else value.kind,
        lo=low,
        hi=max(low, high),
        forms=forms,
        sym=sym,
        selected=mask.sym or flow.fresh(),
        count_of=0,
    )
    if value.has(Form.PARAMETER) and not value.known:
        chosen.forms |= Form.PARAMETER
    return chosen


def where(flow: Flow, node: ast.expr, mask: Value, first: Value, second: Value) -> Value:
    """``torch.where``: values join, gradients of the branch not taken stay."""
    result = join(first, second).but(
        sym=flow.number(("where", mask.sym, first.sym or first.number, second.sym or second.number)),
        kind=Kind.TENSOR,
        forms=(first.forms | second.forms) & ~Form.PARAMETER,
    )
    reference = mask.ref if isinstance(mask.ref, tuple) else ()
    if reference[:1] == ("isnan",) and (reference[1].sym == second.sym or _related(reference[1], second)):
        hazards = flow.site("repair", node, second, first, name="isnan", checked=reference[1])
        result = result.but(forms=result.forms | Form.REPAIRED, hazards=result.hazards | hazards)
    elif reference[:1] == ("finite",) and reference[1].sym == first.sym:
        hazards = flow.site("repair", node, first, second, name="isfinite", checked=reference[1])
        result = result.but(forms=result.forms | Form.REPAIRED, hazards=result.hazards | hazards)
    elif reference[:1] == ("isnan",):
        result = result.but(hazards=result.hazards | flow.site("repair", node, second, first, name="isnan", checked=reference[1]))
    low_first = guards.selected_bounds(mask, first.sym) if first.sym else (-INF, INF)
    if second.number is not None or second.lo == second.hi:
        low = min(max(first.lo, low_first[0]), second.lo)
        result.lo, result.hi = low, max(min(first.hi, low_first[1]), second.hi)
        if low > 0:
            result.forms &= ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.DETERMINANT)
    elif first.number is not None or first.lo == first.hi:
        kept = _complement(mask, second)
        low = min(max(second.lo, kept), first.lo)
        result.lo = low
        result.hi = max(second.hi, first.hi)
        if low > 0:
            result.forms &= ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.DETERMINANT)
    if mask.has(Form.MASK) and isinstance(mask.ref, tuple) and mask.ref[:1] == ("cmp",) and mask.ref[1] in (ast.NotEq, ast.Eq) and first.kind != Kind.NUMBER:
        # where(a != b, a - b, 1): the zero is named and replaced
        pair = mask.ref[2:]
        if all(isinstance(each, Value) and each.sym for each in pair):
            differences = {flow.number(("-", pair[0].sym, pair[1].sym)), flow.number(("-", pair[1].sym, pair[0].sym)), pair[0].sym}
            if first.sym in differences or second.sym in differences:
                result.forms &= ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.DETERMINANT | Form.DIFFERENCE)
                result.forms |= Form.FLOORED
    reference = mask.ref if isinstance(mask.ref, tuple) else ()
    if reference[:1] == ("cmp",) and len(reference) == 4 and isinstance(reference[2], Value) and reference[2].has(Form.ABSOLUTE):
        survivor = first if reference[1] in (ast.Gt, ast.GtE) else second if reference[1] in (ast.Lt, ast.LtE) else None
        if survivor is not None and survivor.sym and survivor.sym == reference[2].base:
            result.forms = result.forms & ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.DETERMINANT | Form.DIFFERENCE) | Form.FLOORED
    if guards.excludes_zero(mask, first.sym):
        result.forms = result.forms & ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.DETERMINANT) | Form.FLOORED
    if any(branch.has(Form.SIGN) and not other.lo <= 0 <= other.hi for branch, other in ((first, second), (second, first))):
        result.forms &= ~Form.SIGN  # where(x == 0, 1, x.sign()): the zero is replaced
    trapped = [branch for branch, other in ((first, second), (second, first)) if branch.hazards and not (other.hazards - branch.hazards)]
    for branch in trapped:
        values = [hazard for hazard in branch.hazards if not hazard.suspicion.needs_gradient]
        guarded = frozenset(hazard for hazard in values if guarded_by(flow, mask, hazard.site, named=bool(hazard.code)))
        hazards = flow.site("where", node, branch, mask, guarded=guarded, branch="self" if branch is first else "other")
        if hazards:
            result = result.but(hazards=(result.hazards - guarded) | hazards)
    if first.has(Form.MINUS_INFINITY) or second.number == -INF or first.number == -INF:
        result.forms |= Form.MINUS_INFINITY
        result.lo = -INF
    return result


def guarded_by(flow: Flow, mask: Value, site: Site, *, named: bool = True) -> bool:
    """Whether a mask was made from what enters a singular operation: from that value itself or, if ``named``, from any name in the operation."""
    subject = site.other if site.op == "divide" and site.other is not None else site.operand
    if named:
        for inner in ast.walk(site.node):
            if isinstance(inner, ast.Name) and inner.id in flow.state.names and guards.mentions(mask, flow.state.names[inner.id].sym):
                return True
    return guards.mentions(mask, subject.sym) or (bool(subject.base) and guards.mentions(mask, subject.base))


def _related(first: Value, second: Value) -> bool:
    return bool(first.base and first.base == second.base)


def overwritten(flow: Flow, target: ast.Subscript, old: Value, mask: Value, value: Value) -> Value:
    """``x[mask] = c``: the elements that the mask names are gone."""
    number = value.number or 0.0
    bounds_low, forms = old.lo, old.forms
    reference = mask.ref if isinstance(mask.ref, tuple) else ()
    if number > 0 and reference[:1] == ("cmp",) and reference[2].sym == old.sym:
        if reference[1] in (ast.Eq, ast.LtE, ast.Lt) and reference[3].number is not None and reference[3].number >= 0 and old.lo >= 0:
            bounds_low, forms = guards.ABOVE_ZERO, forms & ~(Form.ZERO | Form.UNDERFLOW)
        elif reference[1] in (ast.LtE, ast.Lt) and reference[3].number is not None and reference[3].number >= 0:
            bounds_low, forms = max(guards.ABOVE_ZERO, min(number, reference[3].number)), forms & ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED)
    elif number > 0 and not reference and old.lo >= 0:
        bounds_low, forms = old.lo, forms & ~Form.ZERO
    values = [] if reference[:1] == ("isnan",) else [hazard for hazard in old.hazards if not hazard.suspicion.needs_gradient]
    guarded = frozenset(hazard for hazard in values if guarded_by(flow, mask, hazard.site))
    if guarded:
        old = old.but(hazards=old.hazards - guarded)
    if reference[:1] == ("isnan",) and reference[1].sym == old.sym:
        if any(not hazard.suspicion.open and not hazard.suspicion.needs_gradient for hazard in old.hazards):
            for hazard in flow.site("repair", target, old, name="isnan"):
                hazard.live = True
        forms |= Form.REPAIRED
    return old.but(lo=min(bounds_low, number) if number > 0 else min(old.lo, number), hi=max(old.hi, number), forms=forms, sym=flow.fresh())


def _complement(mask: Value, value: Value) -> float:
    """The lower bound of what ``where(mask, c, value)`` keeps of ``value``."""
    reference = mask.ref if isinstance(mask.ref, tuple) else ()
    if reference[:1] != ("cmp",) or len(reference) != 4 or reference[2].sym != value.sym:
        return -INF
    kind, bound = reference[1], reference[3].number
    if bound is None:
        return -INF
    if kind is ast.Lt:
        return float(bound)
    if kind is ast.LtE:
        return float(bound) or guards.ABOVE_ZERO
    if kind is ast.Eq and bound == 0 and value.lo >= 0:
        return guards.ABOVE_ZERO
    return -INF
