"""From outcomes to numbers and sentences: how often each recipe failed, by which cause, how good it got. Nothing here knows what should come out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from nanopsy.lab.grid import Outcome, Scenario

__all__ = ["Comparison", "Row", "Verdict", "compare", "rows", "verdict"]


@dataclass(frozen=True, slots=True)
class Row:
    """All seeds of one recipe (or one value of an axis) in one scenario."""

    scenario: str
    recipe: str
    varied: str
    seeds: int
    diverged: int
    causes: dict[str, int]
    """Code of the first incident's cause -> how many runs; an empty code: the autopsy named none."""
    first_step: float
    """Median step of the first bad value among the runs that diverged."""
    abs_rel: tuple[float, float]
    """Mean and standard deviation over the runs that finished; NaN if none did."""
    rmse: tuple[float, float]
    delta1: tuple[float, float]
    skipped: float
    """Mean steps left out."""
    failed: int
    """Cells that could not run."""


def _spread(values: Sequence[float]) -> tuple[float, float]:
    if not values:
        return math.nan, math.nan
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)) if len(values) > 1 else math.nan


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return math.nan if not ordered else ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def rows(outcomes: Sequence[Outcome]) -> list[Row]:
    """One row for each (scenario, recipe, varied), in the order of first appearance."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.scenario, outcome.recipe, outcome.varied), []).append(outcome)
    found = []
    for (scenario, recipe, varied), group in groups.items():
        ran = [each for each in group if not each.failed]
        bad, good = [each for each in ran if each.diverged], [each for each in ran if not each.diverged]
        scores = {name: _spread([each.metrics[name] for each in good if name in each.metrics]) for name in ("abs_rel", "rmse", "delta1")}
        found.append(
            Row(
                scenario, recipe, varied, len(ran), len(bad), dict(Counter(each.cause for each in bad).most_common()), _median([each.steps for each in bad]),
                scores["abs_rel"], scores["rmse"], scores["delta1"], _spread([each.skipped for each in ran])[0] if ran else math.nan, len(group) - len(ran),
            )
        )  # fmt: skip
    return found


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one scenario shows."""

    scenario: str
    shown: bool
    """At least one published run diverged by the vulnerability's own mechanism."""
    cured: bool
    """It was shown, and no run with the guideline alone diverged by any cause."""
    all_stable: bool
    """No run with all guidelines diverged."""
    text: str


def verdict(scenario: Scenario, table: Sequence[Row]) -> Verdict:
    """The sentence for one scenario, from its rows."""
    mine = {row.recipe: row for row in table if row.scenario == scenario.name and not row.varied}
    published, guided, everything = (mine.get(name) for name in ("published", scenario.guideline, "all"))
    if published is None or guided is None or not published.seeds or not guided.seeds:
        return Verdict(scenario.name, shown=False, cured=False, all_stable=False, text=f"{scenario.title}: not run.")
    own = sum(count for code, count in published.causes.items() if code in scenario.causes)
    causes = ", ".join(f"{code or 'cause unknown'} in {count}" for code, count in published.causes.items()) or "none"
    shown, cured = own > 0, own > 0 and guided.diverged == 0
    stable = everything is not None and everything.diverged == 0
    text = f"{published.diverged} of {published.seeds} published runs diverged ({causes})"
    if published.diverged:
        text += f", at step {published.first_step:g} (median)"
    text += f"; with {scenario.guideline} alone {guided.diverged} of {guided.seeds}"
    if guided.diverged:
        text += f" ({', '.join(code or 'cause unknown' for code in guided.causes)})"
    if everything is not None and scenario.guideline != "all":
        text += f"; with all guidelines {everything.diverged} of {everything.seeds}"
    if not math.isnan(guided.abs_rel[0]):
        text += f"; abs_rel with {scenario.guideline} alone {guided.abs_rel[0]:.3f}"
    end = (
        "the guideline alone keeps every run finite"
        if cured
        else "the guideline alone does not keep every run finite"
        if shown
        else "the vulnerability was not seen in these runs"
    )
    return Verdict(scenario.name, shown=shown, cured=cured, all_stable=stable, text=f"{text}: {end}.")


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of two recipes, paired by seed."""

    scenario: str
    metric: str
    recipe: str
    pairs: int
    """Seeds for which both finished."""
    difference: float
    """Mean of recipe minus published."""
    low: float
    high: float
    """95 % interval of the mean difference (paired t)."""
    text: str


def compare(scenario: str, recipe: str, metric: str, outcomes: Sequence[Outcome]) -> Comparison | None:
    """A recipe against the published one; None where fewer than two seeds finished in both."""
    scores: dict[str, dict[int, float]] = {"published": {}, recipe: {}}
    for each in outcomes:
        value = each.metrics.get(metric, math.nan)
        if each.scenario == scenario and not each.varied and each.recipe in scores and not each.diverged and not each.failed and math.isfinite(value):
            scores[each.recipe][each.seed] = value
    seeds = sorted(scores["published"].keys() & scores[recipe].keys())
    if len(seeds) < 2 or recipe == "published":
        return None
    differences = [scores[recipe][seed] - scores["published"][seed] for seed in seeds]
    mean, deviation = _spread(differences)
    from scipy.stats import t

    half = float(t.ppf(0.975, len(seeds) - 1)) * deviation / math.sqrt(len(seeds))
    low, high = mean - half, mean + half
    better_is_lower = not metric.startswith("delta")
    end = "no difference is shown" if low <= 0 <= high else "better" if (mean < 0) == better_is_lower else "worse"
    text = f"{recipe} against published, {metric}: {mean:+.4f} (95 % interval {low:+.4f} to {high:+.4f}, {len(seeds)} seeds): {end}"
    return Comparison(scenario, metric, recipe, len(seeds), mean, low, high, text)
