from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class OnlyCompiled(Cause):
    """Step that is bad only under torch.compile.

    ## What it does
    Says that the compiled step gives a bad value and the same step in eager mode, on the same inputs, does not.

    ## Why is this bad?
    Fused kernels round and associate differently; a guard that barely held in eager mode may not hold in them. It can also be a compiler bug.

    ## Guideline
    Find the function with `torch.compile(..., disable=…)` or `TORCHINDUCTOR_NAN_ASSERTS=1`, make its guards robust, and report the rest upstream.

    ## Fix safety
    No automatic edit.

    ## References
    pytorch/pytorch issues 114109 and 146129.
    """

    code, slug = "NAN902", "only-compiled"
    runs_as = "script"
    bad = """
import torch

def faulty(graph, inputs):
    def run(*args):
        return tuple(out * float("nan") for out in graph(*args))
    return run

torch.manual_seed(0)
net = torch.nn.Linear(3, 1)
compiled = torch.compile(net, backend=faulty)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(5, 3)
    loss = (compiled(x) if step == 2 else net(x)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = bad.replace('float("nan")', "1.0")

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase != "compiled":
            return None
        return Claim(0.6, f"the compiled step is bad again, the same step in eager mode is finite: {birth.settings.get('detail')}")
