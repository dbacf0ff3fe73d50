"""Read a kept recording: the values of elements, which element of an input makes which of the output, and where."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nanopsy.findings import Location
from nanopsy.operators import COPYING, LINEAR, REDUCTIONS, WHOLE_SLICE, base_name
from nanopsy.registry import Registry, locate
from nanopsy.trace import Recording, TracedOp

Index = tuple[int, ...]


def _broadcasts(shape: Index, out: Index) -> bool:
    """Whether a shape broadcasts to exactly ``out``."""
    return len(shape) <= len(out) and all(size in (1, wide) for size, wide in zip(reversed(shape), reversed(out), strict=False))


@dataclass(frozen=True, slots=True)
class Node:
    """One element of one output of one operator."""

    op: TracedOp
    output: int
    index: Index
    value: float


@dataclass(slots=True)
class Values:
    """The values of one kept recording."""

    recording: Recording
    registry: Registry
    names: Mapping[int, str]
    """Storage key -> name of a parameter or buffer."""
    batch: Mapping[int, str]
    """Storage key -> where in the batch the tensor lies."""
    variables: Mapping[int, str] = field(default_factory=dict)
    parameters: Mapping[int, torch.Tensor] = field(default_factory=dict)
    made: Mapping[int, Any] = field(default_factory=dict)
    """Storage key -> the variable or attribute that holds a tensor made before the step."""

    def kept_input(self, op: TracedOp, number: int) -> torch.Tensor | None:
        return op.kept_inputs[number] if op.kept_inputs is not None and number < len(op.kept_inputs) else None

    def kept_output(self, op: TracedOp, number: int = 0) -> torch.Tensor | None:
        return op.kept_outputs[number] if op.kept_outputs is not None and number < len(op.kept_outputs) else None

    def location(self, op: TracedOp) -> Location | None:
        """The user's expression that ran an operator; for backward, the forward expression."""
        if not op.frames and op.backward:
            forward = self.recording.forward_of(op)
            return self.location(forward) if forward is not None else None
        if op.backward:
            forward = self.recording.forward_of(op)
            if forward is not None and forward.frames:
                return locate(forward.frames[0])
        return locate(op.frames[0]) if op.frames else None

    def element(self, tensor: torch.Tensor, index: Index) -> float:
        value = tensor[index] if tensor.dim() else tensor
        if value.is_complex():
            return float(value.abs())
        return float(value)

    def input_index(self, op: TracedOp, out_index: Index, number: int) -> Index | None:
        """The element of an input that makes an element of the output, for element-wise operators."""
        if number >= len(op.inputs) or not op.outputs:
            return None
        shape = op.inputs[number].shape
        if len(shape) > len(out_index):
            return None
        aligned = out_index[len(out_index) - len(shape) :]
        index = tuple(0 if size == 1 else i for i, size in zip(aligned, shape, strict=True))
        return index if all(i < size for i, size in zip(index, shape, strict=True)) else None

    def elementwise(self, op: TracedOp, output: int = 0) -> bool:
        """Whether an operator works element by element (with broadcasting)."""
        name = base_name(op)
        if (name in COPYING and name not in ("clone", "_to_copy", "copy", "where")) or name in LINEAR or name in REDUCTIONS or not op.outputs:
            return False
        out = op.outputs[output].shape
        return all(_broadcasts(ref.shape, out) for ref in op.inputs) and bool(op.inputs)

    def slice_of(self, op: TracedOp, out_index: Index, tensor: torch.Tensor) -> tuple[torch.Tensor, list[int | None]]:
        """The part of a reduction's input that makes one output element, and the fixed coordinates."""
        fixed: list[int | None] = [None] * tensor.dim()
        dims = self.reduced_dims(op, tensor.dim())
        if dims is None:
            return tensor, fixed
        keep = [d for d in range(tensor.dim()) if d not in dims]
        if base_name(op) in WHOLE_SLICE or len(out_index) == tensor.dim():
            for d in keep:
                fixed[d] = out_index[d]
        elif len(out_index) == len(keep):
            for d, i in zip(keep, out_index, strict=True):
                fixed[d] = i
        else:
            return tensor, [None] * tensor.dim()
        return tensor[tuple(slice(None) if i is None else i for i in fixed)], fixed

    def reduced_dims(self, op: TracedOp, rank: int) -> set[int] | None:
        """Dimensions that a reduction runs over; None means all."""
        name = base_name(op)
        arguments = [argument.name for argument in op.func._schema.arguments]
        dim: Any = None
        for key in ("dim", "dims"):
            if key in op.kwargs:
                dim = op.kwargs[key]
            elif key in arguments and arguments.index(key) < len(op.args):
                dim = op.args[arguments.index(key)]
        if dim is None or dim == []:
            return None
        if name == "_weight_norm_interface":
            return None
        dims = [dim] if isinstance(dim, int) else list(dim)
        return {d % rank for d in dims} if rank else set()

    def first_element(self, tensor: torch.Tensor, mask: torch.Tensor) -> Index | None:
        hits = mask.nonzero()
        return tuple(int(i) for i in hits[0]) if len(hits) else None

    def full_index(self, fixed: list[int | None], inner: Index) -> Index:
        rest = iter(inner)
        return tuple(next(rest) if i is None else i for i in fixed)

    def at(self, op: TracedOp, index: Index, number: int) -> tuple[float, Index | None]:
        tensor = self.kept_input(op, number)
        where = self.input_index(op, index, number)
        if tensor is None or where is None:
            return math.nan, None
        return self.element(tensor, where), where

    def scalar(self, op: TracedOp, position: int) -> float | None:
        value = op.args[position] if position < len(op.args) else None
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def selected(self, op: TracedOp, index: Index, number: int) -> bool:
        """Whether ``where`` took this input at ``index``."""
        condition = self.kept_input(op, 0)
        where = self.input_index(op, index, 0)
        if condition is None or where is None:
            return True
        took_first = bool(self.element(condition, where))
        return number == (1 if took_first else 2) or number == 0
