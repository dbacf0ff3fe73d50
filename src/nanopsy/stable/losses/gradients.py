"""Losses on image gradients: multi-scale gradient matching, and edge-aware smoothness."""

from __future__ import annotations

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import nonzero, pattern, select, selected_size, wide
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses._reduce import over, over_images, pair
from nanopsy.stable.statistics import masked_mean

__all__ = ["EdgeAwareSmoothness", "GradientMatching", "edge_aware_smoothness", "gradient_matching"]


def gradient_matching(prediction: Tensor, target: Tensor, mask: Tensor | None = None, *, scales: int = 4, reduction: str = "batch") -> Tensor:
    """Multi-scale gradient matching: the differences of neighbouring residuals should be 0.

    Args:
        prediction, target: ``B x C x H x W``, any floating dtype (half precision gives float32); depths, log-depths or aligned disparities.
        mask: boolean, broadcastable; a difference counts where both its pixels are selected.
        scales: number of scales; scale k takes every 2^k-th pixel.
        reduction: ``batch`` or ``image``.

    Returns:
        sum over scales of sum(|dx R| + |dy R|) / (number of selected pixels of that scale), R = prediction - target. A scale without selected pixels adds 0.
        With ``image``, images without a selected pixel do not count (published: they count as 0).

    Source: Ranftl et al. 2020 (MiDaS), equation 11; Li and Snavely 2018 (MegaDepth), equation 5.
    """
    where = "nanopsy.stable.gradient_matching"
    arguments.image(where, prediction=prediction, target=target)
    p, t, _ = pair(where, prediction, target, mask)
    return matched(where, p - t, mask, scales, reduction)


def matched(where: str, residual: Tensor, mask: Tensor | None, scales: int, reduction: str) -> Tensor:
    """`gradient_matching` of a residual that is finite where not selected."""
    arguments.whole(where, "scales", scales, least=1)
    dim = over(where, residual, reduction)
    full = torch.ones_like(residual, dtype=torch.bool) if mask is None else mask.expand(residual.shape)
    loss = residual.new_zeros([1] * 4 if reduction == "batch" else [residual.shape[0], 1, 1, 1])
    for k in range(scales):
        r, m = residual[..., :: 2**k, :: 2**k], full[..., :: 2**k, :: 2**k]
        total = selected_size(r, m, dim, keepdim=True)
        across = _differences(r, m, -1).sum(dim, keepdim=True)
        down = _differences(r, m, -2).sum(dim, keepdim=True)
        loss = loss + (across + down) / nonzero(total)
    if reduction == "batch":
        return loss.squeeze()
    return over_images(loss, selected_size(residual, full, dim, keepdim=True))


def _differences(r: Tensor, m: Tensor, dim: int) -> Tensor:
    """Absolute differences of neighbours, 0 where one of them is not selected."""
    n = r.shape[dim]
    if n < 2:
        return r.new_zeros(r.shape)
    step = (r.narrow(dim, 1, n - 1) - r.narrow(dim, 0, n - 1)).abs()
    return select(step, pattern(m.narrow(dim, 1, n - 1) & m.narrow(dim, 0, n - 1), step))


def edge_aware_smoothness(disparity: Tensor, image: Tensor, mask: Tensor | None = None, *, normalize: bool = True) -> Tensor:
    """First-order smoothness of a disparity, weighted down where the image has edges.

    Args:
        disparity: ``B x 1 x H x W``, any floating dtype (half precision gives float32).
        image: ``B x C x H x W`` with values in [0, 1] (other ranges change the weights exp(-|gradient|)).
        mask: boolean, broadcastable to the disparity; a difference counts where both its pixels are selected.
        normalize: divide each disparity by its mean first, without which shrinking the disparity lowers the loss. A mean of 0 gives 0 (published: mean + 1e-7).

    Returns:
        mean(|dx d| exp(-mean_c |dx I|)) + mean(|dy d| exp(-mean_c |dy I|)); a direction of size 1, or without selected pairs, adds 0 (published: NaN).

    Source: Godard et al. 2017, equation 4; Godard et al. 2019 (Monodepth2), equation 3.
    """
    where = "nanopsy.stable.edge_aware_smoothness"
    arguments.floating(where, disparity=disparity, image=image)
    arguments.image(where, disparity=disparity, image=image)
    if disparity.shape[-2:] != image.shape[-2:] or disparity.shape[0] != image.shape[0]:
        raise arguments.ArgumentError(
            f"disparity {list(disparity.shape)} and image {list(image.shape)}",
            where=where,
            why="each disparity needs the colour at its pixel",
            do="resize the image to the disparity's height and width",
        )
    arguments.boolean(where, mask, disparity)
    keep = None if mask is None else pattern(mask, wide(disparity))
    d, colours = select(wide(disparity), keep), wide(image).to(wide(disparity).dtype)
    if mask is not None:
        colours = select(colours, pattern(mask.expand(disparity.shape), colours))
    if normalize:
        d = d / nonzero(masked_mean(d, mask, dim=(-2, -1), keepdim=True))
    full = None if mask is None else mask.expand(d.shape)
    loss = d.new_zeros(())
    for dim in (-1, -2):
        n = d.shape[dim]
        if n < 2:
            continue
        edge = (colours.narrow(dim, 1, n - 1) - colours.narrow(dim, 0, n - 1)).abs().mean(1, keepdim=True)
        step = (d.narrow(dim, 1, n - 1) - d.narrow(dim, 0, n - 1)).abs()
        both = None if full is None else full.narrow(dim, 1, n - 1) & full.narrow(dim, 0, n - 1)
        loss = loss + masked_mean(step * torch.exp(-edge), both)
    return loss


class GradientMatching(Loss):
    """`gradient_matching` as a module."""

    function = staticmethod(gradient_matching)


class EdgeAwareSmoothness(Loss):
    """`edge_aware_smoothness` as a module."""

    function = staticmethod(edge_aware_smoothness)
