"""What a report shows around the chain: versions and precision settings, the source lines, small pictures of image-like tensors."""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch

from nanopsy import __version__
from nanopsy.findings import Diagnosis, Location
from nanopsy.sources import load as load_source

_AROUND = 4
_SIDE = 96
"""Pixels of a picture's longer side."""
_MOST_PICTURES = 8
_MOST_MARKS = 400


def environment() -> dict[str, Any]:
    """Versions, device and precision settings. No environment variables, no arguments, no host or user name."""
    numpy = _version("numpy")
    found: dict[str, Any] = {
        "nanopsy": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy,
        "system": platform.system(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "default dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "flush denormals": not bool(torch.tensor([1e-42]) * 1.0 > 0),
        "anomaly mode": torch.is_anomaly_enabled(),
        "cuda": str(torch.version.cuda) if torch.version.cuda else None,
    }
    if torch.cuda.is_initialized():
        found |= {
            "device": torch.cuda.get_device_name(),
            "tf32 matmul": torch.backends.cuda.matmul.allow_tf32,
            "tf32 cudnn": torch.backends.cudnn.allow_tf32,
            "cudnn benchmark": torch.backends.cudnn.benchmark,
            "fp16 reduced precision reduction": torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        }
    else:
        found["device"] = "cpu"
    return found


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def shown(file: str) -> str:
    """A path below the working directory relative to it, any other by its last two parts: no home directory leaves the machine."""
    relative = os.path.relpath(file)
    return relative if not relative.startswith("..") else os.path.join(*file.split(os.sep)[-2:])


def source_lines(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """The lines around every place that the findings point to, in windows that do not overlap."""
    wanted: dict[str, set[int]] = {}
    found: list[dict[str, Any]] = []
    for place in _places(diagnosis):
        source = load_source(place.file)
        if source is None:
            continue
        last = len(source.text.splitlines())
        lines = range(max(1, place.line - _AROUND), min(last, (place.end_line or place.line) + _AROUND) + 1)
        wanted.setdefault(place.file, set()).update(lines)
    for file, numbers in wanted.items():
        source = load_source(file)
        text = source.text.splitlines() if source is not None else []
        for start, stop in _runs(sorted(numbers)):
            found.append({"file": shown(file), "start": start, "lines": [line[:400] for line in text[start - 1 : stop]]})
    return found


def _places(diagnosis: Diagnosis) -> Iterator[Location]:
    for finding in diagnosis.findings:
        yield from (place for place in (finding.location, *finding.also) if place is not None)


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    start = last = None
    for number in numbers:
        if start is None or last is None or number != last + 1:
            if start is not None and last is not None:
                yield start, last
            start = number
        last = number
    if start is not None and last is not None:
        yield start, last


def pictures(tensors: Iterable[tuple[str, torch.Tensor]]) -> list[dict[str, Any]]:
    """Small grey or colour pictures of image-like tensors, with the places of bad, zero and selected elements."""
    found: list[dict[str, Any]] = []
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for name, tensor in tensors:
        key = (name, tuple(tensor.shape))
        if key in seen or len(found) >= _MOST_PICTURES or not _image_like(tensor):
            continue
        seen.add(key)
        found.append(_picture(name, tensor.detach().to("cpu")))
    return found


def _image_like(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_complex() and 2 <= tensor.dim() <= 5 and min(tensor.shape[-2:]) >= 4 and tensor.numel() > 0


def _picture(name: str, tensor: torch.Tensor) -> dict[str, Any]:
    exact = tensor.to(torch.float64)
    planes = exact.reshape(-1, *exact.shape[-2:])
    bad = ~torch.isfinite(planes)
    per_plane = bad.sum((1, 2))
    colour = tensor.dim() >= 4 and tensor.shape[-3] == 3
    chosen = int(per_plane.argmax()) if bool(per_plane.any()) else 0
    first = chosen - chosen % 3 if colour else chosen
    block = planes[first : first + 3] if colour else planes[chosen : chosen + 1]
    wrong = ~torch.isfinite(block)
    finite = block[~wrong]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    height, width = block.shape[-2:]
    step = max(1, -(-max(height, width) // _SIDE))
    small = block[:, ::step, ::step]
    scaled = torch.nan_to_num((small - low) / (high - low) if high > low else small * 0, 0.0, 1.0, 0.0)
    pixels = (scaled.clamp(0, 1) * 255).round().to(torch.uint8).permute(1, 2, 0).contiguous()
    marks = (wrong.any(0).nonzero() // step).unique(dim=0)[:_MOST_MARKS].tolist()
    return {
        "name": name, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch."), "plane": first, "low": low, "high": high,
        "bad": int(bad.sum()), "zeros": int((exact == 0).sum()), "count": tensor.numel(), "height": pixels.shape[0], "width": pixels.shape[1],
        "channels": pixels.shape[2], "pixels": base64.b64encode(pixels.numpy().tobytes()).decode(), "marks": marks,
    }  # fmt: skip


def tensors_in(value: Any, name: str, depth: int = 3) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a batch, with where in it they lie."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, entry in list(value.items())[:64]:
            yield from tensors_in(entry, f"{name}[{key!r}]", depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for number, entry in enumerate(value[:64]):
            yield from tensors_in(entry, f"{name}[{number}]", depth - 1)
