"""``nanopsy lab``: options, progress, exit status."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanopsy.errors import EXIT_CLEAN, EXIT_FINDINGS, NanopsyError

__all__ = ["add_arguments", "key_values", "run"]

DEMONSTRATIONS = ("sqrt", "logsigmoid", "variance")


def key_values(words: Sequence[str], where: str) -> dict[str, Any]:
    """``key=value`` words as a table; numbers and true/false by their looks."""
    found: dict[str, Any] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not key:
            raise NanopsyError(f"{word!r} is not key=value", where=where, why="each option of a dataset has a name", do="for example root=/data/kitti")
        text: Any = value
        for kind in (int, float):
            try:
                text = kind(value)
                break
            except ValueError:
                continue
        found[key] = {"true": True, "false": False}.get(value.lower(), text) if isinstance(text, str) else text
    return found


def add_arguments(verb: argparse.ArgumentParser) -> None:
    """The sub-verbs and their options."""
    kinds = verb.add_subparsers(dest="lab", metavar="WHAT", required=True)
    for name, text in (
        ("sqrt", "the square-root loss: gradient, implied step size, landscapes"),
        ("logsigmoid", "the log of a sigmoid: error, first bad logit, logits in training"),
        ("variance", "variance implementations: error, crops with one valid pixel, losses"),
    ):
        each = kinds.add_parser(name, help=text, description=f"Demonstrate {text}.")
        each.add_argument("--out", metavar="DIR", default=f"lab/{name}", help="where figures, tables and text go (default: %(default)s)")
        each.add_argument("--quick", action="store_true", help="fewer points")
        if name == "variance":
            each.add_argument("--data", metavar="NAME", help="count the crops of this dataset instead of procedural scenes")
            each.add_argument("--data-option", metavar="KEY=VALUE", action="append", default=[], help="option of the dataset: root=…, split=…")
            each.add_argument("--maps", type=int, default=20, metavar="N", help="depth maps to count over (default: %(default)s)")

    train = kinds.add_parser(
        "train", help="train one depth network, watched", description="Train a depth network with nanopsy's watch on; a bad step is diagnosed."
    )
    train.add_argument("--out", metavar="DIR", default="runs/depth", help="the run's folder (default: %(default)s)")
    train.add_argument("--config", metavar="FILE", help="a config.json; the other options change it")
    train.add_argument("--resume", action="store_true", help="go on from the folder's checkpoint, bit for bit")
    train.add_argument(
        "--data",
        metavar="NAME",
        help="scenes (default), kitti, kitti-velodyne, nyu, nyu-labelled, ddad, argoverse, drivingstereo, …",
    )
    train.add_argument("--data-option", metavar="KEY=VALUE", action="append", default=[], help="option of the dataset: root=…, split=…")
    train.add_argument("--eval-option", metavar="KEY=VALUE", action="append", default=[], help="option of the evaluation set, over those of the dataset")
    train.add_argument("--crop", metavar="HxW", help="training crop, for example 352x704")
    train.add_argument("--model", help="bts, adabins, newcrfs, depthformer, pixelformer, dpt, glpn, zoedepth, depth-anything, depth-pro")
    train.add_argument("--size", choices=("tiny", "full"))
    train.add_argument("--backbone", metavar="NAME", help="another encoder")
    train.add_argument("--checkpoint", metavar="FILE", help="pretrained encoder weights, .safetensors")
    train.add_argument("--loss", choices=("adabins", "bts", "bts-invariant"), help="whose published SILog")
    train.add_argument("--recipe", metavar="NAME", help="published, no-root, logsigmoid, population, all, or a folk remedy")
    for name in ("lr", "weight-decay", "clip", "average", "max-depth"):
        train.add_argument(f"--{name}", type=float, metavar="X")
    for name in ("steps", "batch", "seed", "workers", "evaluate-every", "checkpoint-every", "log-every", "nodes"):
        train.add_argument(f"--{name}", type=int, metavar="N")
    train.add_argument("--schedule", choices=("onecycle", "cosine", "constant"))
    train.add_argument("--precision", choices=("32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"))
    train.add_argument("--on-incident", choices=("stop", "skip", "continue"))
    train.add_argument("--devices", metavar="N")
    train.add_argument("--strategy", metavar="NAME", help="Fabric's: auto, ddp …")

    paper = kinds.add_parser(
        "paper", help="the paper's experiments and their report", description="Run the grid of trainings and write its report; cells that are done are kept."
    )
    scale = paper.add_mutually_exclusive_group(required=True)
    scale.add_argument("--smoke", action="store_true", help="each vulnerability and its guideline once (minutes)")
    scale.add_argument("--small", action="store_true", help="the whole grid on procedural scenes with tiny networks (under an hour on two cores)")
    scale.add_argument("--full", action="store_true", help="full networks on real data, with GPUs")
    paper.add_argument("--out", metavar="DIR", default="lab/paper", help="cells and report (default: %(default)s)")
    paper.add_argument("--jobs", type=int, default=0, metavar="N", help="local processes (default: one for each core)")
    paper.add_argument("--only", metavar="NAME", action="append", default=[], help="only this scenario (may be given again)")
    paper.add_argument("--data", metavar="NAME", help="dataset of --full")
    paper.add_argument("--data-option", metavar="KEY=VALUE", action="append", default=[])
    paper.add_argument("--eval-option", metavar="KEY=VALUE", action="append", default=[])
    paper.add_argument("--slurm", action="store_true", help="submit every cell as a Slurm job")
    paper.add_argument("--partition", default="", metavar="NAME")


def _demonstrate(options: argparse.Namespace) -> int:
    import importlib
    import time

    if options.lab == "variance" and options.data:
        from nanopsy.depth.datasets import open_dataset

        more: dict[str, Any] = {"source": open_dataset(options.data, **key_values(options.data_option, "--data-option")), "maps": options.maps}
    else:
        more = {"maps": options.maps} if options.lab == "variance" else {}
    began = time.perf_counter()
    file = importlib.import_module(f"nanopsy.lab.{options.lab}").demonstrate(options.out, quick=options.quick, **more)
    print(f"{file} ({time.perf_counter() - began:.0f} s); figures/ and tables/ beside it, report.html holds all of it")
    return EXIT_CLEAN


def config_of(options: argparse.Namespace) -> Any:
    """The training config that the options of ``lab train`` describe."""
    from dataclasses import fields, replace

    from nanopsy.depth.config import TrainConfig
    from nanopsy.depth.recipes import recipes

    config = TrainConfig.read(Path(options.config)) if options.config else TrainConfig()
    data = config.data
    if options.data:
        data = replace(data, name=options.data, options={}, evaluate={})
    data = replace(
        data,
        options={**data.options, **key_values(options.data_option, "--data-option")},
        evaluate={**data.evaluate, **key_values(options.eval_option, "--eval-option")},
    )
    if options.crop:
        try:
            height, width = (int(word) for word in options.crop.lower().split("x"))
        except ValueError:
            raise NanopsyError(f"the crop is {options.crop!r}", where="--crop", why="it has a height and a width", do="for example --crop 352x704") from None
        data = replace(data, crop=(height, width))
    if options.workers is not None:
        data = replace(data, workers=options.workers)
    if not data.evaluate and data.name == "scenes":
        data = replace(data, evaluate={"first": 1_000_000, "count": 40})
    loss, recipe = options.loss or config.recipe.loss, config.recipe
    if options.loss or options.recipe:
        recipe = recipes(loss, (options.recipe or recipe.name,))[0]
    optimization = replace(
        config.optimization, **{key: value for key in ("lr", "weight_decay", "clip", "average", "schedule") if (value := getattr(options, key)) is not None}
    )
    own = [each.name for each in fields(TrainConfig) if each.name not in ("data", "recipe", "optimization", "devices", "head", "accelerator")]
    changes = {key: value for key in own if (value := getattr(options, key)) is not None}
    if options.devices is not None:
        changes["devices"] = int(options.devices) if options.devices.isdigit() else options.devices
    return replace(config, data=data, recipe=recipe, optimization=optimization, **changes)


def _train(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from nanopsy.depth.train import train
    from nanopsy.findings import Diagnosis

    config = config_of(options)
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"))
    console = Console(stderr=True, quiet=not first)
    with Progress(
        TextColumn("step {task.completed}/{task.total}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[said]}"), console=console
    ) as bar:
        task = bar.add_task("training", total=config.steps, said="")

        def progress(step: int, numbers: dict[str, float]) -> None:
            bar.update(task, completed=step, said=f"loss {numbers['loss']:.3f}  lr {numbers['lr']:.2e}  {numbers['images_per_s']:.1f} images/s")

        result = train(config, options.out, resume=options.resume, progress=progress)
    if not result.first_process and not result.diverged:
        return EXIT_CLEAN
    if result.diverged and result.incident is not None:
        print(Diagnosis([result.incident], result.steps), file=sys.stderr)
        print(f"diverged at step {result.incident.step}; the weights of the last good step are not overwritten. {options.out}/incidents.json")
        return EXIT_FINDINGS
    scores = "  ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    print(f"{result.steps} steps in {result.seconds:.0f} s. {scores}")
    left_out = [
        f"{count} {what}" for count, what in ((result.empty_batches, "batches without a valid pixel"), (result.skipped, "steps that were not finite")) if count
    ]
    if left_out:
        print(f"left out: {', '.join(left_out)}")
    return EXIT_CLEAN


def _paper(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from nanopsy.depth.config import Data
    from nanopsy.lab import plans
    from nanopsy.lab.grid import Cell, Outcome, cells_of
    from nanopsy.lab.paper import conclude, write_report
    from nanopsy.lab.runner import Slurm, run_here, run_slurm

    if options.full:
        if not options.data:
            raise NanopsyError(
                "--full without --data", why="it trains on a real dataset", do="for example --data kitti --data-option root=… --data-option split=…"
            )
        scenarios = plans.full(Data(options.data, key_values(options.data_option, "--data-option"), key_values(options.eval_option, "--eval-option")))
    else:
        scenarios = plans.smoke() if options.smoke else plans.small()
    known = [each.name for each in scenarios]
    for name in options.only:
        if name not in known:
            raise NanopsyError(f"there is no scenario {name!r}", where="--only", do=f"one of {', '.join(known)}")
    scenarios = tuple(each for each in scenarios if not options.only or each.name in options.only)
    cells = [cell for each in scenarios for cell in cells_of(each)]
    folder = Path(options.out)
    with Progress(
        TextColumn("{task.completed}/{task.total} trainings"),
        BarColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}"),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("cells", total=len(cells), said="")

        def done(cell: Cell, outcome: Outcome) -> None:
            how = outcome.failed or (f"diverged at {outcome.steps}, {outcome.cause or 'cause unknown'}" if outcome.diverged else "finished")
            bar.update(task, advance=1, said=f"{cell.key}: {how}")

        if options.slurm:
            outcomes = run_slurm(cells, folder / "cells", Slurm(options.partition), done)
        else:
            outcomes = run_here(cells, folder / "cells", options.jobs, done)
    file = write_report(folder, scenarios, outcomes)
    _, verdicts, comparisons = conclude(scenarios, outcomes)
    for name, text in [(each.scenario, each.text) for each in verdicts] + [(each.scenario, each.text) for each in comparisons]:
        print(f"{name}: {text}")
    print(file)
    failed = sum(1 for each in outcomes if each.failed)
    if failed:
        raise NanopsyError(
            f"{failed} of {len(outcomes)} cells could not run",
            where=str(folder / "cells"),
            why="the report is incomplete",
            do="read their files; run again to retry",
        )
    return EXIT_CLEAN


def run(options: argparse.Namespace) -> int:
    """Run one sub-verb; returns the exit status."""
    try:
        if options.lab in DEMONSTRATIONS:
            return _demonstrate(options)
        return _train(options) if options.lab == "train" else _paper(options)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("nanopsy", ""):
            raise
        raise NanopsyError(
            f"{error.name} is not installed in this environment",
            where=sys.prefix,
            why="the laboratory trains networks and draws figures",
            do='pip install "nanopsy[lab]"',
        ) from None
