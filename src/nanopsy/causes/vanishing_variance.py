from __future__ import annotations

import math

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.causes.batch_statistics_of_one import NORMALISATIONS
from nanopsy.ranges import Birth

OTHERS = ("native_layer_norm", "native_group_norm", "_fused_rms_norm", "rsqrt", "_cdist_forward", "linalg_vector_norm")


class VanishingVariance(Cause):
    """Normalisation by a near-zero variance, repeated until gradients overflow.

    ## What it does
    Finds gradients that overflow in the backward of normalisation layers whose input has almost no variance (constant patches, dead channels).

    ## Why is this bad?
    Each layer multiplies the gradient by 1/sqrt(var + eps), 316 for eps = 1e-5: twenty such layers in a row exceed float32 although every
    single operator is guarded.

    ## Guideline
    A larger eps in the normalisation layers, no constant patches in the data, residual connections, or GroupNorm over more values.

    ## Fix safety
    No automatic edit: eps is part of the model.

    ## References
    Po-Hsun-Su/pytorch-ssim issue 8.
    """

    code, slug = "NAN305", "vanishing-variance"
    bad = """
import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.InstanceNorm2d(2, eps=1e-10, affine=True) for _ in range(12)]
x = torch.full((1, 2, 8, 8), 0.5, requires_grad=True)
noise = 1e-8 * torch.randn(1, 2, 8, 8)

def loss():
    y = x + noise
    for layer in layers:
        y = layer(y) * 1e-9
    return (y * 1e9 * torch.arange(64.0).reshape(8, 8)).sum()
"""
    good = """
import torch
from torch import nn

torch.manual_seed(0)
layers = [nn.InstanceNorm2d(2, eps=1.0, affine=True) for _ in range(12)]
x = torch.full((1, 2, 8, 8), 0.5, requires_grad=True)
noise = 1e-8 * torch.randn(1, 2, 8, 8)

def loss():
    y = x + noise
    for layer in layers:
        y = layer(y)
    return (y * torch.arange(64.0).reshape(8, 8)).sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if not birth.backward or birth.op not in (*NORMALISATIONS, *OTHERS) or birth.operand(0).value == 0 and birth.op == "rsqrt":
            return None
        peaks = birth.settings.get("backward_inputs")
        largest = max((peak for peak in peaks if math.isfinite(peak)), default=0.0) if isinstance(peaks, list) else 0.0
        spread = birth.operand(0).high - birth.operand(0).low
        if largest < 1e15:
            return None
        where = birth.module_made_at
        layer = f"{birth.module_type} {birth.module}" if birth.module_type else birth.op
        message = (
            f"the gradient overflowed in the backward of {layer}: values up to {largest:.3g} arrived, amplified by one normalisation after "
            f"another; the input varies by only {spread:.3g}; {elements(birth)}"
        )
        return Claim(0.93, message, location=where)
