"""Euclidean norm and unit vectors, with gradient 0 at the zero vector and no overflow on the way."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._arguments import Dim
from nanopsy.stable._select import binade, largest, positive, wide

__all__ = ["norm", "normalize"]


def _unit(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    """A power of two near the largest component of each vector."""
    return x.new_ones(()) if 0 in x.shape else binade(largest(x.detach(), dim))


class _Norm(torch.autograd.Function):
    """Dimensions are kept. The slope x / norm has length 1, and is 0 at the zero vector."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, dim: tuple[int, ...]) -> Tensor:
        if x.dtype != torch.float64 and x.device.type != "mps":  # its squares neither overflow nor vanish in float64
            return torch.linalg.vector_norm(x, dim=dim, keepdim=True, dtype=torch.float64).to(x.dtype) if dim else x.abs()
        unit = _unit(x, dim)
        return unit * (x / unit).square().sum(dim, keepdim=True).sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, tuple[int, ...]], output: Tensor) -> None:
        x, ctx.dim = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, length = ctx.saved_tensors
        return grad * (x / positive(length)), None


def _norm(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    length: Tensor = _Norm.apply(x, dim)  # type: ignore[no-untyped-call]
    return length


def norm(x: Tensor, dim: Dim = None, *, keepdim: bool = False) -> Tensor:
    """Euclidean norm sqrt(sum(x^2)) with gradient 0 at the zero vector.

    Args:
        x: any shape, any floating dtype (half precision is summed in float32).
        dim: dimension or dimensions of the vectors; None for all.
        keepdim: keep reduced dimensions with size 1.

    Returns:
        The norm, in ``x``'s dtype. Components are scaled by the largest first: neither 1e30 overflows nor 1e-30 vanishes. The gradient is x / norm, of length 1
        everywhere but at zero, where it is 0 (the hand-written root of a sum of squares: NaN).

    >>> norm(torch.tensor([[3e30, 4e30], [0.0, 0.0]]), dim=-1)
    tensor([5.0000e+30, 0.0000e+00])
    """
    where = "nanopsy.stable.norm"
    arguments.floating(where, x=x)
    over = arguments.dims(where, dim, x.ndim)
    length = _norm(wide(x), over)
    return (length if keepdim else length.squeeze(over)).to(x.dtype)


def normalize(x: Tensor, dim: Dim = -1) -> Tensor:
    """Unit vectors x / norm(x); the zero vector stays zero, with gradient 0.

    Args:
        x: any shape, any floating dtype.
        dim: dimension or dimensions of the vectors.

    Returns:
        Vectors of length 1, or 0. ``torch.nn.functional.normalize`` divides by max(norm, 1e-12): its gradient at zero is 1e12, and vectors of length 1e-20 lose
        their direction.

    >>> normalize(torch.tensor([[3e-30, 4e-30], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    where = "nanopsy.stable.normalize"
    arguments.floating(where, x=x)
    over = arguments.dims(where, dim, x.ndim)
    scaled = wide(x) / _unit(wide(x), over)
    return (scaled / positive(_norm(scaled, over))).to(x.dtype)
