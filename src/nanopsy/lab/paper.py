"""The paper's experiments from nothing to a report."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanopsy.depth.recipes import GUIDELINES, REMEDIES
from nanopsy.depth.runfolder import environment
from nanopsy.depth.writing import write_text
from nanopsy.findings import plain
from nanopsy.lab.grid import Outcome, Scenario
from nanopsy.lab.sheets import Sheets, Table, shown
from nanopsy.lab.summary import Comparison, Row, Verdict, compare, rows, verdict

__all__ = ["conclude", "write_report"]

HEADER = ("recipe", "runs", "diverged", "by cause", "first bad step", "abs_rel", "rmse", "delta1", "steps left out")


def _pm(value: tuple[float, float]) -> str:
    mean, deviation = value
    return "" if math.isnan(mean) else shown(mean, 3) if math.isnan(deviation) else f"{mean:.3f} ± {deviation:.3f}"


def _cells(name: str, row: Row) -> tuple[str | int | float | None, ...]:
    causes = ", ".join(f"{code or 'unknown'} ({count})" for code, count in row.causes.items())
    return (
        name, row.seeds, row.diverged, causes, None if math.isnan(row.first_step) else row.first_step, _pm(row.abs_rel), _pm(row.rmse), _pm(row.delta1),
        row.skipped if row.skipped else None,
    )  # fmt: skip


def _section(sheets: Sheets, scenario: Scenario, table: Sequence[Row], outcomes: Sequence[Outcome]) -> None:
    sheets.heading(scenario.title)
    mine = [row for row in table if row.scenario == scenario.name]
    main = Table("Published, each guideline alone, all guidelines (mean ± s.d. over the runs that finished)", HEADER)
    for row in mine:
        if row.recipe in GUIDELINES and not row.varied:
            main.add(*_cells(row.recipe, row))
    sheets.table(scenario.name, main)
    folk = Table("What people try instead", HEADER)
    for row in mine:
        if row.recipe in REMEDIES:
            folk.add(*_cells(row.recipe, row))
    if folk.rows:
        sheets.table(f"{scenario.name}-remedies", folk)
    varied = Table("The published recipe, one setting changed", HEADER)
    for row in mine:
        if row.varied:
            varied.add(*_cells(row.varied, row))
    if varied.rows:
        sheets.table(f"{scenario.name}-varied", varied)

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for colour, name in enumerate(name for name in GUIDELINES if any(row.recipe == name for row in mine)):
            label: str | None = name
            for each in outcomes:
                if each.scenario == scenario.name and each.recipe == name and not each.varied and each.losses:
                    every = scenario.config.log_every
                    at = [every * (k + 1) for k in range(len(each.losses))]
                    axis.plot(at, each.losses, color=f"C{colour}", alpha=0.6, linewidth=0.9, label=label)
                    if each.diverged:
                        axis.plot(at[-1], each.losses[-1], "x", color=f"C{colour}")
                    label = None
        axis.set(xlabel="step", ylabel="loss (logged steps)", yscale="symlog")
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7)

    sheets.figure(scenario.name, "Loss of each run; a cross ends a run that diverged. Losses with and without the root have other units.", draw, (7, 3.4))


def conclude(scenarios: Sequence[Scenario], outcomes: Sequence[Outcome]) -> tuple[list[Row], list[Verdict], list[Comparison]]:
    """Rows, one verdict for each vulnerability, and the comparisons of accuracy for healthy trainings."""
    table = rows(outcomes)
    verdicts = [verdict(each, table) for each in scenarios if each.vulnerability]
    comparisons = [
        found
        for each in scenarios
        if not each.vulnerability
        for recipe in each.recipes
        for metric in ("abs_rel", "rmse", "delta1")
        if (found := compare(each.name, recipe, metric, outcomes)) is not None
    ]
    return table, verdicts, comparisons


def write_report(folder: str | Path, scenarios: Sequence[Scenario], outcomes: Sequence[Outcome], *, note: str = "") -> Path:
    """README.md, report.html, figures, tables and summary.json; returns the README's path."""
    table, verdicts, comparisons = conclude(scenarios, outcomes)
    sheets = Sheets(folder, "NaN divergence in training depth networks: the experiments")
    sheets.say(
        "The three vulnerabilities of arXiv 2311.03938 in ordinary training loops, each guideline alone and all together. Whether, when and why a run diverged "
        "is what nanopsy's watch and autopsy said of it; nothing is planted and no sentence below is written beforehand."
    )
    if note:
        sheets.say(note)
    sheets.heading("What came out")
    for each, scenario in zip(verdicts, [s for s in scenarios if s.vulnerability], strict=True):
        sheets.say(f"{scenario.title}. {each.text}")
    accuracy = Table(
        "Accuracy of healthy trainings against the published loss, paired by seed (95 % interval of the mean difference)",
        ("scenario", "recipe", "metric", "seeds", "difference", "from", "to", "shown"),
    )
    for found in comparisons:
        shown_as = found.text.rpartition(": ")[2]
        accuracy.add(found.scenario, found.recipe, found.metric, found.pairs, found.difference, found.low, found.high, shown_as)
    if accuracy.rows:
        sheets.table("accuracy", accuracy)
    failed = [each for each in outcomes if each.failed]
    if failed:
        sheets.say(f"{len(failed)} cells could not run; the first: {failed[0].scenario}, {failed[0].recipe}: {failed[0].failed}")
    for scenario in scenarios:
        _section(sheets, scenario, table, outcomes)
    sheets.heading("How")
    described = Table("Settings", ("scenario", "model", "loss", "steps", "batch", "crop", "lr", "schedule", "precision", "data"))
    for scenario in scenarios:
        c = scenario.config
        described.add(
            scenario.name, f"{c.model} ({c.size})", c.recipe.loss, c.steps, c.batch, " x ".join(map(str, c.data.crop or ())), c.optimization.lr,
            c.optimization.schedule, c.precision,
            ", ".join(f"{key} {value}" for key, value in {"set": c.data.name, **c.data.options}.items() if key != "root"),
        )  # fmt: skip
    sheets.table("settings", described)
    every = Table(
        "Every training",
        (
            "scenario",
            "recipe",
            "varied",
            "seed",
            "diverged",
            "steps",
            "cause",
            "line",
            "abs_rel",
            "rmse",
            "delta1",
            "empty batches",
            "steps left out",
            "seconds",
        ),
    )
    for one in outcomes:
        scores = [one.metrics.get(name) for name in ("abs_rel", "rmse", "delta1")]
        every.add(
            one.scenario,
            one.recipe,
            one.varied,
            one.seed,
            one.diverged,
            one.steps,
            one.cause,
            one.location,
            *scores,
            one.empty_batches,
            one.skipped,
            one.seconds,
        )
    write_text(sheets.folder / "tables" / "outcomes.csv", every.csv())
    sheets.say("Every training is a line of tables/outcomes.csv.")
    seconds = math.fsum(each.seconds for each in outcomes)
    machine = ", ".join(f"{key} {value}" for key, value in environment().items())
    sheets.say(f"{len(outcomes)} trainings, {seconds / 60:.0f} minutes of training in all. Seeds count from 0. {machine}.")
    write_text(
        sheets.folder / "summary.json",
        json.dumps(
            {
                "verdicts": [asdict(each) for each in verdicts],
                "comparisons": [plain(asdict(each)) for each in comparisons],
                "rows": [plain(asdict(each)) for each in table],
            },
            indent=1,
            allow_nan=False,
        )
        + "\n",
    )
    return sheets.close()
