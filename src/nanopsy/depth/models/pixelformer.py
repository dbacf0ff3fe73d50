"""PixelFormer-like: pixel queries that start at the coarsest map and are refined by skip attention. Agarwal and Arora 2023 (arXiv 2210.09071), section 3."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.models.backbones import Encoder
from nanopsy.depth.models.network import Decoded
from nanopsy.depth.models.windows import PyramidPooling, WindowBlock

__all__ = ["PixelFormerDecoder"]


class _SkipAttention(nn.Module):
    """The decoder's map asks, the encoder's map of the same size answers, window by window."""

    def __init__(self, inputs: int, queries: int, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.bring = nn.Conv2d(inputs, channels, 3, padding=1)
        self.bring_queries = nn.Conv2d(queries, channels, 3, padding=1) if queries != channels else nn.Identity()
        self.block = WindowBlock(channels, heads, window, shifted=False)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, queries: Tensor) -> Tensor:
        x, queries = self.bring(x).permute(0, 2, 3, 1), self.bring_queries(queries).permute(0, 2, 3, 1)
        return torch.permute(self.norm(self.block(queries, x)), (0, 3, 1, 2))


class PixelFormerDecoder(nn.Module):
    """The encoder, skip attention and bin centres in the manner of PixelFormer.

    Args:
        encoder: four maps at strides 4 to 32.
        width: channels of the finest level (128).
        channels: logits per pixel; with a head of bins, their number: widths then come from the coarsest map.
    """

    def __init__(self, encoder: Encoder, width: int, channels: int) -> None:
        super().__init__()
        self.encoder = encoder
        inputs, window = encoder.channels, 7 if width >= 96 else 4
        self.pooling = PyramidPooling(inputs[3], 4 * width)
        self.levels = nn.ModuleList(
            _SkipAttention(inputs[level], width * 2**level // 2, width * 2**level, max(width // 32, 1) * 2**level, window) for level in (3, 2, 1, 0)
        )
        self.widths = nn.Sequential(nn.Linear(4 * width, 4 * width), nn.GELU(), nn.Linear(4 * width, channels))
        self.logits = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, image: Tensor) -> Decoded:
        maps = self.encoder(image)
        x = self.pooling(maps[3])
        widths = self.widths(x.mean((2, 3)))
        for level, attention in zip((3, 2, 1, 0), self.levels, strict=True):
            x = attention(maps[level], x)
            if level:
                x = F.pixel_shuffle(x, 2)
        logits = self.logits(x)
        return Decoded(logits, widths if logits.shape[1] > 1 else None)
