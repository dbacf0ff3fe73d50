"""The scale-invariant logarithmic loss as many depth repositories write it."""

import torch
from torch import nn


class SILogLoss(nn.Module):
    def __init__(self, beta=0.15):
        super().__init__()
        self.beta = beta

    def forward(self, prediction, target, mask):
        prediction, target = prediction[mask], target[mask]
        g = torch.log(prediction) - torch.log(target)
        d = torch.var(g) + self.beta * torch.pow(torch.mean(g), 2)
        return 10 * torch.sqrt(d)
