"""Batches whose order and content depend on (seed, step) alone, so that a run continues where it was killed, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch.utils.data import DataLoader, Sampler

from nanopsy.depth.samples import Sample, SampleSet

__all__ = ["Place", "StepSampler", "training_loader"]


@dataclass(frozen=True, slots=True)
class Place:
    """Which part of the stream of samples this process takes."""

    batch: int
    rank: int = 0
    world: int = 1
    first_step: int = 0
    """The step to begin with (a resumed run)."""
    steps: int = 1
    """The step to end before."""


class StepSampler(Sampler[list[tuple[int, int]]]):
    """Batches of ``(epoch, index)``: every epoch is a permutation of its own, seeded by (seed, epoch); batches run on across epochs."""

    def __init__(self, length: int, seed: int, place: Place) -> None:
        self.length, self.seed, self.place = length, seed, place
        self._known: tuple[int, list[int]] = (-1, [])

    def __len__(self) -> int:
        return max(self.place.steps - self.place.first_step, 0)

    def _order(self, epoch: int) -> list[int]:
        if self._known[0] != epoch:
            generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
            self._known = (epoch, torch.randperm(self.length, generator=generator).tolist())
        return self._known[1]

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        place = self.place
        for step in range(place.first_step, place.steps):
            first = (step * place.world + place.rank) * place.batch
            yield [((first + k) // self.length, self._order((first + k) // self.length)[(first + k) % self.length]) for k in range(place.batch)]


def _one_thread(_: int) -> None:
    torch.set_num_threads(1)


def training_loader(samples: SampleSet, seed: int, place: Place, *, workers: int = 0, pin: bool = False) -> DataLoader[Sample]:
    """A loader over `StepSampler`; workers only fetch, they decide nothing.

    Args:
        samples: the data with its augmentation.
        seed: of the order.
        place: batch size, rank, and the steps to yield.
        workers: processes that load.
        pin: page-locked memory, for a device.
    """
    return DataLoader(
        samples,
        batch_sampler=StepSampler(len(samples), seed, place),
        num_workers=workers,
        pin_memory=pin,
        worker_init_fn=_one_thread if workers else None,
        prefetch_factor=4 if workers else None,
        multiprocessing_context="forkserver" if workers else None,
        generator=torch.Generator(),  # of its own: a loader made anew by a resumed run must not draw from the training's numbers
    )
