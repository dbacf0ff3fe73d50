"""A script under ``nanopsy run`` sees what it sees under Python."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from running import nanopsy, python, write

FACTS = """
import inspect, os, pickle, sys

class Thing:
    def __init__(self, n):
        self.n = n
    def __eq__(self, other):
        return self.n == other.n

def shown():
    # a comment that getsource keeps
    return 1

if __name__ == "__main__":
    print(sys.argv, os.path.basename(__file__), __package__, __spec__ is None)
    print(sys.path[0] == os.path.dirname(os.path.realpath(__file__)))
    print(pickle.loads(pickle.dumps(Thing(3))) == Thing(3), Thing.__module__)
    print(inspect.getsource(shown))
    print(sys.modules["__main__"].Thing is Thing, sorted(k for k in globals() if "nanopsy" in k))
    for word in ["a", "b"]:
        print(word.upper(), end=" ")
    else:
        print("else ran")
    import helper
    print(helper.total([1, 2, 3]), helper.__file__.endswith("helper.py"))
"""
HELPER = """
def total(values):
    out = 0
    for value in values:
        out += int(value)
        if out > 100:
            break
    return out
"""


def test_facts_are_as_under_python(tmp_path: Path) -> None:
    write(tmp_path, {"train.py": FACTS, "helper.py": HELPER})
    plain = python(tmp_path, "train.py", "--lr", "1e-3", "-m", "x")
    ran = nanopsy(tmp_path, "train.py", "--lr", "1e-3", "-m", "x")
    assert plain.returncode == 0, plain.stderr
    assert ran.out == plain.stdout
    assert ran.status == 0
    assert "never took an optimizer step" in ran.err


def test_module_with_relative_imports(tmp_path: Path) -> None:
    write(tmp_path, {"pkg/__init__.py": "", "pkg/part.py": "VALUE = 7\n", "pkg/train.py": """
        import sys
        from .part import VALUE
        print(VALUE, __package__, __spec__.name, sys.argv[1:], __name__)
        """})  # fmt: skip
    plain = python(tmp_path, "-m", "pkg.train", "a", "--b")
    ran = nanopsy(tmp_path, "-m", "pkg.train", "a", "--b")
    assert plain.returncode == 0, plain.stderr
    assert ran.out == plain.stdout


@pytest.mark.parametrize("ending", ["raise SystemExit(5)", "sys.exit('words')", "sys.exit()", "pass", "raise ValueError('oops')"])
def test_exit_status_and_traceback_are_the_scripts_own(tmp_path: Path, ending: str) -> None:
    write(tmp_path, f"""
        import sys
        def deep():
            for i in range(3):
                if i == 1:
                    {ending}
        for epoch in range(2):
            print(epoch)
            deep()
        """)  # fmt: skip
    plain = python(tmp_path, "train.py")
    ran = nanopsy(tmp_path, "train.py")
    assert ran.status == plain.returncode
    assert ran.out == plain.stdout
    if "ValueError" in ending:
        assert ran.err.replace(str(tmp_path) + os.sep, "").strip() == plain.stderr.replace(str(tmp_path) + os.sep, "").strip()


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers_are_left_alone(tmp_path: Path, method: str) -> None:
    write(tmp_path, f"""
        import torch
        from torch.utils.data import DataLoader, Dataset

        class Numbers(Dataset):
            def __len__(self):
                return 8
            def __getitem__(self, i):
                total = 0
                for k in range(3):
                    total += int(k)
                return torch.tensor([float(i + total)])

        if __name__ == "__main__":
            torch.manual_seed(0)
            w = torch.nn.Linear(1, 1)
            opt = torch.optim.SGD(w.parameters(), lr=1e-3)
            for x in DataLoader(Numbers(), batch_size=2, num_workers=2, shuffle=True, multiprocessing_context="{method}"):
                loss = w(x).pow(2).mean()
                opt.zero_grad()
                loss.backward()
                opt.step()
                print(loss.item())
        """)  # fmt: skip
    plain = python(tmp_path, "train.py")
    ran = nanopsy(tmp_path, "train.py")
    assert plain.returncode == 0, plain.stderr
    assert (ran.status, ran.out) == (0, plain.stdout), ran.err
    assert ran.report["incidents"] == []
    assert ran.report["steps"] == 4


def test_numbers_are_the_same(tmp_path: Path) -> None:
    write(tmp_path, """
        import random
        import numpy as np
        import torch
        from torch import nn
        torch.manual_seed(0); random.seed(0); np.random.seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
        opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
        for step in range(30):
            x = torch.randn(6, 4) + random.random() + np.random.rand()
            loss = net(x).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(loss.item().hex())
        print([p.sum().item().hex() for p in net.parameters()], random.random(), np.random.rand(), torch.rand(1).item())
        """)  # fmt: skip
    plain = python(tmp_path, "train.py")
    ran = nanopsy(tmp_path, "train.py")
    assert ran.out == plain.stdout


class TestBadUse:
    def sentence(self, ran_err: str) -> None:
        assert ran_err.startswith("nanopsy: "), ran_err
        assert "Traceback" not in ran_err

    def test_missing_script(self, tmp_path: Path) -> None:
        done = python(tmp_path, "-m", "nanopsy", "run", "nowhere.py")
        assert done.returncode == 2
        self.sentence(done.stderr)
        assert "nowhere.py" in done.stderr

    def test_no_script_at_all(self, tmp_path: Path) -> None:
        done = python(tmp_path, "-m", "nanopsy", "run")
        assert done.returncode == 2
        self.sentence(done.stderr)

    def test_missing_module(self, tmp_path: Path) -> None:
        done = python(tmp_path, "-m", "nanopsy", "run", "-m", "not.there")
        assert done.returncode == 2
        self.sentence(done.stderr)

    def test_syntax_error(self, tmp_path: Path) -> None:
        write(tmp_path, "print('before')\nfor x in :\n    pass\n")
        done = python(tmp_path, "-m", "nanopsy", "run", "train.py")
        assert done.returncode == 2
        assert done.stdout == ""
        self.sentence(done.stderr)
        assert "train.py:2" in done.stderr

    @pytest.mark.parametrize("path", ["no/such/folder/x.json", "."])
    def test_unwritable_report(self, tmp_path: Path, path: str) -> None:
        write(tmp_path, "print('ran')\n")
        done = python(tmp_path, "-m", "nanopsy", "run", "--json", path, "train.py")
        assert done.returncode == 2
        assert done.stdout == "", "the script must not run for a night before the path is refused"
        self.sentence(done.stderr)

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
    def test_read_only_folder(self, tmp_path: Path) -> None:
        write(tmp_path, "print('ran')\n")
        locked = tmp_path / "locked"
        locked.mkdir()
        locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
        done = python(tmp_path, "-m", "nanopsy", "run", "--json", "locked/x.json", "train.py")
        assert done.returncode == 2
        self.sentence(done.stderr)

    def test_without_torch(self, tmp_path: Path) -> None:
        write(tmp_path, {"train.py": "print('ran')\n", "block/torch.py": "raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n"})
        done = python(tmp_path, "-m", "nanopsy", "run", "train.py", env={"PYTHONPATH": str(tmp_path / "block")})
        assert done.returncode == 2
        self.sentence(done.stderr)
        assert "nanopsy[torch]" in done.stderr

    def test_unknown_option(self, tmp_path: Path) -> None:
        done = python(tmp_path, "-m", "nanopsy", "run", "--frobnicate", "train.py")
        assert done.returncode == 2
        assert "Traceback" not in done.stderr


def test_incident_free_run_writes_an_empty_list(tmp_path: Path) -> None:
    write(tmp_path, "print('nothing to see')\n")
    ran = nanopsy(tmp_path, "train.py")
    assert ran.report["incidents"] == []
