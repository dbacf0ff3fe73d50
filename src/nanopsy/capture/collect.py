"""Make the capsule of one incident, while the recording of its failing step is still in memory."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save

from nanopsy.capsule import format as capsule_format
from nanopsy.capsule.chain import Chain
from nanopsy.capsule.format import Capsule
from nanopsy.capsule.script import MOST_LINES, script
from nanopsy.capture.execute import draw, numbers, run
from nanopsy.capture.likeness import Likeness
from nanopsy.capture.shrinking import Shrinker
from nanopsy.capture.slicing import Slice, Slicer
from nanopsy.capture.surroundings import environment, pictures, shown, source_lines, tensors_in
from nanopsy.diagnose import Evidence, sinks
from nanopsy.errors import NanopsyError
from nanopsy.findings import Diagnosis, Finding, Incident, Location
from nanopsy.replay import raw

if TYPE_CHECKING:
    from nanopsy.examiner import Examiner
    from nanopsy.story import Ancestry

DEFAULT = ".nanopsy"
_SEEDS = 24


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What the user wants kept of a failing step."""

    path: str | None = None
    """A file that ends in ``.nanopsy``, or a folder; None: ``.nanopsy/`` in the working directory."""
    full: bool = False
    data: bool = True


@dataclass(frozen=True, slots=True)
class Cut:
    """The chain of one incident, cut out and shrunk, and the tensors that pictures are made of."""

    slice: Slice | None
    images: tuple[tuple[str, torch.Tensor], ...]
    finding: Finding


def cut(evidence: Evidence, findings: list[Finding]) -> Cut | None:
    """Cut the chain of the first finding out of the recording; None when there is no finding."""
    if not findings:
        return None
    ancestry = next(filter(None, (_ancestry(evidence, finding) for finding in findings)), None)
    if ancestry is None and findings[0].evidence.get("came") == "batch":
        ancestry = next((evidence.story.ancestry(*sink) for sink in sinks(evidence)), None)
    images: list[tuple[str, torch.Tensor]] = []
    chosen: Slice | None = None
    if ancestry is not None:
        for candidate in Slicer(evidence.story).slices(ancestry):
            if not images:
                images = [(it.what or it.name, candidate.values[it.name]) for it in candidate.chain.constants]
            if _fails_alike(candidate, ancestry) and len(candidate.chain.steps) + len(candidate.chain.constants) + 12 <= MOST_LINES:
                chosen = Shrinker(candidate).shrink().counted()
                break
        for node in ancestry.chain[-1:]:
            kept = evidence.story.kept_output(node.op, node.output)
            if kept is not None:
                images.append((f"result of {node.op.name}", kept))
    return Cut(chosen, tuple(images), findings[0])


def _fails_alike(candidate: Slice, ancestry: Ancestry) -> bool:
    """Whether a slice comes to the kind of bad value that was born, or that it had become: NaN, or an infinity."""
    kinds = {math.isnan(node.value) for node in (ancestry.nan_birth, ancestry.birth) if node is not None}
    try:
        result = candidate.result()
    except Exception:
        return False
    nan = any(bool(value.isnan().any()) for value in result.values.values())
    return bool(result.bad) and (not kinds or nan in kinds)


def _ancestry(evidence: Evidence, finding: Finding) -> Ancestry | None:
    """The story of the element that a finding explains."""
    birth = evidence.birth_of(finding)
    if birth is None:
        return None
    for ref, index, value in sinks(evidence):
        ancestry = evidence.story.ancestry(ref, index, value)
        for other in evidence.reader.read(ancestry):
            if (other.op, other.phase, other.location) == (birth.op, birth.phase, birth.location):
                return ancestry
    return None


def _without_values(found: Slice) -> Chain | None:
    """The chain with a seed in the place of its values: the first one with which it fails as it did."""
    likeness = Likeness.of(found.chain, found.result())
    for seed in range(_SEEDS):
        chain = replace(found.chain, seed=seed)
        try:
            result = run(chain, draw(chain))
            if result.bad and likeness.holds(chain, result):
                return chain
        except Exception:
            continue
    return None


def collect(examiner: Examiner, incident: Incident, options: CaptureOptions, found: Cut | None) -> Capsule:
    """Everything about one incident as a capsule, in memory."""
    alone = _relative(Diagnosis([incident], examiner.watch.steps, list(examiner.diagnosis.notes)))
    capsule = Capsule(alone, environment(), source_lines(Diagnosis([incident])), [_facts(examiner, facts) for facts in examiner.watch.ring], data=options.data)
    if found is not None and found.slice is not None:
        chain: Chain | None = found.slice.chain
        if not options.data:
            chain = _without_values(found.slice)
            if chain is None:
                alone.notes.append("no repro.py: from the ranges alone the failure does not come back")
        if chain is not None:
            values = {it.name: found.slice.values[it.name].contiguous() for it in chain.constants}
            title = f"{found.finding.code} {found.finding.slug}, step {incident.step}: {found.finding.message}"
            capsule.chain = chain
            capsule.script = script(chain, title, {name: numbers(value) for name, value in values.items()} if options.data else {},
                                    {name: raw(value) for name, value in values.items()} if options.data else {})  # fmt: skip
            if options.data:
                capsule.operands = save(values)
    elif incident.findings:
        alone.notes.append("no repro.py: the cause is not a few operators that fail by themselves")
    if options.data:
        batch = examiner.rounds[-1].item if examiner.rounds else None
        capsule.pictures = pictures([*tensors_in(batch, "batch"), *(found.images if found is not None else ())])
    return capsule


def _facts(examiner: Examiner, facts: Any) -> dict[str, Any]:
    return {"step": facts.step, "loss": facts.loss, "gradient_norm": facts.gradient_norm, "lr": facts.lr, "weight_norm": facts.weight_norm}


def _relative(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with paths that say nothing of the machine it was made on."""

    def place(location: Location | None) -> Location | None:
        return replace(location, file=shown(location.file)) if location is not None else None

    folder = os.getcwd() + os.sep
    home = os.path.expanduser("~") + os.sep

    def text(value: str) -> str:
        for name, instead in ((folder, ""), (home, "~" + os.sep)):
            for side in ("a/", "b/"):
                value = value.replace(side + name.lstrip(os.sep), side + instead)
            value = value.replace(name, instead)
        return value

    def evidence(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, dict):
            return {key: evidence(entry) for key, entry in value.items()}
        return [evidence(entry) for entry in value] if isinstance(value, (list, tuple)) else value

    incidents = []
    for incident in diagnosis.incidents:
        findings = []
        for finding in incident.findings:
            fix = replace(finding.fix, diff=text(finding.fix.diff)) if finding.fix is not None else None
            findings.append(replace(finding, location=place(finding.location), also=tuple(filter(None, map(place, finding.also))), fix=fix,
                                    message=text(finding.message), story=tuple(map(text, finding.story)), evidence=evidence(dict(finding.evidence)),
                                    verification=text(finding.verification)))  # fmt: skip
        incidents.append(replace(incident, findings=findings, detail=text(incident.detail)))
    return Diagnosis(incidents, diagnosis.steps, [text(note) for note in diagnosis.notes])


def destination(options: CaptureOptions, incident: Incident, script_name: str) -> Path:
    """Where the capsule of an incident goes; the default folder is made, with a ``.gitignore`` of its own."""
    if options.path is not None and options.path.endswith(capsule_format.SUFFIX):
        return Path(options.path)
    folder = Path(options.path) if options.path is not None else Path(DEFAULT)
    if not folder.exists():
        folder.mkdir(parents=True)
    if options.path is None and not (folder / ".gitignore").exists():
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", script_name) or "run"
    code = incident.findings[0].code if incident.findings else "unknown"
    return next(path for path in _numbered(folder, f"{stem}-step{incident.step}-{code}") if not path.exists())


def _numbered(folder: Path, name: str) -> Iterator[Path]:
    yield folder / f"{name}{capsule_format.SUFFIX}"
    number = 2
    while True:
        yield folder / f"{name}-{number}{capsule_format.SUFFIX}"
        number += 1


def check_destination(path: str) -> None:
    """Refuse a capsule path before the training starts, not after the night.

    Raises:
        NanopsyError: the folder cannot be made or written to.
    """
    target = Path(path)
    folder = target.resolve().parent if path.endswith(capsule_format.SUFFIX) else target
    try:
        if not path.endswith(capsule_format.SUFFIX):
            folder.mkdir(parents=True, exist_ok=True)
        problem = (
            "it is a folder" if target.is_dir() and folder != target else "" if folder.is_dir() and os.access(folder, os.W_OK) else "it cannot be written to"
        )
    except OSError as error:
        problem = error.strerror or str(error)
    if problem:
        raise NanopsyError(f"cannot write a capsule to {path}: {problem}", where=str(folder), why="the failing step would be lost at the end of the run",
                           do="give --capsule a file name that ends in .nanopsy, or a folder, where you may write")  # fmt: skip


def size(count: int) -> str:
    """Bytes as people read them."""
    if count < 1000:
        return f"{count} B"
    power = min(int(math.log10(count)) // 3, 3)
    return f"{count / 1000**power:.3g} {' kMG'[power]}B"
