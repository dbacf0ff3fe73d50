from __future__ import annotations

import math

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.ranges import Birth


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

def block():
    conv = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    return nn.Sequential(conv, nn.InstanceNorm2d(8, eps=1e-9, affine=True), nn.LeakyReLU(0.5))

net = nn.Sequential(*[block() for _ in range(20)])
patch, target = torch.full((1, 8, 12, 12), 0.5), torch.rand(1, 8, 12, 12)

def loss():
    return (net(patch) - target).abs().mean()
"""
    good = """
import torch
from torch import nn

torch.manual_seed(0)

def block():
    conv = nn.Conv2d(8, 8, 3, padding=1, padding_mode="circular")
    return nn.Sequential(conv, nn.InstanceNorm2d(8, eps=1.0, affine=True), nn.LeakyReLU(0.5))

net = nn.Sequential(*[block() for _ in range(20)])
patch, target = torch.full((1, 8, 12, 12), 0.5), torch.rand(1, 8, 12, 12)

def loss():
    return (net(patch) - target).abs().mean()
"""

    def claim(self, birth: Birth) -> Claim | None:
        decades = birth.settings.get("amplified_decades")
        if not birth.backward or not isinstance(decades, float) or birth.dtype == "float16":
            return None
        peaks = birth.settings.get("backward_inputs")
        largest = max((peak for peak in peaks if math.isfinite(peak)), default=0.0) if isinstance(peaks, list) else 0.0
        if largest < 1e15 or decades < 10 or birth.amplifier_at is None:
            return None
        message = (
            f"the gradient overflowed: the normalisations ({birth.amplifier}) multiplied it by 1e{decades:.0f} in all, one near-zero variance after "
            f"another; values up to {largest:.3g} arrived at {birth.op}; {elements(birth)}"
        )
        return Claim(0.93, message, location=birth.amplifier_at, also=(birth.module_made_at,) if birth.module_made_at else ())
