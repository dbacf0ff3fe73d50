"""How the per-pixel terms of a loss become one number: over all selected pixels of the batch, or per image and then over images."""

from __future__ import annotations

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import compact, pattern, select, selected_size, wide
from nanopsy.stable.statistics import masked_mean

REDUCTIONS = ("batch", "image")


def pair(where: str, prediction: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check prediction and target, bring both to at least float32, and zero what the mask does not select; also the selection's bits."""
    arguments.floating(where, prediction=prediction, target=target)
    arguments.alike(where, prediction=prediction, target=target)
    arguments.boolean(where, mask, prediction)
    p, t = wide(prediction), wide(target)
    dtype = torch.promote_types(p.dtype, t.dtype)
    p, t = p.to(dtype), t.to(dtype)
    keep = None if mask is None else pattern(mask, p)
    return select(p, keep), select(t, keep), keep


def gathered(
    where: str, reduction: str, mask: Tensor | None, weight: Tensor | None, **tensors: Tensor
) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, ...]]:
    """Check tensors of one shape, their mask and weights; for one loss over the batch, `compact` them: nothing later looks at neighbours."""
    arguments.floating(where, weight=weight, **tensors)
    arguments.alike(where, **tensors)
    first = next(iter(tensors.values()))
    arguments.boolean(where, mask, first)
    if weight is not None:
        arguments.broadcasts(where, "weight", weight, first)
    over(where, first, reduction)
    if reduction != "batch":
        return mask, weight, tuple(tensors.values())
    weights = [] if weight is None else [weight]
    mask, kept = compact(mask, *tensors.values(), *weights)
    return mask, kept[-1] if weights else None, kept[: len(tensors)]


def over(where: str, x: Tensor, reduction: str) -> tuple[int, ...]:
    """The dimensions that one loss value is taken over."""
    arguments.choice(where, "reduction", reduction, REDUCTIONS)
    if reduction == "image" and x.ndim < 2:
        raise arguments.ArgumentError(
            f"reduction='image' for a prediction of shape {list(x.shape)}",
            where=where,
            why="the first dimension counts the images",
            do="pass B x 1 x H x W, or reduction='batch'",
        )
    return tuple(range(1 if reduction == "image" else 0, x.ndim))


def over_images(loss: Tensor, total: Tensor) -> Tensor:
    """The mean over images in which anything was selected; a batch of nothing is 0."""
    return masked_mean(loss.flatten(), total.flatten() > 0)


def reduced(where: str, terms: Tensor, mask: Tensor | None, weight: Tensor | None, reduction: str) -> Tensor:
    """The (weighted) mean of per-pixel terms."""
    dim = over(where, terms, reduction)
    if weight is not None:
        arguments.floating(where, weight=weight)
        arguments.broadcasts(where, "weight", weight, terms)
    if reduction == "batch":
        return masked_mean(terms, mask, weight=weight)
    per_image = masked_mean(terms, mask, weight=weight, dim=dim)
    if weight is None:
        return over_images(per_image, selected_size(terms, mask, dim, keepdim=False))
    seen = (weight > 0).expand(terms.shape)
    return over_images(per_image, selected_size(terms, seen if mask is None else seen & mask, dim, keepdim=False))
