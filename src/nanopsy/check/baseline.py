"""The baseline: findings that were there before, so that a project can begin with what is new. Stdlib only.

An entry is the fingerprint of a finding, with its code and file for readers; it holds while the line says what it said,
wherever it moves.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from nanopsy.check.files import write_atomically
from nanopsy.errors import NanopsyError
from nanopsy.findings import Finding, Inspection
from nanopsy.report.fingerprint import fingerprint, fingerprints

__all__ = ["BASELINE_FORMAT", "filter_baseline", "fingerprint", "read_baseline", "write_baseline"]

BASELINE_FORMAT = 1


def write_baseline(path: str, inspection: Inspection) -> int:
    """Write every finding of ``inspection`` as known; returns how many."""
    entries = {
        name: {"code": finding.code, "file": finding.location.file if finding.location else ""}
        for name, finding in zip(fingerprints(inspection), inspection.findings, strict=True)
    }
    ordered = dict(sorted(entries.items(), key=lambda entry: (entry[1]["file"], entry[1]["code"], entry[0])))
    write_atomically(path, (json.dumps({"format": BASELINE_FORMAT, "entries": ordered}, indent=1) + "\n").encode())
    return len(ordered)


def read_baseline(path: str) -> dict[str, str]:
    """The fingerprints of a baseline, each with its file."""
    again = "write it anew, or take it from version control"
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise NanopsyError("the baseline cannot be read", where=path, why=error.strerror or str(error), do="check the path, or write the file first") from None
    except (ValueError, RecursionError) as error:
        raise NanopsyError("the baseline is not JSON", where=path, why=str(error), do=again) from None
    version = content.get("format") if isinstance(content, dict) else None
    if isinstance(version, int) and not isinstance(version, bool) and version > BASELINE_FORMAT:
        raise NanopsyError(
            f"the baseline is of format {version}; this nanopsy reads up to {BASELINE_FORMAT}", where=path, do="upgrade nanopsy, or write it anew"
        )
    entries = content.get("entries") if version == BASELINE_FORMAT and not isinstance(version, bool) else None
    if not isinstance(entries, dict) or not all(isinstance(entry, dict) and isinstance(entry.get("file"), str) for entry in entries.values()):
        raise NanopsyError("the file is no baseline of nanopsy", where=path, why=f"it lacks format {BASELINE_FORMAT} or its entries", do=again)
    return {name: entry["file"] for name, entry in entries.items()}


def filter_baseline(inspection: Inspection, known: Mapping[str, str], *, checked: Collection[str] | None = None) -> tuple[list[Finding], int, int]:
    """Leave out the findings that a baseline knows.

    Args:
        inspection: what was found, before any of it is left out for other reasons.
        known: what :func:`read_baseline` returned.
        checked: the files that were looked at, relative to the root; entries of others are not stale. None: all were.

    Returns:
        the new findings, how many were left out, and how many entries are stale: they no longer occur.
    """
    names = fingerprints(inspection)
    new = [finding for name, finding in zip(names, inspection.findings, strict=True) if name not in known]
    present = set(names)
    stale = sum(name not in present and (checked is None or file in checked) for name, file in known.items())
    return new, len(inspection.findings) - len(new), stale
