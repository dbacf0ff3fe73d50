"""The error of a stable function in ulp, against its reference in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from subjects import Subject

FORMATS = (torch.float32, torch.float16, torch.bfloat16)


def tuple_of(x: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return x if isinstance(x, tuple) else (x,)


def ulp(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance to the next number of the format, in float64."""
    size = value.abs().double().clamp(min=torch.finfo(dtype).smallest_normal)
    return torch.exp2(size.log2().floor()) * torch.finfo(dtype).eps


def errors(subject: Subject, dtype: torch.dtype, seed: int, size: int = 8) -> tuple[float, float]:
    """The largest error of the values, and of the gradients of each output, on one set of ordinary inputs of this format."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [x.to(dtype).requires_grad_() for x in subject.make(generator, size)]
    constants = subject.constants(generator, size)
    exact = [x.detach().double().requires_grad_() for x in inputs]
    outputs, references = tuple_of(subject.call(*constants, *inputs)), tuple_of(subject.reference(*constants, *exact))
    value = gradient = 0.0
    for output, reference in zip(outputs, references, strict=True):
        assert output.shape == reference.shape
        assert output.isfinite().all()
        scale = ulp(reference.detach().abs().clamp(min=subject.floor), output.dtype)
        value = max(value, float(((output.double() - reference).detach().abs() / scale).max()))
        weight = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        mine = torch.autograd.grad(output, inputs, weight, retain_graph=True, allow_unused=True, materialize_grads=True)
        theirs = torch.autograd.grad(reference, exact, weight.double(), retain_graph=True, allow_unused=True, materialize_grads=True)
        for a, b in zip(mine, theirs, strict=True):
            assert a.dtype == dtype
            assert a.isfinite().all()
            unit = ulp(b, dtype) if subject.elementwise else ulp(b.abs().max(), dtype)
            gradient = max(gradient, float(((a.double() - b).abs() / unit).max()))
    return value, gradient
