"""The parts of one training: network, optimizer, data, and one step of them."""

from __future__ import annotations

import gc
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from nanopsy.depth.checkpoints import Parts
from nanopsy.depth.config import TrainConfig
from nanopsy.depth.datasets import open_dataset
from nanopsy.depth.encodings import DataError
from nanopsy.depth.evaluate import evaluate
from nanopsy.depth.loading import Place, training_loader
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.models import build
from nanopsy.depth.recipes import RecipeLoss
from nanopsy.depth.runfolder import RunFolder
from nanopsy.depth.samples import Sample, SampleSet
from nanopsy.depth.schedules import make_optimizer, make_schedule
from nanopsy.findings import Diagnosis, Incident, Outcome, What
from nanopsy.stable import DepthPrediction

__all__ = ["BadStepError", "Result", "Trainer"]


class BadStepError(Exception):
    """An incident under the policy ``stop`` or ``skip``: leaves the step before the optimizer writes."""

    def __init__(self, incident: Incident) -> None:
        self.incident = incident


@dataclass(slots=True)
class Result:
    """How a run ended."""

    steps: int
    """Optimizer steps done."""
    diverged: bool = False
    incident: Incident | None = None
    """The first incident with what the autopsy found."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The last evaluation."""
    best: float = 1e9
    """The smallest abs_rel of any evaluation (1e9: none yet)."""
    losses: list[float] = field(default_factory=list)
    """At the logged steps."""
    empty_batches: int = 0
    """Batches without a valid pixel: there is nothing to learn from, and the step is left out."""
    skipped: int = 0
    """Steps left out because a value in them was not finite."""
    seconds: float = 0.0
    first_process: bool = True
    """Whether this process writes the folder."""
    min_logit: float = math.inf
    """The smallest logit on a valid pixel at the logged steps (heads with one logit per pixel)."""

    @property
    def code(self) -> str:
        """The cause of the first incident, or an empty text."""
        return self.incident.findings[0].code if self.incident is not None and self.incident.findings else ""


class Trainer:
    """One training run as its parts; `nanopsy.depth.train.train` runs it from start to end."""

    def __init__(self, config: TrainConfig) -> None:
        from lightning_fabric import Fabric

        self.config, options = config, config.optimization
        if "fsdp" in config.strategy or "deepspeed" in config.strategy:
            raise DataError(
                f"the strategy {config.strategy}", where="strategy", why="checkpoints of sharded weights are not written yet", do="ddp, or one device"
            )
        if config.precision == "16-mixed" and not torch.cuda.is_available():
            raise DataError(
                "16-mixed without a GPU", where="precision", why="Fabric trains another format there, without a word that stops you", do="bf16-mixed, or a GPU"
            )
        self.fabric: Any = Fabric(
            accelerator=config.accelerator,
            devices=config.devices,
            num_nodes=config.nodes,
            strategy=config.strategy,
            precision=config.precision,  # type: ignore[arg-type]
        )
        if self.fabric.world_size > 1 or config.strategy != "auto":
            self.fabric.launch()
        torch.manual_seed(config.seed)
        source = open_dataset(config.data.name, **config.data.options)
        held_out = open_dataset(config.data.name, **{**config.data.options, **config.data.evaluate})
        cap = config.max_depth if config.max_depth is not None else source.protocol.max_depth
        self.protocol = Protocol(source.protocol.min_depth, cap, held_out.protocol.crop, median_scaling=config.data.median_scaling)
        self.training = SampleSet(source, config.data.augmentation(), seed=config.seed, cache=config.data.cached)
        self.evaluation = SampleSet(held_out, cache=config.data.cached)
        crop = config.data.crop
        if crop is not None and config.batch == 1 and max(crop) <= 32:
            raise DataError(
                f"one crop of {crop[0]} x {crop[1]} at a time", where="batch, crop",
                why="the encoder's coarsest map has one pixel, whose batch statistics do not exist", do="a crop with a side over 32, or a batch of 2",
            )  # fmt: skip
        network = build(
            config.model, config.size, backbone=config.backbone, head=config.head or config.recipe.head, max_depth=cap, min_depth=source.protocol.min_depth,
            checkpoint=config.checkpoint,
        )  # fmt: skip
        self.average: nn.Module | None = None
        if options.average:
            from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

            self.average = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(options.average), use_buffers=True).to(self.fabric.device)
        self.criterion = RecipeLoss(config.recipe)
        self.logits: Tensor | None = None
        network.head.register_forward_pre_hook(self._see)
        optimizer = make_optimizer(network, options)
        self.network, self.optimizer = self.fabric.setup(network, optimizer)
        self.schedule = make_schedule(getattr(self.optimizer, "optimizer", self.optimizer), options, config.steps)
        self.bare = network
        self.result = Result(0)
        self.valid: Tensor | None = None

    # -- one step -------------------------------------------------------------------------------

    def _see(self, module: nn.Module, arguments: tuple[Any, ...]) -> None:
        self.logits = arguments[0].detach()

    def _as_trained(self, prediction: Tensor | DepthPrediction, target: Tensor) -> tuple[Tensor | DepthPrediction, Tensor]:
        """Under ``bf16-true`` the labels and the loss have the weights' format; Fabric returns predictions in float32."""
        if self.config.precision != "bf16-true":
            return prediction, target
        if isinstance(prediction, DepthPrediction):
            return DepthPrediction(prediction.depth.bfloat16(), prediction.log_depth.bfloat16()), target.bfloat16()
        return prediction.bfloat16(), target.bfloat16()

    def loss(self, batch: Sample) -> Tensor:
        """The loss of a batch, as the optimizer sees it."""
        return self._loss(self.network(batch.image), batch)

    def _loss(self, prediction: Tensor | DepthPrediction, batch: Sample) -> Tensor:
        target = batch.depth
        mask = (target > self.protocol.min_depth) & (target < self.protocol.max_depth)
        prediction, target = self._as_trained(prediction, target)
        self.valid = mask
        if not bool(mask.any()):  # several processes must all take the step: a zero with zero gradients
            depth = prediction.depth if isinstance(prediction, DepthPrediction) else prediction
            return depth.mean() * 0
        loss: Tensor = self.criterion(prediction, target, mask)
        return loss

    def step(self, batch: Sample) -> float:
        """Forward, backward, clip, optimizer step; the loss, or NaN if a step that is not finite was left out."""
        config = self.config
        loss = self.loss(batch)
        bad = self._bad_losses(loss) if config.recipe.skip or self.fabric.world_size > 1 else 0
        if bad and config.recipe.skip:
            return self.left_out()
        if bad and config.on_incident != "continue":
            detail = f"the loss of {bad} of {self.fabric.world_size} processes is not finite"
            raise BadStepError(Incident(self.result.steps, What.LOSS, Outcome.NOT_REPRODUCED, detail=detail))
        self.fabric.backward(loss)
        if config.recipe.skip and not self._finite_gradients():
            return self.left_out()
        most = config.recipe.clip or config.optimization.clip
        if most:
            self.fabric.clip_gradients(self.network, self.optimizer, max_norm=most, error_if_nonfinite=False)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update_parameters(self.bare)  # type: ignore[operator]
        return float(loss.detach())

    def _bad_losses(self, loss: Tensor) -> int:
        """How many processes have a loss that is not finite; all learn it, since whoever left the step alone would make the others wait for ever."""
        bad = (~torch.isfinite(loss.detach()).all()).float()
        return int(self.fabric.all_reduce(bad, reduce_op="sum") if self.fabric.world_size > 1 else bad)

    def _loss_alone(self, batch: Sample) -> Tensor:
        """The loss without the other processes, for an autopsy: each of them runs as many backward passes as it needs."""
        if self.fabric.world_size == 1:
            return self.loss(batch)
        with self.fabric.autocast():
            prediction = self.bare(batch.image)
        if isinstance(prediction, DepthPrediction):
            return self._loss(DepthPrediction(*(each.float() for each in prediction)), batch)
        return self._loss(prediction.float(), batch)

    def _finite_gradients(self) -> bool:
        return bool(torch.isfinite(torch.nn.utils.get_total_norm([p.grad for p in self.bare.parameters() if p.grad is not None])))

    def left_out(self) -> float:
        """Forget the step's gradients and count it."""
        self.optimizer.zero_grad(set_to_none=True)
        self.result.skipped += 1
        return math.nan

    def advance(self) -> None:
        """The schedule's next rate, also after a step that was left out."""
        with warnings.catch_warnings():  # torch warns where the first step of all was left out
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step", category=UserWarning)
            self.schedule.step()

    # -- the run --------------------------------------------------------------------------------

    def parts(self) -> Parts:
        """What a checkpoint holds."""
        scaler = getattr(getattr(self.fabric, "_precision", None), "scaler", None)
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return Parts(self.bare, optimizer, self.schedule, self.average, scaler)

    def batches(self, first_step: int) -> Iterator[tuple[int, Sample]]:
        """(step, batch on the device) from a step on."""
        config, fabric = self.config, self.fabric
        place = Place(config.batch, fabric.global_rank, fabric.world_size, first_step, config.steps)
        loader = training_loader(self.training, config.seed, place, workers=config.data.workers, pin=fabric.device.type == "cuda")
        for step, batch in enumerate(loader, first_step):
            yield step, fabric.to_device(batch)

    def autopsy(self, batch: Sample, random_state: Tensor, seen: Incident) -> Incident:
        """Why the step was bad: the same batch and random numbers again, traced."""
        from nanopsy import autopsy

        torch.set_rng_state(random_state)
        self.optimizer.zero_grad(set_to_none=True)
        diagnosis: Diagnosis = autopsy(lambda: self._loss_alone(batch))
        self.optimizer.zero_grad(set_to_none=True)
        if not diagnosis.incidents:
            seen.detail += "; run again on the same batch the step was finite here"
            return seen
        found = diagnosis.incidents[0]
        found.step, found.history = self.result.steps, seen.history
        return found

    def part(self) -> None:
        """Let the other processes go: a process that ends while they are connected may abort on its way out."""
        if self.fabric.world_size > 1 and torch.distributed.is_initialized():
            self.fabric.barrier()
            self.network = self.bare  # the wrapper holds the group, whose threads must end before the interpreter does
            gc.collect()
            torch.distributed.destroy_process_group()

    def score(self, step: int, folder: RunFolder | None) -> dict[str, float]:
        """Evaluate now, keep the metrics and a few pictures."""
        scores = evaluate(self.average if self.average is not None else self.network, self.evaluation, self.protocol, device=self.fabric.device)
        self.result.metrics = scores.metrics
        if folder is not None:
            folder.add({"step": step, **scores.metrics, **scores.counts})
            folder.picture(step, scores.rows, self.protocol.max_depth)
        return scores.metrics
