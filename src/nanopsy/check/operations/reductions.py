"""Sums, means, variances, and the losses of torch.nn.functional."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import Arguments, Keywords, argument, carry, first_of, made, operation
from nanopsy.check.operations.vectors import product
from nanopsy.facts import INF, Form, Hazard, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("sum", "nansum", "einsum", "cumsum", "trace")
def total(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    name = flow.called(node)
    if name == "einsum":
        return product(flow, node, args[1:], kw)
    value = first_of(args)
    if value.kind in (Kind.SEQUENCE, Kind.MAPPING):
        value = made(flow, flow.spread([value]))
    low = 0.0 if value.lo >= 0 else -INF
    if value.lo > 0 and not value.selected:
        low = value.lo
    high = 0.0 if value.hi <= 0 else INF
    forms = value.forms & (
        Form.ZERO | Form.UNDERFLOW | Form.SIGNED | Form.SIGMOID | Form.SOFTMAX | Form.EPSILON | Form.FLOORED | Form.SQUARE | Form.RELU | Form.ABSOLUTE
    )
    if value.selected and low == 0:
        forms |= Form.ZERO
    if value.has(Form.SQUARE | Form.SUM_OF_SQUARES):
        forms |= Form.SUM_OF_SQUARES
    if value.has(Form.DOT) and value.lo < 0 and not value.has(Form.MASK):
        forms |= Form.SIGNED | Form.PRODUCT
    elif value.has(Form.SIGNED):
        forms |= value.forms & Form.PRODUCT
    if value.lo == 0 and value.has(Form.UNDERFLOW) and not value.has(Form.PRODUCT | Form.ZERO):
        low, forms = 1e-30, forms & ~Form.UNDERFLOW
    elif value.has(Form.SOFTMAX) and value.has(Form.PRODUCT):
        forms &= ~(Form.UNDERFLOW | Form.SOFTMAX | Form.SIGNED | Form.PRODUCT | Form.ZERO)
    count = 0
    whole = len(args) <= 1 and "dim" not in kw and "axis" not in kw
    forms |= Form.TOTAL
    if value.has(Form.MASK):
        forms |= Form.COUNT | Form.ZERO
        if isinstance(value.ref, tuple) and value.ref[:1] in (("cmp",), ("and",), ("or",), ("not",), ("isnan",), ("finite",)):
            forms |= Form.INTEGER  # Boolean: a whole number
        low = 0.0 if not value.has(Form.EPSILON) else max(value.lo, low)
        if value.has(Form.EPSILON):
            forms &= ~Form.ZERO
        count = value.sym if whole else flow.number(("part", value.sym, flow.place(node)))
    if value.has(Form.SOFTMAX) and not value.has(Form.PRODUCT) and not whole:
        low, forms = 0.5, Form.FLOORED
    result = made(
        flow, [value], low, high, forms, key=(name, whole), base=value.base if value.has(Form.SQUARE) else value.sym, count_of=count, origin=value.origin
    )
    if isinstance(value.ref, tuple) and value.ref[:1] == ("product",):
        result.ref = value.ref
    along = kw.get("dim") or kw.get("axis") or (args[1] if len(args) > 1 else None)
    if whole or (along is not None and along.kind == Kind.SEQUENCE):
        result.selected = 0
    return result


@operation("count_nonzero")
def count_nonzero(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    return Value(Kind.TENSOR, 0.0, INF, Form.COUNT | Form.ZERO | Form.INTEGER, sym=flow.fresh(), count_of=value.sym)


@operation("any", "all")
def anything(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    part = flow.called(node) == "any"
    return Value(
        Kind.TENSOR, 0.0, 1.0, Form.MASK | (Form.COUNT if part else 0), sym=flow.number(("any", part, value.sym)), count_of=value.sym if part else 0,
        ref=None if part else ("all", value),
    )  # fmt: skip


@operation("mean", "nanmean", "median", "nanmedian", "quantile")
def mean(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value, name = first_of(args), flow.called(node)
    if value.kind in (Kind.SEQUENCE, Kind.MAPPING):
        value = made(flow, flow.spread([value]))
    whole = len(args) <= 1 and "dim" not in kw and "axis" not in kw
    keep = value.forms & (
        Form.ZERO
        | Form.UNDERFLOW
        | Form.SIGNED
        | Form.SIGMOID
        | Form.SOFTMAX
        | Form.EPSILON
        | Form.FLOORED
        | Form.RELU
        | Form.ABSOLUTE
        | Form.LOGARITHM
        | Form.EXP
    )
    forms = keep | Form.MEAN
    count = 0
    if value.has(Form.SQUARE | Form.SUM_OF_SQUARES):
        forms |= Form.MEAN_OF_SQUARES
    if value.has(Form.MASK):
        forms |= Form.COUNT | Form.ZERO
        count = value.sym if whole else flow.number(("part", value.sym, flow.place(node)))
    along = kw.get("dim") or kw.get("axis") or (args[1] if len(args) > 1 else None)
    hazards = flow.site("mean", node, value, name=name) if whole or (along is not None and along.number == 0) else frozenset()
    result = made(
        flow,
        [value],
        value.lo,
        value.hi,
        forms,
        key=(name, whole),
        base=value.base if value.has(Form.SQUARE) else value.sym,
        count_of=count,
        origin=value.origin,
    )
    if whole:
        result.selected = 0
    return carry(result, hazards)


@operation("var", "std", "var_mean", "std_mean", "nanstd", "nanvar")
def variance(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value, name = first_of(args), flow.called(node)
    correction = _correction(args, kw)
    whole = not any(word in kw for word in ("dim", "axis")) and (len(args) <= 1 or (len(args) == 2 and args[1].kind == Kind.NUMBER and args[1].ref == "bool"))
    deviation = "std" in name
    forms = (0 if value.has(Form.RANDOM) else Form.ZERO) | (Form.DEVIATION if deviation else Form.VARIANCE)
    hazards = flow.site("variance", node, value, name=name, correction=correction, whole=whole)
    result = made(
        flow,
        [value],
        0.0,
        INF,
        forms,
        key=(name, correction, whole),
        base=value.sym,
        origin=flow.origin(node, f"the {name.split('_')[0]} of equal values is 0"),
    )
    if whole:
        result.selected = 0
    carry(result, hazards)
    if name.endswith("_mean"):
        middle = made(flow, [value], value.lo, value.hi, Form.MEAN)
        return Value(Kind.SEQUENCE, ref=(result, middle), sym=flow.fresh())
    return result


def _correction(args: Arguments, kw: Keywords) -> float | None:
    """Bessel's correction that a call applies: 1 by default, 0 for the population; None when it cannot be told."""
    for word in ("unbiased", "correction", "ddof"):
        if word in kw:
            value = kw[word]
            return value.number
    if len(args) == 2 and args[1].ref == "bool":
        return args[1].number
    if len(args) >= 3 and args[2].ref == "bool":
        return args[2].number
    return 1.0


LOSSES = frozenset((
    "l1_loss", "mse_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "nll_loss",
    "kl_div", "cosine_embedding_loss", "soft_margin_loss", "multilabel_margin_loss", "margin_ranking_loss", "triplet_margin_loss", "gaussian_nll_loss",
    "poisson_nll_loss", "ctc_loss",
))  # fmt: skip


@operation(*LOSSES)
def loss(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    name = flow.called(node)
    first, second = argument(args, kw, "input", 0) or Value(), argument(args, kw, "target", 1) or Value()
    reduction = kw.get("reduction")
    averaged = kw.get("size_average")
    how = (
        "sum"
        if averaged is not None and averaged.number == 0
        else str(reduction.ref)
        if reduction is not None and reduction.kind == Kind.TEXT
        else "mean"
        if reduction is None
        else "?"
    )
    hazards = frozenset[Hazard]()
    if how == "mean":
        chosen = first if first.selected else second if second.selected else first
        hazards = flow.site("loss", node, chosen, second, name=name)
    forms = Form.ZERO | (Form.SQUARE | Form.MEAN_OF_SQUARES if name == "mse_loss" else Form.ABSOLUTE if name == "l1_loss" else 0)
    result = made(flow, [first, second], 0.0, INF, forms, base=first.sym)
    if how in ("mean", "sum"):
        result.selected = 0
    return carry(result, hazards)


LAYERS: dict[str, str] = {
    "MSELoss": "mse_loss", "L1Loss": "l1_loss", "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "BCELoss": "binary_cross_entropy",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "CrossEntropyLoss": "cross_entropy", "NLLLoss": "nll_loss", "KLDivLoss": "kl_div",
    "CTCLoss": "ctc_loss",
}  # fmt: skip
"""Loss modules and the functions they call."""
