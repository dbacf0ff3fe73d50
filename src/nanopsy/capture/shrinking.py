"""Shrink a slice to the fewest elements that still fail, one axis at a time.

Axes of equal length are first taken together (they belong together in element-wise operators, selections and matrix products), then by
their place from the right. What would change the meaning of the chain raises, or comes out finite, and is not accepted.
"""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from nanopsy.capture.likeness import Likeness
from nanopsy.capture.slicing import Slice

SECONDS = 3.0
MOST_RUNS = 600

Axis = tuple[str, int]
"""A constant's name and one of its dimensions."""


class Shrinker:
    """Delta debugging over the axes of a slice's constants."""

    def __init__(self, slice_: Slice) -> None:
        self.slice = slice_
        self.likeness = Likeness.of(slice_.chain, slice_.result())
        self.runs = 0
        self.until = time.monotonic() + SECONDS

    @property
    def spent(self) -> bool:
        return self.runs >= MOST_RUNS or time.monotonic() > self.until

    def shrink(self) -> Slice:
        """The smallest slice found that fails as the whole one does."""
        for _ in range(2):
            before = sum(value.numel() for value in self.slice.values.values())
            for axes in self._groups():
                self._shrink(axes)
            if sum(value.numel() for value in self.slice.values.values()) == before:
                break
        return self.slice

    def _groups(self) -> list[list[Axis]]:
        by_size: dict[int, list[Axis]] = {}
        by_place: dict[tuple[int, int], list[Axis]] = {}
        single: list[list[Axis]] = []
        for name, value in self.slice.values.items():
            for dim, size in enumerate(value.shape):
                if size > 1:
                    by_size.setdefault(size, []).append((name, dim))
                    by_place.setdefault((dim - value.dim(), size), []).append((name, dim))
                    single.append([(name, dim)])
        groups = [*(by_size[size] for size in sorted(by_size, reverse=True)), *by_place.values(), *single]
        return list({tuple(group): group for group in groups}.values())

    def _shrink(self, axes: list[Axis]) -> None:
        axes = [(name, dim) for name, dim in axes if self.slice.values[name].shape[dim] > 1]
        if not axes or len({self.slice.values[name].shape[dim] for name, dim in axes}) != 1:
            return
        size = self.slice.values[axes[0][0]].shape[axes[0][1]]
        for place in self._hot(axes, size):
            if self._keep(axes, [place]):
                return
        kept = list(range(size))
        chunk = size // 2
        while chunk >= 1 and not self.spent:
            start = 0
            while start < len(kept) and len(kept) > 1 and not self.spent:
                rest = kept[:start] + kept[start + chunk :]
                if rest and self._keep(axes, [kept.index(place) for place in rest]):
                    kept = rest
                else:
                    start += chunk
            chunk //= 2

    def _hot(self, axes: list[Axis], size: int) -> list[int]:
        """Places worth trying alone: where the bad results are, extremes, zeros, ends."""
        places: list[int] = []
        try:
            results = self.slice.result().values.values()
        except Exception:
            return []
        for value in results:
            bad = (~torch.isfinite(value)).nonzero()
            if len(bad):
                places += [int(where) for where, length in zip(bad[0], value.shape, strict=True) if length == size]
        for name, dim in axes:
            value = self.slice.values[name]
            along = value.to(torch.float32).movedim(dim, 0).reshape(size, -1)
            places += [int(along.amin(1).argmin()), int(along.amax(1).argmax()), int((along == 0).sum(1).argmax())]
        return [place for place in dict.fromkeys([*places, 0, size - 1]) if 0 <= place < size][:8]

    def _keep(self, axes: list[Axis], places: list[int]) -> bool:
        """Keep only these places of the axes, if it fails still."""
        if self.spent:
            return False
        self.runs += 1
        values = dict(self.slice.values)
        index = torch.tensor(places)
        for name, dim in axes:
            values[name] = values[name].index_select(dim, index)
        constants = tuple(replace(it, shape=tuple(values[it.name].shape)) for it in self.slice.chain.constants)
        smaller = Slice(replace(self.slice.chain, constants=constants), values)
        try:
            result = smaller.result()
        except Exception:
            return False
        if not result.bad or not self.likeness.holds(smaller.chain, result):
            return False
        self.slice = smaller
        return True
