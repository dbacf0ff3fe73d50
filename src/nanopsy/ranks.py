"""Agreement between the ranks of one training: a flag each step, and short messages during an autopsy.

The ranks talk over a group of their own (gloo, over the training's own store), so that nothing of theirs is mixed up with the training's
collectives. Every wait has an end: a rank that does not answer is *lost*, and the others go on without it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from nanopsy._torch import control_group, default_store

TIMEOUT = "NANOPSY_RANK_TIMEOUT"
"""Environment variable: seconds to wait for another rank during an autopsy."""
_FIRST = 30.0
"""Seconds to wait for the other ranks at the first step, to see that they run under nanopsy too."""
_MEETING = 5.0
"""Seconds to wait for the other ranks when a script itself reacts to a bad value."""


def timeout() -> float:
    """Seconds to wait for another rank; 120 unless the environment says otherwise."""
    try:
        return max(1.0, float(os.environ.get(TIMEOUT, "120")))
    except ValueError:
        return 120.0


class RankLostError(Exception):
    """Another rank did not answer in time, or its connection is gone."""


@dataclass(slots=True)
class Ranks:
    """This process among the others; alone until a process group of several exists."""

    alone: bool = False
    """Set when the others cannot be reached: from then on every process is for itself."""
    _group: Any = None
    _meetings: Counter[str] = field(default_factory=Counter)

    @property
    def active(self) -> bool:
        """Whether there are several ranks that answer."""
        return not (self.alone or not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2)

    @property
    def rank(self) -> int | None:
        """This process's number among the ranks of the training; None when it trains by itself."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            return int(dist.get_rank())
        return None

    @property
    def world(self) -> int:
        return int(dist.get_world_size())

    def _connect(self) -> Any:
        """The group of all ranks; made at the first step, when every rank has shown that it runs under nanopsy."""
        if self._group is not None:
            return self._group
        store, rank = default_store(), dist.get_rank()
        store.set(f"nanopsy/here/{rank}", "1")
        wanted = [f"nanopsy/here/{number}" for number in range(self.world)]
        until = time.monotonic() + min(_FIRST, timeout())
        while not store.check(wanted):
            if time.monotonic() > until:
                missing = [number for number, key in enumerate(wanted) if not store.check([key])]
                raise RankLostError(f"rank {', '.join(map(str, missing))} is not run by nanopsy")
            time.sleep(0.02)
        self._group = control_group(store, rank, self.world, timeout())
        return self._group

    def agree(self, flag: int) -> list[int]:
        """Every rank's flag, on every rank; raises :class:`RankLostError`."""
        mine = torch.tensor([flag], dtype=torch.int64)
        every = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world)]
        self._wait(lambda group: group.allgather([every], [mine]))
        return [int(other) for other in every]

    def share(self, message: object) -> list[Any]:
        """Every rank's message (JSON), on every rank; raises :class:`RankLostError`."""
        content = json.dumps(message).encode()
        sizes = self.agree(len(content))
        longest = max(sizes)
        mine = torch.zeros(longest, dtype=torch.uint8)
        mine[: len(content)] = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        every = [torch.zeros(longest, dtype=torch.uint8) for _ in range(self.world)]
        self._wait(lambda group: group.allgather([every], [mine]))
        return [json.loads(bytes(other[:size].numpy().tobytes())) for other, size in zip(every, sizes, strict=True)]

    def _wait(self, begin: Callable[[Any], Any]) -> None:
        try:
            begin(self._connect()).wait()
        except RankLostError:
            self.alone = True
            raise
        except Exception as error:
            self.alone = True
            raise RankLostError(f"{str(error).splitlines()[0][:160] if str(error) else type(error).__name__}") from None

    def meet(self, name: str) -> bool:
        """Whether all ranks come to this point within a few seconds; all of them get the same answer."""
        self._meetings[name] += 1
        name = f"{name}.{self._meetings[name]}"
        try:
            store = default_store()
            arrived = int(store.add(f"nanopsy/meet/{name}/count", 1))
            verdict = f"nanopsy/meet/{name}/verdict"
            until = time.monotonic() + min(_MEETING, timeout())
            while arrived < self.world and time.monotonic() < until and not store.check([verdict]):
                time.sleep(0.02)
                arrived = int(store.add(f"nanopsy/meet/{name}/count", 0))
            wanted = b"together" if arrived >= self.world else b"alone"
            return bytes(store.compare_set(verdict, "", wanted.decode())) == b"together"
        except Exception:
            return False


@dataclass(slots=True)
class Watchdog:
    """Ends a process whose autopsy makes no progress: it hangs in a collective that the other ranks will never join."""

    lost: Callable[[str], None]
    """Called with a sentence, on the watchdog's own thread, before the process ends."""
    _until: float = 0.0
    _thread: threading.Thread | None = field(default=None, repr=False)
    _over: threading.Event = field(default_factory=threading.Event, repr=False)

    def progress(self) -> None:
        """Something went on: wait anew; starts the watch at the first call."""
        self._until = time.monotonic() + timeout()
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="nanopsy-watchdog", daemon=True)
            self._thread.start()

    def over(self) -> None:
        """The autopsy has ended."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(0.25):
            if time.monotonic() > self._until:
                self.lost(f"the autopsy made no progress for {timeout():g} s: another rank has died or waits elsewhere")
                sys.stderr.flush()
                os._exit(3)
