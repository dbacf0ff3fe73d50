"""Every cause proves itself from the two snippets in its own file: adding a cause adds no test code."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import nanopsy
from nanopsy.causes import find, load
from nanopsy.causes._cause import SECTIONS, Cause

CAUSES = load()
FUNCTIONS = {code: cause for code, cause in CAUSES.items() if cause.runs_as == "function"}
SCRIPTS = {code: cause for code, cause in CAUSES.items() if cause.runs_as == "script" and cause.bad}


def run_snippet(cause: Cause, source: str, tmp_path: Path, name: str) -> nanopsy.Diagnosis:
    """Execute a snippet from a real file (so that its source can be read) and open it up."""
    file = tmp_path / f"{name}_{cause.code}.py"
    file.write_text(textwrap.dedent(source))
    names: dict[str, object] = {"__name__": "snippet"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    torch.manual_seed(0)
    return nanopsy.autopsy(names["loss"])  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:var:UserWarning", "ignore:std:UserWarning")
@pytest.mark.parametrize("cause", FUNCTIONS.values(), ids=FUNCTIONS.keys())
class TestFunction:
    def test_bad_goes_bad_and_is_recognised(self, cause: Cause, tmp_path: Path) -> None:
        diagnosis = run_snippet(cause, cause.bad, tmp_path, "bad")
        assert diagnosis.incidents, "the bad snippet stayed finite"
        first = diagnosis.findings[0]
        assert first.code == cause.code, f"{first.code} {first.message}"
        assert first.location is not None
        assert first.location.file.endswith(f"bad_{cause.code}.py")

    def test_good_stays_finite(self, cause: Cause, tmp_path: Path) -> None:
        assert run_snippet(cause, cause.good, tmp_path, "good").incidents == []


@pytest.mark.parametrize("cause", SCRIPTS.values(), ids=SCRIPTS.keys())
class TestScript:
    def run(self, source: str, tmp_path: Path) -> tuple[int, dict[str, object], str]:
        (tmp_path / "train.py").write_text(textwrap.dedent(source))
        command = [sys.executable, "-m", "nanopsy", "run", "--rerun", "never", "--json", "out.json", "train.py"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, json.loads((tmp_path / "out.json").read_text()), done.stderr

    def test_bad_goes_bad_and_is_recognised(self, cause: Cause, tmp_path: Path) -> None:
        status, report, said = self.run(cause.bad, tmp_path)
        assert status == 3, said
        findings = report["incidents"][0]["findings"]  # type: ignore[index]
        first = findings[-1] if cause.accompanies else findings[0]
        assert first["code"] == cause.code, first["message"]
        assert first["location"]["file"].endswith("train.py")

    def test_good_stays_finite(self, cause: Cause, tmp_path: Path) -> None:
        status, report, said = self.run(cause.good, tmp_path)
        assert status == 0, said
        assert report["incidents"] == []


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())
def test_page_is_complete(cause: Cause) -> None:
    page = cause.page()
    positions = [page.find(section) for section in SECTIONS]
    assert all(position > 0 for position in positions), positions
    assert positions == sorted(positions)
    assert page.startswith(f"# {cause.code} {cause.slug}")


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES.keys())
def test_names_follow_the_scheme(cause: Cause) -> None:
    assert re.fullmatch(r"NAN[1-79]\d\d", cause.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", cause.slug)
    assert find(cause.code.lower()) is cause
    assert find(cause.slug) is cause


def test_codes_and_slugs_are_unique() -> None:
    slugs = [cause.slug for cause in CAUSES.values()]
    assert len(slugs) == len(set(slugs))


def test_a_bad_value_of_an_unknown_kind_is_not_given_a_known_cause() -> None:
    x = torch.tensor([30000.0], requires_grad=True)
    finding = nanopsy.autopsy(lambda: torch.special.i0(x).sum()).findings[0]
    assert finding.code == "NAN999"
    assert math.isfinite(finding.score)
