"""A callback for Transformers' Trainer."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from nanopsy.stepwatch import OnIncident, StepWatch

__all__ = ["NanopsyCallback"]


class NanopsyCallback(TrainerCallback):
    """Stops a Trainer at the first non-finite loss or gradient, before the optimizer writes, and says why.

    Args:
        on_incident: called with the :class:`~nanopsy.Incident`; return ``"skip"`` to drop the step and go on. None raises
            :class:`~nanopsy.NonFiniteStep`.

    The losses that the Trainer logs are not trusted: ``logging_nan_inf_filter`` (the default) leaves NaN out of them. ``compute_loss`` is
    called again under the trace, with the random states and buffers of the step.
    """

    def __init__(self, on_incident: OnIncident | None = None) -> None:
        self.watch = StepWatch(on_incident)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainer = _trainer(sys._getframe(1))
        self.watch.open(*filter(None, [kwargs.get("model")]))
        if trainer is None:
            return
        step = trainer.training_step

        def training_step(model: Any, inputs: Any, *rest: Any, **named: Any) -> Any:
            items = rest[0] if rest else named.get("num_items_in_batch")
            self.watch.remember(lambda: _loss(trainer, model, inputs, items))
            try:
                return step(model, inputs, *rest, **named)
            except BaseException:
                self.watch.close()
                raise

        trainer.training_step = training_step
        self.watch.closing = lambda: trainer.__dict__.pop("training_step", None)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.watch.close()


def _loss(trainer: Any, model: Any, inputs: Any, items: Any) -> Any:
    """The Trainer's own loss of one batch; the batch is not changed by it."""
    inputs = trainer._prepare_inputs(dict(inputs))
    with trainer.compute_loss_context_manager():
        return trainer.compute_loss(model, inputs, num_items_in_batch=items)


def _trainer(frame: FrameType | None) -> Any:
    """The Trainer on the stack: callbacks are not given it."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        if hasattr(owner, "compute_loss") and hasattr(owner, "training_step"):
            return owner
        frame = frame.f_back
    return None
