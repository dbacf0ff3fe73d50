"""Median and quantiles of the selected elements, weighted or not."""

from __future__ import annotations

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._arguments import Dim
from nanopsy.stable._select import compact, nonzero, pattern, select, wide

__all__ = ["masked_median", "masked_quantile"]

INTERPOLATIONS = ("linear", "lower", "higher", "midpoint", "nearest")


def masked_quantile(
    x: Tensor,
    q: float,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    dim: Dim = None,
    keepdim: bool = False,
    interpolation: str = "linear",
    empty: float = 0.0,
) -> Tensor:
    """The q-quantile of the selected elements.

    Args:
        x: values, any shape, any floating dtype, without torch.quantile's limit of 16 million elements.
        q: probability in [0, 1].
        mask: boolean, broadcastable to ``x``; True means selected.
        weight: non-negative weights: the smallest value at which the cumulated weight reaches q of the total (NumPy's ``inverted_cdf``, the
            one definition that takes weights); ``interpolation`` is then not used.
        dim: dimension or dimensions to reduce; None for all.
        keepdim: keep reduced dimensions with size 1.
        interpolation: ``linear``, ``lower``, ``higher``, ``midpoint`` or ``nearest``, between the two neighbours of rank q (N - 1).
        empty: the result where nothing is selected; its gradient is 0.

    Returns:
        The quantile, in ``x``'s dtype; its gradient goes to the one or two elements that it is made of. NaN among the selected elements gives NaN.

    Raises:
        ArgumentError: q outside [0, 1], an unknown interpolation, and as `masked_mean`.

    >>> masked_quantile(torch.tensor([4.0, 1.0, 2.0, 0.0]), 0.5, torch.tensor([True, True, True, False]))
    tensor(2.)
    """
    where = "nanopsy.stable.masked_quantile"
    arguments.number(where, "q", q, least=0, most=1)
    arguments.choice(where, "interpolation", interpolation, INTERPOLATIONS)
    arguments.floating(where, x=x, weight=weight)
    arguments.boolean(where, mask, x)
    over = arguments.dims(where, dim, x.ndim)
    if weight is not None:
        arguments.broadcasts(where, "weight", weight, x)
    dtype, shape = x.dtype, [1 if d in over else n for d, n in enumerate(x.shape)]
    if len(over) == x.ndim:
        mask, (x, *rest) = compact(mask, x) if weight is None else compact(mask, x, weight)
        weight = rest[0] if rest else None
        over = tuple(range(x.ndim))
    rows = _rows(wide(x), over)
    chosen = torch.ones_like(rows, dtype=torch.bool) if mask is None else _rows(mask.expand(x.shape), over)
    if rows.shape[-1] == 0:
        result = rows.sum(-1) + empty
        return (result.reshape(shape) if keepdim else result).to(dtype)
    if weight is not None:
        weights = _rows(weight.detach().expand(x.shape).to(rows.dtype), over)
        chosen = chosen & ~(weights <= 0)
    keep = pattern(chosen, rows)
    clean = select(rows, keep)
    index = _order(clean, chosen)
    count = chosen.sum(-1, keepdim=True)
    if weight is None:
        low, high, share = _ranks(q, count, interpolation, rows.dtype)
    else:
        low = high = _weighted_rank(q, weights, chosen, index)
        share = torch.zeros_like(low, dtype=rows.dtype)
    at_low, at_high = clean.gather(-1, index.gather(-1, low)), clean.gather(-1, index.gather(-1, high))
    result = at_low
    if weight is None and interpolation in ("linear", "midpoint"):
        result = torch.where(at_low == at_high, at_low, at_low * (1 - share) + at_high * share)
    poison = select(clean.detach(), pattern(clean.isnan(), rows)).sum(-1, keepdim=True)
    if weight is not None:
        poison = poison + select(weights, pattern(chosen & weights.isnan(), rows)).sum(-1, keepdim=True)
    result = torch.where(count > 0, result + poison, empty).to(dtype)
    return result.reshape(shape) if keepdim else result.squeeze(-1)


def _rows(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The reduced dimensions as one, last."""
    left = [d for d in range(x.ndim) if d not in dim]
    return x.permute(*left, *dim).flatten(len(left)) if dim else x.unsqueeze(-1)


def _order(rows: Tensor, chosen: Tensor) -> Tensor:
    """The order of the selected elements of each row, then the others: NaN sorts after inf."""
    return torch.where(chosen, rows.detach(), torch.nan).argsort(-1)


def smallest(x: Tensor, share: float, mask: Tensor | None, dim: tuple[int, ...]) -> Tensor:
    """Of each row, the largest of the smallest ``share`` (at least one) of the selected elements; dimensions kept, no gradient."""
    rows = _rows(x.detach(), dim)
    chosen = torch.ones_like(rows, dtype=torch.bool) if mask is None else _rows(mask.expand(x.shape), dim)
    if rows.shape[-1] == 0:
        return rows.sum(-1).reshape([1 if d in dim else n for d, n in enumerate(x.shape)])
    last = (kept(chosen.sum(-1, keepdim=True), share) - 1).clamp(min=0)
    values = rows.gather(-1, _order(rows, chosen).gather(-1, last))
    return values.reshape([1 if d in dim else n for d, n in enumerate(x.shape)])


def kept(count: Tensor, share: float) -> Tensor:
    """How many elements a share of ``count`` is: rounded down, but at least one of those that there are."""
    exact = count.to(torch.float64 if count.device.type != "mps" else torch.float32) * share
    return torch.minimum(exact.floor().long().clamp(min=1), count)


def _ranks(q: float, count: Tensor, interpolation: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks of the two neighbours and the share of the upper one."""
    rank = (count - 1).clamp(min=0).to(torch.float64 if count.device.type != "mps" else torch.float32) * q
    low, high = rank.floor().long(), rank.ceil().long()
    if interpolation == "lower":
        high = low
    elif interpolation == "higher":
        low = high
    elif interpolation == "nearest":
        low = high = rank.round().long()
    share = torch.full_like(rank, 0.5) if interpolation == "midpoint" else rank - low
    return low, high, share.to(dtype)


def _weighted_rank(q: float, weight: Tensor, chosen: Tensor, index: Tensor) -> Tensor:
    """The first rank at which the cumulated weight reaches q of the total."""
    ordered = select(weight, pattern(chosen, weight)).gather(-1, index)
    cumulated = ordered.cumsum(-1)
    share = cumulated / nonzero(cumulated[..., -1:])
    return (share >= q).to(torch.int8).argmax(-1, keepdim=True)


def masked_median(x: Tensor, mask: Tensor | None = None, *, weight: Tensor | None = None, dim: Dim = None, keepdim: bool = False, empty: float = 0.0) -> Tensor:
    """The median of the selected elements: the middle one, or the mean of the middle two (``numpy.median``; ``torch.median`` takes the lower).

    Arguments, result and refusals are those of `masked_quantile` with q = 0.5. With weights: the weighted median.

    >>> masked_median(torch.tensor([1.0, 3.0, 100.0]), torch.tensor([True, True, False]))
    tensor(2.)
    """
    return masked_quantile(x, 0.5, mask, weight=weight, dim=dim, keepdim=keepdim, interpolation="midpoint", empty=empty)
