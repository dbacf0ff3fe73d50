from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.causes.learning_rate_divergence import overflowed
from nanopsy.ranges import Birth, Growth


class LossWeightDivergence(Cause):
    """Training that diverged because one loss term is weighted far too high.

    ## What it does
    Finds a diverging run whose loss contains a term multiplied by a constant of a thousand or more.

    ## Why is this bad?
    A loss weight is a learning rate for its term: times 1e4, a stable rate becomes an explosive one, and the other terms are noise beside it.

    ## Guideline
    Bring the terms to one order of magnitude (log them separately), and warm a new term up.

    ## Fix safety
    No automatic edit: the weights say what the training should do.

    ## References
    Kendall, Gal and Cipolla 2018 (weighing losses in multi-task learning).
    """

    code, slug = "NAN604", "loss-weight-divergence"
    runs_as = "script"
    bad = """
import torch

torch.manual_seed(0)
w = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(w.parameters(), lr=0.05)
WEIGHT = 10000.0
for step in range(200):
    x = torch.randn(8, 4)
    y = w(x)
    loss = (y - x.sum(1, keepdim=True)).abs().mean() + WEIGHT * y.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = """
import torch

torch.manual_seed(0)
w = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(w.parameters(), lr=0.05)
WEIGHT = 0.1
for step in range(200):
    x = torch.randn(8, 4)
    y = w(x)
    loss = (y - x.sum(1, keepdim=True)).abs().mean() + WEIGHT * y.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.history.growth is not Growth.DIVERGING or birth.scale is None or abs(birth.scale) < 1e3 or not overflowed(birth):
            return None
        message = f"training diverged ({birth.history.text}) with a loss term weighted by {birth.scale:g}; then {birth.op} overflowed; {elements(birth)}"
        also = (birth.location,) if birth.location else ()
        return Claim(0.92, message, location=birth.scale_at, also=also, evidence={"loss_weight": birth.scale})
