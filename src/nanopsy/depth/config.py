"""Everything a training depends on, as one frozen object that is also its config file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from nanopsy.depth.augment import Augment
from nanopsy.depth.encodings import DataError
from nanopsy.depth.recipes import Recipe
from nanopsy.depth.samples import pick
from nanopsy.stable import _arguments as arguments

__all__ = ["PRECISIONS", "Data", "Optimization", "TrainConfig"]

PRECISIONS = ("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true")
"""In Fabric's words. ``bf16-true``: weights, pictures, labels and so the loss are bfloat16, as Lightning's Trainer does it."""


@dataclass(frozen=True, slots=True)
class Data:
    """Which frames train and which are evaluated."""

    name: str = "scenes"
    """A key of `nanopsy.depth.datasets.DATASETS`."""
    options: dict[str, Any] = field(default_factory=dict)
    """Of the training set: root, split …"""
    evaluate: dict[str, Any] = field(default_factory=dict)
    """Options of the evaluation set, over those of the training set."""
    crop: tuple[int, int] | None = None
    """Training crop, height and width; None: whole frames."""
    augment: str = "bts"
    """``bts``: rotation, flip, colour; ``crop``: the crop alone; ``none``."""
    median_scaling: bool = False
    """Evaluate up to scale: for losses that leave the scale free."""
    cache: bool | None = None
    """Keep raw frames in memory; None: only those of procedural scenes, which are small."""
    workers: int = 0

    @property
    def cached(self) -> bool:
        """What ``cache`` comes to."""
        return self.name == "scenes" if self.cache is None else self.cache

    def augmentation(self) -> Augment | None:
        """The pipeline that the three words stand for."""
        pick(("bts", "crop", "none"), self.augment, "nanopsy.depth.config.Data: augment")
        if self.augment == "none":
            return None
        if self.augment == "bts":
            return Augment.bts(self.crop)
        return Augment(crop=self.crop)


@dataclass(frozen=True, slots=True)
class Optimization:
    """AdamW and its schedule."""

    lr: float = 3e-4
    schedule: str = "onecycle"
    """``onecycle`` (BTS: div_factor 25, final_div_factor 100), ``cosine`` (DepthFormer: linear warm-up over a third of the steps), ``constant``."""
    weight_decay: float = 1e-2
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    clip: float = 0.0
    """Largest gradient norm; 0: not clipped."""
    average: float = 0.0
    """Decay of an exponential moving average of the weights, which is then evaluated; 0: none."""


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """One training run."""

    data: Data = field(default_factory=Data)
    model: str = "bts"
    size: str = "tiny"
    backbone: str | None = None
    """None: the model's own."""
    checkpoint: str | None = None
    """Pretrained encoder weights, a local .safetensors file."""
    head: str | None = None
    """None: the recipe's (``sigmoid`` or ``logsigmoid``)."""
    recipe: Recipe = field(default_factory=Recipe)
    optimization: Optimization = field(default_factory=Optimization)
    max_depth: float | None = None
    """Depth cap in metres; None: the dataset's."""
    steps: int = 1000
    batch: int = 4
    """Per process."""
    precision: str = "32-true"
    seed: int = 0
    evaluate_every: int = 0
    """Steps between evaluations; 0: at the end only."""
    checkpoint_every: int = 0
    log_every: int = 25
    on_incident: str = "stop"
    """``stop``: diagnose and end. ``skip``: leave the step out. ``continue``: let it happen."""
    accelerator: str = "auto"
    devices: int | str = 1
    nodes: int = 1
    strategy: str = "auto"
    """``auto`` or ``ddp`` …: Fabric's."""

    def __post_init__(self) -> None:
        where = "nanopsy.depth.TrainConfig"
        pick(PRECISIONS, self.precision, f"{where}: precision")
        pick(("stop", "skip", "continue"), self.on_incident, f"{where}: on_incident")
        pick(("onecycle", "cosine", "constant"), self.optimization.schedule, f"{where}: schedule")
        for name in ("steps", "batch", "log_every", "nodes"):
            arguments.whole(where, name, getattr(self, name), least=1)
        arguments.number(where, "lr", self.optimization.lr, above=0)

    def to_json(self) -> str:
        """The config file."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> TrainConfig:
        """The config that `to_json` wrote; unknown keys are refused with the nearest known one."""

        def build(kind: Any, entry: Mapping[str, Any]) -> Any:
            known = {each.name for each in fields(kind)}
            for key in entry:
                pick(tuple(sorted(known)), key, f"config of {kind.__name__}")
            return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}

        parts: dict[str, Any] = build(cls, table)
        for name, kind in (("data", Data), ("recipe", Recipe), ("optimization", Optimization)):
            if isinstance(parts.get(name), Mapping):
                parts[name] = kind(**build(kind, parts[name]))
        return cls(**parts)

    @classmethod
    def read(cls, file: Path) -> TrainConfig:
        """A config file.

        Raises:
            DataError: missing, not JSON, unknown keys.
        """
        try:
            table = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"{file.name} cannot be read: {error}", where=str(file), why="expected: a training's config.json", do="check the path") from None
        return cls.from_dict(table)
