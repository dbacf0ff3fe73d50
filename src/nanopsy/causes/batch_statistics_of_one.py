from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.ranges import Birth

NORMALISATIONS = ("native_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update", "cudnn_batch_norm", "batch_norm", "miopen_batch_norm")


class BatchStatisticsOfOne(Cause):
    """Batch normalisation over one value per channel.

    ## What it does
    Finds batch statistics taken over a single value per channel (batch of one after global pooling, the last incomplete batch).

    ## Why is this bad?
    The variance of one value is 0 and its unbiased running estimate divides by N - 1 = 0: the running variance becomes NaN or inf while the
    training loss looks fine, and evaluation breaks later. `nn.BatchNorm` refuses such a batch; `torch.batch_norm` and custom layers do not.

    ## Guideline
    `drop_last=True` in the DataLoader, GroupNorm or LayerNorm for small batches, or evaluation mode for the layer.

    ## Fix safety
    No automatic edit: which of the three is right depends on the training.

    ## References
    Ioffe and Szegedy 2015, section 3.1 (unbiased variance estimate).
    """

    code, slug = "NAN304", "batch-statistics-of-one"
    bad = """
import torch

x = torch.tensor([[1.0, 2.0]], requires_grad=True)
mean, var = torch.zeros(2), torch.ones(2)

def loss():
    y = torch.batch_norm(x, None, None, mean, var, True, 0.1, 0.0, False)
    return y.sum()
"""
    good = """
import torch

x = torch.tensor([[1.0, 2.0], [2.0, 0.5]], requires_grad=True)
mean, var = torch.zeros(2), torch.ones(2)

def loss():
    y = torch.batch_norm(x, None, None, mean, var, True, 0.1, 1e-5, False)
    return y.sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        shape = birth.operand(0).shape
        if birth.op not in NORMALISATIONS or len(shape) < 2:
            return None
        per_channel = birth.operand(0).count / max(shape[1], 1)
        if per_channel != 1:
            return None
        message = f"batch normalisation over {per_channel:g} value per channel: variance 0, N - 1 = 0; {elements(birth)}"
        return Claim(strength(birth, 0.97), message, also=(birth.module_made_at,) if birth.module_made_at else ())
