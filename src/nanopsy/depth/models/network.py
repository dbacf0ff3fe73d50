"""A depth network is a decoder over an encoder and a head; heads are exchangeable, which is what the experiments vary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.encodings import DataError
from nanopsy.depth.samples import pick
from nanopsy.stable import BinsHead, DepthPrediction, ExpHead, InverseDepthSigmoidHead, ReluHead, ScaledSigmoidHead, SoftplusHead

__all__ = ["HEADS", "Decoded", "DepthNetwork", "Head", "PublishedRelu", "PublishedSigmoid", "Range", "fit", "grown"]


class Decoded(NamedTuple):
    """What a decoder hands to the head."""

    logits: Tensor
    """``B x C x H x W``."""
    widths: Tensor | None = None
    """``B x P`` width logits of adaptive bins, where the network predicts them."""


@dataclass(frozen=True, slots=True)
class Range:
    """Between which depths a head predicts, in metres."""

    min_depth: float = 1e-3
    max_depth: float = 80.0


class PublishedSigmoid(nn.Module):
    """max_depth * sigmoid(x), as BTS, NeWCRFs, PixelFormer and most others write it; its logarithm is taken later, by the loss."""

    def __init__(self, max_depth: float) -> None:
        super().__init__()
        self.max_depth = max_depth

    def forward(self, logits: Tensor, widths: Tensor | None = None) -> Tensor:
        return self.max_depth * torch.sigmoid(logits)


class PublishedRelu(nn.Module):
    """relu(x) + min_depth, as the MDE-Toolbox writes it."""

    def __init__(self, min_depth: float) -> None:
        super().__init__()
        self.min_depth = min_depth

    def forward(self, logits: Tensor, widths: Tensor | None = None) -> Tensor:
        return torch.relu(logits) + self.min_depth


class _Plain(nn.Module):
    """A stable head that needs no widths."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.head = head

    def forward(self, logits: Tensor, widths: Tensor | None = None) -> DepthPrediction:
        prediction: DepthPrediction = self.head(logits)
        return prediction


@dataclass(frozen=True, slots=True)
class Head:
    """One way from logits to depth."""

    channels: int
    """How many logits a pixel has."""
    make: Callable[[Range], nn.Module]
    stable: bool = True
    """Whether it returns a `DepthPrediction` with an exact log, or a bare depth."""


HEADS: dict[str, Head] = {
    "sigmoid": Head(1, lambda r: PublishedSigmoid(r.max_depth), stable=False),
    "relu": Head(1, lambda r: PublishedRelu(r.min_depth), stable=False),
    "logsigmoid": Head(1, lambda r: _Plain(ScaledSigmoidHead(r.max_depth))),
    "bounded-sigmoid": Head(1, lambda r: _Plain(ScaledSigmoidHead(r.max_depth, r.min_depth))),
    "stable-relu": Head(1, lambda r: _Plain(ReluHead(r.min_depth))),
    "softplus": Head(1, lambda r: _Plain(SoftplusHead(r.min_depth))),
    "exp": Head(1, lambda r: _Plain(ExpHead(r.min_depth, r.max_depth))),
    "inverse": Head(1, lambda r: _Plain(InverseDepthSigmoidHead(max(r.min_depth, 0.1), r.max_depth))),
    "bins": Head(256, lambda r: BinsHead(256, r.min_depth, r.max_depth)),
    "bins-16": Head(16, lambda r: BinsHead(16, r.min_depth, r.max_depth)),
}
"""Every head by name: ``sigmoid`` and ``relu`` as published, the others from `nanopsy.stable`."""


class DepthNetwork(nn.Module):
    """``network(image)`` is the head's depth ``B x 1 x H x W`` (a tensor, or a `DepthPrediction`) for pictures in [0, 1].

    Args:
        decoder: from a picture to `Decoded`.
        head: from `Decoded` to depth.
        multiple: pictures whose sides are no multiple of it are padded by repeating the border; the result is cut to size again.
    """

    def __init__(self, decoder: nn.Module, head: nn.Module, multiple: int = 32) -> None:
        super().__init__()
        self.decoder, self.head, self.multiple = decoder, head, multiple

    def forward(self, image: Tensor) -> Tensor | DepthPrediction:
        if image.ndim != 4 or image.shape[1] != 3:
            raise DataError(
                f"a picture of shape {list(image.shape)}", where="nanopsy.depth.DepthNetwork", why="it takes colour pictures", do="pass B x 3 x H x W in [0, 1]"
            )
        height, width = image.shape[-2:]
        below, right = -height % self.multiple, -width % self.multiple
        if below or right:
            image = F.pad(image, (0, right, 0, below), mode="replicate")
        decoded: Decoded = self.decoder(image)
        logits = fit(decoded.logits, image.shape[-2:])[..., :height, :width]
        depth: Tensor | DepthPrediction = self.head(logits, decoded.widths)
        return depth


def grown(x: Tensor, ratio: int) -> Tensor:
    """Enlarged by a whole number, nearest neighbour."""
    return F.interpolate(x, scale_factor=float(ratio), mode="nearest")


def fit(x: Tensor, size: torch.Size | tuple[int, int]) -> Tensor:
    """Bilinear to a size; itself if it has that size."""
    return x if x.shape[-2:] == tuple(size) else F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)


def head_of(name: str, where: str) -> Head:
    """A head by name."""
    return HEADS[pick(tuple(HEADS), name, where)]
