"""Ranking loss on pairs of pixels: which of the two is nearer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import pattern, select
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses._reduce import pair
from nanopsy.stable.statistics import masked_mean

__all__ = ["Ranking", "ranking", "sample_pairs"]


def sample_pairs(height: int, width: int, count: int, *, generator: torch.Generator | None = None, device: torch.device | str | None = None) -> Tensor:
    """Random pixel pairs for `ranking`: flat indices, ``2 x count``, with replacement.

    Args:
        height, width: of the depth maps.
        count: number of pairs.
        generator: for the same pairs again.
    """
    where = "nanopsy.stable.sample_pairs"
    for name, value in (("height", height), ("width", width), ("count", count)):
        arguments.whole(where, name, value, least=1)
    return torch.randint(height * width, (2, count), generator=generator, device=device)


def ranking(prediction: Tensor, target: Tensor, mask: Tensor | None = None, *, pairs: Tensor, tolerance: float = 0.03, equal_weight: float = 1.0) -> Tensor:
    """Pairwise ranking loss: log(1 + exp(-l (z_a - z_b))) for ordered pairs, (z_a - z_b)^2 for equal ones.

    Args:
        prediction: z, ``B x 1 x H x W``, any floating dtype (half precision gives float32), growing with the target (both depth, or both disparity).
        target: same shape, positive where selected.
        mask: boolean, broadcastable; a pair counts where both its pixels are selected.
        pairs: flat pixel indices ``2 x N`` from `sample_pairs`.
        tolerance: a pair is equal if the ratio of its targets lies strictly between 1 / (1 + tolerance) and 1 + tolerance; l is +-1 otherwise.
        equal_weight: weight of equal pairs.

    Returns:
        The mean over the counted pairs of both kinds, 0 with zero gradient if there are none. Published code divides by all pairs, masked ones too, or
        takes one mean of each kind, NaN when one is missing. The first form is a softplus: it does not overflow.

    Source: Chen et al. 2016, equation 1; Xian et al. 2020, equations 1 and 2.
    """
    where = "nanopsy.stable.ranking"
    arguments.number(where, "tolerance", tolerance, least=0)
    arguments.number(where, "equal_weight", equal_weight, least=0)
    arguments.depth_map(where, prediction=prediction, target=target)
    p, t, _ = pair(where, prediction, target, mask)
    arguments.index(where, "pairs", pairs, 2, "sample_pairs(H, W, N)")
    difference = _at(p, pairs[0]) - _at(p, pairs[1])
    near, far = _at(t, pairs[0]), _at(t, pairs[1])
    order = (near >= far * (1 + tolerance)).to(p.dtype) - (far >= near * (1 + tolerance)).to(p.dtype)
    ordered = order != 0
    terms = select(F.softplus(-order * difference), pattern(ordered, difference)) + select(equal_weight * difference.square(), pattern(~ordered, difference))
    terms = terms + (near - far) * 0  # a NaN target shows
    chosen = None if mask is None else _at(mask.expand(p.shape), pairs[0]) & _at(mask.expand(p.shape), pairs[1])
    return masked_mean(terms, chosen)


def _at(x: Tensor, index: Tensor) -> Tensor:
    return x.flatten(1).index_select(1, index)


class Ranking(Loss):
    """`ranking` as a module; pass ``pairs=`` with each call."""

    function = staticmethod(ranking)
