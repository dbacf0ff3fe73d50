"""Classes of the tree: what ``self`` and other objects hold, worked out from their constructors when somebody asks."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanopsy.check.applications import arguments
from nanopsy.check.flow import Flow
from nanopsy.check.knowledge import Knowledge
from nanopsy.check.state import State
from nanopsy.check.tree import Class, Module, dotted_name
from nanopsy.facts import Kind, Origin, Value

MAX_CALLS = 5
"""Calls within calls that are followed."""


@dataclass(eq=False, slots=True)
class Instance:
    """An object of a class of the tree, and how it was made; its attributes are worked out when one is asked for."""

    cls: Class
    args: Sequence[Value] = ()
    kw: Mapping[str, Value] = field(default_factory=dict)
    ready: bool = False
    guessed: bool = False
    """Nobody is seen making it: an argument that defaults to None may be anything."""


class Objects(Knowledge):
    """Knowledge of objects."""

    @abstractmethod
    def call(self, flow: Flow, node: ast.Call | None, function: Value, args: Sequence[Value], kw: Mapping[str, Value]) -> Value:
        """Follow a call into the tree."""

    @abstractmethod
    def follow(
        self, flow: Flow, definition: Any, module: Module, owner: Class | None, args: Sequence[Value], kw: dict[str, Value], *, muted: bool,
        caller: Origin | None, closure: dict[str, Value] | None, guessed: bool = False,
    ) -> Value:  # fmt: skip
        """Walk the body of a called function."""

    def instance_of(self, cls: Class) -> Value:
        """``self`` where nobody says how the object was made: every argument at its default."""
        known = self._selves.get(id(cls.node))
        if known is None:
            known = self._selves[id(cls.node)] = Value(Kind.INSTANCE, ref=Instance(cls, guessed=True), attributes={}, sym=self.fresh(), grad=False)
        return known

    def instance_attribute(self, flow: Flow, owner: Value, name: str) -> Value:
        instance: Instance = owner.ref
        attributes = owner.attributes if owner.attributes is not None else {}
        owner.attributes = attributes
        if not instance.ready:
            instance.ready = True
            self._initialise(flow, owner, instance)
            if name in attributes:
                return attributes[name]
        method = instance.cls.find(name)
        if method is not None:
            home, definition = method
            if any(dotted_name(each) == "property" or dotted_name(each).endswith("cached_property") for each in definition.decorator_list):
                bound = Value(Kind.FUNCTION, ref=(definition, home.module, home, owner, None))
                return self.call(flow, None, bound, [], {})
            static = any(dotted_name(each) == "staticmethod" for each in definition.decorator_list)
            return Value(Kind.FUNCTION, ref=(definition, home.module, home, None if static else owner, None), sym=self.fresh())
        found = self._class_constant(flow, instance.cls, name)
        if found is not None:
            return found
        value = flow.named(name)
        value.sym = self.number(("attribute", owner.sym, name))
        attributes[name] = value
        return value

    def class_attribute(self, flow: Flow, owner: Value, name: str) -> Value:
        cls: Class = owner.ref
        method = cls.find(name)
        if method is not None:
            home, definition = method
            class_method = any(dotted_name(each) == "classmethod" for each in definition.decorator_list)
            return Value(Kind.FUNCTION, ref=(definition, home.module, home, owner if class_method else None, None), sym=self.fresh())
        found = self._class_constant(flow, cls, name)
        return found if found is not None else flow.named(name)

    def _class_constant(self, flow: Flow, cls: Class, name: str, depth: int = 0) -> Value | None:
        for statement in cls.node.body:
            target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target if isinstance(statement, ast.AnnAssign) else None
            if isinstance(target, ast.Name) and target.id == name and isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                inner = self.walker(cls.module, State({}), function=cls.node.name, depth=1)
                inner.muted = 1
                return inner.evaluate(statement.value)
        if depth < 8:
            for base in cls.bases:
                found = self._class_constant(flow, base, name, depth + 1)
                if found is not None:
                    return found
        return None

    def _initialise(self, flow: Flow, owner: Value, instance: Instance) -> None:
        method = instance.cls.find("__init__")
        if method is None or flow.depth > MAX_CALLS:
            self._fields(flow, owner, instance)
            return
        home, definition = method
        self.follow(
            flow, definition, home.module, home, [owner, *instance.args], dict(instance.kw), muted=True, caller=None, closure=None, guessed=instance.guessed
        )

    def _fields(self, flow: Flow, owner: Value, instance: Instance) -> None:
        """A dataclass: its fields in order."""
        names = [statement for statement in instance.cls.node.body if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)]
        for value, statement in zip(instance.args, names, strict=False):
            if isinstance(statement.target, ast.Name) and owner.attributes is not None:
                owner.attributes[statement.target.id] = value
        if owner.attributes is not None:
            owner.attributes.update(instance.kw)

    def call_super(self, flow: Flow, node: ast.Call, name: str) -> Value:
        args, kw = arguments(flow, node)
        receiver = flow.state.names.get("self")
        if flow.owner is None or receiver is None:
            return Value(sym=self.fresh())
        for base in flow.owner.bases:
            found = base.find(name)
            if found is not None:
                home, definition = found
                bound = Value(Kind.FUNCTION, ref=(definition, home.module, home, receiver, None))
                return self.call(flow, node, bound, args, kw)
        return Value(sym=self.fresh(), grad=not flow.no_grad)
