"""GitLab's code quality report."""

from __future__ import annotations

import json
import os

from nanopsy.findings import Confidence, Inspection
from nanopsy.report.fingerprint import fingerprint, fingerprints
from nanopsy.report.github import seen_from

_SEVERITIES = {Confidence.CERTAIN: "critical", Confidence.LIKELY: "major", Confidence.DEPENDS: "minor"}


def _entry(description: str, check: str, name: str, severity: str, path: str, begin: int, end: int) -> dict[str, object]:
    return {
        "description": description,
        "check_name": check,
        "fingerprint": name,
        "severity": severity,
        "location": {"path": path, "lines": {"begin": begin, "end": max(begin, end)}},
    }


def render(inspection: Inspection, *, color: bool = False) -> str:
    """A JSON list, one entry for each finding and each file that could not be checked."""
    folder = os.environ.get("CI_PROJECT_DIR")
    entries: list[dict[str, object]] = []
    for finding, name in zip(inspection.findings, fingerprints(inspection), strict=True):
        place = finding.location
        cell = f" (cell {place.cell})" if place and place.cell else ""
        condition = f", if {finding.condition}" if finding.condition else ""
        severity = _SEVERITIES.get(finding.confidence or Confidence.LIKELY, "major")
        path = seen_from(inspection, place.file, folder) if place else "."
        line, end = (place.line, place.end_line) if place else (1, 1)
        entries.append(_entry(f"{finding.code} {finding.slug}{cell}: {finding.message}{condition}", finding.slug, name, severity, path, line, end))
    for ordinal, problem in enumerate(inspection.problems):
        name = fingerprint("not-checked", problem.file, problem.message, ordinal)
        entries.append(_entry(problem.message, "not-checked", name, "blocker", seen_from(inspection, problem.file, folder), problem.line, problem.line))
    return json.dumps(entries, indent=2, allow_nan=False)
