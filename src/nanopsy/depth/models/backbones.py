"""Encoders from ``transformers``, all seen in one way: a picture goes in, a pyramid of feature maps comes out, finest first.

Configurations are written down here, so that nothing is fetched; weights come from a local checkpoint or are random.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.encodings import DataError
from nanopsy.depth.samples import pick

__all__ = ["BACKBONES", "Encoder", "backbone"]

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""ImageNet statistics, which all these encoders were trained with."""


class Encoder(nn.Module):
    """Normalises a picture in [0, 1] and returns feature maps, finest first.

    Attributes:
        channels: of each map.
        strides: pixels of the picture per pixel of each map.
    """

    channels: tuple[int, ...]
    strides: tuple[int, ...]
    mean: Tensor
    std: Tensor

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1), persistent=False)

    def features(self, image: Tensor) -> tuple[Tensor, ...]:
        """The maps of a normalised picture."""
        return tuple(self.body(image).feature_maps)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        found = self.features((image - self.mean.to(image.dtype)) / self.std.to(image.dtype))
        return found[len(found) - len(self.channels) :]

    def coarsest(self, maps: int) -> None:
        """Leave the finest maps out until ``maps`` are left.

        Raises:
            DataError: there are fewer.
        """
        if len(self.channels) < maps:
            raise DataError(
                f"an encoder with {len(self.channels)} maps, from stride {self.strides[0]} on", where="nanopsy.depth.models.build: backbone",
                why=f"the decoder joins {maps} maps, from stride {32 // 2 ** (maps - 1)} on", do="choose a ResNet or an EfficientNet, or another network",
            )  # fmt: skip
        self.channels, self.strides = self.channels[-maps:], self.strides[-maps:]


class ResNetEncoder(Encoder):
    """ResNet with the map of its first convolution (stride 2), which `transformers` does not return."""

    def __init__(self, config: Any) -> None:
        from transformers import ResNetModel

        super().__init__(ResNetModel(config))
        self.channels = (config.embedding_size, *config.hidden_sizes)
        self.strides = (2, 4, 8, 16, 32)

    def features(self, image: Tensor) -> tuple[Tensor, ...]:
        body: Any = self.body
        first = body.embedder.embedder(image)
        maps, x = [first], body.embedder.pooler(first)
        for stage in body.encoder.stages:
            x = stage(x)
            maps.append(x)
        return tuple(maps)


class PyramidEncoder(Encoder):
    """Swin, SwinV2, ConvNeXt: four maps at strides 4 to 32."""

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        self.channels = tuple(body.channels)
        self.strides = (4, 8, 16, 32)


class EfficientNetEncoder(Encoder):
    """EfficientNet: the last map at each stride from 2 to 16, and the final one before pooling at 32."""

    def __init__(self, config: Any) -> None:
        from transformers import EfficientNetModel

        super().__init__(EfficientNetModel(config))
        self.eval()
        with torch.no_grad():
            maps = self.features(torch.zeros(1, 3, 64, 64))
        self.train()
        self.channels = tuple(each.shape[1] for each in maps)
        self.strides = (2, 4, 8, 16, 32)

    def features(self, image: Tensor) -> tuple[Tensor, ...]:
        body: Any = self.body
        found = body(image, output_hidden_states=True)
        last: dict[int, Tensor] = {}
        for each in found.hidden_states:
            last[each.shape[-1]] = each
        return (*[last[width] for width in sorted(last, reverse=True)][:4], found.last_hidden_state)


class ViTEncoder(Encoder):
    """DINOv2: four maps of one resolution, shallow to deep, resized (without parameters) to the strides of a pyramid."""

    def __init__(self, body: Any) -> None:
        super().__init__(body)
        self.channels = tuple(body.channels)
        self.strides = (4, 8, 16, 32)

    def features(self, image: Tensor) -> tuple[Tensor, ...]:
        height, width = image.shape[-2:]
        maps = self.body(image).feature_maps
        sizes = [(height // stride, width // stride) for stride in self.strides]
        return tuple(F.interpolate(each, size=size, mode="bilinear", align_corners=False) for each, size in zip(maps, sizes, strict=True))


_STAGES = [f"stage{k}" for k in range(1, 5)]


def _resnet(**options: Any) -> Encoder:
    from transformers import ResNetConfig

    return ResNetEncoder(ResNetConfig(**options))


def _swin(**options: Any) -> Encoder:
    from transformers import SwinBackbone, SwinConfig

    return PyramidEncoder(SwinBackbone(SwinConfig(**{"out_features": _STAGES, **options})))


def _swinv2(**options: Any) -> Encoder:
    from transformers import Swinv2Backbone, Swinv2Config

    return PyramidEncoder(Swinv2Backbone(Swinv2Config(**{"out_features": _STAGES, **options})))


def _convnext(**options: Any) -> Encoder:
    from transformers import ConvNextBackbone, ConvNextConfig

    return PyramidEncoder(ConvNextBackbone(ConvNextConfig(**{"out_features": _STAGES, **options})))


def _efficientnet(**options: Any) -> Encoder:
    from transformers import EfficientNetConfig

    return EfficientNetEncoder(EfficientNetConfig(**options))


def _dinov2(depth: int, patch: int = 14, **options: Any) -> Encoder:
    from transformers import Dinov2Backbone, Dinov2Config

    stages = [f"stage{round(depth * k / 4)}" for k in range(1, 5)]
    shape: dict[str, Any] = {"num_hidden_layers": depth, "patch_size": patch, "out_features": stages, "reshape_hidden_states": True, **options}
    return ViTEncoder(Dinov2Backbone(Dinov2Config(**shape)))


_WIDE = {"depths": [2, 2, 18, 2], "embed_dim": 192, "num_heads": [6, 12, 24, 48], "window_size": 7}
_TINY_SWIN = {"depths": [1, 1, 2, 1], "embed_dim": 24, "num_heads": [1, 2, 4, 4], "window_size": 4, "drop_path_rate": 0.0, "image_size": 64}

BACKBONES: dict[str, tuple[Callable[..., Encoder], dict[str, Any]]] = {
    "resnet18": (_resnet, {"layer_type": "basic", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512]}),
    "resnet50": (_resnet, {"layer_type": "bottleneck", "depths": [3, 4, 6, 3], "hidden_sizes": [256, 512, 1024, 2048]}),
    "resnet-tiny": (_resnet, {"layer_type": "basic", "depths": [1, 1, 1, 1], "embedding_size": 16, "hidden_sizes": [16, 24, 32, 48]}),
    "swin-tiny": (_swin, {"depths": [2, 2, 6, 2], "embed_dim": 96, "num_heads": [3, 6, 12, 24], "window_size": 7}),
    "swin-base": (_swin, {"depths": [2, 2, 18, 2], "embed_dim": 128, "num_heads": [4, 8, 16, 32], "window_size": 7}),
    "swin-large": (_swin, _WIDE),
    "swin-mini": (_swin, _TINY_SWIN),
    "swinv2-tiny": (_swinv2, {"depths": [2, 2, 6, 2], "embed_dim": 96, "num_heads": [3, 6, 12, 24], "window_size": 8}),
    "swinv2-large": (_swinv2, _WIDE | {"window_size": 16}),
    "swinv2-mini": (_swinv2, _TINY_SWIN),
    "convnext-tiny": (_convnext, {"depths": [3, 3, 9, 3], "hidden_sizes": [96, 192, 384, 768]}),
    "convnext-large": (_convnext, {"depths": [3, 3, 27, 3], "hidden_sizes": [192, 384, 768, 1536]}),
    "convnext-mini": (_convnext, {"depths": [1, 1, 1, 1], "hidden_sizes": [16, 24, 32, 48]}),
    "efficientnet-b5": (_efficientnet, {"width_coefficient": 1.6, "depth_coefficient": 2.2, "image_size": 456, "hidden_dim": 2048, "dropout_rate": 0.4}),
    "efficientnet-mini": (
        _efficientnet,
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "image_size": 64, "hidden_dim": 320, "dropout_rate": 0.0, "drop_connect_rate": 0.0},
    ),
    "dinov2-small": (_dinov2, {"depth": 12, "hidden_size": 384, "num_attention_heads": 6, "image_size": 518}),
    "dinov2-base": (_dinov2, {"depth": 12, "hidden_size": 768, "num_attention_heads": 12, "image_size": 518}),
    "dinov2-large": (_dinov2, {"depth": 24, "hidden_size": 1024, "num_attention_heads": 16, "image_size": 518}),
    "dinov2-mini": (_dinov2, {"depth": 4, "patch": 8, "hidden_size": 48, "num_attention_heads": 3, "image_size": 64}),
}
"""Every encoder by name; those that end in -mini (and resnet-tiny) train on a CPU."""


def backbone(name: str, checkpoint: str | os.PathLike[str] | None = None) -> Encoder:
    """An encoder by name.

    Args:
        name: a key of `BACKBONES`.
        checkpoint: a local ``model.safetensors`` of the same architecture, in the names of ``transformers`` (with or without the model's prefix).
            What it lacks beside the classification head is an error. None: random weights.

    Raises:
        DataError: an unknown name, or a checkpoint that does not fit.
    """
    make, options = BACKBONES[pick(tuple(BACKBONES), name, "nanopsy.depth.models.backbone")]
    encoder = make(**options)
    if checkpoint is not None:
        load_encoder(encoder, Path(checkpoint))
    return encoder


def load_encoder(encoder: Encoder, file: Path) -> None:
    """Put a checkpoint's weights into an encoder; pickled checkpoints are refused."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if file.suffix != ".safetensors":
        raise DataError(
            f"{file.name} is not a .safetensors file",
            where=str(file),
            why="a pickle runs code when it is loaded",
            do="convert it with safetensors.torch.save_file",
        )
    try:
        found = load_file(file)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{file.name} cannot be read: {error}", where=str(file), why="expected: safetensors", do="fetch it again") from None
    wanted = encoder.body.state_dict()
    names = {name: name for name in found}
    for prefix in ("resnet.", "swin.", "swinv2.", "convnext.", "efficientnet.", "dinov2."):
        names |= {name.removeprefix(prefix): name for name in found if name.startswith(prefix)}
    state = {name: found[names[name]] for name in wanted if name in names and found[names[name]].shape == wanted[name].shape}
    lost = [name for name in wanted if name not in state and "hidden_states_norms" not in name]
    if lost:
        raise DataError(
            f"{len(lost):,} of {len(wanted):,} tensors are missing or of another shape, the first is {lost[0]}",
            where=str(file),
            why="the encoder would be partly random",
            do="use a checkpoint of this very architecture",
        )
    encoder.body.load_state_dict(state, strict=False)
