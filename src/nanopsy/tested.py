"""One test under the trace: every ``backward`` and optimizer step is looked at, and the first bad one is explained on the spot.

A test cannot be rewound: its fixtures are used up. So it is recorded while it runs, with the operands kept, and a bad value is followed back through
that one recording. What is recorded is bounded: a long test is recorded in stretches, each begun after an optimizer step.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch

from nanopsy import registry
from nanopsy._torch import Optimizer, dispatches_itself, is_simulated, storage_key
from nanopsy.causes import load
from nanopsy.diagnose import Evidence, diagnose, unplaced
from nanopsy.examiner import Examiner
from nanopsy.findings import Diagnosis, Finding, Incident, Outcome, What
from nanopsy.library import WATCHING, leaves_of
from nanopsy.registry import user_frames
from nanopsy.replay import Fault, Policy, Replay
from nanopsy.rewind import Loops
from nanopsy.snapshot import State
from nanopsy.trace import Recording, Trace
from nanopsy.verify import proposed
from nanopsy.watching import bad_elements, optimizer_parameters

STRETCH = 5_000
"""Operators after which the next optimizer step begins a new recording."""
MOST = 100_000
"""Operators after which a new recording begins wherever the test is."""
KEPT = 256 << 20
"""Bytes of operands that one recording keeps."""
RUNNING = frozenset({"running_mean", "running_var"})
"""What a batch norm in training writes without its schema saying so."""

_EVERYTHING = range(1 << 40)


class _Run:
    """An operator that remembers what it returned, to tell its own exceptions from those of the bookkeeping around it."""

    __slots__ = ("func", "out", "raised", "ran")

    def __init__(self, func: Any) -> None:
        self.func, self.out, self.ran, self.raised = func, None, False, False

    @property
    def _schema(self) -> Any:
        return self.func._schema

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        self.raised = True
        self.out = self.func(*args, **kwargs)
        self.raised, self.ran = False, True
        return self.out


class Record(Trace):
    """A trace that runs for a whole test: it can look away, begin again, and never breaks what it records."""

    def __init__(self) -> None:
        super().__init__(set(), _EVERYTHING)
        self.budget = KEPT
        self.broken = ""
        """Why nothing is recorded any more."""
        self.cut = False
        """Whether a new recording began in the middle of a step: what was made before it is not known."""
        self.stepping = False
        """Whether an optimizer is writing: its arithmetic is not the test's."""
        self._away = 0

    def forget(self) -> None:
        """Begin a new recording. Values that are alive now count from here on as made earlier."""
        self.recording = Recording()
        self.budget = KEPT
        self._pins.clear()
        self._by_sequence.clear()
        self._derived.clear()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Record nothing for a while. The mode stays where it is: other modes may lie above it."""
        self._away += 1
        try:
            yield
        finally:
            self._away -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None) -> Any:
        __tracebackhide__ = True
        kwargs = kwargs or {}
        if self._away or self.stepping or self.broken or is_simulated():
            return func(*args, **kwargs)
        if types and any(map(dispatches_itself, types)):
            return NotImplemented  # the operators inside the subclass come here
        if len(self.recording.ops) >= MOST:
            self.forget()
            self.cut = True
        run, before = _Run(func), len(self.recording.ops)
        try:
            self._know_leaves(args)
            out = self.record(run, args, kwargs)
        except Exception as error:
            if run.raised or os.environ.get("NANOPSY_DEBUG"):
                raise
            self.forget()
            self.broken = f"{type(error).__name__} at {func}: {error}"
            return run.out if run.ran else func(*args, **kwargs)
        if len(self.recording.ops) > before:
            op = self.recording.ops[-1]
            op.func = func
            if op.name.endswith("batch_norm") and any(argument is True for argument in op.args):
                self._unknown(ref.storage for ref in op.inputs if ref.argument in RUNNING)
        return out

    def wrote_weights(self, parameters: Sequence[torch.Tensor]) -> None:
        """An optimizer has stepped, which is not recorded: what was known of its weights is past."""
        self.stepping = False
        self._unknown(storage_key(parameter) for parameter in parameters)

    def _unknown(self, storages: Iterable[int]) -> None:
        """What lies there has been written unseen: from here on it counts as made earlier."""
        for storage in storages:
            self.recording.writers.pop(storage, None)

    def _know_leaves(self, args: Sequence[Any]) -> None:
        """Leaves that require a gradient are the weights of a test, which are not known beforehand."""
        for value in args:
            if isinstance(value, torch.Tensor):
                if value.requires_grad and value.is_leaf:
                    self._derived.add(storage_key(value))
            elif isinstance(value, (list, tuple)):
                self._know_leaves(value)


def _is_bad(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds NaN or inf; fake and meta tensors hold nothing."""
    try:
        return bad_elements(tensor)
    except RuntimeError:
        return False


class Examination(Examiner):
    """The watch of one test: it knows no loops and rewinds nothing, it explains what the recording shows and tells ``on_incident``."""

    def __init__(self, on_incident: Callable[[Diagnosis], None]) -> None:
        super().__init__(Loops(State(registry.REGISTRY)), registry.REGISTRY, Policy("continue"))
        self.trace = Record()
        self._told = on_incident
        self._seen = 0
        self._open_backwards: list[tuple[Sequence[torch.Tensor], list[torch.Tensor]]] = []

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Neither watch nor record for a while."""
        with self.watch.paused(), self.trace.away():
            yield

    # -- listening to the watch ------------------------------------------------------------------

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.watch.backwards == self._seen:
            return  # torch.autograd.grad: its result is the test's to judge
        self._seen = self.watch.backwards
        self._open_backwards.append((roots, leaves_of(roots)))
        self.trace.backward_begins(tuple(roots))
        self.trace.stepping = False
        with self.paused():
            bad = [root for root in roots if root.numel() == 1 and _is_bad(self.watch.unscaled(root))]
        if bad:
            self._explain(What.LOSS, frame, losses=bad, leaves=self._open_backwards.pop()[1])

    def after_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        leaves: list[torch.Tensor] = []
        while self._open_backwards:
            known, leaves = self._open_backwards.pop()
            if known is roots:
                break
        if any(self.watch.is_scaled(root) for root in roots):
            return
        with self.paused():
            bad = [leaf for leaf in leaves if leaf.grad is not None and _is_bad(leaf.grad)]
        if bad:
            self._explain(What.GRADIENT, frame, losses=[root for root in roots if root.numel() == 1], leaves=leaves, gradients=bad)
        if self.trace.budget <= 0 and not self._open_backwards:
            self.trace.forget()
            self.trace.cut = True

    def closure_begins(self, optimizer: Optimizer, frame: FrameType) -> None:
        """The backward inside the closure is seen as any other."""

    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None:
        try:
            with self.trace.away():
                bad_loss, bad_gradient = self.watch.check(optimizer)
        except RuntimeError:
            return  # tensors without values
        if not (bad_loss or bad_gradient):
            self.trace.stepping = not closure
            return
        parameters = optimizer_parameters(optimizer)
        roots = [root for group in self.watch.pending for root in group]
        with self.paused():
            losses = [root for root in roots if root.numel() == 1 and _is_bad(root)] if bad_loss else []
            gradients = [parameter for parameter in parameters if parameter.grad is not None and _is_bad(parameter.grad)]
        self._explain(What.LOSS if losses else What.GRADIENT, frame, losses=losses, leaves=parameters, gradients=gradients, optimizer=optimizer)

    def after_step(self, optimizer: Optimizer) -> None:
        self.trace.wrote_weights(optimizer_parameters(optimizer))
        if len(self.trace.recording.ops) > STRETCH or self.trace.budget < KEPT // 2:
            self.trace.forget()
            self.trace.cut = False

    def scale_collapsed(self, optimizer: Optimizer, text: str, frame: FrameType) -> None:
        parameters = optimizer_parameters(optimizer)
        with self.paused():
            gradients = [parameter for parameter in parameters if parameter.grad is not None and _is_bad(parameter.grad)]
        self._explain(What.SCALE, frame, losses=[], leaves=parameters, gradients=gradients, optimizer=optimizer, detail=text)

    # -- explaining ------------------------------------------------------------------------------

    def _explain(
        self,
        what: What,
        frame: FrameType,
        *,
        losses: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor] = (),
        optimizer: Optimizer | None = None,
        detail: str = "",
    ) -> None:
        """Diagnose what the recording shows, begin a new one, and tell."""
        with self.paused():
            sites = user_frames(frame, most=1)
            values = [float(loss.detach()) for loss in losses]
            fault = Fault(what, self.watch.steps, [], values, (), optimizer, sites[0] if sites else None, backward_done=bool(gradients), detail=detail)
            detail = detail or "seen while the test ran, under the trace"
            notes = []
            try:
                findings = unplaced(fault) if self.trace.broken else self._findings(fault, leaves, losses, gradients)
                if self.trace.broken:
                    notes.append(f"recording was switched off ({self.trace.broken}); please report this")
                elif self.trace.cut and findings and findings[0].evidence.get("phase") in ("data", "weights"):
                    findings = unplaced(fault)
                    notes.append("the value was made before the present recording began: there were too many operators since the last optimizer step")
            except Exception as error:
                if os.environ.get("NANOPSY_DEBUG"):
                    raise
                findings = unplaced(fault)
                notes.append(f"the diagnosis failed ({type(error).__name__}: {error}); please report this")
        self.trace.forget()
        self.watch.pending.clear()
        self._told(Diagnosis([Incident(self.watch.steps, what, Outcome.REPRODUCED, findings, detail=detail)], self.watch.steps, notes))

    def _findings(self, fault: Fault, leaves: Sequence[torch.Tensor], losses: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> list[Finding]:
        trace = self.trace
        replay = Replay(reached=True, recording=trace.recording, loss_values=list(fault.loss_values))
        if fault.what is What.LOSS:
            replay.bad_loss = True
            replay.sinks = [trace.ref(loss) for loss in losses]
            replay.sink_tensors = [loss.detach().clone() for loss in losses]
        found = [(leaf, leaf.grad) for leaf in gradients if leaf.grad is not None and leaf.grad.layout is torch.strided]
        replay.bad_gradients = [(f"leaf {number}", leaf) for number, (leaf, _) in enumerate(found)]
        replay.gradient_sinks = [trace.ref(gradient) for _, gradient in found]
        replay.gradient_tensors = [gradient.detach().clone() for _, gradient in found]
        evidence = Evidence.gather(self, fault, replay)
        # Other tests' networks may be alive in fixtures: only what this loss depends on is evidence.
        mine = {storage_key(leaf): number for number, leaf in enumerate(leaves)}
        evidence.bad_weights = [(name, weight) for name, weight in evidence.bad_weights if storage_key(weight) in mine]
        evidence.optimizers = [entry for entry in evidence.optimizers if any(storage_key(p) in mine for p in optimizer_parameters(entry[0]))]
        for key, number in mine.items():
            evidence.story.names.setdefault(key, f"leaf {number}")  # type: ignore[attr-defined]
        return [proposed(finding, evidence, "a test is not run again with the edit") for finding in diagnose(evidence)]


@contextlib.contextmanager
def examined(on_incident: Callable[[Diagnosis], None]) -> Iterator[Examination]:
    """Watch and record the test inside the ``with`` block; ``on_incident`` is called where a bad loss or gradient is seen, and may raise there."""
    registry.install()
    load()  # the catalogue takes a moment to import, which is not the failing test's
    test = Examination(on_incident)
    test.watch.install()
    WATCHING.append(test)
    test.trace.start()
    try:
        yield test
    finally:
        test.trace.stop()
        WATCHING.remove(test)
        test.watch.remove()
