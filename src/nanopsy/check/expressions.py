"""What is known of an expression: names, attributes, subscripts, operators and calls."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING, Any

from nanopsy.check import guards, roles, selections
from nanopsy.check.operations._rule import made
from nanopsy.check.operations.arithmetic import added, divided, multiplied, negated, subtracted
from nanopsy.check.operations.powers import raised
from nanopsy.check.operations.vectors import product
from nanopsy.check.state import join
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


MAX_NESTING = 240


"""Expressions within expressions (through calls too) beyond which a function is given up."""


class BudgetError(Exception):
    """A function (with what it calls) took more steps than a linter may spend on it."""


def evaluate(flow: Flow, node: ast.expr) -> Value:
    """What is known of an expression."""
    handler = EXPRESSIONS.get(type(node))
    if handler is None:
        return Value(sym=flow.fresh())
    checker = flow.checker
    checker.nesting += 1  # not restored when an exception passes: whoever catches it does
    if checker.nesting > MAX_NESTING:
        raise BudgetError
    value: Value = handler(flow, node)
    checker.nesting -= 1
    return value


def _constant(flow: Flow, node: ast.Constant) -> Value:
    value = node.value
    key = (type(value), value)
    known = flow.checker.constants.get(key)
    if known is None:
        known = flow.checker.constants[key] = _made_constant(flow, value)
    return known


def _made_constant(flow: Flow, value: object) -> Value:
    if isinstance(value, bool):
        return Value(Kind.NUMBER, float(value), float(value), ref="bool", sym=flow.number(("constant", float(value))))
    if isinstance(value, (int, float)):
        try:
            number = float(value)
        except OverflowError:
            number = INF
        return Value(Kind.NUMBER, number, number, sym=flow.number(("constant", number)))
    if isinstance(value, str):
        return Value(Kind.TEXT, ref=value)
    if value is None:
        return Value(Kind.NONE)
    return Value(sym=flow.fresh())


def _name(flow: Flow, node: ast.Name) -> Value:
    name = node.id
    value = flow.state.names.get(name)
    if value is not None:
        return value
    return flow.checker.module_value(flow.module, name)


def _attribute(flow: Flow, node: ast.Attribute) -> Value:
    owner = evaluate(flow, node.value)
    return attribute(flow, owner, node.attr)


def attribute(flow: Flow, owner: Value, name: str) -> Value:
    """``owner.name``."""
    kind = owner.kind
    if kind == Kind.MODULE:
        dotted = f"{owner.ref}.{name}"
        constant = _CONSTANTS.get(dotted)
        if constant is not None:
            return Value(Kind.NUMBER, constant, constant, sym=flow.number(("constant", constant)))
        if dotted.split(".", 1)[0] in ("torch", "numpy", "math", "np"):
            return Value(Kind.MODULE, ref=dotted)
        return flow.checker.member_of(flow.module, dotted, name)
    if kind == Kind.CHOICE:
        return attribute(flow, owner.ref[0], name)
    if kind == Kind.LAYER and owner.attributes and name in owner.attributes:
        return owner.attributes[name]
    if kind == Kind.INSTANCE:
        if owner.attributes is not None and name in owner.attributes:
            return owner.attributes[name]
        if owner.ref is not None:
            return flow.checker.instance_attribute(flow, owner, name)
    if kind == Kind.CLASS:
        return flow.checker.class_attribute(flow, owner, name)
    if name == "shape":
        return Value(Kind.SEQUENCE, sym=flow.number(("shape", owner.sym)), attributes={"*": length(flow, owner)}, ref=None)
    if name in ("data",):
        return owner.but(grad=False, hazards=frozenset(hazard for hazard in owner.hazards if not hazard.suspicion.needs_gradient))
    if name in ("T", "mT", "real", "values", "H"):
        return owner
    if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad", "training", "indices", "grad_fn"):
        return Value(Kind.MODULE if name == "dtype" else Kind.NUMBER if name == "ndim" else Kind.UNKNOWN, 0.0, INF, ref="dtype" if name == "dtype" else None)
    if name == "grad":
        return Value(Kind.TENSOR, sym=flow.fresh())
    if name in ("eps", "tiny", "resolution") and kind == Kind.UNKNOWN:
        return Value(Kind.NUMBER, 1e-30, 1e-2, sym=flow.fresh())
    if kind == Kind.MAPPING and owner.attributes and name in owner.attributes:
        return owner.attributes[name]
    result = flow.named(name)
    result.sym = flow.number(("attribute", owner.sym, name)) if owner.sym else result.sym
    if owner.hazards:
        result.hazards = owner.hazards
    return result


def length(flow: Flow, owner: Value) -> Value:
    if owner.selected:
        return Value(Kind.NUMBER, 0.0, INF, Form.COUNT, sym=flow.number(("length", owner.sym)), count_of=owner.selected)
    return Value(Kind.NUMBER, 1.0, INF, sym=flow.number(("length", owner.sym)))


def slice_key(node: ast.expr) -> object:
    """A hashable description of a subscript, or None when it is not a plain one."""
    if isinstance(node, ast.Constant):
        return ("c", str(node.value))
    if isinstance(node, ast.Name):
        return ("n", node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return ("-", slice_key(node.operand))
    if isinstance(node, ast.Slice):
        parts = tuple(slice_key(part) if part is not None else "" for part in (node.lower, node.upper, node.step))
        return None if None in parts else (":", *parts)
    if isinstance(node, ast.Tuple):
        parts = tuple(slice_key(part) for part in node.elts)
        return None if None in parts else ("t", *parts)
    return None


def index(flow: Flow, node: ast.expr) -> Value:
    """A subscript's value; a mask anywhere in a tuple makes the whole a mask."""
    if isinstance(node, ast.Slice):
        for part in (node.lower, node.upper, node.step):
            if part is not None:
                evaluate(flow, part)
        return Value(sym=0)
    if isinstance(node, ast.Tuple):
        found = Value()
        for part in node.elts:
            value = index(flow, part)
            if value.has(Form.MASK) and value.kind != Kind.NUMBER:
                found = value
        return found
    return evaluate(flow, node)


def _subscript(flow: Flow, node: ast.Subscript) -> Value:
    owner = evaluate(flow, node.value)
    where = index(flow, node.slice)
    kind = owner.kind
    if kind == Kind.SEQUENCE:
        number = where.number
        if isinstance(owner.ref, tuple) and number is not None and abs(number) < 1e6 and -len(owner.ref) <= int(number) < len(owner.ref):
            part = owner.ref[int(number)]
            if isinstance(part, Value):
                return part
        if owner.attributes and "*" in owner.attributes:
            return owner.attributes["*"]
        return flow.member(owner) if not isinstance(node.slice, ast.Slice) else owner
    if where.kind == Kind.TEXT:
        name = str(where.ref) if where.ref is not None else ""
        if owner.attributes and name in owner.attributes:
            return owner.attributes[name]
        if owner.kind == Kind.MAPPING and owner.attributes and (not name or "*" in owner.attributes):
            return flow.stored(owner)
        result = flow.named(name)
        if result.role == "label" or owner.has(Form.DATA):
            result.forms |= Form.DATA
        result.hazards = owner.hazards
        if owner.sym:
            result.sym = flow.number(("item", owner.sym, name))
        return result
    if isinstance(node.slice, ast.Tuple) and any(isinstance(part, ast.Constant) and isinstance(part.value, str) for part in node.slice.elts):
        text = "_".join(str(part.value) for part in node.slice.elts if isinstance(part, ast.Constant) and isinstance(part.value, str))
        return flow.named(text)
    if kind in (Kind.INSTANCE, Kind.CLASS, Kind.FUNCTION, Kind.MODULE, Kind.MAPPING, Kind.TEXT, Kind.LAYER):
        if kind == Kind.MAPPING and owner.attributes and "*" in owner.attributes:
            return owner.attributes["*"]
        return Value(sym=flow.fresh(), hazards=owner.hazards, grad=kind != Kind.TEXT)
    if where.has(Form.PARAMETER) and not where.known and where.kind == Kind.UNKNOWN and isinstance(node.slice, ast.Name) and roles.is_region(node.slice.id):
        where = where.but(forms=where.forms | Form.MASK)
    if where.has(Form.MASK) and where.kind not in (Kind.NUMBER, Kind.TEXT) and owner.kind != Kind.NUMBER:
        return selections.select(flow, owner, where)
    if owner.kind == Kind.NUMBER:
        return owner
    key = slice_key(node.slice)
    sym = (
        flow.number(("item", owner.sym, key, where.sym if not isinstance(node.slice, (ast.Slice, ast.Tuple, ast.Constant)) else 0))
        if key is not None and owner.sym
        else flow.fresh()
    )
    return owner.but(sym=sym)


def _binary(flow: Flow, node: ast.BinOp) -> Value:
    # a chain a + b + c ... leans left: walk it without recursion so that long sums do not nest
    chain = [node]
    while isinstance(chain[-1].left, ast.BinOp):
        chain.append(chain[-1].left)
    value = evaluate(flow, chain[-1].left)
    for link in reversed(chain):
        value = binary(flow, type(link.op), link, value, evaluate(flow, link.right))
    return value


def binary(flow: Flow, kind: type[ast.operator], node: ast.AST, first: Value, second: Value) -> Value:
    """``first kind second``."""
    if first.kind in _OPAQUE or second.kind in _OPAQUE:
        return _opaque(flow, kind, first, second)
    if kind is ast.Add:
        return added(flow, first, second)
    if kind is ast.Sub:
        return subtracted(flow, node, first, second)
    if kind is ast.Mult:
        return multiplied(flow, node if isinstance(node, ast.expr) else ast.Constant(0), first, second)
    if kind is ast.Div:
        return divided(flow, node, first, second)
    if kind is ast.Pow:
        return raised(flow, node if isinstance(node, ast.expr) else ast.Constant(0), first, second)
    if kind is ast.MatMult:
        return product(flow, ast.Constant(0), [first, second], {})
    if kind in (ast.BitAnd, ast.BitOr, ast.BitXor):
        forms = Form.MASK if first.has(Form.MASK) or second.has(Form.MASK) else 0
        kind_name = "and" if kind is ast.BitAnd else "or"
        number = first.kind if first.kind == second.kind == Kind.NUMBER else Kind.TENSOR
        sym = flow.number((kind_name, first.sym, second.sym)) if first.sym and second.sym else flow.fresh()
        return Value(number, 0.0, 1.0, forms, sym=sym, ref=(kind_name, first, second))
    if kind in (ast.FloorDiv, ast.Mod):
        low = 0.0 if first.lo >= 0 and second.lo >= 0 else -INF
        value = made(flow, [first, second], low, INF)
        if value.kind != Kind.NUMBER:
            value.hazards = frozenset()
        elif first.number is not None and second.number:
            result = first.number // second.number if kind is ast.FloorDiv else math.fmod(first.number, second.number)
            value.lo = value.hi = result
        return value
    return made(flow, [first, second])


_OPAQUE = (Kind.TEXT, Kind.SEQUENCE, Kind.MAPPING, Kind.INSTANCE, Kind.CLASS, Kind.FUNCTION, Kind.LAYER, Kind.NONE, Kind.MODULE, Kind.CHOICE)


def _opaque(flow: Flow, kind: type[ast.operator], first: Value, second: Value) -> Value:
    if first.kind == second.kind == Kind.SEQUENCE and kind is ast.Add:
        if isinstance(first.ref, tuple) and isinstance(second.ref, tuple):
            return Value(Kind.SEQUENCE, ref=first.ref + second.ref, sym=flow.fresh(), hazards=first.hazards | second.hazards)
        return Value(Kind.SEQUENCE, sym=flow.fresh(), hazards=first.hazards | second.hazards)
    if Kind.SEQUENCE in (first.kind, second.kind) and kind is ast.Mult:
        return first if first.kind == Kind.SEQUENCE else second
    if Kind.TEXT in (first.kind, second.kind):
        return Value(Kind.TEXT)
    known = first if first.kind not in _OPAQUE else second if second.kind not in _OPAQUE else None
    return Value(Kind.UNKNOWN, sym=flow.fresh(), hazards=first.hazards | second.hazards, grad=known.grad if known is not None else False)


def _unary(flow: Flow, node: ast.UnaryOp) -> Value:
    value = evaluate(flow, node.operand)
    if isinstance(node.op, ast.USub):
        if value.number is not None:
            return Value(Kind.NUMBER, -value.number, -value.number, sym=flow.number(("constant", -value.number)))
        return negated(flow, value)
    if isinstance(node.op, ast.Invert) and value.kind in _OPAQUE:
        return Value(sym=flow.fresh(), hazards=value.hazards)
    if isinstance(node.op, (ast.Not, ast.Invert)):
        kind = Kind.NUMBER if isinstance(node.op, ast.Not) else value.kind
        reference: Any = ("not", value)
        if isinstance(node.op, ast.Invert) and isinstance(value.ref, tuple) and value.ref[:1] in (("isnan",), ("finite",)):
            reference = ("finite" if value.ref[0] == "isnan" else "isnan", value.ref[1])
        return Value(kind, 0.0, 1.0, Form.MASK if kind != Kind.NUMBER else 0, sym=flow.number(("not", value.sym)), ref=reference)
    return value


def _boolean(flow: Flow, node: ast.BoolOp) -> Value:
    value: Value | None = None
    saved = flow.state
    flow.state = saved.copy()
    for part in node.values:
        each = evaluate(flow, part)
        value = each if value is None else join(value, each)
        guards.assume(flow, part, truth=isinstance(node.op, ast.And))
    flow.state = saved
    return value if value is not None else Value()


def _compare(flow: Flow, node: ast.Compare) -> Value:
    left = evaluate(flow, node.left)
    result: Value | None = None
    for operator, right_node in zip(node.ops, node.comparators, strict=True):
        right = evaluate(flow, right_node)
        if isinstance(operator, (ast.Is, ast.IsNot, ast.In, ast.NotIn)):
            each = Value(Kind.NUMBER, 0.0, 1.0, sym=flow.fresh())
        else:
            flow.comparing = node
            each = selections.compared(flow, type(operator), left, right)
        result = each if result is None else Value(each.kind, 0.0, 1.0, each.forms, sym=flow.fresh(), ref=("and", result, each))
        left = right
    return result if result is not None else Value()


def _conditional(flow: Flow, node: ast.IfExp) -> Value:
    evaluate(flow, node.test)
    before = flow.state
    flow.state = before.copy()
    guards.assume(flow, node.test, truth=True)
    first = evaluate(flow, node.body)
    flow.state = before.copy()
    guards.assume(flow, node.test, truth=False)
    second = evaluate(flow, node.orelse)
    flow.state = before
    return join(first, second)


def _sequence(flow: Flow, node: ast.Tuple | ast.List | ast.Set) -> Value:
    parts: list[Value] = []
    star = False
    for each in node.elts[:200]:
        if isinstance(each, ast.Starred):
            inner = evaluate(flow, each.value)
            if isinstance(inner.ref, tuple) and inner.kind == Kind.SEQUENCE:
                parts += [part for part in inner.ref if isinstance(part, Value)]
            else:
                star = True
                parts.append(flow.member(inner))
        else:
            parts.append(evaluate(flow, each))
    hazards = frozenset().union(*(part.hazards for part in parts)) if parts else frozenset()
    if star and parts:
        member = parts[0]
        for part in parts[1:]:
            member = join(member, part)
        return Value(Kind.SEQUENCE, sym=flow.fresh(), attributes={"*": member}, hazards=hazards)
    return Value(Kind.SEQUENCE, ref=tuple(parts), sym=flow.fresh(), hazards=hazards)


def _mapping(flow: Flow, node: ast.Dict) -> Value:
    attributes: dict[str, Value] = {}
    hazards = frozenset[Any]()
    for key, value_node in zip(node.keys[:300], node.values[:300], strict=False):
        value = evaluate(flow, value_node)
        hazards |= value.hazards
        if isinstance(key, ast.Constant):
            attributes[str(key.value)] = value
        elif key is not None:
            evaluate(flow, key)
    return Value(Kind.MAPPING, attributes=attributes, sym=flow.fresh(), hazards=hazards)


def _comprehension(flow: Flow, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
    saved = flow.state
    flow.state = saved.copy()
    for generator in node.generators:
        sequence = evaluate(flow, generator.iter)
        flow.bind(generator.target, flow.member(sequence))
        for test in generator.ifs:
            evaluate(flow, test)
            guards.assume(flow, test, truth=True)
    value = evaluate(flow, node.value if isinstance(node, ast.DictComp) else node.elt)
    flow.state = saved
    kind = Kind.MAPPING if isinstance(node, ast.DictComp) else Kind.SEQUENCE
    return Value(kind, attributes={"*": value}, sym=flow.fresh(), hazards=value.hazards)


def _lambda(flow: Flow, node: ast.Lambda) -> Value:
    if flow.depth == 0 and not flow.muted:
        flow.nested.append((node, flow.state.names))
    return Value(Kind.FUNCTION, ref=(node, flow.module, flow.owner, None, flow.state.names), sym=flow.fresh())


_CONSTANTS = {
    "math.nan": math.nan, "numpy.nan": math.nan, "torch.nan": math.nan, "numpy.NaN": math.nan,
    "math.pi": math.pi, "numpy.pi": math.pi, "math.e": math.e, "torch.pi": math.pi, "math.inf": INF, "numpy.inf": INF, "torch.inf": INF,
    "numpy.Inf": INF, "numpy.e": math.e,
    "float.inf": INF,
}  # fmt: skip


def _walrus(flow: Flow, node: ast.NamedExpr) -> Value:
    value = evaluate(flow, node.value)
    flow.bind(node.target, value)
    return value


def _starred(flow: Flow, node: ast.Starred) -> Value:
    return evaluate(flow, node.value)


def _joined_text(flow: Flow, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            evaluate(flow, part.value)
    return Value(Kind.TEXT)


def _await(flow: Flow, node: ast.Await) -> Value:
    return evaluate(flow, node.value)


def _yield(flow: Flow, node: ast.Yield) -> Value:
    if node.value is not None:
        value = evaluate(flow, node.value)
        for each in [value, *flow.spread([value])]:
            flow.use(each)
    return Value(sym=flow.fresh())


EXPRESSIONS: dict[type[ast.expr], Any] = {
    ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript, ast.BinOp: _binary, ast.UnaryOp: _unary,
    ast.BoolOp: _boolean, ast.Compare: _compare, ast.IfExp: _conditional, ast.Tuple: _sequence, ast.List: _sequence, ast.Set: _sequence, ast.Dict: _mapping,
    ast.ListComp: _comprehension, ast.SetComp: _comprehension, ast.GeneratorExp: _comprehension, ast.DictComp: _comprehension, ast.Lambda: _lambda,
    ast.NamedExpr: _walrus, ast.Starred: _starred, ast.JoinedStr: _joined_text, ast.Await: _await, ast.Yield: _yield,
}  # fmt: skip
