"""From paths to an :class:`Inspection`: read, analyse (or remember), judge, and leave out what is not asked for."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from nanopsy.causes import load
from nanopsy.check import analysis, cache, suppress
from nanopsy.check.baseline import filter_baseline
from nanopsy.check.discovery import discover
from nanopsy.check.files import Text, decode, read
from nanopsy.check.settings import Settings
from nanopsy.check.shaping import Shaper
from nanopsy.check.verdicts import Judged, Opinion, Place, judge
from nanopsy.findings import Finding, Inspection, Problem

STDIN = "-"
_OUR_NOQA = re.compile(r"noqa[^\n]*\bNAN\d", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Request:
    """What one check is asked to do."""

    paths: Sequence[str]
    settings: Settings
    respect_gitignore: bool = True
    force_exclude: bool = False
    cache: str = ""
    """Folder of the cache; none is used when empty."""
    baseline: Mapping[str, str] | None = None
    stdin_name: str = "<stdin>"
    jobs: int = 0


@dataclass(slots=True)
class Result:
    """An inspection and the texts it is about."""

    inspection: Inspection
    texts: dict[str, Text] = field(default_factory=dict)
    """Every text that was checked, by its file."""
    names: dict[str, str] = field(default_factory=dict)
    """File -> the path that findings show."""
    stale: int = 0
    """Entries of the baseline that no longer occur."""


def inspect(request: Request, *, given: Mapping[str, Text] | None = None) -> Result:
    """Check files. ``given`` are texts to take instead of what is on disk (edited ones)."""
    settings = request.settings
    root = settings.root or os.getcwd()
    result = Result(Inspection(root=root))
    inspection = result.inspection
    texts = dict(given) if given is not None else _texts(request, inspection)
    inspection.files = len(texts) + len(inspection.problems)
    real = {file: os.path.realpath(file) for file in texts}
    folder = os.path.realpath(root)
    shown = {file: _relative(real[file], folder) for file in texts}
    result.texts, result.names = texts, shown
    by_path = {real[file]: text for file, text in texts.items()}
    names = {real[file]: name for file, name in shown.items()}
    store = cache.Cache(request.cache) if request.cache and given is None and all(os.path.isdir(path) for path in request.paths) else None
    said, key, fresh = _said(request, by_path, names, store)
    for each in said.values():
        inspection.problems += [Problem(names[path], 1, f"the analysis gave up: {why}") for path, why in each.failed]
        for path, line, why in each.broken:
            cell, at = by_path[path].place(line)
            inspection.problems.append(Problem(names[path], at, f"cell {cell} {why}" if cell else why))
    shaped = _shaped(said, Shaper(by_path, names, settings), store, key, fresh=fresh)
    hidden = {"depends": 0, "noqa": 0, "baseline": 0}
    lines: dict[tuple[str, int], Sequence[str]] = {}
    for file, text in texts.items():
        findings = [finding for finding in shaped.get(real[file], ()) if settings.wants(finding.code, shown[file])]
        if not findings and not _OUR_NOQA.search(text.text):
            continue
        kept, unused, silenced = suppress.suppress(findings, text.text, shown[file], checked=lambda code, file=file: _checked(settings, code, shown[file]))  # type: ignore[misc]
        hidden["noqa"] += silenced
        visible = [finding for finding in kept if settings.shows(finding.confidence)]
        hidden["depends"] += len(kept) - len(visible)
        visible += [finding for finding in unused if settings.wants(finding.code, shown[file])]
        visible.sort(key=lambda finding: (finding.location.line, finding.location.column, finding.code) if finding.location else (0, 0, ""))
        for finding in visible:
            inspection.findings.append(_localised(finding, text))
        if visible:
            for cell, content in text.lines().items():
                lines[shown[file], cell] = content
    _also_lines(inspection, texts, shown, lines)
    inspection.lines = lines
    inspection.findings.sort(
        key=lambda finding: (
            (finding.location.file, finding.location.cell, finding.location.line, finding.location.column, finding.code)
            if finding.location
            else ("", 0, 0, 0, "")
        )
    )
    if request.baseline is not None:
        inspection.findings, hidden["baseline"], result.stale = filter_baseline(inspection, request.baseline, checked=set(shown.values()))
    inspection.hidden = {name: count for name, count in hidden.items() if count}
    inspection.problems.sort(key=lambda problem: (problem.file, problem.line))
    return result


def _shaped(
    said: Mapping[str, analysis.Said], shaper: Shaper, store: cache.Cache | None, key: str, *, fresh: bool
) -> dict[str, list[Finding]]:  # fmt: skip
    """The findings of every file, by real path; those of an earlier check where nothing was said anew (``fresh``)."""
    name = f"{key}-{shaper.settings.min_confidence}-{shaper.settings.root}"
    known = store.findings(name) if store is not None and not fresh else None
    if known is not None:
        return known
    by_file: dict[str, list[Judged]] = {}
    for one in _judged(said, shaper.texts):
        by_file.setdefault(one.span.file, []).append(one)
    shaped = {file: shaper.findings(file, judged) for file, judged in by_file.items()}
    if store is not None:
        store.put_findings(name, shaped)
    return shaped


def _judged(said: Mapping[str, analysis.Said], files: Iterable[str]) -> list[Judged]:
    """What all projects said of each project's files: one may be looked into from another."""
    roots = sorted(said, key=len, reverse=True)

    def owner(file: str) -> str:
        return next((root for root in roots if file.startswith(root.rstrip(os.sep) + os.sep)), "")

    opinions: dict[str, list[Opinion]] = {}
    cleared: dict[str, list[Place]] = {}
    owners = {file: owner(file) for file in files}
    for each in said.values():
        for opinion in each.opinions:
            if opinion.span.file in owners:
                opinions.setdefault(owners[opinion.span.file], []).append(opinion)
        for place in each.cleared:
            if place[0] in owners:
                cleared.setdefault(owners[place[0]], []).append(place)
    return [one for root, group in sorted(opinions.items()) for one in judge(group, cleared.get(root, ()), said[root].heads if root in said else ())]


def _texts(request: Request, inspection: Inspection) -> dict[str, Text]:
    texts: dict[str, Text] = {}
    paths = [path for path in request.paths if path != STDIN]
    if STDIN in request.paths:
        text = decode(request.stdin_name, sys.stdin.buffer.read())
        if isinstance(text, Problem):
            inspection.problems.append(text)
        else:
            texts[request.stdin_name] = text
    for file in discover(paths, request.settings, respect_gitignore=request.respect_gitignore, force_exclude=request.force_exclude) if paths else ():
        got = read(file)
        if isinstance(got, Problem):
            inspection.problems.append(replace(got, file=_relative(os.path.realpath(got.file), os.path.realpath(inspection.root))))
        else:
            texts[file] = got
    return texts


def _said(
    request: Request, texts: Mapping[str, Text], shown: Mapping[str, str], store: cache.Cache | None
) -> tuple[dict[str, analysis.Said], str, bool]:  # fmt: skip
    """What was said of each project, one key for all of it, and whether any of it was said anew."""
    work = analysis.groups(list(texts), request.paths)
    plain = {file: text.text for file, text in texts.items()}
    done: dict[str, analysis.Said] = {}
    keys: dict[str, str] = {}
    if store is not None:
        for root, files in work.items():
            keys[root] = cache.key(root, ((file, cache.of_text(plain[file])) for file in files))
            known = store.get(root, keys[root])
            if known is not None:
                done[root] = known
    missing = {root: files for root, files in work.items() if root not in done}
    if missing:
        for root, said in analysis.run(missing, plain, shown, jobs=request.jobs).items():
            done[root] = said
            if store is not None:
                store.put(root, keys[root], said)
    return {root: done[root] for root in work}, cache.of_text("".join(keys.values())), bool(missing)


def _checked(settings: Settings, code: str, file: str) -> bool:
    return code in load() and settings.wants(code, file)


def _relative(file: str, root: str) -> str:
    """A real path relative to the root, if it lies below it."""
    if os.path.basename(file).startswith("<"):
        return os.path.basename(file)
    below = file.startswith(root.rstrip(os.sep) + os.sep)
    return file[len(root.rstrip(os.sep)) + 1 :].replace(os.sep, "/") if below else file


def _localised(finding: Finding, text: Text) -> Finding:
    return replace(finding, location=text.localised(finding.location)) if finding.location is not None else finding


def _also_lines(inspection: Inspection, texts: Mapping[str, Text], shown: Mapping[str, str], lines: dict[tuple[str, int], Sequence[str]]) -> None:
    names = {name: file for file, name in shown.items()}
    for finding in inspection.findings:
        for place in finding.also:
            if (place.file, place.cell) not in lines and place.file in names:
                for cell, content in texts[names[place.file]].lines().items():
                    lines[place.file, cell] = content
