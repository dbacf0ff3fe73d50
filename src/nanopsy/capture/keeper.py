"""Keeps what an autopsy found as a capsule, at its end; a capsule that cannot be written costs the user nothing but the capsule."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import save_file

from nanopsy.capsule import format as capsule_format
from nanopsy.capsule.format import Capsule
from nanopsy.capture.collect import CaptureOptions, Cut, collect, cut, destination, size
from nanopsy.capture.state import NotKeptError, keep
from nanopsy.diagnose import Evidence
from nanopsy.errors import NanopsyError
from nanopsy.findings import Finding, Incident

if TYPE_CHECKING:
    from nanopsy.examiner import Examiner


@dataclass(slots=True)
class Keeper:
    """Writes one capsule for each incident that is not a repetition."""

    options: CaptureOptions
    script: str = "run"
    written: list[Path] = field(default_factory=list)
    capsules: list[Capsule] = field(default_factory=list)
    """The last capsule only, for the report of the same run."""
    _cut: Cut | None = None

    def examined(self, evidence: Evidence, findings: list[Finding]) -> None:
        """The recording is in memory: cut the chain out of it before it goes."""
        try:
            self._cut = cut(evidence, findings)
        except Exception as error:
            if os.environ.get("NANOPSY_DEBUG"):
                raise
            self._cut = None
            print(f"nanopsy: the failing chain could not be cut out ({type(error).__name__}: {error}); please report this", file=sys.stderr)

    def concluded(self, examiner: Examiner, incident: Incident) -> None:
        """Write the incident's capsule; what cannot be done becomes a note of the diagnosis."""
        found, self._cut = self._cut, None
        try:
            capsule = collect(examiner, incident, self.options, found)
            path = destination(self.options, incident, self.script)
            if self.options.full:
                self._add_state(capsule, examiner, path)
            try:
                capsule_format.write(capsule, path)
            finally:
                if capsule.state_file is not None:
                    capsule.state_file.unlink(missing_ok=True)
        except NanopsyError as error:
            examiner.diagnosis.notes.append(f"no capsule: {error.what}")
            return
        except OSError as error:
            examiner.diagnosis.notes.append(f"no capsule: {error.strerror or error} ({error.filename})")
            return
        except Exception as error:
            if os.environ.get("NANOPSY_DEBUG"):
                raise
            examiner.diagnosis.notes.append(f"no capsule: {type(error).__name__}: {error}; please report this")
            return
        self.written.append(path)
        self.capsules = [capsule]

    def _add_state(self, capsule: Capsule, examiner: Examiner, path: Path) -> None:
        try:
            kept = keep(examiner)
        except NotKeptError as error:
            examiner.diagnosis.notes.append(f"the full state is not in the capsule: it would need {error}")
            return
        handle, name = tempfile.mkstemp(dir=path.resolve().parent, prefix=".nanopsy-")
        os.close(handle)
        capsule.state_file = Path(name)
        try:
            save_file(kept.tensors, name)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            capsule.state_file = None
            raise
        capsule.state = kept.entry

    def replace(self, number: int, better: Path) -> None:
        """Put the capsule of a second run, which was traced from its start, in the place of the first run's."""
        if number >= len(self.written):
            return
        target = self.written[number]
        capsule = capsule_format.read(better)
        handle, temporary = tempfile.mkstemp(dir=target.resolve().parent, prefix=".nanopsy-")
        try:
            with os.fdopen(handle, "wb") as file, better.open("rb") as source:
                shutil.copyfileobj(source, file)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        finally:
            Path(temporary).unlink(missing_ok=True)
        if number == len(self.written) - 1:
            self.capsules = [capsule]

    def summary(self) -> list[str]:
        """What was written and what is in it, for the end of the report."""
        lines = []
        for path in self.written:
            lines.append(f"capsule {os.path.relpath(path)}, {size(path.stat().st_size)}" if path.exists() else f"capsule {path}")
        if self.capsules and self.written:
            parts = ", ".join(f"{name} {size(count)}" for name, count, _ in capsule_format.listing(self.capsules[-1]))
            last = os.path.relpath(self.written[-1])
            lines += [f"  it holds {parts}", f"  nanopsy replay {last}", f"  nanopsy report {last} --format html --output report.html"]
        return lines
