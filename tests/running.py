"""Run scripts under nanopsy, and plainly, in a process of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str
    report: dict[str, Any]

    @property
    def incident(self) -> dict[str, Any]:
        assert self.report["incidents"], f"no incident\n{self.out}\n{self.err}"
        incident: dict[str, Any] = self.report["incidents"][0]
        return incident

    @property
    def finding(self) -> dict[str, Any]:
        finding: dict[str, Any] = self.incident["findings"][0]
        return finding


@lru_cache
def schema() -> dict[str, Any]:
    """The published schema, as it is installed."""
    loaded: dict[str, Any] = json.loads(files("nanopsy").joinpath("schema.json").read_text())
    return loaded


def write(folder: Path, sources: str | Mapping[str, str]) -> None:
    for name, text in {"train.py": sources}.items() if isinstance(sources, str) else sources.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip("\n"))


def python(folder: Path, *arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        errors="replace",
        env={**os.environ, **(env or {})},
    )


def nanopsy(folder: Path, *command: str, options: tuple[str, ...] = ("--rerun", "never")) -> Ran:
    """``nanopsy run`` with a JSON report, which is checked against the schema; no capsule unless the options ask for one."""
    if not {"--capsule", "--no-capsule", "--no-data", "--capture"} & set(options):
        options = ("--no-capsule", *options)
    report = folder / "nanopsy-report.json"
    report.unlink(missing_ok=True)
    done = python(folder, "-m", "nanopsy", "run", "--json", str(report), *options, *command)
    content = json.loads(report.read_text()) if report.exists() else {}
    if content:
        jsonschema.validate(content, schema())
    return Ran(done.returncode, done.stdout, done.stderr, content)
