"""Make the user's own loop run the failing step again.

The compiled user code (:mod:`nanopsy.instrument`) asks a :class:`Loops` object for every item of every loop. While
all is well it hands items on and, at the top of each round of a loop that trains, keeps what running the round
again would need: random states, buffers, the item, the loop's local names. After an incident the same object
yields the old items again, as often as the autopsy wants, and the user's own code recomputes the failing step.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

from nanopsy._torch import sequence_number
from nanopsy.instrument import ALL_LOOPS, NO_LOOP
from nanopsy.snapshot import FrameState, RandomStates, Snapshot, State

_SLOW = 0.002
"""Seconds a round must last before an undecided loop is worth a snapshot."""
_IDLE_ROUNDS = 64
_MOST_ROUNDS = 64
_MOST_DRAWS = 256
_MOST_STEPS = 256


class Rewind(BaseException):
    """Unwinds the loop body to the loop that shall go round again; never seen by the user."""

    def __init__(self, live: Live) -> None:
        self.live = live
        super().__init__("nanopsy goes round again")


class Stopped(BaseException):
    """Ends the script after an autopsy under ``--on-incident stop``."""


class Controller(Protocol):
    """What the loops need of the controller."""

    def body_raised(self, live: Live, error: BaseException) -> bool: ...
    def body_ended(self, live: Live) -> None: ...
    def look(self, frame: FrameType, live: Live | None) -> None: ...
    def left(self, live: Live) -> None: ...


@dataclass(slots=True)
class Place:
    """What is known of one loop in the source, over all its runs."""

    trains: bool = False
    passive: bool = False
    rounds: int = 0
    seconds: float = 0.0
    began: float = 0.0


@dataclass(slots=True)
class Round:
    """One time round a loop: its item, and the state at its top."""

    item: Any
    snapshot: Snapshot | None
    frame: FrameState | None
    sequence: int
    steps: int
    drawn: int = 0
    """How many ``next(…)`` had been drawn when the round began."""
    backwards: int = 0
    number: int = 0
    depth: int = 0
    """How many ``next(…)`` were under way when the round began: a framework's loop may itself be a generator that is drawn from."""


@dataclass(frozen=True, slots=True)
class Draw:
    """One ``next(…)``: its item, and the random states after it (drawing may have used them)."""

    number: int
    item: Any
    random: RandomStates
    depth: int = 0


class Live:
    """One run of one loop: an iterator that can yield its last items again."""

    __slots__ = ("code_name", "file", "frame_id", "iterator", "line", "loops", "passed", "place", "round", "site", "window")

    def __init__(self, loops: Loops, site: int, frame: FrameType, place: Place, iterator: Iterator[Any] | None) -> None:
        self.loops, self.site, self.place, self.iterator = loops, site, place, iterator
        self.frame_id = id(frame)
        self.file = frame.f_code.co_filename
        self.code_name, self.line = frame.f_code.co_qualname, frame.f_lineno
        self.round: Round | None = None
        self.window: list[Round] = []
        self.passed = 0

    def __iter__(self) -> Live:
        return self

    def __next__(self) -> Any:
        loops = self.loops
        if loops.replaying is not None and loops.replaying.live is self:
            return loops.replaying.next_round(sys._getframe(1)).item
        assert self.iterator is not None
        if self.place.passive:
            return next(self.iterator)
        self.turn()
        item = next(self.iterator)
        self.begin(item, sys._getframe(1))
        return item

    def turn(self) -> None:
        """Close the last round: keep it if its gradients are still to be used by an optimizer."""
        last = self.round
        if last is None:
            return
        if last.snapshot is not None and last.backwards and last.steps == self.loops.steps:
            self.window.append(last)
            if len(self.window) > _MOST_ROUNDS:
                self.window.pop(0)
        else:
            self.window.clear()
        self.round = None

    def begin(self, item: Any, frame: FrameType) -> None:
        """Open a round; keep the state at its top if this loop trains or may turn out to."""
        place, now = self.place, time.perf_counter()
        lasted = now - place.began if place.began else 0.0
        place.began = now
        place.rounds += 1
        self.passed += 1
        place.seconds += lasted
        if not place.trains and place.rounds > _IDLE_ROUNDS and place.seconds / place.rounds < _SLOW / 2:
            place.passive = True
            return
        snapshot = kept = None
        if place.trains or place.rounds <= 3 or lasted > _SLOW:
            snapshot = self.loops.state.take(buffers=not self.window)
            kept = FrameState.of(frame)
        if place.trains and not self.window:
            self.loops.draws.clear()
        drawn = self.loops.drawn
        self.round = Round(item, snapshot, kept, sequence_number(), self.loops.steps, drawn, number=self.passed, depth=self.loops.drawing)

    def rounds(self) -> list[Round]:
        """The rounds since the last optimizer step, oldest first; empty if one cannot be run again."""
        rounds = [*self.window, *([self.round] if self.round else [])]
        return rounds if rounds and all(round_.snapshot is not None for round_ in rounds) else []


@dataclass(slots=True)
class Replaying:
    """A replay in progress: which loop, which of its rounds come again, and which is next."""

    live: Live
    rounds: list[Round]
    ended: Callable[[], None]
    position: int = 0
    body: Callable[[FrameType, Any], None] | None = None
    """An edited loop body to run instead of the loop's own."""

    def next_round(self, frame: FrameType) -> Round:
        """Called at the top of the loop: put the state back and give the round to run again."""
        loops = self.live.loops
        while True:
            replaying = loops.replaying
            assert replaying is not None
            if replaying.position >= len(replaying.rounds):
                replaying.ended()
                if loops.replaying is None:
                    return self._resume(frame)
                continue
            again = replaying.rounds[replaying.position]
            assert again.snapshot is not None
            loops.state.restore(again.snapshot, buffers=replaying.position == 0)
            if replaying.position == 0 and again.frame is not None:
                again.frame.restore(frame)
            loops.queue = [draw for draw in loops.draws if draw.number >= again.drawn and draw.depth == again.depth]
            loops.replayed_depth = again.depth
            replaying.position += 1
            if replaying.body is None:
                return again
            self._run_body(replaying.body, frame, again.item)

    def _resume(self, frame: FrameType) -> Round:
        """Nothing is replayed any more: the loop's own next round."""
        live = self.live
        live.turn()
        live.begin(next(live.iterator) if live.iterator is not None else None, frame)
        return live.round or Round(None, None, None, 0, 0)

    def _run_body(self, body: Callable[[FrameType, Any], None], frame: FrameType, item: Any) -> None:
        controller = self.live.loops.controller
        try:
            body(frame, item)
        except (Rewind, Stopped) as signal:
            if isinstance(signal, Stopped):
                raise
        except Exception as error:
            if controller is None or not controller.body_raised(self.live, error):
                raise


class Loops:
    """The hooks that compiled user code calls; ``controller`` decides what happens at an incident."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.active = True
        self.thread = threading.get_ident()
        self.places: dict[tuple[int, int], Place] = {}
        self.frames: dict[int, list[Live]] = {}
        self.steps = 0
        self.stepped: deque[int] = deque(maxlen=_MOST_STEPS)
        """Which optimizers (by id) took the last steps."""
        self.draws: deque[Draw] = deque(maxlen=_MOST_DRAWS)
        """What ``next(…)`` gave since the training round began."""
        self.drawn = 0
        self.drawing = 0
        """How many ``next(…)`` are under way, one inside the other."""
        self.replayed_depth = 0
        self.queue: list[Draw] = []
        self.replaying: Replaying | None = None
        self.controller: Controller | None = None
        self._codes: list[object] = []

    def disable(self) -> None:
        """Hand everything through; used in forked workers and after the autopsy has ended the run."""
        self.active = False
        self.replaying = None

    # -- called by compiled user code ------------------------------------------------------------

    def each(self, site: int, iterable: Iterable[Any]) -> Iterable[Any]:
        """The iterable of a ``for`` loop."""
        if not self.active or threading.get_ident() != self.thread:
            return iterable
        frame = sys._getframe(1)
        place = self._place(frame, site)
        if place.passive:
            return iterable
        place.began = 0.0
        live = Live(self, site, frame, place, iter(iterable))
        self.frames.setdefault(id(frame), []).append(live)
        return live

    def begin(self, site: int) -> bool:
        """The top of a ``while`` loop, before its condition; always true."""
        if not self.active or threading.get_ident() != self.thread:
            return True
        frame = sys._getframe(1)
        live = self._find(frame, site)
        if live is None:
            place = self._place(frame, site)
            if place.passive:
                return True
            place.began = 0.0
            live = Live(self, site, frame, place, None)
            self.frames.setdefault(id(frame), []).append(live)
        if self.replaying is not None and self.replaying.live is live:
            self.replaying.next_round(frame)
        elif not live.place.passive:
            live.turn()
            live.begin(None, frame)
        return True

    def caught(self, site: int) -> bool:
        """An exception left a loop body: true if the loop shall go round again."""
        error = sys.exc_info()[1]
        if not self.active or error is None:
            return False
        live = self._find(sys._getframe(1), site)
        if isinstance(error, Rewind):
            return error.live is live
        if live is None or self.controller is None or isinstance(error, (GeneratorExit, KeyboardInterrupt, Stopped)):
            return False
        if threading.get_ident() != self.thread or not live.rounds():
            return False
        return self.controller.body_raised(live, error)

    def leaving(self, site: int) -> None:
        """Before a ``break`` or ``return``, and where the script asks whether something is bad."""
        if not self.active or self.controller is None or threading.get_ident() != self.thread:
            return
        frame = sys._getframe(1)
        live = None
        if self.replaying is not None and site != NO_LOOP:
            target = self.replaying.live
            if target.frame_id == id(frame) and site in (ALL_LOOPS, target.site):
                live = target
        self.controller.look(frame, live)

    def leave(self, site: int) -> None:
        """The loop has ended, however."""
        key = id(sys._getframe(1))
        lives = self.frames.get(key)
        if not lives:
            return
        for index in range(len(lives) - 1, -1, -1):
            if lives[index].site == site:
                gone = lives.pop(index)
                if self.replaying is not None and self.replaying.live is gone and self.controller is not None:
                    self.controller.left(gone)
                break
        if not lives:
            del self.frames[key]

    def draw(self, iterator: Iterator[Any], *default: Any) -> Any:
        """``next(iterator)``: given again, in order, when its round is run again."""
        if not self.active or threading.get_ident() != self.thread:
            return next(iterator, *default)
        if self.replaying is not None and self.queue and self.drawing == self.replayed_depth:
            again = self.queue.pop(0)
            again.random.restore()
            return again.item
        self.drawing += 1
        try:
            item = next(iterator, *default)
        finally:
            self.drawing -= 1
        if self.replaying is None:
            self.draws.append(Draw(self.drawn, item, RandomStates.now(), self.drawing))
            self.drawn += 1
        return item

    # -- called by the watch and the controller --------------------------------------------------

    def took_step(self, optimizer: object) -> None:
        """An optimizer wrote: rounds before this one need not come again."""
        self.steps += 1
        self.stepped.append(id(optimizer))

    def steps_since(self, round_: Round) -> Counter[int]:
        """How often each optimizer has stepped since a round began."""
        count = self.steps - round_.steps
        return Counter(list(self.stepped)[-count:]) if count else Counter()

    def stack(self, frame: FrameType | None) -> list[Live]:
        """The loops that are running on this stack, innermost first."""
        found: list[Live] = []
        frames = self.frames
        while frame is not None:
            lives = frames.get(id(frame))
            if lives:
                found.extend(reversed(lives))
            frame = frame.f_back
        return found

    def trained(self, frame: FrameType) -> None:
        """A backward pass ran here: the loops on the stack are training loops."""
        for live in self.stack(frame):
            live.place.trains, live.place.passive = True, False
            if live.round is not None:
                live.round.backwards += 1

    def _place(self, frame: FrameType, site: int) -> Place:
        key = (id(frame.f_code), site)
        place = self.places.get(key)
        if place is None:
            self._codes.append(frame.f_code)
            place = self.places[key] = Place()
        return place

    def _find(self, frame: FrameType, site: int) -> Live | None:
        for live in reversed(self.frames.get(id(frame), ())):
            if live.site == site:
                return live
        return None
