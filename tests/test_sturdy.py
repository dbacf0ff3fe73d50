"""What a night on a cluster does to a program: signals, full disks, workers, threads, large batches, thousands of bad steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from running import nanopsy, python, write

LOOP = """
    import os, signal, sys, threading
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    calls = [0]
    def loss_fn(w, i):
        calls[0] += 1
        STAGE
        x = torch.ones(3, 2) if i != 3 else torch.zeros(3, 2)
        return torch.sqrt((w(x) * x[:, :1]).pow(2).sum())
    w = torch.nn.Linear(2, 1)
    opt = torch.optim.SGD(w.parameters(), lr=0.1)
    for i in range(6):
        loss = loss_fn(w, i)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("end")
    """


@pytest.mark.parametrize("call", [1, 3, 4, 5, 6, 7, 8])
def test_an_interrupt_at_every_stage(tmp_path: Path, call: int) -> None:
    """The first calls are the training, the fourth is the bad step, the later ones are its replays: survey, recording, cures."""
    stage = f"if calls[0] == {call}: signal.signal(signal.SIGINT, signal.default_int_handler); os.kill(os.getpid(), signal.SIGINT)"
    write(tmp_path, LOOP.replace("STAGE", stage))
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "train.py")
    ended = done.returncode == 3 and "NAN10" in done.stderr
    assert done.returncode == 130 or (call > 6 and ended), (done.returncode, done.stderr)
    assert "end" not in done.stdout
    assert "nanopsy/" not in done.stderr.replace(str(tmp_path), "").replace(".nanopsy/", ""), "no traceback of ours"
    assert [path.name for path in tmp_path.rglob(".nanopsy-*")] == []


def test_an_interrupt_while_the_capsule_is_written(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LOOP.replace("STAGE", "pass"), "sitecustomize.py": """
        import sys, zipfile
        if "nanopsy" in " ".join(sys.orig_argv):
            old = zipfile.ZipFile.writestr
            def writestr(self, info, *args, **kwargs):
                old(self, info, *args, **kwargs)
                if getattr(info, "filename", "") == "sources.json":
                    raise KeyboardInterrupt
            zipfile.ZipFile.writestr = writestr
        """})  # fmt: skip
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "train.py", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 130, done.stderr
    assert sorted(path.name for path in (tmp_path / ".nanopsy").iterdir()) == [".gitignore"]


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LOOP.replace("STAGE", "pass"), "sitecustomize.py": """
        import resource, signal, sys
        if "nanopsy" in " ".join(sys.orig_argv):
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1500, 1500))
        """})  # fmt: skip
    done = python(tmp_path, "-B", "-m", "nanopsy", "run", "--rerun", "never", "train.py", env={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 3
    assert "NAN10" in done.stderr, "the report does not depend on the disk"
    assert "no capsule" in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in (tmp_path / ".nanopsy").iterdir()) == [".gitignore"]


def test_a_working_directory_that_cannot_be_written_to(tmp_path: Path) -> None:
    write(tmp_path, LOOP.replace("STAGE", "pass"))
    done = subprocess.run(
        [sys.executable, "-m", "nanopsy", "run", "--rerun", "never", str(tmp_path / "train.py")], cwd="/proc", capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "NAN10" in done.stderr
    assert "no capsule" in done.stderr


def test_ten_thousand_bad_steps_keep_memory_flat(tmp_path: Path) -> None:
    write(tmp_path, """
        import resource
        import torch
        torch.set_num_threads(1)
        w = torch.nn.Linear(64, 64)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)
        peaks = []
        for i in range(11_000):
            loss = (w(torch.ones(8, 64)) / 0.0).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            if i in (1000, 10_999):
                peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        assert bool(torch.isfinite(w.weight).all())
        print("grown", peaks[1] - peaks[0])
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py", options=("--rerun", "never", "--on-incident", "skip", "--no-verify", "--capsule", "."))
    assert ran.status == 0, ran.err
    assert int(ran.out.split()[1]) < 8_000, "kilobytes"
    assert len(list(tmp_path.glob("*.nanopsy"))) == 1
    assert ran.incident["count"] <= 5
    assert any("further bad steps were not examined" in note for note in ran.report["notes"])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_loader_workers(tmp_path: Path, method: str) -> None:
    write(tmp_path, f"""
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return torch.full((2,), float("nan") if i == 5 else 1.0)
        if __name__ == "__main__":
            torch.set_num_threads(1)
            w = torch.nn.Linear(2, 1)
            opt = torch.optim.SGD(w.parameters(), lr=0.01)
            for x in torch.utils.data.DataLoader(Data(), batch_size=1, num_workers=2, multiprocessing_context="{method}", persistent_workers={method == "spawn"}):
                loss = w(x).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.status == 3, ran.err
    assert ran.finding["code"] == "NAN701", ran.err
    assert ran.incident["batch"]["samples"] == [5]
    assert ran.finding["location"]["line"] == 6


def test_other_threads_are_not_the_training(tmp_path: Path) -> None:
    write(tmp_path, """
        import threading
        import torch
        torch.set_num_threads(1)
        stop = threading.Event()
        done = []
        def beside():
            v = torch.nn.Parameter(torch.ones(2))
            opt = torch.optim.SGD([v], lr=0.0)
            while not stop.is_set():
                for _ in range(3):
                    opt.zero_grad()
                    (v.sum() * float("nan")).backward()
                    opt.step()
                done.append(1)
        thread = threading.Thread(target=beside)
        thread.start()
        w = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)
        for i in range(40):
            loss = w(torch.ones(3, 2)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        while len(done) < 3:
            pass
        stop.set()
        thread.join()
        print("end")
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert (ran.status, ran.out, ran.report["incidents"]) == (0, "end\n", []), ran.err


@pytest.mark.parametrize(
    "patch",
    [
        "old = torch.Tensor.backward; torch.Tensor.backward = lambda self, *a, **k: old(self, *a, **k)",
        "old = torch.autograd.backward; torch.autograd.backward = lambda *a, **k: old(*a, **k)",
        "old = torch.nn.Module.__call__; torch.nn.Module.__call__ = lambda self, *a, **k: old(self, *a, **k)",
        "old = torch.optim.SGD.step; torch.optim.SGD.step = lambda self, closure=None: old(self)",
        "torch.isfinite = lambda t: (t == t) & (t.abs() != float('inf'))",
        "old = torch.sqrt; torch.sqrt = lambda *a, **k: old(*a, **k)",
        "import builtins; old = builtins.next; builtins.next = lambda *a: old(*a)",
        "import builtins; old = builtins.print; builtins.print = lambda *a, **k: old(*a, **k)",
    ],
)
def test_a_script_that_patches_torch(tmp_path: Path, patch: str) -> None:
    write(tmp_path, textwrap.dedent(LOOP).replace("STAGE", "pass").replace("torch.manual_seed(0)", f"{patch}\ntorch.manual_seed(0)"))
    ran = nanopsy(tmp_path, "train.py")
    assert ran.status == 3, ran.err
    assert ran.incident["outcome"] == "reproduced"
    assert ran.finding["code"] in ("NAN101", "NAN102")


def test_nanopsy_in_nanopsy(tmp_path: Path) -> None:
    write(tmp_path, LOOP.replace("STAGE", "pass"))
    inner = python(
        tmp_path,
        "-m",
        "nanopsy",
        "run",
        "--rerun",
        "never",
        "--no-capsule",
        "-m",
        "nanopsy",
        "run",
        "--rerun",
        "never",
        "--no-capsule",
        "--json",
        "x.json",
        "train.py",
    )
    assert inner.returncode == 3, inner.stderr
    assert inner.stderr.count("nanopsy explain NAN10") == 1, inner.stderr
    assert "Traceback" not in inner.stderr


def test_large_batches_are_not_copied(tmp_path: Path) -> None:
    source = """
        import resource
        import torch
        torch.set_num_threads(1)
        w = torch.nn.Parameter(torch.ones(1))
        opt = torch.optim.SGD([w], lr=1e-9)
        big = torch.ones(100_000_000)
        for batch in [big, big, big, big]:
            loss = (batch[::1000] * w).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        """
    write(tmp_path, source)
    plain = int(python(tmp_path, "train.py").stdout)
    watched = nanopsy(tmp_path, "train.py")
    assert int(watched.out) - plain < 100_000, "kilobytes; the batch has 400,000"


def test_a_termination_ends_it(tmp_path: Path) -> None:
    write(tmp_path, LOOP.replace("STAGE", "if calls[0] == 5: os.kill(os.getpid(), signal.SIGTERM)"))
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "train.py")
    assert done.returncode == -signal.SIGTERM
    assert [path.name for path in tmp_path.rglob(".nanopsy-*")] == []
    assert os.listdir(tmp_path) in (["train.py"], ["train.py", ".nanopsy"], [".nanopsy", "train.py"])


def test_a_script_that_starts_nanopsy_in_its_own_process(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": LOOP.replace("STAGE", "pass"), "outer.py": """
        import sys
        from nanopsy.cli import main
        sys.exit(main(["run", "--no-capsule", "train.py"]))
        """})  # fmt: skip
    assert python(tmp_path, "outer.py").returncode == 3
    done = python(tmp_path, "-m", "nanopsy", "run", "--no-capsule", "outer.py")
    assert done.returncode == 2
    assert "watches this process already" in done.stderr
