"""Checkpoints without pickle: tensors in one safetensors file, the rest as JSON in its header; whole or not there."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nanopsy.depth.encodings import DataError
from nanopsy.depth.writing import atomically

__all__ = ["Parts", "load_checkpoint", "save_checkpoint"]

FORMAT = "1"


@dataclass(slots=True)
class Parts:
    """What a training consists of, beside its data."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LRScheduler
    average: nn.Module | None = None
    """The exponential moving average of the weights, if there is one."""
    scaler: Any = None
    """A ``GradScaler``, under 16-bit mixed precision."""


def _random_states() -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {"random.torch": torch.get_rng_state()}
    for number in range(torch.cuda.device_count() if torch.cuda.is_initialized() else 0):
        tensors[f"random.cuda.{number}"] = torch.cuda.get_rng_state(number)
    version, state, gauss = random.getstate()
    return tensors, {"version": version, "state": list(state), "gauss": gauss}


def save_checkpoint(file: Path, parts: Parts, step: int, extra: Mapping[str, Any]) -> None:
    """Write everything a run needs to go on as if it had never stopped.

    Args:
        file: ``….safetensors``; replaced atomically.
        parts: model, optimizer, schedule, average, scaler.
        step: optimizer steps done.
        extra: JSON of the caller's.
    """
    from safetensors.torch import save

    tensors = {f"model.{name}": value for name, value in parts.model.state_dict().items()}
    if parts.average is not None:
        tensors |= {f"average.{name}": value for name, value in parts.average.state_dict().items()}
    state = parts.optimizer.state_dict()
    plain: dict[str, Any] = {}
    for index, entry in state["state"].items():
        for name, value in entry.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                plain[f"{index}.{name}"] = value
    states, python = _random_states()
    header = {
        "step": step,
        "groups": state["param_groups"],
        "optimizer": plain,
        "scheduler": {key: value for key, value in parts.scheduler.state_dict().items() if isinstance(value, (int, float, str, bool, list, type(None)))},
        "scaler": parts.scaler.state_dict() if parts.scaler is not None else None,
        "python": python,
        "extra": dict(extra),
    }
    blob = save(
        {name: value.detach().cpu().contiguous().clone() for name, value in (tensors | states).items()}, {"format": FORMAT, "nanopsy": json.dumps(header)}
    )
    atomically(file, lambda stream: stream.write(blob))


def load_checkpoint(file: Path, parts: Parts) -> tuple[int, dict[str, Any]]:
    """Put a checkpoint back into the parts; (steps done, the caller's JSON).

    Raises:
        DataError: a file that is missing, truncated, of another format, or of another network.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as store:
            metadata = store.metadata() or {}
            tensors = {name: store.get_tensor(name) for name in store.keys()}  # noqa: SIM118
        if metadata.get("format") != FORMAT:
            raise DataError(
                f"{file.name} has format {metadata.get('format')!r}",
                where=str(file),
                why=f"this version reads format {FORMAT}",
                do="use the version that wrote it",
            )
        header = json.loads(metadata["nanopsy"])
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"{file.name} cannot be read: {error}", where=str(file), why="expected: a checkpoint of a training run", do="resume from another, or start anew"
        ) from None

    def under(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    try:
        parts.model.load_state_dict(under("model."))
        if parts.average is not None:
            parts.average.load_state_dict(under("average."))
    except RuntimeError as error:
        raise DataError(
            f"the checkpoint is of another network: {str(error).splitlines()[-1].strip()}",
            where=str(file),
            why="weights have no place to go",
            do="resume with the run's own config",
        ) from None
    state: dict[int, dict[str, Any]] = {}
    for name, value in under("optimizer.").items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    for name, value in header["optimizer"].items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    parts.optimizer.load_state_dict({"state": state, "param_groups": header["groups"]})
    parts.scheduler.load_state_dict({**parts.scheduler.state_dict(), **header["scheduler"]})
    if parts.scaler is not None and header["scaler"] is not None:
        parts.scaler.load_state_dict(header["scaler"])
    torch.set_rng_state(tensors["random.torch"])
    for name, value in under("random.cuda.").items():
        torch.cuda.set_rng_state(value, int(name))
    python = header["python"]
    random.setstate((python["version"], tuple(python["state"]), python["gauss"]))
    return int(header["step"]), dict(header["extra"])
