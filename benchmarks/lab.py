"""What the laboratory costs: rendering scenes, keeping a network fed, one training step.

    python benchmarks/lab.py [--rounds 5] [--model bts]

Scenes are rendered at 192 x 320 on one core. ``loader_idle`` is the share of a training's time spent waiting for the next batch, with two workers that render,
sense and augment every frame anew (nothing cached) for a tiny network at batch 4, crops of 160 x 288; beside it the same with no worker. The last line is
name=value pairs; medians.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import torch

from nanopsy.depth.config import Data, Optimization, TrainConfig
from nanopsy.depth.recipes import recipes
from nanopsy.depth.scenes import SceneOptions, Sensor, render, sense
from nanopsy.depth.trainer import Trainer


def scenes_per_second(kind: str, rounds: int, count: int = 20) -> float:
    """Images and sparse depth per second, 192 x 320, one core."""
    options, sensor = SceneOptions(kind), Sensor("lidar" if kind == "street" else "kinect")
    rates = []
    for number in range(rounds):
        began = time.perf_counter()
        for seed in range(number * count, (number + 1) * count):
            sense(render(seed, options).depth, sensor, seed)
        rates.append(count / (time.perf_counter() - began))
    return statistics.median(rates)


def training(model: str, workers: int, steps: int) -> tuple[float, float]:
    """(median milliseconds of a step, share of the time spent waiting for batches), the first 5 steps left out."""
    config = TrainConfig(
        data=Data(options={"count": 4000}, evaluate={"first": 100_000, "count": 1}, crop=(160, 288), cache=False, workers=workers),
        model=model,
        recipe=recipes("bts", ("all",))[0],
        optimization=Optimization(lr=1e-3),
        steps=steps,
        batch=4,
    )
    trainer = Trainer(replace(config))
    trainer.network.train()
    waits, computes = [], []
    mark = time.perf_counter()
    for step, batch in trainer.batches(0):
        arrived = time.perf_counter()
        trainer.step(batch)
        trainer.advance()
        done = time.perf_counter()
        if step >= 5:
            waits.append(arrived - mark)
            computes.append(done - arrived)
        mark = done
    return 1000 * statistics.median(computes), sum(waits) / (sum(waits) + sum(computes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--model", default="bts")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    street, room = (scenes_per_second(kind, arguments.rounds) for kind in ("street", "room"))
    print(f"scenes at 192 x 320, one core: street {street:.1f}/s, room {room:.1f}/s")
    torch.set_num_threads(2)
    step_ms, idle = training(arguments.model, 2, arguments.steps)
    alone_ms, alone = training(arguments.model, 0, arguments.steps)
    print(f"{arguments.model} (tiny), batch 4, two workers: {step_ms:.0f} ms a step, waiting {100 * idle:.1f} %")
    print(f"{arguments.model} (tiny), batch 4, no worker: {alone_ms:.0f} ms a step, waiting {100 * alone:.1f} %")
    print(f"scenes_per_s={street:.1f} rooms_per_s={room:.1f} loader_idle={idle:.3f} loader_idle_without_workers={alone:.3f} step_ms={step_ms:.1f}")


if __name__ == "__main__":
    main()
