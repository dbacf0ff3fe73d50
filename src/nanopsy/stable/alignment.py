"""Scale and shift that bring a relative depth to a reference: least squares (with trimming) and median/deviation."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._arguments import Dim
from nanopsy.stable._select import binade, largest, nonzero, pattern, select, selected_size, wide
from nanopsy.stable.order import masked_median, smallest
from nanopsy.stable.statistics import Selection, centred, masked_mean, mean_of, selection

__all__ = ["ScaleAndShift", "align_scale_and_shift", "normalize_by_median"]


class ScaleAndShift(NamedTuple):
    """``scale * prediction + shift``; both with the reduced dimensions kept, so that they broadcast."""

    scale: Tensor
    shift: Tensor

    def apply(self, prediction: Tensor) -> Tensor:
        """The aligned prediction, in the prediction's dtype."""
        return (self.scale * prediction.to(self.scale.dtype) + self.shift).to(prediction.dtype)


def align_scale_and_shift(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    weight: Tensor | None = None,
    dim: Dim = (-2, -1),
    trim: float = 0.0,
    rounds: int = 1,
) -> ScaleAndShift:
    """The scale and shift that minimise sum w (scale * prediction + shift - target)^2 over the selected pixels.

    Args:
        prediction, target: one shape, any floating dtype (half precision is computed in float32), for example ``B x 1 x H x W``.
        mask: boolean, broadcastable to them; True means selected.
        weight: non-negative weights.
        dim: the dimensions that share one scale and shift; the default is one pair per image and channel.
        trim: fraction in [0, 1) of the selected pixels, those with the largest residuals, that is left out of a second fit (N (1 - trim), rounded down, stay).
        rounds: how often the residuals are trimmed and fitted again; not used without ``trim``.

    Returns:
        `ScaleAndShift`, differentiable with respect to prediction and target. Solved about the means, scale = cov / var and shift = mean(target) - scale
        mean(prediction): the published determinant a00 a11 - a01^2 cancels for nearly constant predictions. Where the prediction does not vary beyond rounding
        (or one pixel, or none, is selected) the scale is 0 and the shift the mean target (0 if none): the best constant, with zero gradient through the scale.

    Raises:
        ArgumentError: different shapes, a trim outside [0, 1), fewer than one round.

    Source: Ranftl et al. 2020 (MiDaS), equation 4.

    >>> p = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> align_scale_and_shift(p, 2 * p + 1).scale
    tensor([[2.]])
    """
    where = "nanopsy.stable.align_scale_and_shift"
    arguments.floating(where, prediction=prediction, target=target, weight=weight)
    arguments.alike(where, prediction=prediction, target=target)
    arguments.boolean(where, mask, prediction)
    if weight is not None:
        arguments.broadcasts(where, "weight", weight, prediction)
    arguments.number(where, "trim", trim, least=0, below=1)
    arguments.whole(where, "rounds", rounds, least=1)
    over = arguments.dims(where, dim, prediction.ndim)
    dtype = torch.promote_types(wide(prediction).dtype, wide(target).dtype)
    p, t = prediction.to(dtype), target.to(dtype)
    keep = None if mask is None else pattern(mask, p)
    p, t = select(p, keep), select(t, keep)
    fit = fitted(p, t, mask, keep, weight, over)
    for _ in range(rounds if trim else 0):
        residual = (fit.scale.detach() * p.detach() + fit.shift.detach() - t.detach()).abs()
        near = ~(residual > smallest(residual, 1 - trim, mask, over))  # NaN stays, and shows
        near = near if mask is None else near & mask
        keep = pattern(near, p)
        fit = fitted(select(p, keep), select(t, keep), near, keep, weight, over)
    return fit


def fitted(p: Tensor, t: Tensor, mask: Tensor | None, keep: Tensor | None, weight: Tensor | None, dim: tuple[int, ...]) -> ScaleAndShift:
    """The least-squares fit of a prediction and a target that are 0 where not selected."""
    if weight is None:
        s = Selection(p, keep, None, selected_size(p, mask, dim, keepdim=True), dim, ())
    else:
        w = select(weight.to(p.dtype).expand(p.shape), keep)
        s = Selection(p, keep, w, w.sum(dim, keepdim=True), dim, ())
    about_p, about_t = centred(s), centred(s._replace(values=t))
    if p.numel():
        seen = about_p.detach() if s.weight is None else about_p.detach() * (s.weight > 0)
        spread, level = largest(seen, dim), largest(p.detach(), dim)
        varies = spread > 4 * torch.finfo(p.dtype).eps * level
    else:
        spread, varies = torch.ones_like(s.total), torch.zeros_like(s.total, dtype=torch.bool)
    unit = binade(spread)
    scaled = about_p / unit
    weighted = scaled if s.weight is None else scaled * s.weight
    squares, products = (weighted * scaled).sum(dim, keepdim=True), (weighted * about_t).sum(dim, keepdim=True)
    varies = varies & (squares.detach() != 0)
    scale = torch.where(varies, products / torch.where(varies, squares, 1.0) / unit, 0.0)
    return ScaleAndShift(scale, mean_of(s._replace(values=t)) - scale * mean_of(s))


def normalize_by_median(x: Tensor, mask: Tensor | None = None, *, dim: Dim = (-2, -1)) -> Tensor:
    """(x - median) / mean absolute deviation from it, over the selected pixels; 0 where not selected, and where x is constant.

    Args:
        x: any shape, any floating dtype (half precision gives float32).
        mask: boolean, broadcastable to ``x``. The median is that of the selected pixels (a widely copied implementation takes it over the zeros of the
            invalid ones as well).
        dim: the dimensions that share one median and deviation.

    Returns:
        The scale- and shift-free map, differentiable.

    Source: Ranftl et al. 2020 (MiDaS), equation 5.
    """
    where = "nanopsy.stable.normalize_by_median"
    s = selection(where, x, mask, None, dim)
    from_median = select(s.values - masked_median(s.values, mask, dim=dim, keepdim=True), s.keep)
    return from_median / nonzero(masked_mean(from_median.abs(), mask, dim=dim, keepdim=True))
