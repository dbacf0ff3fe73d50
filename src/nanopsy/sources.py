"""User source text: find the expression at a position, edit it, show it. Stdlib only."""

from __future__ import annotations

import ast
import difflib
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from nanopsy.findings import Edit, Location


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One file's text with its syntax tree; offsets are in characters."""

    file: str
    text: str
    tree: ast.Module
    starts: tuple[int, ...]

    def offset(self, line: int, utf8_column: int) -> int:
        """Character offset of an ``ast`` position (1-based line, 0-based UTF-8 column)."""
        start = self.starts[line - 1]
        stop = self.starts[line] if line < len(self.starts) else len(self.text)
        raw = self.text[start:stop].encode()
        return start + len(raw[:utf8_column].decode(errors="ignore"))

    def span(self, node: ast.AST) -> tuple[int, int]:
        """Character offsets of a node."""
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        return self.offset(line, column), self.offset(end_line, end_column)

    def code(self, node: ast.AST) -> str:
        """The text of a node as the user wrote it."""
        start, end = self.span(node)
        return self.text[start:end]

    def location(self, node: ast.AST) -> Location:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end_line = getattr(node, "end_lineno", None) or line
        end_column = getattr(node, "end_col_offset", None) or column
        return Location(
            self.file,
            line,
            self.offset(line, column) - self.starts[line - 1] + 1,
            end_line,
            self.offset(end_line, end_column) - self.starts[end_line - 1] + 1,
        )

    def at(self, location: Location) -> list[ast.AST]:
        """The nodes that start and end exactly at ``location``, outermost first."""
        wanted = _bare(location)
        return [node for node in _by_line(self).get(location.line, ()) if self.location(node) == wanted]

    def statement(self, line: int) -> ast.stmt | None:
        """The innermost statement that covers ``line``."""
        best: ast.stmt | None = None
        for node in ast.walk(self.tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno):
                if best is None or node.lineno >= best.lineno:
                    best = node
        return best


@lru_cache(maxsize=8)
def _by_line(source: Source) -> dict[int, list[ast.AST]]:
    """The nodes that start on each line, outermost first."""
    lines: dict[int, list[ast.AST]] = {}
    for node in ast.walk(source.tree):
        line = getattr(node, "lineno", None)
        if line is not None:
            lines.setdefault(line, []).append(node)
    return lines


def _bare(location: Location) -> Location:
    return Location(location.file, location.line, location.column, location.end_line, location.end_column)


_GIVEN: dict[str, Source] = {}
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
"""A line as Python splits them (``str.splitlines`` also splits at form feeds)."""


def give(source: Source) -> None:
    """From now on :func:`load` of its file answers with this source: a notebook's cells, standard input, an edited text."""
    _GIVEN[source.file] = source


def load(file: str) -> Source | None:
    """The source of ``file``, or None when it cannot be read or parsed."""
    return _GIVEN.get(file) or _read(file)


@lru_cache(maxsize=256)
def _read(file: str) -> Source | None:
    text = "".join(linecache.getlines(file))
    if not text:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None
    return parse(file, text)


def parse(file: str, text: str) -> Source | None:
    """Parse ``text`` as the contents of ``file``."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    starts = [0]
    for line in _LINE.finditer(text):
        starts.append(line.end())
    return Source(file, text, tree, tuple(starts))


def apply(source: Source, edits: list[Edit]) -> str:
    """The text of ``source`` with ``edits`` carried out; they must not overlap."""
    text = source.text
    for edit in sorted(edits, key=lambda edit: edit.start, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def diff(source: Source, edits: list[Edit], *, name: str | None = None, context: int = 1) -> str:
    """A unified diff of ``edits``."""
    shown = name or source.file
    lines = difflib.unified_diff(
        source.text.splitlines(),
        apply(source, edits).splitlines(),
        f"a/{shown.lstrip('/')}",
        f"b/{shown.lstrip('/')}",
        lineterm="",
        n=context,
    )
    return "\n".join(lines)


def excerpt(location: Location) -> tuple[str, str]:
    """The line at ``location`` and a line of carets under the very expression."""
    line = linecache.getline(location.file, location.line).rstrip("\n")
    if not line:
        return "", ""
    last = location.end_column if location.end_line in (0, location.line) else len(line) + 1
    width = max(1, last - location.column)
    indent = len(line) - len(line.lstrip())
    under = " " * (location.column - 1 - indent) + "^" * width
    return line.strip(), under[: max(len(line) - indent, 1)]


def constant_at(value: float, files: Sequence[str]) -> Location | None:
    """The one place in ``files`` (and the user modules beside them) that writes this number; None if there are several."""
    places: list[Location] = []
    seen = dict.fromkeys(files)
    for file in list(seen):
        for name in _imported(file):
            beside = Path(file).with_name(f"{name}.py")
            if beside.is_file():
                seen.setdefault(str(beside))
    for file in seen:
        source = load(file)
        if source is not None:
            places += [source.location(node) for node in ast.walk(source.tree) if isinstance(node, ast.Constant) and _equal(node.value, value)]
    return places[0] if len(places) == 1 else None


def _equal(left: object, right: float) -> bool:
    return isinstance(left, (int, float)) and not isinstance(left, bool) and float(left) == right


def _imported(file: str) -> Iterator[str]:
    source = load(file)
    for node in ast.walk(source.tree) if source is not None else ():
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[-1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[-1] for alias in node.names)


def assigned(file: str, name: str, owner: str = "") -> Location | None:
    """Where ``name`` (or ``self.name`` of the class ``owner``) gets its value: the location of the last assigned expression."""
    source = load(file)
    if source is None:
        return None
    tree: ast.AST = source.tree
    if owner:
        tree = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == owner), ast.Module([], []))
    found: Location | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(_names(target, name, attribute=bool(owner)) for target in node.targets):
            found = source.location(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "register_buffer" and len(node.args) > 1:
            if isinstance(node.args[0], ast.Constant) and node.args[0].value == name:
                found = source.location(node.args[1])
    return found


def _names(target: ast.expr, name: str, *, attribute: bool) -> bool:
    if isinstance(target, (ast.Tuple, ast.List)):
        return any(_names(entry, name, attribute=attribute) for entry in target.elts)
    if attribute:
        return isinstance(target, ast.Attribute) and target.attr == name
    return isinstance(target, ast.Name) and target.id == name
