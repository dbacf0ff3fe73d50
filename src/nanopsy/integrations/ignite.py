"""A watch for Ignite's engines."""

from __future__ import annotations

from typing import Any

import torch
from ignite.engine import Engine, Events

from nanopsy.findings import Diagnosis
from nanopsy.stepwatch import OnIncident, StepWatch

__all__ = ["attach"]


def attach(engine: Engine, model: torch.nn.Module | None = None, *, on_incident: OnIncident | None = None) -> Diagnosis:
    """Stop an engine at the first non-finite loss or gradient, before the optimizer writes, and say why.

    Args:
        engine: the trainer; its process function is called again under the trace, as far as its ``backward``.
        model: what it trains; its buffers are put back, and its weights named.
        on_incident: called with the :class:`~nanopsy.Incident`; return ``"skip"`` to drop the step and go on. None raises
            :class:`~nanopsy.NonFiniteStep`.

    Returns:
        The :class:`~nanopsy.Diagnosis` that collects the incidents.
    """
    watching = StepWatch(on_incident)

    @engine.on(Events.STARTED)
    def begin(engine: Engine) -> None:
        watching.open(*([model] if model is not None else []))

    step = engine._process_function

    def process(engine: Engine, batch: Any) -> Any:
        watching.remember(lambda: step(engine, batch))
        try:
            return step(engine, batch)
        except BaseException:
            watching.close()
            raise

    engine._process_function = process

    @engine.on(Events.COMPLETED | Events.TERMINATE | Events.INTERRUPT)
    def end(engine: Engine) -> None:
        watching.close()

    return watching.diagnosis
