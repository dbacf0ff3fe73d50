"""A watch for loops that use Accelerate."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from nanopsy.findings import Diagnosis
from nanopsy.stepwatch import OnIncident, StepWatch

__all__ = ["watch"]


@contextlib.contextmanager
def watch(accelerator: Any, *, on_incident: OnIncident | None = None, step: Callable[[Any], Any] | None = None) -> Iterator[StepOf]:
    """Watch the training loop inside the ``with`` block.

    Args:
        accelerator: the ``Accelerator`` of the loop; its precision is used when a step is called again.
        on_incident: called with the :class:`~nanopsy.Incident` before the optimizer writes; return ``"skip"`` to drop the step and go on.
            None raises :class:`~nanopsy.NonFiniteStep`.
        step: computes the loss of a batch. The loop is yours, so it cannot be run again; this function can.

    Yields:
        What to call with each batch in the place of ``step``; its ``diagnosis`` collects the incidents. Without ``step`` incidents
        have facts and no cause: start the script with ``nanopsy run`` for that.
    """
    watching = StepWatch(on_incident)
    watching.open(*accelerator._models)
    try:
        yield StepOf(watching, accelerator, step)
    finally:
        watching.close()


class StepOf:
    """Calls the step function, and remembers how."""

    def __init__(self, watching: StepWatch, accelerator: Any, step: Callable[[Any], Any] | None) -> None:
        self._watching, self._accelerator, self._step = watching, accelerator, step

    @property
    def diagnosis(self) -> Diagnosis:
        return self._watching.diagnosis

    def __call__(self, batch: Any) -> Any:
        step, accelerator = self._step, self._accelerator
        if step is None:
            raise TypeError("watch(accelerator) was given no step function to call")

        def again() -> Any:
            with accelerator.autocast():
                return step(batch)

        self._watching.remember(again)
        return again()
