"""BTS: local planar guidance. Lee, Han, Ko and Suh 2019, *From Big to Small* (arXiv 1907.10326), sections 3.2 to 3.5."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.models.backbones import Encoder
from nanopsy.depth.models.network import Decoded, grown

__all__ = ["BTSDecoder", "LocalPlanarGuidance"]


def _conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.ELU())


class _Up(nn.Module):
    """Twice the size, then a convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = _conv(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        enlarged: Tensor = self.conv(grown(x, 2))
        return enlarged


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, momentum=0.01, eps=1.1e-5)


class _Atrous(nn.Sequential):
    """A dilated convolution behind a bottleneck."""

    def __init__(self, inputs: int, outputs: int, dilation: int, *, norm_first: bool = True) -> None:
        super().__init__(
            *([_norm(inputs)] if norm_first else []),
            nn.ReLU(),
            nn.Conv2d(inputs, 2 * outputs, 1, bias=False),
            _norm(2 * outputs),
            nn.ReLU(),
            nn.Conv2d(2 * outputs, outputs, 3, padding=dilation, dilation=dilation, bias=False),
        )


class _Reduction(nn.Sequential):
    """1 x 1 convolutions that halve the channels down to 3 plane parameters, or to one logit."""

    def __init__(self, inputs: int, outputs: int, *, final: int = 0) -> None:
        layers: list[nn.Module] = []
        while outputs >= 8:
            layers += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.ELU()]
            inputs, outputs = outputs, outputs // 2
        super().__init__(*layers, nn.Conv2d(inputs, final or 3, 1, bias=False))


class LocalPlanarGuidance(nn.Module):
    """Plane coefficients of each coarse pixel, intersected with the rays of the ``ratio x ratio`` pixels below it (equations 1 to 3).

    Returns depth divided by max_depth, ``B x 1 x ratio H x ratio W``: the sigmoid of the distance over n . (u, v, 1). It is unbounded where a ray runs along
    its plane.
    """

    def __init__(self, ratio: int) -> None:
        super().__init__()
        self.ratio = ratio

    def forward(self, plane: Tensor) -> Tensor:
        theta, phi, distance = torch.sigmoid(plane[:, 0]) * math.pi / 3, torch.sigmoid(plane[:, 1]) * math.pi * 2, torch.sigmoid(plane[:, 2])
        normal = F.normalize(torch.stack([theta.sin() * phi.cos(), theta.sin() * phi.sin(), theta.cos()], 1), dim=1)
        fine = grown(torch.cat([normal, distance[:, None]], 1), self.ratio)
        offset = (torch.arange(self.ratio, device=plane.device, dtype=fine.dtype) - (self.ratio - 1) / 2) / self.ratio
        u, v = offset.repeat(fine.shape[-1] // self.ratio)[None, :], offset.repeat(fine.shape[-2] // self.ratio)[:, None]
        return fine[:, 3:4] / (fine[:, 0:1] * u + fine[:, 1:2] * v + fine[:, 2:3])


class BTSDecoder(nn.Module):
    """The encoder and the decoder of BTS.

    Args:
        encoder: five maps at strides 2 to 32.
        width: channels of the coarsest decoder map (``bts_size``: 512), a multiple of 32.
        channels: logits per pixel of the head.
    """

    def __init__(self, encoder: Encoder, width: int, channels: int) -> None:
        super().__init__()
        self.encoder = encoder
        half, quarter, tenth, wide = encoder.channels[0], encoder.channels[1], encoder.channels[2], width
        f = encoder.channels
        self.up5, self.norm5, self.conv5 = _Up(f[4], wide), _norm(wide), _conv(wide + f[3], wide)
        self.up4, self.norm4, self.conv4 = _Up(wide, wide // 2), _norm(wide // 2), _conv(wide // 2 + tenth, wide // 2)
        self.norm4b = _norm(wide // 2)
        part, skip = wide // 4, wide // 2 + tenth
        self.atrous3 = _Atrous(wide // 2, part, 3, norm_first=False)
        self.atrous = nn.ModuleList(_Atrous(skip + k * part, part, dilation) for k, dilation in ((1, 6), (2, 12), (3, 18), (4, 24)))
        self.gather = _conv(wide // 2 + 5 * part, part)
        self.plane8, self.guide8 = _Reduction(part, part), LocalPlanarGuidance(8)
        self.up3, self.norm3, self.conv3 = _Up(part, part), _norm(part), _conv(part + quarter + 1, part)
        self.plane4, self.guide4 = _Reduction(part, part // 2), LocalPlanarGuidance(4)
        self.up2, self.norm2, self.conv2 = _Up(part, part // 2), _norm(part // 2), _conv(part // 2 + half + 1, part // 2)
        self.plane2, self.guide2 = _Reduction(part // 2, part // 4), LocalPlanarGuidance(2)
        self.up1 = _Up(part // 2, part // 4)
        self.single = _Reduction(part // 4, part // 8, final=1)
        self.conv1 = _conv(part // 4 + 4, part // 4)
        self.logits = nn.Conv2d(part // 4, channels, 3, padding=1, bias=False)

    def forward(self, image: Tensor) -> Decoded:
        half, quarter, eighth, sixteenth, deepest = self.encoder(image)
        x = self.conv5(torch.cat([self.norm5(self.up5(torch.relu(deepest))), sixteenth], 1))
        joined = torch.cat([self.norm4(self.up4(x)), eighth], 1)
        x = self.norm4b(self.conv4(joined))
        seen = self.atrous3(x)
        maps, dense = [seen], torch.cat([joined, seen], 1)
        for atrous in self.atrous:
            maps.append(atrous(dense))
            dense = torch.cat([dense, maps[-1]], 1)
        x = self.gather(torch.cat([x, *maps], 1))
        depth8 = self.guide8(self.plane8(x))
        x = self.conv3(torch.cat([self.norm3(self.up3(x)), quarter, depth8[..., ::4, ::4]], 1))
        depth4 = self.guide4(self.plane4(x))
        x = self.conv2(torch.cat([self.norm2(self.up2(x)), half, depth4[..., ::2, ::2]], 1))
        depth2 = self.guide2(self.plane2(x))
        x = self.up1(x)
        x = self.conv1(torch.cat([x, torch.sigmoid(self.single(x)), depth2, depth4, depth8], 1))
        return Decoded(self.logits(x))
