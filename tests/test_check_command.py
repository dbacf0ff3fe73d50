"""``nanopsy check`` from the outside: options in, report and exit status out."""

from __future__ import annotations

import ast
import io
import itertools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from nanopsy.cli import main

BAD = "import torch\n\n\ndef loss(pred, target):\n    return torch.sqrt(((pred - target) ** 2).mean())\n"
"""NAN101 on line 5."""
COUNT = "import torch\n\n\ndef loss(pred, mask):\n    mask = mask > 0\n    return (pred * mask).sum() / torch.count_nonzero(mask)\n"
"""NAN303 on line 6, which a safe edit cures."""
DEPENDS = "import torch\n\n\ndef loss(pred, target):\n    return torch.log(pred).mean()\n"
"""NAN202 on line 5, if the prediction can reach 0."""
GOOD = "import torch\n\n\ndef loss(pred, target):\n    return ((pred - target) ** 2).mean()\n"

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test begins in an empty repository, below a folder that may hold what is outside it."""
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def write(**files: str) -> None:
    """Files by name, ``__`` for a slash; ``.py`` where no other ending is said."""
    for name, text in files.items():
        path = Path(name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def settings(table: str) -> None:
    Path("pyproject.toml").write_text(f"[tool.nanopsy]\n{table}\n", encoding="utf-8")


def check(*arguments: str) -> int:
    return main(["check", "--no-cache", *arguments])


def lines(capsys: Capture, *arguments: str) -> list[str]:
    """Place and code of every finding."""
    capsys.readouterr()
    check("--format", "concise", *arguments)
    return [" ".join(line.split()[:2]) for line in capsys.readouterr().out.splitlines() if " NAN" in line]


def give(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Put a text on standard input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def notebook(*cells: str, kind: str = "code") -> str:
    entries = [{"cell_type": kind, "metadata": {}, "source": cell, **({"outputs": [], "execution_count": None} if kind == "code" else {})} for cell in cells]
    return json.dumps({"cells": entries, "metadata": {"language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}, indent=1)


# --- exit statuses ---------------------------------------------------------------------------------------------------


def test_clean(capsys: Capture) -> None:
    write(good=GOOD)
    assert check() == 0
    assert "All clear: 1 file" in capsys.readouterr().out


def test_found(capsys: Capture) -> None:
    write(bad=BAD)
    assert check("bad.py") == 1
    out = capsys.readouterr().out
    assert "bad.py:5:12: NAN101 sqrt-at-zero" in out
    assert "nanopsy explain NAN101" in out


def test_exit_zero() -> None:
    write(bad=BAD)
    assert check("--exit-zero") == 0


def test_an_empty_folder_is_clean(capsys: Capture) -> None:
    assert check() == 0
    assert "Nothing to check" in capsys.readouterr().out


def test_a_missing_path(capsys: Capture) -> None:
    write(losses=GOOD)
    assert check("lossse.py") == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("nanopsy: there is no such file or folder\n")
    assert "did you mean losses.py?" in said.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--select", "NAN9999"],
        ["--ignore", "sqrt-at-zeroo"],
        ["--config", "missing.toml"],
        ["--baseline", "missing.json"],
        ["--jobs", "-1"],
        ["-", "bad.py"],
        ["--write-baseline", "b.json", "--fix"],
        ["--write-baseline", "b.json", "--diff"],
        ["--output-file", "no/such/folder/report.txt"],
        ["--output-file", "."],
    ],
    ids=" ".join,
)
def test_refused_in_a_sentence(arguments: list[str], capsys: Capture) -> None:
    write(bad=BAD)
    assert check(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("nanopsy: ")
    assert "  do: " in said
    assert Path("bad.py").read_text() == BAD


@pytest.mark.parametrize("arguments", [["--format", "xml"], ["--min-confidence", "sure"], ["--jobs", "two"], ["--nonsense"]], ids=" ".join)
def test_refused_by_the_parser(arguments: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        check(*arguments)
    assert left.value.code == 2
    assert "usage: nanopsy" in capsys.readouterr().err


# --- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [BAD, GOOD, "def broken(:\n"], ids=["found", "clean", "broken"])
@pytest.mark.parametrize("name", ["text", "concise", "json", "sarif", "github", "gitlab"])
def test_every_format(name: str, text: str, capsys: Capture) -> None:
    write(file=text)
    status = check("--format", name)
    out = capsys.readouterr().out
    assert status == (0 if text == GOOD else 1)
    if name in ("json", "sarif", "gitlab"):
        json.loads(out)
    assert ("NAN101" in out) == (text == BAD)
    assert "Traceback" not in out
    assert "\x1b[" not in out


def test_json_says_where(capsys: Capture) -> None:
    write(src__bad=BAD)
    check("--format", "json")
    finding = json.loads(capsys.readouterr().out)["findings"][0]
    assert finding["code"] == "NAN101"
    assert finding["location"]["file"] == "src/bad.py"
    assert (finding["location"]["line"], finding["location"]["column"]) == (5, 12)


@pytest.mark.parametrize("name", ["text", "concise", "json", "sarif", "github", "gitlab"])
def test_a_report_in_a_file(name: str, capsys: Capture) -> None:
    write(bad=BAD)
    check("--format", name)
    shown = capsys.readouterr().out
    assert check("--format", name, "--output-file", "report.txt") == 1
    assert capsys.readouterr().out == ""
    assert Path("report.txt").read_text() == shown


def test_statistics(capsys: Capture) -> None:
    write(a=BAD, b=BAD, c=COUNT)
    assert check("--statistics") == 1
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [["2", "NAN101", "sqrt-at-zero"], ["1", "NAN303", "[*]", "zero-count"]]


# --- what is looked for ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "codes"),
    [
        ([], ["NAN101", "NAN303"]),
        (["--select", "NAN1"], ["NAN101"]),
        (["--select", "nan303"], ["NAN303"]),
        (["--select", "zero-count"], ["NAN303"]),
        (["--select", "NAN1,NAN3"], ["NAN101", "NAN303"]),
        (["--select", "NAN1", "--select", "NAN3"], ["NAN101", "NAN303"]),
        (["--select", "ALL"], ["NAN101", "NAN303"]),
        (["--ignore", "NAN101"], ["NAN303"]),
        (["--ignore", "sqrt-at-zero, NAN3"], []),
        (["--select", "NAN3", "--ignore", "NAN303"], []),
        (["--select", "NAN303", "--ignore", "NAN3"], ["NAN303"]),
        (["--min-confidence", "certain"], ["NAN101"]),
    ],
    ids=lambda value: " ".join(value) or "none",
)
def test_select_and_ignore(arguments: list[str], codes: list[str], capsys: Capture) -> None:
    write(a=BAD, b=COUNT)
    assert [line.split()[1] for line in lines(capsys, *arguments)] == codes


def test_min_confidence(capsys: Capture) -> None:
    write(a=DEPENDS)
    assert check() == 0
    assert "1 hidden (depends): --min-confidence depends shows them" in capsys.readouterr().out
    assert check("--min-confidence", "depends") == 1
    assert "NAN202" in capsys.readouterr().out


def test_settings_of_the_project(capsys: Capture) -> None:
    write(a=BAD, b=COUNT, tests__test_a=BAD, generated__c=BAD)
    settings('extend-exclude = ["generated"]\nignore = ["zero-count"]\n[tool.nanopsy.per-file-ignores]\n"tests/*" = ["NAN1"]')
    assert lines(capsys) == ["a.py:5:12: NAN101"]
    assert lines(capsys, "--ignore", "NAN1") == ["b.py:6:12: NAN303"]
    assert lines(capsys, "generated/c.py", "--select", "NAN") == ["generated/c.py:5:12: NAN101"]
    assert lines(capsys, "generated/c.py", "--force-exclude") == []
    assert lines(capsys, "--exclude", "a.py") == ["generated/c.py:5:12: NAN101"]
    assert lines(capsys, "--extend-exclude", "a.py") == []


def test_settings_of_a_named_file(capsys: Capture) -> None:
    write(a=BAD)
    Path("other.toml").write_text('[tool.nanopsy]\nignore = ["NAN101"]\n')
    assert lines(capsys, "--config", "other.toml") == []
    assert lines(capsys) == ["a.py:5:12: NAN101"]


@pytest.mark.parametrize(
    "table",
    [
        'selct = ["NAN1"]',
        'select = "NAN1"',
        'select = ["NAN8"]',
        'min-confidence = "sure"',
        "exclude = [1]",
        'per-file-ignores = ["NAN1"]',
        '[tool.nanopsy.per-file-ignores]\n"a.py" = ["NONSENSE"]',
        "select = [",
    ],
)
def test_settings_that_are_refused(table: str, capsys: Capture) -> None:
    write(a=GOOD)
    settings(table)
    assert check() == 2
    said = capsys.readouterr().err
    assert said.startswith("nanopsy: ")
    assert "pyproject.toml" in said


def test_show_settings(capsys: Capture) -> None:
    settings('ignore = ["NAN3"]')
    assert check("--show-settings", "--min-confidence", "depends") == 0
    shown = capsys.readouterr().out
    assert 'ignore = ["NAN3"]' in shown
    assert 'min-confidence = "depends"  # command line' in shown
    assert "pyproject.toml" in shown


# --- silence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "comment", ["# noqa", "# noqa: NAN101", "# noqa: NAN1", "# NOQA:NAN101", "# noqa: E501, NAN101", "# noqa: E501 NAN101", "# about it  # noqa: NAN101"]
)
def test_noqa(comment: str, capsys: Capture) -> None:
    write(a=BAD.rstrip("\n") + f"  {comment}\n")
    assert check() == 0
    assert "1 hidden (noqa)" in capsys.readouterr().out


def test_noqa_of_something_else(capsys: Capture) -> None:
    write(a=BAD.rstrip("\n") + "  # noqa: E501\n")
    assert lines(capsys) == ["a.py:5:12: NAN101"]


def test_an_unused_noqa(capsys: Capture) -> None:
    write(a=GOOD.rstrip("\n") + "  # noqa: NAN101\n")
    assert check() == 1
    assert "NAN000 unused-noqa" in capsys.readouterr().out
    assert check("--ignore", "NAN000") == 0
    assert check("--select", "NAN3") == 0, "a code that was not looked for is not unused"
    assert check("--fix") == 0
    assert Path("a.py").read_text() == GOOD


def test_baseline(capsys: Capture) -> None:
    write(a=BAD)
    assert check("--write-baseline", "known.json") == 0
    capsys.readouterr()
    assert check("--baseline", "known.json") == 0
    assert "1 hidden (baseline)" in capsys.readouterr().out
    write(a="# a new first line\n" + BAD, b=COUNT)
    assert lines(capsys, "--baseline", "known.json") == ["b.py:6:12: NAN303"], "lines above do not matter"
    write(a=GOOD, b=GOOD)
    assert check("--baseline", "known.json") == 0
    assert "1 entries no longer occur" in capsys.readouterr().err


def test_a_broken_baseline(capsys: Capture) -> None:
    write(a=BAD)
    Path("known.json").write_text("[")
    assert check("--baseline", "known.json") == 2
    assert "known.json" in capsys.readouterr().err


# --- where -----------------------------------------------------------------------------------------------------------


def test_standard_input(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    give(monkeypatch, BAD)
    assert check("-", "--format", "concise") == 1
    assert capsys.readouterr().out.startswith("<stdin>:5:12: NAN101")
    give(monkeypatch, GOOD)
    assert check("-") == 0


def test_standard_input_by_a_name(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    settings('[tool.nanopsy.per-file-ignores]\n"src/*" = ["NAN1"]')
    give(monkeypatch, BAD)
    assert check("-", "--stdin-filename", "lib/losses.py", "--format", "concise") == 1
    assert capsys.readouterr().out.startswith("lib/losses.py:5:12: NAN101")
    give(monkeypatch, BAD)
    assert check("-", "--stdin-filename", "src/losses.py") == 0
    give(monkeypatch, notebook("x = 1\n", BAD))
    assert check("-", "--stdin-filename", "n.ipynb", "--format", "concise") == 1
    assert "NAN101" in capsys.readouterr().out


def test_standard_input_is_fixed_to_standard_output(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    give(monkeypatch, COUNT)
    assert check("-", "--fix") == 0
    said = capsys.readouterr()
    assert "clamp(min=1)" in said.out
    ast.parse(said.out)
    assert "1 fixed" in said.err


def test_notebooks(capsys: Capture) -> None:
    Path("n.ipynb").write_text(notebook("%matplotlib inline\nimport torch\n", BAD))
    assert check("--format", "json") == 1
    location = json.loads(capsys.readouterr().out)["findings"][0]["location"]
    assert (location["file"], location["cell"], location["line"]) == ("n.ipynb", 2, 5)


def test_a_notebook_is_fixed() -> None:
    broken = notebook("import torch\n", "def (\n", COUNT)
    Path("n.ipynb").write_text(broken)
    assert check("--fix") == 1
    assert Path("n.ipynb").read_text() == broken
    Path("n.ipynb").write_text(notebook("import torch\n", COUNT))
    assert check("--fix") == 0
    cells = json.loads(Path("n.ipynb").read_text())["cells"]
    assert cells[0]["source"] == "import torch\n"
    assert "clamp(min=1)" in "".join(cells[1]["source"])


def test_gitignore(capsys: Capture) -> None:
    write(a=BAD, out__b=BAD)
    Path(".gitignore").write_text("out/\n")
    assert lines(capsys) == ["a.py:5:12: NAN101"]
    assert lines(capsys, "--no-respect-gitignore") == ["a.py:5:12: NAN101", "out/b.py:5:12: NAN101"]
    assert lines(capsys, "out/b.py") == ["out/b.py:5:12: NAN101"]


def test_a_file_named_twice_is_checked_once(capsys: Capture) -> None:
    write(a=BAD)
    assert lines(capsys, "a.py", "./a.py", ".") == ["a.py:5:12: NAN101"]


# --- files that cannot be checked ------------------------------------------------------------------------------------

BROKEN = {
    "a null byte": b"import torch\nx = '\0'\n",
    "Python 2": b"print 'x'\n",
    "a wrong encoding": b"import torch\n# \xff\xfe\n",
    "an unknown encoding": b"# coding: nonsense\nimport torch\n",
    "deep brackets": b"import torch\nx = " + b"(" * 3000 + b")" * 3000 + b"\n",
    "deep operators": b"import torch\nx = " + b"-" * 60_000 + b"1\n",
    "half a file": b"def f(",
    "bad indentation": b"def f():\nreturn 1\n",
    "an open string": b"x = '''\n",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
@pytest.mark.filterwarnings("error")
def test_what_cannot_be_parsed_is_one_message(raw: bytes, capsys: Capture) -> None:
    write(bad=BAD)
    Path("broken.py").write_bytes(raw)
    assert check() == 1
    out = capsys.readouterr().out
    assert out.count("broken.py:") == 1
    assert "not checked" in out
    assert "bad.py:5:12: NAN101" in out
    assert "1 file could not be checked" in out
    Path("bad.py").unlink()
    assert check() == 1


@pytest.mark.parametrize(
    "text", ["[" * 40 + "x" + "]" * 40, " + ".join(["x"] * 5000), "x" + ".abs()" * 1500, "lambda: " * 60 + "x"], ids=["brackets", "sum", "calls", "lambdas"]
)
def test_long_expressions_are_no_trouble(text: str, capsys: Capture) -> None:
    write(a=f"import torch\n\n\ndef f(x):\n    return {text}\n\n\n" + BAD)
    assert check("--format", "concise") in (0, 1)
    assert "gave up" not in capsys.readouterr().out


def test_a_broken_notebook(capsys: Capture) -> None:
    Path("n.ipynb").write_text("{")
    assert check() == 1
    assert "n.ipynb:1: not checked: is no notebook" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "\n", "# only this\n", "\ufeffimport torch\n", "import torch\r\nx = 1\r\n", "import torch\n\x0c\nx = 1\n"])
def test_files_with_little_in_them(text: str) -> None:
    Path("a.py").write_bytes(text.encode())
    assert check() == 0


# --- fixes -----------------------------------------------------------------------------------------------------------


def test_fix(capsys: Capture) -> None:
    write(a=COUNT)
    assert check("--fix") == 0
    assert "1 fixed" in capsys.readouterr().out
    fixed = Path("a.py").read_text()
    assert fixed == COUNT.replace("nonzero(mask)\n", "nonzero(mask).clamp(min=1)\n")
    assert check("--fix") == 0
    assert Path("a.py").read_text() == fixed
    assert check() == 0


def test_what_is_unsafe_is_asked_for(capsys: Capture) -> None:
    write(a=BAD)
    assert check("--fix") == 1
    assert Path("a.py").read_text() == BAD
    capsys.readouterr()
    assert check("--fix", "--unsafe-fixes") == 0
    fixed = Path("a.py").read_text()
    assert fixed != BAD
    ast.parse(fixed)
    assert check("--fix", "--unsafe-fixes") == 0
    assert Path("a.py").read_text() == fixed


def test_unsafe_fixes_alone_change_nothing() -> None:
    write(a=BAD)
    assert check("--unsafe-fixes") == 1
    assert Path("a.py").read_text() == BAD


def test_diff(capsys: Capture) -> None:
    write(a=COUNT, b=BAD, c=GOOD)
    assert check("--diff") == 1
    out = capsys.readouterr().out
    assert out.startswith("--- a/a.py\n+++ b/a.py\n")
    assert "+    return (pred * mask).sum() / torch.count_nonzero(mask).clamp(min=1)\n" in out
    assert "b.py" not in out
    assert check("--diff", "--unsafe-fixes") == 1
    assert "+++ b/b.py" in capsys.readouterr().out
    assert [Path(name).read_text() for name in ("a.py", "b.py", "c.py")] == [COUNT, BAD, GOOD]
    Path("a.py").unlink()
    assert check("--diff") == 0
    assert capsys.readouterr().out == ""


def test_a_fix_of_what_is_silenced_or_ignored() -> None:
    quiet = COUNT.rstrip("\n") + "  # noqa: NAN303\n"
    write(a=quiet, b=COUNT)
    assert check("--fix", "--ignore", "NAN303") == 0
    assert [Path(name).read_text() for name in ("a.py", "b.py")] == [quiet, COUNT]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_line_ends_and_marks_stay(end: str) -> None:
    raw = "\ufeff" + ("# é\n" + COUNT).replace("\n", end)
    Path("a.py").write_bytes(raw.encode())
    assert check("--fix") == 0
    assert Path("a.py").read_bytes().decode() == raw.replace("nonzero(mask)" + end, "nonzero(mask).clamp(min=1)" + end)


def test_the_encoding_stays() -> None:
    raw = "# coding: latin-1\n# \xe9\n" + COUNT
    Path("a.py").write_bytes(raw.encode("latin-1"))
    assert check("--fix") == 0
    assert "clamp(min=1)" in Path("a.py").read_bytes().decode("latin-1")


# --- work ------------------------------------------------------------------------------------------------------------


def test_the_cache(capsys: Capture) -> None:
    write(a=BAD, b="from a import loss\n")
    assert main(["check"]) == 1
    first = capsys.readouterr().out
    assert list(Path(".nanopsy_cache").glob("*.json"))
    assert main(["check"]) == 1
    assert capsys.readouterr().out == first
    assert check() == 1
    assert capsys.readouterr().out == first
    write(a=GOOD)
    assert main(["check"]) == 0
    write(a=COUNT)
    assert main(["check", "--fix"]) == 0
    assert main(["check"]) == 0


def test_the_cache_sees_files_that_are_only_imported(capsys: Capture) -> None:
    loss = "import torch\nfrom lib.heads import head\n\n\ndef loss(x):\n    return torch.log(head(x)).mean()\n"
    head = "import torch\n\n\ndef head(x):\n    return {} * torch.sigmoid(x)\n"
    write(train=loss, lib__heads=head.format("80"), lib____init__="")
    assert main(["check", "--extend-exclude", "lib"]) == 1
    assert "NAN201" in capsys.readouterr().out
    write(lib__heads=head.format("0.1 + 80"))
    assert main(["check", "--extend-exclude", "lib"]) == 0


def test_a_cache_elsewhere_and_a_damaged_one(capsys: Capture) -> None:
    write(a=BAD)
    assert main(["check", "--cache-dir", "elsewhere"]) == 1
    first = capsys.readouterr().out
    entries = sorted(Path("elsewhere").glob("*.json"))
    assert len(entries) == 2
    for entry, text in itertools.product(entries, ("", "{", "[]", '{"key": 1}', '{"name": 1}')):
        entry.write_text(text)
        assert main(["check", "--cache-dir", "elsewhere"]) == 1
        assert capsys.readouterr().out == first
    assert not Path(".nanopsy_cache").exists()


def test_no_cache_leaves_nothing() -> None:
    write(a=BAD)
    check()
    assert sorted(path.name for path in Path().iterdir()) == [".git", "a.py"]


def test_more_processes_say_the_same(capsys: Capture) -> None:
    for number in range(70):
        write(**{f"package__part{number:02}": (BAD, COUNT, GOOD, DEPENDS, "import torch\nfrom package.part00 import loss\n")[number % 5]})
    reports = []
    for jobs in ("1", "2", "0"):
        assert check("--jobs", jobs, "--format", "json", "--min-confidence", "depends") == 1
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1] == reports[2]
    assert len(json.loads(reports[0])["findings"]) == 42


def test_torch_is_not_imported(here: Path) -> None:
    write(a=COUNT)
    code = "import sys\nfrom nanopsy.cli import main\nstatus = main(['check', '--fix', '--no-cache'])\nsys.exit(10 * ('torch' in sys.modules or 'numpy' in sys.modules) + status)"
    done = subprocess.run([sys.executable, "-c", code], cwd=here, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_leaves(here: Path) -> None:
    for number in range(300):
        write(**{f"a{number:03}": BAD})
    command = [sys.executable, "-m", "nanopsy", "check", "--no-cache"]
    with subprocess.Popen(command, cwd=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


def test_standard_input_without_a_fix_is_repeated(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    give(monkeypatch, GOOD)
    check("-", "--fix")
    assert capsys.readouterr().out == GOOD, "an editor replaces its buffer by what it reads"
