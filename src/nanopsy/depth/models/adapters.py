"""Depth networks of ``transformers`` itself, seen as ours: pictures in [0, 1] in, metres out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.depth.encodings import DataError
from nanopsy.depth.models.network import Decoded, fit
from nanopsy.depth.samples import pick

__all__ = ["ADAPTERS", "TransformersDecoder"]

ADAPTERS = {
    "dpt": ("DPTConfig", "DPTForDepthEstimation"),
    "glpn": ("GLPNConfig", "GLPNForDepthEstimation"),
    "zoedepth": ("ZoeDepthConfig", "ZoeDepthForDepthEstimation"),
    "depth-anything": ("DepthAnythingConfig", "DepthAnythingForDepthEstimation"),
    "depth-pro": ("DepthProConfig", "DepthProForDepthEstimation"),
}
"""Class names in ``transformers``, by our name."""


def _tiny(name: str) -> dict[str, Any]:
    """A configuration that runs on a CPU in a fraction of a second."""
    from transformers import BeitConfig, Dinov2Config

    stages: dict[str, Any] = {"out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}
    neck: dict[str, Any] = {"neck_hidden_sizes": [16, 16, 24, 24], "fusion_hidden_size": 16}
    vit = Dinov2Config(hidden_size=48, num_hidden_layers=4, num_attention_heads=3, image_size=56, patch_size=14, **stages)
    if name == "dpt":
        return {**neck, "backbone_config": vit, "reassemble_factors": [4, 2, 1, 0.5], "is_hybrid": False}
    if name == "glpn":
        return {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 4, 4], "decoder_hidden_size": 16}
    if name == "depth-anything":
        return {
            **neck,
            "backbone_config": vit,
            "reassemble_hidden_size": 48,
            "patch_size": 14,
            "head_hidden_size": 8,
            "depth_estimation_type": "metric",
            "max_depth": 1,
        }
    if name == "zoedepth":
        beit = BeitConfig(hidden_size=48, num_hidden_layers=4, num_attention_heads=3, intermediate_size=96, image_size=64, patch_size=16, **stages)
        bins = [{"n_bins": 8, "min_depth": 0.001, "max_depth": 80.0, "name": "street"}]
        return {
            **neck,
            "backbone_config": beit,
            "bottleneck_features": 16,
            "num_relative_features": 8,
            "bin_embedding_dim": 16,
            "num_attractors": [4, 2, 2, 1],
            "bin_configurations": bins,
        }
    raise DataError(
        f"{name} has no tiny size",
        where="nanopsy.depth.models.build",
        why="its encoders work on patches of 384 pixels",
        do="pass a configuration folder with a checkpoint",
    )


class TransformersDecoder(nn.Module):
    """A depth network of ``transformers`` as a decoder: its output becomes logits, so that heads can be exchanged.

    Args:
        name: a key of `ADAPTERS`.
        folder: a local checkpoint folder (config.json, model.safetensors); None: a tiny random network.

    The networks' own last activation (a ReLU, a sigmoid or bins) makes positive numbers d; the logits are their inverse softplus, so that the ``softplus`` head
    gives d back.
    """

    def __init__(self, name: str, folder: str | os.PathLike[str] | None = None) -> None:
        super().__init__()
        import transformers

        pick(tuple(ADAPTERS), name, "nanopsy.depth.models.adapters")
        config, network = (getattr(transformers, each) for each in ADAPTERS[name])
        self.name = name
        if folder is None:
            self.body = network(config(**_tiny(name)))
        else:
            if not (Path(folder) / "config.json").exists():
                raise DataError(
                    "config.json is missing",
                    where=str(folder),
                    why="expected: a checkpoint folder of transformers",
                    do="download one beforehand; nothing is fetched",
                )
            self.body = network.from_pretrained(str(folder), local_files_only=True, use_safetensors=True)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1), persistent=False)

    mean: Tensor
    std: Tensor

    def forward(self, image: Tensor) -> Decoded:
        depth = self.body((image - self.mean) / self.std).predicted_depth
        depth = fit(depth[:, None] if depth.ndim == 3 else depth, image.shape[-2:])
        small = depth.clamp(min=1e-6)
        return Decoded(torch.where(depth > 20, depth, small + torch.log(-torch.expm1(-small))) + F.relu(-depth) * 0)
