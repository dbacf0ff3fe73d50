"""The fallback when a step cannot be rewound: run the script again from the start, traced at that step.

The second run is a child process whose output is thrown away; :class:`Armed` is its examiner. It is believed only
if it fails at the same step with the same loss, bit for bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from nanopsy._torch import Optimizer
from nanopsy.capsule.format import SUFFIX
from nanopsy.capture.keeper import Keeper
from nanopsy.diagnose import Evidence, diagnose
from nanopsy.examiner import Examiner
from nanopsy.findings import Diagnosis, Finding, Incident, Outcome, What, made_earlier
from nanopsy.registry import Registry, user_frames
from nanopsy.replay import Fault, Policy, Replay, raw
from nanopsy.rewind import Loops, Stopped
from nanopsy.trace import Trace
from nanopsy.watching import bad_elements, optimizer_parameters

if TYPE_CHECKING:
    from nanopsy.run import RunOptions

AUTO_SECONDS = 900.0
"""``--rerun auto`` runs again only if the first run took at most this long."""


class Armed(Examiner):
    """Traces one step of a run from its first operator on, and opens the incident there without rewinding."""

    def __init__(self, loops: Loops, registry: Registry, step: int) -> None:
        super().__init__(loops, registry, Policy())
        self.step = step
        self.trace: Trace | None = None
        if step == 0:
            self._arm()

    def _arm(self) -> None:
        if self.registry.compiled:
            torch.compiler.set_stance("force_eager")
        self.trace = Trace(set(self.registry.names()), range(1 << 40))
        self.trace.start()

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.trace is not None:
            self.trace.backward_begins(tuple(roots))
        super().before_backward(roots, frame)

    def after_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        return

    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None:
        super().before_step(optimizer, frame, closure=closure)
        if self.trace is not None and self.watch.steps >= self.step and not closure:
            self.trace.stop()
            self.trace = None
        elif self.trace is None and self.watch.steps + 1 == self.step:
            self._arm()

    def _open(self, what: What, roots: list[torch.Tensor], optimizer: Optimizer | None, frame: FrameType, *, backward_done: bool, detail: str = "") -> None:
        losses = [self.watch.unscaled(root) for root in roots]
        sites = user_frames(frame, most=1)
        values = [float(loss.detach().float().sum()) for loss in losses if loss.numel() == 1]
        bits = [raw(loss) for loss in losses if loss.numel() <= 64]
        fault = Fault(what, self.watch.steps, bits, values, (), optimizer, sites[0] if sites else None, backward_done)
        incident = Incident(fault.step, what, Outcome.NOT_REPRODUCED, loss_bits=[part.hex() for part in bits])
        if self.trace is not None:
            replay = Replay(loss_values=values, reached=True)
            for root in roots:
                if bad_elements(root):
                    replay.bad_loss = True
                    replay.sinks.append(self.trace.ref(root))
                    replay.sink_tensors.append(root.detach().clone())
            for parameter in optimizer_parameters(optimizer) if optimizer is not None else self.registry.parameters():
                if parameter.grad is not None and bad_elements(parameter.grad):
                    replay.gradient_sinks.append(self.trace.ref(parameter.grad))
                    replay.gradient_tensors.append(parameter.grad.detach().clone())
            replay.recording = self.trace.stop()
            evidence = Evidence.gather(self, fault, replay)
            incident.findings = diagnose(evidence)
            incident.outcome = Outcome.REPRODUCED
            if self.keeper is not None:
                self.keeper.examined(evidence, incident.findings)
        self.diagnosis.incidents.append(incident)
        if self.keeper is not None:
            live = self._choose_loop(frame, roots)
            self.rounds = live.rounds() if live is not None else []
            self.keeper.concluded(self, incident)
        self.mode = "done"
        self.loops.disable()
        raise Stopped()


def rerun(diagnosis: Diagnosis, module: str | None, command: list[str], options: RunOptions, seconds: float, keeper: Keeper | None) -> None:
    """Run the script again, traced at the first incident's step, and take over what that shows."""
    wanting = (it for it in diagnosis.incidents if it.outcome is not Outcome.REPRODUCED or made_earlier(it))
    incident = next(wanting, diagnosis.incidents[0])
    cost = f"{incident.step + 1} steps, about {max(seconds, 1):.0f} s"
    if options.rerun == "auto" and seconds > AUTO_SECONDS:
        diagnosis.notes.append(f"running the script again from the start, traced at step {incident.step}, may tell more ({cost}): --rerun always")
        return
    why = "the bad value was made before the step" if made_earlier(incident) else "the step could not be rewound"
    print(f"nanopsy: {why}; running the script again from the start, traced at step {incident.step} ({cost}; "
          f"its output is not shown; --rerun never avoids this)", file=sys.stderr, flush=True)  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="nanopsy-") as folder:
        capsule = Path(folder, f"again{SUFFIX}") if keeper is not None else None
        report = _child(module, command, incident.step, _capsule_options(keeper, capsule))
        if _taken_over(incident, report) and keeper is not None and capsule is not None and capsule.exists():
            keeper.replace(diagnosis.incidents.index(incident), capsule)


def _capsule_options(keeper: Keeper | None, capsule: Path | None) -> list[str]:
    if keeper is None or capsule is None:
        return ["--no-capsule"]
    return ["--capsule", str(capsule), *(["--capture", "full"] if keeper.options.full else []), *([] if keeper.options.data else ["--no-data"])]


def _taken_over(incident: Incident, report: dict[str, Any] | None) -> bool:
    """Whether the second run failed as the first did; the incident then says what it showed."""
    again: list[dict[str, Any]] = report.get("incidents", []) if report else []
    if not again or again[0].get("step") != incident.step:
        incident.detail += "; run again from the start, the step was finite"
        return False
    if again[0].get("loss_bits") != incident.loss_bits:
        incident.detail += "; run again from the start, the step was bad with another loss (is the script seeded?)"
        return False
    found = [Finding.from_dict(entry) for entry in again[0]["findings"]]
    if found and not (made_earlier(incident) and found[0].code in ("NAN701", "NAN999")):
        incident.findings = found
    incident.outcome = Outcome.REPRODUCED
    incident.detail += "; run again from the start, the loss came out bit for bit as before"
    return True


def _child(module: str | None, command: list[str], step: int, capsule: list[str]) -> dict[str, Any] | None:
    handle, name = tempfile.mkstemp(prefix="nanopsy-", suffix=".json")
    os.close(handle)
    target = ["-m", module, *command] if module is not None else ["--", *command]
    arguments = [sys.executable, "-m", "nanopsy", "run", "--rerun", "never", "--armed", str(step), "--json", name, *capsule, *target]
    try:
        subprocess.run(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        text = Path(name).read_text(encoding="utf-8")
        return dict(json.loads(text)) if text else None
    except (OSError, ValueError):
        return None
    finally:
        Path(name).unlink(missing_ok=True)
