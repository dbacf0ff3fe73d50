"""The cache on disk: what was said of a project, for as long as none of its files, nor nanopsy itself, has changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import nanopsy
from nanopsy.check.analysis import Said
from nanopsy.check.files import write_atomically
from nanopsy.check.verdicts import Opinion, Span
from nanopsy.findings import Confidence, Edit, Finding, Location, Safety

FOLDER = ".nanopsy_cache"


@lru_cache(maxsize=1)
def version() -> str:
    """A digest of the analysis itself: another rule, another answer."""
    digest = hashlib.blake2b(f"{nanopsy.__version__} {platform.python_version()}".encode(), digest_size=16)
    base = Path(nanopsy.__file__).parent
    for folder in ("check", "causes"):
        for file in sorted((base / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    for name in ("facts.py", "sources.py", "findings.py"):
        digest.update((base / name).read_bytes())
    return digest.hexdigest()


def of_text(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def key(root: str, files: Iterable[tuple[str, str]]) -> str:
    """The key of a project: its files (path, digest), its place and the version of the analysis."""
    digest = hashlib.blake2b(f"{version()}\0{root}".encode("utf-8", "surrogatepass"), digest_size=16)
    for path, content in sorted(files):
        digest.update(f"\0{path}\0{content}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


class Cache:
    """One JSON file for each project in a folder of its own; whatever is wrong with it, the work is simply done again."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def _path(self, root: str) -> str:
        return os.path.join(self.folder, hashlib.blake2b(os.fsencode(root), digest_size=10).hexdigest() + ".json")

    def get(self, root: str, name: str) -> Said | None:
        """What was said of a project, if its key is still ``name`` and no file looked into has changed."""
        try:
            with open(self._path(root), encoding="utf-8") as handle:
                content = json.load(handle)
            if content["key"] != name or any(_digest(file) != digest for file, digest in content["outside"].items()):
                return None
            return _said(content)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def put(self, root: str, name: str, said: Said) -> None:
        outside = {file: _digest(file) for file in dict.fromkeys(said.outside)}
        content = {
            "key": name, "opinions": [_plain(each) for each in said.opinions], "cleared": [list(each) for each in said.cleared],
            "heads": [list(each) for each in said.heads], "failed": [list(each) for each in said.failed],
            "broken": [list(each) for each in said.broken], "outside": outside,
        }  # fmt: skip
        try:
            os.makedirs(self.folder, exist_ok=True)
            ignore = os.path.join(self.folder, ".gitignore")
            if not os.path.exists(ignore):
                write_atomically(ignore, b"*\n")
            write_atomically(self._path(root), json.dumps(content, ensure_ascii=True).encode())
        except OSError:
            return  # a folder that cannot be written: the next run is slow, nothing else

    def findings(self, name: str) -> dict[str, list[Finding]] | None:
        """The findings made of an earlier check of the same projects, by file."""
        try:
            with open(self._path("findings"), encoding="utf-8") as handle:
                content = json.load(handle)
            if content["name"] != name:
                return None
            return {file: [_finding(entry) for entry in entries] for file, entries in content["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def put_findings(self, name: str, files: Mapping[str, Sequence[Finding]]) -> None:
        content = {"name": name, "files": {file: [asdict(finding) for finding in findings] for file, findings in files.items() if findings}}
        with contextlib.suppress(OSError):
            write_atomically(self._path("findings"), json.dumps(content).encode())


def _finding(entry: Mapping[str, Any]) -> Finding:
    return Finding(
        entry["code"], entry["slug"], Location(**entry["location"]), entry["message"], also=tuple(Location(**place) for place in entry["also"]),
        evidence=entry["evidence"], story=tuple(entry["story"]), confidence=Confidence(entry["confidence"]), condition=entry["condition"],
        edits=tuple(Edit(**{**edit, "safety": Safety(edit["safety"])}) for edit in entry["edits"]),
    )  # fmt: skip


def _digest(file: str) -> str:
    try:
        return hashlib.blake2b(Path(file).read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""


def _plain(opinion: Opinion) -> dict[str, Any]:
    return asdict(opinion)


def _span(entry: Mapping[str, Any]) -> Span:
    return Span(str(entry["file"]), int(entry["line"]), int(entry["column"]), int(entry["end_line"]), int(entry["end_column"]), str(entry["what"]))


def _said(content: Mapping[str, Any]) -> Said:
    opinions = [
        Opinion(
            str(each["code"]), str(each["op"]), _span(each["span"]), str(each["message"]), str(each["confidence"]), str(each["condition"]), bool(each["open"]),
            bool(each["live"]), bool(each["needs_gradient"]), bool(each["quiet"]), tuple(_span(also) for also in each["also"]),
            _span(each["caller"]) if each["caller"] is not None else None, str(each["function"]),
            tuple((str(name), str(word)) for name, word in each["facts"]),
        )
        for each in content["opinions"]
    ]  # fmt: skip
    cleared = [(str(file), int(line), int(column), str(op)) for file, line, column, op in content["cleared"]]
    heads = [(str(file), int(line), str(name), str(what)) for file, line, name, what in content["heads"]]
    broken = [(str(file), int(line), str(why)) for file, line, why in content["broken"]]
    return Said(opinions, cleared, heads, list(content["outside"]), broken, [(str(file), str(why)) for file, why in content["failed"]])
