"""Cut the failing chain out of a kept recording: the birth, what made its operands, and the tensors where that begins.

Forward births are shown as they were: operators from the constants to the first bad result. Births in backward are shown as the
forward operators concerned and the gradient that arrived at the last of them. A slice is believed only if it fails when it is run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nanopsy.capsule.chain import DTYPES, Chain, ChainStep, Constant, Spread, allowed
from nanopsy.capture.execute import Result, run
from nanopsy.findings import Location
from nanopsy.operators import CONSTANTS, LINEAR, RANDOM, base_name, dtype_name
from nanopsy.sources import load as load_source
from nanopsy.story import Ancestry, Story
from nanopsy.trace import FACTORIES, Ref, TracedOp

MOST_UPSTREAM = 8
"""Operators before the birth that a chain shows, at most."""
_LARGEST = 64 << 20
"""Bytes of all constants of a chain, before it is cut down."""
_IDENTITIES = frozenset({"detach", "alias", "lift_fresh"})
_BINS = 24


@dataclass(slots=True)
class Slice:
    """A chain with the values of its constants."""

    chain: Chain
    values: dict[str, torch.Tensor]

    def fails(self) -> bool:
        """Whether the chain, run by itself, still comes to a bad value."""
        try:
            return bool(run(self.chain, self.values).bad)
        except Exception:
            return False

    def result(self) -> Result:
        return run(self.chain, self.values)

    def counted(self) -> Slice:
        """With the zeros and NaN of what is left noted in the constants."""
        constants = []
        for it in self.chain.constants:
            value = self.values[it.name]
            bad = int(value.isnan().sum()) if value.is_floating_point() else 0
            constants.append(replace(it, zeros=int((value == 0).sum()), bad=bad))
        return Slice(replace(self.chain, constants=tuple(constants)), self.values)


def spread_of(tensor: torch.Tensor) -> Spread:
    """Range, counts and histogram of a tensor."""
    values = tensor.detach().reshape(-1)
    count = values.numel()
    if not count:
        return Spread()
    if values.dtype == torch.bool:
        zeros = int((~values).sum())
        return Spread(0.0, 1.0, zeros, 0, count, (zeros, count - zeros))
    exact = values.to(torch.float64)
    finite = exact[torch.isfinite(exact)]
    if not finite.numel():
        return Spread(bad=count, count=count)
    low, high = float(finite.min()), float(finite.max())
    bins: tuple[int, ...] = ()
    if high > low and math.isfinite(high - low):
        places = ((finite - low) / (high - low) * _BINS).long().clamp(0, _BINS - 1)
        bins = tuple(torch.bincount(places, minlength=_BINS).tolist())
    return Spread(low, high, int((exact == 0).sum()), count - finite.numel(), count, bins)


@dataclass(slots=True)
class Slicer:
    """Builds slices of one recording."""

    story: Story
    made: dict[tuple[int, int, tuple[int, ...], tuple[int, ...], int], list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in self.story.recording.ops:
            for ref in op.outputs:
                self.made.setdefault((ref.storage, ref.offset, ref.shape, ref.stride, ref.writes), []).append(op.index)

    def slices(self, ancestry: Ancestry) -> Iterator[Slice]:
        """Candidates, the most telling first: with what made the operands, then with less of it, then the birth alone."""
        ops = self._core(ancestry)
        if not ops:
            return
        backward = ops[0].backward
        forwards = [self.story.recording.forward_of(op) if op.backward else op for op in ops]
        if any(op is None or op.kept_inputs is None for op in forwards):
            return
        core = sorted({op.index for op in forwards if op is not None})
        arrived = self._arrived(ops[-1]) if backward else None
        for depth in (MOST_UPSTREAM, 3, 0):
            built = self._build(core, depth, backward=backward, arrived=arrived)
            if built is not None:
                yield built

    def _core(self, ancestry: Ancestry) -> list[TracedOp]:
        """The operators from the one where NaN appeared (if the birth was an infinity) back to the birth; all forward or all backward."""
        chain = ancestry.chain
        if not chain or (ancestry.constant is not None and ancestry.nan_birth is None):
            return []
        if ancestry.constant is not None and ancestry.nan_birth is not None:
            return [ancestry.nan_birth.op]
        first = chain[-1].op
        nodes = [first]
        if ancestry.nan_birth is not None and len(chain) > 1:
            at = next(i for i, node in enumerate(chain) if node is ancestry.nan_birth)
            between = [node.op for node in chain[at:]]
            if all(op.backward == first.backward for op in between) and len(between) <= MOST_UPSTREAM:
                nodes = between
        return nodes

    def _arrived(self, op: TracedOp) -> torch.Tensor | None:
        """The gradient that arrived at the node of a backward operator: what the node's operators read and none of them wrote."""
        recording = self.story.recording
        forward = recording.forward_of(op)
        if forward is None or not forward.outputs:
            return None
        mine = [it for it in recording.ops if it.backward and it.forward_op == op.forward_op and it.node == op.node]
        written = {ref.storage for it in mine for ref in it.outputs}
        saved = {ref.storage for ref in (*forward.inputs, *forward.outputs)}
        for it in mine:
            for number, ref in enumerate(it.inputs):
                if ref.shape == forward.outputs[0].shape and ref.storage not in written | saved:
                    return self.story.kept_input(it, number)
        return None

    def _build(self, core: list[int], depth: int, *, backward: bool, arrived: torch.Tensor | None) -> Slice | None:
        recording = self.story.recording
        chosen = set(core)
        frontier = list(core)
        left = depth
        while frontier and left > 0:
            op = recording.ops[frontier.pop(0)]
            for ref in op.inputs:
                before = self._maker(ref, op.index)
                if before is not None and before.index not in chosen and left > 0 and _follows(before):
                    chosen.add(before.index)
                    frontier.append(before.index)
                    left -= 1
        built = _Built(self, sorted(chosen), backward=backward)
        return built.slice(arrived)

    def _maker(self, ref: Ref, before: int) -> TracedOp | None:
        """The operator whose output is exactly this tensor, as it was read; identities are looked through."""
        for index in reversed(self.made.get((ref.storage, ref.offset, ref.shape, ref.stride, ref.writes), [])):
            op = self.story.recording.ops[index]
            if index < before and op.name not in _IDENTITIES:
                return op
        return None


def _follows(op: TracedOp) -> bool:
    """Whether a chain may go on to what an operator was given: cheap, deterministic, without side effects."""
    name = base_name(op)
    return (
        not op.backward and op.kept_inputs is not None and bool(op.inputs) and name == op.name
        and name not in LINEAR | RANDOM | CONSTANTS | FACTORIES and allowed(str(op.func)) and "Tensor[]" not in str(op.func._schema).split("->")[-1]
    )  # fmt: skip


class _Built:
    """One slice in the making: names for tensors, steps, constants."""

    def __init__(self, slicer: Slicer, ops: list[int], *, backward: bool) -> None:
        self.slicer, self.story, self.backward = slicer, slicer.story, backward
        self.ops = [slicer.story.recording.ops[index] for index in ops]
        self.inside = set(ops)
        self.names: dict[tuple[int, int], str] = {}
        self.constants: dict[tuple[int, int, tuple[int, ...], tuple[int, ...], int], Constant] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.steps: list[ChainStep] = []
        self.failed = False

    def _name(self) -> str:
        number = len(self.names) + len(self.constants)
        return "abcdefghijklmnopqrstuvwxyz"[number % 26] + (str(number // 26) if number >= 26 else "")

    def slice(self, arrived: torch.Tensor | None) -> Slice | None:
        for op in self.ops:
            self._step(op)
            if self.failed:
                return None
        constants = list(self.constants.values())
        if self.backward:
            floats = [it for it in constants if it.dtype.startswith(("float", "bfloat"))]
            if not any(it.requires_grad for it in floats):
                constants = [replace(it, requires_grad=it in floats) for it in constants]
            last = self.steps[-1].out[0]
            shape = self.ops[-1].outputs[0]
            gradient = arrived.detach().to("cpu") if arrived is not None else torch.ones(shape.shape, dtype=shape.dtype)
            name = self._name()
            self.values[name] = gradient
            constants.append(
                Constant(
                    name, dtype_name(gradient.dtype), tuple(gradient.shape), "the gradient that arrived here", False, tuple(gradient.shape), spread_of(gradient)
                )
            )
            chain = Chain(tuple(constants), tuple(self.steps), (last, name))
        else:
            chain = Chain(tuple(constants), tuple(self.steps))
        if sum(value.numel() * value.element_size() for value in self.values.values()) > _LARGEST or any(it.dtype not in DTYPES for it in constants):
            return None
        return Slice(chain, self.values)

    def _step(self, op: TracedOp) -> None:
        tensors = iter(range(len(op.inputs)))
        schema = op.func._schema
        func = op.func
        if op.name.endswith("_") and not op.name.endswith("__"):
            functional = getattr(getattr(torch.ops.aten, op.name[:-1], None), func._overloadname, None)
            if functional is None:
                self.failed = True
                return
            func = functional
        if not allowed(str(func)):
            self.failed = True
            return
        args = [self._argument(value, op, tensors) for value in op.args]
        kwargs = {key: self._argument(value, op, tensors) for key, value in op.kwargs.items()}
        kwargs = {key: value for key, value in kwargs.items() if key not in ("device", "layout", "pin_memory", "memory_format", "non_blocking", "out")}
        for position, argument in enumerate(schema.arguments[: len(args)]):
            if argument.name in ("device", "layout", "memory_format"):
                args[position] = None
        outs = []
        for number in range(max(len(op.outputs), 1)):
            name = self._name()
            self.names[op.index, number] = name
            outs.append(name)
        location = self.story.location(op)
        node_value = self.story.kept_output(op, 0)
        shown = f"{float(node_value):.6g}" if node_value is not None and node_value.numel() == 1 and not node_value.is_complex() else ""
        self.steps.append(ChainStep(tuple(outs), str(func), tuple(args), kwargs, _short(location), _code(location), shown))

    def _argument(self, value: Any, op: TracedOp, tensors: Iterator[int]) -> Any:
        if value is Ellipsis:
            return {"tensor": self._tensor(op, next(tensors))}
        if isinstance(value, (list, tuple)):
            return [self._argument(entry, op, tensors) for entry in value]
        if isinstance(value, torch.dtype):
            name = dtype_name(value)
            self.failed |= name not in DTYPES
            return {"dtype": name}
        if isinstance(value, float) and not math.isfinite(value):
            return {"float": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
            return None
        self.failed = True
        return None

    def _tensor(self, op: TracedOp, number: int) -> str:
        ref = op.inputs[number]
        maker = self.slicer._maker(ref, op.index)
        if maker is not None and maker.index in self.inside and maker.index < op.index:
            for output, made in enumerate(maker.outputs):
                if (made.storage, made.offset, made.shape, made.stride, made.writes) == (ref.storage, ref.offset, ref.shape, ref.stride, ref.writes):
                    return self.names[maker.index, output]
        key = (ref.storage, ref.offset, ref.shape, ref.stride, ref.writes)
        known = self.constants.get(key)
        if known is not None:
            return known.name
        kept = self.story.kept_input(op, number)
        if kept is None or kept.is_complex() or kept.layout is not torch.strided:
            self.failed = True
            return "a"
        value = kept.detach().to("cpu").contiguous()
        name = self._name()
        self.constants[key] = Constant(
            name, dtype_name(value.dtype), tuple(value.shape), self._what(ref, op), ref.requires_grad, tuple(value.shape), spread_of(value)
        )
        self.values[name] = value
        return name

    def _what(self, ref: Ref, op: TracedOp) -> str:
        for table in (self.story.names, self.story.batch, self.story.variables):
            if ref.storage in table:
                return table[ref.storage]
        maker = self.slicer._maker(ref, op.index)
        return _code(self.story.location(maker)) if maker is not None else ""


def _short(location: Location | None) -> str:
    import os

    if location is None:
        return ""
    relative = os.path.relpath(location.file)
    return f"{location.file if relative.startswith('..') else relative}:{location.line}:{location.column}"


def _code(location: Location | None) -> str:
    """The expression at a location, as the user wrote it."""
    source = load_source(location.file) if location is not None else None
    if source is None or location is None or not location.end_line:
        return ""
    lines = source.text.splitlines()
    if location.line > len(lines):
        return ""
    if location.end_line == location.line:
        return lines[location.line - 1][location.column - 1 : location.end_column - 1]
    return lines[location.line - 1][location.column - 1 :] + " ..."
