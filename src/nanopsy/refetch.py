"""Load the samples of a bad batch again, traced, to see whether the dataset's own arithmetic made them bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

import torch

from nanopsy import _torch
from nanopsy.birth import BirthReader, bad_index
from nanopsy.findings import Finding
from nanopsy.ranges import History
from nanopsy.story import Story
from nanopsy.trace import Trace

if TYPE_CHECKING:
    from nanopsy.diagnose import Evidence


@dataclass(slots=True)
class Fetches:
    """Which samples the last batch of each DataLoader consisted of."""

    ahead: dict[int, deque[Any]] = field(default_factory=dict)
    last: tuple[Any, Any] | None = None
    """The DataLoader's iterator and the sample indices of the batch that it gave last."""
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def install(self) -> None:
        """Note the indices that each iterator asks its sampler for."""
        if self._undo:
            return
        kind = _torch.LoaderIterator
        next_index, next_batch = kind._next_index, kind.__next__

        @wraps(next_index)
        def _next_index(iterator: Any) -> Any:
            index = next_index(iterator)
            self.ahead.setdefault(id(iterator), deque()).append(index)
            return index

        @wraps(next_batch)
        def __next__(iterator: Any) -> Any:
            try:
                batch = next_batch(iterator)
            except StopIteration:
                self.ahead.pop(id(iterator), None)
                raise
            queue = self.ahead.get(id(iterator))
            self.last = (iterator, queue.popleft()) if queue else None
            return batch

        kind._next_index, kind.__next__ = _next_index, __next__

        def undo() -> None:
            kind._next_index, kind.__next__ = next_index, next_batch

        self._undo.append(undo)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()
        self.ahead.clear()
        self.last = None


FETCHES = Fetches()


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        yield path, value
    elif isinstance(value, dict):
        for key, entry in value.items():
            yield from _tensors(entry, f"{path}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for number, entry in enumerate(value):
            yield from _tensors(entry, f"{path}[{number}]")


def refetched(evidence: Evidence, findings: list[Finding]) -> list[Finding]:
    """Findings about bad data, sharpened by the dataset's own story where it can be told."""
    if not findings or findings[0].code != "NAN701" or FETCHES.last is None:
        return findings
    iterator, indices = FETCHES.last
    dataset = getattr(iterator, "_dataset", None)
    loader_like = isinstance(indices, (list, tuple)) and dataset is not None and hasattr(dataset, "__getitem__")
    if not loader_like:
        return findings
    for number in indices:
        trace = Trace(set(), range(1 << 40))
        sample: Any = None
        trace.start()
        try:
            sample = dataset[number]
        except Exception:
            return findings
        finally:
            recording = trace.stop()
        for path, tensor in _tensors(sample, f"sample {number}"):
            if tensor.layout is not torch.strided or not tensor.is_floating_point():
                continue
            hit = bad_index(tensor)
            if hit is None:
                continue
            story = Story(recording, evidence.story.registry, {}, {}, {}, {})
            reader = BirthReader(story, History(), "loss", {}, {})
            return _sharpened(findings, reader, story, trace, tensor, path, hit, type(dataset).__name__)
    return findings


def _sharpened(
    findings: list[Finding], reader: BirthReader, story: Story, trace: Trace, tensor: torch.Tensor, path: str, hit: Any, dataset: str
) -> list[Finding]:
    from nanopsy.causes import load

    first = findings[0]
    extra = {**first.evidence, "sample": path, "dataset": dataset}
    also = tuple(place for place in (first.location,) if place is not None)
    named = replace(first, message=f"{first.message}; {path} of {dataset} is bad as loaded", evidence=extra)
    better: list[Finding] = []
    for birth in reader.read(story.ancestry(trace.ref(tensor), *hit)):
        if birth.phase != "forward":
            continue
        for cause in load().values():
            claim = cause.claim(birth)
            if claim is None or cause.code == "NAN999":
                continue
            found = cause.finding(birth, claim)
            message = f"{found.message}; it happened while {dataset} loaded {path}"
            better.append(replace(found, message=message, also=(*found.also, *also), evidence={**found.evidence, "sample": path, "dataset": dataset}))
    better.sort(key=lambda finding: -finding.score)
    return [*better[:1], replace(named, score=0.5)] if better else [named, *findings[1:]]


__all__ = ["FETCHES", "Fetches", "refetched"]
