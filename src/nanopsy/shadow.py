"""Differences that lost their digits: what was subtracted from what, and the value in float64."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from nanopsy.operators import CONSTANTS, COPYING, MEANS, RANDOM, base_name
from nanopsy.ranges import Cancellation
from nanopsy.trace import Ref, TracedOp
from nanopsy.values import Index, Node, Values


@dataclass(slots=True)
class Shadow(Values):
    """Recognises cancellation in a recording, and computes slices of it again in float64."""

    def terms(self, node: Node) -> tuple[float, float, Index | None, Index | None]:
        """The two terms of an addition or subtraction, signed, with their input elements."""
        op, name = node.op, base_name(node.op)
        left, where_left = self.at(op, node.index, 0)
        right, where_right = math.nan, None
        if len(op.inputs) > 1:
            right, where_right = self.at(op, node.index, 1)
        else:
            scalar = self.scalar(op, 1)
            right = math.nan if scalar is None else scalar
        alpha = op.kwargs.get("alpha", op.args[2] if len(op.args) > 2 else 1)
        factor = float(alpha) if isinstance(alpha, (int, float)) else 1.0
        if name == "rsub":
            return -left * factor, right, where_left, where_right
        return left, right * factor * (-1.0 if name == "sub" else 1.0), where_left, where_right

    def cancellation(self, node: Node, left: float, right: float) -> Cancellation:
        """What is known of a difference that lost its digits, with its value in float64."""
        op = node.op
        sides = [self._squareness(op, number) for number in range(min(2, len(op.inputs)))]
        one_pass = len(sides) == 2 and {"mean of squares", "squared mean"} <= set(sides)
        determinant = sides[:1] == ["product"] and sides[1:] in (["product"], ["squared mean"], ["square"])
        return Cancellation(abs(left), abs(right), node.value, self.in_float64(node), one_pass, any("square" in side for side in sides),
                            determinant, self.location(op))  # fmt: skip

    def _squareness(self, op: TracedOp, number: int, depth: int = 0) -> str:
        """Is an input a mean of squares, a squared mean, or a product?"""
        ref = op.inputs[number]
        made = self.recording.producer(ref) if ref.numel else None
        if made is None or depth > 5:
            return "other"
        maker, name = made[0], base_name(made[0])
        if name in MEANS:
            inner = self.recording.producer(maker.inputs[0]) if maker.inputs and maker.inputs[0].numel else None
            while inner is not None and base_name(inner[0]) in COPYING and inner[0].inputs and inner[0].inputs[0].numel:
                inner = self.recording.producer(inner[0].inputs[0])
            if inner is not None and (self.is_square(inner[0]) or self._same_factors(inner[0])):
                return "mean of squares"
            return "mean"
        if name in ("div", "mul") and len(maker.inputs) == 1:
            return self._squareness(maker, 0, depth + 1)
        if name in ("div",) and len(maker.inputs) == 2 and maker.inputs[1].numel == 1:
            return self._squareness(maker, 0, depth + 1)
        if self.is_square(maker):
            inside = self._squareness(maker, 0, depth + 1)
            return "squared mean" if inside == "mean" or maker.outputs[0].numel == 1 else "square"
        if name == "mul" and len(maker.inputs) == 2:
            means = [self._mean_behind(maker.inputs[n]) for n in (0, 1)]
            return "squared mean" if means[0] is not None and means[0] == means[1] else "product"
        if name in ("clone", "_to_copy", "neg"):
            return self._squareness(maker, 0, depth + 1)
        return "other"

    def _mean_behind(self, ref: Ref, depth: int = 0) -> int | None:
        """The memory that a mean (or sum) was taken of, through scaling by constants."""
        made = self.recording.producer(ref) if ref.numel else None
        if made is None or depth > 4 or not made[0].inputs:
            return None
        if base_name(made[0]) in MEANS:
            return made[0].inputs[0].storage
        if len(made[0].inputs) == 1 or (base_name(made[0]) == "div" and made[0].inputs[1].numel == 1):
            return self._mean_behind(made[0].inputs[0], depth + 1)
        return None

    def _same_factors(self, op: TracedOp) -> bool:
        return base_name(op) == "mul" and len(op.inputs) == 2 and op.inputs[0].storage == op.inputs[1].storage

    def is_square(self, op: TracedOp) -> bool:
        """x*x, x**2, x.square(), |x|**2."""
        name = base_name(op)
        if name == "square":
            return True
        if name == "pow" and len(op.args) > 1:
            return bool(op.args[1] == 2)
        if name == "mul" and len(op.inputs) == 2:
            first, second = op.inputs
            return (first.storage, first.offset, first.shape) == (second.storage, second.offset, second.shape)
        return False

    def in_float64(self, node: Node) -> float | None:
        """The same element computed again in float64 from as far back as the kept operands reach."""
        budget = [200]
        try:
            shadow = self._shadow(node.op, node.output, 0, budget)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        if shadow is None or shadow.dim() != len(node.index):
            return None
        value = self.element(shadow, node.index)
        return value if math.isfinite(value) else None

    def _shadow(self, op: TracedOp, output: int, depth: int, budget: list[int]) -> torch.Tensor | None:
        budget[0] -= 1
        if op.kept_inputs is None or depth > 12 or budget[0] < 0 or len(op.outputs) != 1 or base_name(op) in RANDOM | CONSTANTS:
            return None
        wide: list[torch.Tensor] = []
        for ref, tensor in zip(op.inputs, op.kept_inputs, strict=True):
            if not tensor.is_floating_point():
                wide.append(tensor)
                continue
            made = self.recording.producer(ref) if ref.numel else None
            deeper = None
            if made is not None and made[0].outputs[made[1]].numel == ref.numel and "write" not in made[0].aliases:
                deeper = self._shadow(made[0], made[1], depth + 1, budget)
            if deeper is not None and made is not None:
                source = made[0].outputs[made[1]]
                if (source.shape, source.stride) != (ref.shape, ref.stride):
                    deeper = deeper.reshape(-1).reshape(ref.shape) if source.numel == ref.numel and source.shape == ref.shape else None
            wide.append(deeper if deeper is not None else tensor.double())
        if base_name(op) == "_to_copy":
            return wide[0]
        if any(isinstance(value, torch.dtype) for value in op.kwargs.values()):
            return None
        kept = iter(wide)

        def fill(value: Any) -> Any:
            if value is Ellipsis:
                return next(kept)
            if isinstance(value, (list, tuple)):
                return [fill(entry) for entry in value]
            return value

        result = op.func(*[fill(value) for value in op.args], **{key: fill(value) for key, value in op.kwargs.items()})
        return result if isinstance(result, torch.Tensor) else None
