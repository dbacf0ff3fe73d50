"""Arguments that make no sense are refused with a sentence, before any number is computed. Nothing here reads a tensor's values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nanopsy.errors import NanopsyError

Dim = int | Sequence[int] | None
"""One dimension, several, or None for all of them."""


class ArgumentError(NanopsyError, ValueError):
    """An argument of a stable function that has no meaning: a wrong shape, dtype, device, or a number out of its range."""


def floating(where: str, **tensors: Tensor | None) -> None:
    """Every given tensor is a real floating-point tensor."""
    for name, value in tensors.items():
        if value is None:
            continue
        if not isinstance(value, Tensor):
            raise ArgumentError(
                f"{name} is a {type(value).__name__}, not a tensor",
                where=where,
                why="values and gradients are computed on floating-point tensors",
                do=f"pass torch.as_tensor({name}, dtype=torch.float32)",
            )
        if not value.is_floating_point():
            raise ArgumentError(
                f"{name} has dtype {value.dtype}, which is not a real floating-point format",
                where=where,
                why="integers are truncated by division and have no gradient",
                do=f"pass {name}.float()",
            )


def boolean(where: str, mask: Tensor | None, like: Tensor) -> None:
    """The mask is boolean, on the device of what it masks, and broadcasts to its shape."""
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise ArgumentError(
            f"the mask is {kind}, not torch.bool",
            where=where,
            why="a number as a mask could be a weight, an index or a depth: True means selected",
            do="pass target > 0, or weight= for weights",
        )
    broadcasts(where, "mask", mask, like)


def broadcasts(where: str, name: str, value: Tensor, like: Tensor) -> None:
    """The tensor is on the other's device and broadcasts to its shape."""
    if value.device != like.device:
        raise ArgumentError(
            f"{name} is on {value.device}, the values are on {like.device}",
            where=where,
            why="the two cannot be combined without a copy between devices",
            do=f"pass {name}.to(device)",
        )
    fits = value.ndim <= like.ndim and all(mine in (1, theirs) for mine, theirs in zip(reversed(value.shape), reversed(like.shape), strict=False))
    if not fits:
        raise ArgumentError(
            f"{name} of shape {list(value.shape)} does not broadcast to the values' shape {list(like.shape)}",
            where=where,
            why="each value needs to know whether it counts",
            do=f"reshape {name}, for example with unsqueeze(1) for B x 1 x H x W values",
        )


def alike(where: str, **tensors: Tensor | None) -> None:
    """All given tensors have one shape and one device."""
    given = [(name, value) for name, value in tensors.items() if value is not None]
    first_name, first = given[0]
    for name, value in given[1:]:
        if value.shape != first.shape:
            raise ArgumentError(
                f"{first_name} has shape {list(first.shape)}, {name} has shape {list(value.shape)}",
                where=where,
                why="broadcasting a prediction against a target of another shape compares every pixel with every other",
                do="bring both to one shape first (resize the prediction; never interpolate a sparse target)",
            )
        if value.device != first.device:
            raise ArgumentError(
                f"{first_name} is on {first.device}, {name} is on {value.device}",
                where=where,
                why="the two cannot be compared without a copy between devices",
                do=f"pass {name}.to({first_name}.device)",
            )


def number(where: str, name: str, value: float, *, above: float = -math.inf, below: float = math.inf, least: float = -math.inf, most: float = math.inf) -> None:
    """A finite Python number in (above, below) and [least, most]."""
    if isinstance(value, (int, float)) and -math.inf < value < math.inf and above < value < below and least <= value <= most:
        return  # comparisons alone: torch.compile follows them for a symbolic number
    low = f"> {above:g}" if above > -math.inf else f">= {least:g}" if least > -math.inf else ""
    high = f"< {below:g}" if below < math.inf else f"<= {most:g}" if most < math.inf else ""
    raise ArgumentError(
        f"{name} is {value!r}",
        where=where,
        why="outside its range the formula means something else, or nothing",
        do=f"pass a finite number {' and '.join(part for part in (low, high) if part)}".rstrip(),
    )


def whole(where: str, name: str, value: int, *, least: int) -> None:
    """A Python integer of at least ``least``."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= least:
        return
    raise ArgumentError(
        f"{name} is {value!r}",
        where=where,
        why="it counts pixels, bins, scales or rounds",
        do=f"pass an integer of at least {least}",
    )


def choice(where: str, name: str, value: str, allowed: Sequence[str]) -> None:
    """One of the named alternatives."""
    if value not in allowed:
        raise ArgumentError(
            f"{name} is {value!r}",
            where=where,
            why="each name stands for one published definition",
            do=f"pass one of {', '.join(repr(name) for name in allowed)}",
        )


def image(where: str, **tensors: Tensor | None) -> None:
    """Every given tensor is ``B x C x H x W``."""
    for name, value in tensors.items():
        if value is not None and value.ndim != 4:
            raise ArgumentError(
                f"{name} has shape {list(value.shape)}",
                where=where,
                why="the function looks at neighbouring rows and columns and must know which dimensions they are",
                do=f"pass {name} as B x C x H x W (unsqueeze the missing ones)",
            )


def depth_map(where: str, **tensors: Tensor | None) -> None:
    """Every given tensor is ``B x 1 x H x W``."""
    image(where, **tensors)
    for name, value in tensors.items():
        if value is not None and value.shape[1] != 1:
            raise ArgumentError(
                f"{name} has {value.shape[1]} channels",
                where=where,
                why="the function is defined on one depth per pixel",
                do=f"pass {name} as B x 1 x H x W, or move the channels into the batch",
            )


def index(where: str, name: str, value: Tensor, rows: int, make: str) -> None:
    """Flat pixel indices, ``rows x N``, int64. That they lie inside the image is not looked at: it would synchronise a device."""
    if isinstance(value, Tensor) and value.ndim == 2 and value.shape[0] == rows and value.dtype == torch.int64:
        return
    kind = f"a tensor of shape {list(value.shape)} and dtype {value.dtype}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
    raise ArgumentError(f"{name} is {kind}", where=where, why=f"each column names {rows} pixels", do=f"pass {make}")


def dims(where: str, dim: Dim, ndim: int) -> tuple[int, ...]:
    """Dimensions as a sorted tuple of non-negative integers; None means all."""
    if dim is None:
        return tuple(range(ndim))
    asked = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, Sequence) else (dim,)
    if (
        not asked
        or any(not isinstance(d, int) for d in asked)
        or any(not -max(ndim, 1) <= d < max(ndim, 1) for d in asked)
        or len({d % max(ndim, 1) for d in asked}) != len(asked)
    ):
        raise ArgumentError(
            f"dim={dim!r} for values of {ndim} dimensions",
            where=where,
            why="each dimension can be reduced once, and must exist",
            do=f"pass distinct dimensions between {-ndim} and {ndim - 1}, or None for all",
        )
    return tuple(sorted(d % ndim for d in asked)) if ndim else ()
