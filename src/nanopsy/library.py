"""Use as a library: :func:`autopsy` of a callable that returns a loss, and :func:`watch` for one's own loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol

import torch

from nanopsy import registry
from nanopsy._torch import storage_key
from nanopsy.diagnose import Evidence, diagnose
from nanopsy.errors import NanopsyError
from nanopsy.examiner import Examiner
from nanopsy.findings import Diagnosis, Incident, Outcome, What
from nanopsy.replay import Fault, Policy, Replay
from nanopsy.rewind import Loops
from nanopsy.snapshot import State
from nanopsy.trace import Trace, interesting
from nanopsy.verify import proposed
from nanopsy.watching import bad_elements


def leaves_of(roots: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tensors that the gradient of the roots ends in."""
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    stack = [root.grad_fn for root in roots]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            found[id(variable)] = variable
        stack.extend(child for child, _ in node.next_functions)
    return list(found.values())


def _once(fn: Callable[[], torch.Tensor], trace: Trace) -> tuple[Replay, list[torch.Tensor]]:
    """Run ``fn`` and its backward under a trace; gradients that leaves had are put back."""
    replay = Replay(reached=True)
    trace.start()
    try:
        loss = fn()
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise NanopsyError(
                f"the callable returned {type(loss).__name__}{list(loss.shape) if isinstance(loss, torch.Tensor) else ''}",
                why="autopsy follows one loss and its gradient", do="return a tensor with one element",
            )  # fmt: skip
        leaves = leaves_of((loss,))
        before = [leaf.grad for leaf in leaves]
        for leaf in leaves:
            leaf.grad = None
        trace.backward_begins((loss,))
        if bad_elements(loss):
            replay.bad_loss = True
            replay.sinks.append(trace.ref(loss))
            replay.sink_tensors.append(loss.detach().clone())
        replay.loss_values.append(float(loss.detach()))
        if loss.requires_grad:
            loss.backward()
        replay.backward_ran = True
        for number, leaf in enumerate(leaves):
            if leaf.grad is not None and bad_elements(leaf.grad):
                replay.bad_gradients.append((f"leaf {number}", leaf))
                replay.gradient_sinks.append(trace.ref(leaf.grad))
                replay.gradient_tensors.append(leaf.grad.detach().clone())
        for leaf, gradient in zip(leaves, before, strict=True):
            leaf.grad = gradient
    finally:
        replay.recording = trace.stop()
    return replay, leaves


def autopsy(fn: Callable[[], torch.Tensor]) -> Diagnosis:
    """Run a callable that returns a loss, and its backward, under the trace; say what is bad and why.

    Args:
        fn: takes no arguments and returns a tensor with one element; called twice with the same random states.

    Returns:
        A :class:`~nanopsy.findings.Diagnosis`: ``str()`` for the terminal, ``to_dict()`` for machines, HTML in a notebook.
        Without a bad value it holds no incident.

    Raises:
        NanopsyError: when ``fn`` does not return a one-element tensor.

    Gradients of the leaves, random states and grad mode are as before afterwards; no optimizer runs. An open :func:`watch` looks away meanwhile.
    """
    with contextlib.ExitStack() as paused:
        for active in WATCHING:
            paused.enter_context(active.paused())
        return examine(fn)


class Pausable(Protocol):
    """A watch that can look away for a while."""

    def paused(self) -> AbstractContextManager[None]: ...


WATCHING: list[Pausable] = []
"""The watches that are open: those of ``with watch()`` blocks, and the one of the test that runs."""


def examine(fn: Callable[[], torch.Tensor], witness: Examiner | None = None) -> Diagnosis:
    """What :func:`autopsy` does, without looking after the open watches; ``witness`` is whose watch saw the steps before."""
    fresh = registry.Registry() if not registry.REGISTRY.modules else registry.REGISTRY
    loops = Loops(State(fresh))
    helper = witness or Examiner(loops, fresh, Policy())
    rng = loops.state.take(buffers=True)
    weights: set[int] = set()
    survey, leaves = _once(fn, Trace(weights))
    diagnosis = Diagnosis(steps=1)
    if not survey.bad:
        return diagnosis
    assert survey.recording is not None
    weights = {storage_key(leaf) for leaf in leaves}
    loops.state.restore(rng, buffers=True)
    wanted = interesting(survey.recording, survey.sinks or survey.gradient_sinks)
    kept, _ = _once(fn, Trace(weights, wanted))
    code = getattr(fn, "__code__", None)
    place = (code, 0) if code is not None else None
    what = What.LOSS if survey.bad_loss else What.GRADIENT
    fault = Fault(what, 0, [], survey.loss_values, (), None, place, backward_done=True)
    evidence = Evidence.gather(helper, fault, kept)
    evidence.bad_weights = [(name, weight) for name, weight in evidence.bad_weights if storage_key(weight) in weights]
    for number, leaf in enumerate(leaves):
        evidence.story.names.setdefault(storage_key(leaf), f"leaf {number}")  # type: ignore[attr-defined]
    outcome = Outcome.REPRODUCED if kept.bad == survey.bad else Outcome.FLAKY
    findings = [proposed(finding, evidence, "the callable was not run with the edit") for finding in diagnose(evidence)]
    incident = Incident(0, what, outcome, findings, detail="called twice, bad both times", replays=2)
    diagnosis.incidents.append(incident)
    return diagnosis


class Reporter(Examiner):
    """The watch in a loop that nanopsy did not compile: incidents are reported, not rewound."""

    def __init__(self, loops: Loops, on_incident: Callable[[Incident], None] | None) -> None:
        super().__init__(loops, registry.REGISTRY, Policy("continue"))
        self._callback = on_incident
        self._reported = -1

    def _open(self, what: What, roots: Any, optimizer: Any, frame: FrameType, *, backward_done: bool, detail: str = "") -> None:
        if self._reported == self.watch.backwards:
            return
        self._reported = self.watch.backwards
        values = [float(root.detach().float().sum()) for root in roots]
        text = detail or f"losses {values}"
        incident = Incident(self.watch.steps, what, Outcome.NOT_REPRODUCED, detail=f"{text}; seen in your own loop, which cannot be rewound")
        incident.weights = "the optimizer has not written this step yet"
        incident.history = [{"step": f.step, "loss": f.loss, "gradient_norm": f.gradient_norm} for f in list(self.watch.ring)[-8:]]
        self.diagnosis.incidents.append(incident)
        self.watch.pending.clear()
        if self._callback is not None:
            self._callback(incident)


@contextlib.contextmanager
def watch(on_incident: Callable[[Incident], None] | None = None) -> Iterator[Diagnosis]:
    """Watch the training loop inside the ``with`` block.

    Args:
        on_incident: called with each :class:`~nanopsy.findings.Incident` before the optimizer writes it into the
            weights; raise from it to stop the training.

    Yields:
        The :class:`~nanopsy.findings.Diagnosis` that collects the incidents. A loop that nanopsy did not compile cannot
        be rewound: for the cause, pass the step to :func:`autopsy`, or start the script with ``nanopsy run``.
    """
    registry.install()
    loops = Loops(State(registry.REGISTRY))
    reporter = Reporter(loops, on_incident)
    reporter.watch.install()
    WATCHING.append(reporter.watch)
    try:
        yield reporter.diagnosis
    finally:
        WATCHING.remove(reporter.watch)
        reporter.diagnosis.steps = reporter.watch.steps
        reporter.watch.remove()


__all__ = ["autopsy", "watch"]
