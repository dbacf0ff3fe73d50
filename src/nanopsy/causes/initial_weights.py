from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.causes.learning_rate_divergence import overflowed
from nanopsy.ranges import Birth, Growth


class InitialWeights(Cause):
    """Initial weights whose scale makes the signal explode.

    ## What it does
    Finds an overflow before, or right after, the first optimizer step: the values grew from layer to layer (or round to round of a
    recurrence) with the weights as they were initialised.

    ## Why is this bad?
    A gain above one is multiplied once per layer: 1.6 per row over eighty rows is 1e16.

    ## Guideline
    Use the gain that the activation asks for (`nn.init.calculate_gain`), orthogonal or scaled initialisation for recurrences, residual branches near zero.

    ## Fix safety
    No automatic edit: the scale of the weights is part of the model.

    ## References
    He et al. 2015, "Delving deep into rectifiers", section 2.2; XingangPan/SCNN issue 82.
    """

    code, slug = "NAN605", "initial-weights"
    runs_as = "script"
    bad = """
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(16, 16)
torch.nn.init.normal_(layer.weight, std=20.0)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(3):
    y = torch.randn(4, 16)
    for _ in range(40):
        y = torch.relu(layer(y))
    loss = y.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = """
import torch

torch.manual_seed(0)
layer = torch.nn.Linear(16, 16)
torch.nn.init.normal_(layer.weight, std=0.3)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
for step in range(3):
    y = torch.randn(4, 16)
    for _ in range(40):
        y = torch.relu(layer(y))
    loss = y.mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.history.steps > 2 or not overflowed(birth):
            return None
        if birth.history.steps and birth.history.growth is Growth.DIVERGING and birth.optimizer is not None and birth.optimizer.lr >= 1:
            return None
        where = f" (most of it at {birth.growth_at})" if birth.growth_at else ""
        message = (
            f"{birth.op} overflowed after {birth.history.steps} optimizer steps: with the initial weights the values grow by 1e{birth.growth_decades:.0f}"
            f"{where}; {elements(birth)}"
        )
        location = birth.growth_made_at or birth.growth_at or birth.location
        also = tuple(place for place in (birth.growth_at, birth.location) if place is not None)
        return Claim(0.88, message, location=location, also=also)
