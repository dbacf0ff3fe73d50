"""Public bug reports rebuilt as scripts: the true cause and the true line, with the script's own check and without it.

The corpus is not part of the project; the tests skip where it is absent (``NANOPSY_CASES`` names its folder).
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from nanopsy.causes import load
from running import nanopsy
from taxonomy import CODES

CASES = Path(os.environ.get("NANOPSY_CASES", Path(__file__).parents[2] / "shared" / "cases" / "given"))
NAMES = sorted(folder.name for folder in CASES.iterdir() if (folder / "truth.json").exists()) if CASES.is_dir() else []
pytestmark = pytest.mark.skipif(not NAMES, reason="the corpus of cases is absent")


def test_every_mechanism_has_a_cause() -> None:
    assert {code for codes in CODES.values() for code in codes} <= set(load())


def without_check(source: str) -> str:
    """The script as most people write it: without looking for NaN; line numbers stay."""
    source = re.sub(r"^(\s*)check\(step.*\)$", r"\1pass", source, flags=re.MULTILINE)
    source = re.sub(r"^(\s*)watch\(step.*\)$", r"\1pass", source, flags=re.MULTILINE)
    return re.sub(r"^(\s*)loss = train_step\(step\)$", r"\1loss = train_step(step); continue", source, flags=re.MULTILINE)


def copied(name: str, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path / name
    shutil.copytree(CASES / name, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    truth: dict[str, Any] = json.loads((folder / "truth.json").read_text())
    return folder, truth


@pytest.mark.parametrize("check", ["own check", "no check"])
@pytest.mark.parametrize("name", NAMES)
def test_case_is_diagnosed(name: str, check: str, tmp_path: Path) -> None:
    folder, truth = copied(name, tmp_path)
    if check == "no check":
        script = folder / "case.py"
        stripped = without_check(script.read_text())
        assert stripped != script.read_text(), "the check was not found"
        script.write_text(stripped)
    ran = nanopsy(folder, "case.py", options=("--rerun", "auto"))
    assert ran.status == 3, ran.err
    assert ran.incident["outcome"] == "reproduced"
    finding = ran.finding
    lines = {(truth["file"], truth["line"])} | {(place["file"], place["line"]) for place in truth.get("also_acceptable", [])}
    assert (os.path.basename(finding["location"]["file"]), finding["location"]["line"]) in lines, finding["message"]
    assert finding["code"] in CODES[truth["mechanism"]], finding["message"]
    if finding["verified"]:
        assert finding["fix"]["diff"]
        assert "all gradients finite" in finding["verification"]


@pytest.mark.parametrize("name", NAMES)
def test_cured_case_has_no_incident(name: str, tmp_path: Path) -> None:
    folder, _ = copied(name, tmp_path)
    ran = nanopsy(folder, "fixed.py", options=("--rerun", "never"))
    assert ran.status == 0, ran.err
    assert ran.report["incidents"] == []
