"""The two moves that everything else here is made of: zero what a mask does not select, and replace exact zeros before a division.

Both are exact in forward and backward, differentiable any number of times, never synchronise with a device, and are made of vectorised kernels
(on a CPU ``torch.where`` and ``masked_fill`` take 15 times as long as a bitwise ``and``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy._torch import is_transformed

_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
HALF = (torch.float16, torch.bfloat16)


def eager(x: Tensor) -> bool:
    """Whether values can be looked at for nothing: an ordinary tensor on a CPU, outside compilers and transforms."""
    return x.device.type == "cpu" and type(x) in (Tensor, torch.nn.Parameter) and not torch.compiler.is_compiling() and not is_transformed(x)


def compact(mask: Tensor | None, *tensors: Tensor) -> tuple[Tensor | None, tuple[Tensor, ...]]:
    """On a CPU in eager mode, the selected elements of the tensors as vectors, and no mask; else both as they are.

    For reductions over everything: it saves time and memory in proportion to what is not selected. A device would be synchronised by it, and a compiler or
    ``vmap`` needs fixed shapes; there the mask stays.
    """
    first = tensors[0]
    if mask is None or not eager(mask):
        return mask, tensors
    index = torch.from_numpy(np.flatnonzero(mask.expand(first.shape).numpy()))  # a third of the time of Tensor.nonzero
    return None, tuple(x.expand(first.shape).flatten().index_select(0, index) for x in tensors)


class _Select(torch.autograd.Function):
    """Bits of ``x`` and a pattern of all ones or all zeros: linear and its own adjoint, so it is its own backward."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keep: Tensor) -> Tensor:
        return (x.view(keep.dtype) & keep).view(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return select(grad, ctx.saved_tensors[0]), None


class _Chosen(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, keep: Tensor, otherwise: float) -> Tensor:
        bits = torch.full((), otherwise, dtype=x.dtype, device=x.device).view(keep.dtype)
        return ((x.view(keep.dtype) & keep) | (~keep & bits)).view(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return select(grad, ctx.saved_tensors[0]), None, None


class _Nonzero(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, value: float) -> Tensor:
        return F.threshold(x.abs(), 0.0, value, inplace=True).copysign_(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        return

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def pattern(mask: Tensor, like: Tensor) -> Tensor:
    """The mask as integers of ``like``'s width: all bits set where True. Broadcast to its shape."""
    return mask.expand(like.shape).to(_BITS[like.element_size()]).neg()


def select(x: Tensor, keep: Tensor | None) -> Tensor:
    """``x`` where selected, +0 elsewhere, whatever lies there (NaN, inf); so is the gradient. ``keep`` comes from `pattern`."""
    if keep is None:
        return x
    selected: Tensor = _Select.apply(x, keep)  # type: ignore[no-untyped-call]
    return selected


def chosen(x: Tensor, keep: Tensor, otherwise: float) -> Tensor:
    """``x`` where selected, a number elsewhere, whatever lies there; the gradient is 0 elsewhere."""
    filled: Tensor = _Chosen.apply(x, keep, otherwise)  # type: ignore[no-untyped-call]
    return filled


def positive(x: Tensor) -> Tensor:
    """A non-negative number with exact zeros replaced by inf: `nonzero` in one pass."""
    return F.threshold(x, 0.0, float("inf"))


def nonzero(x: Tensor, value: float = float("inf")) -> Tensor:
    """``x`` with exact zeros replaced by ``value`` (inf: a division by it gives 0, and so does its gradient)."""
    changed: Tensor = _Nonzero.apply(x, value)  # type: ignore[no-untyped-call]
    return changed


def largest(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """The largest magnitude along ``dim``, which is kept."""
    return torch.maximum(x.amax(dim, keepdim=True), -x.amin(dim, keepdim=True))


def binade(x: Tensor) -> Tensor:
    """The power of two at or below a magnitude, to scale by without rounding; 1 for 0, the largest for inf."""
    return F.threshold(x.clamp(max=torch.finfo(x.dtype).max), 0.0, 1.0).log2().floor().exp2()


def wide(x: Tensor) -> Tensor:
    """Half precision in float32, in which sums and squares are computed; other formats as they are."""
    return x.float() if x.dtype in HALF else x


def size_along(x: Tensor, dim: tuple[int, ...]) -> int:
    """The number of elements that a reduction over ``dim`` makes one of."""
    size = 1
    for d in dim:  # a loop: torch.compile does not follow math.prod over a generator
        size *= x.shape[d]
    return size


def selected_size(x: Tensor, mask: Tensor | None, dim: tuple[int, ...], *, keepdim: bool) -> Tensor:
    """How many elements are selected along ``dim``, in ``x``'s dtype."""
    if mask is not None:
        return mask.expand(x.shape).sum(dim, keepdim=keepdim).to(x.dtype)
    size = size_along(x, dim)
    shape = [1 if i in dim else n for i, n in enumerate(x.shape) if keepdim or i not in dim]
    return x.new_full(shape, float(size))
