"""Callbacks in trainings that ``nanopsy run`` did not start: the cause named, the weights clean, a healthy training untouched."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from running import write
from test_frameworks import LOSS, SCENES

TRAINS = {
    "lightning": """
    import logging, warnings
    import lightning.pytorch as pl
    from nanopsy.integrations.lightning import NanopsyCallback
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    class Module(pl.LightningModule):
        def __init__(self, net):
            super().__init__()
            self.net = net
        def training_step(self, batch, index):
            loss = silog(self.net(batch["image"]), batch["depth"])
            self.log("loss", loss)
            return loss
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-3)
    def train(net, bad, on_incident, watched):
        trainer = pl.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, callbacks=[NanopsyCallback(on_incident)] if watched else [])
        trainer.fit(Module(net), loader(bad))
    """,
    "transformers": """
    from transformers import Trainer, TrainingArguments
    from nanopsy.integrations.transformers import NanopsyCallback
    class Wrapped(torch.nn.Module):
        def __init__(self, net):
            super().__init__()
            self.net = net
        def forward(self, image, depth):
            return {"loss": silog(self.net(image), depth)}
    def train(net, bad, on_incident, watched):
        settings = TrainingArguments("out", num_train_epochs=1, per_device_train_batch_size=1, report_to=[], use_cpu=True, logging_steps=5, save_strategy="no",
                                     remove_unused_columns=False, disable_tqdm=True)
        Trainer(Wrapped(net), settings, train_dataset=Scenes(bad), callbacks=[NanopsyCallback(on_incident)] if watched else []).train()
    """,
    "accelerate": """
    import contextlib
    from accelerate import Accelerator
    from nanopsy.integrations.accelerate import watch
    def train(net, bad, on_incident, watched):
        accelerator = Accelerator(cpu=True)
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        net, optimizer, batches = accelerator.prepare(net, optimizer, loader(bad))
        def step(batch):
            return silog(net(batch["image"]), batch["depth"])
        with watch(accelerator, on_incident=on_incident, step=step) if watched else contextlib.nullcontext(step) as loss_of:
            for batch in batches:
                optimizer.zero_grad()
                accelerator.backward(loss_of(batch))
                optimizer.step()
    """,
    "ignite": """
    from ignite.engine import Engine
    from nanopsy.integrations.ignite import attach
    def train(net, bad, on_incident, watched):
        optimizer = torch.optim.Adam(net.parameters(), 1e-3)
        def step(engine, batch):
            optimizer.zero_grad()
            loss = silog(net(batch["image"]), batch["depth"])
            loss.backward()
            optimizer.step()
        trainer = Engine(step)
        if watched:
            attach(trainer, on_incident=on_incident)
        trainer.run(loader(bad), max_epochs=1)
    """,
}
CHECKS = """
    import sys
    import torch
    import nanopsy
    from scenes import Net, Scenes, loader, shown
    from loss import silog
    torch.set_num_threads(1)
    TRAIN

    def fresh():
        torch.manual_seed(0)
        return Net()

    healthy = []
    for watched in (False, True):
        net = fresh()
        train(net, -1, None, watched)
        healthy.append(shown(net))
    assert healthy[0] == healthy[1], healthy

    net = fresh()
    try:
        train(net, 7, None, True)
    except nanopsy.NonFiniteStep as stopped:
        incident = stopped.diagnosis.incidents[0]
        print("STOPPED", incident.findings[0].code, incident.findings[0].location.file.rsplit("/", 1)[-1], incident.findings[0].location.line, incident.outcome, incident.what)
        assert "NAN301" in str(stopped)
    else:
        raise AssertionError("not stopped")
    assert all(bool(torch.isfinite(value.float()).all()) for value in net.parameters())

    seen = []
    def skip(incident):
        seen.append(incident)
        return "skip"
    net = fresh()
    train(net, 7, skip, True)
    assert len(seen) == 1, seen
    assert all(bool(torch.isfinite(value.float()).all()) for value in net.parameters())
    print("SKIPPED", seen[0].findings[0].code)
    """


@pytest.mark.parametrize("name", TRAINS)
def test_the_callback_names_the_cause_before_the_optimizer_writes(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"scenes.py": SCENES, "loss.py": LOSS, "train.py": CHECKS.replace("    TRAIN\n", TRAINS[name].lstrip("\n"))})
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "STOPPED NAN301 loss.py 5 reproduced loss" in done.stdout, done.stdout
    assert "SKIPPED NAN301" in done.stdout


@pytest.mark.parametrize(("value", "status"), [("1", 1), ("0", 0), (None, 0)])
def test_lightning_finds_the_callback_by_itself(tmp_path: Path, value: str | None, status: int) -> None:
    text = TRAINS["lightning"].replace("callbacks=[NanopsyCallback(on_incident)] if watched else []", "callbacks=[]")
    main = (
        "    import torch\n    from scenes import Net, loader\n    from loss import silog\n"
        + text.lstrip("\n")
        + "\n    torch.manual_seed(0)\n    train(Net(), 7, None, True)\n"
    )
    write(tmp_path, {"scenes.py": SCENES, "loss.py": LOSS, "train.py": main})
    environment = {key: setting for key, setting in os.environ.items() if key != "NANOPSY"} | ({"NANOPSY": value} if value is not None else {})
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == status, done.stderr
    assert ("NonFiniteStep" in done.stderr) == (status == 1)


HARDER = """
    import copy, logging, warnings
    import torch
    import lightning.pytorch as pl
    from ignite.engine import Engine
    import nanopsy
    from nanopsy.integrations.ignite import attach
    from nanopsy.integrations.lightning import NanopsyCallback
    from scenes import Net, Scenes, loader
    from loss import silog
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)

    class Module(pl.LightningModule):
        def __init__(self, kind):
            super().__init__()
            self.kind, self.seen = kind, 0
            self.net = torch.nn.Linear(4, 1) if kind == "diverging" else Net()
        def training_step(self, batch):
            self.seen += 1
            if self.kind == "diverging":
                return (self.net(batch["image"].reshape(-1, 4)) ** 2).mean()
            return silog(self.net(batch["image"]), batch["depth"]) * (1.0 + self.seen if self.kind == "counter" else 1.0)
        def on_train_batch_start(self, batch, index):
            self.before = copy.deepcopy(self.net.state_dict())
        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 30.0 if self.kind == "diverging" else 1e-3)

    def fit(kind, bad=7, epochs=1, **settings):
        torch.manual_seed(0)
        module = Module(kind)
        trainer = pl.Trainer(max_epochs=epochs, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                             enable_model_summary=False, callbacks=[NanopsyCallback()], **settings)
        try:
            trainer.fit(module, loader(bad))
        except nanopsy.NonFiniteStep as stopped:
            incident = stopped.diagnosis.incidents[0]
            same = all(torch.equal(value, module.before[name]) for name, value in module.net.state_dict().items())
            print(kind, incident.outcome, incident.findings[0].code, same, module.seen)

    fit("plain")                                  # made before the callback: its buffers are put back all the same
    fit("accumulated", accumulate_grad_batches=3, bad=6)   # the bad batch is the first of three
    fit("counter")                                # its step depends on how often it was called
    fit("diverging", bad=-1, epochs=3)

    def engine_of(kind, net, bad):
        torch.manual_seed(0)
        optimizer, other = torch.optim.SGD(net.parameters(), 1e-3), torch.nn.Linear(2, 1)
        beside = torch.optim.SGD(other.parameters(), 1e-3)
        def process(engine, batch):
            if kind == "raises" and engine.state.iteration == 3:
                raise KeyError("the user's own")
            beside.zero_grad()
            other(torch.ones(1, 2)).sum().backward()
            beside.step()
            optimizer.zero_grad()
            silog(net(batch["image"]), batch["depth"]).backward()
            optimizer.step()
        engine = Engine(process)
        attach(engine, net)
        try:
            engine.run(loader(bad), max_epochs=1)
        except nanopsy.NonFiniteStep as stopped:
            incident = stopped.diagnosis.incidents[0]
            print(kind, incident.outcome, incident.findings[0].code)
        except KeyError:
            print(kind)

    engine_of("twice", Net(), 7)                  # the second backward of the step is bad
    engine_of("raises", Net(), -1)
    x = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([x], 0.1)
    (x * float("nan")).sum().backward()
    optimizer.step()
    print("left alone")
    """


def test_steps_that_are_harder_to_call_again(tmp_path: Path) -> None:
    write(tmp_path, {"scenes.py": SCENES, "loss.py": LOSS, "train.py": HARDER})
    done = subprocess.run([sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    said = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert said["plain"] == ["reproduced", "NAN301", "True", "8"], done.stdout
    assert said["accumulated"][:2] == ["reproduced", "NAN301"]
    assert said["counter"] == ["reproduced", "NAN301", "True", "8"]
    assert said["diverging"][:2] == ["reproduced", "NAN601"]
    assert said["twice"] == ["reproduced", "NAN301"]
    assert said["raises"] == []
    assert said["left"] == ["alone"]
