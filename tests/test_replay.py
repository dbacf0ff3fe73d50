"""Capsules of real failures: the chain fails by itself as the step did, and an edited script is judged on the very step."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nanopsy.capsule.chain import Chain, ChainStep, Constant
from nanopsy.capsule.format import read
from nanopsy.capture.execute import run
from nanopsy.capture.likeness import Likeness
from nanopsy.capture.shrinking import Shrinker
from nanopsy.capture.slicing import Slice, spread_of
from nanopsy.capture.state import checked
from nanopsy.errors import NanopsyError
from running import nanopsy, python, write

TRAIN = """
    import random, sys
    import numpy as np
    import torch
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.Dropout(0.2), torch.nn.Conv2d(4, 1, 3, padding=1))
        def forward(self, image):
            return 10 * torch.sigmoid(self.body(image)) + 0.1

    def silog(prediction, depth):
        valid = depth > 0
        g = torch.log(prediction[valid]) - torch.log(depth[valid])
        return torch.sqrt(torch.var(g) + 0.15 * g.mean() ** 2)

    net = Net()
    opt = torch.optim.Adam(net.parameters(), 1e-3)
    LOOP
        depth = torch.rand(2, 1, 8, 8) * random.random() * float(np.random.rand()) + 0.5
        keep = torch.rand(2, 1, 8, 8) > 0.5
        if bad(step):
            keep = torch.zeros_like(keep)
            keep[0, 0, 3, 4] = True
        loss = silog(net(image), depth * keep)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print("end")
    """
LOOPS = {
    "for": "def bad(step): return step == 9\n    for step in range(14):\n        image = torch.rand(2, 1, 8, 8)",
    "while": "step = -1\n    def bad(step): return step == 9\n    while step < 14:\n        step += 1\n        image = torch.rand(2, 1, 8, 8)",
    "next": "images = iter([torch.rand(2, 1, 8, 8) for _ in range(20)])\n    def bad(image): return bool((image == 7).any())\n    sevens = 0\n"
    "    for number in range(14):\n        image = next(images)\n        step = image\n        if number == 9:\n            step = torch.full((1,), 7.0)",
    "loader": "data = [(torch.rand(1, 8, 8), {'number': i}) for i in range(40)]\n    def bad(step): return 20 in step.tolist()\n"
    "    for image, names in torch.utils.data.DataLoader(data, batch_size=2):\n        step = names['number']",
}


def script(kind: str) -> str:
    return TRAIN.replace("LOOP", LOOPS[kind])


def captured(folder: Path, source: str, *options: str) -> Path:
    write(folder, source)
    ran = nanopsy(folder, "train.py", options=("--rerun", "never", "--capsule", "x.nanopsy", *options))
    assert ran.status == 3, ran.err
    assert ran.incident["outcome"] == "reproduced", ran.err
    return folder / "x.nanopsy"


@pytest.fixture(scope="module")
def full_capsule(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A capsule of the ``for`` script with its full state."""
    return captured(tmp_path_factory.mktemp("full"), script("for"), "--capture", "full", "--no-verify").read_bytes()


@pytest.fixture(scope="module")
def small_capsule(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return captured(tmp_path_factory.mktemp("small"), script("for"), "--no-verify").read_bytes()


@pytest.mark.parametrize("kind", ["for", "loader", "next"])
def test_a_full_capsule_judges_an_edited_script_on_the_very_step(tmp_path: Path, kind: str) -> None:
    captured(tmp_path, script(kind), "--capture", "full", "--no-verify")
    done = python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy", "--", "train.py")
    assert done.returncode == 3, done.stderr
    assert "step 9 is still bad" in done.stderr or "step 10 is still bad" in done.stderr
    assert "end" not in done.stdout
    text = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(text.replace("torch.var(g)", "torch.var(g, correction=0)"))
    done = python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy", "--", "train.py")
    assert done.returncode == 0, done.stderr
    assert "is finite now" in done.stderr
    # The weights, the batch and the random states are those of the step: the loss is the one the verified fix has.
    (tmp_path / "train.py").write_text(text)
    ran = nanopsy(tmp_path, "train.py")
    verified = re.search(r"verified: loss ([\d.e-]+)", ran.finding["verification"])
    replayed = re.search(r"finite now: loss ([\d.e-]+)", done.stderr)
    assert verified is not None
    assert replayed is not None
    assert float(replayed[1]) == pytest.approx(float(verified[1]), rel=1e-3)


def test_a_network_of_another_shape_cannot_be_replayed(tmp_path: Path, full_capsule: bytes) -> None:
    write(tmp_path, script("for"))
    (tmp_path / "x.nanopsy").write_bytes(full_capsule)
    text = (tmp_path / "train.py").read_text()
    (tmp_path / "train.py").write_text(
        text.replace("Conv2d(1, 4,", "Conv2d(1, 5,").replace("BatchNorm2d(4)", "BatchNorm2d(5)").replace("Conv2d(4, 1,", "Conv2d(5, 1,")
    )
    done = python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy", "--", "train.py")
    assert done.returncode == 125
    assert "another shape" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("source", "say"),
    [("print(1)\n", "before its first training step"), ("raise SystemExit(7)\n", "before its first training step"), ("def (:\n", "does not compile")],
)
def test_scripts_that_never_train_cannot_be_replayed(tmp_path: Path, full_capsule: bytes, source: str, say: str) -> None:
    (tmp_path / "x.nanopsy").write_bytes(full_capsule)
    (tmp_path / "other.py").write_text(source)
    done = python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy", "--", "other.py")
    assert done.returncode == 125
    assert say in done.stderr
    assert "Traceback" not in done.stderr


def test_a_capsule_without_state_says_so(tmp_path: Path, small_capsule: bytes) -> None:
    write(tmp_path, script("for"))
    (tmp_path / "x.nanopsy").write_bytes(small_capsule)
    done = python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy", "--", "train.py")
    assert done.returncode == 125
    assert "--capture full" in done.stderr


def test_repro_and_replay_show_the_failure(tmp_path: Path, small_capsule: bytes) -> None:
    path = tmp_path / "x.nanopsy"
    path.write_bytes(small_capsule)
    with zipfile.ZipFile(path) as archive:
        text = archive.read("repro.py").decode()
    assert len(text.splitlines()) <= 40
    assert "nanopsy" not in re.sub(r"#.*", "", text)
    (tmp_path / "repro.py").write_text(text)
    assert subprocess.run([sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, check=False).returncode == 3
    done = python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy")
    assert done.returncode == 3
    assert "still bad" in done.stdout
    chain = read(path).chain
    assert chain is not None
    assert {tuple(it.shape) for it in chain.constants} == {(1, 1, 1, 1)}, "one pixel is enough, and none is too few"
    operands = read(path).operands
    (tmp_path / "fixed.py").write_text(text.replace("torch.var(", "torch.var(correction=0, input="))
    assert subprocess.run([sys.executable, "fixed.py"], cwd=tmp_path, capture_output=True, check=False).returncode == 0
    assert operands


def test_without_data_no_value_leaves(tmp_path: Path) -> None:
    path = captured(tmp_path, script("for"), "--no-data", "--no-verify")
    with zipfile.ZipFile(path) as archive:
        assert {"operands.safetensors", "pictures.json", "state.json", "state.safetensors"} & set(archive.namelist()) == set()
        text = archive.read("repro.py").decode()
    assert "manual_seed" in text
    (tmp_path / "repro.py").write_text(text)
    assert subprocess.run([sys.executable, "repro.py"], cwd=tmp_path, capture_output=True, check=False).returncode == 3
    assert python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy").returncode == 3


def test_the_default_folder_ignores_itself(tmp_path: Path) -> None:
    write(tmp_path, script("for"))
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "--no-verify", "train.py")
    assert done.returncode == 3
    assert (tmp_path / ".nanopsy" / ".gitignore").read_text() == "*\n"
    found = list((tmp_path / ".nanopsy").glob("*.nanopsy"))
    assert [path.name for path in found] == ["train-step9-NAN301.nanopsy"]
    for path in found:
        assert str(path.relative_to(tmp_path)) in done.stderr
    assert "diagnosis.json" in done.stderr, "size and contents are printed"
    python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "--no-verify", "train.py")
    assert len(list((tmp_path / ".nanopsy").glob("*.nanopsy"))) == 2, "an older capsule is not written over"


def test_nothing_of_the_machine_leaves(tmp_path: Path) -> None:
    write(tmp_path, script("for"))
    environment = {"MY_SECRET_TOKEN": "hunter2-token"}
    done = python(
        tmp_path,
        "-m",
        "nanopsy",
        "run",
        "--rerun",
        "never",
        "--capture",
        "full",
        "--capsule",
        "x.nanopsy",
        "train.py",
        "--api-key",
        "hunter2-key",
        env=environment,
    )
    assert done.returncode == 3
    with zipfile.ZipFile(tmp_path / "x.nanopsy") as archive:
        everything = b"".join(archive.read(name) for name in archive.namelist() if not name.endswith(".safetensors"))
    assert b"hunter2" not in everything
    assert str(tmp_path).encode() not in everything


@pytest.mark.parametrize(("option", "say"), [("missing/folder/x.nanopsy", "cannot write a capsule"), ("train.py/sub", "cannot write a capsule")])
def test_a_place_that_cannot_be_written_is_refused_before_training(tmp_path: Path, option: str, say: str) -> None:
    write(tmp_path, script("for"))
    done = python(tmp_path, "-m", "nanopsy", "run", "--capsule", option, "train.py")
    assert done.returncode == 2
    assert say in done.stderr
    assert done.stdout == ""


def test_a_default_folder_that_cannot_be_made_costs_only_the_capsule(tmp_path: Path) -> None:
    write(tmp_path, script("for"))
    (tmp_path / ".nanopsy").write_text("a file of the user's\n")
    done = python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "--no-verify", "train.py")
    assert done.returncode == 3
    assert "NAN301" in done.stderr
    assert "no capsule" in done.stderr
    assert (tmp_path / ".nanopsy").read_text() == "a file of the user's\n"


@pytest.mark.parametrize("options", [("--no-data", "--capture", "full"), ("--capsule", "x.nanopsy", "--no-capsule")])
def test_opposite_options_are_refused(tmp_path: Path, options: tuple[str, ...]) -> None:
    write(tmp_path, script("for"))
    done = python(tmp_path, "-m", "nanopsy", "run", *options, "train.py")
    assert done.returncode == 2
    assert "opposite" in done.stderr


def test_the_rerun_from_the_start_gives_the_capsule_its_chain(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Parameter(torch.zeros(2))
        opt = torch.optim.SGD([w], lr=0.1)
        loss = torch.sqrt((w ** 2).sum())
        loss.backward()
        opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py", options=("--capsule", "x.nanopsy"))
    assert ran.incident["outcome"] == "reproduced"
    found = read(tmp_path / "x.nanopsy")
    assert found.diagnosis.findings[0].code == ran.finding["code"]
    assert found.chain is not None
    assert python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy").returncode == 3


# -- shrinking keeps the way in which it fails -------------------------------------------------------


def sliced(steps: list[tuple[str, str, tuple[Any, ...]]], values: dict[str, torch.Tensor], backward: tuple[str, str] | None = None) -> Slice:
    constants = tuple(Constant(name, str(value.dtype).removeprefix("torch."), tuple(value.shape), requires_grad=backward is not None and value.is_floating_point() and name != "g",
                               whole=tuple(value.shape), spread=spread_of(value)) for name, value in values.items())  # fmt: skip
    return Slice(Chain(constants, tuple(ChainStep((out,), op, args) for out, op, args in steps), backward), values)


def test_a_selection_does_not_become_empty() -> None:
    mask = torch.zeros(40, dtype=torch.bool)
    mask[17] = True
    whole = sliced(
        [("s", "aten.index.Tensor", ({"tensor": "x"}, [{"tensor": "m"}])), ("v", "aten.var.correction", ({"tensor": "s"},))], {"x": torch.rand(40), "m": mask}
    )
    small = Shrinker(whole).shrink()
    assert small.values["m"].tolist() == [True]
    assert small.result().inside["s"].numel() == 1


def test_a_selection_of_nothing_stays_one_of_nothing() -> None:
    whole = sliced([("s", "aten.index.Tensor", ({"tensor": "x"}, [{"tensor": "m"}])), ("v", "aten.mean.default", ({"tensor": "s"},))],
                   {"x": torch.rand(40), "m": torch.zeros(40, dtype=torch.bool)})  # fmt: skip
    small = Shrinker(whole).shrink()
    assert small.values["x"].numel() == 1
    assert small.result().inside["s"].numel() == 0


def test_a_variance_does_not_lose_its_elements() -> None:
    values = torch.full((64,), 3.0)
    values[5] = 0.0
    whole = sliced([("l", "aten.log.default", ({"tensor": "x"},)), ("v", "aten.var.correction", ({"tensor": "l"},))], {"x": values})
    small = Shrinker(whole).shrink()
    assert small.values["x"].numel() == 2, "the logarithm of zero among others, not a variance of one"
    assert 0.0 in small.values["x"].tolist()


@pytest.mark.parametrize(("above", "below"), [(1.0, 0.0), (0.0, 0.0), (-1.0, 0.0)])
def test_a_quotient_stays_of_its_kind(above: float, below: float) -> None:
    left, right = torch.rand(6, 7) + 1, torch.rand(6, 7) + 1
    left[2, 3], right[2, 3] = above, below
    left[5, 6], right[5, 6] = above, below
    small = Shrinker(sliced([("q", "aten.div.Tensor", ({"tensor": "x"}, {"tensor": "y"}))], {"x": left, "y": right})).shrink()
    assert small.values["x"].numel() == 1
    assert small.values["x"].item() == above
    assert small.values["y"].item() == below


def test_a_matrix_product_is_shrunk_along_its_inner_axis_too() -> None:
    left, right = torch.rand(5, 6), torch.rand(6, 7)
    left[1, 2] = right[2, 3] = 3e38
    small = Shrinker(sliced([("p", "aten.mm.default", ({"tensor": "x"}, {"tensor": "y"}))], {"x": left, "y": right})).shrink()
    assert [tuple(value.shape) for value in small.values.values()] == [(1, 1), (1, 1)]


def test_a_birth_in_backward_keeps_its_gradient() -> None:
    x, g = torch.rand(4, 5), torch.rand(4, 5)
    x[1, 2], g[1, 2] = 0.0, 0.0
    whole = sliced([("r", "aten.sqrt.default", ({"tensor": "x"},))], {"x": x, "g": g}, ("r", "g"))
    small = Shrinker(whole).shrink()
    assert small.values["x"].tolist() == [[0.0]]
    assert small.values["g"].tolist() == [[0.0]], "0 * inf is NaN; with another gradient it would be inf"
    assert torch.isnan(run(small.chain, small.values).values["x.grad"]).all()


def test_likeness_can_be_lost() -> None:
    whole = sliced([("q", "aten.div.Tensor", ({"tensor": "x"}, {"tensor": "y"}))], {"x": torch.tensor([1.0]), "y": torch.tensor([0.0])})
    other = Slice(whole.chain, {"x": torch.tensor([0.0]), "y": torch.tensor([0.0])})
    likeness = Likeness.of(whole.chain, whole.result())
    assert likeness.holds(whole.chain, whole.result())
    assert not likeness.holds(other.chain, other.result())


def test_a_capsules_report_is_the_runs_report(tmp_path: Path) -> None:
    path = captured(tmp_path, script("loader"))
    report = json.loads((tmp_path / "nanopsy-report.json").read_text())
    done = python(tmp_path, "-m", "nanopsy", "report", str(path), "--format", "json")
    again = json.loads(done.stdout)
    for entry in (report, again):
        entry["notes"] = []
    assert [it["findings"][0]["code"] for it in again["incidents"]] == [it["findings"][0]["code"] for it in report["incidents"]]
    assert again["incidents"][0]["batch"] == {"number": 10, "samples": [20, 21]}
    assert report["incidents"][0]["batch"] == again["incidents"][0]["batch"]


def test_git_bisects_with_it(tmp_path: Path) -> None:
    """Four versions of a script, the third of which brought the mistake in; one that cannot be replayed is skipped."""

    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false"]
        return subprocess.run(["git", *identity, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    bad = textwrap.dedent(script("for"))
    good = bad.replace("torch.var(g)", "torch.var(g, correction=0)")
    git("init", "-q")
    versions = [good, good + "# comment\n", "raise SystemExit('does not run')\n", bad, bad + "# another\n"]
    for number, text in enumerate(versions):
        (tmp_path / "train.py").write_text(text)
        git("add", "train.py")
        git("commit", "-q", "-m", f"version {number}")
    python(tmp_path, "-m", "nanopsy", "run", "--rerun", "never", "--no-verify", "--capture", "full", "--capsule", "x.nanopsy", "train.py")
    git("bisect", "start", "HEAD", "HEAD~4")
    said = subprocess.run(
        ["git", "bisect", "run", sys.executable, "-m", "nanopsy", "replay", "x.nanopsy", "--", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    log = git("bisect", "log")
    assert "# first bad commit" in log or "# possible first bad commit" in log, said.stdout + said.stderr
    assert "version 3" in "".join(line for line in log.splitlines() if "first bad commit" in line), log


STRANGE = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 65) | st.floats(allow_nan=False) | st.sampled_from(["a", "weights/w", "tensor", "nan"]),
    lambda it: (
        st.lists(it, max_size=3) | st.dictionaries(st.sampled_from(["tensor", "array", "float", "dict", "list", "tuple", "item", "state"]), it, max_size=2)
    ),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.sampled_from([("names",), ("rounds",), ("rounds", 0), ("rounds", 0, "item"), ("rounds", 0, "random"), ("rounds", 0, "random", "python"), ("rounds", 0, "draws"),
                        ("rounds", 0, "generators"), ("optimizers",), ("optimizers", 0, "state"), ("optimizers", 0, "class"), ("scalers",)]), STRANGE)  # fmt: skip
def test_a_strange_state_is_a_sentence(where: tuple[Any, ...], value: object) -> None:
    tensors = {"weights/w": torch.ones(2), "random0.torch": torch.get_rng_state(), "a": torch.ones(1)}
    version, internal, gauss = random.Random(0).getstate()
    entry: Any = {
        "names": ["w"],
        "rounds": [
            {
                "item": {"tensor": "a"},
                "random": {"python": [version, list(internal), gauss], "cuda": 0, "numpy": None},
                "draws": [],
                "draws_random": [],
                "generators": 0,
            }
        ],
        "optimizers": [{"class": "SGD", "state": {"w": {"dict": [["step", 1]]}}, "groups": []}],
        "scalers": [None],
        "step": 3,
    }
    checked(json.loads(json.dumps(entry)), dict(tensors))
    holder = entry
    for key in where[:-1]:
        holder = holder[key]
    holder[where[-1]] = value
    try:
        checked(entry, tensors)
    except NanopsyError:
        return


def test_an_infinity_that_becomes_nan_elsewhere_is_shown_where_it_was_born(tmp_path: Path) -> None:
    path = captured(tmp_path, """
        import torch
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 3)
        opt = torch.optim.SGD(net.parameters(), 1e-2)
        for step in range(5):
            x = torch.rand(6, 4) if step != 3 else torch.zeros(6, 4)
            with torch.no_grad():
                net.bias.zero_()
            loss = (torch.linalg.cross(net(x), torch.ones(6, 3)).square() ** 0.5).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """, "--no-verify")  # fmt: skip
    chain = read(path).chain
    assert chain is not None
    assert python(tmp_path, "-m", "nanopsy", "replay", "x.nanopsy").returncode == 3
