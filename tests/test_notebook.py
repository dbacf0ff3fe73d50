"""``%%autopsy`` in a shell of its own process, and the fragment that a notebook shows."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nanopsy.findings import Diagnosis, Finding, Fix, Incident, Location, Outcome, Safety, What
from running import python

SHELL = """
import json, sys
from IPython.core.compilerop import CachingCompiler
from IPython.core.interactiveshell import InteractiveShell

class OfAKernel(CachingCompiler):
    def get_code_name(self, raw_code, transformed_code, number):
        return f"/tmp/ipykernel_1/{abs(hash(raw_code))}.py"

kernel, cells = json.load(open("cells.json"))
shell = InteractiveShell.instance()
if kernel:
    shell.compile = OfAKernel()
told = []
for cell in cells:
    ran = shell.run_cell(cell, store_history=True)
    value = ran.result
    known = type(value).__name__ == "Diagnosis"
    told.append({
        "error": str(ran.error_in_exec or ran.error_before_exec or ""),
        "kind": type(value).__name__,
        "text": str(value),
        "html": value._repr_html_() if known else "",
        "findings": [finding.to_dict() for finding in value.findings] if known else [],
        "torch": "torch" in sys.modules,
        "names": {name: repr(entry) for name, entry in shell.user_ns.items() if name in ("count", "kept", "loss", "x")},
    })
json.dump(told, open("told.json", "w"), default=str)
"""


def run(folder: Path, *cells: str, kernel: bool = False) -> tuple[list[dict[str, Any]], str]:
    """What each cell gave, after ``%load_ext``, and all that was printed."""
    (folder / "cells.json").write_text(json.dumps([kernel, ["%load_ext nanopsy", *cells]]))
    (folder / "shell.py").write_text(SHELL)
    done = python(folder, "-W", "ignore", "shell.py", env={"IPYTHONDIR": str(folder), "NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "told.json").read_text()), done.stdout


SILOG = """import torch

def silog(prediction, depth):
    valid = depth > 0
    difference = torch.log(prediction[valid]) - torch.log(depth[valid])
    return torch.sqrt(torch.var(difference) + 0.15 * difference.mean() ** 2)"""
CALL = """%%autopsy

count = globals().get("count", 0) + 1
print("said", count)
x = torch.rand(4, requires_grad=True)
loss = silog(x, torch.tensor([0.0, 3.0, 0.0, 0.0]))
loss.backward()"""


@pytest.mark.parametrize("kernel", [False, True], ids=["ipython", "jupyter"])
def test_a_loss_across_cells(tmp_path: Path, kernel: bool) -> None:
    (loaded, _, told), printed = run(tmp_path, SILOG, CALL, kernel=kernel)
    assert (loaded["error"], loaded["torch"]) == ("", False)
    assert told["error"] == ""
    finding = told["findings"][0]
    place = finding["location"]
    assert (finding["code"], place["file"], place["line"], place["column"]) == ("NAN301", "cell 2", 6, 23)
    assert {(other["file"], other["line"]) for other in finding["also"] if other["file"].startswith("cell ")} == {("cell 2", 5), ("cell 3", 6)}
    assert "ipython-input" not in told["text"]
    assert "ipykernel" not in told["text"]
    assert "cell 2:6:23" in told["text"]
    assert "torch.sqrt(<mark" in told["html"]
    assert ">torch.var(difference)</mark>" in told["html"]
    # Run twice, from the same names: what is assigned stays, what is printed is shown once.
    assert told["names"]["count"] == "1"
    assert "tensor(nan" in told["names"]["loss"]
    assert printed.count("said") == 1
    assert "NAN301 bessel-of-one   cell 2:6:23" in printed  # the Out[3] of a terminal


def test_the_value_of_the_last_line_and_lines_of_the_visible_cell(tmp_path: Path) -> None:
    cell = "%%autopsy\nimport torch\nx = torch.zeros(2, requires_grad=True)\n\n(x / (x * 2)).sum()"
    (_, told), _ = run(tmp_path, cell)
    finding = told["findings"][0]
    assert (finding["code"], finding["location"]["file"], finding["location"]["line"], finding["location"]["column"]) == ("NAN209", "cell 2", 5, 2)
    assert "\n+(x / ((x * 2).clamp" in finding["fix"]["diff"]
    assert "a/cell 2" in finding["fix"]["diff"]


def test_a_healthy_cell_and_magics_inside_it(tmp_path: Path) -> None:
    cell = "%%autopsy\nimport torch\nx = torch.ones(3, requires_grad=True)\nfolder = %pwd\nloss = x.sum()\nprint(len(folder) > 0)"
    (_, told), printed = run(tmp_path, cell)
    assert (told["error"], told["text"]) == ("", "nanopsy: no incident in 1 step")
    assert "no incident in 1 step<" in told["html"]
    assert told["names"]["x"] == "tensor([1., 1., 1.], requires_grad=True)"
    assert "True" in printed


def test_what_is_not_a_loss_is_a_sentence(tmp_path: Path) -> None:
    told, _ = run(
        tmp_path,
        "%%autopsy\nkept = 3",
        "%%autopsy now\nkept",
        "%%autopsy\nimport torch\nx = torch.ones(2, requires_grad=True)\nloss = x.exp().sum()\nloss.backward()\nkept = 4",
        "%%autopsy\ntorch.ones(3, requires_grad=True)",
        "%%autopsy\nraise KeyError('of the cell')",
    )
    errors = [entry["error"] for entry in told[1:]]
    assert "end the cell with the loss, or call it loss" in errors[0]
    assert "takes no arguments, got 'now'" in errors[1]
    assert "calls backward itself" in errors[2]
    assert "one element" in errors[3]
    assert errors[4] == "'of the cell'"
    assert told[3]["names"]["kept"] == "4"


def test_unloading_takes_the_magic_away(tmp_path: Path) -> None:
    told, _ = run(tmp_path, "%unload_ext nanopsy", "%%autopsy\n3")
    assert told[1]["error"] == ""
    assert "autopsy" in told[2]["error"]


class Balanced(HTMLParser):
    """Reads a fragment: every tag is closed, and which there are."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "<script>alert('&amp;')</script>\"><img src=x onerror=alert(1)>{{ 7 * 7 }}"


@pytest.fixture
def hostile(tmp_path: Path) -> Diagnosis:
    """A diagnosis that has a tag wherever text can come from somebody else."""
    source = tmp_path / f"{HOSTILE.replace('/', '_')}.py"
    source.write_text(f"    name = '''{HOSTILE}''' + y\n")
    place = Location(str(source), 1, 12, 1, 12 + len(HOSTILE) + 6)
    finding = Finding(
        f"NAN{HOSTILE}", HOSTILE, place, HOSTILE, also=(place,), evidence={"replacement": HOSTILE}, path=(HOSTILE,), story=(HOSTILE,),
        fix=Fix(f"--- a\n+++ b\n-{HOSTILE}\n+{HOSTILE}", Safety.UNSAFE, HOSTILE), verification=HOSTILE,
    )  # fmt: skip
    incident = Incident(3, What.LOSS, Outcome.REPRODUCED, [finding, finding], detail=HOSTILE, weights=HOSTILE, count=2)
    return Diagnosis([incident, Incident(4, What.GRADIENT, Outcome.FLAKY)], 5, [HOSTILE])


def test_hostile_text_is_shown_and_not_obeyed(hostile: Diagnosis) -> None:
    html = hostile._repr_html_()
    page = Balanced(html)
    assert page.open == []
    assert page.tags == {"div", "strong", "code", "pre", "mark", "span"}
    assert page.attributes == {"style"}
    # Everything arrives as it was written: code, slug, message, story, path, detail, weights, note, note of the fix, verification, diff, replacement, source.
    assert page.text.count(HOSTILE) >= 13
    assert "49" not in page.text


def test_the_expression_is_marked_in_its_line(hostile: Diagnosis) -> None:
    html = hostile._repr_html_()
    marked = html.partition("<mark")[2].partition(">")[2].partition("</mark>")[0]
    assert Balanced(marked).text == f"'''{HOSTILE}'''"
    assert html.partition("</mark>")[2].startswith(" + y</pre>")


def test_nothing_found_and_nothing_known() -> None:
    assert "no incident in 2 steps" in Balanced(Diagnosis(steps=2)._repr_html_()).text
    unknown = Diagnosis([Incident(0, What.LOSS, Outcome.FLAKY, [Finding("NAN999", "unknown", None, "nothing")])], 1)
    assert "(no line of yours)" in Balanced(unknown._repr_html_()).text
    assert "cause unknown" in Balanced(Diagnosis([Incident(0, What.LOSS, Outcome.FLAKY)])._repr_html_()).text
