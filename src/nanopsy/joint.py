"""One autopsy on several ranks: all of them rewind together, the rank on which the bad value was born leads.

Each replay runs on every rank at once, so that the training's own collectives find their partners. DistributedDataParallel keeps its
gradients to the rank meanwhile: what is bad then was born there. After the first replay the ranks compare what they saw; the leader
goes on with its :class:`~nanopsy.plan.Plan`, the others repeat its replays (and its edits) until it is done.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any

import torch

from nanopsy._torch import Optimizer, pause_gradient_sync
from nanopsy.examiner import Examiner
from nanopsy.findings import Edit, Incident, Outcome, Safety, What, plain
from nanopsy.plan import Plan
from nanopsy.ranks import RankLostError, Ranks, Watchdog
from nanopsy.registry import Registry
from nanopsy.replay import Fault, Policy, Replay, Request
from nanopsy.rewind import Live, Loops, Rewind
from nanopsy.suspects import bad_scalars
from nanopsy.verify import Patch

_EXHAUSTED = 4
"""Added to a flag by a rank that opens no further incident: then none does."""


class JointExaminer(Examiner):
    """An examiner that agrees with those of the other ranks; alone, it is like any other."""

    def __init__(self, loops: Loops, registry: Registry, policy: Policy) -> None:
        super().__init__(loops, registry, policy)
        self.ranks = Ranks()
        self.speaks = True
        """Whether this rank writes the report: the first one, or any that was left alone."""
        self.report_lost: Callable[[], None] = lambda: None
        """Writes what is known when the autopsy hangs and the process has to end."""
        self.watchdog: Watchdog | None = None
        self._together = False
        self._resume: list[Callable[[], None]] = []
        self._flags: list[int] = []
        self._undecided = False
        """The script itself reacts to a bad value: whether the other ranks do so too is not known yet."""

    # -- the watch: no rank opens an incident by itself while it can agree with the others -------------

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.mode == "watch" and self.ranks.active:
            self.loops.trained(frame)
            return
        super().before_backward(roots, frame)

    def after_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.mode == "replay" and self._together:
            # The other ranks go on to the step, and so does this one: it may have collectives on the way.
            self._replay.backward_ran = True
            self._note_gradients(list(self.registry.parameters()))
            return
        super().after_backward(roots, frame)

    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None:
        if self.mode != "watch" or not self.ranks.active:
            super().before_step(optimizer, frame, closure=closure)
            return
        try:
            bad_loss, bad_gradient = self.watch.check(optimizer)
        except Exception as error:
            self._give_up(error)
            bad_loss = bad_gradient = False
        if not self.watch.backwards:
            self.loops.trained(frame)
        self._open_if_any(optimizer, frame, loss=bad_loss, gradient=bad_gradient)

    def step_skipped(self, optimizer: Optimizer, frame: FrameType) -> None:
        """A GradScaler skipped the step, on all ranks alike: a bad loss behind it is an incident all the same."""
        if self.mode == "replay" and self._together:
            self._end(reached=True)
            raise Rewind(self.target())
        if self.mode == "watch" and self.ranks.active:
            bad = self.watch.pending_losses_bad()
            self._open_if_any(optimizer, frame, loss=bad, gradient=False)

    def _open_if_any(self, optimizer: Optimizer, frame: FrameType, *, loss: bool, gradient: bool) -> None:
        mine = 2 if loss else 1 if gradient else 0
        try:
            said = self.ranks.agree(mine + (_EXHAUSTED if self.exhausted else 0))
        except RankLostError as lost:
            self.diagnosis.notes.append(f"the ranks no longer agree from step {self.watch.steps} on ({lost}); each is watched by itself")
            said = [mine]
        if any(flag >= _EXHAUSTED for flag in said):
            self.exhaust()
        self._flags = [flag % _EXHAUSTED for flag in said]
        if any(self._flags):
            what = What.LOSS if loss or (not gradient and 2 in self._flags) else What.GRADIENT
            self._together = self.ranks.active
            self._open(what, [root for group in self.watch.pending for root in group], optimizer, frame, backward_done=True)

    def bad_anywhere(self, *, bad: bool) -> bool:
        """While the bad step is let through once more: whether any rank finds it bad, so that all of them drop it or none."""
        if not self.ranks.active:
            return bad
        try:
            return any(self.ranks.agree(int(bad)))
        except RankLostError:
            return bad

    def look(self, frame: FrameType, live: Live | None) -> None:
        """The script asks about a bad value: its own, or one that came from another rank."""
        self._undecided = self.mode == "watch" and self.ranks.active
        super().look(frame, live)
        if self._undecided and bad_scalars([frame]):
            self._join(frame)
        self._undecided = False

    def body_raised(self, live: Live, error: BaseException) -> bool:
        self._undecided = self.mode == "watch" and self.ranks.active
        again = super().body_raised(live, error)
        if self._undecided and not again:
            frames = list(_frames(error))
            if bad_scalars(frames):
                try:
                    self._join(frames[0])
                except Rewind as rewind:
                    again = rewind.live is live
                    if not again:
                        raise
        self._undecided = False
        return again

    def _join(self, frame: FrameType) -> None:
        """Nothing of this rank's own is bad: help another one to find out, if it asks within a few seconds."""
        self._undecided = False
        if not self.exhausted and self.ranks.meet(str(self.watch.steps)):
            self._together, self._flags = True, []
            self._open(What.LOSS, [], None, frame, backward_done=False)

    # -- opening and replaying -------------------------------------------------------------------------

    def _open(self, what: What, roots: list[torch.Tensor], optimizer: Optimizer | None, frame: FrameType, *, backward_done: bool, detail: str = "") -> None:
        if self._undecided:
            self._undecided = False
            self._together = not self.exhausted and self.ranks.meet(str(self.watch.steps))
            self._flags = []
        self.watchdog = Watchdog(self._lost) if self.ranks.rank is not None else None
        if self.watchdog is not None:
            self.watchdog.progress()
        super()._open(what, roots, optimizer, frame, backward_done=backward_done, detail=detail)
        self._tidy()

    def _plan_for(self, fault: Fault) -> Generator[Request, Replay, Incident]:
        if not self._together:
            return super()._plan_for(fault)
        return Joint(self, self._flags).steps(fault)

    def _without_loop(self, fault: Fault) -> Incident:
        if not self._together:
            return super()._without_loop(fault)
        waiting = Joint(self, self._flags).steps(fault)
        try:
            next(waiting)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        raise AssertionError("a rank without a loop was asked to run it again")

    def _launch(self, request: Request) -> None:
        if self.watchdog is not None:
            self.watchdog.progress()
        self._keep_gradients_here()
        super()._launch(request)

    def _keep_gradients_here(self) -> None:
        """Gradients stay on the rank they were computed on, while a round is replayed."""
        if self.ranks.rank is None or self._resume:
            return
        for module in list(self.registry.modules):
            if isinstance(module, torch.nn.parallel.DistributedDataParallel):
                self._resume.append(pause_gradient_sync(module))

    def _tidy(self) -> None:
        """No replay is going on: gradients are averaged again, and nobody waits for progress."""
        self._together = False
        while self._resume:
            self._resume.pop()()
        if self.watchdog is not None:
            self.watchdog.over()
            self.watchdog = None

    def _conclude(self, incident: Incident) -> None:
        together, rank = self._together, self.ranks.rank
        self._tidy()
        if rank is not None:
            if incident.rank is None:
                incident.rank = rank
            self.speaks = (rank == 0) if together and self.ranks.active else True
            self.keeps = incident.rank == rank
        super()._conclude(incident)

    def wait_for_report(self) -> None:
        """No rank leaves before the report is written: the launcher ends the others as soon as one has left."""
        if self.ranks.active and any(incident.rank is not None for incident in self.diagnosis.incidents):
            try:
                self.ranks.agree(0)
            except RankLostError:
                return

    def _lost(self, sentence: str) -> None:
        rank = self.ranks.rank
        fault = self.fault
        print(f"nanopsy: rank {rank}: {sentence}; the step was bad and could not be run again to its end", file=sys.stderr)
        if fault is not None and not self.diagnosis.incidents:
            incident = Incident(fault.step, fault.what, Outcome.NOT_REPRODUCED, detail=sentence, rank=rank)
            self.diagnosis.incidents.append(incident)
        self.report_lost()


class Joint:
    """The plan of one autopsy as each rank sees it."""

    def __init__(self, examiner: JointExaminer, flags: Sequence[int]) -> None:
        self.examiner, self.ranks, self.flags = examiner, examiner.ranks, list(flags)

    def steps(self, fault: Fault) -> Generator[Request, Replay, Incident]:
        """Survey on all ranks, compare, follow the rank of birth."""
        examiner, ranks = self.examiner, self.ranks
        mine = ranks.rank or 0
        try:
            ready = ranks.agree(1 if examiner.live is not None else 0)
        except RankLostError as lost:
            return self._alone(fault, lost)
        if not all(ready):
            incident = Plan(examiner).without_replay(fault)
            incident.rank = self._suspect()
            where = ", ".join(str(number) for number, can in enumerate(ready) if not can)
            incident.detail += f" (on rank {where}; the ranks can only be rewound together)"
            return incident
        plan = Plan(examiner).steps(fault)
        request = next(plan)
        survey = yield request
        try:
            seen = ranks.share(_verdict(survey))
        except RankLostError as lost:
            return self._alone(fault, lost)
        leader = _leader(seen)
        if leader is None:
            leader = self._suspect()
        if mine != leader:
            return (yield from self._follow(fault, leader))
        others = [number for number, verdict in enumerate(seen) if verdict["loss"] and number != leader]
        incident = yield from self._lead(plan, survey)
        incident.rank = leader
        if others:
            incident.detail += f"; the loss was bad on rank {', '.join(map(str, others))} too"
        self.examiner.complete(incident)
        self._say({"done": plain(incident.to_dict())})
        return incident

    def _suspect(self) -> int:
        """The rank that saw something bad first of all: a loss before a gradient."""
        if not self.flags:
            return 0
        return self.flags.index(max(self.flags))

    def _lead(self, plan: Generator[Request, Replay, Incident], survey: Replay) -> Generator[Request, Replay, Incident]:
        replay = survey
        while True:
            try:
                request = plan.send(replay)
            except StopIteration as finished:
                incident: Incident = finished.value
                return incident
            self._say({"go": [_edit(edit) for edit in request.patch.edits] if request.patch is not None else []})
            replay = yield request

    def _say(self, message: dict[str, Any]) -> None:
        """To all other ranks; those that are gone do not hear it."""
        if self.ranks.active:
            try:
                self.ranks.share(message)
            except RankLostError as lost:
                self.examiner.diagnosis.notes.append(f"another rank was lost during the autopsy ({lost}); rank {self.ranks.rank} went on alone")

    def _follow(self, fault: Fault, leader: int) -> Generator[Request, Replay, Incident]:
        while True:
            try:
                message = self.ranks.share({})[leader]
            except RankLostError as lost:
                return self._alone(fault, lost)
            if "done" in message:
                return Incident.from_dict(message["done"])
            edits = tuple(Edit(**{**entry, "safety": Safety(entry["safety"])}) for entry in message["go"])
            yield Request(patch=Patch(edits, self.examiner.target()) if edits else None)

    def _alone(self, fault: Fault, lost: RankLostError) -> Incident:
        incident = Plan(self.examiner).without_replay(fault)
        incident.detail = f"another rank was lost during the autopsy ({lost}), so the step could not be run again on all of them"
        incident.findings = []
        return incident


def _frames(error: BaseException) -> Iterator[FrameType]:
    trace = error.__traceback__
    while trace is not None:
        yield trace.tb_frame
        trace = trace.tb_next


def _edit(edit: Edit) -> dict[str, Any]:
    return {**asdict(edit), "safety": str(edit.safety)}


def _verdict(survey: Replay) -> dict[str, Any]:
    """What one rank saw in its first replay: a bad loss, births in backward, bad gradients."""
    ops = survey.recording.ops if survey.recording is not None else []
    births = any(op.birth and op.backward for op in ops if not str(op.func).startswith(("c10d", "_c10d")))
    return {"loss": survey.bad_loss, "births": births, "gradients": len(survey.bad_gradients)}


def _leader(seen: Sequence[dict[str, Any]]) -> int | None:
    """The rank of birth: the first whose loss was bad, else in whose backward a bad value was born, else whose gradients were bad."""
    for signs in (("loss",), ("births", "gradients"), ("births",), ("gradients",)):
        for number, verdict in enumerate(seen):
            if all(verdict[sign] for sign in signs):
                return number
    return None
