"""Samples: a picture and its depth as tensors, and the dataset that yields them in any order, from any worker, always the same."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from nanopsy.depth.augment import Augment
from nanopsy.depth.encodings import DataError
from nanopsy.depth.metrics import Protocol

__all__ = ["DepthDataset", "RawFrame", "Sample", "SampleSet"]


class RawFrame(NamedTuple):
    """One picture and its depth as they lie on disk."""

    image: NDArray[np.uint8]
    """``H x W x 3``."""
    depth: NDArray[np.float32]
    """``H x W`` in metres, 0 where nothing was measured."""
    name: str


class Sample(NamedTuple):
    """One picture and its depth as tensors; batches are the same with a leading dimension."""

    image: Tensor
    """``3 x H x W`` float32 in [0, 1]."""
    depth: Tensor
    """``1 x H x W`` float32 in metres, 0 where nothing was measured."""
    name: str


class DepthDataset(ABC):
    """Frames of one dataset, in the order of its split; a subclass says how one is loaded."""

    title: str
    """The dataset's own name."""
    protocol: Protocol
    """How its literature evaluates."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def load(self, index: int) -> RawFrame:
        """Frame ``index``.

        Raises:
            DataError: a file that is missing or not what its format says.
        """

    def frame(self, index: int) -> RawFrame:
        """Frame ``index``, checked: one size, depths finite and not negative.

        Raises:
            DataError: picture and depth that do not belong together.
        """
        found = self.load(index)
        if found.image.shape[:2] != found.depth.shape:
            raise DataError(
                f"image {found.image.shape[0]} x {found.image.shape[1]}, depth {found.depth.shape[0]} x {found.depth.shape[1]}",
                where=f"{self.title}, frame {index}: {found.name}",
                why="a pixel's depth would be taken from another pixel",
                do="use the depth of the same resolution, or shrink the images; sparse depth must not be interpolated",
            )
        if not np.isfinite(found.depth).all() or (found.depth < 0).any():
            bad = int((~np.isfinite(found.depth) | (found.depth < 0)).sum())
            raise DataError(
                f"{bad:,} depths are negative or not finite",
                where=f"{self.title}, frame {index}: {found.name}",
                why="the logarithm of such a label is NaN",
                do="check the encoding; 0 means not measured",
            )
        return found


class SampleSet(Dataset[Sample]):
    """A dataset with its augmentation; a sample depends on (seed, epoch, index) alone, not on workers or on what was loaded before.

    Args:
        source: the frames.
        augment: crop, flip and the rest; None leaves frames as they are.
        seed: of the augmentation.
        cache: keep raw frames in memory once loaded (for small or rendered sets).

    Indexed by ``index`` (epoch 0) or ``(epoch, index)``.
    """

    def __init__(self, source: DepthDataset, augment: Augment | None = None, *, seed: int = 0, cache: bool = False) -> None:
        self.source, self.augment, self.seed = source, augment, seed
        self._cache: dict[int, RawFrame] | None = {} if cache else None

    def __len__(self) -> int:
        return len(self.source)

    def _frame(self, index: int) -> RawFrame:
        if self._cache is None:
            return self.source.frame(index)
        if index not in self._cache:
            self._cache[index] = self.source.frame(index)
        return self._cache[index]

    def __getitem__(self, key: int | tuple[int, int]) -> Sample:
        epoch, index = key if isinstance(key, tuple) else (0, key)
        image, depth, name = self._frame(index)
        if self.augment is not None:
            image, depth = self.augment(image, depth, np.random.default_rng([0x617567, self.seed, epoch, index]))
        tensor = torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))).float() / 255
        return Sample(tensor, torch.from_numpy(np.ascontiguousarray(depth))[None], name)


def pick(names: Sequence[str], wanted: str, where: str) -> str:
    """One of the names, or a sentence with the nearest of them."""
    if wanted in names:
        return wanted
    import difflib

    close = difflib.get_close_matches(wanted, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise DataError(f"there is no {wanted!r}", where=where, why="", do=f"{hint}known: {', '.join(names)}")
