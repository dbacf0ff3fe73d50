"""Train a tiny depth network on a handful of real frames, in whichever format they lie: a check of loaders and depths before a long run.

    python examples/depth/train_on_frames.py kitti root=/data/kitti split=/data/kitti/train.txt
    python examples/depth/train_on_frames.py ddad root=/data/ddad cameras=all present_only=true
    python examples/depth/train_on_frames.py argoverse root=/data/argoverse max_depth=150

Prints what the depth maps hold, then trains with all three guidelines on random crops of the frames and prints the score before and after.
"""

import argparse
import sys

import numpy as np
import torch

from nanopsy.depth.augment import Augment
from nanopsy.depth.datasets import open_dataset
from nanopsy.depth.loading import Place, training_loader
from nanopsy.depth.metrics import DepthMetrics, Protocol
from nanopsy.depth.models import build
from nanopsy.depth.samples import SampleSet
from nanopsy.errors import NanopsyError
from nanopsy.lab.command import key_values
from nanopsy.stable import SILog


def score(network, batches, cap):
    """abs_rel over the batches, with their own batch statistics: running ones mean little after so few steps."""
    metrics = DepthMetrics(Protocol(max_depth=cap))
    with torch.no_grad():
        for batch in batches:
            metrics.update(network(batch.image).depth, batch.depth)
    return float(metrics.compute()["abs_rel"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset")
    parser.add_argument("options", nargs="*", help="key=value")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--crop", type=int, nargs=2, default=(160, 320))
    parser.add_argument("--model", default="bts")
    arguments = parser.parse_args()
    torch.manual_seed(0)

    data = open_dataset(arguments.dataset, **key_values(arguments.options, "options"))
    cap = data.protocol.max_depth
    for index in range(min(len(data), 8)):
        frame = data.frame(index)
        seen = frame.depth[frame.depth > 0]
        share = 100 * seen.size / frame.depth.size
        low, middle, high = (float(np.quantile(seen, q)) for q in (0, 0.5, 1)) if seen.size else (0, 0, 0)
        print(f"{frame.name}: {frame.depth.shape[0]} x {frame.depth.shape[1]}, {share:.2f} % valid, {low:.2f} to {high:.2f} m, median {middle:.2f} m")

    crop = tuple(min(a, b) for a, b in zip(arguments.crop, data.frame(0).depth.shape, strict=True))
    samples = SampleSet(data, Augment(crop=crop, flip=0.5), cache=len(data) <= 16)
    batches = list(training_loader(samples, 0, Place(batch=2, steps=8)))
    network = build(arguments.model, head="logsigmoid", max_depth=cap)
    loss, optimizer = SILog(), torch.optim.AdamW(network.parameters(), lr=2e-3)
    before = score(network, batches, cap)
    for step in range(arguments.steps):
        batch = batches[step % len(batches)]
        value = loss(network(batch.image), batch.depth, (batch.depth > 1e-3) & (batch.depth < cap))
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step:3d}  loss {value.item():.4f}")
    after = score(network, batches, cap)
    print(f"abs_rel before {before:.3f}, after {after:.3f}")
    return 0 if after < before else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NanopsyError as error:
        sys.exit(error.render())
