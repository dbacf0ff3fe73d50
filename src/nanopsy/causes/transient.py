from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class Transient(Cause):
    """Bad value that did not come back when the step was run again.

    ## What it does
    Says that the failing step, run again with the same item, random states and buffers, was finite; it names no line as guilty.

    ## Why is this bad?
    Either something that the rewind cannot put back decided (state carried across steps, a file, a clock, a batch changed in place), or the
    machine did: memory, a race, an unstable device.

    ## Guideline
    Run again with `--rerun always` to reproduce from the start. If identical inputs give different results, test the machine's memory and device.

    ## Fix safety
    No fix is proposed for what was not reproduced.

    ## References
    Megatron-LM, rerun state machine (transient and persistent faults).
    """

    code, slug = "NAN901", "not-reproduced"
    runs_as = "script"
    bad = """
import torch

w = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([w], lr=0.1)
calls = iter([1.0, 1.0, float("nan")] + [1.0] * 100)
factor = calls.__next__
for step in range(6):
    loss = (w * factor()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = """
import torch

w = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(6):
    loss = w.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase != "transient":
            return None
        agree = bool(birth.settings.get("agree"))
        tail = (
            "the replays agree with each other: suspect state that the rewind does not know, or the machine" if agree else "the replays differ among themselves"
        )
        return Claim(0.5, f"the bad {birth.settings.get('what')} did not come back: {birth.settings.get('detail')}; {tail}; the cause is unknown")
