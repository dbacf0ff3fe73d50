"""The watch for a loop that belongs to somebody else: a framework calls one function for each step, and that function can be called again.

At an incident, before the optimizer writes, the step is examined as :func:`nanopsy.autopsy` examines a callable: random states and
buffers are put back to where they were at the top of the step, the function is called under the trace as far as its ``backward``, and
everything is put back again. Losses that a framework logs are not looked at: some of them leave NaN out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from nanopsy import registry
from nanopsy._torch import Optimizer, register_optimizer_step_pre_hook
from nanopsy.errors import NonFiniteStep
from nanopsy.findings import Diagnosis, Incident, Outcome, What
from nanopsy.library import WATCHING, Reporter, examine
from nanopsy.replay import raw
from nanopsy.rewind import Loops
from nanopsy.snapshot import RandomStates, Snapshot, State
from nanopsy.watching import bad_elements, optimizer_parameters

_MOST_CALLS = 16
"""Calls of the step function that are remembered within one optimizer step."""

OnIncident = Callable[[Incident], Any]
"""Called before the optimizer writes; returns ``"skip"`` to drop the step, anything else to let it happen; may raise."""


class _Reached(BaseException):
    """The step came to the ``backward`` that is asked for."""

    def __init__(self, root: torch.Tensor) -> None:
        self.root = root
        super().__init__("nanopsy stops the step at its backward")


@contextlib.contextmanager
def _stopped_at_backward(number: int) -> Iterator[None]:
    """Raise at the ``backward`` of this number, from 0; optimizers on the way have stepped already, and do not step again."""
    original, seen = torch.autograd.backward, 0

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal seen
        if seen == number:
            raise _Reached(tensors if isinstance(tensors, torch.Tensor) else tensors[0])
        seen += 1
        original(tensors, *args, **kwargs)

    def without_gradients(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in optimizer_parameters(optimizer):
            parameter.grad = None

    suppressed = register_optimizer_step_pre_hook(without_gradients)
    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original
        suppressed.remove()


@contextlib.contextmanager
def _attributes_kept(modules: Iterable[torch.nn.Module]) -> Iterator[None]:
    """Put plain attributes and tensors of modules, and the lengths of their lists, back afterwards: counters, running sums."""
    held = [(module, {k: v for k, v in vars(module).items() if isinstance(v, (int, float, str, bool, tuple, type(None), torch.Tensor))}) for module in modules]
    lengths = [(value, len(value)) for module, _ in held for value in vars(module).values() if type(value) is list]
    try:
        yield
    finally:
        for module, values in held:
            vars(module).update(values)
        for entries, length in lengths:
            del entries[length:]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a framework's step function: how to make it again, the states at its top, and how many backward passes came before."""

    again: Callable[[], Any]
    top: Snapshot
    backwards: int


def loss_of(result: Any) -> Any:
    """The loss in what a step function returned: a tensor, or ``loss`` of a mapping or an output object, or the first of a tuple."""
    if isinstance(result, Mapping):
        return result.get("loss")
    if isinstance(result, (tuple, list)) and result:
        return loss_of(result[0])
    return result if isinstance(result, torch.Tensor) else getattr(result, "loss", None)


class StepWatch(Reporter):
    """Watches the optimizers of this process; :meth:`remember` at the top of each step says how that step is computed.

    Args:
        on_incident: see :data:`OnIncident`; None raises :class:`~nanopsy.NonFiniteStep`, which stops the training with clean weights.
    """

    def __init__(self, on_incident: OnIncident | None = None) -> None:
        registry.install()
        super().__init__(Loops(State(registry.REGISTRY)), None)
        self._on_incident = on_incident
        self._calls: list[Call] = []
        self._new_window = self._drop = False
        self.closing: Callable[[], None] = lambda: None
        """Called when the watch is closed: what else there is to take away."""

    def open(self, *modules: torch.nn.Module) -> None:
        """Begin to watch; ``modules`` may have been made before this watch was."""
        self.registry.adopt(modules)
        self.watch.install()
        WATCHING.append(self.watch)

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._calls.clear()
        if self.watch in WATCHING:
            WATCHING.remove(self.watch)
            self.diagnosis.steps = self.watch.steps
            self.watch.remove()
            self.closing()

    def remember(self, again: Callable[[], Any]) -> None:
        """The top of a step: ``again`` computes its loss (or does the whole step) once more, when called with the same states."""
        if self._new_window:
            self._calls.clear()
            self._new_window = False
        del self._calls[1:-_MOST_CALLS]
        self._calls.append(Call(again, self.loops.state.take(buffers=not self._calls), self.watch.backwards))

    def after_step(self, optimizer: Optimizer) -> None:
        """What came before a step is in the weights: only the call that is under way may still be asked for."""
        super().after_step(optimizer)
        del self._calls[:-1]
        self._new_window = True

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        """The step waits until its backward is through: calling it again writes buffers that the graph may still need."""

    def step_skipped(self, optimizer: Optimizer, frame: FrameType) -> None:
        """A GradScaler skipped the step; with a bad loss that was not for its scale."""
        if self.watch.pending_losses_bad():
            self._open(What.LOSS, [root for group in self.watch.pending for root in group], optimizer, frame, backward_done=True)
            self._drop = False

    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None:
        super().before_step(optimizer, frame, closure=closure)
        if self._drop:
            self._drop = False
            for parameter in optimizer_parameters(optimizer):
                parameter.grad = None

    def _open(self, what: What, roots: Any, optimizer: Any, frame: FrameType, *, backward_done: bool, detail: str = "") -> None:
        count = len(self.diagnosis.incidents)
        losses = [raw(self.watch.unscaled(root)) for root in roots if root.numel() == 1]
        suspects = self._suspects()
        self.registry.adopt(optimizers=[optimizer] if optimizer is not None else [])
        super()._open(what, roots, optimizer, frame, backward_done=backward_done, detail=detail)
        if len(self.diagnosis.incidents) == count:
            return
        incident = self.diagnosis.incidents[-1]
        self._examine(incident, losses, suspects)
        if self._on_incident is None:
            self.loops.state.put_shadows()
            self.close()
            raise NonFiniteStep(Diagnosis([incident], self.watch.steps))
        self._drop = self._on_incident(incident) == "skip"
        if self._drop:
            self.loops.state.put_shadows()

    def _suspects(self) -> list[tuple[Call, int]]:
        """The calls to make again, each with the number of its backward to stop at: that of a bad loss, else all of them, the last first."""
        passes = list(self.watch.pending)
        first = self.watch.backwards - len(passes)
        bad = [first + number for number, roots in enumerate(passes) if any(bad_elements(self.watch.unscaled(root)) for root in roots)]
        found: list[tuple[Call, int]] = []
        for index in bad[:1] or range(self.watch.backwards - 1, first - 1, -1):
            call = next((call for call in reversed(self._calls) if call.backwards <= index), None)
            if call is not None:
                found.append((call, index - call.backwards))
        return found[:_MOST_CALLS]

    def _examine(self, incident: Incident, losses: Sequence[bytes], suspects: Sequence[tuple[Call, int]]) -> None:
        """Call the step again under the trace; a fault in that is a sentence, never the training's problem."""
        state = self.loops.state
        random, buffers = RandomStates.now(), state.buffers_now()
        gradients = [(parameter, parameter.grad) for parameter in self.registry.parameters()]
        try:
            with _attributes_kept(list(self.registry.modules)):
                for call, number in suspects:
                    if self._explained(incident, losses, call, number):
                        return
        except Exception as error:
            incident.detail += f"; it could not be examined ({type(error).__name__}: {str(error)[:200]})"
        finally:
            state.put_buffers(buffers)
            random.restore()
            for parameter, gradient in gradients:
                parameter.grad = gradient

    def _explained(self, incident: Incident, losses: Sequence[bytes], call: Call, number: int) -> bool:
        """Whether a call, made again, is bad again; with the same loss, the incident then says why."""
        stepped: list[bytes] = []

        def step() -> torch.Tensor:
            self.loops.state.restore(call.top, buffers=True)
            try:
                with _stopped_at_backward(number), torch.enable_grad():
                    root = loss_of(call.again())
            except _Reached as reached:
                root = reached.root
            if not isinstance(root, torch.Tensor) or root.numel() != 1:
                raise ValueError(f"the step gave a {type(root).__name__}, no loss")
            stepped.append(raw(self.watch.unscaled(root)))
            return root

        with self.watch.paused():
            found = examine(step, self)
        if not found.incidents:
            if "called again" not in incident.detail:
                incident.detail += "; called again, the step was finite"
            return False
        same = bool(losses) and all(bits in losses for bits in stepped)
        incident.replays = len(stepped)
        incident.detail = f"the step was called again, {'the loss came out bit for bit as before' if same else 'it was bad again, with another loss'}"
        if same:
            incident.outcome = Outcome.REPRODUCED
            incident.findings = found.incidents[0].findings
        return True
