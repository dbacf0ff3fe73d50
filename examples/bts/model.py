"""A small depth network in the style of BTS: a convolutional encoder and local planar guidance."""

import torch
import torch.nn.functional as F
from torch import nn


def block(inputs, outputs, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ELU())


class LocalPlanarGuidance(nn.Module):
    """Four plane coefficients per coarse pixel, intersected with the rays of the fine pixels below it."""

    def __init__(self, channels, ratio):
        super().__init__()
        self.ratio = ratio
        self.plane = nn.Conv2d(channels, 3, 1)

    def forward(self, features):
        theta, phi, distance = self.plane(features).unbind(1)
        theta, phi = torch.sigmoid(theta) * torch.pi / 3, torch.sigmoid(phi) * 2 * torch.pi
        normal = torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], 1)
        normal = F.interpolate(normal, scale_factor=self.ratio)
        distance = F.interpolate(torch.sigmoid(distance)[:, None], scale_factor=self.ratio)
        height, width = distance.shape[-2:]
        offset = (torch.arange(self.ratio) - (self.ratio - 1) / 2) / self.ratio
        v = offset.repeat(height // self.ratio)[:, None]
        u = offset.repeat(width // self.ratio)[None, :]
        return distance / (normal[:, 0:1] * u + normal[:, 1:2] * v + normal[:, 2:3])


class TinyBts(nn.Module):
    def __init__(self, max_depth=80.0, width=16):
        super().__init__()
        self.max_depth = max_depth
        self.stem = block(3, width, 2)
        self.down = nn.Sequential(block(width, 2 * width, 2), block(2 * width, 2 * width))
        self.lpg4 = LocalPlanarGuidance(2 * width, 4)
        self.up = block(2 * width, width)
        self.lpg2 = LocalPlanarGuidance(2 * width, 2)
        self.head = nn.Sequential(block(width + 2, width), nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, image):
        half = self.stem(image)
        quarter = self.down(half)
        plane4 = self.lpg4(quarter)
        up = self.up(F.interpolate(quarter, scale_factor=2))
        plane2 = self.lpg2(torch.cat([up, half], 1))
        fine = F.interpolate(up, scale_factor=2)
        return self.max_depth * torch.sigmoid(self.head(torch.cat([fine, plane4, plane2], 1)))
