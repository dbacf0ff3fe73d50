"""What happens between an incident and its report: replays, in order, driven by one plan.

The plan is a generator. It yields a :class:`Request` for each replay that it wants (traced, with operands kept, with
an edit applied) and receives the :class:`Replay` that came of it, so that the life of a failure reads from top to
bottom in :meth:`Examiner.plan`. Between the two, the user's own loop runs.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import time
import traceback as traceback_module
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

import torch

from nanopsy._torch import Optimizer, node_sequence
from nanopsy.diagnose import Evidence, compiled_only, diagnose, transient, unplaced
from nanopsy.findings import Diagnosis, Finding, Incident, Outcome, What
from nanopsy.refetch import refetched
from nanopsy.registry import Registry, Site, user_frames
from nanopsy.rewind import Live, Loops, Replaying, Rewind, Round, Stopped
from nanopsy.trace import Recording, Ref, Trace, interesting
from nanopsy.verify import Patch, patches_for, remedies
from nanopsy.watching import Watch, bad_elements, gradients, optimizer_parameters

MOST_AUTOPSIES = 5
"""Incidents that are opened in one run; later ones are only counted."""
MOST_EDITS = 3
"""Different edits that are tried for one finding."""
MOST_PLACES = 6
"""Places that one edit may have to be made in before the step is finite."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user asked for."""

    on_incident: str = "stop"
    mute: bool = False
    verify: bool = True


@dataclass(slots=True)
class Fault:
    """The incident as the watch saw it, to compare replays with."""

    what: What
    step: int
    losses: list[bytes]
    loss_values: list[float]
    bad_parameters: tuple[str, ...]
    optimizer: Optimizer | None
    place: Site | None
    backward_done: bool
    round_number: int = 0
    detail: str = ""
    bad_gradients: int = 0
    """How many gradients were bad when the watch noticed."""


@dataclass(slots=True)
class Request:
    """One replay that the plan wants."""

    trace: Trace | None = None
    patch: Patch | None = None


@dataclass(slots=True)
class Replay:
    """What came of one replay."""

    losses: list[bytes] = field(default_factory=list)
    loss_values: list[float] = field(default_factory=list)
    bad_loss: bool = False
    bad_gradients: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    recording: Recording | None = None
    sinks: list[Ref] = field(default_factory=list)
    sink_tensors: list[torch.Tensor] = field(default_factory=list)
    gradient_sinks: list[Ref] = field(default_factory=list)
    gradient_tensors: list[torch.Tensor] = field(default_factory=list)
    error: BaseException | None = None
    reached: bool = False
    backward_ran: bool = False

    @property
    def bad(self) -> bool:
        return self.bad_loss or bool(self.bad_gradients)

    def same_as(self, fault: Fault) -> bool:
        """Bad again, with the losses bit for bit as before."""
        if not self.bad:
            return False
        if not fault.losses:
            return True
        count = min(len(self.losses), len(fault.losses))
        return count > 0 and (self.losses[:count] == fault.losses[:count] or self.losses[-len(fault.losses) :] == fault.losses)


def raw(tensor: torch.Tensor) -> bytes:
    """The bits of a tensor."""
    flat = tensor.detach().to("cpu").contiguous().reshape(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


class Examiner:
    """Listens to the watch and the loops of one run; opens incidents and concludes them."""

    def __init__(self, loops: Loops, registry: Registry, policy: Policy) -> None:
        self.loops, self.registry, self.policy = loops, registry, policy
        self.watch = Watch(self)
        self.diagnosis = Diagnosis()
        self.mode = "watch"
        self.fault: Fault | None = None
        self.live: Live | None = None
        self.rounds: list[Round] = []
        self.seconds = 0.0
        self._plan: Generator[Request, Replay, Incident] | None = None
        self._request = Request()
        self._replay = Replay()
        self._opened = 0
        self._replays = 0
        self._stepped: Counter[int] = Counter()
        self._to_suppress: Counter[int] = Counter()
        self._closure: tuple[Any, ...] | None = None
        self._incident: Incident | None = None
        self._muted: contextlib.ExitStack | None = None
        self._began = 0.0
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._names: dict[int, str] = {}
        loops.controller = self

    # -- listening to the watch ------------------------------------------------------------------

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.mode == "watch":
            self.loops.trained(frame)
            if self.watch.host_losses_bad(roots):
                self._open(What.LOSS, [root for group in self.watch.pending for root in group], None, frame, backward_done=False)
            return
        if self.mode == "replay":
            self._note_roots(roots)
            if self._request.trace is not None:
                self._request.trace.backward_begins(tuple(roots))

    def after_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.mode != "replay":
            return
        self._replay.backward_ran = True
        self._note_gradients(list(self.registry.parameters()))
        if self._replay.bad:
            self._end(reached=True)
            raise Rewind(self._target())

    def closure_begins(self, optimizer: Optimizer, frame: FrameType) -> None:
        if self.mode == "watch":
            parameters = optimizer_parameters(optimizer)
            state = {key: {k: v.clone() if isinstance(v, torch.Tensor) else _copy(v) for k, v in entry.items()} for key, entry in optimizer.state.items()}
            self._closure = (optimizer, [parameter.detach().clone() for parameter in parameters], state)

    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None:
        if self.mode == "watch":
            try:
                bad_loss, bad_gradient = self.watch.check(optimizer)
            except Exception as error:
                self._give_up(error)
                return
            if not self.watch.backwards:
                self.loops.trained(frame)
            if bad_loss or bad_gradient:
                what = What.LOSS if bad_loss else What.GRADIENT
                self._open(what, [root for group in self.watch.pending for root in group], optimizer, frame, backward_done=True)
        elif self.mode == "replay":
            self._note_gradients(optimizer_parameters(optimizer))
            self._replay.backward_ran = True
            if self._replay.bad or (not closure and not self._stepped_before(optimizer)):
                self._end(reached=True)
                raise Rewind(self._target())
            if not closure:
                _clear(optimizer_parameters(optimizer))
        elif self.mode == "pass":
            bad_loss, bad_gradient = self.watch.check(optimizer)
            if bad_loss or bad_gradient:
                if self.policy.on_incident == "skip":
                    _clear(optimizer_parameters(optimizer))
                self.loops.state.put_buffers(self._buffers)
                self._passed()
            elif self._stepped_before(optimizer):
                _clear(optimizer_parameters(optimizer))
            else:
                self._passed()

    def _give_up(self, error: Exception) -> None:
        """The check itself failed: the training goes on, unwatched, and the report says so."""
        self.watch.remove()
        self.loops.disable()
        self.mode = "done"
        self.diagnosis.notes.append(f"the watch failed at step {self.watch.steps} and was switched off ({type(error).__name__}: {error}); please report this")

    def after_step(self, optimizer: Optimizer) -> None:
        if self.mode == "watch":
            self.loops.took_step(optimizer)
            self._closure = None
        elif self.mode == "replay" and self._closure is not None and self._closure[0] is optimizer:
            self._end(reached=True)
            raise Rewind(self._target())

    def scale_collapsed(self, optimizer: Optimizer, text: str, frame: FrameType) -> None:
        if self.mode == "watch" and self._opened < MOST_AUTOPSIES:
            self._open(What.SCALE, [], optimizer, frame, backward_done=True, detail=text)

    def closure_growth(self, weights: Sequence[torch.Tensor]) -> float | None:
        """How much the weights have grown since ``optimizer.step(closure)`` began; None without a closure."""
        if self._closure is None or not weights:
            return None
        before = float(torch.linalg.vector_norm(torch.stack([value.float().norm() for value in self._closure[1]])))
        now = float(torch.linalg.vector_norm(torch.stack([weight.float().norm() for weight in weights])))
        return now / before if before > 0 else None

    def _stepped_before(self, optimizer: Optimizer) -> bool:
        """Whether this step was already taken in the round before the incident (another optimizer's turn): it must not be taken twice."""
        if self._to_suppress[id(optimizer)] > 0:
            self._to_suppress[id(optimizer)] -= 1
            return True
        return False

    # -- listening to the loops ------------------------------------------------------------------

    def look(self, frame: FrameType, live: Live | None) -> None:
        """The script leaves a loop, or asks whether something is bad."""
        if self.mode == "watch":
            bad = self._suspects([frame], exact=live is None)
            if bad:
                self._open(What.LOSS, bad, None, frame, backward_done=bool(self.watch.pending))
        elif self.mode == "replay":
            bad = self._suspects([frame], exact=True)
            if bad or live is not None:
                self._note_roots(bad)
                self._note_trace_sinks(bad)
                self._note_gradients(list(self.registry.parameters()))
                if self._replay.bad or live is not None:
                    self._end(reached=self._replay.bad)
                    raise Rewind(self._target())
        elif self.mode == "pass" and self._suspects([frame], exact=True):
            self._passed()

    def body_raised(self, live: Live, error: BaseException) -> bool:
        """An exception left a loop body."""
        frames = []
        traceback = error.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        if self.mode == "watch":
            bad = self._suspects(frames, exact=True)
            grads = [parameter for parameter in self.registry.parameters() if parameter.grad is not None and bad_elements(parameter.grad)]
            pending = [root for group in self.watch.pending for root in group]
            bad_pending = [root for root in pending if bad_elements(self.watch.unscaled(root))]
            if not (bad or grads or bad_pending):
                return False
            what = What.LOSS if bad or bad_pending else What.GRADIENT
            roots = pending if bad_pending or (grads and not bad) else bad
            try:
                self._open(what, roots, None, frames[0], backward_done=bool(pending))
            except Rewind as rewind:
                if rewind.live is live:
                    return True
                raise
            return False
        if self.mode == "replay":
            if live is not self._target():
                return False
            bad = self._suspects(frames, exact=True)
            self._note_roots(bad)
            self._note_trace_sinks(bad)
            self._note_gradients(list(self.registry.parameters()))
            self._replay.error = error
            if os.environ.get("NANOPSY_DEBUG"):
                traceback_module.print_exception(error)
            self._end(reached=self._replay.bad)
            return True
        return False

    def body_ended(self, live: Live) -> None:
        """All rounds came again and nothing was bad."""
        if self.mode == "pass":
            self._passed()
            return
        self._end(reached=False)

    def left(self, live: Live) -> None:
        """The loop ended while it was being replayed: no further replay is possible."""
        if self.mode == "replay":
            self._stop_trace()
            self._unmute()
            self.mode = "aborted"
            self.loops.replaying = None

    @property
    def unfinished(self) -> bool:
        """Whether the script ended in the middle of an autopsy."""
        return self.mode in ("replay", "between", "aborted")

    # -- opening an incident ---------------------------------------------------------------------

    def _open(self, what: What, roots: list[torch.Tensor], optimizer: Optimizer | None, frame: FrameType, *, backward_done: bool, detail: str = "") -> None:
        """An incident: start the autopsy by going round the loop again, or conclude without one."""
        self._began = time.monotonic()
        self._opened += 1
        parameters = list(self.registry.parameters())
        self._names = self.registry.names()
        from nanopsy._torch import storage_key

        bad_parameters = tuple(self._names.get(storage_key(p), "?") for p in parameters if bad_elements(p))
        sites = user_frames(frame, most=1)
        losses = [self.watch.unscaled(root) for root in roots]
        self.fault = Fault(
            What.PARAMETER if bad_parameters else what,
            self.watch.steps,
            [raw(loss) for loss in losses if loss.numel() <= 64],
            [float(loss.detach().float().sum()) for loss in losses if loss.numel() == 1],
            bad_parameters,
            optimizer,
            sites[0] if sites else None,
            backward_done,
            detail=detail,
            bad_gradients=sum(1 for p in parameters if p.grad is not None and bad_elements(p.grad)),
        )
        if self._opened > MOST_AUTOPSIES:
            self._count_only()
            if self.policy.on_incident == "skip" and optimizer is not None:
                _clear(optimizer_parameters(optimizer))
            return
        live = self._choose_loop(frame, roots)
        if live is None:
            incident = self._without_replay()
            self._conclude(incident)
            if self.policy.on_incident == "skip" and optimizer is not None:
                _clear(optimizer_parameters(optimizer))
            return
        self.live, self.rounds = live, live.rounds()
        self.fault.round_number = self.rounds[-1].number
        first = self.rounds[0]
        self._stepped = self.loops.steps_since(first)
        self._buffers = self.loops.state.buffers_now()
        self._plan = self.plan(self.fault)
        self._launch(next(self._plan))
        raise Rewind(live)

    def _choose_loop(self, frame: FrameType, roots: list[torch.Tensor]) -> Live | None:
        """The innermost live loop whose round began before this loss was computed."""
        candidates = [live for live in self.loops.stack(frame) if live.rounds()]
        if not candidates:
            return None
        lowest = min((number for root in roots for number in _sequences(root)), default=None)
        if lowest is not None:
            for live in candidates:
                rounds = live.rounds()
                if rounds[0].sequence <= lowest:
                    return live
        for live in candidates:
            if live.round is not None and (live.round.backwards or (self.fault is not None and not self.fault.backward_done)):
                return live
        return candidates[0]

    def _target(self) -> Live:
        assert self.live is not None
        return self.live

    # -- replaying -------------------------------------------------------------------------------

    def _launch(self, request: Request) -> None:
        """Arrange that the loop's next round is the failing one, instrumented as requested."""
        assert self.live is not None
        self._request, self._replay = request, Replay()
        self._replays += 1
        self.mode = "replay"
        self._to_suppress = Counter(self._stepped)
        self.watch.recording = False
        self.watch.pending.clear()
        _clear(list(self.registry.parameters()))
        if self._closure is not None:
            optimizer, values, state = self._closure
            with torch.no_grad():
                for parameter, value in zip(optimizer_parameters(optimizer), values, strict=True):
                    parameter.copy_(value)
            optimizer.state.clear()
            optimizer.state.update({key: {k: _copy(v) for k, v in entry.items()} for key, entry in state.items()})
        self.loops.replaying = Replaying(self.live, self.rounds, self._body_ended)
        self._mute()
        if self.registry.compiled:
            torch.compiler.set_stance("default" if request.trace is None else "force_eager")
        if request.patch is not None:
            request.patch.apply()
            self.loops.replaying.body = request.patch.body
        if request.trace is not None:
            request.trace.start()

    def _body_ended(self) -> None:
        self.body_ended(self._target())

    def _stop_trace(self) -> None:
        if self._request.trace is not None:
            self._replay.recording = self._request.trace.stop()
        if self._request.patch is not None:
            self._request.patch.undo()

    def _end(self, *, reached: bool) -> None:
        """A replay is over: hand it to the plan and start the next, or conclude."""
        self._stop_trace()
        self._unmute()
        self._replay.reached = reached
        self.mode = "between"
        assert self._plan is not None
        try:
            request = self._plan.send(self._replay)
        except StopIteration as finished:
            self._conclude(finished.value)
            return
        self._launch(request)

    def _note_roots(self, roots: Sequence[torch.Tensor]) -> None:
        for root in roots:
            plain = self.watch.unscaled(root)
            if plain.numel() <= 64:
                self._replay.losses.append(raw(plain))
            if plain.numel() == 1:
                self._replay.loss_values.append(float(plain.detach().float().sum()))
            if bad_elements(plain):
                self._replay.bad_loss = True
                if self._request.trace is not None:
                    self._replay.sinks.append(self._request.trace.ref(root))
                self._replay.sink_tensors.append(root.detach().clone())

    def _note_trace_sinks(self, roots: Sequence[torch.Tensor]) -> None:
        if self._request.trace is not None and roots and not self._request.trace.recording.roots:
            self._request.trace.recording.roots = [self._request.trace.ref(root) for root in roots]

    def _note_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        from nanopsy._torch import storage_key

        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or any(parameter is known for _, known in self._replay.bad_gradients):
                continue
            if bad_elements(gradient):
                self._replay.bad_gradients.append((self._names.get(storage_key(parameter), "?"), parameter))
                if self._request.trace is not None and gradient.layout is torch.strided:
                    self._replay.gradient_sinks.append(self._request.trace.ref(gradient))
                    self._replay.gradient_tensors.append(gradient.detach().clone())

    def _mute(self) -> None:
        self._unmute()
        if self.policy.mute:
            self._muted = contextlib.ExitStack()
            self._muted.enter_context(contextlib.redirect_stdout(io.StringIO()))
            self._muted.enter_context(contextlib.redirect_stderr(io.StringIO()))

    def _unmute(self) -> None:
        if self._muted is not None:
            self._muted.close()
            self._muted = None

    def _suspects(self, frames: Sequence[FrameType], *, exact: bool) -> list[torch.Tensor]:
        """Bad losses among the local names of frames: scalars with a history, alone or in a container."""
        found: list[torch.Tensor] = []
        for frame in frames:
            for value in list(frame.f_locals.values()):
                for tensor in _tensors(value, depth=2):
                    if tensor.numel() != 1 or tensor.grad_fn is None or (tensor.device.type != "cpu" and not exact):
                        continue
                    if bad_elements(tensor) and not any(tensor is known for known in found):
                        found.append(tensor)
        return found

    # -- the plan --------------------------------------------------------------------------------

    def plan(self, fault: Fault) -> Generator[Request, Replay, Incident]:
        """The life of a failure after the incident: survey, keep, diagnose, verify."""
        weights, started = set(self._names), self._replays
        first = yield Request(trace=Trace(weights))
        tries = [first]
        survey = first
        if not first.same_as(fault) and not (first.bad and self.registry.compiled):
            plain = yield Request()
            again = yield Request(trace=Trace(weights))
            tries += [plain, again]
            survey = again if again.same_as(fault) else first
            if self.registry.compiled and plain.same_as(fault) and not again.bad:
                return self._only_compiled(fault, tries)
            if not survey.same_as(fault):
                return self._not_reproduced(fault, tries)
        matches = sum(replay.same_as(fault) for replay in tries)
        outcome = Outcome.REPRODUCED if matches == len(tries) or self.registry.compiled else Outcome.FLAKY
        assert survey.recording is not None
        wanted = interesting(survey.recording, survey.sinks or survey.gradient_sinks)
        kept = yield Request(trace=Trace(weights, wanted))
        if not kept.bad or kept.recording is None:
            return self._not_reproduced(fault, [*tries, kept])
        try:
            evidence = Evidence.gather(self, fault, kept)
            findings = refetched(evidence, diagnose(evidence))
        except Exception as error:
            if os.environ.get("NANOPSY_DEBUG"):
                raise
            incident = Incident(fault.step, fault.what, outcome, unplaced(fault), replays=self._replays - started)
            incident.detail = f"{self._compared(fault, matches, len(tries))}; the diagnosis itself failed ({type(error).__name__}: {error}): please report this"
            return incident
        verified: list[Finding] = []
        for finding in findings[:2]:
            verified.append((yield from self._cure(finding, evidence)))
        incident = Incident(fault.step, fault.what, outcome, [*verified, *findings[2:]], replays=self._replays - started)
        incident.detail = self._compared(fault, matches, len(tries))
        incident.weights = self._weights_text(fault, kept)
        return incident

    def _cure(self, finding: Finding, evidence: Evidence) -> Generator[Request, Replay, Finding]:
        """Try the cause's edits on the failing step, best first; where one cures one of several like places, go on to the next."""
        best = finding
        if not self.policy.verify:
            first = next(patches_for(finding, evidence, self._target()), None)
            return replace(finding, fix=first.fix(), verification="not verified: --no-verify") if first is not None else finding
        for number, proposed in enumerate(patches_for(finding, evidence, self._target())):
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
        traced = yield Request(patch=patch, trace=Trace(set(self._names), range(1 << 40)))
        if not traced.bad or traced.recording is None:
            return patch
        later = Evidence.gather(self, evidence.fault, traced)
        for other in diagnose(later)[:1]:
            birth = later.birth_of(other)
            if birth is None or other.location is None or other.code[:4] in ("NAN6", "NAN7"):
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

    def _without_replay(self) -> Incident:
        assert self.fault is not None
        detail = "no loop of the script's own code contains this step, so it could not be run again"
        incident = Incident(self.fault.step, self.fault.what, Outcome.NOT_REPRODUCED, detail=detail)
        incident.findings = transient(self.fault, detail, agree=False)
        return incident

    # -- concluding ------------------------------------------------------------------------------

    def _count_only(self) -> None:
        if self.diagnosis.incidents:
            self.diagnosis.incidents[-1].count += 1

    def _conclude(self, incident: Incident) -> None:
        """Record the incident, then stop the script or let the failing round through once more."""
        if self.registry.compiled:
            torch.compiler.set_stance("default")
        self.seconds += time.monotonic() - self._began
        if self.fault is not None:
            incident.loss_bits = [part.hex() for part in self.fault.losses]
        incident.history = [{"step": f.step, "loss": f.loss, "gradient_norm": f.gradient_norm} for f in list(self.watch.ring)[-8:]]
        for known in self.diagnosis.incidents:
            if known.key == incident.key:
                known.count += 1
                break
        else:
            self.diagnosis.incidents.append(incident)
        self._incident = incident
        self.watch.recording = True
        self.watch.pending.clear()
        self._plan = None
        if self.policy.on_incident == "stop":
            self.mode = "done"
            self.loops.disable()
            raise Stopped()
        if self.live is None:
            self.mode = "watch"
            return
        _clear(list(self.registry.parameters()))
        self.mode = "pass"
        self._to_suppress = Counter(self._stepped)
        self.loops.replaying = Replaying(self.live, self.rounds, self._body_ended)

    def _passed(self) -> None:
        """The failing round has been let through: back to watching."""
        self.mode = "watch"
        self.loops.replaying = None
        self.loops.queue = []
        self.live = None
        self._closure = None
        self.watch.pending.clear()


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, list):
        return [_copy(entry) for entry in value]
    return value


def _clear(parameters: Sequence[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None


def _tensors(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, dict):
        for entry in list(value.values())[:64]:
            yield from _tensors(entry, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for entry in value[:64]:
            yield from _tensors(entry, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and type(value).__module__ not in ("builtins",):
        if type(value).__module__.split(".")[0] not in ("torch", "numpy"):
            for entry in list(value.__dict__.values())[:64]:
                yield from _tensors(entry, 0)


def _sequences(root: torch.Tensor) -> Iterator[int]:
    """Sequence numbers of the graph behind a loss."""
    seen: set[Any] = set()
    stack = [root.grad_fn]
    while stack and len(seen) < 100_000:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        number = node_sequence(node)
        if number >= 0:
            yield number
        stack.extend(child for child, _ in node.next_functions)


__all__ = ["Examiner", "Fault", "Policy", "Replay", "Request", "gradients", "math"]
