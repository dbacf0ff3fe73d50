"""The verb ``nanopsy check``: options in, report out, and the exit status."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

from nanopsy.check import cache, fixes
from nanopsy.check.baseline import read_baseline, write_baseline
from nanopsy.check.files import Text, write_back
from nanopsy.check.inspect import STDIN, Request, Result, inspect
from nanopsy.check.settings import Settings, load_settings
from nanopsy.errors import EXIT_CLEAN, EXIT_SUSPICIONS, NanopsyError
from nanopsy.findings import Finding

FORMATS = {"text": "check_text", "concise": "concise", "json": "check_json", "sarif": "sarif", "github": "github", "gitlab": "gitlab"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("paths", nargs="*", metavar="PATH", help="files, folders, notebooks, or - for standard input (default: this folder)")
    looks = parser.add_argument_group("what is looked for")
    looks.add_argument("--select", action="append", metavar="CODES", help="only these codes, prefixes or slugs (comma-separated)")
    looks.add_argument("--ignore", action="append", metavar="CODES", help="all but these")
    looks.add_argument("--min-confidence", choices=("certain", "likely", "depends"), help="how sure a finding must be to be shown (default: likely)")
    looks.add_argument("--baseline", metavar="FILE", help="leave out the findings that this file knows")
    looks.add_argument("--write-baseline", metavar="FILE", help="write all present findings to this file and end with status 0")
    where = parser.add_argument_group("where")
    where.add_argument("--exclude", action="append", metavar="GLOB", help="instead of the default exclusions")
    where.add_argument("--extend-exclude", action="append", metavar="GLOB", help="besides them")
    where.add_argument("--force-exclude", action="store_true", help="exclude files even if they are named on the command line (as pre-commit does)")
    where.add_argument("--no-respect-gitignore", action="store_true", help="look into files that git ignores as well")
    where.add_argument("--config", metavar="FILE", type=Path, help="read [tool.nanopsy] from this file")
    where.add_argument("--stdin-filename", metavar="NAME", default="<stdin>", help="the name that standard input goes by")
    where.add_argument("--show-settings", action="store_true", help="print the settings in force and where each comes from")
    out = parser.add_argument_group("report")
    out.add_argument("--format", choices=tuple(FORMATS), default="text", help="how findings are printed (default: text)")
    out.add_argument("--output-file", metavar="FILE", help="write the report there instead of to standard output")
    out.add_argument("--statistics", action="store_true", help="print how often each cause was found instead of the findings")
    out.add_argument("--exit-zero", action="store_true", help="end with status 0 even if something was found")
    fixing = parser.add_argument_group("fixes")
    fixing.add_argument("--fix", action="store_true", help="carry out safe edits: they keep every finite value")
    fixing.add_argument("--unsafe-fixes", action="store_true", help="with --fix or --diff: also edits that change finite values (each says how)")
    fixing.add_argument("--diff", action="store_true", help="print what --fix would do, change nothing")
    work = parser.add_argument_group("work")
    work.add_argument("--no-cache", action="store_true", help="neither read nor write the cache")
    work.add_argument("--cache-dir", metavar="DIR", help=f"where the cache lies (default: {cache.FOLDER} beside pyproject.toml)")
    work.add_argument("--jobs", type=int, default=0, metavar="N", help="processes (default: one for each processor)")


def run(options: argparse.Namespace) -> int:
    """Check, print, perhaps fix; 0 when clean, 1 when something was found."""
    paths = options.paths or ["."]
    settings = _settings(options, paths)
    if options.show_settings:
        print(settings.render())
        return EXIT_CLEAN
    if options.jobs < 0:
        raise NanopsyError(f"--jobs {options.jobs} is no number of processes", do="give 1 or more, or 0 for one for each processor")
    if STDIN in paths and len(paths) > 1:
        raise NanopsyError("standard input was given beside other paths", do="check it alone: nanopsy check - --stdin-filename NAME")
    if options.write_baseline and (options.fix or options.diff):
        raise NanopsyError("--write-baseline records findings, --fix and --diff remove them", do="run one after the other")
    folder = "" if options.no_cache or STDIN in paths else options.cache_dir or os.path.join(settings.root, cache.FOLDER)
    request = Request(
        paths, settings, respect_gitignore=not options.no_respect_gitignore, force_exclude=options.force_exclude, cache=folder,
        baseline=read_baseline(options.baseline) if options.baseline else None, stdin_name=options.stdin_filename, jobs=options.jobs,
    )  # fmt: skip
    result = inspect(request)
    if options.write_baseline:
        count = write_baseline(options.write_baseline, result.inspection)
        print(f"{options.write_baseline}: {count} findings recorded; nanopsy check --baseline {options.write_baseline} shows new ones only", file=sys.stderr)
        return EXIT_CLEAN
    if options.fix or options.diff:
        before = dict(result.texts)
        result, fixed = _fixed(request, result, unsafe=options.unsafe_fixes)
        if options.diff:
            return _diff(before, result)
        _write(before, result, set() if STDIN in paths else set(before))
        result.inspection.fixed = fixed
    _print(options, result)
    if result.stale:
        print(f"{options.baseline}: {result.stale} entries no longer occur; write it anew with --write-baseline", file=sys.stderr)
    found = bool(result.inspection.findings or result.inspection.problems)
    return EXIT_SUSPICIONS if found and not options.exit_zero else EXIT_CLEAN


def _settings(options: argparse.Namespace, paths: list[str]) -> Settings:
    first = Path(paths[0]) if paths[0] != STDIN else Path(options.stdin_filename if options.stdin_filename != "<stdin>" else ".")
    start = first if first.is_dir() else first.parent
    settings = load_settings(start if start.exists() else Path("."), config=options.config)
    if not settings.source:
        settings = replace(settings, root=os.getcwd())
    return settings.override(
        select=_codes(options.select), ignore=_codes(options.ignore), exclude=options.exclude, extend_exclude=options.extend_exclude,
        min_confidence=options.min_confidence,
    )  # fmt: skip


def _codes(words: list[str] | None) -> list[str] | None:
    return [code for word in words for code in word.replace(",", " ").split()] if words else None


def _fixed(request: Request, result: Result, *, unsafe: bool) -> tuple[Result, int]:
    """Edit and check again until no edit is left to carry out."""
    fixed = 0
    for _ in range(fixes.ROUNDS):
        files: dict[str, list[Finding]] = {}
        names = {name: file for file, name in result.names.items()}
        for finding in result.inspection.findings:
            if finding.location is not None and finding.location.file in names:
                files.setdefault(names[finding.location.file], []).append(finding)
        texts, count = dict(result.texts), 0
        for file, findings in files.items():
            texts[file], done = fixes.carried_out(texts[file], findings, unsafe=unsafe)
            count += done
        if not count:
            break
        fixed += count
        problems = result.inspection.problems
        result = inspect(request, given=texts)
        result.inspection.problems = problems
    return result, fixed


def _diff(before: Mapping[str, Text], result: Result) -> int:
    changed = False
    for file, text in result.texts.items():
        old = before[file].text
        if old != text.text:
            changed = True
            name = result.names[file]
            lines = difflib.unified_diff(old.splitlines(keepends=True), text.text.splitlines(keepends=True), f"a/{name}", f"b/{name}")
            for line in lines:
                sys.stdout.write(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return EXIT_SUSPICIONS if changed else EXIT_CLEAN


def _write(before: Mapping[str, Text], result: Result, on_disk: Collection[str]) -> None:
    for file, text in result.texts.items():
        if file not in on_disk:
            sys.stdout.write(text.text)  # an editor replaces its buffer by this
        elif text.text != before[file].text:
            try:
                write_back(text)
            except OSError as error:
                raise NanopsyError(
                    "a fixed file could not be written", where=file, why=error.strerror or str(error), do="check its permissions; the file is as it was"
                ) from None


def _print(options: argparse.Namespace, result: Result) -> None:
    inspection = result.inspection
    if options.statistics:
        report = _statistics(inspection.findings)
    else:
        module = importlib.import_module(f"nanopsy.report.{FORMATS[options.format]}")
        color = options.output_file is None and options.format == "text" and sys.stdout.isatty() and "NO_COLOR" not in os.environ
        report = module.render(inspection, color=color)
    if options.output_file:
        from nanopsy.check.files import write_atomically

        try:
            write_atomically(options.output_file, (report.rstrip("\n") + "\n").encode("utf-8", "replace") if report else b"")
        except OSError as error:
            raise NanopsyError(
                "the report could not be written", where=options.output_file, why=error.strerror or str(error), do="choose a folder you may write to"
            ) from None
        return
    fixing_stdin = options.fix and STDIN in options.paths
    stream = sys.stderr if fixing_stdin else sys.stdout
    if report:
        try:
            print(report.rstrip("\n"), file=stream)
        except UnicodeEncodeError:
            encoding = stream.encoding or "ascii"
            print(report.rstrip("\n").encode(encoding, "replace").decode(encoding), file=stream)


def _statistics(findings: list[Finding]) -> str:
    counts = Counter((finding.code, finding.slug) for finding in findings)
    fixable = Counter(finding.code for finding in fixes.allowed(findings, unsafe=False))
    width = len(str(max(counts.values(), default=0)))
    return "\n".join(
        f"{count:>{width}}  {code}  {'[*]' if fixable[code] else '   '} {slug}"
        for (code, slug), count in sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    )
