"""A tiny network trained for a few seconds on procedural streets: what landscapes and logits are looked at in."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nanopsy.depth.config import Data, Optimization, TrainConfig
from nanopsy.depth.recipes import recipes
from nanopsy.depth.samples import Sample
from nanopsy.depth.trainer import Trainer

__all__ = ["Trained", "small_config", "trained"]


@dataclass(slots=True)
class Trained:
    """A trained network and a batch to look at it with."""

    trainer: Trainer
    batch: Sample
    mask: Tensor


def small_config(
    recipe: str = "all", loss: str = "bts", *, lr: float = 1e-3, schedule: str = "onecycle", steps: int = 150, seed: int = 0, model: str = "bts"
) -> TrainConfig:
    """Streets of 96 x 160 pixels with 14 scan lines, crops of 64 x 96, batches of 4."""
    return TrainConfig(
        data=Data(options={"count": 64, "height": 96, "width": 160, "lines": 14}, evaluate={"first": 100_000, "count": 8}, crop=(64, 96)),
        model=model,
        recipe=recipes(loss, (recipe,))[0],
        optimization=Optimization(lr=lr, schedule=schedule),
        steps=steps,
        batch=4,
        seed=seed,
    )


def trained(config: TrainConfig) -> Trained:
    """Train it (unwatched: nothing here is expected to fail) and take one more batch."""
    trainer = Trainer(config)
    trainer.network.train()
    batch: Sample | None = None
    for _, batch in trainer.batches(0):
        trainer.step(batch)
        trainer.advance()
    assert batch is not None
    trainer.network.eval()
    mask = (batch.depth > trainer.protocol.min_depth) & (batch.depth < trainer.protocol.max_depth)
    return Trained(trainer, batch, mask)


@torch.no_grad()
def spread(found: Trained) -> float:
    """D = mean(g^2) - 0.85 mean(g)^2 of the log error g on the batch, in float64."""
    prediction = found.trainer.network(found.batch.image)
    log_depth = prediction.log_depth if hasattr(prediction, "log_depth") else prediction.log()
    g = (log_depth[found.mask].double() - found.batch.depth[found.mask].double().log()).flatten()
    return float(g.var(correction=0) + 0.15 * g.mean().square())
