"""Trainings inside frameworks' own loops, under plain ``nanopsy run``: rewound as anybody's, counted as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from running import Ran, nanopsy, python, write

SCENES = """
    import hashlib
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.Dropout(0.1),
                                            torch.nn.Conv2d(4, 1, 3, padding=1))
        def forward(self, image):
            return 80 * torch.sigmoid(self.body(image))

    class Scenes(torch.utils.data.Dataset):
        def __init__(self, bad):
            self.bad = bad
        def __len__(self):
            return 12
        def __getitem__(self, number):
            draw = torch.Generator().manual_seed(number)
            keep = torch.zeros(64, dtype=torch.bool)
            keep[torch.randperm(64, generator=draw)[: 1 if number == self.bad else 20]] = True
            depth = (torch.rand(1, 8, 8, generator=draw) * 70 + 1) * keep.reshape(1, 8, 8)
            return {"image": torch.rand(3, 8, 8, generator=draw), "depth": depth}

    def loader(bad):
        return torch.utils.data.DataLoader(Scenes(bad), batch_size=1)

    def shown(net):
        return hashlib.sha256(b"".join(value.detach().double().numpy().tobytes() for value in net.state_dict().values())).hexdigest()[:16]
    """
LOSS = """
    import torch
    def silog(prediction, depth):
        valid = depth > 0
        g = torch.log(prediction[valid]) - torch.log(depth[valid])
        return 10 * torch.sqrt(torch.var(g) + 0.15 * g.mean() ** 2)
    """
WAYS = {
    "by_lightning": """
    import logging, warnings
    import lightning.pytorch as pl
    def train(bad):
        warnings.simplefilter("ignore")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        class Module(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = Net()
            def training_step(self, batch, index):
                loss = silog(self.net(batch["image"]), batch["depth"])
                self.log("loss", loss)
                return loss
            def configure_optimizers(self):
                return torch.optim.Adam(self.parameters(), 1e-3)
        module = Module()
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, limit_train_batches=12)
        trainer.fit(module, loader(bad))
        return trainer.global_step, module.net
    """,
    "by_transformers": """
    from transformers import Trainer, TrainingArguments
    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = Net()
        def forward(self, image, depth):
            return {"loss": silog(self.net(image), depth)}
    def train(bad):
        settings = TrainingArguments("out", num_train_epochs=1, per_device_train_batch_size=1, report_to=[], use_cpu=True, logging_steps=5, save_strategy="no",
                                     remove_unused_columns=False, disable_tqdm=True)
        trainer = Trainer(Wrapped(), settings, train_dataset=Scenes(bad))
        trainer.train()
        return trainer.state.global_step, trainer.model.net
    """,
    "by_accelerate": """
    from accelerate import Accelerator
    def train(bad):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        net, optimizer, batches = accelerator.prepare(net, optimizer, loader(bad))
        steps = 0
        for epoch in range(1):
            for batch in batches:
                with accelerator.accumulate(net):
                    optimizer.zero_grad()
                    loss = silog(net(batch["image"]), batch["depth"])
                    accelerator.backward(loss)
                    optimizer.step()
                steps += 1
        return steps, net
    """,
    "by_ignite": """
    from ignite.engine import Engine
    def train(bad):
        net = Net()
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        def step(engine, batch):
            optimizer.zero_grad()
            loss = silog(net(batch["image"]), batch["depth"])
            loss.backward()
            optimizer.step()
            return loss.item()
        trainer = Engine(step)
        trainer.run(loader(bad), max_epochs=1)
        return trainer.state.iteration, net
    """,
}
TRAIN = """
    import sys
    import torch
    import WAYS
    torch.set_num_threads(1)
    bad = int(sys.argv[1])
    for way in (WAYS,):
        torch.manual_seed(0)
        steps, net = way.train(bad)
        print("END", way.__name__, steps, way.shown(net), all(bool(torch.isfinite(value.float()).all()) for value in net.state_dict().values()))
    """


def sources() -> dict[str, str]:
    files = {"scenes.py": SCENES, "train.py": TRAIN.replace("WAYS", ", ".join(WAYS))}
    for name, text in WAYS.items():
        files[f"loss_{name}.py"] = LOSS
        files[f"{name}.py"] = f"    import torch\n    from scenes import Net, Scenes, loader, shown\n    from loss_{name} import silog\n{text.strip(chr(10))}"
    return files


def ends(out: str) -> list[list[str]]:
    return [line.split()[1:] for line in out.splitlines() if line.startswith("END")]


@pytest.fixture(scope="module")
def skipped(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("skipped")
    write(folder, sources())
    return nanopsy(folder, "train.py", "7", options=("--rerun", "never", "--on-incident", "skip"))


@pytest.mark.parametrize("name", WAYS)
def test_the_frameworks_own_loop_is_rewound(skipped: Ran, name: str) -> None:
    found = [it for it in skipped.report["incidents"] if it["findings"] and it["findings"][0]["location"]["file"].endswith(f"loss_{name}.py")]
    assert len(found) == 1, skipped.err
    incident: dict[str, Any] = found[0]
    first = incident["findings"][0]
    assert (incident["outcome"], first["code"], first["location"]["line"]) == ("reproduced", "NAN301", 5)
    assert first["verified"] is True
    assert incident["batch"].get("samples", [7]) == [7] or name == "by_transformers", "it shuffles"


def test_the_frameworks_count_as_if_no_step_had_been_run_twice(skipped: Ran) -> None:
    assert [(name, steps, finite) for name, steps, _, finite in ends(skipped.out)] == [(name, "12", "True") for name in WAYS], skipped.out + skipped.err


def test_healthy_trainings_end_with_the_same_weights(tmp_path: Path) -> None:
    write(tmp_path, sources())
    plain = python(tmp_path, "train.py", "-1")
    watched = nanopsy(tmp_path, "train.py", "-1")
    assert plain.returncode == watched.status == 0, plain.stderr + watched.err
    assert watched.report["incidents"] == []
    assert ends(plain.stdout) == ends(watched.out)
    assert len(ends(plain.stdout)) == len(WAYS)
