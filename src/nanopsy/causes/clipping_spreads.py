from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class ClippingSpreads(Cause):
    """Gradient clipping that spread one bad value to every weight.

    ## What it does
    Accompanies another finding: after backward only some gradients were bad, after `clip_grad_norm_` all of them.

    ## Why is this bad?
    `clip_grad_norm_` multiplies every gradient by max_norm / total_norm. One NaN makes the total NaN, and so every gradient: the culprit can no longer be
    told from the others by looking.

    ## Guideline
    Cure what made the first gradient bad. `error_if_nonfinite=True` turns the silent spread into an error.

    ## Fix safety
    No automatic edit.

    ## References
    PyTorch documentation of `torch.nn.utils.clip_grad_norm_`.
    """

    code, slug = "NAN603", "clipping-spreads"
    runs_as = "script"
    accompanies = True
    bad = """
import torch

torch.manual_seed(0)
a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
parameters = [*a.parameters(), *b.parameters()]
optimizer = torch.optim.SGD(parameters, lr=0.1)
for step in range(4):
    x = torch.randn(3, 2) if step < 2 else torch.zeros(3, 2)
    loss = torch.sqrt(a(x).pow(2).sum() * x.pow(2).sum()) + b(torch.ones(1, 2)).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    optimizer.step()
"""
    good = bad.replace("torch.zeros(3, 2)", "torch.ones(3, 2)")

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase != "clipping":
            return None
        before, after = birth.settings.get("bad_before"), birth.settings.get("bad_after")
        return Claim(0.3, f"clip_grad_norm_ spread the bad value: {before} bad gradients after backward, {after} after clipping")
