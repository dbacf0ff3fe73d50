"""One step as a graph of operators, forward and backward, with the user's source positions.

A :class:`Trace` is a dispatch mode: it sees every aten operator that the step runs. The first pass records, per
operator, what it read and wrote (by memory, not by Python object, so that in-place writes and saved tensors are
followed truly) and whether the result is finite. The second pass records the same and keeps the operands of the
operators that the first one found interesting.

Backward operators find the forward operator of their node by sequence number. Some forward operators are followed
by others with the same number (an ``aten.detach``): the first one wins.
"""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nanopsy._torch import autograd_node, local, node_sequence, schema_aliases, sequence_number, storage_key, storage_pin
from nanopsy.registry import Site, user_frames

FACTORIES = frozenset({"empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided", "empty_permuted", "resize_", "set_"})
"""Operators whose result is uninitialised memory: a bad value there means nothing."""

KEEP_ALL = 192 << 20
"""When the whole step's operands fit in this many bytes, the second pass keeps them all."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor as an operator saw it: where its elements lie, and how much had been written there."""

    storage: int
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    writes: int
    argument: str = ""
    requires_grad: bool = False

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def position(self, index: tuple[int, ...]) -> int:
        """Place in the storage of the element at ``index``."""
        return self.offset + sum(i * s for i, s in zip(index, self.stride, strict=True))

    def index_of(self, position: int) -> tuple[int, ...] | None:
        """The element that lies at ``position``, or None."""
        rest = position - self.offset
        if rest < 0 or self.numel == 0:
            return None
        index = [0] * len(self.shape)
        order = sorted(range(len(self.shape)), key=lambda d: -self.stride[d])
        for d in order:
            if self.shape[d] == 1 or self.stride[d] == 0:
                continue
            step = min(rest // self.stride[d], self.shape[d] - 1)
            index[d] = step
            rest -= step * self.stride[d]
        return tuple(index) if rest == 0 else None


@dataclass(slots=True, eq=False)
class TracedOp:
    """One operator application."""

    index: int
    name: str
    func: Any
    node: str
    sequence: int
    forward_op: int | None
    frames: tuple[Site, ...]
    module: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[Ref]
    outputs: list[Ref]
    aliases: tuple[str, ...]
    bad: bool = False
    bad_inputs: tuple[bool, ...] = ()
    from_weights: bool = False
    kept_inputs: list[torch.Tensor] | None = None
    kept_outputs: list[torch.Tensor] | None = None

    @property
    def backward(self) -> bool:
        return bool(self.node)

    @property
    def birth(self) -> bool:
        """Finite inputs, bad output."""
        return self.bad and not any(self.bad_inputs) and self.name not in FACTORIES


@dataclass(slots=True)
class Write:
    """One write to a storage: which operator, which of its outputs."""

    op: int
    output: int


@dataclass(slots=True)
class Recording:
    """All that one traced replay recorded."""

    ops: list[TracedOp] = field(default_factory=list)
    writers: dict[int, list[Write]] = field(default_factory=dict)
    roots: list[Ref] = field(default_factory=list)
    backward_starts: list[int] = field(default_factory=list)
    readers: dict[int, list[int]] = field(default_factory=dict)

    def producer(self, ref: Ref, index: tuple[int, ...] | None = None) -> tuple[TracedOp, int, tuple[int, ...]] | None:
        """The operator that wrote an element (by default the first) of ``ref``, with its output and element there."""
        if index is None:
            index = (0,) * len(ref.shape)
        position = ref.position(index)
        for write in reversed(self.writers.get(ref.storage, [])[: ref.writes]):
            op = self.ops[write.op]
            target = op.outputs[write.output]
            found = target.index_of(position)
            if found is not None:
                return op, write.output, found
        return None

    def producers(self, ref: Ref) -> Iterator[TracedOp]:
        """Every operator that wrote to the memory of ``ref`` before it was read."""
        for write in reversed(self.writers.get(ref.storage, [])[: ref.writes]):
            yield self.ops[write.op]

    def consumers(self, op: TracedOp, output: int = 0) -> list[TracedOp]:
        """The operators that later read an output, before it was written again."""
        if output >= len(op.outputs):
            return []
        ref = op.outputs[output]
        found = []
        for index in self.readers.get(ref.storage, []):
            if index <= op.index:
                continue
            reader = self.ops[index]
            if any(r.storage == ref.storage and r.writes >= ref.writes for r in reader.inputs):
                found.append(reader)
        return found

    def forward_of(self, op: TracedOp) -> TracedOp | None:
        """The forward operator whose node a backward operator belongs to."""
        return self.ops[op.forward_op] if op.forward_op is not None else None

    @property
    def nbytes(self) -> int:
        return sum(ref.nbytes for op in self.ops for ref in (*op.inputs, *op.outputs))


def _bad(tensor: torch.Tensor) -> bool:
    """One reduction; looked at again exactly only when that is not finite."""
    tensor = local(tensor)
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    if not tensor.is_floating_point() or tensor.numel() == 0 or tensor.layout is not torch.strided or tensor.device.type == "meta":
        return False
    if bool(torch.isfinite(tensor.sum())):
        return False
    return not bool(torch.isfinite(tensor).all())


class Trace(TorchDispatchMode):
    """Record a step; ``keep`` names the operators whose operands shall be kept (None: none)."""

    def __init__(self, weights: set[int], keep: Container[int] | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording()
        self.keep = keep
        self._pins: list[object] = []
        self._by_sequence: dict[int, int] = {}
        self._derived: set[int] = set(weights)
        self._modules: list[int] = []
        self._hooks: list[Any] = []
        self.budget = 1 << 30
        self._entered = False

    def start(self) -> None:
        """Enter the mode and follow the module calls."""
        from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        self.__enter__()  # type: ignore[no-untyped-call]
        self._entered = True

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        self._modules.append(id(module))

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._modules:
            self._modules.pop()

    def stop(self) -> Recording:
        """Leave the mode; the recording stays."""
        if self._entered:
            self._entered = False
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return self.recording

    def ref(self, tensor: torch.Tensor, argument: str = "") -> Ref:
        """How the trace knows a tensor now; of a sharded one, the part that lies here."""
        tensor = local(tensor)
        if tensor.layout is not torch.strided:
            return Ref(0, 0, tuple(tensor.shape), (0,) * tensor.dim(), tensor.dtype, 0, argument)
        key = storage_key(tensor)
        return Ref(
            key,
            int(tensor.storage_offset()),
            tuple(tensor.shape),
            tensor.stride(),
            tensor.dtype,
            len(self.recording.writers.get(key, ())),
            argument,
            tensor.requires_grad,
        )

    def backward_begins(self, roots: tuple[torch.Tensor, ...]) -> None:
        """Note the roots of a backward pass as the losses."""
        self.recording.roots = [self.ref(root) for root in roots]
        self.recording.backward_starts.append(len(self.recording.ops))

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        return self.record(func, args, kwargs or {})

    def record(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator, write down what it read and wrote, and return its result."""
        __tracebackhide__ = True  # pytest shows an exception of the operator as if it had run by itself
        recording = self.recording
        node = autograd_node()
        index = len(recording.ops)
        inputs: list[Ref] = []
        tensors: list[torch.Tensor] = []
        schema = func._schema.arguments
        for position, value in enumerate(args):
            self._collect(value, schema[position].name if position < len(schema) else "", inputs, tensors)
        for name, value in kwargs.items():
            self._collect(value, name, inputs, tensors)
        keep = self.keep is not None and index in self.keep and self.budget > 0
        kept_inputs = None
        if keep:
            kept_inputs = [_copy(tensor) for tensor in tensors]
            self.budget -= sum(ref.nbytes for ref in inputs)
        frames = user_frames(sys._getframe(1), most=6)
        out = func(*args, **kwargs)

        forward_op, sequence, node_name = None, sequence_number() - 1, ""
        if node is not None:
            node_name, sequence = node.name(), node_sequence(node)
            forward_op = self._by_sequence.get(sequence)
        if node is None or torch.is_grad_enabled():
            self._by_sequence.setdefault(sequence_number() - 1, index)
        name = func._schema.name.split("::")[1]
        outs = [value for value in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(value, torch.Tensor)]
        if len(outs) == 0 and tensors and name.endswith("_") and name.startswith("_foreach"):
            outs = tensors[: len(args[0])]
        aliases = schema_aliases(func)
        op = TracedOp(index, name, func, node_name, sequence, forward_op, frames, self._modules[-1] if self._modules else 0,
                      _without_tensors(args), _without_tensors(kwargs), inputs, [], aliases)  # fmt: skip
        recording.ops.append(op)
        for ref in inputs:
            recording.readers.setdefault(ref.storage, []).append(index)
        op.from_weights = any(ref.storage in self._derived for ref in inputs)
        for number, tensor in enumerate(outs):
            alias = aliases[number] if number < len(aliases) else aliases[0] if aliases else "write"
            if name == "lift_fresh":
                alias = "fresh"
            self._wrote(op, number, tensor, "write" if name.startswith("_foreach") and name.endswith("_") else alias)
        if op.name not in FACTORIES:
            op.bad = any(_bad(tensor) for tensor, alias in zip(outs, _per_output(aliases, len(outs)), strict=True) if alias != "view")
        if op.bad:
            before = kept_inputs or tensors
            written = {number for number, ref in enumerate(inputs) if ref.writes != len(recording.writers.get(ref.storage, ()))}
            op.bad_inputs = tuple(
                self._was_bad(ref) if number in written and not kept_inputs else _bad(tensor)
                for number, (ref, tensor) in enumerate(zip(inputs, before, strict=True))
            )
        if keep:
            op.kept_inputs = kept_inputs
            op.kept_outputs = [_copy(tensor) for tensor in outs]
            self.budget -= sum(ref.nbytes for ref in op.outputs)
        return out

    def _was_bad(self, ref: Ref) -> bool:
        """Whether memory that an in-place operator has overwritten was bad before."""
        writes = self.recording.writers.get(ref.storage, [])[: ref.writes]
        return bool(writes) and self.recording.ops[writes[-1].op].bad

    def _collect(self, value: Any, name: str, refs: list[Ref], tensors: list[torch.Tensor]) -> None:
        if isinstance(value, torch.Tensor):
            refs.append(self.ref(value, name))
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            for entry in value:
                self._collect(entry, name, refs, tensors)

    def _wrote(self, op: TracedOp, number: int, tensor: torch.Tensor, alias: str) -> None:
        recording = self.recording
        ref = self.ref(tensor)
        if alias == "fresh":
            pin = storage_pin(tensor)
            if pin is not None:
                self._pins.append(pin)
            if op.name == "lift_fresh" or ref.storage not in {source.storage for source in op.inputs}:
                recording.writers[ref.storage] = [Write(op.index, number)]
                recording.readers[ref.storage] = []
                if not op.from_weights:
                    self._derived.discard(ref.storage)
        elif alias == "write":
            recording.writers.setdefault(ref.storage, []).append(Write(op.index, number))
        if op.from_weights:
            self._derived.add(ref.storage)
        op.outputs.append(self.ref(tensor))


def _per_output(aliases: tuple[str, ...], count: int) -> list[str]:
    return [aliases[number] if number < len(aliases) else (aliases[0] if aliases else "write") for number in range(count)]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    tensor = local(tensor.detach())
    return tensor.clone() if tensor.layout is torch.strided else tensor.to_dense()


def _without_tensors(value: Any) -> Any:
    """The arguments of an operator with its tensors left out, so that a recording holds no memory."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return Ellipsis
    if isinstance(value, dict):
        return {key: _without_tensors(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_tensors(entry) for entry in value) if type(value) in (list, tuple) else tuple(map(_without_tensors, value))
    return value


def interesting(recording: Recording, sinks: list[Ref]) -> frozenset[int]:
    """The operators whose operands the second pass shall keep: all of them if small, else the ancestry of births and of the first sinks."""
    if recording.nbytes <= KEEP_ALL:
        return frozenset(range(len(recording.ops)))
    chosen: set[int] = set()
    queue: list[tuple[int, int]] = []
    for op in recording.ops:
        if op.birth:
            queue.append((op.index, 0))
    makers = (recording.producer(sink) for sink in sinks if sink.numel)
    first = sorted({made[0].index for made in makers if made is not None})[:3]
    queue += [(index, 0) for index in first]
    spent = 0
    while queue and spent < KEEP_ALL * 4:
        queue.sort(key=lambda entry: (not recording.ops[entry[0]].bad, entry[1]))
        index, depth = queue.pop(0)
        if index in chosen or depth > 40:
            continue
        chosen.add(index)
        op = recording.ops[index]
        spent += sum(ref.nbytes for ref in (*op.inputs, *op.outputs))
        if op.forward_op is not None:
            queue.append((op.forward_op, depth + 1))
        for ref in op.inputs:
            queue.extend((producer.index, depth + 1) for producer in list(recording.producers(ref))[:4])
        if not op.backward and depth < 6:
            queue.extend((reader.index, depth + 2) for reader in recording.consumers(op)[:4])
    return frozenset(chosen)
