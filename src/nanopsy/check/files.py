"""The files to check: read and written back. Stdlib only.

A file is read as Python reads it (its declared encoding, its mark at the beginning) but keeps its line ends, so that what is
written back differs from what was read by the edits and nothing else. A notebook is read as one text of its code cells.
Lines that IPython understands and Python does not are made comments of the same length: offsets into the text are then
offsets into the notebook's own source.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import tempfile
import tokenize
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from nanopsy.errors import NanopsyError
from nanopsy.findings import Edit, Location, Problem

LARGEST = 20 * 2**20
"""Bytes beyond which a file is not read: no one wrote it by hand."""


def split_lines(text: str) -> list[str]:
    """The lines of a source text with their ends, split where Python splits them (``str.splitlines`` also splits at form feeds)."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", text)


# --- read ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cell:
    """One code cell of a notebook and where it lies in the joined text."""

    number: int
    """Its place among all cells of the notebook, from 1, text cells included."""
    start: int
    """Offset of its first character in the joined text."""
    first_line: int
    """Its first line in the joined text, from 1."""
    source: str
    """What it says, before anything was made a comment, with a line end behind the last line."""
    ended: bool
    """Whether that last line end is its own."""

    @property
    def end(self) -> int:
        return self.start + len(self.source)


@dataclass(frozen=True, slots=True)
class Text:
    """What a file says, and all that is needed to write it back."""

    path: str
    text: str
    cells: tuple[Cell, ...] = ()
    encoding: str = "utf-8"
    """``utf-8-sig`` stands for UTF-8 with a mark at the beginning."""
    notebook: str = ""
    """The notebook's JSON; nothing for a plain file."""

    def cell_at(self, line: int) -> Cell | None:
        """The cell that a line of the joined text lies in."""
        at = bisect_right(self.cells, line, key=lambda cell: cell.first_line)
        return self.cells[max(at - 1, 0)] if self.cells else None

    def place(self, line: int) -> tuple[int, int]:
        """Cell number and line within it; in a plain file 0 and the line."""
        cell = self.cell_at(line)
        return (cell.number, line - cell.first_line + 1) if cell is not None else (0, line)

    def localised(self, location: Location) -> Location:
        """A location in the joined text as one in its cell."""
        cell = self.cell_at(location.line)
        if cell is None:
            return location
        above = cell.first_line - 1
        last = len(split_lines(cell.source))
        end = min(location.end_line - above, last) if location.end_line else 0
        return replace(location, line=location.line - above, end_line=end, cell=cell.number)

    def lines(self) -> dict[int, list[str]]:
        """The source lines without their ends, by cell number (0 in a plain file)."""
        texts = {cell.number: cell.source for cell in self.cells} if self.notebook else {0: self.text}
        return {number: [line.rstrip("\r\n") for line in split_lines(text)] for number, text in texts.items()}


def read(path: str) -> Text | Problem:
    """A file's text, or why it has none."""
    try:
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            os.listdir(path)
            return Problem(path, 1, "is a folder")
        if not stat.S_ISREG(status.st_mode):
            return Problem(path, 1, "is not a regular file")
        if status.st_size > LARGEST:
            return Problem(path, 1, f"too large to check: {status.st_size / 2**20:.1f} MB, more than {LARGEST // 2**20}")
        raw = Path(path).read_bytes()
    except OSError as error:
        return Problem(path, 1, f"cannot be read: {error.strerror or error}")
    return decode(path, raw)


def decode(path: str, raw: bytes) -> Text | Problem:
    """The text of a file with these bytes; a notebook by its name."""
    if path.endswith(".ipynb"):
        encoding = "utf-8-sig" if raw.startswith(b"\xef\xbb\xbf") else "utf-8"
    else:
        try:
            encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        except SyntaxError as error:
            return Problem(path, 1, f"cannot be decoded: {error.msg}")
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        return Problem(path, line, f"cannot be decoded: byte 0x{raw[error.start]:02x} is not {encoding}; declare the encoding in the first line")
    except (UnicodeError, LookupError, ValueError) as error:
        return Problem(path, 1, f"cannot be decoded: {error}")
    if path.endswith(".ipynb"):
        return _notebook(path, text, encoding)
    if "\0" in text:
        return Problem(path, len(split_lines(text[: text.index("\0")] + " ")), "holds a null byte: it is no source text")
    return Text(path, text, encoding=encoding)


# --- notebooks -------------------------------------------------------------------------------------------------------

_PYTHON_BODIES = {"capture", "time", "timeit", "prun"}
"""Cell magics that run the cell's Python."""
_HELP = re.compile(r"\s*[%\w.*\[\]'\"()]+\?\??\s*;?\s*")
_ASSIGNED = re.compile(r"\s*[\w.,\s*\[\]]+=\s*[%!](?!=)")
_LEXEME = re.compile(r"""#.*|'''|\"\"\"|"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|[(\[{]|[)\]}]|\\$""")


def _as_comment(line: str, *, statement: bool) -> str:
    """The line as a comment of the same length; where a statement may be needed, as a name before the comment."""
    at = len(line) - len(line.lstrip())
    content = line[at:].rstrip("\r\n")
    if not content:
        return line
    new = "#" if not (at and statement) else "_#" if len(content) > 1 else "_"
    return line[:at] + new + line[at + len(new) :]


def _after(line: str, depth: int, quote: str) -> tuple[int, str, bool]:
    """How many brackets are open behind a line, the triple quote that is, and whether a backslash joins the next line."""
    at, body = 0, line.rstrip("\r\n")
    while True:
        if quote:
            closed = re.compile(rf"(?:\\.|(?!{quote})[^\\])*{quote}").match(body, at)
            if closed is None:
                return depth, quote, False
            at, quote = closed.end(), ""
        found = _LEXEME.search(body, at)
        if found is None:
            return depth, "", False
        word, at = found[0], found.end()
        if word == "\\":
            return depth, "", True
        if word in {"'''", '"""'}:
            quote = word
        elif word in "([{":
            depth += 1
        elif word in ")]}":
            depth = max(0, depth - 1)


def _without_magics(source: str) -> str:
    """A cell's source with what only IPython understands made comments; as long as it was, line by line."""
    lines = split_lines(source)
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and (first[2:].split() or [""])[0] not in _PYTHON_BODIES:
        return "".join(_as_comment(line, statement=False) for line in lines)
    out: list[str] = []
    depth, quote, joined, magic = 0, "", False, False
    for line in lines:
        if magic:
            magic = line.rstrip().endswith("\\")
            out.append(_as_comment(line, statement=False))
            continue
        if not (depth or quote or joined):
            stripped = line.strip()
            assigned = _ASSIGNED.match(line)
            if stripped[:1] in {"%", "!", "?", "/", ",", ";"} or _HELP.fullmatch(line):
                magic = stripped.endswith("\\")
                out.append(_as_comment(line, statement=True))
                continue
            if assigned is not None:
                at = assigned.end() - 1
                magic = stripped.endswith("\\")
                out.append(line[:at] + _as_comment(f" {line[at:]}", statement=True)[1:])
                continue
        depth, quote, joined = _after(line, depth, quote)
        out.append(line)
    return "".join(out)


def _source(cell: dict[str, Any]) -> str | None:
    source = cell.get("source", "")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source if isinstance(source, str) else None


def _language(content: dict[str, Any]) -> str:
    metadata = content.get("metadata")
    entries = [(metadata.get(part) or {}).get(name) for part, name in (("language_info", "name"), ("kernelspec", "language"))] if metadata else []
    return next((entry.lower() for entry in entries if isinstance(entry, str) and entry), "python")


def _joined(text: Text, pieces: Sequence[tuple[int, str, str, bool]]) -> Text:
    """The text of these cells: number, source, source without magics, whether it ended in a line end."""
    cells: list[Cell] = []
    start, line = 0, 1
    for number, source, _, ended in pieces:
        cells.append(Cell(number, start, line, source, ended))
        start += len(source)
        line += len(split_lines(source))
    return replace(text, text="".join(plain for _, _, plain, _ in pieces), cells=tuple(cells))


def _notebook(path: str, raw: str, encoding: str) -> Text | Problem:
    try:
        content = json.loads(raw)
    except json.JSONDecodeError as error:
        return Problem(path, error.lineno, f"is no notebook: {error.msg}")
    except (ValueError, RecursionError) as error:
        return Problem(path, 1, f"is no notebook: {error}")
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        why = "it is of format 3 or older; jupyter nbconvert --to notebook converts it" if isinstance(content, dict) and "worksheets" in content else "no cells"
        return Problem(path, 1, f"is no notebook: {why}")
    empty = Text(path, "", encoding=encoding, notebook=raw)
    try:
        language = _language(content)
    except AttributeError:
        return Problem(path, 1, "is no notebook: its metadata is no table")
    if not language.startswith(("python", "ipython")):
        return empty
    pieces: list[tuple[int, str, str, bool]] = []
    for number, cell in enumerate(content["cells"], 1):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = _source(cell)
        if source is None:
            return Problem(path, 1, f"is no notebook: the source of cell {number} is no text")
        if "\0" in source:
            return Problem(path, 1, f"cell {number} holds a null byte: it is no source text")
        ended = source.endswith(("\n", "\r"))
        source = _closed(source)
        pieces.append((number, source, _without_magics(source), ended))
    return _joined(empty, pieces)


# --- written back ----------------------------------------------------------------------------------------------------


def _applied(text: str, edits: Sequence[Edit], offset: int = 0) -> str:
    for edit in sorted(edits, key=lambda edit: (edit.start, edit.end), reverse=True):
        text = text[: edit.start - offset] + edit.text + text[edit.end - offset :]
    return text


def _closed(source: str) -> str:
    """A cell's source with a line end behind its last line, which would else run into the next cell."""
    return source if source.endswith(("\n", "\r")) else f"{source}\n"


def edited(text: Text, edits: Sequence[Edit]) -> Text:
    """The text with ``edits`` carried out; they must not overlap, nor reach from one cell into another."""
    ordered = sorted(edits, key=lambda edit: (edit.start, edit.end))
    for one, other in pairwise(ordered):
        if one.end > other.start:
            raise ValueError(f"edits overlap: {one} and {other}")
    if not text.notebook:
        return replace(text, text=_applied(text.text, edits))
    pieces: list[tuple[int, str, str, bool]] = []
    left = list(ordered)
    for cell in text.cells:
        last = cell is text.cells[-1]
        mine = [edit for edit in left if cell.start <= edit.start and edit.end <= cell.end and (edit.start < cell.end or last)]
        left = [edit for edit in left if edit not in mine]
        plain = text.text[cell.start : cell.end]
        pieces.append((cell.number, _closed(_applied(cell.source, mine, cell.start)), _closed(_applied(plain, mine, cell.start)), cell.ended))
    if left:
        raise ValueError(f"no cell holds the whole of {left[0]}")
    return _joined(text, pieces)


def _as_json(text: Text) -> str:
    """The notebook's JSON with the cells' new source, laid out as it was; the very same text if no cell changed."""
    content = json.loads(text.notebook)
    changed = False
    for cell in text.cells:
        entry = content["cells"][cell.number - 1]
        source = cell.source if cell.ended else re.sub(r"(?:\r\n|\r|\n)\Z", "", cell.source)
        if _source(entry) != source:
            entry["source"] = source if isinstance(entry.get("source"), str) else source.splitlines(keepends=True)
            changed = True
    if not changed:
        return text.notebook
    indent = re.match(r"\s*\{\r?\n([ \t]+)", text.notebook)
    written = json.dumps(content, indent=indent[1] if indent else None, ensure_ascii=False)
    if any("\ud800" <= char <= "\udfff" for char in written):
        written = json.dumps(content, indent=indent[1] if indent else None)
    tail = text.notebook[len(text.notebook.rstrip()) :]
    return (written.replace("\n", "\r\n") if "\r\n" in text.notebook else written) + tail


def write_atomically(path: str, raw: bytes) -> None:
    """Put ``raw`` in the place of a file's content at once: a reader sees the old or the new, never a part. Keeps the mode; follows links."""
    target = os.path.realpath(path)
    temporary = ""
    try:
        if os.path.exists(target) and not os.access(target, os.W_OK):
            raise PermissionError(13, "the file is read-only")
        handle, temporary = tempfile.mkstemp(dir=os.path.dirname(target), prefix=".nanopsy-")
        with os.fdopen(handle, "wb") as file:
            file.write(raw)
        mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else 0o666 & ~_umask()
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except OSError as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise NanopsyError("the file cannot be written", where=path, why=error.strerror or str(error), do="make the file and its folder writable") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_back(text: Text) -> None:
    """Write a text to its file, in its encoding and with the line ends it holds; a notebook's cells into their places."""
    body = _as_json(text) if text.notebook else text.text
    try:
        raw = body.encode(text.encoding)
    except UnicodeEncodeError as error:
        raise NanopsyError(
            f"{error.object[error.start : error.end]!r} cannot be written in {text.encoding}", where=text.path, why="the file declares that encoding",
            do="save the file as UTF-8 first",
        ) from None  # fmt: skip
    write_atomically(text.path, raw)
