"""Softplus and its inverse; softmax, log-softmax and logsumexp over the selected elements, with a stated result where none is."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import chosen, nonzero, pattern, select, wide

__all__ = ["inverse_softplus", "masked_log_softmax", "masked_logsumexp", "masked_softmax", "softplus"]


def softplus(x: Tensor, beta: float = 1.0) -> Tensor:
    """log(1 + exp(beta x)) / beta, accurate for every argument.

    Args:
        x: any shape, any floating dtype.
        beta: sharpness, positive.

    Returns:
        Softplus, positive, to the rounding of beta x; it never overflows, and for very negative x it is exp(beta x) / beta rather than 0.
        ``torch.nn.functional.softplus`` is linear beyond beta x = 20, which costs float64 half of its digits; here the linear part begins where it is exact.

    >>> softplus(torch.tensor([-80.0, 1000.0]))
    tensor([1.8049e-35, 1.0000e+03])
    """
    where = "nanopsy.stable.softplus"
    arguments.floating(where, x=x)
    arguments.number(where, "beta", beta, above=0)
    return F.softplus(wide(x), beta, threshold=40 if x.dtype == torch.float64 else 20).to(x.dtype)


class _InverseSoftplus(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, beta: float) -> Tensor:
        return y + torch.log(-torch.expm1(-beta * y)) / beta

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        y, ctx.beta = inputs
        ctx.save_for_backward(y)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / nonzero(-torch.expm1(-ctx.beta * ctx.saved_tensors[0])), None


def inverse_softplus(y: Tensor, beta: float = 1.0) -> Tensor:
    """The x with softplus(x) = y: log(exp(beta y) - 1) / beta, without overflow; the initial value of a bias, for example.

    Args:
        y: any shape, any floating dtype, positive; negative elements give NaN.
        beta: sharpness, positive.

    Returns:
        y + log(1 - exp(-beta y)) / beta. At 0 the value is -inf and the gradient 0. Near y = log(2) / beta, where the result crosses 0, the error is
        absolute (2 eps / beta), not relative.

    >>> inverse_softplus(torch.tensor([1e-20, 100.0]))
    tensor([-46.0517, 100.0000])
    """
    where = "nanopsy.stable.inverse_softplus"
    arguments.floating(where, y=y)
    arguments.number(where, "beta", beta, above=0)
    x: Tensor = _InverseSoftplus.apply(wide(y), beta)  # type: ignore[no-untyped-call]
    return x.to(y.dtype)


def _scores(where: str, x: Tensor, mask: Tensor | None, dim: int) -> tuple[Tensor, Tensor | None]:
    """Scores with the format's lowest number where nothing is selected, half of it for selected ones below (no share goes to the others); and the bits."""
    arguments.floating(where, x=x)
    arguments.boolean(where, mask, x)
    if not isinstance(dim, int):
        raise arguments.ArgumentError(f"dim={dim!r}", where=where, why="probabilities sum to 1 along one dimension", do="pass one integer")
    arguments.dims(where, dim, x.ndim)
    scores = wide(x)
    lowest = torch.finfo(scores.dtype).min
    scores = scores.clamp(min=lowest / 2)
    if mask is None:
        return scores, None
    keep = pattern(mask, scores)
    return chosen(scores, keep, lowest), keep


def masked_softmax(x: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
    """Softmax over the selected elements; a row in which nothing is selected is all 0, with gradient 0.

    Args:
        x: scores, any shape, any floating dtype (half precision is computed in float32).
        mask: boolean, broadcastable to ``x``; True means selected (attended to). What lies elsewhere (NaN, inf) reaches neither value nor gradient.
        dim: the dimension along which probabilities sum to 1.

    Returns:
        Probabilities, exactly 0 where not selected. (``masked_fill(-inf)`` and softmax: NaN for a fully masked row.)

    >>> masked_softmax(torch.zeros(2, 2), torch.tensor([[True, False], [False, False]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    scores, keep = _scores("nanopsy.stable.masked_softmax", x, mask, dim)
    return select(scores.softmax(dim), keep).to(x.dtype)


def masked_log_softmax(x: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
    """Logarithm of the softmax over the selected elements; finite everywhere.

    Args:
        x, mask, dim: as in `masked_softmax`.

    Returns:
        Log-probabilities. Elements that are not selected hold the format's lowest number (-3.4e38 in float32) in place of -inf: its exp is 0, its product
        with a target of 0 is 0 and not NaN, and a label that points at it gives a loss too large to overlook. Their gradient is 0.

    >>> masked_log_softmax(torch.zeros(3), torch.tensor([True, True, False]))
    tensor([-6.9315e-01, -6.9315e-01, -3.4028e+38])
    """
    scores, keep = _scores("nanopsy.stable.masked_log_softmax", x, mask, dim)
    lowest = torch.finfo(x.dtype).min
    logs = scores.log_softmax(dim)
    if keep is not None:
        logs = chosen(logs, keep, lowest)
    return logs.clamp(min=lowest).to(x.dtype)


def masked_logsumexp(x: Tensor, mask: Tensor | None = None, *, dim: int = -1, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) over the selected elements; finite where nothing is selected.

    Args:
        x, mask, dim: as in `masked_softmax`.
        keepdim: keep the reduced dimension with size 1.

    Returns:
        The logsumexp; where nothing is selected, the format's lowest number (-3.4e38 in float32) in place of -inf, and half of it (the lowest in half
        precision) where all selected elements are -inf, both with gradient 0 (``torch.logsumexp`` of -inf alone: gradient NaN).

    >>> masked_logsumexp(torch.tensor([1000.0, 1000.0]))
    tensor(1000.6932)
    """
    scores, _ = _scores("nanopsy.stable.masked_logsumexp", x, mask, dim)
    return scores.logsumexp(dim, keepdim=keepdim).clamp(min=torch.finfo(x.dtype).min).to(x.dtype)
