"""Activations, exponentials and logarithms."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import Arguments, Keywords, argument, carry, first_of, made, operation
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("sigmoid", "sigmoid_", "Sigmoid", "expit")
def sigmoid(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return made(
        flow,
        [value],
        0.0,
        1.0,
        Form.SIGMOID | Form.UNDERFLOW,
        key=("sigmoid",),
        origin=flow.origin(node, "a sigmoid underflows to 0 for logits below about -88"),
    )


@operation("softmax", "Softmax", "Softmax2d", "gumbel_softmax")
def softmax(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    hazards = flow.site("softmax", node, value)
    return carry(made(flow, [value], 0.0, 1.0, Form.SOFTMAX | Form.UNDERFLOW, origin=flow.origin(node, "a softmax underflows to 0")), hazards)


@operation("log_softmax", "logsigmoid", "LogSoftmax", "LogSigmoid")
def log_activation(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return made(flow, args[:1], -INF, 0.0, Form.LOGARITHM | Form.ZERO)


@operation("logsumexp")
def logsumexp(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return carry(made(flow, [value], -INF, INF, Form.LOGARITHM), flow.site("logsumexp", node, value))


@operation("relu", "relu_", "ReLU", "ReLU6", "relu6")
def relu(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    if value.lo > 0:
        return value
    return made(flow, [value], 0.0, max(value.hi, 0.0), Form.RELU | Form.ZERO, key=("relu",), origin=flow.origin(node, "a ReLU is 0 for negative input"))


@operation("softplus", "Softplus")
def softplus(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return made(flow, args[:1], 0.0, INF, Form.UNDERFLOW, key=("softplus",), origin=flow.origin(node, "a softplus underflows to 0"))


@operation("elu", "ELU", "leaky_relu", "LeakyReLU", "gelu", "GELU", "silu", "SiLU", "PReLU", "mish", "selu", "Hardswish", "SELU")
def signed_activation(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return made(flow, args[:1], -INF, INF, Form.NETWORK)


@operation("tanh", "Tanh", "sin", "cos", "tanh_")
def tanh(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    forms = Form.SIGNED if value.lo < 0 else 0
    if flow.called(node) != "cos":
        forms |= value.forms & Form.GUARDED_BY_SIGN
    return made(flow, args[:1], -1.0, 1.0, forms, key=(flow.called(node),), origin=value.origin if forms & Form.GUARDED_BY_SIGN else None)


@operation("sign", "sgn")
def sign(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    low = 1.0 if value.lo > 0 else 0.0 if value.lo == 0 else -1.0
    high = -1.0 if value.hi < 0 else 0.0 if value.hi == 0 else 1.0
    forms = Form.SIGN if low <= 0 <= high else 0
    return made(flow, args[:1], low, high, forms, key=("sign",), origin=flow.origin(node, "sign(0) is 0, so the bound is gone at 0"))


@operation("erf", "erfc", "atan", "atan2", "arctan", "tan", "sinh", "erfinv", "angle")
def unknown_smooth(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return made(flow, args[:2])


@operation("exp", "exp_", "exp2", "expm1", "cosh")
def exponential(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    name = flow.called(node)
    shift = 1.0 if name == "expm1" else 0.0
    low = math.exp(min(value.lo, 80.0)) - shift if value.lo > -80 else -shift
    high = math.exp(value.hi) - shift if value.hi < 80 else INF
    forms = Form.EXP | (Form.UNDERFLOW if low == 0 and value.lo <= -80 else 0)
    if name == "expm1" and low <= 0:
        forms |= Form.ZERO
    return carry(
        made(flow, [value], low, high, forms, key=("exp",), origin=flow.origin(node, "an exponential underflows to 0"), base=value.sym),
        flow.site("exp", node, value),
    )


@operation("log", "log2", "log10", "log_", "log1p", "logit")
def logarithm(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = flow.refined(first_of(args))
    name = flow.called(node)
    if name == "logit" and argument(args, kw, "eps", 1) is not None:
        return made(flow, [value])
    shifted = value.but(lo=value.lo + 1, hi=value.hi + 1, forms=value.forms & ~(Form.ZERO | Form.UNDERFLOW)) if name == "log1p" else value
    if name == "log1p" and value.has(Form.EXP) and value.hi == INF:
        shifted = shifted.but(forms=shifted.forms | Form.EXPLOGIT)
    scale = {"log2": math.log(2), "log10": math.log(10)}.get(name, 1.0)
    low = math.log(shifted.lo) / scale if 0 < shifted.lo < INF else -INF
    high = math.log(shifted.hi) / scale if 0 < shifted.hi < INF else INF
    forms = Form.LOGARITHM | (Form.ZERO if name == "log1p" and value.has(Form.ZERO) else 0)
    return carry(made(flow, [value], low, high, forms, key=(name,), origin=value.origin), flow.site("log", node, shifted, name=name))


@operation("logspace")
def logspace(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    start, end = argument(args, kw, "start", 0), argument(args, kw, "end", 1)
    base = argument(args, kw, "base", 3)
    value = Value(Kind.TENSOR, 0.0, INF, Form.EXP, sym=flow.fresh())
    return carry(value, flow.site("logspace", node, end or Value(), start, base=base)) if end is not None else value


@operation("acos", "arccos", "asin", "arcsin", "acosh", "atanh")
def inverse_cosine(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = flow.refined(first_of(args))
    return carry(made(flow, [value], 0.0, math.pi), flow.site("acos", node, value, name=flow.called(node)))
