"""A capsule as one offline page: no script, nothing loaded, light and dark. Every string of a capsule is a stranger's and is escaped."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from nanopsy.capsule.chain import Chain, Constant, spelled
from nanopsy.capsule.format import MEMBERS, Capsule
from nanopsy.findings import Diagnosis, Finding, Incident, Location
from nanopsy.report.drawing import curve, histogram
from nanopsy.report.graph import birth, graph, value_of
from nanopsy.report.picture import GRADIENT, pictures
from nanopsy.report.shown import brief, count, counted, figure, number, shape, short, size, text

__all__ = ["render"]

_AROUND = 6
_MOST_PLACES = 12
_MOST_OTHERS = 20
_MOST_STEPS = 2_000
_MOST_ROWS = 100
_MOST_DIFF = 2_000
_MOST_SCRIPT = 4 << 20
_LINE = 400
_CODE = re.compile(r"NAN[0-9]{3}")
"""Only such a code becomes part of a command that a reader may copy into a shell."""
_QUANTITIES = {"loss": "loss", "gradient_norm": "gradient norm", "lr": "learning rate", "weight_norm": "weight norm"}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of the user's code: its number, and its text in pieces of which some are underlined."""

    number: int
    pieces: tuple[tuple[str, bool], ...]


def render(capsule: Capsule) -> str:
    """The page of a capsule, whatever that holds."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(files("nanopsy.report").joinpath("page.html").read_text(encoding="utf-8"))
    incident = capsule.diagnosis.incidents[0] if capsule.diagnosis.incidents else None
    finding = incident.findings[0] if incident is not None and incident.findings else None
    shown, skipped = pictures(capsule.pictures)
    written = page.render(
        head=_head(capsule, incident, finding), finding=finding, facts=_facts(capsule, incident, finding), source=_source(capsule, finding),
        also=_also(capsule, finding), story=_story(incident, finding), chain=capsule.chain, graph=graph(capsule.chain, finding) if capsule.chain else None,
        steps=_steps(capsule.chain, finding), pictures=shown, skipped=skipped, gradient=Markup(GRADIENT), operands=_operands(capsule.chain),
        history=_history(capsule, incident), fix=_fix(finding), evidence=_evidence(finding), others=_others(capsule.diagnosis), capsule=capsule,
        script=text(capsule.script, _MOST_SCRIPT), environment=_rows(capsule.environment), notes=[text(note) for note in capsule.diagnosis.notes[:_MOST_ROWS]],
        known_code=finding is not None and _CODE.fullmatch(finding.code), members=_members(capsule), text=text, short=short,
    )  # fmt: skip
    return written.encode("utf-8", "replace").decode()


def _place(place: Location) -> str:
    return text(str(place), 600)


# -- the finding -----------------------------------------------------------------------------------------------------------------


def _head(capsule: Capsule, incident: Incident | None, finding: Finding | None) -> dict[str, str]:
    """Code, slug and sentence."""
    if incident is None:
        return {"code": "", "slug": "no incident", "message": f"Nothing went wrong in {counted(capsule.diagnosis.steps)} steps.", "what": ""}
    what = f"non-finite {incident.what} at step {counted(incident.step)}"
    if finding is None:
        return {"code": "", "slug": "cause unknown", "message": "Nothing is claimed about a step that could not be examined.", "what": what}
    return {"code": text(finding.code, 40), "slug": text(finding.slug, 80), "message": text(finding.message), "what": what}


def _facts(capsule: Capsule, incident: Incident | None, finding: Finding | None) -> list[tuple[str, str, str]]:
    """Name, value and colour of what is known at a glance."""
    if incident is None:
        return []
    found = [("step", counted(incident.step) + (f", seen {counted(incident.count)} times" if incident.count > 1 else ""), "")]
    if finding is not None:
        found.insert(0, ("place", _place(finding.location) if finding.location else "no line of yours", ""))
    if incident.rank is not None:
        found.append(("rank", counted(incident.rank), ""))
    if incident.batch:
        found.append(("batch", _batch(incident.batch), ""))
    good = str(incident.outcome) == "reproduced"
    found.append(("outcome", str(incident.outcome) + (f": {text(incident.detail, 600)}" if incident.detail else ""), "good" if good else "poor"))
    if finding is not None:
        found.append(("fix", *_verdict(finding)))
    if incident.weights:
        found.append(("weights", text(incident.weights, 600), ""))
    return found


def _batch(batch: Mapping[str, object]) -> str:
    parts = []
    for key, value in islice(batch.items(), 8):
        if key == "samples" and isinstance(value, list):
            some = ", ".join(brief(entry, 1) for entry in value[:12])
            parts.append(f"sample{'s' if len(value) != 1 else ''} {some}" + (f" … ({len(value):,} in all)" if len(value) > 12 else ""))
        else:
            parts.append(brief(value, 2) if key == "number" else f"{short(str(key), 40)} {brief(value, 2)}")
    return ", ".join(parts)


def _verdict(finding: Finding) -> tuple[str, str]:
    """What is known of the fix, and its colour."""
    said = text(finding.verification, 400)
    if finding.verified:
        return said or "verified", "good"
    if finding.verified is not None:
        return said or "tried, and it did not cure the step", "bad"
    if finding.fix is not None:
        return said or "not verified", "poor"
    return said or "no edit is known that could be tried", ""


# -- the source ------------------------------------------------------------------------------------------------------------------


def _window(capsule: Capsule, place: Location, around: int) -> list[SourceLine]:
    """The lines around a place, as far as the capsule has them."""
    for entry in capsule.sources:
        start, lines = entry["start"], entry["lines"]
        if entry["file"] == place.file and start <= place.line < start + len(lines):
            last = min(max(place.end_line, place.line), place.line + 3 * _AROUND)
            first, stop = max(start, place.line - around), min(start + len(lines), last + around + 1)
            return [SourceLine(line, _pieces(text(lines[line - start], _LINE), line, place)) for line in range(first, stop)]
    return []


def _pieces(line: str, position: int, place: Location) -> tuple[tuple[str, bool], ...]:
    """A line in what is before, in and after the expression."""
    end_line = max(place.end_line, place.line)
    if not place.line <= position <= end_line:
        return ((line, False),)
    start = max(place.column - 1, 0) if position == place.line else len(line) - len(line.lstrip())
    end = place.end_column - 1 if position == end_line and place.end_column else len(line)
    if end <= start and position == place.line:
        end = len(line)
    parts = ((line[:start], False), (line[start:end], True), (line[max(start, end) :], False))
    return tuple(part for part in parts if part[0]) or ((line, False),)


def _source(capsule: Capsule, finding: Finding | None) -> list[SourceLine]:
    return _window(capsule, finding.location, _AROUND) if finding is not None and finding.location is not None else []


def _also(capsule: Capsule, finding: Finding | None) -> list[tuple[str, list[SourceLine]]]:
    """Further places with the lines that they are on."""
    return [(_place(place), _window(capsule, place, 1)) for place in finding.also[:_MOST_PLACES]] if finding is not None else []


# -- the story -------------------------------------------------------------------------------------------------------------------


def _story(incident: Incident | None, finding: Finding | None) -> dict[str, Any]:
    if incident is None or finding is None:
        return {"lines": [], "path": [], "reached": ""}
    return {"lines": [text(line) for line in finding.story[:24]], "path": [text(part, 80) for part in finding.path[:48]],
            "reached": "loss" if str(incident.what) == "loss" else "gradient"}  # fmt: skip


def _steps(chain: Chain | None, finding: Finding | None) -> list[tuple[str, str, str, str, bool]]:
    """The chain as rows: result, operator, code, place with value; the birth is marked."""
    if chain is None:
        return []
    born = birth(chain, finding)
    rows = []
    for position, step in enumerate(chain.steps):
        value = value_of(step, position == born, chain, finding)
        rows.append((", ".join(step.out[:8]), spelled(step.op), text(step.code, 600), text(step.location, 300) + (f"  {value}" if value else ""),
                     position == born))  # fmt: skip
    return rows


def _operands(chain: Chain | None) -> list[dict[str, Any]]:
    """The tensors that the chain starts from, with their histograms."""
    return [_operand(constant) for constant in chain.constants] if chain is not None else []


def _operand(it: Constant) -> dict[str, Any]:
    spread = it.spread
    finite = math.isfinite(spread.low) and math.isfinite(spread.high)
    drawn = histogram(f"Histogram of {it.name}", spread.histogram, spread.low, spread.high) if finite and spread.histogram else None
    kept = f"{shape(it.shape)} of {shape(it.whole)} kept" if it.whole and it.whole != it.shape else shape(it.shape)
    facts = f"{it.dtype}, {kept}" + (", needs a gradient" if it.requires_grad else "")
    return {"name": it.name, "what": text(it.what, 300) or "made in the step", "facts": facts,
            "drawing": drawn, "range": f"{figure(spread.low)} to {figure(spread.high)}" if finite else "",
            "zeros": counted(spread.zeros), "bad": counted(spread.bad), "count": counted(spread.count), "alarm": spread.bad > 0}  # fmt: skip


# -- the steps before ------------------------------------------------------------------------------------------------------------


def _history(capsule: Capsule, incident: Incident | None) -> dict[str, Any]:
    """Charts, sentences about what did not change, and the last numbers as rows."""
    known: Sequence[Mapping[str, Any]] = capsule.history or (incident.history if incident is not None else [])
    records = known[-_MOST_STEPS:]
    steps = []
    for position, record in enumerate(records):
        step = number(record.get("step"))
        steps.append(step if step is not None and 0 <= step < 1e15 else float(position))
    at = float(min(incident.step, 10**15)) if incident is not None else steps[-1] if steps else 0.0
    charts, said = [], []
    for key, title in _QUANTITIES.items():
        every = ((step, number(record.get(key))) for step, record in zip(steps, records, strict=True))
        points = [(step, value) for step, value in every if value is not None]
        values = {value for _, value in points}
        if len(points) > 1 and len(values) > 1:
            charts.append(curve(title, points, at))
        elif points:
            said.append(f"{title} {figure(points[0][1])}" + (" throughout" if len(points) > 1 else f" at step {figure(points[0][0])}"))
    rows = [[figure(step), *(figure(number(record.get(key))) if record.get(key) is not None else "" for key in _QUANTITIES)]
            for step, record in list(zip(steps, records, strict=True))[-12:]]  # fmt: skip
    return {"charts": charts, "said": said, "rows": rows, "header": ["step", *_QUANTITIES.values()], "count": len(records)}


# -- the fix ---------------------------------------------------------------------------------------------------------------------


def _fix(finding: Finding | None) -> dict[str, Any] | None:
    if finding is None or (finding.fix is None and not finding.evidence.get("replacement")):
        return None
    verdict, colour = _verdict(finding)
    lines, cut = _diff(finding.fix.diff) if finding.fix is not None else ([], False)
    return {"safety": str(finding.fix.safety) if finding.fix is not None else "", "note": text(finding.fix.note, 600) if finding.fix is not None else "",
            "lines": lines, "cut": cut, "verdict": verdict, "colour": colour,
            "replacement": brief(finding.evidence["replacement"]) if finding.evidence.get("replacement") else ""}  # fmt: skip


def _diff(diff: str) -> tuple[list[tuple[str, str]], bool]:
    """The lines of a diff with their kind, and whether there were more."""
    rows: list[tuple[str, str]] = []
    every = text(diff, _MOST_DIFF * _LINE).splitlines()
    kinds = {"+": "plus", "-": "minus", "@": "hunk"}
    for line in every[:_MOST_DIFF]:
        header = line.startswith(("--- ", "+++ ")) and not any(kind == "hunk" for kind, _ in rows)
        rows.append(("hunk" if header else kinds.get(line[:1], "same"), text(line, _LINE)))
    if [line[:4] for _, line in rows[:2]] == ["--- ", "+++ "]:
        del rows[:2]
    return rows, len(every) > _MOST_DIFF


def _evidence(finding: Finding | None) -> dict[str, Any]:
    """What the finding was judged by: plain facts, and its operands as a table."""
    if finding is None:
        return {"rows": [], "operands": []}
    operands = finding.evidence.get("operands")
    table = [{key: brief(entry.get(key)) if key in entry else "" for key in ("name", "value", "dtype", "low", "high")}
             | {"shape": shape(entry.get("shape")), "origin": " ".join(short(entry[key], 160) for key in ("origin", "origin_what") if entry.get(key))}
             for entry in operands[:24] if isinstance(entry, Mapping)] if isinstance(operands, list) else []  # fmt: skip
    rows = [(key, value) for key, value in finding.evidence.items() if key != "replacement" and not (key == "operands" and table)]
    return {"rows": _rows(dict(rows[:_MOST_ROWS])), "operands": table}


def _others(diagnosis: Diagnosis) -> list[tuple[str, str, str, str]]:
    """Every finding but the first: code, slug, place, sentence."""
    found: list[tuple[str, str, str, str]] = []
    for position, incident in enumerate(diagnosis.incidents[:_MOST_OTHERS]):
        where = f"step {counted(incident.step)}, " if position else ""
        for other in incident.findings[0 if position else 1 : _MOST_OTHERS]:
            place = _place(other.location) if other.location is not None else "no line of yours"
            found.append((text(other.code, 40), text(other.slug, 80), where + place, text(other.message, 1000)))
        if position and not incident.findings:
            found.append(("", "cause unknown", f"step {counted(incident.step)}", f"non-finite {incident.what}"))
    return found[:_MOST_OTHERS]


# -- around --------------------------------------------------------------------------------------------------------------------


def _rows(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [(short(str(key), 80), brief(value)) for key, value in islice(values.items(), _MOST_ROWS)]


def _members(capsule: Capsule) -> list[tuple[str, str, str]]:
    """What sharing the capsule shares."""
    found: Iterable[tuple[str, int]] = capsule.members.items()
    return [(short(name, 40), size(length) if count(length) is not None else "?", MEMBERS.get(name, "")) for name, length in islice(found, _MOST_ROWS)]
