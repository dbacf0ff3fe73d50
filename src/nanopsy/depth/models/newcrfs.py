"""NeWCRFs: fully connected conditional random fields inside windows. Yuan et al. 2022 (arXiv 2203.01502), section 3."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.models.backbones import Encoder
from nanopsy.depth.models.network import Decoded
from nanopsy.depth.models.windows import PyramidPooling, WindowBlock

__all__ = ["NeWCRFsDecoder"]


class _Field(nn.Module):
    """One level: two attention blocks whose queries come from the encoder's map and whose values from the level above."""

    def __init__(self, inputs: int, values: int, channels: int, heads: int, window: int) -> None:
        super().__init__()
        self.bring = nn.Conv2d(inputs, channels, 3, padding=1)
        self.bring_values = nn.Conv2d(values, channels, 3, padding=1) if values != channels else nn.Identity()
        self.blocks = nn.ModuleList(WindowBlock(channels, heads, window, shifted=bool(k)) for k in range(2))
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, values: Tensor) -> Tensor:
        x, values = self.bring(x).permute(0, 2, 3, 1), self.bring_values(values).permute(0, 2, 3, 1)
        for block in self.blocks:
            x = block(x, values)
        return torch.permute(self.norm(x), (0, 3, 1, 2))


class NeWCRFsDecoder(nn.Module):
    """The encoder and the decoder of NeWCRFs.

    Args:
        encoder: four maps at strides 4 to 32.
        width: channels of the finest level (128), the others have twice as many each.
        channels: logits per pixel of the head.

    Logits come out at a quarter of the picture's size and are enlarged before the head; the published code enlarges after its sigmoid.
    """

    def __init__(self, encoder: Encoder, width: int, channels: int) -> None:
        super().__init__()
        self.encoder = encoder
        inputs = encoder.channels
        window = 7 if width >= 96 else 4
        self.pooling = PyramidPooling(inputs[3], 4 * width)
        self.fields = nn.ModuleList(
            _Field(inputs[level], width * 2**level // 2, width * 2**level, max(width // 32, 1) * 2**level, window) for level in (3, 2, 1, 0)
        )
        self.logits = nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, image: Tensor) -> Decoded:
        maps = self.encoder(image)
        x = self.pooling(maps[3])
        for level, field in zip((3, 2, 1, 0), self.fields, strict=True):
            x = field(maps[level], x)
            if level:
                x = F.pixel_shuffle(x, 2)
        return Decoded(self.logits(x))
