"""Attention within windows, and pyramid pooling: what NeWCRFs and PixelFormer share."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.models.network import fit

__all__ = ["PyramidPooling", "WindowAttention", "WindowBlock"]


class WindowAttention(nn.Module):
    """Multi-head attention inside windows of ``size x size`` pixels with a learned bias for each relative position; values come from a map of their own.

    Source: Liu et al. 2021 (Swin), section 3.2; Yuan et al. 2022 (NeWCRFs), section 3.3, for the separate values.
    """

    index: Tensor

    def __init__(self, channels: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.query_key, self.out = nn.Linear(channels, 2 * channels), nn.Linear(channels, channels)
        self.bias = nn.Parameter(torch.zeros((2 * size - 1) ** 2, heads))
        nn.init.trunc_normal_(self.bias, std=0.02)
        places = torch.stack(torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + size - 1
        self.register_buffer("index", apart[0] * (2 * size - 1) + apart[1], persistent=False)

    def forward(self, x: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """``x`` and ``values``: ``N x size^2 x C`` windows; ``mask``: ``windows x size^2 x size^2``, added to the scores."""
        count, tokens, channels = x.shape
        query, key = self.query_key(x).reshape(count, tokens, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        value = values.reshape(count, tokens, self.heads, -1).transpose(1, 2)
        bias = self.bias[self.index].permute(2, 0, 1)[None]
        if mask is not None:
            bias = bias + mask.repeat(count // mask.shape[0], 1, 1)[:, None]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias.to(query.dtype))
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(count, tokens, channels))
        return out


class WindowBlock(nn.Module):
    """Attention in (shifted) windows and a perceptron, each behind a norm and around a skip."""

    def __init__(self, channels: int, heads: int, size: int, *, shifted: bool) -> None:
        super().__init__()
        self.size, self.shift = size, size // 2 if shifted else 0
        self.norm, self.norm_values, self.norm_mlp = nn.LayerNorm(channels), nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.attention = WindowAttention(channels, heads, size)
        self.mlp = nn.Sequential(nn.Linear(channels, 4 * channels), nn.GELU(), nn.Linear(4 * channels, channels))

    def _windows(self, x: Tensor) -> Tensor:
        """``B x H x W x C`` to ``N x size^2 x C``."""
        b, h, w, c = x.shape
        return x.reshape(b, h // self.size, self.size, w // self.size, self.size, c).transpose(2, 3).reshape(-1, self.size**2, c)

    def _mask(self, height: int, width: int, x: Tensor) -> Tensor | None:
        """Pixels that the cyclic shift brought together from opposite borders do not see each other."""
        if not self.shift:
            return None

        def bands(length: int) -> Tensor:
            place = torch.arange(length, device=x.device)
            return (place >= length - self.size).long() + (place >= length - self.shift).long()

        region = (bands(height)[:, None] * 3 + bands(width)[None, :]).reshape(1, height, width, 1)
        tokens = self._windows(region)[..., 0]
        apart = tokens[:, :, None] != tokens[:, None, :]  # a pixel is never apart from itself: no row is fully masked
        return torch.zeros(apart.shape, device=x.device, dtype=x.dtype).masked_fill(apart, float("-inf"))

    def forward(self, x: Tensor, values: Tensor) -> Tensor:
        """``x`` and ``values``: ``B x H x W x C``."""
        height, width = x.shape[1:3]
        pad = (0, 0, 0, -width % self.size, 0, -height % self.size)
        a, v = F.pad(self.norm(x), pad), F.pad(self.norm_values(values), pad)
        tall, wide = a.shape[1:3]
        if self.shift:
            a, v = (torch.roll(each, (-self.shift, -self.shift), (1, 2)) for each in (a, v))
        mixed = self.attention(self._windows(a), self._windows(v), self._mask(tall, wide, a))
        s = self.size
        mixed = mixed.reshape(x.shape[0], tall // s, wide // s, s, s, -1).transpose(2, 3).reshape(x.shape[0], tall, wide, -1)
        if self.shift:
            mixed = torch.roll(mixed, (self.shift, self.shift), (1, 2))
        x = x + mixed[:, :height, :width]
        result: Tensor = x + self.mlp(self.norm_mlp(x))
        return result


class PyramidPooling(nn.Module):
    """The map and its means over 1, 2, 3 and 6 squared cells, joined. Source: Zhao et al. 2017 (PSPNet), section 3.2.

    The means are normalised in groups of channels, as in NeWCRFs' code: a mean over the whole map has one value per channel, which a batch norm would take for
    its own mean in a batch of one.
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.cells = (1, 2, 3, 6)
        self.parts = nn.ModuleList(nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.GroupNorm(outputs // 2, outputs), nn.ReLU()) for _ in self.cells)
        wide = inputs + len(self.cells) * outputs
        self.join = nn.Sequential(nn.Conv2d(wide, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        pooled = [fit(part(F.adaptive_avg_pool2d(x, cells)), x.shape[-2:]) for cells, part in zip(self.cells, self.parts, strict=True)]
        joined: Tensor = self.join(torch.cat([x, *pooled], 1))
        return joined
