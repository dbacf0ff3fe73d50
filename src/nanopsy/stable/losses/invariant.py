"""Scale- and shift-invariant losses (MiDaS): least-squares aligned, or normalised by median and deviation and trimmed."""

from __future__ import annotations

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import nonzero, pattern, select, selected_size
from nanopsy.stable.alignment import align_scale_and_shift, fitted, normalize_by_median
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses._reduce import over, over_images, pair
from nanopsy.stable.losses.gradients import matched
from nanopsy.stable.order import kept

__all__ = ["ScaleAndShiftInvariant", "TrimmedProcrustes", "scale_and_shift_invariant", "trimmed_procrustes"]


def scale_and_shift_invariant(
    prediction: Tensor, target: Tensor, mask: Tensor | None = None, *, alpha: float = 0.5, scales: int = 4, trim: float = 0.0, reduction: str = "batch"
) -> Tensor:
    """Squared error after least-squares alignment, with multi-scale gradient matching.

    Args:
        prediction: relative inverse depth (or depth), ``B x 1 x H x W``, any floating dtype (half precision gives float32).
        target: same shape.
        mask: boolean, broadcastable.
        alpha: weight of the gradient term, not negative; 0 leaves it out.
        scales: its number of scales.
        trim: fraction of the pixels with the largest residuals that the alignment leaves out, see `align_scale_and_shift`.
        reduction: ``batch`` or ``image``.

    Returns:
        sum((s p + h - t)^2) / (2 M) + alpha * gradient matching. A constant prediction is aligned to the mean target (published: a determinant that
        rounding decides: scale and shift 0 if it is 0, anything if it is not); an empty mask gives 0 with zero gradient. With ``image``, images without a
        selected pixel do not count (published: they count as 0).

    Source: Ranftl et al. 2020 (MiDaS), equations 2, 4 and 11.
    """
    where = "nanopsy.stable.scale_and_shift_invariant"
    arguments.number(where, "alpha", alpha, least=0)
    arguments.image(where, prediction=prediction, target=target)
    p, t, keep = pair(where, prediction, target, mask)
    over_image = (1, 2, 3)
    fit = align_scale_and_shift(p, t, mask, dim=over_image, trim=trim) if trim else fitted(p, t, mask, keep, None, over_image)
    aligned = fit.apply(p)
    dim = over(where, p, reduction)
    total = selected_size(p, mask, dim, keepdim=True)
    residual = select(aligned - t, keep)
    loss = residual.square().sum(dim, keepdim=True) / (2 * nonzero(total))
    data = loss.squeeze() if reduction == "batch" else over_images(loss, total)
    return data + alpha * matched(where, residual, mask, scales, reduction) if alpha else data


def trimmed_procrustes(
    prediction: Tensor, target: Tensor, mask: Tensor | None = None, *, alpha: float = 0.5, scales: int = 4, trim: float = 0.2, reduction: str = "batch"
) -> Tensor:
    """Absolute error of median-normalised maps without its largest part, with multi-scale gradient matching.

    Args:
        prediction, target, mask, alpha, scales, reduction: as in `scale_and_shift_invariant`.
        trim: fraction in [0, 1) of each image's selected pixels, those with the largest errors, that is left out.

    Returns:
        sum of the kept |p' - t'| / (2 M) + alpha * gradient matching of p' and t', each (x - median) / mean absolute deviation over the selected pixels.
        (A widely copied implementation slices the wrong result of ``sort`` and so trims nothing, and takes medians over invalid zeros as well.)

    Source: Ranftl et al. 2020 (MiDaS), equations 5 to 7.
    """
    where = "nanopsy.stable.trimmed_procrustes"
    arguments.number(where, "alpha", alpha, least=0)
    arguments.number(where, "trim", trim, least=0, below=1)
    arguments.image(where, prediction=prediction, target=target)
    p, t, keep = pair(where, prediction, target, mask)
    p, t = normalize_by_median(p, mask, dim=(1, 2, 3)), normalize_by_median(t, mask, dim=(1, 2, 3))
    error = select((p - t).abs(), keep).flatten(1)
    chosen = torch.ones_like(error, dtype=torch.bool) if mask is None else mask.expand(p.shape).flatten(1)
    count = chosen.sum(1, keepdim=True)
    if error.shape[1]:
        ordered = error.gather(1, torch.where(chosen, error.detach(), torch.nan).argsort(1))  # NaN sorts after inf
        near = torch.arange(error.shape[1], device=error.device).expand_as(error) < kept(count, 1 - trim)
        error = select(ordered, pattern(near | ordered.detach().isnan(), error))  # NaN shows
    sums, totals = error.sum(1), count.squeeze(1).to(p.dtype)
    data = sums.sum() / (2 * nonzero(totals.sum())) if reduction == "batch" else over_images(sums / (2 * nonzero(totals)), totals)
    return data + alpha * matched(where, p - t, mask, scales, reduction) if alpha else data


class ScaleAndShiftInvariant(Loss):
    """`scale_and_shift_invariant` as a module."""

    function = staticmethod(scale_and_shift_invariant)


class TrimmedProcrustes(Loss):
    """`trimmed_procrustes` as a module."""

    function = staticmethod(trimmed_procrustes)
