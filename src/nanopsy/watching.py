"""The cheap in-training check, and the ring of facts about recent steps.

One global optimizer pre-step hook looks at every gradient with one fused call and at the losses that ``backward``
was called on: at most one host synchronisation per optimizer step. What it sees goes to a *listener* (the autopsy
under ``nanopsy run``, a callback under :func:`nanopsy.watch`).
"""

from __future__ import annotations

import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from types import FrameType
from typing import Any, Protocol

import torch

from nanopsy._torch import Optimizer, foreach_norm, is_simulated, local, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

RING = 64
"""How many recent steps are remembered."""
SKIPS_IN_A_ROW = 10
"""Steps that a GradScaler may skip in a row before that is an incident."""
SCALE_FLOOR = 2.0**-6
"""A GradScaler below this scale has collapsed."""


@dataclass(frozen=True, slots=True)
class StepFacts:
    """One optimizer step as the watch saw it."""

    step: int
    loss: float
    gradient_norm: float
    lr: float
    weight_norm: float | None = None


class Listener(Protocol):
    """What the watch reports to."""

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None: ...
    def after_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None: ...
    def closure_begins(self, optimizer: Optimizer, frame: FrameType) -> None: ...
    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None: ...
    def after_step(self, optimizer: Optimizer) -> None: ...
    def step_skipped(self, optimizer: Optimizer, frame: FrameType) -> None: ...
    def scale_collapsed(self, optimizer: Optimizer, text: str, frame: FrameType) -> None: ...


def bad_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds NaN or inf; exact, whatever its magnitude."""
    tensor = local(tensor.detach())
    if tensor.is_sparse:
        tensor = tensor.coalesce().values()
    if tensor.numel() == 0 or not (tensor.is_floating_point() or tensor.is_complex()):
        return False
    return not bool(torch.isfinite(tensor).all())


def gradients(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """The dense gradients (values of sparse ones) of parameters that have one."""
    found = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        gradient = local(parameter.grad.detach())
        if gradient.numel() == 0:
            continue
        found.append(gradient.coalesce().values() if gradient.is_sparse else gradient)
    return found


def total_norm(tensors: Sequence[torch.Tensor], extra: Sequence[torch.Tensor] = ()) -> tuple[float, list[float]]:
    """The 2-norm over all tensors, and the values of the ``extra`` scalars, in one host synchronisation."""
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    norms = [torch.stack(foreach_norm(group)) for group in groups.values()]
    scalars = [scalar.detach() for scalar in extra]
    if all(part.device.type == "cpu" for part in (*norms, *scalars)):
        squares = [value * value for part in norms for value in part.tolist()]
        return math.sqrt(math.fsum(squares) if all(map(math.isfinite, squares)) else sum(squares)), [float(scalar.sum()) for scalar in scalars]
    device = norms[0].device if norms else scalars[0].device
    parts = [torch.linalg.vector_norm(part.float()).reshape(1).to(device) for part in norms]
    parts += [scalar.float().sum().reshape(1).to(device) for scalar in scalars]
    values = torch.cat(parts).tolist()
    return math.sqrt(sum(value * value for value in values[: len(norms)])), values[len(norms) :]


def optimizer_parameters(optimizer: Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@dataclass(slots=True)
class Watch:
    """Hooks of one watched run; :meth:`install` before the script starts, :meth:`remove` at its end."""

    listener: Listener
    ring: deque[StepFacts] = field(default_factory=lambda: deque(maxlen=RING))
    weights: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=RING))
    steps: int = 0
    steps_of: dict[int, int] = field(default_factory=dict)
    pending: deque[Sequence[torch.Tensor]] = field(default_factory=lambda: deque(maxlen=16))
    """The losses of the backward passes since the last optimizer step."""
    backwards: int = 0
    scaler_skips: int = 0
    scaler_skips_in_a_row: int = 0
    recording: bool = True
    """False during replays: nothing enters the ring."""
    last_norm: float = 0.0
    last_loss: float = math.nan
    _thread: int = field(default_factory=threading.get_ident)
    _undo: list[Callable[[], None]] = field(default_factory=list)
    _unscaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = field(default_factory=list)
    _busy: bool = False

    def install(self) -> None:
        """Register the hooks; :meth:`remove` takes them away again."""
        if self._undo:
            return
        self._undo.append(register_optimizer_step_pre_hook(self._before_step).remove)
        self._undo.append(register_optimizer_step_post_hook(self._after_step).remove)
        self._replace(torch.autograd, "backward", self._backward)
        self._replace(torch.autograd, "grad", self._grad)
        self._replace(torch.amp.GradScaler, "scale", self._scale)
        self._replace(torch.amp.GradScaler, "step", self._scaler_step)

    def remove(self) -> None:
        """Take the hooks away and forget the pending losses."""
        while self._undo:
            self._undo.pop()()
        self.pending.clear()
        self._unscaled.clear()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """See nothing for a while: what runs inside is an examination, not the training."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before

    def _away(self) -> bool:
        """Whether what happens is not the training: our own examination, another thread, a compiler that traces with fake tensors."""
        return self._busy or threading.get_ident() != self._thread or is_simulated()

    def _replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, wraps(original)(make(original)))
        self._undo.append(lambda: setattr(owner, name, original))

    # -- wrapped torch functions -----------------------------------------------------------------

    def _backward(self, original: Any) -> Any:
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if self._away():
                original(tensors, *args, **kwargs)
                return
            frame = sys._getframe(1)
            roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            self.backwards += 1
            self.pending.append(roots)
            self.listener.before_backward(roots, frame)
            original(tensors, *args, **kwargs)
            self.listener.after_backward(roots, frame)

        return backward

    def _grad(self, original: Any) -> Any:
        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._away() and not kwargs.get("create_graph"):
                roots = (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)
                if all(isinstance(root, torch.Tensor) and root.numel() == 1 for root in roots):
                    self.pending.append(roots)
                    self.listener.before_backward(roots, sys._getframe(1))
            return original(outputs, *args, **kwargs)

        return grad

    def _scale(self, original: Any) -> Any:
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = original(scaler, outputs)
            if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
                self._unscaled = [(weakref.ref(scaled), outputs.detach()), *self._unscaled[:3]]
            return scaled

        return scale

    def unscaled(self, root: torch.Tensor) -> torch.Tensor:
        """The loss before a GradScaler multiplied it."""
        for scaled, plain in self._unscaled:
            if scaled() is root:
                return plain
        return root.detach()

    def is_scaled(self, root: torch.Tensor) -> bool:
        """Whether a loss came out of a GradScaler: gradients of such a loss may overflow while the scale is being found."""
        return any(scaled() is root for scaled, _ in self._unscaled)

    def _scaler_step(self, original: Any) -> Any:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = self.steps_of.get(id(optimizer), 0)
            result = original(scaler, optimizer, *args, **kwargs)
            if self.steps_of.get(id(optimizer), 0) != before or not scaler.is_enabled():
                self.scaler_skips_in_a_row = 0
                return result
            self.scaler_skips += 1
            self.scaler_skips_in_a_row += 1
            self.listener.step_skipped(optimizer, sys._getframe(1))
            self.pending.clear()
            self.listener.after_step(optimizer)
            current = scaler.get_scale()
            if self.scaler_skips_in_a_row >= SKIPS_IN_A_ROW or current < SCALE_FLOOR:
                text = f"GradScaler skipped {self.scaler_skips_in_a_row} steps in a row, its scale is down to {current:g}"
                self.listener.scale_collapsed(optimizer, text, sys._getframe(1))
            return result

        return step

    # -- optimizer hooks -------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._away():
            return None
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        frame = sys._getframe(1)
        if closure is None:
            self.listener.before_step(optimizer, frame)
            return None
        self.listener.closure_begins(optimizer, frame)

        @wraps(closure)
        def watched() -> Any:
            result = closure()
            self.listener.before_step(optimizer, frame, closure=True)
            self.pending.clear()
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": watched}
        return (args[0], watched, *args[2:]), kwargs

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._away():
            return
        self.pending.clear()
        self.steps_of[id(optimizer)] = self.steps_of.get(id(optimizer), 0) + 1
        self.listener.after_step(optimizer)
        if not self.recording:
            return
        self.steps += 1
        weight_norm = None
        if self.steps & (self.steps - 1) == 0:
            with torch.no_grad():
                weight_norm, _ = total_norm([local(p.detach()) for p in optimizer_parameters(optimizer) if p.is_floating_point() and local(p).numel()])
            self.weights.append((self.steps, weight_norm))
        lr = optimizer.param_groups[0].get("lr", math.nan) if optimizer.param_groups else math.nan
        self.ring.append(StepFacts(self.steps - 1, self.last_loss, self.last_norm, float(lr), weight_norm))

    # -- the check -------------------------------------------------------------------------------

    def check(self, optimizer: Optimizer) -> tuple[bool, bool]:
        """Whether the pending losses, and whether the gradients of an optimizer, are bad."""
        self._busy = True
        try:
            with torch.no_grad():
                losses = [self.unscaled(root) for roots in self.pending for root in roots if root.is_floating_point() and not root.is_sparse]
                grads = gradients(optimizer_parameters(optimizer))
                norm, values = total_norm(grads, losses)
                self.last_norm = norm
                self.last_loss = values[-1] if values else math.nan
                bad_loss = any(not math.isfinite(value) for value in values) and any(bad_elements(loss) for loss in losses)
                bad_gradient = not math.isfinite(norm) and any(bad_elements(gradient) for gradient in grads)
                return bad_loss, bad_gradient
        finally:
            self._busy = False

    def pending_losses_bad(self) -> bool:
        """Whether a loss since the last step is bad, wherever it lies."""
        return any(bad_elements(self.unscaled(root)) for roots in self.pending for root in roots)

    def host_losses_bad(self, roots: Sequence[torch.Tensor]) -> bool:
        """Whether a loss that already lies in host memory is bad; device losses wait for the step."""
        for root in roots:
            if root.device.type != "cpu" or root.numel() != 1 or not root.is_floating_point():
                continue
            if not math.isfinite(root.item()) and bad_elements(self.unscaled(root)):
                return True
        return False
