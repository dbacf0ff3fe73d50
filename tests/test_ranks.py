"""Several ranks on gloo: rewound together, the rank and batch of birth named, one report; and no hang when one of them dies."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from running import schema, write

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="gloo over loopback")

TRAIN = """
    import os, signal, sys
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard
    kind, reaction = sys.argv[1], sys.argv[2]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    class Scenes(torch.utils.data.Dataset):
        def __len__(self):
            return 16
        def __getitem__(self, number):
            draw = torch.Generator().manual_seed(number)
            keep = torch.zeros(64, dtype=torch.bool)
            keep[torch.randperm(64, generator=draw)[: 1 if number == BAD else 20]] = True
            return torch.rand(3, 8, 8, generator=draw), (torch.rand(1, 8, 8, generator=draw) * 70 + 1) * keep.reshape(1, 8, 8)

    def silog(prediction, depth):
        valid = depth > 0
        g = torch.log(prediction[valid]) - torch.log(depth[valid])
        return 10 * torch.sqrt(torch.var(g) + 0.15 * g.mean() ** 2)

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.Conv2d(4, 1, 3, padding=1), torch.nn.Sigmoid())
    if kind == "ddp":
        net = torch.nn.parallel.DistributedDataParallel(net)
    elif kind == "fsdp":
        fully_shard(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=kind == "scaler")
    if kind == "scaler":
        net = torch.nn.parallel.DistributedDataParallel(net)
    data = Scenes()
    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)
    seen = [0]
    for number, (image, depth) in enumerate(torch.utils.data.DataLoader(data, batch_size=1, sampler=sampler)):
        seen[0] += number == 2
        if reaction in ("killed", "stopped") and rank == 0 and seen[0] == 3:
            os.kill(os.getpid(), signal.SIGKILL if reaction == "killed" else signal.SIGSTOP)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16, enabled=kind == "scaler"):
            prediction = 80 * net(image)
        loss = silog(prediction.float(), depth)
        if reaction == "own" and not torch.isfinite(loss):
            raise FloatingPointError("my loss is NaN")
        if reaction == "averaged":
            mean = loss.detach().clone()
            dist.all_reduce(mean)
            if not torch.isfinite(mean):
                sys.exit(7)
        if kind == "gradient" and number == 2 and rank == 1:
            loss = loss + torch.sqrt((next(net.parameters()) * 0).pow(2).sum())
        scaler.scale(loss).backward()
        if kind == "gradient":
            for parameter in net.parameters():
                dist.all_reduce(parameter.grad)
        if kind in ("ddp", "fsdp"):
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        scaler.step(optimizer)
        scaler.update()
    print("END", rank, number, flush=True)
    dist.destroy_process_group()
    """


@dataclass(frozen=True)
class Together:
    status: list[int]
    out: list[str]
    err: list[str]
    report: dict[str, Any]

    @property
    def incident(self) -> dict[str, Any]:
        assert len(self.report["incidents"]) == 1, self.err
        found: dict[str, Any] = self.report["incidents"][0]
        return found


def train(folder: Path, kind: str, reaction: str = "none", *options: str, world: int = 2, bad: int | str = 5, wait: str = "60") -> Together:
    """Each rank a process of its own, as a launcher starts them; the report is one file for all."""
    write(folder, TRAIN.replace("BAD", str(bad)))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    report = folder / "report.json"
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "NANOPSY_RANK_TIMEOUT": wait,
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "nanopsy", "run", "--json", str(report), *options, "train.py", kind, reaction]
    running = [
        subprocess.Popen(
            command, cwd=folder, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(world)
    ]
    first = range(1, world) if reaction in ("killed", "stopped") else range(world)
    said: dict[int, tuple[str, str]] = {}
    try:
        for rank in first:
            said[rank] = running[rank].communicate(timeout=150)
    finally:
        for process in running:
            if process.poll() is None:
                process.kill()
    for rank in range(world):
        if rank not in said:
            said[rank] = running[rank].communicate(timeout=30)
    content = json.loads(report.read_text()) if report.exists() else {"incidents": []}
    if "format" in content:
        jsonschema.validate(content, schema())
    return Together([process.returncode for process in running], [said[rank][0] for rank in range(world)], [said[rank][1] for rank in range(world)], content)


@pytest.mark.parametrize(("kind", "world"), [("ddp", 2), ("ddp", 4), ("fsdp", 2), ("fsdp", 4)])
def test_the_rank_and_the_batch_of_birth(tmp_path: Path, kind: str, world: int) -> None:
    ran = train(tmp_path, kind, world=world, bad=world * 2 + 1)
    assert ran.status == [3] * world, ran.err
    assert ran.incident["rank"] == 1
    assert ran.incident["batch"] == {"number": 2, "samples": [world * 2 + 1]}
    assert ran.incident["outcome"] == "reproduced"
    first = ran.incident["findings"][0]
    assert (first["code"], first["verified"]) == ("NAN301", True)
    assert sum("NAN301 bessel-of-one" in err for err in ran.err) == 1, "one report"
    assert "born on rank 1, batch 2 of its loop" in "".join(ran.err)
    assert len(list((tmp_path / ".nanopsy").glob("*.nanopsy"))) == 1, "one capsule"
    assert "Traceback" not in "".join(ran.err)


def test_a_gradient_that_is_born_on_one_rank(tmp_path: Path) -> None:
    ran = train(tmp_path, "gradient", bad=-1)
    assert ran.incident["what"] == "gradient"
    assert ran.incident["rank"] == 1
    assert ran.incident["findings"][0]["code"] in ("NAN101", "NAN102")


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_skipped_on_all_ranks(tmp_path: Path, kind: str) -> None:
    ran = train(tmp_path, kind, "none", "--on-incident", "skip", "--no-verify", "--no-capsule")
    assert ran.status == [0, 0], ran.err
    assert ran.incident["count"] == 1
    assert [f"END {rank} 7" in ran.out[rank] for rank in range(2)] == [True, True]


@pytest.mark.parametrize("reaction", ["own", "averaged"])
def test_the_script_reacts_by_itself(tmp_path: Path, reaction: str) -> None:
    ran = train(tmp_path, "ddp", reaction, "--no-capsule")
    assert ran.incident["rank"] == 1
    assert ran.incident["findings"][0]["code"] == "NAN301"
    assert ran.incident["findings"][0]["verified"] is True


def test_a_scaler_that_skips_on_all_ranks(tmp_path: Path) -> None:
    ran = train(tmp_path, "scaler", "none", "--no-capsule")
    assert ran.status == [3, 3], ran.err
    assert (ran.incident["rank"], ran.incident["what"], ran.incident["findings"][0]["code"]) == (1, "loss", "NAN301")


@pytest.mark.parametrize("reaction", ["killed", "stopped"])
def test_a_rank_that_dies_during_the_autopsy(tmp_path: Path, reaction: str) -> None:
    ran = train(tmp_path, "ddp", reaction, "--no-capsule", wait="8")
    assert ran.status[1] == 3, ran.err[1]
    assert ran.incident["rank"] == 1
    assert "another rank was lost during the autopsy" in ran.err[1]
    assert ran.incident["findings"][0]["code"] == "NAN301", "what was known already is not lost"


def test_a_healthy_training_is_none_the_wiser(tmp_path: Path) -> None:
    ran = train(tmp_path, "ddp", bad=-1)
    assert ran.status == [0, 0], ran.err
    assert ran.report["incidents"] == []
    assert ran.report["steps"] == 8
    assert ran.err == ["", ""] or not any("nanopsy" in err for err in ran.err)


def test_more_bad_steps_than_are_examined(tmp_path: Path) -> None:
    """Beyond the most that a run opens, bad steps are counted and dropped on all ranks alike; no watchdog is left behind."""
    ran = train(tmp_path, "ddp", "none", "--on-incident", "skip", "--no-verify", "--no-capsule", bad="number // 1", wait="6")
    assert ran.status == [0, 0], ran.err
    assert [f"END {rank} 7" in ran.out[rank] for rank in range(2)] == [True, True]
    assert ran.incident["count"] == 5
    assert any("3 further bad steps" in note for note in ran.report["notes"])
