"""Evaluate a network with the standard metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from nanopsy.depth.metrics import METRICS, DepthMetrics, Protocol, flip_average
from nanopsy.depth.samples import SampleSet
from nanopsy.stable import DepthPrediction

__all__ = ["Scores", "depth_of", "evaluate"]

Row = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]


@dataclass(slots=True)
class Scores:
    """What one evaluation found."""

    metrics: dict[str, float]
    counts: dict[str, int]
    rows: list[Row] = field(default_factory=list)
    """A few (picture ``H x W x 3``, prediction, target ``H x W``)."""


def depth_of(prediction: Tensor | DepthPrediction) -> Tensor:
    """The depth of either kind of prediction, float32."""
    return (prediction.depth if isinstance(prediction, DepthPrediction) else prediction).float()


@torch.inference_mode()
def evaluate(
    network: nn.Module, samples: SampleSet, protocol: Protocol, *, device: torch.device | str = "cpu", batch: int = 8, flip: bool = False, pictures: int = 4
) -> Scores:
    """Score a network on whole frames.

    Args:
        network: from pictures to depth; left in the mode it was in.
        samples: the evaluation frames, all of one size within a batch (others are scored one by one).
        protocol: crop, cap and the rest.
        device: where the network lies.
        batch: frames at a time.
        flip: average with the mirrored picture's prediction.
        pictures: how many rows to keep.
    """
    training = network.training
    network.eval()
    metrics = DepthMetrics(protocol).to(device)
    rows: list[Row] = []
    try:
        index = 0
        while index < len(samples):
            group = [samples[index]]
            while len(group) < batch and index + len(group) < len(samples):
                following = samples[index + len(group)]
                if following.image.shape != group[0].image.shape:
                    break
                group.append(following)
            index += len(group)
            image, target = torch.stack([each.image for each in group]).to(device), torch.stack([each.depth for each in group]).to(device)
            depth = flip_average(lambda x: depth_of(network(x)), image) if flip else depth_of(network(image))
            metrics.update(depth, target)
            for one, predicted, true in zip(image, depth, target, strict=True):
                if len(rows) < pictures:
                    rows.append((one.permute(1, 2, 0).float().cpu().numpy(), predicted[0].cpu().numpy(), true[0].float().cpu().numpy()))
    finally:
        network.train(training)
    found = metrics.compute()
    return Scores({name: float(found[name]) for name in METRICS}, {name: int(value) for name, value in found.items() if name not in METRICS}, rows)
