"""A drawer: one file per network; `build` finds them by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from nanopsy.depth.models.adabins import AdaBinsDecoder
from nanopsy.depth.models.adapters import ADAPTERS, TransformersDecoder
from nanopsy.depth.models.backbones import BACKBONES, Encoder, backbone
from nanopsy.depth.models.bts import BTSDecoder
from nanopsy.depth.models.depthformer import DepthFormerDecoder
from nanopsy.depth.models.network import HEADS, Decoded, DepthNetwork, Range, head_of
from nanopsy.depth.models.newcrfs import NeWCRFsDecoder
from nanopsy.depth.models.pixelformer import PixelFormerDecoder
from nanopsy.depth.samples import pick

__all__ = ["ADAPTERS", "BACKBONES", "HEADS", "MODELS", "Decoded", "DepthNetwork", "Model", "Range", "backbone", "build", "parameters"]


@dataclass(frozen=True, slots=True)
class Size:
    """One size of a network."""

    backbone: str
    width: int
    published: str = ""
    """Parameters of the published network, and where they are counted (owner/name on GitHub)."""


@dataclass(frozen=True, slots=True)
class Model:
    """A network by name."""

    decoder: Callable[[Encoder, int, int], nn.Module]
    """From (encoder, width, logits per pixel)."""
    sizes: dict[str, Size]
    head: str = "sigmoid"
    """As published."""
    multiple: int = 32
    maps: int = 4
    """How many maps of the encoder it joins: 4 from stride 4 on, 5 from stride 2 on."""


MODELS: dict[str, Model] = {
    "bts": Model(
        BTSDecoder,
        {
            "tiny": Size("resnet-tiny", 64),
            "full": Size("resnet50", 512, "49.53 M, of which 2.05 M are the encoder's unused classifier (cleinc/bts, its README)"),
        },
        maps=5,
    ),
    "adabins": Model(
        AdaBinsDecoder,
        {"tiny": Size("efficientnet-mini", 256), "full": Size("efficientnet-b5", 2048, "78.26 M, counted in shariqfarooq123/AdaBins")},
        "bins",
        maps=5,
    ),
    "newcrfs": Model(NeWCRFsDecoder, {"tiny": Size("swin-mini", 32), "full": Size("swin-large", 128, "270.44 M, counted in aliyun/NeWCRFs")}),
    "depthformer": Model(
        DepthFormerDecoder,
        {"tiny": Size("swin-mini", 32), "full": Size("swin-large", 512, "273.73 M, counted in zhyever/Monocular-Depth-Estimation-Toolbox")},
        "relu",
    ),
    "pixelformer": Model(
        PixelFormerDecoder,
        {"tiny": Size("swin-mini", 32), "full": Size("swin-large", 128, "258.36 M without its unused layers, counted in ashutosh1807/PixelFormer")},
        "bins",
    ),
}
"""Every network of ours by name; `ADAPTERS` are those of ``transformers``."""


def build(
    name: str,
    size: str = "tiny",
    *,
    backbone: str | None = None,
    head: str | None = None,
    max_depth: float = 80.0,
    min_depth: float = 1e-3,
    checkpoint: str | os.PathLike[str] | None = None,
) -> DepthNetwork:
    """A depth network by name.

    Args:
        name: a key of `MODELS` or `ADAPTERS`.
        size: ``tiny`` (trains on a CPU) or ``full`` (as published).
        backbone: another encoder of the same kind of pyramid; a key of `BACKBONES`.
        head: a key of `HEADS`; None: as published.
        max_depth, min_depth: range of the head in metres.
        checkpoint: pretrained encoder weights, a local .safetensors file; for an adapter a checkpoint folder of ``transformers``.

    Raises:
        DataError: an unknown name, or a checkpoint that does not fit.

    >>> import torch
    >>> build("bts")(torch.rand(1, 3, 64, 96)).shape
    torch.Size([1, 1, 64, 96])
    """
    where = "nanopsy.depth.models.build"
    span = Range(min_depth, max_depth)
    if name in ADAPTERS:
        return DepthNetwork(
            TransformersDecoder(name, checkpoint), head_of(head or "softplus", where).make(span), 56 if name in ("dpt", "depth-anything") else 64
        )
    model = MODELS[pick((*MODELS, *ADAPTERS), name, where)]
    chosen = model.sizes[pick(tuple(model.sizes), size, where)]
    top = head_of(head or model.head, where)
    from nanopsy.depth.models import backbones

    encoder = backbones.backbone(backbone or chosen.backbone, checkpoint)
    encoder.coarsest(model.maps)
    return DepthNetwork(model.decoder(encoder, chosen.width, top.channels), top.make(span), model.multiple)


def parameters(network: nn.Module) -> int:
    """How many numbers train."""
    return sum(each.numel() for each in network.parameters())
