"""The command line and the reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nanopsy.causes import load
from nanopsy.cli import main
from nanopsy.findings import Diagnosis, Finding, Fix, Incident, Location, Outcome, Safety, What, plain
from nanopsy.report.text import render
from running import nanopsy, python, write


def test_explain_prints_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "bessel-of-one"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# NAN301 bessel-of-one")
    assert "correction=0" in page
    assert main(["explain", "nan301"]) == 0
    assert capsys.readouterr().out == page


def test_explain_all_lists_every_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(load())


@pytest.mark.parametrize("arguments", [["explain"], ["explain", "NAN30"]])
def test_explain_of_nothing_is_a_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("nanopsy: ")
    assert "nanopsy explain --all" in said


def test_verbs_are_required() -> None:
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2


def test_the_terminal_report(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Linear(2, 1)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)

        def criterion(p, mask):
            return torch.var(p[mask])

        for i in range(4):
            p = w(torch.randn(6, 2)).squeeze(1)
            loss = criterion(p, torch.arange(6) < (1 if i == 2 else 4))
            opt.zero_grad()
            loss.backward()
            opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    for part in (
        "NAN301 bessel-of-one   train.py:6:12   step 2",
        "    return torch.var(p[mask])",
        "           ^^^^^^^^^^^^^^^^^^",
        "var over 1 element with correction 1",
        "a mask that kept 1 of 6",
        "bit for bit",
        "+    return torch.var(p[mask], correction=0)",
        "verified: loss",
        "why: nanopsy explain NAN301",
        "the weights are clean",
    ):
        assert part in ran.err, ran.err
    assert (tmp_path / "train.py").read_text().count("correction") == 0, "the user's file is not touched"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["nanopsy-report.json", "train.py"]


def test_continue_lets_it_happen(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Parameter(torch.ones(2))
        opt = torch.optim.SGD([w], lr=0.1)
        for i in range(4):
            loss = (w * (float("inf") if i == 2 else 1.0)).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(w.isfinite().all().item())
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py", options=("--on-incident", "continue"))
    assert ran.status == 0
    assert ran.out.strip() == "False"
    assert ran.report["incidents"]


def test_only_in_a_compiled_script(tmp_path: Path) -> None:
    write(tmp_path, """
        import torch
        w = torch.nn.Linear(3, 1)
        opt = torch.optim.SGD(w.parameters(), lr=0.1)
        net = torch.compile(w, backend="eager")
        for i in range(4):
            loss = (net(torch.randn(5, 3)) / (0.0 if i == 2 else 1.0)).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        """)  # fmt: skip
    ran = nanopsy(tmp_path, "train.py")
    assert ran.incident["outcome"] == "reproduced"
    assert ran.finding["code"] in ("NAN209", "NAN303")


def test_diagnosis_is_plain_json_and_readable() -> None:
    place = Location("a.py", 3, 1, 3, 9)
    fix = Fix("--- a\n+++ b\n-x\n+y", Safety.SAFE)
    finding = Finding("NAN101", "sqrt-at-zero", place, "words", evidence={"x": float("nan"), "t": (1, 2)}, fix=fix, verified=True)
    diagnosis = Diagnosis([Incident(4, What.LOSS, Outcome.REPRODUCED, [finding])], steps=5)
    text = json.dumps(diagnosis.to_dict(), allow_nan=False)
    again = Finding.from_dict(json.loads(text)["incidents"][0]["findings"][0])
    assert (again.code, again.location, again.fix, again.verified) == (finding.code, place, fix, True)
    assert plain({"a": [float("inf")]}) == {"a": ["inf"]}
    assert "NAN101 sqrt-at-zero" in render(diagnosis)
    assert render(Diagnosis(steps=7)) == "nanopsy: no incident in 7 steps"


def test_the_demonstration(tmp_path: Path) -> None:
    """The bundled example fails by itself, by the paper's mechanism, and is diagnosed with a verified fix."""
    example = Path(__file__).parent.parent / "examples" / "bts" / "train.py"
    ran = nanopsy(tmp_path, str(example))
    assert ran.status == 3
    assert ran.finding["code"] == "NAN301"
    assert ran.finding["location"]["file"].endswith("losses.py")
    assert ran.finding["verified"] is True
    assert python(tmp_path, "-m", "nanopsy", "--version").returncode == 0
