"""Public bug reports rebuilt as scripts: what `nanopsy check` says of them before they run.

The corpus is not part of the project; the tests skip where it is absent (``NANOPSY_CASES`` names its folder).
"""

from __future__ import annotations

import json

import pytest

from nanopsy.check.inspect import Request, inspect
from nanopsy.check.settings import Settings
from nanopsy.findings import Confidence
from taxonomy import CODES
from test_cases import CASES, NAMES

pytestmark = pytest.mark.skipif(not NAMES, reason="the corpus of cases is absent")
INVISIBLE = {
    "nan_in_data", "true_divergence_lr", "true_divergence_init", "true_divergence_loss_weight", "activation_explosion", "fp16_overflow",
    "float32_overflow_sentinel", "near_zero_variance_amplification",
}  # fmt: skip
"""Mechanisms that numbers decide: the same source is right with others."""
MISSED = {
    "gen_caustics_83": "the square root's domain is named, the torch.where around it is not",
    "gen_pytorch_19126": "weight_norm of a layer that was set to zero",
    "gen_pytorch_70348": "labels that are all ignore_index",
}


@pytest.mark.parametrize("name", NAMES)
def test_the_line_is_named_before_the_run(name: str) -> None:
    folder = CASES / name
    truth = json.loads((folder / "truth.json").read_text())
    if truth["mechanism"] in INVISIBLE:
        pytest.skip(f"{truth['mechanism']} is not visible in source")
    files = [str(file) for file in sorted(folder.glob("*.py")) if "fixed" not in file.name]
    result = inspect(Request(files, Settings(root=str(folder), min_confidence=Confidence.DEPENDS), jobs=1))
    lines = {(truth["file"], truth["line"])} | {(place["file"], place["line"]) for place in truth.get("also_acceptable", [])}
    found = {finding.code for finding in result.inspection.findings if finding.location and (finding.location.file, finding.location.line) in lines}
    named = bool(found & CODES[truth["mechanism"]])
    assert named is (name not in MISSED), (sorted(found), MISSED.get(name, ""))
