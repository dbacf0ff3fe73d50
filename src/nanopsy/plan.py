"""The plan of one autopsy, from top to bottom: survey, keep, diagnose, verify.

A generator that yields a :class:`~nanopsy.replay.Request` for each replay it wants and receives the
:class:`~nanopsy.replay.Replay` that came of it; between the two, the user's own loop runs.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nanopsy.diagnose import Evidence, compiled_only, diagnose, transient, unplaced
from nanopsy.findings import Finding, Incident, Outcome
from nanopsy.refetch import refetched
from nanopsy.replay import Fault, Replay, Request
from nanopsy.trace import Trace, interesting
from nanopsy.verify import Patch, patches_for, remedies

if TYPE_CHECKING:
    from nanopsy.examiner import Examiner

MOST_EDITS = 3
"""Different edits that are tried for one finding."""
MOST_PLACES = 6
"""Places that one edit may have to be made in before the step is finite."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the examiner does about one fault."""

    examiner: Examiner

    def steps(self, fault: Fault) -> Generator[Request, Replay, Incident]:
        """The life of a failure after the incident: survey, keep, diagnose, verify."""
        weights, started = set(self.examiner.names), self.examiner.replays
        first = yield Request(trace=Trace(weights))
        tries = [first]
        survey = first
        if not first.same_as(fault) and not (first.bad and self.examiner.registry.compiled):
            plain = yield Request()
            again = yield Request(trace=Trace(weights))
            tries += [plain, again]
            survey = again if again.same_as(fault) else first
            if self.examiner.registry.compiled and plain.same_as(fault) and not again.bad:
                return self._only_compiled(fault, tries)
            if not survey.same_as(fault):
                return self._not_reproduced(fault, tries)
        matches = sum(replay.same_as(fault) for replay in tries)
        outcome = Outcome.REPRODUCED if matches == len(tries) or self.examiner.registry.compiled else Outcome.FLAKY
        assert survey.recording is not None
        wanted = interesting(survey.recording, survey.sinks or survey.gradient_sinks)
        kept = yield Request(trace=Trace(weights, wanted))
        if not kept.bad or kept.recording is None:
            return self._not_reproduced(fault, [*tries, kept])
        try:
            evidence = Evidence.gather(self.examiner, fault, kept)
            findings = refetched(evidence, diagnose(evidence))
            if self.examiner.keeper is not None:
                self.examiner.keeper.examined(evidence, findings)
        except Exception as error:
            if os.environ.get("NANOPSY_DEBUG"):
                raise
            incident = Incident(fault.step, fault.what, outcome, unplaced(fault), replays=self.examiner.replays - started)
            incident.detail = f"{self._compared(fault, matches, len(tries))}; the diagnosis itself failed ({type(error).__name__}: {error}): please report this"
            return incident
        verified: list[Finding] = []
        for finding in findings[:2]:
            verified.append((yield from self._cure(finding, evidence)))
        incident = Incident(fault.step, fault.what, outcome, [*verified, *findings[2:]], replays=self.examiner.replays - started)
        incident.detail = "; ".join(part for part in (fault.detail, self._compared(fault, matches, len(tries))) if part)
        incident.weights = self._weights_text(fault, kept)
        return incident

    def _cure(self, finding: Finding, evidence: Evidence) -> Generator[Request, Replay, Finding]:
        """Try the cause's edits on the failing step, best first; where one cures one of several like places, go on to the next."""
        best = finding
        if not self.examiner.policy.verify:
            first = next(patches_for(finding, evidence, self.examiner.target()), None)
            return replace(finding, fix=first.fix(), verification="not verified: --no-verify") if first is not None else finding
        for number, proposed in enumerate(patches_for(finding, evidence, self.examiner.target())):
            if number >= MOST_EDITS:
                break
            patch = proposed
            for _ in range(MOST_PLACES):
                cured = yield Request(patch=patch)
                done = patch.judge(finding, cured)
                if best.fix is None or done.verified:
                    best = done
                if done.verified:
                    return done
                if patch.problem or not cured.bad:
                    break
                larger = yield from self._next_place(patch, evidence, finding)
                if larger is patch:
                    break
                patch = larger
        return best

    def _next_place(self, patch: Patch, evidence: Evidence, finding: Finding) -> Generator[Request, Replay, Patch]:
        """The patch with one more edit, for the place at which the patched step is still bad."""
        traced = yield Request(patch=patch, trace=Trace(set(self.examiner.names), range(1 << 40)))
        if not traced.bad or traced.recording is None:
            return patch
        later = Evidence.gather(self.examiner, evidence.fault, traced)
        for other in diagnose(later)[:1]:
            birth = later.birth_of(other)
            if birth is None or other.location is None or birth.phase not in ("forward", "backward"):
                continue
            place = patch.original(other.location)
            discard = birth.discard
            if discard is not None and discard.location is not None:
                discard = replace(discard, location=patch.original(discard.location))
            moved = replace(birth, location=patch.original(birth.location) if birth.location else None, discard=discard)
            for edits in remedies(replace(other, location=place), moved):
                return patch.extended(edits)
        return patch

    def _compared(self, fault: Fault, matches: int, tries: int) -> str:
        if not matches:
            return "the script is compiled, the replay ran eagerly: bad again, but the bits of the losses are not comparable"
        what = "the loss came out bit for bit as before" if fault.losses else "the same values were bad again"
        return f"rewound, {what}" if matches == tries else f"rewound {tries} times, {matches} times bad again; {what}"

    def _only_compiled(self, fault: Fault, tries: list[Replay]) -> Incident:
        again = ", ".join(f"{value:g}" for value in tries[-1].loss_values) or "no loss"
        detail = f"compiled, the step was bad again, bit for bit; in eager mode its loss is {again}"
        incident = Incident(fault.step, fault.what, Outcome.REPRODUCED, compiled_only(fault, detail), detail=detail, replays=len(tries))
        incident.weights = self._weights_text(fault, tries[-1])
        return incident

    def _weights_text(self, fault: Fault, kept: Replay) -> str:
        if fault.bad_parameters:
            some = ", ".join(fault.bad_parameters[:3])
            return f"{len(fault.bad_parameters)} weight tensors were already bad before this step ({some})"
        if kept.bad_loss and kept.backward_ran and not kept.bad_gradients:
            return "the weights are clean; the gradients were finite (zero), so this step would not have hurt them"
        return "the weights are clean: the step was stopped before the optimizer wrote"

    def _not_reproduced(self, fault: Fault, replays: list[Replay]) -> Incident:
        matches = sum(replay.same_as(fault) for replay in replays)
        values = ", ".join(f"{value:g}" for value in fault.loss_values) or "none"
        again = "; ".join(", ".join(f"{value:g}" for value in replay.loss_values) or "no loss" for replay in replays)
        outcome = Outcome.FLAKY if matches else Outcome.NOT_REPRODUCED
        detail = f"losses were [{values}], when run again [{again}]"
        same = len({tuple(replay.losses) for replay in replays}) == 1 and all(replay.loss_values for replay in replays)
        incident = Incident(fault.step, fault.what, outcome, replays=len(replays), detail=detail)
        incident.weights = self._weights_text(fault, replays[-1])
        incident.findings = transient(fault, detail, agree=same)
        return incident

    def without_replay(self, fault: Fault) -> Incident:
        detail = "no loop of the script's own code contains this step, so it could not be run again"
        incident = Incident(fault.step, fault.what, Outcome.NOT_REPRODUCED, detail=detail)
        incident.findings = transient(fault, detail, agree=False)
        return incident
