"""Losses on discretised depth: ordinal regression (DORN), bins classification, and the Chamfer distance of bin centres (AdaBins)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import pattern, select, wide
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses._reduce import reduced
from nanopsy.stable.statistics import masked_mean

__all__ = ["BinsClassification", "ChamferBins", "OrdinalRegression", "bins_classification", "chamfer_bins", "ordinal_regression"]


def _per_pixel(where: str, logits: Tensor, target: Tensor, mask: Tensor | None, edges: Tensor, spare: int) -> None:
    arguments.floating(where, logits=logits, target=target, edges=edges)
    arguments.image(where, logits=logits, target=target)
    if target.shape != (logits.shape[0], 1, *logits.shape[2:]):
        raise arguments.ArgumentError(
            f"target {list(target.shape)} for logits {list(logits.shape)}",
            where=where,
            why="each pixel's channels are scores of its one depth",
            do=f"pass a target of shape {[logits.shape[0], 1, *logits.shape[2:]]}",
        )
    if edges.ndim != 1 or edges.shape[0] != logits.shape[1] + spare:
        raise arguments.ArgumentError(
            f"{edges.shape[0] if edges.ndim else 0} edges for {logits.shape[1]} channels",
            where=where,
            why="channels stand for bins or thresholds between edges",
            do=f"pass spaced_edges({logits.shape[1] + spare - 1}, min_depth, max_depth)",
        )
    arguments.boolean(where, mask, target)


def _shown(target: Tensor, scores: Tensor) -> Tensor:
    """0, and NaN for a label that is not finite: comparisons would put it into a bin."""
    return ((target - target).detach() * 0).to(scores.dtype)


def ordinal_regression(
    logits: Tensor, target: Tensor, mask: Tensor | None = None, *, edges: Tensor, weight: Tensor | None = None, reduction: str = "batch"
) -> Tensor:
    """Ordinal regression: for each of K depth thresholds, is the pixel deeper?

    Args:
        logits: ``B x K x H x W``, any floating dtype (half precision gives float32); channel k is the logit of "deeper than threshold k". DORN's pair of
            channels per threshold is the logit given by their difference.
        target: depth in metres, ``B x 1 x H x W``.
        mask: boolean, broadcastable to the target.
        edges: ``K + 2`` increasing depths, `spaced_edges`; the K inner ones are the thresholds.
        weight: non-negative weights, broadcastable to the target.
        reduction: ``batch`` or ``image``.

    Returns:
        The mean over pixels of the sum over thresholds of the binary cross-entropies, from logits: no log of a probability is formed. Threshold k is
        passed where the target is greater; a perfect prediction decodes to the target's own bin with `ordinal_depth`.

    Source: Fu et al. 2018 (DORN), equations 2 and 3.
    """
    where = "nanopsy.stable.ordinal_regression"
    _per_pixel(where, logits, target, mask, edges, 2)
    scores = wide(logits)
    deeper = wide(target) > wide(edges)[1:-1].reshape(1, -1, 1, 1)
    signed = torch.where(deeper, -scores, scores)
    if mask is not None:
        signed = select(signed, pattern(mask.expand(target.shape), signed))
    return reduced(where, F.softplus(signed).sum(1, keepdim=True) + _shown(target, scores), mask, weight, reduction)


def bins_classification(
    logits: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    edges: Tensor,
    softness: float | None = None,
    weight: Tensor | None = None,
    reduction: str = "batch",
) -> Tensor:
    """Cross-entropy of depth bins, hard or soft.

    Args:
        logits: ``B x P x H x W``, any floating dtype (half precision gives float32).
        target: depth in metres, ``B x 1 x H x W``; depths outside the edges belong to the first or last bin.
        mask: boolean, broadcastable to the target.
        edges: ``P + 1`` increasing depths, `spaced_edges`.
        softness: alpha of soft labels exp(-alpha (c - label)^2), normalised to 1 (the weighted cross-entropy of Yin et al. has 0.2); None for hard labels.
        weight: non-negative weights, broadcastable to the target.
        reduction: ``batch`` or ``image``.

    Returns:
        The mean over pixels of -sum_c h_c log softmax(logits)_c, by log-softmax: no log of a probability is formed. 0 with zero gradient for an empty mask.

    Source: Cao et al. 2018, equation 2 (hard and soft labels).
    """
    where = "nanopsy.stable.bins_classification"
    _per_pixel(where, logits, target, mask, edges, 1)
    if softness is not None:
        arguments.number(where, "softness", softness, above=0)
    scores = wide(logits)
    if mask is not None:
        scores = select(scores, pattern(mask.expand(target.shape), scores))
    label = torch.bucketize(wide(target).detach().contiguous(), wide(edges)[1:-1].contiguous(), right=True)
    logs = scores.log_softmax(1)
    if softness is None:
        return reduced(where, _shown(target, scores) - logs.gather(1, label), mask, weight, reduction)
    steps = torch.arange(logits.shape[1], device=logits.device, dtype=scores.dtype).reshape(1, -1, 1, 1)
    soft = (-softness * (steps - label).square()).softmax(1)
    return reduced(where, _shown(target, scores) - (soft * logs).sum(1, keepdim=True), mask, weight, reduction)


def chamfer_bins(centres: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Bi-directional Chamfer distance between bin centres and the depths of an image.

    Args:
        centres: ``B x P``, metres, any floating dtype (half precision gives float32), in any order.
        target: depth in metres, ``B x 1 x H x W`` (or ``B x …``).
        mask: boolean, broadcastable to the target.

    Returns:
        mean over centres of the squared distance to the nearest selected depth, plus the mean over selected depths of that to the nearest centre;
        averaged over the images in which a depth is selected (published: 0/0 for an empty one). By sorting, in memory proportional to P + H W, not P H W.

    Source: Bhat et al. 2021 (AdaBins), equation 5.
    """
    where = "nanopsy.stable.chamfer_bins"
    arguments.floating(where, centres=centres, target=target)
    if centres.ndim != 2 or target.ndim < 2 or centres.shape[0] != target.shape[0] or centres.shape[1] < 1:
        raise arguments.ArgumentError(
            f"centres {list(centres.shape)} and target {list(target.shape)}",
            where=where,
            why="each image has its own centres and depths",
            do="pass centres as B x P with P >= 1, and the target with the same B first",
        )
    arguments.boolean(where, mask, target)
    c = wide(centres)
    full = torch.ones_like(target, dtype=torch.bool) if mask is None else mask.expand(target.shape)
    chosen = full.flatten(1)
    depths = wide(target).to(c.dtype).flatten(1)
    depths = select(depths, pattern(chosen, depths))
    if depths.shape[1] == 0:
        return c.flatten()[:0].sum()
    count = chosen.sum(1, keepdim=True)
    ordered_c, _ = c.sort(1)
    to_centre = depths - _nearest(ordered_c, depths, torch.full_like(count, c.shape[1]))
    order = torch.where(chosen, depths.detach(), torch.nan).argsort(1)
    to_depth = c - _nearest(depths.gather(1, order), c, count)
    there = masked_mean(to_centre.square(), chosen, dim=1)
    back = masked_mean(to_depth.square(), (count > 0).expand(c.shape), dim=1)
    return masked_mean(there + back, count.squeeze(1) > 0)


def _nearest(ordered: Tensor, values: Tensor, count: Tensor) -> Tensor:
    """For each value the nearest of the first ``count`` ordered numbers of its row."""
    n = ordered.shape[1]
    valid = torch.arange(n, device=ordered.device).expand_as(ordered) < count
    searched = torch.where(valid, ordered.detach(), torch.inf)
    right = torch.searchsorted(searched, values.detach().contiguous())
    last = (count - 1).clamp(min=0)
    above = torch.minimum(right, last)
    below = torch.minimum((right - 1).clamp(min=0), last)
    high, low = ordered.gather(1, above), ordered.gather(1, below)
    return torch.where((high - values).detach().abs() < (low - values).detach().abs(), high, low)


class OrdinalRegression(Loss):
    """`ordinal_regression` as a module; pass ``edges=`` with each call."""

    function = staticmethod(ordinal_regression)


class BinsClassification(Loss):
    """`bins_classification` as a module; pass ``edges=`` with each call."""

    function = staticmethod(bins_classification)


class ChamferBins(Loss):
    """`chamfer_bins` as a module."""

    function = staticmethod(chamfer_bins)
