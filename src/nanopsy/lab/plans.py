"""The experiments of the paper: which trainings, at which scale.

Nothing is planted. Each scenario is a published recipe in a setting that people train in (few valid pixels, a small batch, a high learning rate, half
precision), and the watch says of every training whether it failed, when, and by which cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from nanopsy.depth.config import Data, Optimization, TrainConfig
from nanopsy.depth.recipes import GUIDELINES, REMEDIES, Recipe
from nanopsy.lab.grid import Scenario

__all__ = ["Scale", "full", "small", "smoke"]

SQRT = ("NAN101", "NAN102", "NAN103", "NAN502")
LOGSIGMOID = ("NAN201",)
VARIANCE = ("NAN301", "NAN302", "NAN501")


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    steps: float = 1.0
    """Factor of the scenarios' steps."""
    seeds: int = 5
    extra_seeds: int = 3


def _street(crop: tuple[int, int], *, lines: int = 14, keep: float = 0.5, **more: Any) -> Data:
    """Streets of 96 x 160 pixels; 14 half-full scan lines measure 6 % of the pixels (KITTI raw: 4 %), 8 lines at 0.05 measure 0.3 % (DDAD: 0.2 to 0.5 %)."""
    return Data(options={"count": 200, "height": 96, "width": 160, "lines": lines, "keep": keep}, evaluate={"first": 100_000, "count": 40}, crop=crop, **more)


def _scenarios() -> tuple[Scenario, ...]:
    sparse = TrainConfig(
        data=_street((32, 48), lines=8, keep=0.05, median_scaling=True),
        recipe=Recipe(loss="bts-invariant"),
        optimization=Optimization(lr=1e-3),
        steps=400,
        batch=1,
        log_every=20,
    )
    dense = TrainConfig(data=_street((32, 48)), recipe=Recipe(loss="adabins"), optimization=Optimization(lr=1e-3), steps=400, batch=1, log_every=20)
    hot = TrainConfig(
        data=_street((48, 64)), model="depthformer", recipe=Recipe(loss="bts"), optimization=Optimization(lr=1e-2), steps=200, batch=2, log_every=20
    )
    half = replace(sparse, data=replace(sparse.data, median_scaling=False), recipe=Recipe(loss="bts"), precision="bf16-true", steps=600)
    healthy = TrainConfig(data=_street((64, 96)), recipe=Recipe(loss="adabins"), optimization=Optimization(lr=1e-3), steps=400, batch=4, log_every=20)
    folk = tuple(REMEDIES)
    return (
        Scenario(
            "sqrt",
            "Square root: BTS's loss with variance_focus 1, DDAD-like density (0.3 %), batch 1, crops of 32 x 48, AdamW, lr 1e-3",
            vulnerability="sqrt",
            guideline="no-root",
            config=sparse,
            remedies=folk,
            causes=SQRT,
        ),
        Scenario(
            "sqrt-bf16",
            "Square root in bfloat16: BTS's loss as published (lambda 0.85), the same crops, weights and labels in bfloat16",
            vulnerability="sqrt",
            guideline="no-root",
            config=half,
            recipes=("published", "no-root", "all"),
            causes=SQRT,
        ),
        Scenario(
            "logsigmoid",
            "Log of a sigmoid: BTS's loss over a DepthFormer decoder (no normalisation), batch 2, crops of 48 x 64, one-cycle to lr 1e-2",
            vulnerability="logsigmoid",
            guideline="logsigmoid",
            config=hot,
            remedies=folk,
            vary=(("lr", (1e-3, 3e-3, 3e-2)), ("weight_decay", (1e-3, 1e-1)), ("clip", (1.0, 10.0))),
            causes=LOGSIGMOID,
        ),
        Scenario(
            "variance",
            "Variance: AdaBins' loss (torch.var), KITTI-like density (6 %), batch 1, crops of 32 x 48, AdamW, lr 1e-3",
            vulnerability="variance",
            guideline="population",
            config=dense,
            remedies=folk,
            vary=(("batch", (2, 4, 8)),),
            causes=VARIANCE,
        ),
        Scenario(
            "healthy",
            "A healthy training, for accuracy: AdaBins' loss, batch 4, crops of 64 x 96, one-cycle to lr 1e-3, BTS (tiny)",
            vulnerability="",
            guideline="all",
            config=healthy,
        ),
        Scenario(
            "healthy-newcrfs",
            "The same with NeWCRFs (tiny) and lr 3e-4",
            vulnerability="",
            guideline="all",
            config=replace(healthy, model="newcrfs", optimization=Optimization(lr=3e-4), steps=200),
            recipes=("published", "all"),
        ),
    )


def _scaled(scenario: Scenario, scale: Scale) -> Scenario:
    steps = max(round(scenario.config.steps * scale.steps), 20)
    return replace(scenario, config=replace(scenario.config, steps=steps), seeds=scale.seeds, extra_seeds=scale.extra_seeds)


def smoke() -> tuple[Scenario, ...]:
    """Each vulnerability and its guideline once: a minute or two on two cores."""
    found = []
    for scenario in _scenarios():
        if scenario.name in ("sqrt", "logsigmoid", "variance", "healthy"):
            less = replace(scenario, recipes=("published", scenario.guideline), remedies=(), vary=())
            found.append(_scaled(less, Scale(0.25 if scenario.name == "healthy" else 0.5 if scenario.name != "logsigmoid" else 0.8, 1, 1)))
    return tuple(found)


def small() -> tuple[Scenario, ...]:
    """The whole grid on procedural scenes with tiny networks."""
    return tuple(_scaled(scenario, Scale()) for scenario in _scenarios())


def full(data: Data, models: Mapping[str, TrainConfig] | None = None) -> tuple[Scenario, ...]:
    """The paper's own setting, on real data with full networks: 24 epochs' worth of steps, native crops, its learning rates and weight decays.

    Args:
        data: the dataset; its crop defaults to 352 x 704.
        models: configs by name; None: BTS-ResNet50 with one-cycle and DepthFormer-SwinL with a warm cosine.
    """
    data = replace(data, crop=data.crop or (352, 704), workers=max(data.workers, 4))
    steps = 38_400
    warm = Optimization(lr=1e-4, schedule="cosine", betas=(0.9, 0.999))
    bts = TrainConfig(data=data, model="bts", size="full", recipe=Recipe(loss="bts"), optimization=Optimization(lr=1e-4, betas=(0.95, 0.99), eps=1e-3))
    known = models or {
        "bts": replace(bts, steps=steps, batch=8),
        "depthformer": replace(bts, model="depthformer", recipe=Recipe(loss="adabins"), optimization=warm, steps=steps, batch=8),
    }
    axes: tuple[tuple[str, tuple[float, ...]], ...] = (
        ("lr", (1e-5, 3e-5, 1e-3, 3e-3)),
        ("weight_decay", (1e-1, 3e-2, 3e-3, 1e-3)),
        ("clip", (1.0, 3.0, 5.0, 10.0, 35.0, 100.0, 300.0)),
        ("batch", (1, 2, 4, 16, 32)),
    )
    return tuple(
        Scenario(
            name,
            f"{name}, full size, {data.name}",
            vulnerability="",
            guideline="all",
            config=replace(config, log_every=100),
            recipes=tuple(GUIDELINES),
            seeds=3,
            remedies=tuple(REMEDIES),
            extra_seeds=1,
            vary=axes,
            causes=SQRT + LOGSIGMOID + VARIANCE,
        )
        for name, config in known.items()
    )
