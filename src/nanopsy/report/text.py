"""The finding as the terminal shows it."""

from __future__ import annotations

import os
import shutil
import textwrap

from nanopsy.findings import Diagnosis, Finding, Incident, Location, Outcome
from nanopsy.sources import excerpt

_BOLD, _RED, _GREEN, _DIM, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[2m", "\x1b[0m"


def _short(file: str) -> str:
    """A path below the current folder relative to it, any other as it is."""
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return file
    return file if relative.startswith("..") else relative


def place_of(location: Location) -> str:
    """Where a finding is, for a reader in this folder."""
    return f"{_short(location.file)}:{location.line}:{location.column}"


def shortened(text: str) -> str:
    """A sentence with the paths in it relative to this folder."""
    folder = os.getcwd() + os.sep
    return text.replace(folder, "")


class _Paint:
    def __init__(self, *, color: bool) -> None:
        self.color = color

    def __call__(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self.color else text


def _wrapped(text: str, indent: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False) or [indent]


def _finding(finding: Finding, incident: Incident, paint: _Paint, width: int) -> list[str]:
    place = place_of(finding.location) if finding.location else "(no line of yours)"
    lines = [f"{paint(_BOLD + _RED, finding.code)} {paint(_BOLD, finding.slug)}   {place}   step {incident.step}"]
    if finding.location:
        code, under = excerpt(finding.location)
        if code:
            lines += [f"    {code}", f"    {paint(_RED, under)}"]
    lines += _wrapped(shortened(finding.message), "  ", width)
    for line in finding.story[:8]:
        lines.append(paint(_DIM, f"    {shortened(line)}"))
    if finding.path:
        what = "loss" if str(incident.what) == "loss" else "gradient"
        lines += _wrapped(f"reached the {what} through {' -> '.join(finding.path)}", "  ", width)
    if finding.also:
        lines += _wrapped("see also " + ", ".join(place_of(place) for place in finding.also[:4]), "  ", width)
    if finding.fix is not None:
        verified = finding.verification or "not verified"
        mark = paint(_GREEN if finding.verified else _RED, verified)
        note = f" ({finding.fix.note})" if finding.fix.note else ""
        lines.append(f"  fix, {finding.fix.safety}{note}:  {mark}")
        lines += [f"    {shortened(line)}" for line in finding.fix.diff.splitlines()[2:]]
    replacement = finding.evidence.get("replacement")
    if replacement:
        lines.append(f"  or by one import: {replacement}")
    lines.append(f"  why: nanopsy explain {finding.code}")
    return lines


def render(diagnosis: Diagnosis, *, color: bool = False) -> str:
    """All incidents of a diagnosis, the most likely finding of each first and whole, the others in a line."""
    paint, width = _Paint(color=color), min(shutil.get_terminal_size((110, 24)).columns, 118)
    if not diagnosis.incidents:
        return f"nanopsy: no incident in {diagnosis.steps} step{'' if diagnosis.steps == 1 else 's'}"
    lines: list[str] = []
    for incident in diagnosis.incidents:
        lines.append("")
        lines.append(
            paint(_BOLD, f"nanopsy: non-finite {incident.what} at step {incident.step}") + (f", seen {incident.count} times" if incident.count > 1 else "")
        )
        if incident.rank is not None:
            batch = f", batch {incident.batch['number']} of its loop" if "number" in incident.batch else ""
            lines.append(f"  born on rank {incident.rank}{batch}")
        if incident.outcome is Outcome.REPRODUCED:
            lines.append(f"  reproduced: {incident.detail}")
        else:
            lines += _wrapped(f"{incident.outcome}: {incident.detail}", "  ", width)
        for number, finding in enumerate(incident.findings):
            lines.append("")
            if number == 0:
                lines += _finding(finding, incident, paint, width)
            else:
                place = place_of(finding.location) if finding.location else ""
                lines += _wrapped(f"less likely: {finding.code} {finding.slug} {place}: {shortened(finding.message)}", "  ", width)
        if not incident.findings:
            lines.append("  cause unknown: nothing is claimed about a step that could not be examined")
        if incident.weights:
            lines += ["", f"  {incident.weights}"]
    for note in diagnosis.notes:
        lines.append(f"  note: {note}")
    return "\n".join(lines)
