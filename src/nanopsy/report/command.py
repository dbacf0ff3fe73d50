"""The verb ``nanopsy report``: a capsule in one of five formats. Never imports torch."""

from __future__ import annotations

import argparse
import json
import linecache
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from nanopsy.capsule import format as capsule_format
from nanopsy.capsule.format import Capsule
from nanopsy.errors import EXIT_CLEAN, NanopsyError
from nanopsy.findings import Inspection


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    parser.add_argument("capsule", metavar="CAPSULE", help="a file that nanopsy run wrote")
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="how to show it (default: text)")
    parser.add_argument("--output", "-o", metavar="FILE", help="write to a file, whole or not at all, instead of standard output")
    parser.add_argument("--contents", action="store_true", help="list what the capsule holds: exactly what sharing it would share")


def run(options: argparse.Namespace) -> int:
    """Show a capsule; status 0 when it could be read."""
    capsule = capsule_format.read(options.capsule)
    text = contents(capsule, options.capsule) if options.contents else _FORMATS[options.format](capsule)
    if options.output is None:
        print(text)
        return EXIT_CLEAN
    _write(options.output, text + ("" if text.endswith("\n") else "\n"))
    print(f"report written to {options.output}", file=sys.stderr)
    return EXIT_CLEAN


def _write(path: str, text: str) -> None:
    target = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.resolve().parent, prefix=".nanopsy-")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except OSError as error:
        raise NanopsyError(
            f"cannot write the report {path}: {error.strerror}", where=str(target.parent), do="choose a path in a folder that you may write to"
        ) from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def contents(capsule: Capsule, file: str) -> str:
    """What is in a capsule, member by member."""
    rows = [f"{file}: format {capsule_format.FORMAT}, made {capsule.created}" + ("" if capsule.data else ", without values")]
    rows += [f"  {count:>12,} B  {name:<21} {what}" for name, count, what in capsule_format.listing(capsule)]
    if capsule.chain is not None:
        rows += [f"    {it.name}: {it.dtype} {list(it.shape)} of {list(it.whole)}  {it.what}" for it in capsule.chain.constants]
    rows += [f"    {entry['file']}: lines {entry['start']} to {entry['start'] + len(entry['lines']) - 1}" for entry in capsule.sources]
    return "\n".join(rows)


def show_sources(capsule: Capsule) -> None:
    """Let excerpts come out of the capsule, and never out of this machine's files."""
    lines: dict[str, dict[int, str]] = {}
    for finding in capsule.diagnosis.findings:
        for place in (finding.location, *finding.also):
            if place is not None:
                lines.setdefault(place.file, {})
    for entry in capsule.sources:
        known = lines.setdefault(entry["file"], {})
        known.update({entry["start"] + number: line for number, line in enumerate(entry["lines"])})
    for file, known in lines.items():
        last = max(known, default=0)
        text = [known.get(number, "") + "\n" for number in range(1, last + 1)] if last < 1_000_000 else []
        linecache.cache[file] = (sum(map(len, text)), None, text, file)


def _text(capsule: Capsule) -> str:
    from nanopsy.report.text import render

    show_sources(capsule)
    return render(capsule.diagnosis, color=sys.stdout.isatty())


def _json(capsule: Capsule) -> str:
    return json.dumps(capsule.diagnosis.to_dict(), indent=1, allow_nan=False, default=str)


def _html(capsule: Capsule) -> str:
    from nanopsy.report.html import render

    return render(capsule)


def _inspection(capsule: Capsule) -> Inspection:
    """The findings in the form of the linter's reports; fixes are in the text, their offsets are not kept."""
    findings = [finding for finding in capsule.diagnosis.findings if finding.location is not None]
    lines: dict[tuple[str, int], list[str]] = {}
    for entry in capsule.sources:
        known = lines.setdefault((entry["file"], 0), [])
        end = entry["start"] - 1 + len(entry["lines"])
        if end < 1_000_000:
            known += [""] * (end - len(known))
            known[entry["start"] - 1 : end] = entry["lines"]
    return Inspection(findings, root=os.getcwd(), lines=lines)


def _sarif(capsule: Capsule) -> str:
    from nanopsy.report.sarif import render

    return render(_inspection(capsule))


def _github(capsule: Capsule) -> str:
    from nanopsy.report.github import render

    return render(_inspection(capsule))


_FORMATS: dict[str, Callable[[Capsule], str]] = {"text": _text, "json": _json, "html": _html, "sarif": _sarif, "github": _github}
