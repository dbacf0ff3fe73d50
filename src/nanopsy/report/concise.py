"""One line for each finding, as editors and grep read it."""

from __future__ import annotations

from nanopsy.findings import Inspection


def render(inspection: Inspection, *, color: bool = False) -> str:
    """``path:line:col: CODE message``, a notebook's with its cell; files that could not be checked last. Nothing if nothing was found."""
    lines = [f"{finding.location or '-'}: {finding.code} {' '.join(finding.message.split())}" for finding in inspection.findings]
    lines += [f"{problem.file}:{problem.line}:1: error: {' '.join(problem.message.split())}" for problem in inspection.problems]
    return "\n".join(lines)
