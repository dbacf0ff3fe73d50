from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class NonFiniteWeights(Cause):
    """Weights that were bad before the step.

    ## What it does
    Finds parameters that already hold NaN or inf when the step begins: from a checkpoint, an initialiser, or an earlier update.

    ## Why is this bad?
    The step that looks guilty is innocent. Resuming from such a checkpoint fails at once, whatever the data and the learning rate.

    ## Guideline
    Go back to the last checkpoint whose weights are finite; check `torch.isfinite` over the state dict before saving and after loading.

    ## Fix safety
    No automatic edit.

    ## References
    kyutai-labs/pocket-tts issue 262 (healthy checkpoints rotated away).
    """

    code, slug = "NAN703", "non-finite-weights"
    runs_as = "script"
    bad = """
import torch

net = torch.nn.Linear(2, 1)
checkpoint = {"weight": torch.tensor([[float("nan"), 1.0]]), "bias": torch.zeros(1)}
net.load_state_dict(checkpoint)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.ones(4, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = """
import torch

net = torch.nn.Linear(2, 1)
checkpoint = {"weight": torch.tensor([[0.5, 1.0]]), "bias": torch.zeros(1)}
net.load_state_dict(checkpoint)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(3):
    loss = net(torch.ones(4, 2)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase not in ("weights", "optimizer"):
            return None
        operand = birth.operand(0)
        if birth.phase == "weights":
            how = "loaded from a checkpoint" if birth.settings.get("loaded") else "bad from the start"
            message = f"{operand.name} holds {operand.bad:,} bad of {operand.count:,} values ({operand.value}) before any optimizer step: {how}"
            return Claim(0.95, message)
        held = f"{operand.name} holds {operand.bad:,} bad of {operand.count:,} values ({operand.value})"
        message = f"{held}: an earlier update wrote them; loss and gradients had been finite"
        return Claim(0.6, message)
