"""What a walk over a function carries: its state, the numbers of values, and the hazards it puts to the causes."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from nanopsy.check import guards, operations, roles
from nanopsy.check.state import State, join
from nanopsy.check.tree import Class, Module
from nanopsy.facts import INF, Form, Hazard, Kind, Origin, Site, Suspicion, Value
from nanopsy.findings import Confidence

if TYPE_CHECKING:
    from nanopsy.check.calls import Calls

MODULES = ("nn.Module", "LightningModule", "Module", "_Loss", "ModelMixin", "PreTrainedModel")
"""Last parts of the names of base classes whose methods are part of a network or a loss."""
NOTHING: frozenset[Hazard] = frozenset()
_UNSAID = Suspicion("", Confidence.DEPENDS, open=True)
Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Walk:
    """The state of a walk over one function body, standing alone or called from elsewhere in the tree."""

    def __init__(
        self, checker: Calls, module: Module, state: State, *, function: str = "", owner: Class | None = None, depth: int = 0,
        no_grad: bool = False, quiet: bool = False, caller: Origin | None = None, torchy: bool = True, stack: tuple[ast.AST, ...] = (),
    ) -> None:  # fmt: skip
        self.checker, self.module, self.state = checker, module, state
        self.function, self.owner, self.depth = function, owner, depth
        self.no_grad, self.quiet, self.caller, self.torchy, self.stack = no_grad, quiet, caller, torchy, stack
        self.result: Value | None = None
        self.comparing: ast.AST | None = None
        """The comparison that is being evaluated."""
        self.muted = 0
        self.nested: list[tuple[Function, dict[str, Value]]] = []

    def number(self, key: tuple[object, ...]) -> int:
        """The number of a value computed in this way: equal keys, equal values."""
        return self.checker.number(key)

    def fresh(self) -> int:
        return self.checker.fresh()

    def place(self, node: ast.AST) -> tuple[str, int, int]:
        return (self.module.file, getattr(node, "lineno", 0), getattr(node, "col_offset", 0))

    def origin(self, node: ast.AST, what: str) -> Origin:
        return Origin(self.module.file, node, what)

    def where_am_i(self) -> str:
        return f"{self.owner.node.name}.{self.function}" if self.owner is not None else self.function

    def called(self, node: ast.AST) -> str:
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute):
                return function.attr
            if isinstance(function, ast.Name):
                bound = self.module.names.get(function.id)
                original = getattr(bound, "name", "")
                return original if original in operations.OPERATIONS else function.id
        return ""

    def refined(self, value: Value) -> Value:
        """``value`` with what branches have established of it."""
        fact = self.state.facts.get(value.sym) if value.sym else None
        count = self.state.counts.get(value.count_of, 0.0) if value.count_of else 0.0
        if fact is None and count <= 0:
            return value
        low, high = fact or (-INF, INF)
        low = max(value.lo, low, count if value.has(Form.COUNT) and not value.has(Form.MEAN) else guards.ABOVE_ZERO if count else -INF)
        forms = value.forms
        if low > 0:
            forms &= ~(Form.ZERO | Form.UNDERFLOW | Form.SIGNED)
        return value.but(lo=low, hi=max(min(value.hi, high), low), forms=forms)

    def tensorial(self, value: Value) -> bool:
        return value.kind == Kind.TENSOR or (value.kind == Kind.UNKNOWN and self.torchy)

    def site(self, op: str, node: ast.AST, operand: Value, other: Value | None = None, **settings: Any) -> frozenset[Hazard]:
        """Put one operation to the causes that know it; what they suspect travels on with the value."""
        if self.muted or not self.module.torch:
            return NOTHING
        causes = self.checker.causes.get(op)
        if not causes:
            return NOTHING
        subject = operand if operand.kind != Kind.NUMBER or other is None else other
        if op not in ("logspace", "optimizer", "nan-compare") and not self.tensorial(subject) and not (other is not None and self.tensorial(other)):
            return NOTHING
        gradient = (operand.grad or (other is not None and other.grad)) and not self.no_grad
        site = Site(
            op, node, self.module.source, operand, other, settings, gradient, self.quiet or (self.no_grad and op != "exp"),
            self.state.counts.get(operand.selected, 0.0) if operand.selected else INF, self.function, self.owner.node.name if self.owner else "",
            self.owner is not None and self.owner.derives(MODULES), self.stack[-1] if self.stack else None,
        )  # fmt: skip
        found = []
        harmless = False
        for cause in causes:
            suspicion = cause.match(site)
            if suspicion is None:
                continue
            if suspicion.needs_gradient and not gradient:
                harmless = True
                continue
            hazard = Hazard(site, cause.code, suspicion)
            self.checker.record(self, hazard)
            found.append(hazard)
        if not found and gradient and op in ("divide", "sqrt", "power", "acos") and (other if op == "divide" and other is not None else operand).lo <= 0:
            return frozenset((Hazard(site, "", _UNSAID),))  # nothing is said of it, but a torch.where around it would tell
        if not found and self.depth and self.caller is not None:
            self.checker.clear(self, site, harmless=harmless)
        return frozenset(found)

    def use(self, value: Value, *, gradient: bool = True) -> None:
        """The value leaves the function (or goes somewhere unknown): what is wrong with it matters."""
        for hazard in value.hazards:
            if gradient or not hazard.suspicion.needs_gradient:
                hazard.live = True

    def spread(self, values: Sequence[Value]) -> list[Value]:
        """The members of sequences, as far as they are known."""
        members: list[Value] = []
        for value in values:
            if value.kind in (Kind.SEQUENCE, Kind.MAPPING):
                if isinstance(value.ref, tuple):
                    members += self.spread([each for each in value.ref if isinstance(each, Value)])
                if value.attributes:
                    members += self.spread(list(value.attributes.values()))
            else:
                members.append(value)
        return members

    def member(self, sequence: Value) -> Value:
        """One element of something iterated over."""
        if sequence.kind == Kind.SEQUENCE:
            if sequence.attributes and "*" in sequence.attributes:
                return sequence.attributes["*"]
            parts = [each for each in sequence.ref or () if isinstance(each, Value)] if isinstance(sequence.ref, tuple) else []
            if parts:
                value = parts[0]
                for part in parts[1:]:
                    value = join(value, part)
                return value
            return Value(sym=self.fresh())
        if sequence.kind == Kind.MAPPING:
            return Value(Kind.TEXT)
        if sequence.kind == Kind.NUMBER:
            return Value(Kind.NUMBER, 0.0, INF, sym=self.fresh())
        if sequence.kind == Kind.TENSOR:
            return sequence.but(sym=self.fresh())
        return Value(sym=self.fresh(), grad=sequence.grad)

    @staticmethod
    def stored(mapping: Value) -> Value:
        """Any of the values of a dictionary."""
        members = list((mapping.attributes or {}).values())
        if not members:
            return Value()
        value = members[0]
        for each in members[1:]:
            value = join(value, each)
        return value

    def named(self, name: str, *, grad: bool = True, like: Value | None = None) -> Value:
        """What a name alone says of a value that nothing else is known of."""
        if roles.is_mask(name):
            return Value(Kind.TENSOR if self.torchy else Kind.UNKNOWN, 0.0, 1.0, Form.MASK, sym=(like.sym if like else 0) or self.fresh())
        role = roles.role(name)
        if not role and roles.is_setting(name):
            lower = name.lower()
            forms = Form.MAXIMUM if "max" in lower or "far" in lower else Form.MINIMUM if "min" in lower or "near" in lower else 0
            if "temp" in lower or "tau" in lower:
                forms |= Form.TEMPERATURE
            if "eps" in lower:
                return Value(Kind.NUMBER, 1e-12, 1e-2, sym=(like.sym if like else 0) or self.fresh())
            return Value(Kind.NUMBER, guards.ABOVE_ZERO, INF, forms, sym=(like.sym if like else 0) or self.fresh())
        hazards = like.hazards if like else NOTHING
        return Value(
            Kind.UNKNOWN, role=role, grad=grad and role not in roles.WITHOUT_GRADIENT and not self.no_grad, sym=(like.sym if like else 0) or self.fresh(),
            hazards=hazards, selected=like.selected if like else 0, ref=like.ref if like else None, attributes=like.attributes if like else None,
        )  # fmt: skip
