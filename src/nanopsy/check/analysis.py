"""Whole trees: files in groups that belong together, two processes, and what they said judged as one."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field

from nanopsy.causes import load
from nanopsy.check.checker import Checker, Verdict
from nanopsy.check.tree import Tree
from nanopsy.check.verdicts import Head, Opinion, Place, Span, place

WHOLE = 240
"""Files of a project up to which one task takes them all; what they import is then parsed once."""
TOGETHER = 60
"""Files below which a second process costs more than it saves."""
KEPT = 800
"""Parsed modules that a worker keeps before it begins anew: bounds memory."""
RECURSION = 12_000
_MARKERS = (
    ".git",
    "pyproject.toml",
    "setup.py",
    "setup.cfg",
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "LICENSE",
    "LICENSE.md",
    "README.md",
    "README.rst",
)


@dataclass(slots=True)
class Said:
    """What the causes said of some files: plain data."""

    opinions: list[Opinion] = field(default_factory=list)
    cleared: list[Place] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """Files that were looked into but not asked for."""
    broken: list[tuple[str, int, str]] = field(default_factory=list)
    """Files that cannot be parsed: line and message."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Files that the analysis gave up, with the error."""

    def add(self, other: Said) -> None:
        self.opinions += other.opinions
        self.cleared += other.cleared
        self.heads += other.heads
        self.outside += other.outside
        self.broken += other.broken
        self.failed += other.failed


def opinion(verdict: Verdict) -> Opinion:
    """A verdict as plain data."""
    hazard = verdict.hazard
    site, suspicion = hazard.site, hazard.suspicion
    at = suspicion.at
    return Opinion(
        hazard.code, site.op, place(at) if at is not None else Span.of(site.source.file, site.node), suspicion.message, str(suspicion.confidence),
        suspicion.condition, suspicion.open, hazard.live, suspicion.needs_gradient, site.quiet, tuple(place(each) for each in suspicion.also),
        place(verdict.caller) if verdict.caller is not None else None, site.function, suspicion.facts,
    )  # fmt: skip


def groups(files: Sequence[str], given: Sequence[str]) -> dict[str, list[str]]:
    """Files (real paths) by the project they belong to: what is said of one project's heads says nothing of another's losses.

    A project's root is the outermost folder, at or below the given path, that holds a mark of a project (a version control
    folder, a licence, a README …), or the given path itself.
    """
    tops = sorted((os.path.realpath(path) for path in given if os.path.isdir(path)), key=len)
    marked: dict[str, bool] = {}
    found: dict[str, list[str]] = {}
    roots: dict[tuple[str, str | None], str] = {}
    for file in files:
        top = next((each for each in tops if file.startswith(each.rstrip(os.sep) + os.sep)), None)
        folder = os.path.dirname(file)
        if (folder, top) not in roots:
            roots[folder, top] = _root(file, top, marked)
        found.setdefault(roots[folder, top], []).append(file)
    return found


def _marked(folder: str, known: dict[str, bool]) -> bool:
    if folder not in known:
        known[folder] = any(os.path.exists(os.path.join(folder, name)) for name in _MARKERS)
    return known[folder]


def _root(file: str, top: str | None, known: dict[str, bool]) -> str:
    folders = []
    folder = os.path.dirname(file)
    while True:
        folders.append(folder)
        if folder == top or os.path.dirname(folder) == folder or (top is None and _marked(folder, known)):
            break
        folder = os.path.dirname(folder)
    if top is None:
        return folders[-1] if _marked(folders[-1], known) else os.path.dirname(file)
    for each in reversed(folders):
        if _marked(each, known):
            return each
    return top


def analyse(root: str, files: Sequence[str], texts: Mapping[str, str], names: Mapping[str, str]) -> Said:
    """Analyse ``files`` (real paths, all of one project) in this process; ``names`` are the paths that findings show."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, RECURSION))
    enabled = gc.isenabled()
    gc.disable()
    said = Said()
    try:
        checker: Checker | None = None
        for file in files:
            if checker is None or checker.tree.loaded > KEPT:
                if checker is not None:
                    _close(checker, said, files)
                    _bury(checker)
                checker = Checker(Tree(root, texts), load())
            try:
                broken = checker.tree.broken(file)
                if broken is not None:
                    said.broken.append((file, *broken))
                    continue
                checker.check(file, names.get(file, file))
            except Exception as error:  # a linter must not die of one file: it says which
                said.failed.append((file, f"{type(error).__name__}: {error}"))
            said.opinions += [opinion(verdict) for verdict in checker.verdicts]
            checker.verdicts.clear()
        if checker is not None:
            _close(checker, said, files)
    finally:
        sys.setrecursionlimit(limit)
        if checker is not None:
            _bury(checker)
        if enabled:
            gc.enable()
    said.opinions = list(dict.fromkeys(said.opinions))
    return said


_BURIED: list[Checker] = []


def _bury(checker: Checker) -> None:
    """Let go of a checker. Taking syntax trees apart takes as long as making them, so it is done only when memory asks for it."""
    _BURIED.append(checker)
    if sum(each.tree.loaded for each in _BURIED) > KEPT:
        _BURIED.clear()
        gc.collect()  # what a checker leaves has cycles


def _close(checker: Checker, said: Said, files: Sequence[str]) -> None:
    said.cleared += dict.fromkeys(checker.cleared)
    said.heads += dict.fromkeys(checker.heads)
    asked = set(files)
    said.outside += [file for file in checker.tree.touched if file not in asked and os.path.isfile(file)]


_SHARED: dict[str, Mapping[str, str]] = {}


def _begin(texts: Mapping[str, str], names: Mapping[str, str]) -> None:
    _SHARED["texts"], _SHARED["names"] = texts, names


def _task(root: str, files: Sequence[str]) -> Said:
    return analyse(root, files, _SHARED["texts"], _SHARED["names"])


def run(work: Mapping[str, Sequence[str]], texts: Mapping[str, str], names: Mapping[str, str], *, jobs: int = 0) -> dict[str, Said]:
    """Analyse every project of ``work`` (root -> files), in as many processes as there are processors."""
    count = sum(len(files) for files in work.values())
    workers = min(jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or os.cpu_count() or 1, max(1, count // TOGETHER + 1))
    results = {root: Said() for root in work}
    tasks = [(root, part) for root, files in work.items() for part in _parts(files)]
    if workers < 2 or count < TOGETHER:
        for root, part in tasks:
            results[root].add(analyse(root, part, texts, names))
        return results
    method = "fork" if "fork" in multiprocessing.get_all_start_methods() and sys.platform == "linux" else "spawn"
    tasks.sort(key=lambda task: -sum(len(texts.get(file, "")) for file in task[1]))
    gc.freeze()
    with ProcessPoolExecutor(workers, multiprocessing.get_context(method), _begin, (texts, names)) as pool:
        for root, said in zip([root for root, _ in tasks], pool.map(_task, *zip(*tasks, strict=True)), strict=True):
            results[root].add(said)
    return results


def _parts(files: Sequence[str]) -> list[Sequence[str]]:
    """Neighbouring files stay together: they import one another."""
    size = max(WHOLE, (len(files) + 3) // 4)
    return [files[start : start + size] for start in range(0, len(files), size)]
