"""Optimizers that are given a closure move weights inside ``step``: what they were before it, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nanopsy._torch import Optimizer, local
from nanopsy.watching import optimizer_parameters


@dataclass(frozen=True, slots=True)
class BeforeClosure:
    """Weights and state of an optimizer before ``optimizer.step(closure)``."""

    optimizer: Optimizer
    values: list[torch.Tensor]
    state: dict[Any, dict[str, Any]]

    @classmethod
    def of(cls, optimizer: Optimizer) -> BeforeClosure:
        """Copies of what the step may change."""
        values = [local(parameter.detach()).clone() for parameter in optimizer_parameters(optimizer)]
        return cls(optimizer, values, {key: {name: _copy(value) for name, value in entry.items()} for key, entry in optimizer.state.items()})

    def put_back(self) -> None:
        """As if the step had not begun."""
        with torch.no_grad():
            for parameter, value in zip(optimizer_parameters(self.optimizer), self.values, strict=True):
                local(parameter.detach()).copy_(value)
        self.optimizer.state.clear()
        self.optimizer.state.update({key: {name: _copy(value) for name, value in entry.items()} for key, entry in self.state.items()})

    def growth(self, weights: Sequence[torch.Tensor]) -> float | None:
        """How much the norm of the weights has grown since; None without weights."""
        if not weights:
            return None
        before = float(torch.linalg.vector_norm(torch.stack([value.float().norm() for value in self.values])))
        now = float(torch.linalg.vector_norm(torch.stack([weight.float().norm() for weight in weights])))
        return now / before if before > 0 else None


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return [_copy(entry) for entry in value] if isinstance(value, list) else value
