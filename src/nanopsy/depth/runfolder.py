"""The folder of one training run: config, environment, metrics, incidents, pictures, checkpoints."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nanopsy.depth.config import TrainConfig
from nanopsy.depth.writing import atomically, make_folder, write_text
from nanopsy.findings import Diagnosis, plain

__all__ = ["RunFolder", "environment"]


def environment() -> dict[str, str]:
    """Versions and machine; no environment variables, no user, no paths."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": sys.version.split()[0], "system": platform.system(), "machine": platform.machine(), "threads": str(torch.get_num_threads())}
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            found["processor"] = f"{line.partition(':')[2].strip()}, {os.cpu_count()} cores"
            break
    for name in ("torch", "transformers", "lightning-fabric", "torchmetrics", "numpy", "nanopsy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
    return found


class RunFolder:
    """Files of one run; only the first process writes."""

    def __init__(self, path: str | Path, *, writes: bool = True) -> None:
        self.path, self.writes = Path(path), writes
        if writes:
            make_folder(self.path)

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    def begin(self, config: TrainConfig, first_step: int) -> None:
        """Write config and environment; forget metrics of steps that will be done again."""
        if not self.writes:
            return
        write_text(self.path / "config.json", config.to_json() + "\n")
        write_text(self.path / "environment.json", json.dumps(environment(), indent=1) + "\n")
        kept = [line for line in self.lines() if json.loads(line)["step"] <= first_step] if first_step else []
        write_text(self.path / "metrics.jsonl", "".join(line + "\n" for line in kept))

    def lines(self) -> list[str]:
        """The metrics so far, one JSON text each; a line that a kill cut short is left out."""
        file = self.path / "metrics.jsonl"
        found = []
        for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
            try:
                json.loads(line)
            except ValueError:
                continue
            found.append(line)
        return found

    def add(self, entry: Mapping[str, Any]) -> None:
        """One line of metrics."""
        if self.writes:
            with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(plain(dict(entry)), allow_nan=False) + "\n")

    def incidents(self, diagnosis: Diagnosis) -> None:
        """What the watch saw, in the JSON of ``nanopsy run``."""
        if self.writes:
            write_text(self.path / "incidents.json", json.dumps(diagnosis.to_dict(), indent=1, allow_nan=False, default=str) + "\n")

    def picture(self, step: int, rows: list[tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]], max_depth: float) -> None:
        """Pictures, predictions and targets side by side, one row each; depth on a logarithmic colour scale."""
        if not self.writes or not rows:
            return
        from matplotlib import colormaps
        from PIL import Image

        def coloured(depth: NDArray[np.float32]) -> NDArray[np.uint8]:
            seen = np.isfinite(depth) & (depth > 0)
            level = 1 - np.log(np.clip(np.where(seen, depth, max_depth), max_depth / 100, max_depth) / (max_depth / 100)) / np.log(100)
            pixels = np.asarray(colormaps["magma"](level)[..., :3] * 255, np.uint8)
            return np.where(seen[..., None], pixels, np.uint8(0))

        sheet = np.vstack(
            [np.hstack([(np.clip(image, 0, 1) * 255).astype(np.uint8), coloured(predicted), coloured(target)]) for image, predicted, target in rows]
        )
        make_folder(self.path / "pictures")
        atomically(self.path / "pictures" / f"step-{step:06d}.png", lambda file: Image.fromarray(sheet).save(file, format="PNG"))
