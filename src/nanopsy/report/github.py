"""Workflow commands: GitHub shows each finding beside its line of the pull request."""

from __future__ import annotations

import os

from nanopsy.causes import find
from nanopsy.findings import Confidence, Finding, Inspection

_LEVELS = {Confidence.CERTAIN: "error", Confidence.LIKELY: "warning", Confidence.DEPENDS: "notice"}


def seen_from(inspection: Inspection, file: str, folder: str | None) -> str:
    """A path relative to the checkout's top folder, which a runner names in its environment; else relative to the root, as it is."""
    if not folder or not inspection.root:
        return file.replace(os.sep, "/")
    relative = os.path.relpath(os.path.join(inspection.root, file), folder)
    return (file if relative.startswith("..") else relative).replace(os.sep, "/")


def _data(text: str) -> str:
    """Text as the message of a command: a line end would end the command, and the next line could be another."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _command(level: str, message: str, properties: dict[str, object]) -> str:
    return f"::{level} {','.join(f'{key}={_property(str(value))}' for key, value in properties.items())}::{_data(message)}"


def _finding(finding: Finding, inspection: Inspection, folder: str | None) -> str:
    level = _LEVELS.get(finding.confidence or Confidence.LIKELY, "warning")
    title = f"{finding.code} {finding.slug}"
    place = finding.location
    properties: dict[str, object] = {}
    if place is not None:
        properties["file"] = seen_from(inspection, place.file, folder)
        if place.cell:
            # A line within a cell is no line of the file.
            title += f" (cell {place.cell}, line {place.line})"
        else:
            end = max(place.end_line, place.line)
            properties |= {"line": place.line, "endLine": end}
            if end == place.line:
                # GitHub refuses columns of a span of several lines.
                properties |= {"col": place.column, "endColumn": max(place.end_column, place.column)}
    parts = [finding.message, f"if {finding.condition}" if finding.condition else "", f"see: nanopsy explain {finding.code}" if find(finding.code) else ""]
    return _command(level, "\n".join(filter(None, parts)), {**properties, "title": title})


def render(inspection: Inspection, *, color: bool = False) -> str:
    """One command for each finding: certain ones are errors, likely ones warnings, the others notices."""
    folder = os.environ.get("GITHUB_WORKSPACE")
    lines = [_finding(finding, inspection, folder) for finding in inspection.findings]
    for problem in inspection.problems:
        where = {"file": seen_from(inspection, problem.file, folder), "line": problem.line, "title": "not checked"}
        lines.append(_command("error", problem.message, where))
    return "\n".join(lines)
