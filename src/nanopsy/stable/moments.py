"""Mean and variance of a stream: batches that are seen one at a time, or by several processes, and merged."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._arguments import Dim
from nanopsy.stable._select import nonzero
from nanopsy.stable.statistics import centred, mean_of, selection

__all__ = ["Moments"]


class Moments(NamedTuple):
    """Total, mean and sum of squared deviations of everything seen so far: enough to merge, in any order and grouping.

    Computed in float64 unless the device has none. An accumulator keeps no digit of E[x^2] - E[x]^2, so that an offset of 1e8 costs nothing.

    Source: Chan, Golub and LeVeque 1983 (pairwise update); Welford 1962 is its case of one new element.

    >>> seen = Moments.of(torch.tensor([1.0, 2.0])) + Moments.of(torch.tensor([3.0]))
    >>> float(seen.mean), float(seen.var())
    (2.0, 0.6666666666666666)
    """

    total: Tensor
    """Elements seen (or the sum of their weights)."""
    mean: Tensor
    """Their mean; 0 if none."""
    squares: Tensor
    """The sum of (x - mean)^2."""

    @classmethod
    def of(cls, x: Tensor, mask: Tensor | None = None, *, weight: Tensor | None = None, dim: Dim = None) -> Moments:
        """The moments of one batch.

        Args:
            x: values, any shape, any floating dtype; gradients do not flow through an accumulator.
            mask, weight, dim: as in `masked_var`; for a mean and variance per channel of ``B x C x H x W`` pass ``dim=(0, 2, 3)``.
        """
        where = "nanopsy.stable.Moments.of"
        arguments.floating(where, x=x)
        exact = x.detach() if x.device.type == "mps" else x.detach().double()
        s = selection(where, exact, mask, None if weight is None else weight.detach(), dim)
        deviations = centred(s).square()
        squares = deviations if s.weight is None else deviations * s.weight
        return cls(s.total.squeeze(s.dim), mean_of(s).squeeze(s.dim), squares.sum(s.dim))

    def merge(self, other: Moments) -> Moments:
        """The moments of both together; the same as of their union, to rounding."""
        total = self.total + other.total
        share = other.total / nonzero(total)
        step = other.mean - self.mean
        return Moments(total, self.mean + step * share, self.squares + other.squares + step.square() * self.total * share)

    def __add__(self, other: Any) -> Moments:
        if not isinstance(other, Moments):
            return NotImplemented
        return self.merge(other)

    def var(self, correction: float = 0) -> Tensor:
        """The variance; 0 where ``total - correction`` is not positive."""
        arguments.number("nanopsy.stable.Moments.var", "correction", correction, least=0)
        return self.squares / nonzero((self.total - correction).clamp(min=0))

    def std(self, correction: float = 0) -> Tensor:
        """The standard deviation, the root of `var`."""
        return self.var(correction).sqrt()

    @staticmethod
    def merged(parts: Iterable[Moments]) -> Moments:
        """All parts together, neighbours first: the error grows with the logarithm of their number."""
        level = list(parts)
        if not level:
            raise arguments.ArgumentError(
                "there is nothing to merge", where="nanopsy.stable.Moments.merged", why="moments of nothing have no shape", do="pass at least one Moments"
            )
        while len(level) > 1:
            level = [level[i] + level[i + 1] if i + 1 < len(level) else level[i] for i in range(0, len(level), 2)]
        return level[0]

    def all_reduce(self, group: dist.ProcessGroup | None = None) -> Moments:
        """The moments of all processes of a group together, the same bits on each of them.

        One gather of three numbers per statistic; merged in rank order. Every process of the group must call it. Without an initialised
        process group it returns the moments as they are.
        """
        if not (dist.is_available() and dist.is_initialized()):
            return self
        mine = torch.stack([self.total.expand_as(self.mean), self.mean, self.squares])
        gathered = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(gathered, mine.contiguous(), group=group)
        return Moments.merged(Moments(*part.unbind()) for part in gathered)
