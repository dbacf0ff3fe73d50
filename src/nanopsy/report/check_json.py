"""What the linter found as strict JSON: no NaN, no infinity, whatever the evidence holds."""

from __future__ import annotations

import json

from nanopsy.findings import Edit, Finding, Inspection, plain
from nanopsy.report.fingerprint import fingerprints

CHECK_FORMAT = 1
"""Version of this JSON; it grows by keys, and changes its number when one goes or changes its meaning."""


def _edit(edit: Edit) -> dict[str, object]:
    return {"file": edit.file, "start": edit.start, "end": edit.end, "text": edit.text, "safety": str(edit.safety), "note": edit.note}


def _finding(finding: Finding, name: str) -> dict[str, object]:
    return {
        "code": finding.code,
        "slug": finding.slug,
        "message": finding.message,
        "confidence": str(finding.confidence) if finding.confidence else None,
        "condition": finding.condition,
        "location": finding.location.to_dict() if finding.location else None,
        "also": [place.to_dict() for place in finding.also],
        "story": list(finding.story),
        "evidence": dict(finding.evidence),
        "edits": [_edit(edit) for edit in finding.edits],
        "fingerprint": name,
    }


def render(inspection: Inspection, *, color: bool = False) -> str:
    """The whole inspection as one JSON object. Offsets of edits count characters of the file's text, a notebook's of its joined code cells."""
    content = {
        "format": CHECK_FORMAT,
        "root": inspection.root,
        "files": inspection.files,
        "fixed": inspection.fixed,
        "hidden": dict(inspection.hidden),
        "findings": [_finding(finding, name) for finding, name in zip(inspection.findings, fingerprints(inspection), strict=True)],
        "problems": [{"file": problem.file, "line": problem.line, "message": problem.message} for problem in inspection.problems],
    }
    return json.dumps(plain(content), indent=2, allow_nan=False)
