"""Load the samples of a bad batch again, traced, to see where the dataset's own code made them bad.

Torch operators are seen by the trace; NumPy and plain Python are followed line by line (``sys.settrace`` over the
user's own files), up to the first line after which one of its values is not finite.
"""

from __future__ import annotations

import ast
import itertools
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nanopsy import _torch
from nanopsy.birth import BirthReader, bad_index
from nanopsy.findings import Finding, Location
from nanopsy.instrument import is_user_file
from nanopsy.ranges import Birth, History, Operand, Origin, OriginKind
from nanopsy.replay import raw
from nanopsy.sources import assigned, load
from nanopsy.story import Story
from nanopsy.trace import Trace

if TYPE_CHECKING:
    from nanopsy.diagnose import Evidence


Print = tuple[tuple[int, ...], str, bytes]
"""Shape, dtype and a few elements of a tensor."""


def _prints(batch: Any) -> frozenset[Print]:
    """A few elements of each tensor in a batch: enough to know it again after a copy."""
    found = set()
    for _, tensor in itertools.islice(_tensors(batch, ""), 8):
        if tensor.numel() and tensor.layout is torch.strided and tensor.device.type != "meta":
            flat = tensor.detach().reshape(-1)
            found.add((tuple(tensor.shape), str(tensor.dtype), raw(flat[:: max(1, flat.numel() // 32)][:32])))
    return frozenset(found)


@dataclass(slots=True)
class Fetches:
    """Which samples the last batch of each DataLoader consisted of."""

    ahead: dict[int, deque[Any]] = field(default_factory=dict)
    last: tuple[Any, Any] | None = None
    """The DataLoader's iterator and the sample indices of the batch that it gave last."""
    recent: deque[tuple[frozenset[Print], tuple[Any, Any]]] = field(default_factory=lambda: deque(maxlen=8))
    """Finger prints of the batches given lately, each with its iterator and indices: some frameworks fetch one batch ahead, and copy it."""
    _undo: list[Callable[[], None]] = field(default_factory=list)

    def install(self) -> None:
        """Note the indices that each iterator asks its sampler for."""
        if self._undo:
            return
        kind: Any = _torch.LoaderIterator
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
            if self.last is not None:
                self.recent.append((_prints(batch), self.last))
            return batch

        kind._next_index, kind.__next__ = _next_index, __next__

        def undo() -> None:
            kind._next_index, kind.__next__ = next_index, next_batch

        self._undo.append(undo)

    def of(self, *items: Any) -> tuple[Any, Any] | None:
        """The iterator and the sample indices of the batch that these items are, or hold; None if no DataLoader gave it."""
        seen = frozenset().union(*map(_prints, items))
        return next((fetched for prints, fetched in reversed(self.recent) if prints and prints <= seen), None)

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()
        self.ahead.clear()
        self.recent.clear()
        self.last = None


FETCHES = Fetches()


def _bad(value: Any, depth: int = 2) -> bool:
    """Whether a value (tensor, array, number, or a container of them) holds NaN or inf."""
    if isinstance(value, torch.Tensor):
        return value.layout is torch.strided and value.is_floating_point() and value.numel() > 0 and not bool(torch.isfinite(value).all())
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.floating)):
        return value.dtype.kind == "f" and not bool(numpy.isfinite(value).all())
    if isinstance(value, float):
        return math.isnan(value)
    if depth and isinstance(value, (list, tuple)):
        return any(_bad(entry, depth - 1) for entry in value[:16])
    if depth and isinstance(value, dict):
        return any(_bad(entry, depth - 1) for entry in list(value.values())[:16])
    return False


@dataclass(slots=True)
class FirstBadLine:
    """A line tracer over the user's own files: the first line whose execution left a bad value, and what it divided by."""

    where: Location | None = None
    birth: Birth | None = None
    _lines: dict[int, int] = field(default_factory=dict)
    _known: dict[int, set[int]] = field(default_factory=dict)

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if self.where is not None or not is_user_file(frame.f_code.co_filename):
            return None
        key = id(frame)
        if event == "call":
            self._known[key] = {id(value) for value in frame.f_locals.values() if _bad(value)}
            self._lines[key] = frame.f_lineno
            return self
        values = list(frame.f_locals.values()) + ([argument] if event == "return" else [])
        known = self._known.get(key, set())
        if any(id(value) not in known and _bad(value) for value in values):
            self._found(frame, self._lines.get(key, frame.f_lineno))
            return None
        self._lines[key] = frame.f_lineno
        return self

    def _found(self, frame: FrameType, line: int) -> None:
        source = load(frame.f_code.co_filename)
        statement = source.statement(line) if source is not None else None
        if source is None or statement is None:
            self.where = Location(frame.f_code.co_filename, line)
            return
        value = getattr(statement, "value", None)
        self.where = source.location(value if isinstance(value, ast.expr) else statement)
        for node in ast.walk(statement):
            below, op = None, ""
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                below, op = node.right, "div"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("log", "log10", "log2") and node.args:
                below, op = node.args[0], "log"
            if below is None:
                continue
            zero = self._zero(frame, below)
            if zero is not None:
                kind = self._kind(below)
                operand = Operand("divisor" if op == "div" else "argument", zero, 1, dtype="float32",
                                  origin=Origin(kind, zero, source.location(below), source.code(below)))  # fmt: skip
                above = Operand("dividend", math.nan, 1)
                operands = (above, operand) if op == "div" else (operand,)
                self.birth = Birth(op, "forward", math.nan, "float32", source.location(node), operands=operands)
                return

    @staticmethod
    def _kind(node: ast.expr) -> OriginKind:
        name = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        return {"std": OriginKind.STD, "var": OriginKind.STD, "max": OriginKind.MAX, "norm": OriginKind.NORM}.get(name, OriginKind.DATA)

    @staticmethod
    def _zero(frame: FrameType, node: ast.expr) -> float | None:
        """The zero (or negative) in an operand, evaluated again in its frame."""
        try:
            value = eval(compile(ast.Expression(node), frame.f_code.co_filename, "eval"), frame.f_globals, frame.f_locals)
            low = float(value.min()) if hasattr(value, "min") else float(value)
            zero = bool((value == 0).any()) if hasattr(value, "any") else value == 0
        except Exception:
            return None
        return 0.0 if zero else low if low < 0 else None


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
    fetched = FETCHES.of(*evidence.items) or FETCHES.last
    if not findings or fetched is None or findings[0].evidence.get("came") != "batch":
        return findings
    iterator, indices = fetched
    dataset, collate = getattr(iterator, "_dataset", None), getattr(iterator, "_collate_fn", None)
    if not isinstance(indices, (list, tuple)) or dataset is None or not hasattr(dataset, "__getitem__"):
        return findings
    trace, lines = Trace(set(), range(1 << 40)), FirstBadLine()
    loaded: list[tuple[str, torch.Tensor]] = []
    before = sys.gettrace()
    trace.start()
    sys.settrace(lines)
    try:
        samples = [dataset[number] for number in indices]
        for number, sample in zip(indices, samples, strict=True):
            loaded += _tensors(sample, f"sample {number}")
        if collate is not None:
            loaded += _tensors(collate(samples), "batch")
    except Exception:
        return findings
    finally:
        sys.settrace(before)
        recording = trace.stop()
    for path, tensor in loaded:
        if not _bad(tensor):
            continue
        hit = bad_index(tensor)
        if hit is None:
            continue
        story = Story(recording, evidence.story.registry, {}, {}, {}, {})
        reader = BirthReader(story, History(), "loss", {}, {})
        births = [birth for birth in reader.read(story.ancestry(trace.ref(tensor), *hit)) if birth.phase == "forward"]
        if not births and lines.birth is not None:
            births = [lines.birth]
        return _sharpened(findings, births, lines.where or _variable(evidence, dataset, tensor), path, type(dataset).__name__)
    return findings


def _variable(evidence: Evidence, dataset: Any, tensor: torch.Tensor) -> Location | None:
    """For a library dataset over tensors: where the script gave the tensor its values."""
    for held in getattr(dataset, "tensors", ()):
        made = evidence.made.get(_torch.storage_key(held))
        if made is not None:
            return assigned(made.file, made.name, made.owner)
    return None


def _sharpened(findings: list[Finding], births: list[Birth], where: Location | None, path: str, dataset: str) -> list[Finding]:
    from nanopsy.causes import load as load_causes

    first = findings[0]
    consumer = tuple(place for place in (first.location,) if place is not None)
    extra = {"sample": path, "dataset": dataset}
    named = replace(first, message=f"{first.message}; {path} of {dataset} is bad as loaded", evidence={**first.evidence, **extra},
                    location=where or first.location, also=(*consumer, *first.also) if where else first.also)  # fmt: skip
    better: list[Finding] = []
    for birth in births:
        for cause in load_causes().values():
            claim = cause.claim(birth)
            if claim is None or cause.code == "NAN999":
                continue
            found = cause.finding(birth, claim)
            message = f"{found.message}; it happened while {dataset} loaded {path}"
            better.append(replace(found, message=message, also=(*found.also, *consumer), evidence={**found.evidence, **extra}))
    better.sort(key=lambda finding: -finding.score)
    return [*better[:1], replace(named, score=0.5)] if better else [named, *findings[1:]]
