"""What the linter found, as the terminal shows it: each place with its source, its story and its way out."""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import zip_longest

from nanopsy.causes import find
from nanopsy.findings import Confidence, Finding, Inspection, Location, Safety

_BOLD, _RED, _GREEN, _BLUE, _DIM, _RESET = "\x1b[1m", "\x1b[31m", "\x1b[32m", "\x1b[34m", "\x1b[2m", "\x1b[0m"
_LEVEL = {Confidence.CERTAIN: "certain", Confidence.LIKELY: "likely", Confidence.DEPENDS: "depends"}
CONTEXT = 1
"""Lines shown before and behind a finding."""
TALLEST, WIDEST, TAB = 6, 160, 4


class _Paint:
    def __init__(self, *, color: bool) -> None:
        self.color = color

    def __call__(self, style: str, text: str) -> str:
        return f"{style}{text}{_RESET}" if self.color and text else text


def _clean(text: str) -> str:
    """One line that cannot steer a terminal, whatever a file name or a message holds."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in " ".join(text.split()))


def _cells(line: str) -> list[str]:
    """A line's characters as a terminal shows them: tabs widened, what cannot be shown replaced."""
    out: list[str] = []
    for char in line:
        shown = " " * TAB if char == "\t" else char if char.isprintable() or unicodedata.combining(char) else "\N{REPLACEMENT CHARACTER}"
        out.append(shown)
    return out


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _marked(line: str, start: int, end: int) -> tuple[str, str]:
    """A line and the carets below its characters ``start`` to ``end``; of a long line the part around them."""
    cells = _cells(line)
    first, before, behind = 0, "", ""
    if len(cells) > WIDEST:
        first = max(0, min(start - 40, len(cells) - WIDEST))
        before, behind = "…" if first else "", "…" if first + WIDEST < len(cells) else ""
        cells = cells[first : first + WIDEST]
    start, end = max(start - first, 0), min(end - first, len(cells))
    carets = " " * _width(before + "".join(cells[:start])) + "^" * max(1, _width("".join(cells[start:end])))
    return before + "".join(cells) + behind, carets


def _excerpt(place: Location, inspection: Inspection, paint: _Paint, indent: str, context: int) -> list[str]:
    """The source at a place with line numbers, and carets under the very expression."""
    lines = [line.rstrip("\r\n") for line in inspection.lines.get((place.file, place.cell), ())]
    last = max(place.end_line, place.line)
    if not 0 < place.line <= last <= len(lines):
        return []
    top, bottom = max(place.line - context, 1), min(last + context, len(lines))
    while top < place.line and not lines[top - 1].strip():
        top += 1
    while bottom > last and not lines[bottom - 1].strip():
        bottom -= 1
    gutter = len(str(bottom))
    bar = paint(_BLUE, f"{indent}{' ' * gutter} |")
    out: list[str] = []
    for number in range(top, bottom + 1):
        line = lines[number - 1]
        inside = place.line <= number <= last
        if inside and last - place.line + 1 > TALLEST and place.line + TALLEST // 2 <= number <= last - TALLEST // 2:
            if number == place.line + TALLEST // 2:
                out.append(paint(_BLUE, f"{indent}{'.' * gutter} |"))
            continue
        blank = len(line) - len(line.lstrip())
        start = place.column - 1 if number == place.line else blank
        end = (place.end_column or place.column + 1) - 1 if number == last else len(line.rstrip())
        shown, carets = _marked(line, start, end)
        out.append(f"{paint(_BLUE, f'{indent}{number:>{gutter}} |')} {shown}".rstrip())
        if inside and line.strip():
            out.append(f"{bar} {paint(_RED, carets)}")
    return out


def is_safe(finding: Finding) -> bool:
    """Whether ``--fix`` alone carries out what the finding proposes."""
    return bool(finding.edits) and all(edit.safety is Safety.SAFE for edit in finding.edits)


def _finding(finding: Finding, inspection: Inspection, paint: _Paint) -> list[str]:
    mark = paint(_GREEN, "[*]") + " " if is_safe(finding) else ""
    place = _clean(str(finding.location)) if finding.location else "-"
    confidence = f" ({_LEVEL[finding.confidence]})" if finding.confidence else ""
    lines = [f"{paint(_BOLD, place)}: {paint(_BOLD + _RED, finding.code)} {finding.slug} {mark}{_clean(finding.message)}{paint(_DIM, confidence)}"]
    if finding.location:
        lines += _excerpt(finding.location, inspection, paint, "  ", CONTEXT)
    for each, story in zip_longest(finding.also, finding.story):
        told = _clean(story or "")
        if each is None:
            lines.append(paint(_DIM, f"  {told}"))
        else:
            lines.append(f"  {paint(_BLUE, _clean(str(each)))}: {told or 'see also'}")
            lines += _excerpt(each, inspection, paint, "    ", 0)
    if finding.condition:
        lines.append(f"  if: {_clean(finding.condition).removeprefix('if ')}")
    if finding.edits:
        notes = _clean("; ".join(dict.fromkeys(edit.note for edit in finding.edits if edit.note))) or "an edit"
        how = "--fix" if is_safe(finding) else "--unsafe-fixes, as it changes finite values"
        lines.append(f"  {paint(_GREEN, 'fix')}: {notes} ({how})")
    if find(finding.code):
        lines.append(paint(_DIM, f"  see: nanopsy explain {finding.code}"))
    return lines


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def summary(inspection: Inspection) -> str:
    """The last line: how much was found, how much of it can be fixed, and what is not shown."""
    files = _count(inspection.files, "file")
    parts: list[str] = []
    if inspection.findings:
        kinds = Counter(finding.confidence for finding in inspection.findings)
        sure = ", ".join(f"{kinds[each]:,} {each}" for each in Confidence if kinds[each])
        parts.append(f"Found {_count(len(inspection.findings), 'problem')} in {files}{f' ({sure})' if sure else ''}")
    elif inspection.problems:
        parts.append(f"Found nothing in {files}")
    elif not inspection.files:
        parts.append("Nothing to check: no Python file or notebook was found")
    else:
        parts.append(f"All clear: {files}")
    if inspection.problems:
        parts.append(f"{_count(len(inspection.problems), 'file')} could not be checked")
    if inspection.fixed:
        parts.append(f"{inspection.fixed:,} fixed")
    safe = sum(is_safe(finding) for finding in inspection.findings)
    unsafe = sum(bool(finding.edits) for finding in inspection.findings) - safe
    if safe:
        parts.append(f"{safe:,} fixable with --fix" + (f", {unsafe:,} more with --unsafe-fixes" if unsafe else ""))
    elif unsafe:
        parts.append(f"{unsafe:,} fixable with --unsafe-fixes")
    for reason, number in inspection.hidden.items():
        if number:
            hint = f": --min-confidence {reason} shows them" if reason in set(Confidence) else ""
            parts.append(f"{number:,} hidden ({reason}){hint}")
    return "; ".join(parts) + "."


def render(inspection: Inspection, *, color: bool = False) -> str:
    """Every finding with its source, then the files that could not be checked, then one line that sums up."""
    paint = _Paint(color=color)
    lines: list[str] = []
    for finding in inspection.findings:
        lines += [*_finding(finding, inspection, paint), ""]
    for problem in inspection.problems:
        lines.append(f"{paint(_BOLD, f'{_clean(problem.file)}:{problem.line}')}: {paint(_RED, 'not checked')}: {_clean(problem.message)}")
    if inspection.problems:
        lines.append("")
    return "\n".join([*lines, summary(inspection)])
