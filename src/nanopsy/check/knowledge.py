"""What an analysis keeps while it goes from function to function: numbers of values, meanings of names, what the causes said."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanopsy.causes import Cause
from nanopsy.check import roles
from nanopsy.check.expressions import BudgetError
from nanopsy.check.flow import Flow
from nanopsy.check.state import State
from nanopsy.check.tree import Module, Tree
from nanopsy.check.walk import Walk
from nanopsy.facts import Form, Hazard, Kind, Origin, Site, Value

OWN = 20_000
"""Statements (with what is called) after which a function is given up."""
FOLLOWED = 500
"""Statements of called functions that one function may cost."""


@dataclass(eq=False, slots=True)
class Verdict:
    """What one cause said of one place, in one context."""

    hazard: Hazard
    caller: Origin | None


class Knowledge:
    """The memory of one analysis of one tree."""

    @abstractmethod
    def walker(self, module: Module, state: State, **facts: Any) -> Flow:
        """A walk that keeps what it learns here."""

    def __init__(self, tree: Tree, causes: Mapping[str, Cause]) -> None:
        self.tree = tree
        self.causes: dict[str, list[Cause]] = {}
        for cause in causes.values():
            for op in cause.sites:
                self.causes.setdefault(op, []).append(cause)
        self.verdicts: list[Verdict] = []
        self.cleared: list[tuple[str, int, int, str]] = []
        self.heads: list[tuple[str, int, str, str]] = []
        """Functions that return a scaled sigmoid or a bounded depth: file, line, name, what."""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._last = 0
        self.constants: dict[tuple[type, object], Value] = {}
        """Values of literals, one for each."""
        self._assigned: dict[int, tuple[ast.AST, frozenset[str]]] = {}
        self._values: dict[tuple[str, str], Value] = {}
        self._selves: dict[int, Value] = {}
        self._memo: dict[object, tuple[Value, object]] = {}
        self.left = FOLLOWED
        self.steps = 0
        self.nesting = 0
        """How many expressions are being evaluated, one within the other."""
        self.following = 0
        self._summaries: dict[int, Value] = {}
        self._summarising = 0
        self._words: dict[int, bool] = {}

    def number(self, key: tuple[object, ...]) -> int:
        found = self._numbers.get(key)
        if found is None:
            self._last += 1
            found = self._numbers[key] = self._last
        return found

    def fresh(self) -> int:
        self._last += 1
        return self._last

    def step(self) -> None:
        self.steps += 1
        if self.following:
            self.left -= 1
        if self.steps > OWN:
            raise BudgetError

    def assigned(self, node: ast.AST) -> frozenset[str]:
        """Names that a loop changes."""
        known = self._assigned.get(id(node))
        if known is None:
            names = set()
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                    names.add(inner.id)
            known = self._assigned[id(node)] = (node, frozenset(names))
        return known[1]

    def record(self, flow: Walk, hazard: Hazard) -> None:
        self.verdicts.append(Verdict(hazard, flow.caller if flow.depth else None))

    def clear(self, flow: Walk, site: Site, *, harmless: bool) -> None:
        """In this call nothing was suspected at a site, and what enters it is known (or no gradient passes)."""
        if harmless:
            self.cleared.append((flow.module.file, getattr(site.node, "lineno", 0), getattr(site.node, "col_offset", 0), site.op))
            return
        subject = site.other if site.op == "divide" and site.other is not None else site.operand
        if site.op in ("mean", "loss", "variance") and not (subject.selected and site.count >= 1):
            return
        if site.op in ("mean", "loss", "variance") or subject.lo > 0 or subject.has(Form.NETWORK | Form.FLOORED | Form.LOGARITHM):
            self.cleared.append((flow.module.file, getattr(site.node, "lineno", 0), getattr(site.node, "col_offset", 0), site.op))

    def module_value(self, module: Module, name: str) -> Value:
        """What a module-level name, or a builtin, is."""
        key = (module.file, name)
        known = self._values.get(key)
        if known is not None:
            return known
        self._values[key] = Value()
        found = self.tree.lookup(module, name)
        value = self.meaning(module, found, name)
        role = roles.role(name) if value.kind in (Kind.TENSOR, Kind.UNKNOWN) and not value.role and found is not None else ""
        if role:
            value = value.but(role=role, grad=value.grad and role not in roles.WITHOUT_GRADIENT)
        self._values[key] = value
        return value

    def meaning(self, module: Module, found: object, name: str) -> Value:
        if isinstance(found, str):
            root = found.split(".")[0]
            if root in ("torch", "numpy", "math"):
                return Value(Kind.MODULE, ref=found)
            inside = self.tree.inside(module, found)
            if inside is not None:
                return self.meaning(module, inside, name)
            return Value(Kind.MODULE, ref=found)
        if isinstance(found, tuple):
            home, definition = found
            if isinstance(definition, ast.ClassDef):
                return Value(Kind.CLASS, ref=self.tree.class_of(definition, home), sym=self.fresh())
            if isinstance(definition, (ast.FunctionDef, ast.AsyncFunctionDef)):
                return Value(Kind.FUNCTION, ref=(definition, home, None, None, None), sym=self.fresh())
            if isinstance(definition, (ast.Constant, ast.UnaryOp, ast.BinOp, ast.Attribute, ast.Call, ast.Subscript)):
                flow = self.walker(home, State({}), function="<module>", depth=1, torchy=True)
                flow.muted = 1
                nesting = self.nesting
                try:
                    return flow.evaluate(definition)
                except BudgetError:
                    return Value()
                finally:
                    self.nesting = nesting
            return Value(sym=self.fresh())
        return Value()

    def member_of(self, module: Module, dotted: str, name: str) -> Value:
        """``package.module.name``, when it lies in the tree; otherwise a dotted name outside it."""
        inside = self.tree.inside(module, dotted)
        if inside is not None:
            return self.meaning(module, inside, name)
        root = dotted.split(".", maxsplit=1)[0]
        if root in ("args", "opt", "cfg", "config", "self"):
            return Value()
        return Value(Kind.MODULE, ref=dotted)
