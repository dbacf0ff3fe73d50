"""A callback for Lightning; with ``NANOPSY=1`` in the environment Lightning finds it by itself."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nanopsy.stepwatch import OnIncident, StepWatch, loss_of

if TYPE_CHECKING or "pytorch_lightning" not in sys.modules or "lightning.pytorch" in sys.modules:
    from lightning.pytorch import Callback
else:
    from pytorch_lightning import Callback

__all__ = ["NanopsyCallback"]


class NanopsyCallback(Callback):
    """Stops a Lightning training at the first non-finite loss or gradient, before the optimizer writes, and says why.

    Args:
        on_incident: called with the :class:`~nanopsy.Incident`; return ``"skip"`` to drop the step and go on. None raises
            :class:`~nanopsy.NonFiniteStep`.

    ``training_step`` is called again under the trace, with the random states and buffers of the step; what it logs meanwhile is dropped.
    """

    def __init__(self, on_incident: OnIncident | None = None) -> None:
        self.watch = StepWatch(on_incident)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.watch.open(pl_module)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.watch.remember(lambda: _silently(pl_module, lambda: _step(trainer, pl_module, batch, batch_idx)))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.watch.close()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.watch.close()


def _step(trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> Any:
    """The module's own step; its loss is divided as automatic optimization divides it."""
    takes = inspect.signature(pl_module.training_step).parameters
    arguments = (batch, batch_idx) if len(takes) > 1 else (batch,)
    with trainer.precision_plugin.train_step_context():
        loss = loss_of(pl_module.training_step(*arguments))
    return loss / trainer.accumulate_grad_batches if pl_module.automatic_optimization and loss is not None else loss


def _silently(pl_module: Any, call: Callable[[], Any]) -> Any:
    """Call with the module's logging switched off: a step that is run again must not be logged again."""
    names = ("log", "log_dict")
    try:
        for name in names:
            object.__setattr__(pl_module, name, lambda *args, **kwargs: None)
        return call()
    finally:
        for name in names:
            pl_module.__dict__.pop(name, None)
