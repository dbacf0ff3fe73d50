"""The experiments as cells: a scenario, a recipe, what is varied, a seed. A cell is a training config with a name, and ends as one JSON file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from nanopsy.depth.config import TrainConfig
from nanopsy.depth.encodings import DataError
from nanopsy.depth.recipes import recipes
from nanopsy.depth.writing import make_folder, write_text
from nanopsy.findings import plain

__all__ = ["Cell", "Outcome", "Scenario", "cells_of", "read_outcome", "run_cell"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One ordinary training recipe, with what is varied around it."""

    name: str
    title: str
    vulnerability: str
    """``sqrt``, ``logsigmoid``, ``variance``, or empty: a healthy training, for accuracy."""
    guideline: str
    """The recipe (a key of GUIDELINES) that should cure it alone."""
    config: TrainConfig
    """Its recipe's loss is the published one."""
    recipes: tuple[str, ...] = ("published", "no-root", "logsigmoid", "population", "all")
    seeds: int = 5
    vary: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """Further axes, each varied alone with the published recipe: ("lr", (1e-3, 1e-2)), ("batch", …), ("clip", …), ("weight_decay", …), ("model", …)."""
    remedies: tuple[str, ...] = ()
    """Folk remedies (keys of REMEDIES) to try."""
    extra_seeds: int = 3
    """Seeds of axes and remedies."""
    causes: tuple[str, ...] = ()
    """Codes of the causes that are this vulnerability's own mechanism."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One training of the grid."""

    scenario: str
    recipe: str
    varied: str
    """Empty, or ``axis=value``."""
    seed: int
    config: TrainConfig

    @property
    def key(self) -> str:
        """A folder name, the same in every run of the grid."""
        return re.sub(r"[^A-Za-z0-9=.+-]+", "-", "_".join(part for part in (self.scenario, self.recipe, self.varied, f"seed{self.seed}") if part))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one cell ended, as its JSON file says."""

    scenario: str
    recipe: str
    varied: str
    seed: int
    diverged: bool
    steps: int
    cause: str = ""
    slug: str = ""
    message: str = ""
    location: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    empty_batches: int = 0
    skipped: int = 0
    seconds: float = 0.0
    failed: str = ""
    """Why the cell could not run at all."""


def _changed(config: TrainConfig, axis: str, value: Any) -> TrainConfig:
    if axis in ("lr", "weight_decay", "clip", "schedule", "eps"):
        return replace(config, optimization=replace(config.optimization, **{axis: value}))
    if axis in ("batch", "model", "precision", "steps"):
        return replace(config, **{axis: value})
    raise DataError(f"there is no axis {axis!r}", why="it would vary nothing", do="lr, weight_decay, clip, schedule, eps, batch, model, precision or steps")


def cells_of(scenario: Scenario) -> list[Cell]:
    """Every training of a scenario, in a fixed order."""
    loss = scenario.config.recipe.loss
    found = []

    def add(name: str, varied: str, config: TrainConfig, seeds: int) -> None:
        for seed in range(seeds):
            found.append(Cell(scenario.name, name, varied, seed, replace(config, recipe=recipes(loss, (name,))[0], seed=seed)))

    for name in scenario.recipes:
        add(name, "", scenario.config, scenario.seeds)
    for name in scenario.remedies:
        add(name, "", scenario.config, scenario.extra_seeds)
    for axis, values in scenario.vary:
        for value in values:
            add(
                "published",
                f"{axis}={value:g}" if isinstance(value, (int, float)) else f"{axis}={value}",
                _changed(scenario.config, axis, value),
                scenario.extra_seeds,
            )
    return found


def run_cell(cell: Cell, folder: str | Path) -> Outcome:
    """Train one cell and write ``KEY.json`` into the folder; a cell whose file is there with the same config is read instead."""
    from nanopsy.depth.train import train

    file = make_folder(folder) / f"{cell.key}.json"
    known = read_outcome(file, cell.config)
    if known is not None:
        return known
    base = {"scenario": cell.scenario, "recipe": cell.recipe, "varied": cell.varied, "seed": cell.seed}
    try:
        result = train(cell.config)
    except Exception as error:  # one cell that cannot run is a row of the report, not the end of a night's grid
        outcome = Outcome(**base, diverged=False, steps=0, failed=f"{type(error).__name__}: {error}")  # type: ignore[arg-type]
        write_text(file, json.dumps({"config": json.loads(cell.config.to_json()), "outcome": plain(asdict(outcome))}, indent=1) + "\n")
        return outcome
    finding = result.incident.findings[0] if result.incident is not None and result.incident.findings else None
    place = finding.location if finding is not None else None
    outcome = Outcome(
        **base,  # type: ignore[arg-type]
        diverged=result.diverged,
        steps=result.steps,
        cause=finding.code if finding is not None else "",
        slug=finding.slug if finding is not None else "",
        message=finding.message if finding is not None else "",
        location=f"{Path(place.file).name}:{place.line}" if place is not None else "",
        metrics=result.metrics,
        losses=result.losses,
        empty_batches=result.empty_batches,
        skipped=result.skipped,
        seconds=round(result.seconds, 2),
    )
    write_text(file, json.dumps({"config": json.loads(cell.config.to_json()), "outcome": plain(asdict(outcome))}, indent=1, allow_nan=False) + "\n")
    return outcome


def _number(value: Any) -> float:
    return float(value) if value is not None else float("nan")


def read_outcome(file: Path, config: TrainConfig | None = None) -> Outcome | None:
    """A cell's file; None if it is not there, cut short, failed, or of another config."""
    try:
        table: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        entry = dict(table["outcome"])
        if config is not None and (table["config"] != json.loads(config.to_json()) or entry["failed"]):
            return None
        entry["metrics"] = {name: _number(value) for name, value in entry["metrics"].items()}
        entry["losses"] = [_number(value) for value in entry["losses"]]
        return Outcome(**entry)
    except (OSError, ValueError, KeyError, TypeError):
        return None
