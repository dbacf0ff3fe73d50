"""Calls into the tree: followed with the caller's values, or summed up where that would take too long."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from nanopsy.check import guards, roles
from nanopsy.check.expressions import BudgetError
from nanopsy.check.flow import Flow
from nanopsy.check.objects import MAX_CALLS, Instance, Objects
from nanopsy.check.state import State
from nanopsy.check.tree import Class, Module, dotted_name
from nanopsy.check.walk import MODULES
from nanopsy.facts import INF, Form, Kind, Origin, Value

SHORT = 14
"""Lines of a function up to which it is always followed."""
LONG = 90
"""Lines of a function beyond which it is summed up instead of followed."""
_HAZARDOUS = re.compile(
    r"\b(?:r?sqrt_?|log(?:2|10|1p|_|it|space|sumexp)?|exp(?:m1|2|_)?|var|std|(?:var|std)_mean|(?:nan)?mean|(?:nan)?median|quantile|norm|normalize|a(?:rc)?(?:cos|sin)|"
    r"pow_?|(?:true_)?div(?:ide)?_?|reciprocal|(?:log_?)?softmax|svd|eigh|symeig|where|is(?:nan|inf|finite)|nan_to_num_?|cosh|backward|"
    r"cross_entropy)\s*\(|[\w)\]]\s*/=?\s*[\w(\-]|\*\*|\bnan\b|crit|max_?[dD]epth|depth_max|igmoid|[lL]oss|oftmax|Adam|_norm\(|"
    r"padding_mask|\b(?:[lL][12]|mse|MSE|b?ce|BCE|nll|huber)\w*\("
)


class Calls(Objects):
    """Objects that can be called, and functions."""

    def walker(self, module: Module, state: State, **facts: Any) -> Flow:
        return Flow(self, module, state, **facts)

    def call(self, flow: Flow, node: ast.Call | None, function: Value, args: Sequence[Value], kw: Mapping[str, Value]) -> Value:
        """Follow a call into the tree."""
        if function.kind == Kind.CLASS:
            cls: Class = function.ref
            if cls.find("__init__") is None and not cls.derives(MODULES) and cls.find("forward") is None and not cls.node.decorator_list and not cls.methods:
                return Value(sym=self.fresh())
            for value in flow.spread([*args, *kw.values()]):
                flow.use(value)
            return Value(Kind.INSTANCE, ref=Instance(cls, tuple(args), dict(kw)), attributes={}, sym=self.fresh())
        if function.kind == Kind.INSTANCE:
            method = function.ref.cls.find("forward") or function.ref.cls.find("__call__")
            if method is None:
                return self._given_up(flow, args, kw)
            home, definition = method
            return self._into(flow, node, definition, home.module, home, [function, *args], kw, None)
        definition, module, owner, receiver, closure = function.ref
        full = [receiver, *args] if receiver is not None else list(args)
        return self._into(flow, node, definition, module, owner, full, kw, closure)

    def _given_up(self, flow: Flow, args: Sequence[Value], kw: Mapping[str, Value]) -> Value:
        values = flow.spread([*args, *kw.values()])
        for value in values:
            flow.use(value)
        return Value(sym=self.fresh(), grad=any(value.grad for value in values) and not flow.no_grad)

    def _summarised(self, flow: Flow, definition: Any, module: Module, owner: Class | None, args: Sequence[Value], kw: Mapping[str, Value]) -> Value:
        """What a function returns whatever it is given: worked out once, for calls too long or too deep to follow."""
        value = self._given_up(flow, args, kw)
        known = self._summaries.get(id(definition))
        if known is None and self._summarising < 6 and not isinstance(definition, ast.Lambda):
            self._summaries[id(definition)] = Value()
            kept = (self.left, self.steps, self.following, self.nesting)
            self.left, self.nesting = 0, 0
            self._summarising += 1
            inner = Flow(
                self, module, State({}), function=definition.name, owner=owner, depth=1, no_grad=without_gradient(definition), torchy=True, stack=(definition,)
            )
            inner.muted = 1
            try:
                self.parameters(inner, definition, owner)
                inner.run(definition.body)
            except (BudgetError, RecursionError):
                inner.result = None
            self._summarising -= 1
            self.left, self.steps, self.following, self.nesting = kept
            known = self._summaries[id(definition)] = inner.result or Value()
        if known is None or (known.kind == Kind.UNKNOWN and not known.known):
            return value
        return known.but(sym=self.fresh(), hazards=frozenset(), selected=0, grad=known.grad and not flow.no_grad)

    def _into(
        self, flow: Flow, node: ast.Call | None, definition: Any, module: Module, owner: Class | None, args: Sequence[Value], kw: Mapping[str, Value],
        closure: dict[str, Value] | None,
    ) -> Value:  # fmt: skip
        if any(each is definition for each in flow.stack):
            return self._given_up(flow, args, kw)
        length = (definition.end_lineno or 0) - definition.lineno
        if flow.depth >= MAX_CALLS or self.left <= 0 or length > LONG or (length > SHORT and not self.interesting(module, definition)):
            return self._summarised(flow, definition, module, owner, args, kw)
        signature = (
            id(definition), flow.no_grad, bool(flow.muted), flow.quiet, *(_signature(value) for value in args),
            *((name, _signature(value)) for name, value in kw.items()),
            *(flow.state.counts.get(value.selected, 0) for value in args),
        )  # fmt: skip
        known = self._memo.get(signature)
        if known is not None:
            return known[0]
        caller = flow.caller if flow.depth else None
        if node is not None and caller is None:
            caller = Origin(flow.module.file, node, f"called from {flow.function or 'the module'}")
        value = self.follow(flow, definition, module, owner, args, dict(kw), muted=bool(flow.muted), caller=caller or flow.caller, closure=closure)
        self._memo[signature] = (value, (args, kw))  # the arguments stay alive: the signature holds their identities
        return value

    def follow(
        self, flow: Flow, definition: Any, module: Module, owner: Class | None, args: Sequence[Value], kw: dict[str, Value], *, muted: bool,
        caller: Origin | None, closure: dict[str, Value] | None, guessed: bool = False,
    ) -> Value:  # fmt: skip
        names = dict(closure) if closure else {}
        state = State(names, flow.state.facts.copy(), flow.state.counts.copy())
        name = getattr(definition, "name", "<lambda>")
        inner = self.walker(
            module, state, function=name, owner=owner, depth=flow.depth + 1, no_grad=flow.no_grad or without_gradient(definition),
            quiet=flow.quiet or self.looks_on(module, name, owner),
            caller=caller, torchy=flow.torchy, stack=(*flow.stack, definition),
        )  # fmt: skip
        inner.muted = 1 if muted else 0
        self._bind(inner, definition, args, kw, guessed=guessed)
        self.following += 1
        nesting = self.nesting
        try:
            if isinstance(definition, ast.Lambda):
                return inner.evaluate(definition.body)
            inner.run(definition.body)
        finally:
            self.following -= 1
            self.nesting = nesting
        return inner.result if inner.result is not None else Value(Kind.NONE)

    def _bind(self, flow: Flow, definition: Any, args: Sequence[Value], kw: dict[str, Value], *, guessed: bool) -> None:
        """Give the parameters of a called function their values."""
        parameters = definition.args
        positional = [*parameters.posonlyargs, *parameters.args]
        defaults = dict(zip([each.arg for each in positional[len(positional) - len(parameters.defaults) :]], parameters.defaults, strict=True))
        defaults |= {each.arg: default for each, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if default is not None}
        names = flow.state.names
        rest = dict(kw)
        for position, each in enumerate(positional):
            if position < len(args):
                value = args[position]
            elif each.arg in rest:
                value = rest.pop(each.arg)
            elif each.arg in defaults:
                value = self._default(flow, each.arg, defaults[each.arg], asked=guessed)
            else:
                value = self.parameter(flow, definition, each)
            names[each.arg] = self._aware(flow, each.arg, value)
        for each in parameters.kwonlyargs:
            if each.arg in rest:
                names[each.arg] = rest.pop(each.arg)
            else:
                names[each.arg] = (
                    self._default(flow, each.arg, defaults[each.arg], asked=False) if each.arg in defaults else self.parameter(flow, definition, each)
                )
        if parameters.vararg is not None:
            extra = tuple(args[len(positional) :])
            names[parameters.vararg.arg] = Value(Kind.SEQUENCE, ref=extra or None, sym=self.fresh())
        if parameters.kwarg is not None:
            names[parameters.kwarg.arg] = Value(Kind.MAPPING, attributes=dict(rest), sym=self.fresh())

    def _aware(self, flow: Flow, name: str, value: Value) -> Value:
        """A value that nothing is known of takes what its parameter's name says."""
        if value.origin is not None and value.origin.what.startswith("a uniform sample") and value.has(Form.UNDERFLOW):
            return value.but(forms=value.forms & ~Form.UNDERFLOW, lo=max(value.lo, guards.ABOVE_ZERO))  # made up data, not a sample to take logs of
        if value.kind == Kind.TENSOR and not value.has(Form.MASK) and value.lo < 0 and roles.is_mask(name):
            return value.but(forms=Form.MASK, lo=0.0, hi=1.0)
        if value.kind == Kind.UNKNOWN and not value.role and not value.known and not value.forms and name not in ("self", "cls"):
            named = flow.named(name, grad=value.grad, like=value)
            named.sym = value.sym or named.sym
            return named
        return value

    def parameter(self, flow: Flow, definition: Any, each: ast.arg) -> Value:
        """An argument of which only its name is known."""
        value = flow.named(each.arg)
        value.sym = self.number(("argument", id(definition), each.arg))
        if value.kind == Kind.UNKNOWN or value.has(Form.MASK):
            value.forms |= Form.PARAMETER
        annotation = ast.unparse(each.annotation) if isinstance(each.annotation, (ast.Name, ast.Attribute)) else ""
        if annotation in ("float", "int") or annotation == "bool" or annotation == "str":
            kind = Kind.TEXT if annotation == "str" else Kind.NUMBER
            value = Value(
                kind,
                guards.ABOVE_ZERO if value.kind == Kind.NUMBER else -INF,
                INF,
                value.forms & (Form.MAXIMUM | Form.MINIMUM | Form.TEMPERATURE),
                sym=value.sym,
            )
        elif annotation.endswith("Tensor") and value.kind == Kind.UNKNOWN:
            value.kind = Kind.TENSOR
        elif annotation.endswith("ndarray"):
            value.kind = Kind.ARRAY
        return value

    def parameters(self, flow: Flow, node: ast.FunctionDef | ast.AsyncFunctionDef, owner: Class | None) -> None:
        parameters = node.args
        positional = [*parameters.posonlyargs, *parameters.args]
        names = flow.state.names
        static = any(dotted_name(each) == "staticmethod" for each in node.decorator_list)
        defaults = dict(zip([each.arg for each in positional[len(positional) - len(parameters.defaults) :]], parameters.defaults, strict=True))
        defaults |= {each.arg: default for each, default in zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True) if default is not None}
        for position, each in enumerate([*positional, *parameters.kwonlyargs]):
            if position == 0 and owner is not None and not static:
                names[each.arg] = Value(Kind.CLASS, ref=owner) if each.arg == "cls" else self.instance_of(owner)
                continue
            names[each.arg] = self._default(flow, each.arg, defaults[each.arg], asked=True) if each.arg in defaults else self.parameter(flow, node, each)
            if each.arg in defaults and names[each.arg].sym == 0:
                names[each.arg].sym = self.fresh()
        if parameters.vararg is not None:
            names[parameters.vararg.arg] = Value(Kind.SEQUENCE, sym=self.fresh())
        if parameters.kwarg is not None:
            names[parameters.kwarg.arg] = Value(Kind.MAPPING, attributes={}, sym=self.fresh())

    def _default(self, flow: Flow, name: str, node: ast.expr, *, asked: bool) -> Value:
        value = flow.quietly(node)
        if value.ref == "bool":
            return value.but(forms=value.forms | Form.PARAMETER)
        if value.kind == Kind.NONE:
            named = flow.named(name)
            return named.but(forms=named.forms | Form.PARAMETER) if asked else value
        return value

    def outside_site(self, flow: Flow, node: ast.Call, name: str, args: Sequence[Value], kw: Mapping[str, Value]) -> Value:
        """Calls of torch that are no tensor operations: optimizers."""
        if name.startswith("optim.") and name.rpartition(".")[2][:1].isupper():
            first = node.args[0] if node.args else None
            owner = flow.quietly(first.func.value) if isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute) else Value()
            for hazard in flow.site("optimizer", node, owner.but(kind=Kind.TENSOR), name=name.rpartition(".")[2], eps=kw.get("eps")):
                hazard.live = True
        return Value(sym=self.fresh())

    def looks_on(self, module: Module, function: str, owner: Class | None) -> bool:
        """Whether names say that a function evaluates, logs or draws."""
        named = roles.is_quiet(function) or (owner is not None and roles.is_quiet_class(snake(owner.node.name)))
        return named or roles.is_quiet_file(module.file[len(self.tree.root) :])

    def interesting(self, module: Module, node: Any) -> bool:
        """Whether a function's text holds any word that a cause could be about."""
        known = self._words.get(id(node))
        if known is None:
            known = self._words[id(node)] = self._has_words(module, node)
        return known

    @staticmethod
    def _has_words(module: Module, node: Any) -> bool:
        starts = module.source.starts
        end = node.end_lineno or node.lineno
        return _HAZARDOUS.search(module.source.text, starts[node.lineno - 1], starts[end] if end < len(starts) else len(module.source.text)) is not None


def _signature(value: Value) -> tuple[object, ...]:
    reference = value.ref
    inner: object = (
        tuple(_signature(each) if isinstance(each, Value) else id(each) for each in reference)
        if isinstance(reference, tuple) and value.kind == Kind.SEQUENCE
        else id(reference)
        if reference is not None
        else None
    )
    return (value.kind, value.lo, value.hi, value.forms, value.grad, value.role, value.sym, value.selected, inner)


def without_gradient(definition: Any) -> bool:
    for each in getattr(definition, "decorator_list", ()):
        function = each.func if isinstance(each, ast.Call) else each
        if dotted_name(function).rpartition(".")[2] in ("no_grad", "inference_mode"):
            return True
    return False


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
