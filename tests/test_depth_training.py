"""Training: resumed bit for bit after a kill, watched, skipped, distributed; and what is said of configs that make no sense."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from nanopsy.depth.checkpoints import load_checkpoint
from nanopsy.depth.config import Data, Optimization, TrainConfig
from nanopsy.depth.encodings import DataError
from nanopsy.depth.loading import Place, StepSampler
from nanopsy.depth.recipes import GUIDELINES, LOSSES, REMEDIES, Recipe, RecipeLoss, recipes
from nanopsy.depth.schedules import warm_cosine
from nanopsy.depth.train import train
from nanopsy.depth.trainer import Trainer
from nanopsy.stable import SILogForm, scaled_sigmoid, silog

pytestmark = pytest.mark.usefixtures("one_thread")
VAR = pytest.mark.filterwarnings("ignore:var:UserWarning")


def tiny(**changes: object) -> TrainConfig:
    """A training of a few seconds."""
    data = Data(options={"count": 12, "height": 48, "width": 64, "lines": 10}, evaluate={"first": 1000, "count": 4}, crop=(32, 32))
    base = TrainConfig(data=data, recipe=recipes("bts", ("all",))[0], steps=8, batch=2, log_every=2, optimization=Optimization(lr=1e-3, average=0.9))
    return replace(base, **changes)  # type: ignore[arg-type]


# -- recipes -------------------------------------------------------------------------------------


def _case() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 1, 6, 6, generator=generator, dtype=torch.float64)
    target = torch.rand(2, 1, 6, 6, generator=generator, dtype=torch.float64) * 40 + 1
    return logits, target, torch.rand(2, 1, 6, 6, generator=generator) < 0.5


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", [*GUIDELINES, "clip 1", "skip step", "nan_to_num"])
def test_recipes_agree_where_nothing_is_wrong(loss: str, name: str) -> None:
    """On ordinary numbers a guideline changes the root and Bessel's factor, and nothing else."""
    logits, target, mask = _case()
    recipe = recipes(loss, (name,))[0]
    prediction = scaled_sigmoid(logits, 80.0)
    value = RecipeLoss(recipe)(prediction if recipe.logsigmoid else prediction.depth, target, mask)
    published = LOSSES[loss]
    bessel = published.variance == "bessel" and not recipe.population
    form = SILogForm(lam=published.lam, scale=published.scale, root=recipe.root, correction=1 if bessel else 0)
    assert float(value) == pytest.approx(float(silog(prediction, target, mask, form=form)), rel=1e-9)


@pytest.mark.parametrize(("loss", "name", "finite"), [("adabins", "published", False), ("adabins", "no-root", False), ("adabins", "population", True), ("adabins", "all", True),
                                                       ("bts", "published", True), ("bts-invariant", "published", False), ("bts-invariant", "no-root", True)])  # fmt: skip
@VAR
def test_one_valid_pixel(loss: str, name: str, finite: bool) -> None:  # noqa: FBT001
    logits = torch.zeros(1, 1, 4, 4, requires_grad=True)
    target = torch.full((1, 1, 4, 4), 5.0)
    mask = torch.zeros(1, 1, 4, 4, dtype=torch.bool)
    mask[0, 0, 1, 1] = True
    recipe = recipes(loss, (name,))[0]
    prediction = scaled_sigmoid(logits, 80.0) if recipe.logsigmoid else 80 * torch.sigmoid(logits)
    RecipeLoss(recipe)(prediction, target, mask).backward()
    assert logits.grad is not None
    assert bool(logits.grad.isfinite().all()) == finite


def test_folk_remedies_do_what_they_say() -> None:
    logits = torch.full((1, 1, 2, 2), -200.0)
    target, mask = torch.full((1, 1, 2, 2), 5.0), torch.ones(1, 1, 2, 2, dtype=torch.bool)
    value = {name: float(RecipeLoss(recipes("bts", (name,))[0])(80 * torch.sigmoid(logits), target, mask)) for name in ("published", *REMEDIES)}
    assert not math.isfinite(value["published"])
    assert value["nan_to_num"] == 0
    assert value["clamp"] == pytest.approx(10 * (0.15**0.5) * abs(math.log(1e-3 / 5)), rel=1e-3)
    assert value["eps in the log"] < float("inf")


# -- order and schedule --------------------------------------------------------------------------


def test_every_epoch_is_a_permutation_and_ranks_share_it() -> None:
    whole = [key for batch in StepSampler(10, 3, Place(4, steps=5)) for key in batch]
    assert sorted(index for epoch, index in whole if epoch == 0) == list(range(10))
    assert [index for epoch, index in whole if epoch == 0] != [index for epoch, index in whole if epoch == 1]
    halves = [list(StepSampler(10, 3, Place(2, rank, 2, steps=5))) for rank in range(2)]
    assert [key for step in range(5) for half in halves for key in half[step]] == whole
    assert list(StepSampler(10, 3, Place(4, first_step=3, steps=5))) == list(StepSampler(10, 3, Place(4, steps=5)))[3:]


def test_the_warm_cosine() -> None:
    assert warm_cosine(0, 300) == pytest.approx(1e-3)
    assert warm_cosine(100, 300) == pytest.approx(1.0)
    assert warm_cosine(200, 300) == pytest.approx(0.5)
    assert warm_cosine(300, 300) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("schedule", ["onecycle", "cosine", "constant"])
def test_a_schedule_lasts_as_long_as_the_training(schedule: str) -> None:
    result = train(tiny(optimization=Optimization(lr=1e-3, schedule=schedule)))
    assert result.steps == 8
    assert not result.diverged


# -- the run -------------------------------------------------------------------------------------


def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    said: list[int] = []
    result = train(tiny(evaluate_every=4, checkpoint_every=4), tmp_path / "run", progress=lambda step, numbers: said.append(step))
    assert said == [2, 4, 6, 8]
    assert 0 < result.metrics["abs_rel"] < 20
    folder = tmp_path / "run"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in lines if "loss" in entry] == [2, 4, 6, 8]
    assert [entry["step"] for entry in lines if "abs_rel" in entry] == [4, 8]
    assert TrainConfig.read(folder / "config.json") == tiny(evaluate_every=4, checkpoint_every=4)
    assert "torch" in json.loads((folder / "environment.json").read_text())
    assert json.loads((folder / "incidents.json").read_text())["incidents"] == []
    assert {path.name for path in (folder / "pictures").iterdir()} == {"step-000004.png", "step-000008.png"}
    assert (folder / "best.safetensors").exists()
    assert list((folder / "tensorboard").iterdir())
    assert not list(folder.glob(".*"))


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "checkpoint.safetensors")


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_a_resumed_run_is_the_same_run(tmp_path: Path, precision: str) -> None:
    whole = train(tiny(precision=precision), tmp_path / "whole")
    config = tiny(precision=precision, checkpoint_every=4)
    train(replace(config, steps=8), tmp_path / "parts")
    # go back to the middle: the checkpoint of step 4 alone
    middle = tmp_path / "middle"
    trainer = Trainer(config)
    trainer.network.train()
    for step, batch in trainer.batches(0):
        if step == 4:
            break
        trainer.step(batch)
        trainer.advance()
    from nanopsy.depth.checkpoints import save_checkpoint

    middle.mkdir()
    save_checkpoint(middle / "checkpoint.safetensors", trainer.parts(), 4, {"empty_batches": 0, "skipped": 0, "best": 0.5})
    torch.manual_seed(999)
    resumed = train(config, middle, resume=True)
    assert resumed.losses[-2:] == whole.losses[-2:]
    first, second = _weights(tmp_path / "whole"), _weights(middle)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from test_depth_training import tiny
from nanopsy.depth.train import train
train(tiny(steps=30, checkpoint_every=5), sys.argv[1], resume=True, progress=lambda step, numbers: print(step, flush=True))
"""


def test_killed_and_resumed_is_never_killed(tmp_path: Path) -> None:
    """kill -9 in the middle of a run, twice; the end is bit for bit that of a run left alone."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent)))
    command = [sys.executable, "-W", "ignore", str(script)]
    subprocess.run([*command, str(tmp_path / "alone")], check=True, capture_output=True, timeout=200)
    for after in (8, 18):
        process = subprocess.Popen([*command, str(tmp_path / "killed")], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) >= after:
                os.kill(process.pid, signal.SIGKILL)
                break
        process.stdout.close()
        assert process.wait(timeout=60) == -signal.SIGKILL
        time.sleep(0.1)
    subprocess.run([*command, str(tmp_path / "killed")], check=True, capture_output=True, timeout=200)
    first, second = _weights(tmp_path / "alone"), _weights(tmp_path / "killed")
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    assert [json.loads(line)["step"] for line in (tmp_path / "killed" / "metrics.jsonl").read_text().splitlines() if "loss" in json.loads(line)] == list(
        range(2, 31, 2)
    )


def test_workers_change_nothing(tmp_path: Path) -> None:
    alone = train(tiny(steps=4), tmp_path / "a")
    fed = train(tiny(steps=4, data=replace(tiny().data, workers=2)), tmp_path / "b")
    assert alone.losses == fed.losses


@VAR
@pytest.mark.parametrize(("loss", "code"), [("adabins", "NAN301"), ("bts-invariant", "NAN101")])
def test_a_bad_step_is_diagnosed_before_it_is_written(tmp_path: Path, loss: str, code: str) -> None:
    sparse = Data(options={"count": 40, "height": 48, "width": 64, "lines": 4, "keep": 0.05}, evaluate={"first": 1000, "count": 2}, crop=(24, 48))
    config = tiny(data=sparse, recipe=Recipe(loss=loss), batch=1, steps=120, optimization=Optimization(lr=1e-3))
    result = train(config, tmp_path / "run")
    assert result.diverged
    assert result.code == code
    report = json.loads((tmp_path / "run" / "incidents.json").read_text())
    finding = report["incidents"][0]["findings"][0]
    assert finding["code"] == code
    assert Path(finding["location"]["file"]).name == "recipes.py"
    assert report["incidents"][0]["step"] == result.steps
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists(), "a run that diverged does not overwrite its checkpoint"

    skipping = train(replace(config, on_incident="skip", steps=result.steps + 10))
    assert skipping.steps == result.steps + 10
    assert skipping.skipped >= 1
    assert skipping.incident is not None
    assert math.isfinite(skipping.losses[-1])

    remedied = train(replace(config, recipe=recipes(loss, ("skip step",))[0], steps=result.steps + 10))
    assert remedied.skipped >= 1
    assert not remedied.diverged

    assert not train(replace(config, recipe=recipes(loss, ("all",))[0], steps=result.steps + 10)).diverged


def test_batches_without_a_valid_pixel_are_left_out_and_counted() -> None:
    blind = Data(options={"count": 4, "height": 48, "width": 64, "lines": 1, "keep": 0.0}, evaluate={"lines": 10, "keep": 0.5, "count": 2}, crop=(32, 32))
    result = train(tiny(data=blind, optimization=Optimization(lr=1e-3)))
    assert result.empty_batches == 8
    assert result.losses
    assert all(math.isnan(loss) for loss in result.losses)
    assert not result.diverged


@pytest.mark.parametrize("precision", ["bf16-true", "bf16-mixed"])
def test_half_precisions_train(precision: str) -> None:
    result = train(tiny(precision=precision, optimization=Optimization(lr=1e-3)))
    assert not result.diverged
    assert 0 < result.metrics["abs_rel"] < 100


def test_a_checkpoint_that_does_not_fit(tmp_path: Path) -> None:
    train(tiny(steps=2), tmp_path / "run")
    other = Trainer(tiny(model="newcrfs"))
    with pytest.raises(DataError, match="of another network"):
        load_checkpoint(tmp_path / "run" / "checkpoint.safetensors", other.parts())
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(DataError, match="cannot be read"):
        train(tiny(steps=2), tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="steps was 2, is 4"):
        train(tiny(steps=4), tmp_path / "run", resume=True)
    with pytest.raises(DataError, match="without a folder"):
        train(tiny(steps=2), resume=True)


def test_configs_that_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="did you mean 'optimization'"):
        TrainConfig.from_dict({"optimisation": {}})
    with pytest.raises(DataError, match="did you mean 'lr'"):
        TrainConfig.from_dict({"optimization": {"lrs": 1}})
    with pytest.raises(DataError, match="no 'fp16'"):
        TrainConfig(precision="fp16")
    for wrong in ({"steps": 0}, {"batch": -1}, {"optimization": Optimization(lr=-1.0)}):
        with pytest.raises(ValueError, match=r"steps|batch|lr"):
            TrainConfig(**wrong)  # type: ignore[arg-type]
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        TrainConfig.read(tmp_path / "config.json")
    assert TrainConfig.from_dict(json.loads(tiny().to_json())) == tiny()
    with pytest.raises(DataError, match="one crop of 24 x 24"):
        train(tiny(batch=1, data=replace(tiny().data, crop=(24, 24))))


@pytest.mark.skipif(torch.cuda.is_available(), reason="float16 can be trained here")
def test_float16_without_a_gpu_is_refused_not_replaced() -> None:
    with pytest.raises(DataError, match="16-mixed without a GPU"):
        train(tiny(precision="16-mixed"))


DDP = """
import json
import os
import sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from dataclasses import replace
from test_depth_training import tiny
from nanopsy.depth.trainer import Trainer
two, out = sys.argv[1] == "two", sys.argv[2]
trainer = Trainer(replace(tiny(), batch=2 if two else 4, steps=3, devices=2 if two else 1, strategy="ddp" if two else "auto", accelerator="cpu"))
trainer.network.eval()  # batch statistics of a half batch are not those of the whole
said = []
for step, batch in trainer.batches(0):
    names = list(batch.name)
    loss = trainer.loss(batch)
    trainer.fabric.backward(loss)
    trainer.optimizer.step()
    trainer.optimizer.zero_grad()
    said.append(names)
digest = sum(float(p.detach().double().abs().sum()) for p in trainer.bare.parameters())
with open(f"{{out}}-{{trainer.fabric.global_rank}}.json", "w") as file:
    json.dump([said, digest], file)
trainer.part()
os._exit(0)
"""


def test_two_processes_share_the_batches_and_agree(tmp_path: Path) -> None:
    script = tmp_path / "ddp.py"
    script.write_text(DDP.format(tests=str(Path(__file__).parent)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "RANK", "WORLD", "LOCAL_RANK", "MASTER"))}
    run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), "two", str(tmp_path / "two")]
    together = subprocess.run(run, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert together.returncode == 0, together.stderr[-3000:]
    subprocess.run([sys.executable, "-W", "ignore", str(script), "one", str(tmp_path / "one")], capture_output=True, timeout=200, check=True, env=environment)
    (first, weights), (second, others), (alone, _) = (json.loads((tmp_path / name).read_text()) for name in ("two-0.json", "two-1.json", "one-0.json"))
    assert weights == others, "the processes hold different weights"
    assert [sorted(a + b) for a, b in zip(first, second, strict=True)] == [sorted(batch) for batch in alone]


BAD_RANK = """
import json, sys
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from dataclasses import replace
from nanopsy.depth.config import Data, Optimization
from nanopsy.depth.recipes import Recipe
from nanopsy.depth.train import train
from test_depth_training import tiny
sparse = Data(options={{"count": 60, "height": 48, "width": 64, "lines": 4, "keep": 0.05}}, evaluate={{"first": 1000, "count": 2}}, crop=(24, 48))
policy, out = sys.argv[1:]
config = tiny(data=sparse, recipe=Recipe(loss="adabins"), batch=1, steps=40, devices=2, strategy="ddp", accelerator="cpu", on_incident=policy, optimization=Optimization(lr=1e-3))
result = train(config)
import os
with open(f"{{out}}-{{os.environ['RANK']}}.json", "w") as file:
    json.dump([result.diverged, result.steps, result.code, result.skipped], file)
os._exit(0)  # gloo's threads now and then abort an interpreter that ends; the run itself is over and written
"""


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_bad_loss_on_one_process_ends_the_step_on_all(tmp_path: Path, policy: str) -> None:
    """One process has one valid pixel, the other many: nobody waits for ever, and the one that had it names the cause."""
    script = tmp_path / "bad.py"
    script.write_text(BAD_RANK.format(tests=str(Path(__file__).parent)))
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "RANK", "WORLD", "LOCAL_RANK", "MASTER"))}
    run = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script), policy, str(tmp_path / "out")]
    done = subprocess.run(run, capture_output=True, text=True, timeout=200, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    (bad, steps, code, skipped), (also, same, other, left) = (json.loads((tmp_path / f"out-{rank}.json").read_text()) for rank in range(2))
    assert (bad, steps, skipped) == (also, same, left)
    assert bad == (policy == "stop")
    assert "NAN301" in (code, other)
    assert steps == 40 or policy == "stop"
    assert skipped > 0 or policy == "stop"
