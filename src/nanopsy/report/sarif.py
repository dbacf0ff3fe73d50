"""SARIF 2.1.0, which code scanning services read."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from itertools import zip_longest
from pathlib import Path
from urllib.parse import quote

from nanopsy.causes import Cause, load
from nanopsy.findings import Confidence, Edit, Finding, Inspection, Location, Problem, Safety
from nanopsy.report.fingerprint import fingerprints

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
BASE = "SRCROOT"
_LEVELS = {Confidence.CERTAIN: "error", Confidence.LIKELY: "warning", Confidence.DEPENDS: "note"}
_FAMILIES = {"1": "singular-gradient", "2": "domain", "3": "empty-selection", "4": "masking", "5": "cancellation", "6": "optimisation", "7": "data"}


def _level(confidence: Confidence | None) -> str:
    return _LEVELS.get(confidence or Confidence.LIKELY, "warning")


def _artifact(file: str, root: str) -> dict[str, object]:
    """A file as a percent-encoded URI: relative to the root, or absolute if it lies elsewhere."""
    if root and (os.path.isabs(file) or file.startswith(f"..{os.sep}")):
        absolute = Path(os.path.normpath(os.path.join(root, file)))
        if not absolute.is_relative_to(root):
            return {"uri": absolute.as_uri()}
        file = str(absolute.relative_to(root))
    return {"uri": quote(file.replace(os.sep, "/"), safe="/", errors="surrogateescape"), "uriBaseId": BASE}


def _column(inspection: Inspection, place: Location, line: int, column: int) -> int:
    """A column in UTF-16 code units: what lies beyond the first plane counts twice."""
    lines = inspection.lines.get((place.file, place.cell), ())
    text = lines[line - 1] if 0 < line <= len(lines) else ""
    return column + sum(char > "\uffff" for char in text[: column - 1])


def _region(inspection: Inspection, place: Location) -> dict[str, object]:
    end = max(place.end_line, place.line)
    start_column = _column(inspection, place, place.line, place.column)
    region: dict[str, object] = {"startLine": place.line, "startColumn": start_column, "endLine": end}
    if place.end_column:
        end_column = _column(inspection, place, end, place.end_column)
        region["endColumn"] = max(end_column, start_column) if end == place.line else end_column
    return region


def _location(inspection: Inspection, place: Location) -> dict[str, object]:
    found: dict[str, object] = {"physicalLocation": {"artifactLocation": _artifact(place.file, inspection.root), "region": _region(inspection, place)}}
    if place.cell:
        # SARIF has no cells; lines count within this one.
        found["logicalLocations"] = [{"name": f"cell {place.cell}", "kind": "module"}]
    return found


def _fix(finding: Finding, inspection: Inspection) -> dict[str, object]:
    by_file: dict[str, list[Edit]] = {}
    for edit in sorted(finding.edits, key=lambda edit: (edit.start, edit.end)):
        by_file.setdefault(edit.file, []).append(edit)
    notes = "; ".join(dict.fromkeys(edit.note for edit in finding.edits if edit.note)) or "edit"
    safe = all(edit.safety is Safety.SAFE for edit in finding.edits)
    return {
        "description": {"text": notes if safe else f"{notes} (unsafe: changes finite values)"},
        "artifactChanges": [
            {
                "artifactLocation": _artifact(file, inspection.root),
                "replacements": [
                    {"deletedRegion": {"charOffset": edit.start, "charLength": edit.end - edit.start}, "insertedContent": {"text": edit.text}} for edit in edits
                ],
            }
            for file, edits in by_file.items()
        ],
    }


def _result(finding: Finding, name: str, rule: int, inspection: Inspection) -> dict[str, object]:
    place = finding.location
    text = f"{finding.message}, if {finding.condition}" if finding.condition else finding.message
    result: dict[str, object] = {
        "ruleId": finding.code,
        "ruleIndex": rule,
        "level": _level(finding.confidence),
        "message": {"text": text or finding.slug},
        "locations": [_location(inspection, place)] if place else [],
        "partialFingerprints": {"nanopsy/v1": name},
        "properties": {"confidence": str(finding.confidence or "")},
    }
    if finding.also:
        stories = finding.story[: len(finding.also)]
        result["relatedLocations"] = [
            {"id": number, **_location(inspection, each), "message": {"text": story or "see also"}}
            for number, (each, story) in enumerate(zip_longest(finding.also, stories, fillvalue=""), 1)
            if isinstance(each, Location)
        ]
    if finding.edits and not (place and place.cell):
        # Offsets into a notebook's code are no offsets into its file.
        result["fixes"] = [_fix(finding, inspection)]
    return result


def _section(page: str, title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def _rule(finding: Finding, cause: Cause | None) -> dict[str, object]:
    """A cause as a rule; a finding that has none (an unused noqa) speaks for itself."""
    page = cause.page() if cause else f"# {finding.code} {finding.slug}\n\nA noqa that silences nothing would silence the next mistake on its line.\n"
    title = cause.title() if cause else "A noqa that silences nothing."
    return {
        "id": finding.code,
        "name": "".join(part.capitalize() for part in finding.slug.split("-")),
        "shortDescription": {"text": title},
        "fullDescription": {"text": _section(page, "What it does") or title},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": "warning"},
        "properties": {"tags": ["numerical-stability", "pytorch", _FAMILIES.get(finding.code[3:4], "nanopsy")]},
    }


def _notification(problem: Problem, inspection: Inspection) -> dict[str, object]:
    place = {"artifactLocation": _artifact(problem.file, inspection.root), "region": {"startLine": max(problem.line, 1)}}
    return {"level": "error", "message": {"text": problem.message}, "locations": [{"physicalLocation": place}]}


def _version() -> Mapping[str, str]:
    try:
        return {"version": version("nanopsy")}
    except PackageNotFoundError:
        return {}


def render(inspection: Inspection, *, color: bool = False) -> str:
    """One run, with the rules that occur in it."""
    causes = load()
    first = {finding.code: finding for finding in reversed(inspection.findings)}
    index = {code: number for number, code in enumerate(sorted(first))}
    base: dict[str, object] = {"uri": Path(inspection.root).absolute().as_uri().rstrip("/") + "/"} if inspection.root else {}
    run = {
        "tool": {"driver": {"name": "nanopsy", **_version(), "rules": [_rule(first[code], causes.get(code)) for code in index]}},
        "columnKind": "utf16CodeUnits",
        "originalUriBaseIds": {BASE: {**base, "description": {"text": "The folder that the paths count from."}}},
        "invocations": [
            {
                "executionSuccessful": not inspection.problems,
                "toolExecutionNotifications": [_notification(problem, inspection) for problem in inspection.problems],
            }
        ],
        "results": [
            _result(finding, name, index[finding.code], inspection) for finding, name in zip(inspection.findings, fingerprints(inspection), strict=True)
        ],
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2, allow_nan=False)
