"""Calls: what is done with methods, with functions of torch, NumPy and Python, with layers and with what nobody knows."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING

from nanopsy.check import guards, roles
from nanopsy.check.builtins import BUILTINS
from nanopsy.check.expressions import EXPRESSIONS, attribute, evaluate
from nanopsy.check.operations import OPERATIONS
from nanopsy.check.operations._rule import carry, made
from nanopsy.check.operations.reductions import LAYERS
from nanopsy.check.state import join
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


def _call(flow: Flow, node: ast.Call) -> Value:
    function_node = node.func
    receiver: Value | None = None
    if isinstance(function_node, ast.Attribute):
        if isinstance(function_node.value, ast.Call) and isinstance(function_node.value.func, ast.Name) and function_node.value.func.id == "super":
            return flow.checker.call_super(flow, node, function_node.attr)
        receiver = evaluate(flow, function_node.value)
        function = Value()
        if receiver.kind in (Kind.MODULE, Kind.INSTANCE, Kind.CLASS, Kind.CHOICE) or (receiver.kind == Kind.LAYER and receiver.attributes):
            function = attribute(flow, receiver, function_node.attr)
            if function_node.attr in _MOVES and receiver.kind in (Kind.INSTANCE, Kind.CHOICE) and function.kind not in (Kind.FUNCTION, Kind.MODULE):
                arguments(flow, node)
                return receiver.but(forms=receiver.forms | Form.HALF) if function_node.attr == "half" else receiver
    else:
        function = evaluate(flow, function_node)
    args, kw = arguments(flow, node)
    if receiver is not None and function.kind not in (Kind.MODULE, Kind.FUNCTION, Kind.CLASS, Kind.INSTANCE, Kind.LAYER, Kind.CHOICE):
        return _method(flow, node, receiver, function_node.attr if isinstance(function_node, ast.Attribute) else "", args, kw)
    return call(flow, node, function, args, kw)


_MOVES = frozenset(("cuda", "to", "eval", "train", "half", "float", "cpu", "double", "requires_grad_", "share_memory", "bfloat16", "apply", "compile"))


def arguments(flow: Flow, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    args: list[Value] = []
    for each in node.args:
        if isinstance(each, ast.Starred):
            inner = evaluate(flow, each.value)
            if isinstance(inner.ref, tuple) and inner.kind == Kind.SEQUENCE:
                args += [part for part in inner.ref if isinstance(part, Value)]
            else:
                args.append(inner)
        else:
            args.append(evaluate(flow, each))
    kw = {}
    for word in node.keywords:
        value = evaluate(flow, word.value)
        if word.arg is not None:
            kw[word.arg] = value
    return args, kw


def _method(flow: Flow, node: ast.Call, receiver: Value, name: str, args: list[Value], kw: dict[str, Value]) -> Value:
    kind = receiver.kind
    if name == "backward":
        flow.use(receiver)
        return Value(Kind.NONE)
    if name == "register_buffer" and receiver.attributes is not None and len(args) > 1 and args[0].kind == Kind.TEXT:
        receiver.attributes[str(args[0].ref)] = args[1].but(grad=False)  # what is a buffer is not trained
        return Value(Kind.NONE)
    if kind in (Kind.SEQUENCE, Kind.MAPPING):
        return _container(flow, node, receiver, name, args)
    if kind == Kind.TEXT:
        return Value(Kind.TEXT) if name in ("format", "join", "strip", "lower", "upper", "replace") else Value(sym=flow.fresh())
    if kind == Kind.LAYER and name in ("to", "cuda", "eval", "train", "half", "float", "requires_grad_", "cpu", "double"):
        return receiver.but(forms=receiver.forms | Form.HALF) if name == "half" else receiver
    if kind == Kind.LAYER and name in ("forward", "__call__"):
        return call(flow, node, receiver, args, kw)
    rule = OPERATIONS.get(name)
    if rule is not None and kind not in (Kind.NONE, Kind.LAYER, Kind.FUNCTION):
        if kind == Kind.NUMBER and name not in ("item", "float", "int", "long", "to", "clamp", "abs"):
            return made(flow, [receiver])
        if kind == Kind.UNKNOWN and not flow.torchy and name in ("mean", "sum", "std", "var", "max", "min", "clip", "log", "exp", "sqrt"):
            result = made(flow, [receiver, *args])
            result.kind = Kind.UNKNOWN
            return result
        if name in ("values", "size", "dim", "any", "all", "sort", "split", "norm", "to", "type") and kind == Kind.UNKNOWN and not flow.torchy:
            return Value(sym=flow.fresh(), grad=receiver.grad, hazards=receiver.hazards)
        result = rule(flow, node, [receiver, *args], kw)
        if name.endswith("_") and not name.startswith("_") and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            if node.func.value.id in flow.state.names and result.kind in (Kind.TENSOR, Kind.UNKNOWN):
                flow.state.names[node.func.value.id] = result
        return result
    if name in _LOOKS_ON:
        return Value(Kind.NONE)
    return _unknown_call(flow, node, name, [receiver, *args], kw)


def _container(flow: Flow, node: ast.Call, receiver: Value, name: str, args: list[Value]) -> Value:
    if name in ("append", "extend", "insert", "add", "update", "setdefault", "appendleft"):
        value = args[-1] if args else Value()
        owner = node.func.value if isinstance(node.func, ast.Attribute) else None
        if name in ("extend", "update") and value.kind in (Kind.SEQUENCE, Kind.MAPPING):
            value = flow.stored(value) if value.kind == Kind.MAPPING else flow.member(value)
        if isinstance(owner, ast.Name) and owner.id in flow.state.names:
            known = (receiver.attributes or {}).get("*")
            parts = [part for part in receiver.ref or () if isinstance(part, Value)] if isinstance(receiver.ref, tuple) else []
            if receiver.kind == Kind.SEQUENCE and name == "append" and isinstance(receiver.ref, tuple) and len(parts) < 12 and known is None:
                flow.state.names[owner.id] = receiver.but(ref=(*receiver.ref, value), hazards=receiver.hazards | value.hazards)
            else:
                for part in parts:
                    known = part if known is None else join(known, part)
                merged = value if known is None else join(known, value)
                flow.state.names[owner.id] = receiver.but(
                    ref=None, attributes={**(receiver.attributes or {}), "*": merged}, hazards=receiver.hazards | value.hazards
                )
        else:
            flow.use(value)
        return Value(Kind.NONE)
    if name in ("get", "pop") and args and args[0].kind == Kind.TEXT:
        found = (receiver.attributes or {}).get(str(args[0].ref))
        return found if found is not None else flow.named(str(args[0].ref))
    if name == "items":
        return Value(Kind.SEQUENCE, sym=flow.fresh(), attributes={"*": Value(Kind.SEQUENCE, ref=(Value(Kind.TEXT), flow.stored(receiver)), sym=flow.fresh())})
    if name == "values":
        return Value(Kind.SEQUENCE, ref=tuple((receiver.attributes or {}).values()), sym=flow.fresh(), hazards=receiver.hazards)
    return Value(sym=flow.fresh(), hazards=receiver.hazards)


def call(flow: Flow, node: ast.Call, function: Value, args: list[Value], kw: dict[str, Value]) -> Value:
    """The result of calling what is known of ``function``."""
    if function.kind == Kind.MODULE:
        return _outside(flow, node, str(function.ref), args, kw)
    if function.kind in (Kind.FUNCTION, Kind.CLASS, Kind.INSTANCE):
        return flow.checker.call(flow, node, function, args, kw)
    if function.kind == Kind.LAYER:
        return apply_layer(flow, node, function, args, kw)
    if function.kind == Kind.CHOICE:
        results = [call(flow, node, each, args, kw) for each in function.ref]
        value = results[0]
        for result in results[1:]:
            value = join(value, result)
        return value
    name = node.func.id if isinstance(node.func, ast.Name) else flow.called(node)
    builtin = BUILTINS.get(name)
    if builtin is not None and isinstance(node.func, ast.Name) and function.kind == Kind.UNKNOWN and not function.role:
        return builtin(flow, args)
    if name in _LOOKS_ON:
        return Value(Kind.NONE)
    return _unknown_call(flow, node, name, args, kw)


def _outside(flow: Flow, node: ast.Call, dotted: str, args: list[Value], kw: dict[str, Value]) -> Value:
    root, _, rest = dotted.partition(".")
    name = rest.rpartition(".")[2] or root
    if root == "torch":
        if rest.startswith("nn.") and name[:1].isupper() and not rest.startswith("nn.functional"):
            if name in ("DataParallel", "DistributedDataParallel"):
                return args[0] if args else Value()
            if name == "Parameter":
                inner = args[0] if args else Value()
                return Value(Kind.TENSOR, grad=True, sym=flow.fresh(), lo=-INF, hi=INF, forms=0, role=inner.role)
            return Value(Kind.LAYER, ref=(name, tuple(args), kw), sym=flow.fresh())
        if rest.startswith(
            ("optim", "utils", "distributed", "cuda", "backends", "jit", "onnx", "multiprocessing", "profiler", "save", "load", "hub")
        ) and not rest.startswith("utils.checkpoint"):
            return flow.checker.outside_site(flow, node, rest, args, kw)
        if rest.startswith("utils.checkpoint") and args:
            return call(flow, node, args[0], args[1:], kw)
        rule = OPERATIONS.get(name)
        if rule is not None:
            if not args and "input" in kw:
                args = [kw["input"]]
            trained = kw.get("requires_grad")
            if trained is not None and trained.number != 0:
                return Value(Kind.TENSOR, grad=not flow.no_grad, sym=flow.fresh())  # a leaf: training moves it anywhere
            return rule(flow, node, args, kw)
        if name == "zeros_like":
            return Value(Kind.TENSOR, 0.0, 0.0, Form.ZERO)
        return made(flow, [each for each in args if each.kind in (Kind.TENSOR, Kind.UNKNOWN)])
    if root == "numpy":
        result = made(flow, [])
        result.kind = Kind.ARRAY
        if name in ("sqrt", "log", "abs", "exp", "pi", "prod") and all(each.kind == Kind.NUMBER for each in args):
            result.kind = Kind.NUMBER
            result.forms |= Form.LOGARITHM if name == "log" else 0
            if args and args[0].number is not None and name in ("log", "sqrt", "exp"):
                result.lo = result.hi = _scalar(name, args[0].number)
                result.forms |= Form.LOGARITHM if name == "log" else 0
            elif name == "sqrt" and args:
                result.lo = math.sqrt(max(args[0].lo, 0.0))
            elif name in ("abs", "exp"):
                result.lo = 0.0
        return result
    if root == "math":
        number = args[0].number if args else None
        value = Value(Kind.NUMBER, sym=flow.fresh(), forms=Form.LOGARITHM if name.startswith("log") else 0)
        if number is not None:
            value.lo = value.hi = _scalar(name, number)
        elif name == "sqrt" and args:
            value.lo = math.sqrt(max(args[0].lo, 0.0))
        elif name == "exp":
            value.lo = guards.ABOVE_ZERO
        if args and args[0].kind == Kind.TENSOR:
            flow.use(args[0], gradient=False)
        return value
    if root in ("kornia",) and name in OPERATIONS:
        return made(flow, args)
    if name in _LOOKS_ON or root in ("logging", "wandb", "warnings", "plt", "matplotlib", "cv2", "os", "time"):
        return Value(sym=flow.fresh())
    if name[:1].isupper() and name in LAYERS:
        return Value(Kind.LAYER, ref=(name, tuple(args), kw), sym=flow.fresh())
    return _unknown_call(flow, node, name, args, kw)


def _scalar(name: str, number: float) -> float:
    try:
        return float(getattr(math, {"abs": "fabs"}.get(name, name))(number))
    except (ValueError, OverflowError, AttributeError, TypeError):
        return math.nan


def _unknown_call(flow: Flow, node: ast.Call, name: str, args: list[Value], kw: dict[str, Value]) -> Value:
    values = flow.spread([*args, *kw.values()])
    grad = any(value.grad for value in values)
    for value in values:
        if value.hazards:
            flow.use(value)
    if _LOSS_NAME.search(name) and any(value.selected for value in values):
        chosen = next(value for value in values if value.selected)
        hazards = flow.site("loss", node, chosen, None, name=name, unseen=True)
        return Value(Kind.TENSOR, 0.0, INF, grad=grad and not flow.no_grad, sym=flow.fresh(), hazards=hazards)
    labels = {value.role for value in values if value.kind in (Kind.TENSOR, Kind.UNKNOWN)}
    named = roles.role(name)
    role = named or ("label" if labels == {"label"} and not _NETWORK_NAME.search(name) else "")
    learned = grad or not values or role != "label"  # a network learns from images: its output carries a gradient
    result = Value(Kind.UNKNOWN, grad=learned and not flow.no_grad and role not in roles.WITHOUT_GRADIENT, role=role, sym=flow.fresh())
    if roles.is_mask(name) and not any(value.kind == Kind.TEXT for value in values):
        result.forms |= Form.MASK
    return result


_NETWORK_NAME = re.compile(r"model|net|coder|head|forward|backbone")


_LOSS_NAME = re.compile(r"(?:loss|criterion)(?:_?f[u]?n(?:c(?:tion)?)?)?$")


def apply_layer(flow: Flow, node: ast.Call, layer: Value, args: list[Value], kw: dict[str, Value]) -> Value:
    """A module of torch.nn called on its input."""
    name, settings, words = layer.ref
    if name in ("Sequential", "ModuleList"):
        value = args[0] if args else Value()
        members = [each for each in settings if isinstance(each, Value)]
        if len(members) == 1 and members[0].kind == Kind.SEQUENCE:
            inner = members[0]
            members = list(inner.ref) if isinstance(inner.ref, tuple) else [inner.attributes["*"]] if inner.attributes and "*" in inner.attributes else []
        if not members:
            return Value(Kind.TENSOR, grad=not flow.no_grad, forms=0, sym=flow.fresh())
        for member in members[-6:]:
            value = (
                call(flow, node, member, [value], {})
                if member.kind in (Kind.LAYER, Kind.INSTANCE, Kind.FUNCTION, Kind.CHOICE)
                else Value(Kind.TENSOR, grad=True, sym=flow.fresh(), hazards=value.hazards)
            )
        return value
    if name in LAYERS:
        return _named_rule(flow, node, LAYERS[name], args, {**kw, **{word: value for word, value in words.items() if word in ("reduction",)}})
    if name in OPERATIONS and name[:1].isupper():
        return _named_rule(flow, node, name, args, kw)
    if name.startswith(("Conv", "Linear", "Bilinear", "LazyConv", "LazyLinear")):
        return made(flow, args[:1], -INF, INF, Form.NETWORK | Form.SIGNED).but(grad=not flow.no_grad)
    if name.startswith(("Multihead", "Transformer")) and any("padding_mask" in word and value.kind != Kind.NONE for word, value in kw.items()):
        attended = made(flow, args[:1], -INF, INF, Form.NETWORK).but(grad=not flow.no_grad)
        return carry(attended, flow.site("softmax", node, Value(Kind.TENSOR, forms=Form.MINUS_INFINITY), padding=True))
    if name.startswith(
        ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "SyncBatchNorm", "LocalResponse", "Embedding", "LSTM", "GRU", "RNN", "Multihead", "Transformer")
    ):
        return made(flow, args[:1], -INF, INF, Form.NETWORK).but(grad=not flow.no_grad)
    if name.startswith(
        (
            "Dropout",
            "Identity",
            "Upsample",
            "UpsamplingBilinear",
            "UpsamplingNearest",
            "MaxPool",
            "AdaptiveMax",
            "Flatten",
            "PixelShuffle",
            "Reflection",
            "Replication",
            "Unfold",
            "Fold",
        )
    ):
        return args[0].but(sym=flow.fresh()) if args else Value()
    if name.startswith(("AvgPool", "AdaptiveAvg")) and args:
        return _named_rule(flow, node, "avg_pool2d", args, kw)
    if name == "ZeroPad2d" and args:
        return args[0].but(lo=min(args[0].lo, 0.0), sym=flow.fresh())
    return made(flow, args[:1])


def _named_rule(flow: Flow, node: ast.Call, name: str, args: list[Value], kw: dict[str, Value]) -> Value:
    return OPERATIONS[name](flow, ast.copy_location(_Renamed(name, node), node), args, kw)


class _Renamed(ast.Call):
    """A call that goes by another name: a loss module used as its function."""

    def __init__(self, name: str, node: ast.Call) -> None:
        super().__init__(func=ast.Name(name, ast.Load()), args=node.args, keywords=node.keywords)


_LOOKS_ON = frozenset((
    "print", "add_scalar", "add_image", "add_images", "add_histogram", "log", "info", "debug", "warning", "error", "write", "set_description", "set_postfix",
    "isinstance", "hasattr", "type", "id", "imshow", "plot", "imwrite", "imsave", "log_dict", "log_image", "log_images", "log_scalar", "show", "savefig",
)) - {"log"}  # fmt: skip


EXPRESSIONS[ast.Call] = _call
