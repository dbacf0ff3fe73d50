"""Replay a capsule: its chain alone, or its full state in the place of an edited script's first step."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from nanopsy import registry
from nanopsy._torch import Optimizer
from nanopsy.capsule import format as capsule_format
from nanopsy.capsule.format import Capsule
from nanopsy.capture.execute import constants_of, loaded, run
from nanopsy.capture.state import Kept, checked, put_rounds, put_weights
from nanopsy.errors import EXIT_CANNOT, EXIT_CLEAN, EXIT_FINDINGS, NanopsyError
from nanopsy.examiner import Examiner
from nanopsy.findings import Incident, Outcome, What
from nanopsy.replay import Fault, Policy, Replay, Request
from nanopsy.rewind import Loops, Rewind, Stopped


def replay(file: str, module: str | None, command: list[str]) -> int:
    """The verb: 0 when what was bad is finite now, 3 when it is still bad, 125 when that cannot be said.

    Raises:
        NanopsyError: the capsule is refused, or holds nothing that could be replayed.
    """
    capsule = capsule_format.read(file)
    if module is None and not command:
        return _chain(capsule, file)
    return _script(capsule, file, module, command)


def _chain(capsule: Capsule, file: str) -> int:
    chain = capsule.chain
    if chain is None:
        raise NanopsyError(f"{file} holds no chain of operators", why="the cause is not a few operators that fail by themselves",
                           do=f"nanopsy report {file} tells what it is; a capsule of --capture full can be replayed with a script")  # fmt: skip
    operands = capsule_format.tensors_in(Path(file), capsule.operands) if capsule.operands else {}
    constants = constants_of(chain, operands)
    try:
        result = run(chain, constants)
    except NanopsyError:
        raise
    except Exception as error:
        raise NanopsyError(f"the chain cannot be run: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", where=file,
                           do="replay with the torch that the capsule's environment names") from None  # fmt: skip
    for step in chain.steps:
        print(f"{', '.join(step.out)} = {step.op}  {step.location}  {step.code}".rstrip())
    for name, value in result.values.items():
        shown = value.detach().reshape(-1)[:8].tolist()
        print(f"{name} = {shown[0] if value.numel() == 1 else shown}{' ...' if value.numel() > 8 else ''}")
    if result.bad:
        print(f"still bad: {', '.join(result.bad)}")
        return EXIT_FINDINGS
    print("finite now")
    return EXIT_CLEAN


class Again(Examiner):
    """Waits for the script's first training step, puts the capsule's step in its place, and looks what comes of it."""

    def __init__(self, loops: Loops, kept: Kept) -> None:
        super().__init__(loops, registry.REGISTRY, Policy())
        self.kept = kept
        self.outcome: Replay | None = None
        self.problem: NanopsyError | None = None

    def before_backward(self, roots: Sequence[torch.Tensor], frame: FrameType) -> None:
        if self.mode == "watch":
            self._put(list(roots), frame)
        super().before_backward(roots, frame)

    def before_step(self, optimizer: Optimizer, frame: FrameType, *, closure: bool = False) -> None:
        if self.mode == "watch":
            self._put([root for group in self.watch.pending for root in group], frame)
        super().before_step(optimizer, frame, closure=closure)

    def look(self, frame: FrameType, live: Any) -> None:
        if self.mode != "watch":
            super().look(frame, live)

    def body_raised(self, live: Any, error: BaseException) -> bool:
        return super().body_raised(live, error) if self.mode != "watch" else False

    def _put(self, roots: list[torch.Tensor], frame: FrameType) -> None:
        self.loops.trained(frame)
        live = self._choose_loop(frame, roots)
        try:
            if live is None:
                raise NanopsyError("the script's first training step is in no loop of its own", why="nothing can be put in the place of what a loop gives",
                                   do="replay with a script whose training loop is its own")  # fmt: skip
            put_weights(self.kept, self.registry)
            self.loops.state.forget_buffers()
            device = next((p.device for p in self.registry.parameters()), torch.device("cpu"))
            self.rounds = put_rounds(self.kept, self.loops, live.rounds(), device)
        except NanopsyError as error:
            self.problem = error
            self.mode = "done"
            self.loops.disable()
            raise Stopped from None
        self.live = live
        self.names = self.registry.names()
        self.fault = Fault(What.LOSS, 0, [], [], (), None, None, backward_done=False)
        self._plan = self._steps()
        self._launch(next(self._plan))
        raise Rewind(live)

    def _steps(self) -> Generator[Request, Replay, Incident]:
        self.outcome = yield Request()
        return Incident(0, What.LOSS, Outcome.NOT_REPRODUCED)

    def _conclude(self, incident: Incident) -> None:
        self.mode = "done"
        self.loops.disable()
        raise Stopped


def _script(capsule: Capsule, file: str, module: str | None, command: list[str]) -> int:
    from nanopsy.run import session

    content = capsule_format.read_state(file)
    tensors = {name: loaded(*entry) for name, entry in capsule_format.tensors_in(Path(file), content).items()}
    del content
    kept = checked(capsule.state, tensors)
    made: list[Again] = []

    def make(loops: Loops) -> Examiner:
        made.append(Again(loops, kept))
        return made[0]

    with warnings.catch_warnings():
        ran = session(module, command, make)
    examiner = made[0]
    if examiner.problem is not None:
        raise examiner.problem
    outcome = examiner.outcome
    step = capsule.diagnosis.incidents[0].step if capsule.diagnosis.incidents else kept.entry.get("step")
    if outcome is None:
        say = "it ended before its first training step" if ran.status is not None else "the step was interrupted"
        print(f"nanopsy: step {step} could not be put in the place of the script's own: {say}", file=sys.stderr)
        return EXIT_CANNOT
    losses = ", ".join(f"{value:g}" for value in outcome.loss_values) or "none"
    if outcome.bad:
        what = f"loss {losses}" if outcome.bad_loss else f"loss {losses}, bad gradients in {', '.join(name for name, _ in outcome.bad_gradients[:3])}"
        print(f"nanopsy: step {step} is still bad: {what}", file=sys.stderr)
        return EXIT_FINDINGS
    if outcome.error is not None:
        print(f"nanopsy: step {step} raises {type(outcome.error).__name__}: {outcome.error}", file=sys.stderr)
        return EXIT_CANNOT
    if not outcome.loss_values and not outcome.backward_ran:
        print(f"nanopsy: step {step} came to no loss and no gradient", file=sys.stderr)
        return EXIT_CANNOT
    print(f"nanopsy: step {step} is finite now: loss {losses}, all gradients finite", file=sys.stderr)
    return EXIT_CLEAN
