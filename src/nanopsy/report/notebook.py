"""The finding as a notebook shows it: one HTML fragment, complete in itself, without scripts or style sheets.

Colours are laid over whatever the page has, so it reads in light and dark. All text is escaped: messages and source lines are other people's.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from nanopsy.findings import Diagnosis, Finding, Incident
from nanopsy.report.text import place_of, shortened
from nanopsy.sources import excerpt

if TYPE_CHECKING:
    from jinja2 import Template


@cache
def _page() -> Template:
    from jinja2 import Environment, StrictUndefined

    text = files("nanopsy.report").joinpath("notebook.html").read_text(encoding="utf-8")
    return Environment(autoescape=True, undefined=StrictUndefined).from_string(text)


def _marked(finding: Finding) -> tuple[str, str, str]:
    """The source line in three parts: before the expression, the expression, and what comes after it."""
    code, under = excerpt(finding.location) if finding.location is not None else ("", "")
    start, end = len(under) - len(under.lstrip()), len(under)
    return code[:start], code[start:end], code[end:]


def _finding(finding: Finding) -> dict[str, object]:
    before, marked, after = _marked(finding)
    return {
        "code": finding.code,
        "slug": finding.slug,
        "place": place_of(finding.location) if finding.location is not None else "",
        "before": before,
        "marked": marked,
        "after": after,
        "message": shortened(finding.message),
        "story": [shortened(line) for line in finding.story[:8]],
        "path": " -> ".join(finding.path),
        "also": ", ".join(place_of(place) for place in finding.also[:4]),
        "fix": finding.fix,
        "verified": finding.verified,
        "verification": finding.verification or "not verified",
        "diff": [shortened(line) for line in finding.fix.diff.splitlines()[2:]] if finding.fix is not None else [],
        "replacement": finding.evidence.get("replacement"),
    }


def _incident(incident: Incident) -> dict[str, object]:
    return {
        "step": incident.step,
        "what": str(incident.what),
        "sink": "loss" if str(incident.what) == "loss" else "gradient",
        "outcome": str(incident.outcome),
        "detail": incident.detail,
        "count": incident.count,
        "weights": incident.weights,
        "findings": [_finding(finding) for finding in incident.findings],
    }


def render(diagnosis: Diagnosis) -> str:
    """All incidents of a diagnosis, the most likely finding of each first and whole, the others in a line."""
    return _page().render(incidents=[_incident(incident) for incident in diagnosis.incidents], steps=diagnosis.steps, notes=diagnosis.notes)
