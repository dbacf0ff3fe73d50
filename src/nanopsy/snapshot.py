"""The state that running a step again needs, taken at the top of a round and put back.

Random states (torch CPU and CUDA, Python, NumPy), module buffers, the hyper-parameters of optimizers, schedulers
and gradient scalers, and the local names of the loop's frame. Parameters need no copy: an incident is caught
before the optimizer writes.
"""

from __future__ import annotations

import ctypes
import random
import sys
import weakref
from dataclasses import dataclass, field
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from nanopsy.instrument import holds_training_loop, is_user_file
from nanopsy.registry import Registry

_SMALL = 1 << 20
"""Buffers up to this many bytes are copied each round (batch norm writes them without bumping their version); larger
ones only once their version has been seen to change."""
_HELD = 4 << 20
"""Tensors among local names are held over a round up to this many bytes."""
_LEFT_OUT = object()
_USER_CLASSES: dict[type, bool] = {}
_PLAIN = (int, float, str, bool, bytes, complex, tuple, type(None), torch.device, torch.dtype)


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The global random states: torch CPU and CUDA, Python, NumPy."""

    torch_cpu: torch.Tensor
    torch_cuda: tuple[torch.Tensor, ...]
    python: Any
    numpy: Any

    @classmethod
    def now(cls) -> RandomStates:
        numpy = sys.modules.get("numpy")
        cuda = tuple(torch.cuda.get_rng_state_all()) if torch.cuda.is_initialized() else ()
        return cls(torch.get_rng_state(), cuda, random.getstate(), numpy.random.get_state() if numpy is not None else None)

    def restore(self) -> None:
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)
        random.setstate(self.python)
        numpy = sys.modules.get("numpy")
        if numpy is not None and self.numpy is not None:
            numpy.random.set_state(self.numpy)


@dataclass(slots=True)
class Snapshot:
    """Random states and small mutable state; buffers live in the :class:`State` that took it."""

    random: RandomStates
    optimizers: list[tuple[Any, list[dict[str, Any]]]]
    schedulers: list[tuple[Any, dict[str, Any]]]
    scalers: list[tuple[Any, torch.Tensor | None, torch.Tensor | None]]


@dataclass(slots=True)
class _Buffer:
    module: weakref.ref[torch.nn.Module]
    name: str
    tensor: torch.Tensor
    shadow: torch.Tensor | None = None
    version: int = -1
    large: bool = False


def _shallow(value: Any) -> Any:
    if type(value) in (list, dict, set):
        return value.copy()
    return value


@dataclass(slots=True)
class State:
    """Takes and restores snapshots of everything in a registry."""

    registry: Registry
    _buffers: list[_Buffer] = field(default_factory=list)
    _known: int = -1

    def _refresh(self) -> None:
        known = len(self.registry.buffered) * 4096 + sum(1 for _ in self.registry.optimizers)
        if known == self._known:
            return
        self._known = known
        kept = {id(buffer.tensor): buffer for buffer in self._buffers}
        self._buffers = []
        for module in list(self.registry.buffered):
            for name, tensor in module._buffers.items():
                if tensor is not None:
                    self._buffers.append(kept.get(id(tensor)) or _Buffer(weakref.ref(module), name, tensor))

    def take(self, *, buffers: bool) -> Snapshot:
        """A snapshot of now; ``buffers`` False keeps the buffers of the last full one."""
        if buffers:
            self._take_buffers()
        return Snapshot(
            RandomStates.now(),
            [(opt, [_hyper(group) for group in opt.param_groups]) for opt in self.registry.optimizers if hasattr(opt, "param_groups")],
            [(it, {key: _shallow(value) for key, value in it.__dict__.items()}) for it in self.registry.schedulers],
            [(it, _clone(it._scale), _clone(it._growth_tracker)) for it in self.registry.scalers if hasattr(it, "_scale")],
        )

    def _take_buffers(self) -> None:
        self._refresh()
        copies: dict[torch.dtype, tuple[list[torch.Tensor], list[torch.Tensor]]] = {}
        for buffer in self._buffers:
            module = buffer.module()
            current = module._buffers.get(buffer.name) if module is not None else None
            if current is None:
                continue
            if current is not buffer.tensor or buffer.shadow is None:
                if current is not buffer.tensor:
                    buffer.tensor, buffer.shadow, buffer.version = current, None, -1
                buffer.large = current.numel() * current.element_size() > _SMALL
            if buffer.large:
                before, buffer.version = buffer.version, current._version
                if before in (-1, buffer.version):
                    continue
            if buffer.shadow is None:
                buffer.shadow = current.detach().clone()
                continue
            targets, sources = copies.setdefault(current.dtype, ([], []))
            targets.append(buffer.shadow)
            sources.append(current)
        with torch.no_grad():
            for targets, sources in copies.values():
                torch._foreach_copy_(targets, sources)

    def buffers_now(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Copies of all buffers as they are, for :meth:`put_buffers`."""
        return [(buffer.tensor, buffer.tensor.detach().clone()) for buffer in self._buffers if buffer.shadow is not None]

    def shadows(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Each buffer with its copy of the top of the round; buffers that no round has changed have none."""
        return [(buffer.tensor, buffer.shadow) for buffer in self._buffers if buffer.shadow is not None]

    def put_shadows(self) -> None:
        """Give the buffers what they held at the top of the round."""
        with torch.no_grad():
            for tensor, shadow in self.shadows():
                tensor.detach().copy_(shadow)

    def forget_buffers(self) -> None:
        """Take what the buffers hold now for the state of the round's top: somebody has put it there on purpose."""
        with torch.no_grad():
            for buffer in self._buffers:
                if buffer.shadow is not None:
                    buffer.shadow.copy_(buffer.tensor)

    @staticmethod
    def put_buffers(copies: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        with torch.no_grad():
            for tensor, copy in copies:
                tensor.copy_(copy)

    def restore(self, snapshot: Snapshot, *, buffers: bool) -> None:
        """Put everything back; ``buffers`` False leaves the buffers alone."""
        snapshot.random.restore()
        if buffers:
            with torch.no_grad():
                for buffer in self._buffers:
                    module = buffer.module()
                    if module is None or buffer.shadow is None:
                        continue
                    buffer.tensor.detach().copy_(buffer.shadow)
                    buffer.version = buffer.tensor._version
                    module._buffers[buffer.name] = buffer.tensor
        for optimizer, groups in snapshot.optimizers:
            for group, saved in zip(optimizer.param_groups, groups, strict=False):
                group.update(saved)
        for scheduler, saved in snapshot.schedulers:
            scheduler.__dict__.update({key: _shallow(value) for key, value in saved.items()})
        for scaler, scale, tracker in snapshot.scalers:
            scaler._scale, scaler._growth_tracker = _clone(scale), _clone(tracker)
            scaler._per_optimizer_states.clear()


def _hyper(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in group.items() if key != "params"}


def _clone(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.clone()


def _is_user_class(kind: type) -> bool:
    known = _USER_CLASSES.get(kind)
    if known is None:
        known = _USER_CLASSES[kind] = _made_by_user(kind)
    return known


def _made_by_user(kind: type) -> bool:
    if kind.__module__ in ("builtins", "torch", "numpy") or issubclass(kind, (type, ModuleType, FunctionType, MethodType)):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return isinstance(file, str) and is_user_file(file) and kind.__dictoffset__ != 0


def _generator_state(value: Any) -> Any:
    """The state of a random generator object (Python's, NumPy's, torch's), or None for anything else."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, torch.Generator):
        return value.get_state()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        if isinstance(value, numpy.random.Generator):
            return value.bit_generator.state
        if isinstance(value, numpy.random.RandomState):
            return value.get_state()
    return None


def _restore_generator(value: Any, state: Any) -> None:
    if isinstance(value, random.Random):
        value.setstate(state)
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = state
    else:
        value.set_state(state)


def _may_be_generator(kind: type) -> bool:
    return issubclass(kind, (random.Random, torch.Generator)) or kind.__name__ in ("Generator", "RandomState")


def _without_graph(value: Any) -> Any:
    """A local value without the memory that only its graph or its size keeps: the last step's activations must not outlive it."""
    if isinstance(value, torch.Tensor):
        if value.grad_fn is None and (value.requires_grad or value.numel() * value.element_size() <= _HELD):
            return value
        return value.detach() if value.numel() * value.element_size() <= _HELD else _LEFT_OUT
    if type(value) is tuple and any(isinstance(entry, torch.Tensor) for entry in value):
        kept = tuple(_without_graph(entry) for entry in value)
        return _LEFT_OUT if any(entry is _LEFT_OUT for entry in kept) else kept
    if type(value) in (list, dict):
        entries = value.values() if isinstance(value, dict) else value[:8]
        if any(isinstance(entry, torch.Tensor) and entry.grad_fn is not None for entry in entries):
            return _LEFT_OUT
    return value


_COUNTERS = (int, float, bool, str, type(None))
_MOST_OWNERS = 64
_COUNTING = frozenset({"accelerate"})
"""Packages whose objects, among the names of a script's own loop, count its batches."""


def _counts(kind: type) -> bool:
    return kind.__module__.split(".")[0] in _COUNTING


def _progress(owner: Any) -> list[Any]:
    """The objects in which a framework's loop counts its progress: itself and what hangs on it, of the same package, three levels down."""
    package = type(owner).__module__.split(".")[0]
    found: list[Any] = []
    level = [owner]
    for _ in range(4):
        beyond: list[Any] = []
        for thing in level:
            if len(found) >= _MOST_OWNERS or not hasattr(thing, "__dict__") or any(thing is known for known in found):
                continue
            found.append(thing)
            for entry in vars(thing).values():
                kind = type(entry)
                if kind.__module__.split(".")[0] == package and hasattr(entry, "__dict__") and kind.__name__ != "Trainer":
                    if not isinstance(entry, (torch.nn.Module, type, FunctionType, MethodType)):
                        beyond.append(entry)
        level = beyond
    return found


@dataclass(slots=True)
class FrameState:
    """The loop's local names, and what hangs on them: plain attributes of the user's own objects, lengths of lists, random generators."""

    names: dict[str, Any]
    attributes: list[tuple[Any, dict[str, Any]]]
    lengths: list[tuple[list[Any], int]]
    generators: list[tuple[Any, Any]]

    @classmethod
    def of(cls, frame: FrameType) -> FrameState:
        names = {name: kept for name, value in frame.f_locals.items() if (kept := _without_graph(value)) is not _LEFT_OUT}
        attributes, lengths, generators = [], [], []
        found: list[Any] = list(names.values())
        if frame.f_globals is not frame.f_locals:
            found += [value for value in frame.f_globals.values() if _may_be_generator(type(value)) or _counts(type(value))]
        for value in found:
            if type(value) is list:
                lengths.append((value, len(value)))
            elif _may_be_generator(type(value)):
                state = _generator_state(value)
                if state is not None:
                    generators.append((value, state))
            elif _is_user_class(type(value)):
                kept = {}
                for key, entry in value.__dict__.items():
                    held = _without_graph(entry) if isinstance(entry, (torch.Tensor, tuple)) else entry
                    if held is not _LEFT_OUT and isinstance(held, (*_PLAIN, torch.Tensor)) and not isinstance(held, torch.nn.Parameter):
                        kept[key] = held
                    elif type(entry) is list:
                        lengths.append((entry, len(entry)))
                    elif _may_be_generator(type(entry)):
                        state = _generator_state(entry)
                        if state is not None:
                            generators.append((entry, state))
                attributes.append((value, kept))
        owners = [value for value in found if _counts(type(value))]
        if holds_training_loop(frame.f_code.co_filename):
            owners.append(frame.f_locals.get("self"))
        for owner in owners:
            attributes += [(thing, {k: v for k, v in vars(thing).items() if type(v) in _COUNTERS}) for thing in _progress(owner)]
        return cls(names, attributes, lengths, generators)

    def restore(self, frame: FrameType) -> None:
        """Give the names their old values; names made since stay."""
        names = frame.f_locals
        for key, value in self.names.items():
            if names.get(key) is not value:
                names[key] = value
        if frame.f_globals is not names and sys.version_info < (3, 13):
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        for owner, kept in self.attributes:
            for key, value in kept.items():
                if owner.__dict__.get(key) is not value:
                    owner.__dict__[key] = value
        for entries, length in self.lengths:
            if len(entries) > length:
                del entries[length:]
        for generator, state in self.generators:
            _restore_generator(generator, state)
