from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class BatchStatisticsOfOne(Cause):
    """Running statistics spoiled by a batch with one value per channel.

    ## What it does
    Finds a running mean or variance of a normalisation layer that already holds NaN or inf when the step uses it.

    ## Why is this bad?
    The running variance is updated with the unbiased variance of the batch, which divides by N - 1: one value per channel (batch of one after
    global pooling, an incomplete last batch) writes NaN. Training mode never reads it, so the loss looks fine until the layer is frozen or
    evaluated. `nn.BatchNorm` refuses such a batch; `torch.batch_norm` and hand-written layers do not.

    ## Guideline
    `drop_last=True` in the DataLoader, GroupNorm or LayerNorm for small batches, or evaluation mode for the layer.

    ## Fix safety
    No automatic edit: which of the three is right depends on the training. The spoiled buffer must be reset or recomputed.

    ## References
    Ioffe and Szegedy 2015, section 3.1 (unbiased variance estimate).
    """

    code, slug = "NAN304", "batch-statistics-of-one"
    runs_as = "script"
    bad = """
import torch
from torch import nn

class Norm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x, frozen):
        return torch.batch_norm(x, None, None, self.running_mean, self.running_var, not frozen, 0.1, 1e-5, False)

torch.manual_seed(0)
net, norm = nn.Linear(3, 4), Norm(4)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for step in range(6):
    loss = norm(net(torch.randn(1, 3)), frozen=step >= 3).pow(2).mean() + net.weight.pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = bad.replace("torch.randn(1, 3)", "torch.randn(5, 3)")

    def claim(self, birth: Birth) -> Claim | None:
        operand = birth.operand(0)
        name = operand.name.rsplit(".", 1)[-1]
        if birth.phase != "weights" or name not in ("running_var", "running_mean", "moving_var", "moving_mean"):
            return None
        message = (
            f"the buffer {operand.name} holds {operand.bad:,} bad of {operand.count:,} values ({operand.value}) and this step reads it: an earlier "
            f"batch had one value per channel (its unbiased variance is 0/0) or was itself bad"
        )
        return Claim(0.97, message)
