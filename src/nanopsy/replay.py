"""The nouns of an autopsy: the fault as the watch saw it, one replay that is wanted, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch

from nanopsy._torch import Optimizer, local, storage_key
from nanopsy.findings import Finding, Incident, What
from nanopsy.registry import Site
from nanopsy.trace import Recording, Ref, Trace
from nanopsy.verify import Patch
from nanopsy.watching import bad_elements

if TYPE_CHECKING:
    from nanopsy.diagnose import Evidence
    from nanopsy.examiner import Examiner


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user asked for."""

    on_incident: str = "stop"
    mute: bool = False
    verify: bool = True


class Keeper(Protocol):
    """Who keeps what an autopsy found."""

    def examined(self, evidence: Evidence, findings: list[Finding]) -> None:
        """The diagnosis is made and the recording still in memory."""

    def concluded(self, examiner: Examiner, incident: Incident) -> None:
        """The incident is over, and it is not one that was seen before."""


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

    def note_roots(self, roots: Sequence[tuple[torch.Tensor, torch.Tensor]], trace: Trace | None) -> None:
        """The losses of a backward pass, each with what it was before a GradScaler multiplied it."""
        for root, plain in roots:
            if plain.numel() <= 64:
                self.losses.append(raw(plain))
            if plain.numel() == 1:
                self.loss_values.append(float(plain.detach().float().sum()))
            if bad_elements(plain):
                self.bad_loss = True
                if trace is not None:
                    self.sinks.append(trace.ref(root))
                self.sink_tensors.append(root.detach().clone())

    def note_gradients(self, parameters: Sequence[torch.Tensor], names: Mapping[int, str], trace: Trace | None) -> None:
        """The bad gradients of parameters, each once."""
        for parameter in parameters:
            gradient = parameter.grad
            if gradient is None or any(parameter is known for _, known in self.bad_gradients) or not bad_elements(gradient):
                continue
            self.bad_gradients.append((names.get(storage_key(parameter), "?"), parameter))
            if trace is not None and gradient.layout is torch.strided:
                self.gradient_sinks.append(trace.ref(gradient))
                self.gradient_tensors.append(local(gradient.detach()).clone())

    def same_as(self, fault: Fault) -> bool:
        """Bad again, with the losses bit for bit as before."""
        if not self.bad:
            return False
        if not fault.losses:
            return True
        count = min(len(self.losses), len(fault.losses))
        return count > 0 and (self.losses[:count] == fault.losses[:count] or self.losses[-len(fault.losses) :] == fault.losses)


def raw(tensor: torch.Tensor) -> bytes:
    """The bits of a tensor, in the order of its elements."""
    tensor = local(tensor.detach())
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.reshape(-1))
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
