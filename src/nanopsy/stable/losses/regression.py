"""Per-pixel regression losses: berHu, and the Gaussian and Laplace negative log-likelihoods with a bounded scale."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import nonzero, select, wide
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses._reduce import gathered, pair, reduced

__all__ = ["BerHu", "GaussianNLL", "LaplaceNLL", "berhu", "gaussian_nll", "laplace_nll"]


def berhu(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    fraction: float = 0.2,
    threshold: float | None = None,
    reduction: str = "batch",
) -> Tensor:
    """Reverse Huber loss: |e| up to c, (e^2 + c^2) / (2 c) beyond, with c a fraction of the largest error.

    Args:
        prediction, target: one shape, any floating dtype (half precision gives float32).
        mask: boolean, broadcastable; True where the target is valid.
        weight: non-negative weights.
        fraction: c = fraction * max |e| over the selected pixels, a constant of the batch (no gradient flows through it).
        threshold: a fixed c instead.
        reduction: ``batch`` or ``image``.

    Returns:
        The mean, computed as |e| + relu(|e| - c)^2 / (2 c): where all errors are 0, c is 0 and so is the loss, with zero gradient (published: 0/0).

    Source: Laina et al. 2016, equation 1.
    """
    where = "nanopsy.stable.berhu"
    arguments.number(where, "fraction", fraction, above=0)
    if threshold is not None:
        arguments.number(where, "threshold", threshold, above=0)
    mask, weight, (prediction, target) = gathered(where, reduction, mask, weight, prediction=prediction, target=target)
    p, t, _ = pair(where, prediction, target, mask)
    error = (p - t).abs()
    if threshold is not None:
        c = error.new_full((), threshold)
    elif error.numel():
        c = fraction * error.detach().amax()
    else:
        c = error.new_zeros(())
    beyond = (error - c).relu()
    return reduced(where, error + beyond * (beyond / (2 * nonzero(c))), mask, weight, reduction)


def gaussian_nll(
    prediction: Tensor,
    log_variance: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bounds: tuple[float, float] = (-10.0, 10.0),
    full: bool = False,
    reduction: str = "batch",
) -> Tensor:
    """Gaussian negative log-likelihood with a predicted log-variance: (exp(-s) e^2 + s) / 2.

    Args:
        prediction, target: one shape, any floating dtype (half precision gives float32).
        log_variance: s, same shape; the network predicts the logarithm, so that the variance cannot be negative.
        mask: boolean, broadcastable.
        weight: non-negative weights.
        bounds: s is clamped between them (gradient 0 beyond) before the exp: exp(-s) does not overflow, and the likelihood, which has no lower bound as e
            and the variance go to 0, is bounded.
        full: add log(2 pi) / 2.
        reduction: ``batch`` or ``image``.

    Returns:
        The mean; it may be negative.

    Source: Kendall and Gal 2017, equation 8.
    """
    where = "nanopsy.stable.gaussian_nll"
    mask, weight, tensors = gathered(where, reduction, mask, weight, prediction=prediction, log_variance=log_variance, target=target)
    error, s = _error_and_scale(where, tensors, mask, bounds)
    constant = 0.5 * math.log(2 * math.pi) if full else 0.0
    root = torch.exp(-0.5 * s)
    return reduced(where, 0.5 * ((error * root).square() + s) + constant, mask, weight, reduction)


def laplace_nll(
    prediction: Tensor,
    log_scale: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    bounds: tuple[float, float] = (-10.0, 10.0),
    full: bool = False,
    reduction: str = "batch",
) -> Tensor:
    """Laplace negative log-likelihood with a predicted log-scale: exp(-s) |e| + s, s = log b.

    Arguments as `gaussian_nll`; ``full`` adds log 2. Note that s is the log of the scale b, not of a variance 2 b^2.

    Source: Kendall and Gal 2017, section 2.2.1.
    """
    where = "nanopsy.stable.laplace_nll"
    mask, weight, tensors = gathered(where, reduction, mask, weight, prediction=prediction, log_scale=log_scale, target=target)
    error, s = _error_and_scale(where, tensors, mask, bounds)
    constant = math.log(2) if full else 0.0
    return reduced(where, error.abs() * torch.exp(-s) + s + constant, mask, weight, reduction)


def _error_and_scale(where: str, tensors: tuple[Tensor, ...], mask: Tensor | None, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Prediction less target, and the bounded logarithm of the scale."""
    prediction, scale, target = tensors
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise arguments.ArgumentError(f"bounds={bounds!r}", where=where, why="an unbounded exponent overflows", do="pass a pair (lowest, highest)")
    arguments.number(where, "bounds[0]", bounds[0], least=-80)
    arguments.number(where, "bounds[1]", bounds[1], above=bounds[0], most=80)
    p, t, keep = pair(where, prediction, target, mask)
    return p - t, select(wide(scale).to(p.dtype), keep).clamp(*bounds)


class BerHu(Loss):
    """`berhu` as a module."""

    function = staticmethod(berhu)


class GaussianNLL(Loss):
    """`gaussian_nll` as a module."""

    function = staticmethod(gaussian_nll)


class LaplaceNLL(Loss):
    """`laplace_nll` as a module."""

    function = staticmethod(laplace_nll)
