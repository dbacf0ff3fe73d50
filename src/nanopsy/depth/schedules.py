"""The optimizer and its learning-rate schedules, all from torch."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, LRScheduler, OneCycleLR

from nanopsy.depth.config import Optimization

__all__ = ["make_optimizer", "make_schedule"]


def make_optimizer(network: nn.Module, options: Optimization) -> torch.optim.AdamW:
    """AdamW over the parameters that train."""
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=options.lr, betas=options.betas, eps=options.eps, weight_decay=options.weight_decay)


def warm_cosine(step: int, steps: int) -> float:
    """Linear from 1/1000 over the first third, then a half cosine to 0: DepthFormer's schedule (12,800 of 38,400 iterations)."""
    import math

    warm = max(steps // 3, 1)
    if step < warm:
        return 1e-3 + (1 - 1e-3) * step / warm
    return 0.5 * (1 + math.cos(math.pi * min((step - warm) / max(steps - warm, 1), 1.0)))


def make_schedule(optimizer: torch.optim.Optimizer, options: Optimization, steps: int) -> LRScheduler:
    """The schedule by its name; stepped once after every optimizer step."""
    if options.schedule == "onecycle":
        return OneCycleLR(optimizer, options.lr, total_steps=max(steps, 2) + 1, div_factor=25, final_div_factor=100, cycle_momentum=False)
    if options.schedule == "cosine":
        return LambdaLR(optimizer, lambda step: warm_cosine(step, steps))
    return ConstantLR(optimizer, factor=1.0)
