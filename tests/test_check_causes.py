"""Every cause that the linter asks: its bad source is found, its good source is not, and its edits cure."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from nanopsy.causes import Cause, load
from nanopsy.check import fixes
from nanopsy.check.files import Text
from nanopsy.check.inspect import Request, Result, inspect
from nanopsy.check.settings import Settings
from nanopsy.findings import Confidence

ASKED = [cause for cause in load().values() if cause.sites]
OPERATIONS = {
    "sqrt", "rsqrt", "power", "log", "logspace", "exp", "clip", "divide", "mean", "variance", "loss", "acos", "decompose", "where", "mask", "repair",
    "discarded", "nan-compare", "softmax", "logsumexp", "optimizer",
}  # fmt: skip


def checked(folder: Path, text: str) -> Result:
    file = folder / "snippet.py"
    file.write_text(text)
    return inspect(Request([str(file)], Settings(root=str(folder), min_confidence=Confidence.DEPENDS)))


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.inspection.findings}


@pytest.mark.parametrize("cause", ASKED, ids=lambda cause: cause.slug)
def test_the_bad_source_is_found_and_the_good_is_not(cause: Cause, tmp_path: Path) -> None:
    assert cause.code in codes(checked(tmp_path, cause.source_bad or cause.bad))
    assert cause.code not in codes(checked(tmp_path, cause.source_good or cause.good))


@pytest.mark.parametrize("cause", ASKED, ids=lambda cause: cause.slug)
def test_its_operations_are_operations_of_the_linter(cause: Cause) -> None:
    assert set(cause.sites) <= OPERATIONS


@pytest.mark.parametrize("cause", [cause for cause in ASKED if cause.code not in ("NAN404", "NAN406")], ids=lambda cause: cause.slug)
def test_the_bad_source_is_shown_by_default(cause: Cause, tmp_path: Path) -> None:
    findings = checked(tmp_path, cause.source_bad or cause.bad).inspection.findings
    assert any(finding.code == cause.code and finding.confidence is not Confidence.DEPENDS for finding in findings)


@pytest.mark.parametrize("cause", ASKED, ids=lambda cause: cause.slug)
def test_edits_parse_and_end(cause: Cause, tmp_path: Path) -> None:
    """All edits, carried out until none is left: the text parses, and what was edited is found no more."""
    result = checked(tmp_path, cause.source_bad or cause.bad)
    edited = {finding.code for finding in fixes.allowed(result.inspection.findings, unsafe=True)}
    file = next(iter(result.texts))
    for _ in range(fixes.ROUNDS):
        text, count = fixes.carried_out(result.texts[file], result.inspection.findings, unsafe=True)
        if not count:
            break
        ast.parse(text.text)
        result = inspect(Request([file], Settings(root=str(tmp_path), min_confidence=Confidence.DEPENDS)), given={file: text})
    assert not fixes.allowed(result.inspection.findings, unsafe=True)
    assert cause.code not in edited or cause.code not in codes(result)


def test_a_text_is_what_an_edit_is_carried_out_on(tmp_path: Path) -> None:
    result = checked(tmp_path, "import torch\n\n\ndef f(x):\n    return torch.log(torch.sigmoid(x))\n")
    (text,) = result.texts.values()
    assert isinstance(text, Text)
    new, count = fixes.carried_out(text, result.inspection.findings, unsafe=False)
    assert count == 1
    assert new.text == "import torch\n\n\ndef f(x):\n    return torch.nn.functional.logsigmoid(x)\n"
