"""What makes a finding the same finding tomorrow: its cause, its file and what its line says, not where the line stands. Stdlib only."""

from __future__ import annotations

import hashlib
import os
from collections import Counter

from nanopsy.findings import Finding, Inspection


def fingerprint(code: str, path: str, line: str, ordinal: int = 0) -> str:
    """The name of a finding that survives moves of its line.

    Args:
        code: the cause's code.
        path: the file, relative to the root.
        line: the source line, whatever its spacing.
        ordinal: which of the findings that agree in all of this, from 0, in order of place.
    """
    parts = (code, path.replace(os.sep, "/"), " ".join(line.split()), str(ordinal))
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()


def source_line(inspection: Inspection, finding: Finding) -> str:
    """The line a finding begins on, or nothing if it is not at hand."""
    place = finding.location
    lines = inspection.lines.get((place.file, place.cell), ()) if place else ()
    return lines[place.line - 1].rstrip("\r\n") if place and 0 < place.line <= len(lines) else ""


def fingerprints(inspection: Inspection) -> list[str]:
    """One fingerprint for each finding, in their order; no two are equal."""

    def place(at: int) -> tuple[int, int, int, int]:
        location = inspection.findings[at].location
        return (location.cell, location.line, location.column, at) if location else (0, 0, 0, at)

    seen: Counter[tuple[str, str, str]] = Counter()
    found: dict[int, str] = {}
    for at in sorted(range(len(inspection.findings)), key=place):
        finding = inspection.findings[at]
        file = finding.location.file if finding.location else ""
        line = " ".join(source_line(inspection, finding).split())
        found[at] = fingerprint(finding.code, file, line, seen[finding.code, file, line])
        seen[finding.code, file, line] += 1
    return [found[at] for at in range(len(inspection.findings))]
