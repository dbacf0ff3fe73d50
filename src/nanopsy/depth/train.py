"""Train a depth network, watched: the loop, in which a bad step is diagnosed before the optimizer writes it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from nanopsy.depth.checkpoints import load_checkpoint, save_checkpoint
from nanopsy.depth.config import TrainConfig
from nanopsy.depth.encodings import DataError
from nanopsy.depth.runfolder import RunFolder
from nanopsy.depth.trainer import BadStepError, Result, Trainer
from nanopsy.findings import Diagnosis, Incident

__all__ = ["train"]

Progress = Callable[[int, dict[str, float]], None]
"""Called after each logged step with the step and its numbers."""


@contextmanager
def _one_board(folder: RunFolder | None) -> Iterator[Any]:
    """A TensorBoard writer, or None where it is not installed or nothing is written."""
    if folder is None or not folder.writes:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield None
        return
    board = SummaryWriter(str(folder.path / "tensorboard"))
    try:
        yield board
    finally:
        board.close()


def train(config: TrainConfig, folder: str | Path | None = None, *, resume: bool = False, progress: Progress | None = None) -> Result:
    """Train one network from start to end, with nanopsy's watch on.

    Args:
        config: everything the run depends on.
        folder: where config, environment, metrics, checkpoints, incidents, pictures and TensorBoard's files go; None: nothing is written.
        resume: go on from the folder's checkpoint, bit for bit, if there is one.
        progress: called after each logged step.

    Returns:
        `Result`. ``diverged``, with the incident and its cause, if a loss or gradient was not finite and ``on_incident`` is ``stop``; the weights are then
        those of the last good step.

    Raises:
        DataError: data, checkpoint or config that make no sense.
    """
    trainer = Trainer(config)
    result, fabric = trainer.result, trainer.fabric
    result.first_process = bool(fabric.is_global_zero)
    place = RunFolder(folder, writes=fabric.is_global_zero) if folder is not None else None
    first = 0
    if resume and place is not None and place.checkpoint.exists():
        _same_run(config, place)
        first, extra = load_checkpoint(place.checkpoint, trainer.parts())
        result.steps, result.empty_batches, result.skipped = first, int(extra["empty_batches"]), int(extra["skipped"])
        result.best = float(extra["best"])
    elif resume and place is None:
        raise DataError("resume without a folder", why="the checkpoint lies in the run's folder", do="pass folder=")
    if place is not None:
        place.begin(config, first)
    began = time.perf_counter()
    with _one_board(place) as board:
        _loop(trainer, first, place, board, progress)
        if not result.diverged and "abs_rel" not in result.metrics:
            trainer.score(config.steps, place)
    result.seconds = time.perf_counter() - began
    trainer.part()
    return result


_FREE = {"evaluate_every", "checkpoint_every", "log_every", "on_incident", "devices", "accelerator"}
"""Settings that a resumed run may change."""


def _same_run(config: TrainConfig, place: RunFolder) -> None:
    """Refuse to go on with another training than the checkpoint is of."""
    file = place.path / "config.json"
    if not file.exists():
        return
    before = TrainConfig.read(file)
    changed = [each.name for each in fields(TrainConfig) if each.name not in _FREE and getattr(before, each.name) != getattr(config, each.name)]
    if changed == ["steps"] and config.optimization.schedule == "constant":
        return
    if changed:
        said = ", ".join(f"{name} was {getattr(before, name)!r}, is {getattr(config, name)!r}" for name in changed)
        raise DataError(
            f"another training is to be resumed: {said}",
            where=str(file),
            why="what follows would be neither the old run nor a new one (a schedule is planned for its steps)",
            do="resume with the folder's config.json, or start in another folder",
        )


def _save(trainer: Trainer, file: Path, step: int) -> None:
    if trainer.fabric.is_global_zero:
        save_checkpoint(
            file, trainer.parts(), step, {"empty_batches": trainer.result.empty_batches, "skipped": trainer.result.skipped, "best": trainer.result.best}
        )


def _loop(trainer: Trainer, first: int, place: RunFolder | None, board: Any, progress: Progress | None) -> None:
    from nanopsy import watch

    config, result = trainer.config, trainer.result
    diagnosis = Diagnosis()

    def on_incident(incident: Incident) -> None:
        if config.on_incident != "continue":
            raise BadStepError(incident)

    trainer.network.train()
    since, logged = time.perf_counter(), first
    with watch(on_incident) as seen:
        for step, batch in trainer.batches(first):
            random_state = torch.get_rng_state()
            empty = trainer.fabric.world_size == 1 and not bool(((batch.depth > trainer.protocol.min_depth) & (batch.depth < trainer.protocol.max_depth)).any())
            loss = math.nan
            if empty:
                result.empty_batches += 1
            else:
                try:
                    loss = trainer.step(batch)
                except BadStepError as bad:
                    incident = bad.incident
                    break_off = config.on_incident == "stop"
                    if break_off or result.incident is None:
                        incident = trainer.autopsy(batch, random_state, incident)
                        incident.step = step
                        diagnosis.incidents.append(incident)
                        result.incident = result.incident or incident
                    if break_off:
                        result.diverged = True
                        break
                    trainer.left_out()
            trainer.advance()
            result.steps = step + 1
            if result.steps % config.log_every == 0 or result.steps == config.steps:
                rate = (result.steps - logged) * config.batch * trainer.fabric.world_size / max(time.perf_counter() - since, 1e-9)
                numbers = {"loss": loss, "lr": trainer.schedule.get_last_lr()[0], "images_per_s": rate}
                if trainer.logits is not None and trainer.valid is not None and trainer.logits.shape == trainer.valid.shape and bool(trainer.valid.any()):
                    numbers["min_logit"] = float(trainer.logits[trainer.valid].min())
                    result.min_logit = min(result.min_logit, numbers["min_logit"])
                since, logged = time.perf_counter(), result.steps
                result.losses.append(loss)
                if place is not None:
                    place.add({"step": result.steps, **numbers})
                for name, value in numbers.items() if board is not None else ():
                    board.add_scalar(name, value, result.steps)
                if progress is not None:
                    progress(result.steps, numbers)
            if config.evaluate_every and result.steps % config.evaluate_every == 0:
                scores = trainer.score(result.steps, place)
                for name, value in scores.items() if board is not None else ():
                    board.add_scalar(f"evaluation/{name}", value, result.steps)
                if place is not None and scores["abs_rel"] < result.best:
                    result.best = scores["abs_rel"]
                    _save(trainer, place.best, result.steps)
            if place is not None and config.checkpoint_every and result.steps % config.checkpoint_every == 0:
                _save(trainer, place.checkpoint, result.steps)
        diagnosis.steps, diagnosis.notes = seen.steps, seen.notes
    if place is not None:
        diagnosis.steps = result.steps
        place.incidents(diagnosis)
        if not result.diverged:
            _save(trainer, place.checkpoint, result.steps)
