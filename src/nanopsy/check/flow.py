"""One forward pass over a function: every expression once, every branch with what it teaches, calls into the tree followed."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

from nanopsy.check import expressions, guards, operations, roles, selections
from nanopsy.check.state import State, join, widened
from nanopsy.check.tree import Imported
from nanopsy.check.walk import NOTHING, Walk
from nanopsy.facts import INF, Form, Kind, Value

MAX_HAZARDS = 64


class Flow(Walk):
    """The walk over one function body: statements."""

    def evaluate(self, node: ast.expr) -> Value:
        """What is known of an expression."""
        return expressions.evaluate(self, node)

    def quietly(self, node: ast.expr) -> Value:
        """Evaluate again without putting anything to the causes."""
        self.muted += 1
        try:
            return self.evaluate(node)
        finally:
            self.muted -= 1

    def index(self, node: ast.expr) -> Value:
        return expressions.index(self, node)

    def binary(self, kind: type[ast.operator], node: ast.AST, first: Value, second: Value) -> Value:
        return expressions.binary(self, kind, node, first, second)

    def run(self, body: Sequence[ast.stmt]) -> bool:
        """Execute statements; True when the path ends among them (return, raise, continue, break)."""
        for statement in body:
            self.checker.step()
            handler = _STATEMENTS.get(type(statement))
            if handler is not None and handler(self, statement):
                return True
        return False

    def _return(self, node: ast.Return) -> bool:
        value = self.evaluate(node.value) if node.value is not None else Value(Kind.NONE)
        self.give(value)
        return True

    def give(self, value: Value) -> None:
        if self.depth == 0:
            for each in [value, *self.spread([value])]:
                self.use(each)
        self.result = value if self.result is None else join(self.result, value)

    def _raise(self, node: ast.stmt) -> bool:
        return True

    def _expression(self, node: ast.Expr) -> bool:
        value = node.value
        if isinstance(value, ast.Constant):
            return False
        if isinstance(value, (ast.Yield, ast.YieldFrom, ast.Await)):
            inner = value.value
            if inner is not None:
                got = self.evaluate(inner)
                for each in [got, *self.spread([got])]:
                    self.use(each)
            return False
        got = self.evaluate(value)
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr in _PURE and self._is_torch(value):
                operand = self.quietly(value.args[0]) if value.args else self.quietly(value.func.value)
                for hazard in self.site("discarded", value, operand, name=value.func.attr):
                    hazard.live = True
        if got.hazards and not (isinstance(value, ast.Call) and operations.OPERATIONS.get(self.called(value))):
            self.use(got)
        return False

    def _is_torch(self, call: ast.Call) -> bool:
        function = self.quietly(call.func) if isinstance(call.func, ast.Attribute) else Value()
        return function.kind == Kind.MODULE and str(function.ref).startswith("torch")

    def _assign(self, node: ast.Assign) -> bool:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.bind(target, value)
        return False

    def _annotated(self, node: ast.AnnAssign) -> bool:
        if node.value is not None:
            self.bind(node.target, self.evaluate(node.value))
        return False

    def _augmented(self, node: ast.AugAssign) -> bool:
        target = self.evaluate(node.target)
        value = self.evaluate(node.value)
        result = self.binary(type(node.op), node, target, value)
        self.bind(node.target, result)
        return False

    def bind(self, target: ast.expr, value: Value) -> None:
        """Give a name, an attribute or the parts of a tuple a value."""
        if isinstance(target, ast.Name):
            name = target.id
            if value.kind == Kind.UNKNOWN and not value.role and not value.forms & ~Form.PARAMETER:
                value = self.named(name, grad=value.grad, like=value)
            elif value.role == "" and value.kind in (Kind.UNKNOWN, Kind.TENSOR) and not value.known:
                role = roles.role(name)
                if role:
                    value = value.but(role=role, grad=value.grad and role not in roles.WITHOUT_GRADIENT)
            value = marked(name, value)
            if len(value.hazards) > MAX_HAZARDS:
                self.use(value)
                value = value.but(hazards=NOTHING)
            self.state.names[name] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            self._unpack(target, value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Value(Kind.SEQUENCE, sym=self.fresh(), attributes={"*": value}, hazards=value.hazards))
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value)
            if owner.kind == Kind.INSTANCE and owner.attributes is not None:
                self._attribute(owner.attributes, target.attr, value)
            elif owner.kind == Kind.LAYER:
                owner.attributes = {**(owner.attributes or {}), target.attr: value}
            if self.function != "__init__":
                self.use(value)
        elif isinstance(target, ast.Subscript):
            self._store(target, value)

    def _attribute(self, attributes: dict[str, Value], name: str, value: Value) -> None:
        known = attributes.get(name)
        if value.kind == Kind.TENSOR and value.lo == value.hi == 0:
            value = Value(Kind.TENSOR, sym=value.sym)  # a buffer of zeros is there to be filled
        if known is not None and self.function == "__init__":
            zero = known.forms & value.forms & Form.ZERO
            value = join(known, value)
            if not zero and value.has(Form.ZERO):
                value = value.but(forms=value.forms & ~Form.ZERO)
        attributes[name] = marked(name, value)

    def _unpack(self, target: ast.Tuple | ast.List, value: Value) -> None:
        parts = value.ref if value.kind == Kind.SEQUENCE and isinstance(value.ref, tuple) else ()
        starred = any(isinstance(each, ast.Starred) for each in target.elts)
        member = value.attributes.get("*") if value.attributes else None
        for index, each in enumerate(target.elts):
            if value.kind == Kind.TENSOR and value.has(Form.GRID):
                part = value.but(sym=self.fresh())
            elif index == 0 and value.kind == Kind.TENSOR and value.has(Form.MAXIMUM | Form.MINIMUM) and len(target.elts) == 2:
                part = value
            elif (len(parts) == len(target.elts) and not starred) or (parts and not starred and index < len(parts)):
                part = parts[index]
            elif parts and not starred and not member:
                part = parts[-1]
            elif member is not None:
                part = member.but(sym=self.fresh())
            else:
                dimension = value.kind == Kind.NUMBER
                part = (
                    Value(Kind.NUMBER, 1.0, INF, sym=self.fresh())
                    if dimension
                    else Value(grad=value.grad, sym=self.fresh(), hazards=value.hazards, forms=value.forms & Form.NETWORK)
                )
            self.bind(each, part)

    def _store(self, target: ast.Subscript, value: Value) -> None:
        container = self.evaluate(target.value)
        index = self.index(target.slice)
        root = target.value
        if container.kind == Kind.MAPPING and index.kind == Kind.TEXT:
            container.attributes = container.attributes if container.attributes is not None else {}
            container.attributes[str(index.ref) if index.ref is not None else "*"] = value
            container.hazards |= value.hazards
            return
        if isinstance(root, ast.Name) and root.id in self.state.names:
            old = self.state.names[root.id]
            if index.has(Form.MASK) and value.kind == Kind.NUMBER and value.number is not None:
                self.state.names[root.id] = selections.overwritten(self, target, old, index, value)
                return
            merged = old.but(
                hazards=old.hazards | value.hazards, lo=min(old.lo, value.lo), hi=max(old.hi, value.hi), sym=self.fresh(),
                forms=(old.forms | value.forms) & ~(Form.REPAIRED | Form.FLOORED) & (~Form.ZERO if old.lo > 0 else -1),
                grad=(old.grad or value.grad) and not self.no_grad,
            )  # fmt: skip
            if old.kind in (Kind.SEQUENCE, Kind.MAPPING):
                merged = old.but(hazards=old.hazards | value.hazards, attributes={**(old.attributes or {}), "*": value})
            elif old.has(Form.ZERO) and old.lo == old.hi == 0 and not value.known:
                merged.lo, merged.hi = value.lo, value.hi
            elif old.kind == Kind.UNKNOWN and value.selected and not index.has(Form.MASK):
                merged.selected, merged.kind = value.selected, Kind.UNKNOWN
            self.state.names[root.id] = merged
            if old.kind == Kind.UNKNOWN:
                self.use(value)
        else:
            self.use(value, gradient=not (isinstance(root, ast.Attribute) and root.attr == "data"))
            owner = self.quietly(root.value) if isinstance(root, ast.Attribute) else Value()
            if isinstance(root, ast.Attribute) and owner.kind == Kind.INSTANCE and owner.attributes and container.kind in (Kind.TENSOR, Kind.ARRAY):
                low, high = min(container.lo, value.lo), max(container.hi, value.hi)
                owner.attributes[root.attr] = container.but(lo=low, hi=high, sym=self.fresh(), forms=container.forms & ~(Form.REPAIRED | Form.FLOORED))

    def _if(self, node: ast.If) -> bool:
        test = self.evaluate(node.test)
        if (
            test.kind == Kind.NUMBER
            and test.ref == "bool"
            and test.number is not None
            and not test.has(Form.PARAMETER)
            and isinstance(node.test, (ast.Constant, ast.Attribute))
        ):
            return self.run(node.body) if test.number else self.run(node.orelse)
        before = self.state
        self.state = before.copy()
        guards.assume(self, node.test, truth=True)
        ended = self.run(node.body)
        taken = self.state
        self.state = before
        guards.assume(self, node.test, truth=False)
        other = self.run(node.orelse) if node.orelse else False
        if ended and other:
            return True
        if other:
            self.state = taken
        elif not ended:
            self.state.join(taken)
        return False

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While) -> bool:
        before = self.state.copy()
        for name in self.checker.assigned(node):
            if name in self.state.names:
                self.state.names[name] = widened(self.state.names[name])
        if isinstance(node, ast.While):
            self.evaluate(node.test)
            guards.assume(self, node.test, truth=True)
        else:
            sequence = self.evaluate(node.iter)
            self.bind(node.target, self.member(sequence))
        self.run(node.body)
        self.state.join(before)
        if node.orelse:
            self.run(node.orelse)
        return False

    def _with(self, node: ast.With | ast.AsyncWith) -> bool:
        was = self.no_grad
        for item in node.items:
            context = item.context_expr
            name = self._context(context)
            value = self.evaluate(context) if not name else Value(sym=self.fresh())
            if name in ("no_grad", "inference_mode") or (
                name == "set_grad_enabled"
                and isinstance(context, ast.Call)
                and context.args
                and isinstance(context.args[0], ast.Constant)
                and not context.args[0].value
            ):
                self.no_grad = True
            elif name == "enable_grad":
                self.no_grad = False
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        ended = self.run(node.body)
        self.no_grad = was
        return ended

    @staticmethod
    def _context(node: ast.expr) -> str:
        function = node.func if isinstance(node, ast.Call) else node
        name = function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""
        return name if name in ("no_grad", "inference_mode", "set_grad_enabled", "enable_grad", "autocast") else ""

    def _try(self, node: ast.Try) -> bool:
        before = self.state.copy()
        ended = self.run(node.body) or (bool(node.orelse) and self.run(node.orelse))
        finished = self.state
        paths = [] if ended else [finished]
        for handler in node.handlers:
            self.state = before.copy()
            if handler.name:
                self.state.names[handler.name] = Value(sym=self.fresh())
            if not self.run(handler.body):
                paths.append(self.state)
        self.state = paths[0] if paths else finished
        for path in paths[1:]:
            self.state.join(path)
        if node.finalbody and self.run(node.finalbody):
            return True
        return not paths

    def _assert(self, node: ast.Assert) -> bool:
        self.evaluate(node.test)
        guards.assume(self, node.test, truth=True)
        return False

    def _define(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
        closure = self.state.names
        self.state.names[node.name] = Value(Kind.FUNCTION, ref=(node, self.module, self.owner, None, closure), sym=self.fresh())
        if self.depth == 0:
            self.nested.append((node, closure))
        return False

    def _class(self, node: ast.ClassDef) -> bool:
        self.state.names[node.name] = Value(Kind.CLASS, ref=self.checker.tree.class_of(node, self.module), sym=self.fresh())
        return False

    def _delete(self, node: ast.Delete) -> bool:
        return False

    def _import(self, node: ast.Import | ast.ImportFrom) -> bool:
        for alias in node.names:
            if alias.name == "*":
                continue
            if isinstance(node, ast.Import):
                entry = Imported(alias.name if alias.asname else alias.name.split(".")[0])
                bound = alias.asname or alias.name.split(".")[0]
            else:
                entry, bound = Imported(node.module or "", alias.name, node.level), alias.asname or alias.name
            self.state.names[bound] = self.checker.meaning(self.module, self.checker.tree.member(self.module, entry), bound)
        return False

    def _match(self, node: ast.Match) -> bool:
        self.evaluate(node.subject)
        before = self.state
        paths: list[State] = []
        for case in node.cases:
            self.state = before.copy()
            for inner in ast.walk(case.pattern):
                name = getattr(inner, "name", None)
                if isinstance(name, str):
                    self.state.names[name] = Value(sym=self.fresh())
            if not self.run(case.body):
                paths.append(self.state)
        self.state = before
        for path in paths:
            self.state.join(path)
        return False


def marked(name: str, value: Value) -> Value:
    """A number whose name says that it is a maximum or a minimum."""
    if value.kind == Kind.NUMBER and ("max" in name or "min" in name):
        mark = Form.MAXIMUM if "max" in name else Form.MINIMUM
        if not value.has(mark):
            return value.but(forms=value.forms | mark)
    elif value.kind in (Kind.TENSOR, Kind.UNKNOWN) and not value.has(Form.MAXIMUM | Form.MINIMUM | Form.MASK) and name.lower().endswith(("_max", "_min")):
        return value.but(forms=value.forms | (Form.MAXIMUM if name.lower().endswith("_max") else Form.MINIMUM))
    return value


_PURE = frozenset(("nan_to_num", "clamp", "where", "abs", "sqrt", "log", "exp", "masked_fill", "relu", "square", "clip", "add", "mul", "div"))
_STATEMENTS: dict[type[ast.stmt], Any] = {
    ast.Return: Flow._return, ast.Raise: Flow._raise, ast.Continue: Flow._raise, ast.Break: Flow._raise, ast.Expr: Flow._expression,
    ast.Assign: Flow._assign, ast.AnnAssign: Flow._annotated, ast.AugAssign: Flow._augmented, ast.If: Flow._if, ast.For: Flow._loop,
    ast.AsyncFor: Flow._loop, ast.While: Flow._loop, ast.With: Flow._with, ast.AsyncWith: Flow._with, ast.Try: Flow._try, ast.TryStar: Flow._try,
    ast.Assert: Flow._assert, ast.FunctionDef: Flow._define, ast.AsyncFunctionDef: Flow._define, ast.ClassDef: Flow._class, ast.Delete: Flow._delete,
    ast.Import: Flow._import, ast.ImportFrom: Flow._import, ast.Match: Flow._match,
}  # fmt: skip
