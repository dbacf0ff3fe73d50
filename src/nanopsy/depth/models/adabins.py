"""AdaBins: adaptive bins from a small transformer. Bhat, Alhashim and Wonka 2021 (arXiv 2011.14141), section 3."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.models.backbones import Encoder
from nanopsy.depth.models.network import Decoded, fit

__all__ = ["AdaBinsDecoder"]


class _Up(nn.Module):
    """Enlarge to the skip's size, join, two convolutions."""

    def __init__(self, inputs: int, skip: int, outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for a in (inputs + skip, outputs):
            layers += [nn.Conv2d(a, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.LeakyReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        enlarged: Tensor = self.layers(torch.cat([fit(x, skip.shape[-2:]), skip], 1))
        return enlarged


class _MiniViT(nn.Module):
    """Patches of the decoded map through four transformer layers: the first token gives the bin widths, the next ones convolution kernels."""

    def __init__(self, channels: int, bins: int, patch: int, queries: int, tokens: int) -> None:
        super().__init__()
        self.queries = queries
        self.patches = nn.Conv2d(channels, channels, patch, stride=patch)
        self.places = nn.Parameter(torch.rand(tokens, channels))
        layer = nn.TransformerEncoderLayer(channels, 4, dim_feedforward=8 * channels, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.widths = nn.Sequential(nn.Linear(channels, 256), nn.LeakyReLU(), nn.Linear(256, 256), nn.LeakyReLU(), nn.Linear(256, bins))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        places = (
            F.interpolate(self.places.T[None], size=tokens.shape[1], mode="linear")[0].T
            if tokens.shape[1] > len(self.places)
            else self.places[: tokens.shape[1]]
        )
        seen = self.layers(tokens + places)
        kernels = seen[:, 1 : 1 + self.queries]
        if kernels.shape[1] < self.queries:  # a small picture has fewer patches than kernels are wanted
            kernels = F.pad(kernels, (0, 0, 0, self.queries - kernels.shape[1]))
        maps = torch.einsum("bqc,bchw->bqhw", kernels, self.conv(x))
        return self.widths(seen[:, 0]), maps


class AdaBinsDecoder(nn.Module):
    """The encoder, the decoder and the bins of AdaBins.

    Args:
        encoder: five maps at strides 2 to 32.
        width: channels of the coarsest decoder map (2048); the finest has a sixteenth of it.
        channels: logits per pixel; with a head of bins, their number.
    """

    def __init__(self, encoder: Encoder, width: int, channels: int) -> None:
        super().__init__()
        self.encoder = encoder
        skips, last = encoder.channels[3::-1], width // 16
        self.deepest = nn.Conv2d(encoder.channels[4], width, 1)
        self.ups = nn.ModuleList(_Up(width // 2**k, skip, width // 2 ** (k + 1)) for k, skip in enumerate(skips))
        self.last = nn.Conv2d(last, last, 3, padding=1)
        self.transformer = _MiniViT(last, channels, 16 if width >= 1024 else 8, last, 500)
        self.logits = nn.Conv2d(last, channels, 1)

    def forward(self, image: Tensor) -> Decoded:
        maps = self.encoder(image)
        x = self.deepest(maps[4])
        for up, skip in zip(self.ups, maps[3::-1], strict=True):
            x = up(x, skip)
        widths, attention = self.transformer(self.last(x))
        logits = self.logits(attention)
        return Decoded(logits, widths if logits.shape[1] > 1 else None)
