"""Shape, type and order: the value stays what it was, or becomes an integer, a mask, a number."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import KEPT, OPERATIONS, Arguments, Keywords, Rule, argument, carry, first_of, made, operation
from nanopsy.check.state import join
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation(
    "view", "reshape", "permute", "squeeze", "unsqueeze", "contiguous", "clone", "expand", "expand_as", "repeat", "flatten", "transpose", "t", "mT",
    "cuda", "cpu", "view_as", "reshape_as", "swapaxes", "movedim", "ravel",
    "tile", "repeat_interleave", "requires_grad_", "unflatten", "pin_memory", "squeeze_", "unsqueeze_", "rearrange",
    "broadcast_to", "asarray", "register_hook", "identity", "checkpoint", "numpy", "from_numpy",
    "to_dense", "coalesce", "values", "detach_", "retain_grad",
)  # fmt: skip
def same(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    if value.kind in (Kind.NUMBER, Kind.NONE):
        return value.but(kind=Kind.TENSOR)
    if value.kind in (Kind.SEQUENCE, Kind.MAPPING, Kind.TEXT) or value.kind == Kind.INSTANCE:
        return value if value.kind == Kind.INSTANCE else made(flow, flow.spread([value]))
    return value


@operation(
    "index_select", "gather", "flip", "roll", "narrow", "select", "unfold", "rot90", "diagonal", "take_along_dim", "as_strided", "max_pool2d", "max_pool1d",
    "adaptive_max_pool2d", "pixel_shuffle", "pixel_unshuffle", "dropout", "upsample", "grid_sample", "interpolate", "take", "scatter", "scatter_", "index_put",
)  # fmt: skip
def rearranged(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = same(flow, node, args, kw)
    positions = args[1:2] if flow.called(node) == "grid_sample" else ()
    return carry(value.but(sym=flow.fresh(), grad=value.grad or any(each.grad for each in positions)), frozenset().union(*(each.hazards for each in positions)))


@operation("avg_pool2d", "adaptive_avg_pool2d", "avg_pool1d", "avg_pool3d", "adaptive_avg_pool1d")
def pooled(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    forms = value.forms & (Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.SIGMOID | Form.FLOORED | Form.ABSOLUTE) | Form.MEAN
    if value.has(Form.SQUARE):
        forms |= Form.MEAN_OF_SQUARES
    return made(flow, [value], value.lo, value.hi, forms, key=("pool",), base=value.base if value.has(Form.SQUARE) else value.sym, origin=value.origin)


@operation("conv1d", "conv2d", "conv3d")
def filtered(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    """A weighted mean of a window where the weights are given: local moments are made so. Trained weights make it any number."""
    value, weight = first_of(args), argument(args, kw, "weight", 1) or Value()
    squares = value.has(Form.SQUARE)
    averaging = squares or (value.lo >= 0 and weight.lo >= 0)
    forms = value.forms & (Form.ZERO | Form.UNDERFLOW) if averaging else Form.SIGNED | Form.NETWORK
    if weight.grad and weight.kind == Kind.TENSOR:
        return made(flow, args[:2], -INF, INF, Form.SIGNED | Form.NETWORK)
    forms |= Form.MEAN | (Form.MEAN_OF_SQUARES if squares else 0)
    key = ("filter", flow.called(node))
    return made(flow, [value, weight], 0.0 if averaging else -INF, INF, forms, key=key, base=value.base if squares else value.sym, origin=value.origin)


@operation("to", "type", "type_as", "astype")
def convert(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    target = kw.get("dtype") or (args[1] if len(args) > 1 else None)
    name = str(target.ref) if target is not None and target.kind in (Kind.MODULE, Kind.TEXT) and target.ref else ""
    return cast(flow, value, name.rpartition(".")[2].lower())


def cast(flow: Flow, value: Value, name: str) -> Value:
    if value.kind == Kind.INSTANCE or value.kind == Kind.LAYER:
        return value
    if name in ("bool", "booltensor"):
        return value.but(forms=value.forms | Form.MASK, lo=0.0, hi=1.0, grad=False, hazards=frozenset())
    if name in ("long", "int", "int64", "int32", "uint8", "int16", "int8", "longtensor", "inttensor", "short"):
        return value.but(grad=False, hazards=frozenset(), forms=value.forms | Form.INTEGER)
    if name in ("half", "float16", "halftensor"):
        return value.but(forms=value.forms | Form.HALF)
    return value.but(forms=value.forms & ~Form.HALF) if value.has(Form.HALF) and name in ("float", "float32", "double", "float64") else value


def _caster(name: str) -> Rule:
    def rule(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
        return cast(flow, first_of(args), name)

    return rule


for _name in ("float", "double", "half", "bool", "long", "int", "short", "bfloat16"):
    OPERATIONS[_name] = _caster(_name)


@operation("detach", "stop_gradient")
def detach(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return value.but(grad=False, hazards=frozenset(hazard for hazard in value.hazards if not hazard.suspicion.needs_gradient))


@operation("item", "tolist")
def item(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return value.but(kind=Kind.NUMBER, grad=False, hazards=frozenset())


@operation(
    "cat",
    "stack",
    "concat",
    "concatenate",
    "hstack",
    "vstack",
    "pad_sequence",
    "chunk",
    "split",
    "unbind",
    "sort",
    "topk",
    "unique",
    "broadcast_tensors",
    "tensor_split",
)
def joined(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    name = flow.called(node)
    value = first_of(args)
    if name in ("cat", "stack", "concat", "concatenate", "hstack", "vstack", "pad_sequence", "broadcast_tensors"):
        parts = flow.spread([value])
        if not parts:
            return made(flow, [value], forms=0)
        result = parts[0]
        for part in parts[1:]:
            result = join(result, part)
        result = result.but(
            kind=Kind.TENSOR if result.kind != Kind.ARRAY else Kind.ARRAY, sym=flow.fresh(), hazards=frozenset().union(*(part.hazards for part in parts))
        )
        if name == "stack" or not all(part.selected for part in parts):
            result.selected = 0
        if name in ("cat", "stack", "concat") and any(part.lo == part.hi != 0 for part in parts):
            result.forms |= Form.UNIT
        return result
    if name in ("sort", "topk"):
        index = Value(Kind.TENSOR, 0.0, INF, Form.INTEGER, sym=flow.fresh())
        return Value(Kind.SEQUENCE, ref=(value.but(sym=flow.fresh()), index), sym=flow.fresh(), hazards=value.hazards)
    return Value(Kind.SEQUENCE, ref=None, sym=flow.fresh(), hazards=value.hazards, attributes={"*": value.but(sym=flow.fresh())})


@operation("numel", "size", "nelement", "dim")
def numel(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    name = flow.called(node)
    if name == "dim":
        return Value(Kind.NUMBER, 0.0, INF, sym=flow.fresh())
    counted = value.selected
    return Value(Kind.NUMBER, 0.0 if counted else 1.0, INF, Form.COUNT | Form.ZERO if counted else 0, sym=flow.number((name, value.sym)), count_of=counted)


@operation("pad")
def pad(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    mode = kw.get("mode") or (args[2] if len(args) > 2 else None)
    if mode is None or mode.ref == "constant":
        return made(flow, [value], min(value.lo, 0.0), max(value.hi, 0.0), value.forms & KEPT | (Form.ZERO if value.lo <= 0 else 0))
    return value


@operation(
    "randint",
    "randperm",
    "argmax",
    "argmin",
    "argsort",
    "searchsorted",
    "bucketize",
    "one_hot",
    "floor",
    "ceil",
    "round",
    "histc",
    "bincount",
    "multinomial",
    "floor_divide",
)
def integers(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    if flow.called(node) == "randint":
        low = args[0].number if len(args) > 2 else 0.0
        zero = low == 0.0
        origin = flow.origin(node, "a sampled integer can be exactly 0") if zero else None
        return Value(Kind.TENSOR, low if low is not None else -INF, INF, Form.INTEGER | (Form.ZERO if zero else 0), sym=flow.fresh(), origin=origin)
    value = Value(Kind.TENSOR, 0.0 if flow.called(node) not in ("floor", "ceil", "round", "floor_divide") else -INF, INF, Form.INTEGER, sym=flow.fresh())
    if args and args[0].kind == Kind.NUMBER and flow.called(node) in ("floor", "ceil", "round"):
        value.kind = Kind.NUMBER
    return value
