"""The controller of one run: opens incidents, runs the replays that the plan wants, concludes.

The :class:`Examiner` listens to the watch and the loops. At an incident it asks the :class:`~nanopsy.plan.Plan` for one replay
after another and makes the user's loop run each; at the end it records the incident and carries out the policy.
"""

from __future__ import annotations

import contextlib
import io
import os
import time
import traceback as traceback_module
from collections import Counter
from collections.abc import Generator, Sequence
from types import FrameType
from typing import Any

import torch

from nanopsy._torch import Optimizer, storage_key
from nanopsy.closures import BeforeClosure
from nanopsy.findings import Diagnosis, Incident, What
from nanopsy.instrument import holds_training_loop
from nanopsy.plan import Plan
from nanopsy.refetch import FETCHES
from nanopsy.registry import Registry, user_frames
from nanopsy.replay import Fault, Keeper, Policy, Replay, Request, raw
from nanopsy.rewind import Live, Loops, Replaying, Rewind, Round, Stopped
from nanopsy.suspects import sequences, suspects
from nanopsy.watching import Watch, bad_elements, optimizer_parameters

MOST_AUTOPSIES = 5
"""Incidents that are opened in one run; later ones are only counted."""


class Examiner:
    """Listens to the watch and the loops of one run; opens incidents and concludes them."""

    def __init__(self, loops: Loops, registry: Registry, policy: Policy) -> None:
        self.loops, self.registry, self.policy = loops, registry, policy
        self.watch = Watch(self)
        self.diagnosis = Diagnosis()
        self.keeper: Keeper | None = None
        self.keeps = True
        """Whether this process writes the capsule: of several ranks, one does."""
        self.mode = "watch"
        self.fault: Fault | None = None
        self.live: Live | None = None
        self.rounds: list[Round] = []
        self.seconds = 0.0
        self._plan: Generator[Request, Replay, Incident] | None = None
        self._request = Request()
        self._replay = Replay()
        self._opened = 0
        self.replays = 0
        self.unexamined = 0
        self._stepped: Counter[int] = Counter()
        self._to_suppress: Counter[int] = Counter()
        self._closure: BeforeClosure | None = None
        self._muted: contextlib.ExitStack | None = None
        self._began = 0.0
        self._buffers: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.names: dict[int, str] = {}
        loops.controller = self

    # -- listening to the watch ------------------------------------------------------------------

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.mode == "watch":
            self.loops.trained(frame)
            if self._opened < MOST_AUTOPSIES and self.watch.host_losses_bad(roots):
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
            raise Rewind(self.target())

    def closure_begins(self, optimizer: Optimizer, frame: FrameType) -> None:
        if self.mode == "watch":
            self._closure = BeforeClosure.of(optimizer)

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
                raise Rewind(self.target())
            if not closure:
                _clear(optimizer_parameters(optimizer))
        elif self.mode == "pass":
            bad_loss, bad_gradient = self.watch.check(optimizer)
            if self.bad_anywhere(bad=bad_loss or bad_gradient):
                if self.policy.on_incident == "skip":
                    _clear(optimizer_parameters(optimizer))
                self.loops.state.put_buffers(self._buffers)
                self._passed()
            elif self._stepped_before(optimizer):
                _clear(optimizer_parameters(optimizer))
            else:
                self._passed()

    def bad_anywhere(self, *, bad: bool) -> bool:
        """What this process finds is what counts; see the examiner of several ranks."""
        return bad

    @property
    def exhausted(self) -> bool:
        """Whether this run opens no further incident."""
        return self._opened >= MOST_AUTOPSIES

    def exhaust(self) -> None:
        """Open no further incident: count only."""
        self._opened = max(self._opened, MOST_AUTOPSIES)

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
        elif self.mode == "replay" and self._closure is not None and self._closure.optimizer is optimizer:
            self._end(reached=True)
            raise Rewind(self.target())

    def step_skipped(self, optimizer: Optimizer, frame: FrameType) -> None:
        """A GradScaler skipped the step; a bad loss was seen before."""

    def scale_collapsed(self, optimizer: Optimizer, text: str, frame: FrameType) -> None:
        if self.mode == "watch" and self._opened < MOST_AUTOPSIES:
            self._open(What.SCALE, [], optimizer, frame, backward_done=True, detail=text)

    def closure_growth(self, weights: Sequence[torch.Tensor]) -> float | None:
        """How much the weights have grown since ``optimizer.step(closure)`` began; None without a closure."""
        return self._closure.growth(weights) if self._closure is not None else None

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
            bad = suspects([frame], exact=live is None)
            if bad:
                self._open(What.LOSS, bad, None, frame, backward_done=bool(self.watch.pending))
        elif self.mode == "replay":
            bad = suspects([frame], exact=True)
            if bad or live is not None:
                self._note_roots(bad)
                self._note_trace_sinks(bad)
                self._note_gradients(list(self.registry.parameters()))
                if self._replay.bad or live is not None:
                    self._end(reached=self._replay.bad)
                    raise Rewind(self.target())
        elif self.mode == "pass" and suspects([frame], exact=True):
            self._passed()

    def body_raised(self, live: Live, error: BaseException) -> bool:
        """An exception left a loop body."""
        frames = []
        traceback = error.__traceback__
        while traceback is not None:
            frames.append(traceback.tb_frame)
            traceback = traceback.tb_next
        if self.mode == "watch":
            bad = suspects(frames, exact=True)
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
            if live is not self.target():
                return False
            bad = suspects(frames, exact=True)
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
        self.names = self.registry.names()
        bad_parameters = tuple(self.names.get(storage_key(p), "?") for p in parameters if bad_elements(p))
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
            self._conclude(self._without_loop(self.fault))
            if self.policy.on_incident == "skip" and optimizer is not None:
                _clear(optimizer_parameters(optimizer))
            return
        self.live, self.rounds = live, live.rounds()
        first = self.rounds[0]
        self._stepped = self.loops.steps_since(first)
        self._buffers = self.loops.state.buffers_now()
        self._plan = self._plan_for(self.fault)
        try:
            request = next(self._plan)
        except StopIteration as finished:
            self._conclude(finished.value)
            return
        self._launch(request)
        raise Rewind(live)

    def _plan_for(self, fault: Fault) -> Generator[Request, Replay, Incident]:
        return Plan(self).steps(fault)

    def _without_loop(self, fault: Fault) -> Incident:
        return Plan(self).without_replay(fault)

    def _choose_loop(self, frame: FrameType, roots: list[torch.Tensor]) -> Live | None:
        """The innermost live loop whose round began before this loss was computed."""
        candidates = [live for live in self.loops.stack(frame) if live.rounds()]
        if not candidates:
            return None
        lowest = min((number for root in roots for number in sequences(root)), default=None)
        if lowest is not None:
            for live in candidates:
                rounds = live.rounds()
                if rounds[0].sequence <= lowest:
                    return live
        for live in candidates:
            if live.round is not None and (live.round.backwards or (self.fault is not None and not self.fault.backward_done)):
                return live
        return candidates[0]

    def target(self) -> Live:
        assert self.live is not None
        return self.live

    # -- replaying -------------------------------------------------------------------------------

    def _launch(self, request: Request) -> None:
        """Arrange that the loop's next round is the failing one, instrumented as requested."""
        assert self.live is not None
        self._request, self._replay = request, Replay()
        self.replays += 1
        self.mode = "replay"
        self._to_suppress = Counter(self._stepped)
        self.watch.recording = False
        self.watch.pending.clear()
        _clear(list(self.registry.parameters()))
        self._undo_closure()
        self.loops.replaying = Replaying(self.live, self.rounds, self._body_ended)
        self._mute()
        if self.registry.compiled:
            torch.compiler.set_stance("default" if request.trace is None else "force_eager")
        if request.patch is not None:
            request.patch.apply()
            self.loops.replaying.body = request.patch.body
        if request.trace is not None:
            request.trace.start()

    def _undo_closure(self) -> None:
        if self._closure is not None:
            self._closure.put_back()

    def _body_ended(self) -> None:
        self.body_ended(self.target())

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
        self._replay.note_roots([(root, self.watch.unscaled(root)) for root in roots], self._request.trace)

    def _note_trace_sinks(self, roots: Sequence[torch.Tensor]) -> None:
        if self._request.trace is not None and roots and not self._request.trace.recording.roots:
            self._request.trace.recording.roots = [self._request.trace.ref(root) for root in roots]

    def _note_gradients(self, parameters: Sequence[torch.Tensor]) -> None:
        self._replay.note_gradients(parameters, self.names, self._request.trace)

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

    # -- concluding ------------------------------------------------------------------------------

    def _count_only(self) -> None:
        """Beyond the limit an incident is counted and not opened; nothing is said of its cause."""
        self.unexamined += 1

    def _conclude(self, incident: Incident) -> None:
        """Record the incident, then stop the script or let the failing round through once more."""
        if self.registry.compiled:
            torch.compiler.set_stance("default")
        self.seconds += time.monotonic() - self._began
        self._undo_closure()
        self.complete(incident)
        for known in self.diagnosis.incidents:
            if known.key == incident.key:
                known.count += 1
                break
        else:
            self.diagnosis.incidents.append(incident)
            if self.keeper is not None and self.keeps:
                self.keeper.concluded(self, incident)
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

    def complete(self, incident: Incident) -> None:
        """Add what the watch knows of the step: its losses, its batch, the steps before it. An incident that another rank completed stays as it is."""
        if incident.history or incident.batch:
            return
        if self.fault is not None:
            incident.loss_bits = [part.hex() for part in self.fault.losses]
        incident.history = [{"step": f.step, "loss": f.loss, "gradient_norm": f.gradient_norm} for f in list(self.watch.ring)[-8:]]
        incident.batch = self._batch()

    def items(self) -> list[Any]:
        """What the loop gave for the failing step: its item, and what was drawn by ``next`` meanwhile."""
        if not self.rounds:
            return []
        last = self.rounds[-1]
        return [last.item, *(draw.item for draw in self.loops.draws if draw.number >= last.drawn and draw.depth == last.depth)]

    def _batch(self) -> dict[str, object]:
        """Which batch of its loop the step was, and which samples of the dataset it consisted of, where a DataLoader says so."""
        if not self.rounds:
            return {}
        batch: dict[str, object] = {}
        if self.live is not None and not holds_training_loop(self.live.file):
            batch["number"] = self.rounds[-1].number - 1
        fetched = FETCHES.of(*self.items())
        if fetched is not None and isinstance(fetched[1], (list, tuple)) and all(isinstance(it, int) for it in fetched[1]):
            batch["samples"] = list(fetched[1])[:256]
        return batch

    def _passed(self) -> None:
        """The failing round has been let through: back to watching."""
        self.mode = "watch"
        self.loops.replaying = None
        self.loops.queue = []
        self.live = None
        self._closure = None
        self.watch.pending.clear()


def _clear(parameters: Sequence[torch.Tensor]) -> None:
    for parameter in parameters:
        parameter.grad = None
