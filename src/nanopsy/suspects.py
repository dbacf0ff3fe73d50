"""Find the loss that a script was looking at: bad scalars among the local names of its frames, and the graph behind them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from nanopsy._torch import node_sequence
from nanopsy.watching import bad_elements


def suspects(frames: Sequence[FrameType], *, exact: bool) -> list[torch.Tensor]:
    """Bad losses among the local names of frames: scalars with a history, alone or in a container."""
    found: list[torch.Tensor] = []
    for frame in frames:
        for value in list(frame.f_locals.values()):
            for tensor in _tensors(value, depth=2):
                if tensor.numel() != 1 or tensor.grad_fn is None or (tensor.device.type != "cpu" and not exact):
                    continue
                if bad_elements(tensor) and not any(tensor is known for known in found):
                    found.append(tensor)
    return found


def bad_scalars(frames: Sequence[FrameType]) -> bool:
    """Whether a local name of frames holds a bad number without a history: a loss that was averaged over ranks, or taken out of its tensor."""
    for frame in frames:
        for value in list(frame.f_locals.values()):
            if isinstance(value, float) and not math.isfinite(value):
                return True
            if isinstance(value, torch.Tensor) and value.numel() == 1 and value.grad_fn is None and bad_elements(value):
                return True
    return False


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for entry in list(value.values())[:64]:
            yield from _tensors(entry, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for entry in value[:64]:
            yield from _tensors(entry, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and type(value).__module__ not in ("builtins",):
        if type(value).__module__.split(".")[0] not in ("torch", "numpy"):
            for entry in list(value.__dict__.values())[:64]:
                yield from _tensors(entry, 0)


def sequences(root: torch.Tensor) -> Iterator[int]:
    """Sequence numbers of the graph behind a loss."""
    seen: set[Any] = set()
    stack = [root.grad_fn]
    while stack and len(seen) < 100_000:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = node_sequence(node)
        if number >= 0:
            yield number
        stack.extend(child for child, _ in node.next_functions)
