"""The laboratory: demonstrations, the grid that goes on where it stopped, conclusions that follow from the data, and the paper from nothing."""

from __future__ import annotations

import csv
import json
import math
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nanopsy.cli import main
from nanopsy.depth.config import Data, Optimization, TrainConfig
from nanopsy.depth.encodings import DataError
from nanopsy.depth.recipes import Recipe
from nanopsy.errors import NanopsyError
from nanopsy.lab import plans
from nanopsy.lab.crops import count_crops, crop_sums
from nanopsy.lab.grid import Cell, Outcome, Scenario, cells_of, read_outcome, run_cell
from nanopsy.lab.logsigmoid import FORMS, first_bad, ulp_error
from nanopsy.lab.paper import write_report
from nanopsy.lab.runner import Slurm, run_here, run_slurm
from nanopsy.lab.sheets import Sheets, Table, shown
from nanopsy.lab.sqrt import gradient_at
from nanopsy.lab.summary import compare, rows, verdict
from nanopsy.lab.variance import ALGORITHMS, loss_at, variance_errors

pytestmark = [pytest.mark.filterwarnings("ignore:var:UserWarning"), pytest.mark.usefixtures("one_thread")]


def pictures_can_be_read(folder: Path) -> None:
    figures = sorted((folder / "figures").iterdir())
    assert {path.suffix for path in figures} == {".png", ".svg"}
    for path in figures:
        if path.suffix == ".png":
            assert np.asarray(Image.open(path).convert("L")).std() > 1, f"{path.name} is blank"
        else:
            assert "<svg" in path.read_text()[:600]


@pytest.mark.parametrize("name", ["sqrt", "logsigmoid", "variance"])
def test_a_demonstration_leaves_figures_tables_and_text(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", name, "--quick", "--out", str(tmp_path / "out")]) == 0
    folder = tmp_path / "out"
    text = (folder / "README.md").read_text()
    assert str(folder / "README.md") in capsys.readouterr().out
    pictures_can_be_read(folder)
    for target in re.findall(r"\]\(([^)]+)\)", text):
        assert (folder / target).exists()
    tables = sorted((folder / "tables").glob("*.csv"))
    assert tables
    for table in tables:
        entries = list(csv.reader(table.read_text().splitlines()))
        assert len(entries) > 2
        assert len({len(entry) for entry in entries}) == 1
    page = (folder / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert "<script" not in page


# -- the numbers that the demonstrations show ----------------------------------------------------


@given(st.integers(-34, 0), st.sampled_from(["float32", "float64"]))
def test_the_gradient_of_the_root_keeps_its_length(exponent: int, name: str) -> None:
    found, analytic = gradient_at(10.0**exponent, getattr(torch, name))
    assert found == pytest.approx(analytic, rel=1e-3)
    assert found == pytest.approx(gradient_at(1.0, torch.float64)[0], rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_at_zero_the_root_has_no_gradient_and_the_square_has(dtype: torch.dtype) -> None:
    assert math.isnan(gradient_at(0.0, dtype)[0])
    assert gradient_at(0.0, dtype, root=False)[0] == 0
    assert gradient_at(0.0, dtype, eps=1e-6)[0] == 0


def test_where_the_log_of_a_sigmoid_breaks() -> None:
    published, exact = FORMS[0], FORMS[-1]
    assert first_bad(published, torch.float32) == (-89.0, -89.0)
    assert first_bad(published, torch.float16)[0] == -17.5
    assert first_bad(published, torch.float64)[0] == -710.0
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        assert first_bad(exact, dtype) == (None, None)
    assert first_bad(FORMS[3], torch.float32) == (None, -11.5), "a clamp is finite and learns nothing below"


def test_ulp_errors() -> None:
    assert ulp_error(1.0 + 2**-23, 1.0, torch.float32) == 1.0
    assert ulp_error(4.0 + 2**-20, 4.0, torch.float32) == 2.0
    assert ulp_error(math.nan, 1.0, torch.float32) == math.inf


@pytest.mark.parametrize("name", ALGORITHMS)
def test_variances_against_float64(name: str) -> None:
    fine = variance_errors(name, 50, 0.0, torch.float32, trials=5)
    assert fine["largest"] < 1e-5
    far = variance_errors(name, 50, 1e4, torch.float32, trials=20)
    assert (far["median"] > 0.1) == (name == "one pass")
    assert (far["negative"] > 0) == (name == "one pass")


def test_one_pass_is_nan_under_a_root_where_two_passes_are_not() -> None:
    assert variance_errors("one pass", 100, 1e4, torch.bfloat16, trials=10)["negative"] > 0
    assert variance_errors("two passes", 100, 1e4, torch.bfloat16, trials=10)["negative"] == 0


@pytest.mark.parametrize(
    ("form", "masking", "count", "value_is_nan", "kind"),
    [
        ("bts", "index", 0, True, "all zero"),
        ("adabins", "index", 0, True, "all zero"),
        ("population", "multiply", 0, True, "128 of 128 NaN"),
        ("bts", "index", 1, False, "finite"),
        ("adabins", "index", 1, True, "1 of 128 NaN"),
        ("population", "index", 1, False, "finite"),
        ("stable", "any", 0, False, "all zero"),
        ("stable", "any", 1, False, "finite"),
        ("adabins", "index", 5, False, "finite"),
    ],
)
def test_what_a_loss_does_with_few_pixels(form: str, masking: str, count: int, value_is_nan: bool, kind: str) -> None:  # noqa: FBT001
    """Per image, the second of two pictures left out of the count: both have as many."""
    value, gradient = loss_at(form, count, masking, "image")
    assert math.isnan(value) == value_is_nan
    assert gradient == kind.replace("1 of 128", "2 of 128")


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 12))
def test_crops_are_counted_exactly(seed: int, height: int, width: int) -> None:
    valid = np.random.default_rng(seed).random((9, 12)) < 0.1
    sums = crop_sums(valid, height, width)
    by_hand = [[int(valid[r : r + height, c : c + width].sum()) for c in range(12 - width + 1)] for r in range(9 - height + 1)]
    assert sums.tolist() == by_hand
    found = count_crops([valid.astype(np.float32)], height, width)
    assert found.empty == pytest.approx(np.mean(np.array(by_hand) == 0))
    assert found.one == pytest.approx(np.mean(np.array(by_hand) == 1))
    assert found.least == np.min(by_hand)


def test_a_crop_larger_than_the_map_is_a_sentence() -> None:
    with pytest.raises(DataError, match="9 x 12 for crops of 10 x 3"):
        crop_sums(np.ones((9, 12), bool), 10, 3)


# -- sheets --------------------------------------------------------------------------------------


def test_text_is_escaped_and_numbers_are_named(tmp_path: Path) -> None:
    sheets = Sheets(tmp_path, "<b>title</b>")
    table = Table("a | b", ("x|y", "n"))
    table.add("<script>", math.nan)
    table.add("p|q", -math.inf)
    sheets.table("t", table)
    sheets.say("5 < 6 & so on")
    sheets.close()
    page, text = (tmp_path / "report.html").read_text(), (tmp_path / "README.md").read_text()
    assert "<script>" not in page
    assert "&lt;b&gt;title" in page
    assert "5 &lt; 6 &amp; so on" in page
    assert "| p\\|q | -inf |" in text
    assert [shown(value) for value in (1234567, 0.123456, None, True)] == ["1,234,567", "0.1235", "", "yes"]


def test_figures_are_the_same_bytes_again(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Sheets(tmp_path / name, "t").figure("f", "caption", lambda figure: figure.subplots().plot([1, 2, 3]))
    for ending in ("png", "svg"):
        assert (tmp_path / "a" / "figures" / f"f.{ending}").read_bytes() == (tmp_path / "b" / "figures" / f"f.{ending}").read_bytes()


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["lab", "variance", "--quick", "--out", str(tmp_path / "file" / "out")]) == 2
    said = capsys.readouterr().err
    assert "cannot be used" in said
    assert "Traceback" not in said


# -- the grid ------------------------------------------------------------------------------------

QUICK = TrainConfig(
    data=Data(options={"count": 8, "height": 48, "width": 64, "lines": 10}, evaluate={"first": 1000, "count": 2}, crop=(32, 32)),
    recipe=Recipe(loss="adabins"), optimization=Optimization(lr=1e-3), steps=4, batch=2, log_every=2,
)  # fmt: skip


def _scenario(**changes: object) -> Scenario:
    base = Scenario("quick", "Quick", "variance", "population", QUICK, recipes=("published", "population", "all"), seeds=2, causes=("NAN301",))
    return replace(base, **changes)  # type: ignore[arg-type]


def test_cells_have_names_of_their_own() -> None:
    scenario = _scenario(vary=(("lr", (1e-3, 1e-2)), ("batch", (2, 4)), ("clip", (1.0,)), ("model", ("newcrfs",))), remedies=("clamp", "skip step"))
    cells = cells_of(scenario)
    assert len(cells) == 3 * 2 + 2 * 3 + 6 * 3
    assert len({cell.key for cell in cells}) == len(cells)
    assert all(re.fullmatch(r"[A-Za-z0-9=.+-]+", cell.key) for cell in cells)
    assert {cell.config.batch for cell in cells} == {2, 4}
    for every in (plans.smoke(), plans.small(), plans.full(Data("kitti", {"root": "r", "split": "s"}))):
        whole = [cell for each in every for cell in cells_of(each)]
        assert len({cell.key for cell in whole}) == len(whole)
    with pytest.raises(DataError, match="no axis 'colour'"):
        cells_of(_scenario(vary=(("colour", (1,)),)))


def test_a_finished_cell_is_not_run_again_and_a_changed_one_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("quick", "published", "", 0, QUICK)
    first = run_cell(cell, tmp_path)
    assert not first.failed
    assert first.steps == 4
    calls = []
    monkeypatch.setattr("nanopsy.depth.train.train", lambda config: calls.append(config))
    again = run_cell(cell, tmp_path)
    assert again.losses == first.losses
    assert calls == []
    file = tmp_path / f"{cell.key}.json"
    changed = Cell("quick", "published", "", 0, replace(QUICK, steps=5))
    assert read_outcome(file, changed.config) is None
    file.write_text(file.read_text()[:50])
    assert read_outcome(file) is None


def test_a_cell_that_cannot_run_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    broken = Cell("quick", "published", "", 0, replace(QUICK, data=Data("kitti", {"root": str(tmp_path), "split": str(tmp_path / "none.txt")})))
    outcome = run_cell(broken, tmp_path)
    assert "is missing" in outcome.failed
    assert read_outcome(tmp_path / f"{broken.key}.json", broken.config) is None
    table = rows([outcome])
    assert (table[0].seeds, table[0].failed) == (0, 1)


def test_processes_and_order(tmp_path: Path) -> None:
    cells = cells_of(_scenario(recipes=("published", "all"), seeds=1))
    done: list[str] = []
    outcomes = run_here(cells, tmp_path, jobs=2, done=lambda cell, outcome: done.append(cell.key))
    assert [each.recipe for each in outcomes] == ["published", "all"]
    assert sorted(done) == sorted(cell.key for cell in cells)
    assert outcomes[0].losses == run_cell(replace(cells[0], scenario="other"), tmp_path).losses, "a process of its own gives the same numbers"


def test_without_slurm_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NanopsyError, match=r"Slurm cannot be used"):
        run_slurm(cells_of(_scenario(seeds=1)), tmp_path, Slurm())


def test_jobs_of_submitit_end_as_cells_do(tmp_path: Path) -> None:
    cells = cells_of(_scenario(recipes=("population",), seeds=1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # submitit's own
        outcomes = run_slurm(cells, tmp_path, Slurm(cluster="local", gpus=0, cpus=1, hours=0.1))
    assert outcomes[0].steps == 4
    assert read_outcome(tmp_path / f"{cells[0].key}.json", cells[0].config) == outcomes[0]


# -- conclusions ---------------------------------------------------------------------------------


def _outcome(recipe: str, seed: int, *, cause: str = "", abs_rel: float = 0.2, scenario: str = "quick") -> Outcome:
    bad = bool(cause)
    return Outcome(scenario, recipe, "", seed, bad, 7 if bad else 100, cause, metrics={} if bad else {"abs_rel": abs_rel, "rmse": 1.0, "delta1": 0.9})


@pytest.mark.parametrize(
    ("published", "guided", "shown", "cured", "said"),
    [
        (("NAN301", "NAN301"), ("", ""), True, True, "keeps every run finite"),
        (("NAN301", ""), ("NAN301", ""), True, False, "does not keep every run finite"),
        (("", ""), ("", ""), False, False, "was not seen"),
        (("NAN201", "NAN201"), ("", ""), False, False, "was not seen"),
        (("NAN301", "NAN301"), ("NAN999", ""), True, False, "does not keep every run finite"),
    ],
)
def test_a_verdict_follows_from_its_rows(published: tuple[str, ...], guided: tuple[str, ...], shown: bool, cured: bool, said: str) -> None:  # noqa: FBT001
    outcomes = [_outcome("published", seed, cause=cause) for seed, cause in enumerate(published)]
    outcomes += [_outcome("population", seed, cause=cause) for seed, cause in enumerate(guided)]
    found = verdict(_scenario(), rows(outcomes))
    assert (found.shown, found.cured) == (shown, cured)
    assert said in found.text
    assert verdict(_scenario(), []).text.endswith("not run.")


def test_a_comparison_is_paired_and_may_fall_either_way() -> None:
    better = [_outcome("published", seed, abs_rel=0.30 + 0.01 * seed) for seed in range(5)] + [
        _outcome("all", seed, abs_rel=0.20 + 0.01 * seed + 0.001 * (seed % 2)) for seed in range(5)
    ]
    found = compare("quick", "all", "abs_rel", better)
    assert found is not None
    assert found.text.endswith("better")
    assert found.difference == pytest.approx(-0.0996)
    swapped = [replace(each, recipe="all" if each.recipe == "published" else "published") for each in better]
    worse = compare("quick", "all", "abs_rel", swapped)
    assert worse is not None
    assert worse.text.endswith("worse")
    noise = [_outcome("published", seed, abs_rel=0.3) for seed in range(5)] + [_outcome("all", seed, abs_rel=0.3 + 0.1 * (-1) ** seed) for seed in range(5)]
    none = compare("quick", "all", "abs_rel", noise)
    assert none is not None
    assert none.text.endswith("no difference is shown")
    assert compare("quick", "all", "abs_rel", better[:1]) is None
    from scipy.stats import ttest_rel

    interval = ttest_rel([0.20 + 0.01 * s + 0.001 * (s % 2) for s in range(5)], [0.30 + 0.01 * s for s in range(5)]).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_a_report_of_nothing_but_failures_can_be_written(tmp_path: Path) -> None:
    failed = Outcome("quick", "published", "", 0, diverged=False, steps=0, failed="DataError: x")
    text = write_report(tmp_path, [_scenario()], [failed]).read_text()
    assert "1 cells could not run" in text
    assert "not run" in text


# -- from the command line -----------------------------------------------------------------------


def test_the_paper_from_nothing(tmp_path: Path) -> None:
    """Each vulnerability diverges by its own mechanism in an ordinary training, and its guideline alone cures it."""
    command = [sys.executable, "-m", "nanopsy", "lab", "paper", "--smoke", "--out", str(tmp_path / "paper")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "paper" / "summary.json").read_text())
    assert [(each["scenario"], each["shown"], each["cured"]) for each in found["verdicts"]] == [
        (name, True, True) for name in ("sqrt", "logsigmoid", "variance")
    ]
    causes = {(row["scenario"], row["recipe"]): list(row["causes"]) for row in found["rows"]}
    assert causes["sqrt", "published"] == ["NAN101"]
    assert causes["logsigmoid", "published"] == ["NAN201"]
    assert causes["variance", "published"] == ["NAN301"]
    pictures_can_be_read(tmp_path / "paper")
    again = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert again.stdout == done.stdout


def test_training_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--data-option",
        "count=6",
        "--data-option",
        "height=48",
        "--data-option",
        "width=64",
        "--eval-option",
        "first=100",
        "--eval-option",
        "count=2",
        "--crop",
        "32x32",
    ]
    base = ["lab", "train", "--out", str(tmp_path / "run"), "--steps", "4", "--batch", "2", "--log-every", "2", *options]
    assert main([*base, "--recipe", "all", "--loss", "bts", "--checkpoint-every", "2"]) == 0
    assert "abs_rel" in capsys.readouterr().out
    again = ["lab", "train", "--config", str(tmp_path / "run" / "config.json"), "--out", str(tmp_path / "run"), "--resume"]
    assert main([*again, "--evaluate-every", "2"]) == 0
    capsys.readouterr()
    assert main([*again, "--steps", "6"]) == 2
    assert "steps was 4, is 6" in capsys.readouterr().err


def test_a_training_that_diverges_has_its_status_and_its_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sparse = ["count=40", "height=48", "width=64", "lines=4", "keep=0.05"]
    options = [word for each in sparse for word in ("--data-option", each)] + ["--crop", "24x48", "--batch", "1", "--steps", "120", "--loss", "adabins"]
    assert main(["lab", "train", "--out", str(tmp_path / "run"), *options]) == 3
    said = capsys.readouterr()
    assert "NAN301 bessel-of-one" in said.err
    assert "diverged at step" in said.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["paper", "--full"], "--full without --data"),
        (["paper", "--smoke", "--only", "sqrtt"], "no scenario 'sqrtt'"),
        (["train", "--data-option", "root"], "'root' is not key=value"),
        (["train", "--crop", "big"], "the crop is 'big'"),
        (["train", "--data", "kitti"], "needs root, split"),
        (["train", "--model", "btss"], "did you mean 'bts'"),
        (["train", "--config", "no/such.json"], "cannot be read"),
        (["variance", "--data", "kiti"], "did you mean 'kitti'"),
    ],
)
def test_bad_input_is_a_sentence(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error
