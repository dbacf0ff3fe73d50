"""The full state of a failing step as JSON and tensors, and back: parameters, buffers, optimizers, scalers, batch, random states."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from nanopsy._torch import Optimizer, storage_key
from nanopsy.errors import NanopsyError
from nanopsy.registry import Registry
from nanopsy.rewind import Loops, Round
from nanopsy.snapshot import RandomStates

if TYPE_CHECKING:
    from nanopsy.examiner import Examiner

Tensors = dict[str, torch.Tensor]


class NotKeptError(Exception):
    """A value in a batch that a capsule cannot hold: anything but tensors, arrays, numbers, text and containers of them."""


def packed(value: Any, prefix: str, tensors: Tensors, depth: int = 8) -> Any:
    """A value as JSON, its tensors put aside under names; raises :class:`NotKeptError`."""
    numpy = sys.modules.get("numpy")
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and type(value) in (int, float):
        return value if isinstance(value, int) or math.isfinite(value) else {"float": str(value)}
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_complex():
        name = f"{prefix}.{len(tensors)}"
        tensors[name] = value.detach().to("cpu").contiguous().clone()
        return {"tensor": name, "device": value.device.type, "requires_grad": bool(value.requires_grad and value.is_leaf)}
    if numpy is not None and isinstance(value, numpy.ndarray) and value.dtype.kind in "biuf":
        name = f"{prefix}.{len(tensors)}"
        tensors[name] = torch.from_numpy(numpy.ascontiguousarray(value).copy())
        return {"array": name}
    if numpy is not None and isinstance(value, numpy.generic):
        return packed(value.item(), prefix, tensors, depth - 1)
    if depth and isinstance(value, Mapping):
        return {"dict": [[packed(key, prefix, tensors, 0), packed(entry, prefix, tensors, depth - 1)] for key, entry in value.items()]}
    if depth and isinstance(value, (list, tuple)):
        return {"tuple" if isinstance(value, tuple) else "list": [packed(entry, prefix, tensors, depth - 1) for entry in value]}
    raise NotKeptError(f"a {type(value).__name__}")


def unpacked(value: Any, tensors: Tensors, device: torch.device | str = "cpu") -> Any:
    """The value that :func:`packed` wrote."""
    if isinstance(value, dict):
        kind = next(iter(value))
        content = value[kind]
        if kind == "tensor":
            found = tensors[content]
            found = found.to(device) if value.get("device") not in (None, "cpu") else found
            return found.requires_grad_(bool(value.get("requires_grad")))
        if kind == "array":
            return tensors[content].numpy()
        if kind == "float":
            return float(content)
        if kind == "dict":
            return {unpacked(key, tensors, device): unpacked(entry, tensors, device) for key, entry in content}
        entries = [unpacked(entry, tensors, device) for entry in content]
        return tuple(entries) if kind == "tuple" else entries
    return value


def packed_random(states: RandomStates, prefix: str, tensors: Tensors) -> dict[str, Any]:
    version, internal, gauss = states.python
    tensors[f"{prefix}.torch"] = states.torch_cpu.clone()
    for number, state in enumerate(states.torch_cuda):
        tensors[f"{prefix}.cuda{number}"] = state.clone()
    numpy = None
    if states.numpy is not None:
        name, keys, *rest = states.numpy
        tensors[f"{prefix}.numpy"] = torch.tensor([int(key) for key in keys])
        numpy = [str(name), *(float(it) if isinstance(it, float) else int(it) for it in rest)]
    return {"python": [version, list(internal), gauss], "cuda": len(states.torch_cuda), "numpy": numpy}


def unpacked_random(entry: Mapping[str, Any], prefix: str, tensors: Tensors) -> RandomStates:
    version, internal, gauss = entry["python"]
    numpy: Any = None
    if entry["numpy"] is not None and "numpy" in sys.modules:
        name, *rest = entry["numpy"]
        numpy = (name, sys.modules["numpy"].array(tensors[f"{prefix}.numpy"].tolist(), dtype="uint32"), *rest)
    cuda = tuple(tensors[f"{prefix}.cuda{number}"] for number in range(entry["cuda"])) if torch.cuda.is_initialized() else ()
    return RandomStates(tensors[f"{prefix}.torch"], cuda, (version, tuple(internal), gauss), numpy)


@dataclass(slots=True)
class Kept:
    """A full state: what goes into ``state.json`` and into ``state.safetensors``."""

    entry: dict[str, Any]
    tensors: Tensors


def keep(examiner: Examiner) -> Kept:
    """The full state at the top of the failing round; raises :class:`NotKeptError` if a part of it cannot be written down."""
    tensors: Tensors = {}
    registry, loops = examiner.registry, examiner.loops
    if not examiner.rounds or any(it.snapshot is None for it in examiner.rounds):
        raise NotKeptError("a step that is in no loop of the script")
    copies = {id(tensor): copy for tensor, copy in loops.state.shadows()}
    names = []
    for name, tensor in _named(registry):
        names.append(name)
        tensors[f"weights/{name}"] = copies.get(id(tensor), tensor).detach().to("cpu").contiguous().clone()
    rounds = []
    for number, it in enumerate(examiner.rounds):
        assert it.snapshot is not None
        draws = [draw for draw in loops.draws if draw.number >= it.drawn and draw.depth == it.depth]
        rounds.append({
            "item": packed(it.item, f"batch{number}", tensors),
            "random": packed_random(it.snapshot.random, f"random{number}", tensors),
            "draws": [packed(draw.item, f"draw{number}", tensors) for draw in draws],
            "draws_random": [packed_random(draw.random, f"draw{number}.{index}", tensors) for index, draw in enumerate(draws)],
            "generators": _generators(it, f"generators{number}", tensors),
        })  # fmt: skip
    keys = {storage_key(tensor): name for name, tensor in _named(registry)}
    optimizers = [_optimizer(optimizer, number, keys, tensors) for number, optimizer in enumerate(registry.optimizers)]
    scalers = [float(it._scale) if getattr(it, "_scale", None) is not None else None for it in registry.scalers]
    return Kept({"names": names, "rounds": rounds, "optimizers": optimizers, "scalers": scalers, "step": examiner.watch.steps}, tensors)


def _named(registry: Registry) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and buffers of the outermost modules, then the optimizers' other parameters by place."""
    seen: set[int] = set()
    used: set[str] = set()
    for module in sorted(registry.modules, key=lambda module: -sum(1 for _ in module.modules())):
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if id(tensor) not in seen:
                seen.add(id(tensor))
                unique = next(candidate for candidate in _variants(name) if candidate not in used)
                used.add(unique)
                yield unique, tensor
    for number, tensor in enumerate(registry.parameters()):
        if id(tensor) not in seen:
            yield f"parameter.{number}", tensor


def _variants(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}#{number}"
        number += 1


def _generators(it: Round, prefix: str, tensors: Tensors) -> int:
    """The states of torch generators among the loop's names, in order."""
    states = [state for _, state in (it.frame.generators if it.frame is not None else []) if isinstance(state, torch.Tensor)]
    for number, state in enumerate(states):
        tensors[f"{prefix}.{number}"] = state.clone()
    return len(states)


def _optimizer(optimizer: Optimizer, number: int, keys: Mapping[int, str], tensors: Tensors) -> dict[str, Any]:
    state: dict[str, Any] = {}
    for parameter, entries in optimizer.state.items():
        name = keys.get(storage_key(parameter)) if isinstance(parameter, torch.Tensor) else None
        if name is not None:
            try:
                state[name] = packed(dict(entries), f"optimizer{number}/{name}", tensors)
            except NotKeptError:
                continue
    groups = [{key: value for key, value in group.items() if isinstance(value, (int, float, bool)) and key != "params"} for group in optimizer.param_groups]
    return {"class": type(optimizer).__name__, "state": state, "groups": groups}


def put_weights(kept: Kept, registry: Registry) -> None:
    """Put parameters, buffers, optimizer and scaler state in the place of the running script's.

    Raises:
        NanopsyError: the script makes another network than the capsule holds.
    """
    here = dict(_named(registry))
    missing = [name for name in kept.entry["names"] if name not in here]
    wrong = [name for name in kept.entry["names"] if name in here and here[name].shape != kept.tensors[f"weights/{name}"].shape]
    if missing or wrong:
        what = f"{len(missing)} of the capsule's tensors are not in it" if missing else f"{wrong[0]} has another shape"
        raise NanopsyError(f"the script makes another network than the capsule's: {what}", where=", ".join((missing or wrong)[:3]),
                           why="the step cannot be put in its place", do="replay with the script of the capsule, edited where the fault is")  # fmt: skip
    with torch.no_grad():
        for name in kept.entry["names"]:
            here[name].detach().copy_(kept.tensors[f"weights/{name}"])
    for optimizer, entry in zip(registry.optimizers, kept.entry["optimizers"], strict=False):
        if type(optimizer).__name__ != entry["class"]:
            continue
        for name, state in entry["state"].items():
            parameter = here.get(name)
            if parameter is not None:
                optimizer.state[parameter] = unpacked(state, kept.tensors, parameter.device)
    for scaler, scale in zip(registry.scalers, kept.entry["scalers"], strict=False):
        if scale is not None and getattr(scaler, "_scale", None) is not None:
            scaler._scale.fill_(float(scale))


def put_rounds(kept: Kept, loops: Loops, rounds: list[Round], device: torch.device) -> list[Round]:
    """The capsule's rounds in the form of the running loop's own: their items, draws and random states."""
    from nanopsy.rewind import Draw

    template = rounds[-1]
    found: list[Round] = []
    loops.draws.clear()
    for number, entry in enumerate(kept.entry["rounds"]):
        states = unpacked_random(entry["random"], f"random{number}", kept.tensors)
        snapshot = template.snapshot
        assert snapshot is not None
        put = type(snapshot)(states, snapshot.optimizers, snapshot.schedulers, snapshot.scalers)
        item = unpacked(entry["item"], kept.tensors, device)
        frame = template.frame
        if frame is not None and entry["generators"]:
            own = [pair for pair in frame.generators if isinstance(pair[1], torch.Tensor)]
            states_ = [kept.tensors[f"generators{number}.{index}"] for index in range(entry["generators"])]
            others = [pair for pair in frame.generators if not isinstance(pair[1], torch.Tensor)]
            frame = type(frame)(frame.names, frame.attributes, frame.lengths, [*others, *((pair[0], state) for pair, state in zip(own, states_, strict=False))])
        found.append(Round(item, put, frame, template.sequence, template.steps, loops.drawn, template.backwards, template.number, template.depth))
        for index, drawn in enumerate(entry["draws"]):
            after = unpacked_random(entry["draws_random"][index], f"draw{number}.{index}", kept.tensors)
            loops.draws.append(Draw(loops.drawn, unpacked(drawn, kept.tensors, device), after, template.depth))
            loops.drawn += 1
    return found


def checked(entry: Any, tensors: Tensors) -> Kept:
    """A full state read from a capsule, when it has the parts that :func:`keep` writes.

    Raises:
        NanopsyError: it has not.
    """
    try:
        for name in entry["names"]:
            tensors[f"weights/{name}"]
        for number, it in enumerate(entry["rounds"]):
            unpacked(it["item"], tensors)
            random.Random().setstate(unpacked_random(it["random"], f"random{number}", tensors).python)
            for drawn in it["draws"]:
                unpacked(drawn, tensors)
            for index, states in enumerate(it["draws_random"]):
                unpacked_random(states, f"draw{number}.{index}", tensors)
            for index in range(it["generators"]):
                tensors[f"generators{number}.{index}"]
            if len(it["draws_random"]) != len(it["draws"]) or not isinstance(it["generators"], int):
                raise ValueError("draws without random states")
        if not entry["rounds"] or not all(isinstance(it["state"], dict) and isinstance(it["class"], str) for it in entry["optimizers"]):
            raise ValueError("no rounds, or optimizers of another kind")
        for it in entry["optimizers"]:
            if not all(isinstance(name, str) and isinstance(unpacked(state, tensors), dict) for name, state in it["state"].items()):
                raise TypeError("an optimizer's state that is none")
        _ = [float(it) for it in entry["scalers"] if it is not None]
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, RecursionError, OverflowError, StopIteration, IndexError) as error:
        raise NanopsyError(f"the full state in this capsule does not fit together ({type(error).__name__}: {str(error)[:100]})",
                           why="it would be put in the place of a running script's state", do="ask for the capsule again") from None  # fmt: skip
    return Kept(entry, tensors)
