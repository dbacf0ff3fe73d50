"""The watch for a loop that belongs to somebody else: a framework calls one function for each step, and that function can be called again.

At an incident, before the optimizer writes, the step is examined as :func:`nanopsy.autopsy` examines a callable: random states and
buffers are put back to where they were at the top of the step, the function is called under the trace as far as its ``backward``, and
everything is put back again. Losses that a framework logs are not looked at: some of them leave NaN out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

from nanopsy import registry
from nanopsy._torch import Optimizer
from nanopsy.errors import NonFiniteStep
from nanopsy.findings import Diagnosis, Incident, Outcome, What
from nanopsy.library import WATCHING, Reporter, examine
from nanopsy.replay import raw
from nanopsy.rewind import Loops
from nanopsy.snapshot import RandomStates, Snapshot, State
from nanopsy.watching import optimizer_parameters

OnIncident = Callable[[Incident], Any]
"""Called before the optimizer writes; returns ``"skip"`` to drop the step, anything else to let it happen; may raise."""


class _Reached(BaseException):
    """The step came to its ``backward``."""

    def __init__(self, root: torch.Tensor) -> None:
        self.root = root
        super().__init__("nanopsy stops the step at its backward")


@contextlib.contextmanager
def _stop_at_backward() -> Iterator[None]:
    original = torch.autograd.backward

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        raise _Reached(tensors if isinstance(tensors, torch.Tensor) else tensors[0])

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


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
        self._again: Callable[[], Any] | None = None
        self._top: Snapshot | None = None
        self._drop = False

    def open(self) -> None:
        """Begin to watch."""
        self.watch.install()
        WATCHING.append(self.watch)

    def close(self) -> None:
        """Stop watching; may be called twice."""
        self._again = self._top = None
        if self.watch in WATCHING:
            WATCHING.remove(self.watch)
            self.diagnosis.steps = self.watch.steps
            self.watch.remove()

    def remember(self, again: Callable[[], Any]) -> None:
        """The top of a step: ``again`` computes its loss (or does the whole step) once more, when called with the same states."""
        self._again, self._top = again, self.loops.state.take(buffers=True)

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
        super()._open(what, roots, optimizer, frame, backward_done=backward_done, detail=detail)
        if len(self.diagnosis.incidents) == count:
            return
        incident = self.diagnosis.incidents[-1]
        self._examine(incident, losses)
        if self._on_incident is None:
            self.close()
            raise NonFiniteStep(Diagnosis([incident], self.watch.steps))
        self._drop = self._on_incident(incident) == "skip"

    def _examine(self, incident: Incident, losses: Sequence[bytes]) -> None:
        """Call the step again under the trace; a fault in that is a sentence, never the training's problem."""
        if self._again is None or self._top is None:
            return
        again, state = self._again, self.loops.state
        random, buffers = RandomStates.now(), state.buffers_now()
        gradients = [(parameter, parameter.grad) for parameter in self.registry.parameters()]
        stepped: list[bytes] = []

        def step() -> torch.Tensor:
            assert self._top is not None
            state.restore(self._top, buffers=True)
            try:
                with _stop_at_backward(), torch.enable_grad():
                    root = loss_of(again())
            except _Reached as reached:
                root = reached.root
            if not isinstance(root, torch.Tensor) or root.numel() != 1:
                raise ValueError(f"the step gave a {type(root).__name__}, no loss")
            stepped.append(raw(self.watch.unscaled(root)))
            return root

        try:
            with self.watch.paused():
                found = examine(step)
        except Exception as error:
            incident.detail += f"; it could not be examined ({type(error).__name__}: {str(error)[:200]})"
            return
        finally:
            state.put_buffers(buffers)
            random.restore()
            for parameter, gradient in gradients:
                parameter.grad = gradient
        same = bool(stepped) and all(bits in losses or not losses for bits in stepped)
        if not found.incidents:
            incident.detail += "; called again, the step was finite"
            return
        incident.replays = len(stepped)
        incident.detail = f"the step was called again, {'the loss came out bit for bit as before' if same else 'it was bad again, with another loss'}"
        if same:
            incident.outcome = Outcome.REPRODUCED
            incident.findings = found.incidents[0].findings
