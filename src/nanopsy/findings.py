"""What every engine returns: findings, and the incidents they explain. Stdlib only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

FORMAT = 1
"""Version of the JSON written by ``nanopsy run --json``."""


class Outcome(StrEnum):
    """How the rewound step compared with the step that failed."""

    REPRODUCED = "reproduced"
    NOT_REPRODUCED = "not-reproduced"
    FLAKY = "flaky"


class What(StrEnum):
    """The kind of value that was bad when the watch noticed."""

    LOSS = "loss"
    GRADIENT = "gradient"
    PARAMETER = "parameter"
    BUFFER = "buffer"
    SCALE = "scale"


class Safety(StrEnum):
    """What an edit does to values that were finite before it."""

    SAFE = "safe"
    """Keeps every finite value to a few ulp."""
    UNSAFE = "unsafe"
    """Changes finite values, or what the training optimises; the cause's page says how."""


class Confidence(StrEnum):
    """How sure the linter is, surest first."""

    CERTAIN = "certain"
    """A concrete input that breaks the line is named, and nothing on the way rules it out."""
    LIKELY = "likely"
    """The value can get there by what is known of it; what is not known is said."""
    DEPENDS = "depends"
    """True under a condition that the source does not decide; the finding says which."""


def harmless(value: object) -> str:
    """A string of a report that comes from elsewhere, without what could steer a terminal."""
    if not isinstance(value, str):
        raise TypeError(f"text was expected, not {type(value).__name__}")
    return value.translate(_STEERING)


_STEERING = dict.fromkeys((*range(9), *range(11, 32), *range(127, 160), 8234, 8235, 8236, 8237, 8238, 8294, 8295, 8296, 8297), " ")
"""Control characters but for tabs and line ends, and those that turn the direction of text."""


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 53:
        raise TypeError(f"a whole number was expected, not {str(value)[:40]!r}")
    return value


@dataclass(frozen=True, slots=True)
class Location:
    """A span of user code; lines count from 1 and columns from 1, the end is exclusive."""

    file: str
    line: int
    column: int = 1
    end_line: int = 0
    end_column: int = 0
    function: str = ""
    cell: int = 0
    """Number of the notebook cell, from 1; 0 in a plain file. Lines then count within the cell."""

    def to_dict(self) -> dict[str, object]:
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line or self.line,
            "end_column": self.end_column or self.column,
            **({"cell": self.cell} if self.cell else {}),
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Location:
        """The location that :meth:`to_dict` wrote."""
        line, column, end_line, end_column = (_number(entry[key]) for key in ("line", "column", "end_line", "end_column"))
        return cls(harmless(entry["file"]), line, column, end_line, end_column, cell=_number(entry.get("cell", 0)))

    def __str__(self) -> str:
        cell = f"cell {self.cell}:" if self.cell else ""
        return f"{self.file}:{cell}{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text of one span of one file.

    ``start`` and ``end`` are character offsets into the file's text as it stood when the run began.
    """

    file: str
    start: int
    end: int
    text: str
    safety: Safety = Safety.UNSAFE
    note: str = ""


@dataclass(frozen=True, slots=True)
class Fix:
    """A source edit as a reader sees it: a unified diff and what it does to finite values."""

    diff: str
    safety: Safety
    note: str = ""

    def to_dict(self) -> dict[str, object]:
        return {"diff": self.diff, "safety": str(self.safety), "note": self.note}


@dataclass(frozen=True, slots=True)
class Finding:
    """One explanation of one incident: the cause, the line, the numbers and the remedy."""

    code: str
    slug: str
    location: Location | None
    message: str
    also: tuple[Location, ...] = ()
    evidence: Mapping[str, object] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    story: tuple[str, ...] = ()
    fix: Fix | None = None
    verified: bool | None = None
    verification: str = ""
    score: float = 0.0
    confidence: Confidence | None = None
    """Set by the linter only, as are the two below."""
    condition: str = ""
    edits: tuple[Edit, ...] = ()

    def to_dict(self) -> dict[str, object]:
        return {
            "code": self.code,
            "slug": self.slug,
            "location": self.location.to_dict() if self.location else None,
            "also": [place.to_dict() for place in self.also],
            "message": self.message,
            "evidence": dict(self.evidence),
            "path": list(self.path),
            "story": list(self.story),
            "fix": self.fix.to_dict() if self.fix else None,
            "verified": self.verified,
            "verification": self.verification,
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Finding:
        """The finding that :meth:`to_dict` wrote."""

        fix, place, verified = entry.get("fix"), entry["location"], entry["verified"]
        if verified not in (True, False, None) or not isinstance(entry["evidence"], Mapping):
            raise ValueError("a finding with a strange verdict or without evidence")
        return cls(
            harmless(entry["code"]),
            harmless(entry["slug"]),
            Location.from_dict(place) if place else None,
            harmless(entry["message"]),
            also=tuple(Location.from_dict(value) for value in entry["also"]),
            evidence=entry["evidence"],
            path=tuple(harmless(part) for part in entry["path"]),
            story=tuple(harmless(line) for line in entry.get("story", ())),
            fix=Fix(harmless(fix["diff"]), Safety(fix["safety"]), harmless(fix.get("note", ""))) if fix else None,
            verified=verified,
            verification=harmless(entry.get("verification", "")),
        )


@dataclass(slots=True)
class Incident:
    """One bad step: what was bad, whether the rewind brought it back, and why it happened."""

    step: int
    what: What
    outcome: Outcome
    findings: list[Finding] = field(default_factory=list)
    count: int = 1
    detail: str = ""
    weights: str = ""
    replays: int = 0
    history: list[dict[str, float | int | None]] = field(default_factory=list)
    loss_bits: list[str] = field(default_factory=list)
    """The losses of the step, bit for bit, in hexadecimal."""
    rank: int | None = None
    """The rank on which the bad value was born, when several train together."""
    batch: dict[str, object] = field(default_factory=dict)
    """The batch of the step: its number in the loop, and the samples of the dataset where they are known."""

    @property
    def key(self) -> tuple[object, ...]:
        """Incidents with one key are the same fault seen again."""
        if not self.findings:
            return (self.what, self.outcome)
        first = self.findings[0]
        place = (first.location.file, first.location.line) if first.location else None
        return (first.code, place)

    def to_dict(self) -> dict[str, object]:
        return {
            "step": self.step,
            "what": str(self.what),
            "outcome": str(self.outcome),
            "count": self.count,
            "detail": self.detail,
            "weights": self.weights,
            "replays": self.replays,
            "history": list(self.history),
            "loss_bits": list(self.loss_bits),
            "rank": self.rank,
            "batch": dict(self.batch),
            "findings": [finding.to_dict() for finding in self.findings],
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Incident:
        """The incident that :meth:`to_dict` wrote; raises KeyError, TypeError or ValueError for anything else."""
        rank = entry.get("rank")
        return cls(
            _number(entry["step"]),
            What(entry["what"]),
            Outcome(entry["outcome"]),
            [Finding.from_dict(finding) for finding in entry["findings"]],
            _number(entry.get("count", 1)),
            harmless(entry.get("detail", "")),
            harmless(entry.get("weights", "")),
            _number(entry.get("replays", 0)),
            [dict(facts) for facts in entry.get("history", [])],
            [harmless(bits) for bits in entry.get("loss_bits", [])],
            None if rank is None else _number(rank),
            dict(entry.get("batch", {})),
        )


def made_earlier(incident: Incident) -> bool:
    """Whether the bad value was computed before the round that was rewound, and did not come with the batch."""
    if not incident.findings:
        return False
    first = incident.findings[0]
    return first.evidence.get("came") == "earlier"


def plain(value: object) -> object:
    """A value as strict JSON holds it: non-finite numbers as text, tuples as lists."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value if isinstance(value, (str, int, bool, type(None))) else str(value)


@dataclass(slots=True)
class Diagnosis:
    """Everything one run or one :func:`nanopsy.autopsy` found."""

    incidents: list[Incident] = field(default_factory=list)
    steps: int = 0
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, object]:
        """The published JSON form; ``nanopsy/schema.json`` is its schema."""
        return {
            "format": FORMAT,
            "steps": self.steps,
            "notes": list(self.notes),
            "incidents": [plain(incident.to_dict()) for incident in self.incidents],
        }

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Diagnosis:
        """The diagnosis that :meth:`to_dict` wrote; raises KeyError, TypeError or ValueError for anything else."""
        if entry["format"] != FORMAT:
            raise ValueError(f"a report of format {entry['format']!r}, not {FORMAT}")
        incidents = [Incident.from_dict(incident) for incident in entry["incidents"]]
        return cls(incidents, _number(entry["steps"]), [harmless(note) for note in entry["notes"]])

    @property
    def findings(self) -> list[Finding]:
        """All findings of all incidents, most likely first within each incident."""
        return [finding for incident in self.incidents for finding in incident.findings]

    def __str__(self) -> str:
        from nanopsy.report.text import render

        return render(self)

    def _repr_html_(self) -> str:
        from nanopsy.report.notebook import render

        return render(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text(str(self))


@dataclass(frozen=True, slots=True)
class Problem:
    """A file that could not be checked: one message, whatever is wrong with it."""

    file: str
    line: int
    message: str


@dataclass(slots=True)
class Inspection:
    """Everything one ``nanopsy check`` found, in order of file and line; locations are relative to ``root``."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0
    fixed: int = 0
    hidden: dict[str, int] = field(default_factory=dict)
    """How many findings were left out, by reason: ``depends``, ``noqa``, ``baseline``."""
    root: str = ""
    lines: Mapping[tuple[str, int], Sequence[str]] = field(default_factory=dict)
    """Source lines of the files with findings, by (file, cell), for excerpts and fingerprints."""
