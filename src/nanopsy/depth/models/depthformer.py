"""DepthFormer: a Swin encoder with a convolutional stem, and a neck of deformable attention. Li et al. 2022 (arXiv 2203.14211), section 3."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.models.backbones import Encoder
from nanopsy.depth.models.network import Decoded, fit

__all__ = ["DeformableAttention", "DepthFormerDecoder"]


class DeformableAttention(nn.Module):
    """Each query looks at a few learned places on every level.

    Source: Zhu et al. 2021 (Deformable DETR), equation 3.
    """

    def __init__(self, channels: int, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.offsets = nn.Linear(channels, heads * levels * points * 2)
        self.weights = nn.Linear(channels, heads * levels * points)
        self.value, self.out = nn.Linear(channels, channels), nn.Linear(channels, channels)
        nn.init.zeros_(self.offsets.weight)
        angle = torch.arange(heads) * (2 * math.pi / heads)
        ring = torch.stack([angle.cos(), angle.sin()], -1)
        ring = ring / ring.abs().amax(-1, keepdim=True)
        steps = torch.arange(1, points + 1)[None, None, :, None]
        with torch.no_grad():
            self.offsets.bias.copy_((ring[:, None, None, :] * steps).expand(heads, levels, points, 2).reshape(-1))

    def forward(self, queries: Tensor, places: Tensor, maps: list[Tensor]) -> Tensor:
        """``queries`` B x Q x C at ``places`` Q x 2 in [0, 1] (x, y); ``maps``: B x C x H x W of each level."""
        batch, count, channels = queries.shape
        offsets = self.offsets(queries).reshape(batch, count, self.heads, self.levels, self.points, 2)
        weights = self.weights(queries).reshape(batch, count, self.heads, -1).softmax(-1).reshape(batch, count, self.heads, self.levels, self.points)
        total = queries.new_zeros(batch * self.heads, channels // self.heads, count)
        for level, each in enumerate(maps):
            height, width = each.shape[-2:]
            value = self.value(each.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(batch * self.heads, channels // self.heads, height, width)
            where = places[None, :, None, None] + offsets[:, :, :, level] / queries.new_tensor([width, height])
            grid = (2 * where - 1).transpose(1, 2).reshape(batch * self.heads, count, self.points, 2)
            seen = F.grid_sample(value, grid.to(value.dtype), align_corners=False)
            total = total + (seen * weights[:, :, :, level].transpose(1, 2).reshape(batch * self.heads, 1, count, self.points)).sum(-1)
        out: Tensor = self.out(total.reshape(batch, channels, count).transpose(1, 2))
        return out


class _Layer(nn.Module):
    """Deformable attention and a perceptron."""

    def __init__(self, channels: int, levels: int) -> None:
        super().__init__()
        self.attention = DeformableAttention(channels, 8, levels, 8)
        self.norm, self.norm_mlp = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.mlp = nn.Sequential(nn.Linear(channels, 2 * channels), nn.ReLU(), nn.Linear(2 * channels, channels))

    def forward(self, queries: Tensor, places: Tensor, maps: list[Tensor]) -> Tensor:
        x = self.norm(queries + self.attention(queries, places, maps))
        result: Tensor = self.norm_mlp(x + self.mlp(x))
        return result


def _places(like: Tensor) -> Tensor:
    """The pixel centres of a map in [0, 1], row by row."""
    height, width = like.shape[-2:]
    y, x = (torch.arange(height, device=like.device) + 0.5) / height, (torch.arange(width, device=like.device) + 0.5) / width
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), -1).reshape(-1, 2).to(like.dtype)


def _conv(inputs: int, outputs: int, kernel: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


class _Neck(nn.Module):
    """Aggregation among the levels of the transformer, and interaction of the stem's map with them."""

    def __init__(self, stem: int, inputs: tuple[int, ...], channels: int) -> None:
        super().__init__()
        self.bring = nn.ModuleList(_conv(each, channels) for each in inputs)
        self.level = nn.Parameter(torch.zeros(len(inputs), channels))
        self.among = _Layer(channels, len(inputs))
        self.fuse = nn.ModuleList(_conv(each + channels, each, 3) for each in inputs)
        self.bring_stem = _conv(stem, channels)
        self.across = _Layer(channels, len(inputs))
        self.fuse_stem = _conv(stem + channels, stem, 3)

    def forward(self, stem: Tensor, maps: tuple[Tensor, ...]) -> tuple[Tensor, list[Tensor]]:
        small = [bring(each) + level[None, :, None, None] for bring, each, level in zip(self.bring, maps, self.level, strict=True)]
        places = torch.cat([_places(each) for each in small])
        tokens = self.among(torch.cat([each.flatten(2).transpose(1, 2) for each in small], 1), places, small)
        parts = tokens.split([each.shape[-2] * each.shape[-1] for each in small], 1)
        mixed = [part.transpose(1, 2).reshape(each.shape) for part, each in zip(parts, small, strict=True)]
        fused = [fuse(torch.cat([each, more], 1)) for fuse, each, more in zip(self.fuse, maps, mixed, strict=True)]
        asked = F.avg_pool2d(self.bring_stem(stem), 2)  # at the finest level's size: a query for each pixel of the stem would be four times as many
        answered = self.across(asked.flatten(2).transpose(1, 2), _places(asked), mixed).transpose(1, 2).reshape(asked.shape)
        return self.fuse_stem(torch.cat([stem, fit(answered, stem.shape[-2:])], 1)), fused


class _Up(nn.Module):
    """Enlarge to the skip's size, join, two convolutions."""

    def __init__(self, inputs: int, skip: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(inputs + skip, outputs, 3, padding=1), nn.LeakyReLU(0.2), nn.Conv2d(outputs, outputs, 3, padding=1), nn.LeakyReLU(0.2)
        )

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        enlarged: Tensor = self.layers(torch.cat([fit(x, skip.shape[-2:]), skip], 1))
        return enlarged


class DepthFormerDecoder(nn.Module):
    """Stem, encoder, neck and decoder.

    Args:
        encoder: four maps at strides 4 to 32.
        width: channels of the neck's attention (512).
        channels: logits per pixel of the head.

    The decoder has no normalisation, as in the published code: nothing bounds its logits.
    """

    def __init__(self, encoder: Encoder, width: int, channels: int) -> None:
        super().__init__()
        self.encoder = encoder
        stem = max(width // 8, 16)
        inputs = encoder.channels
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False), nn.BatchNorm2d(stem), nn.ReLU())
        self.neck = _Neck(stem, inputs, width)
        skips = (stem, *inputs)
        self.deepest = nn.Conv2d(inputs[-1], inputs[-1], 1)
        self.ups = nn.ModuleList(_Up(skips[k + 1], skips[k], skips[k]) for k in (3, 2, 1, 0))
        self.logits = nn.Conv2d(stem, channels, 3, padding=1)

    def forward(self, image: Tensor) -> Decoded:
        stem, maps = self.neck(self.stem(image), self.encoder(image))
        skips = [stem, *maps]
        x = self.deepest(skips[-1])
        for up, k in zip(self.ups, (3, 2, 1, 0), strict=True):
            x = up(x, skips[k])
        return Decoded(self.logits(x))
