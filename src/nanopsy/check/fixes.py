"""Fixes: the edits a cause proposes for a line, chosen, checked and carried out until nothing changes."""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Sequence

from nanopsy.causes import Cause
from nanopsy.check.files import Text, edited
from nanopsy.check.verdicts import Judged
from nanopsy.findings import Edit, Finding, Location, Safety
from nanopsy.ranges import Birth, Discard
from nanopsy.sources import Source, load

ROUNDS = 12
"""How often a file is checked again after its edits: an edit can uncover the next."""


def propose(cause: Cause, one: Judged, location: Location) -> tuple[Edit, ...]:
    """The first set of edits that a cause has for a line, or nothing. Offsets count in the file at ``location``."""
    birth = _imagined(one, location)
    finding = Finding(one.code, cause.slug, location, one.message)
    source = load(location.file)
    if source is None:
        return ()
    try:
        for edits in cause.cures(birth, finding, dict(one.facts)):
            chosen = tuple(edits)
            if chosen:
                return chosen + _imports(source, chosen)
    except (IndexError, RecursionError):
        return ()
    return ()


def _imagined(one: Judged, location: Location) -> Birth:
    """The birth that a run would see at this line, in float32."""
    replaced = next((span for span in one.also if span.what == "replaced here, too late"), None)
    discard = None
    if replaced is not None:
        source = load(replaced.file)
        if source is not None:
            start, end = source.offset(replaced.line, replaced.column), source.offset(replaced.end_line, replaced.end_column)
            place = Location(
                replaced.file, replaced.line, start - source.starts[replaced.line - 1] + 1, replaced.end_line, end - source.starts[replaced.end_line - 1] + 1
            )
            discard = Discard("where", place, str(dict(one.facts).get("branch", "")))
    return Birth(one.op, "forward", math.nan, "float32", location, discard=discard)


def _imports(source: Source, edits: Sequence[Edit]) -> tuple[Edit, ...]:
    """The edit that imports torch, where an edit speaks of it and the module does not know it."""
    if not any(re.search(r"\btorch\.", edit.text) for edit in edits):
        return ()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import) and any((alias.asname or alias.name.split(".")[0]) == "torch" for alias in node.names):
            return ()
    at = import_place(source)
    return (Edit(source.file, at, at, "import torch\n", edits[0].safety, "imports torch"),)


def import_place(source: Source) -> int:
    """The offset of the line where a new import goes: after the docstring and the imports from __future__, before the first import."""
    body = source.tree.body
    last = 0
    for index, node in enumerate(body):
        docstring = index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__"):
            last = node.end_lineno or node.lineno
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            return source.starts[node.lineno - 1]
        else:
            break
    return source.starts[last] if last < len(source.starts) else len(source.text)


def allowed(findings: Sequence[Finding], *, unsafe: bool) -> list[Finding]:
    """The findings whose edits may be carried out."""
    return [finding for finding in findings if finding.edits and (unsafe or all(edit.safety is Safety.SAFE for edit in finding.edits))]


def carried_out(text: Text, findings: Sequence[Finding], *, unsafe: bool) -> tuple[Text, int]:
    """The text after the edits of one file's findings that do not overlap, and how many findings that was."""
    taken: list[Edit] = []
    count = 0
    for finding in allowed(findings, unsafe=unsafe):
        new = [edit for edit in finding.edits if edit not in taken]
        if any(_overlap(edit, other) for edit in new for other in taken):
            continue
        trial = [*taken, *new]
        if not _still_parses(text, trial):
            continue
        taken, count = trial, count + 1
    return (edited(text, taken), count) if taken else (text, 0)


def _overlap(first: Edit, second: Edit) -> bool:
    if first.start == first.end and second.start == second.end:
        return first.start == second.start
    return first.start < second.end and second.start < first.end


def _still_parses(text: Text, edits: Sequence[Edit]) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(edited(text, edits).text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True
