"""The linter's reports: what a reader sees, what a service can parse, what must not get out of its line."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from pathlib import Path
from urllib.parse import unquote

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanopsy.findings import Confidence, Edit, Finding, Inspection, Location, Problem, Safety
from nanopsy.report import check_json, check_text, concise, github, gitlab, sarif

LINES = ["import torch", "", "def loss(g, mask):", "\tx = '\U0001f600'; return torch.var(g[mask])", "    return f(", "        a,", "    )"]
SAFE = Edit("src/a b.py", 60, 60, ", correction=0", Safety.SAFE, "population variance")
UNSAFE = Edit("src/a b.py", 70, 71, "", Safety.UNSAFE, "drop it")


def full() -> Inspection:
    return Inspection(
        [
            Finding(
                "NAN301", "bessel-of-one", Location("src/a b.py", 4, 18, 4, 36), "variance of a selection",
                also=(Location("src/a b.py", 3, 13, 3, 17), Location("src/b.py", 9)), story=("mask comes from data", "second", "third"),
                evidence={"low": math.nan, "high": math.inf}, confidence=Confidence.CERTAIN, condition="mask selects one", edits=(SAFE,),
            ),
            Finding("NAN302", "mean-of-nothing", Location("n.ipynb", 2, 1, 2, 4, cell=3), "mean", confidence=Confidence.LIKELY, edits=(SAFE, UNSAFE)),
            Finding("NAN000", "unused-noqa", Location("src/a b.py", 5, 12, 7, 6), "noqa", confidence=Confidence.DEPENDS),
            Finding("NAN301", "bessel-of-one", None, "nowhere"),
        ],
        [Problem("bad.py", 7, "invalid syntax")],
        files=12, hidden={"depends": 4, "noqa": 1, "baseline": 0}, root="/project",
        lines={("src/a b.py", 0): LINES, ("n.ipynb", 3): ["x = 1", "f.mean()"]},
    )  # fmt: skip


RENDERERS = [check_text.render, concise.render, check_json.render, sarif.render, github.render, gitlab.render]


@pytest.mark.parametrize("render", RENDERERS, ids=lambda render: render.__module__)
def test_every_format_takes_everything_and_nothing(render) -> None:  # type: ignore[no-untyped-def]
    assert isinstance(render(full()), str)
    assert isinstance(render(Inspection()), str)
    assert "\x1b[" not in render(full())


# --- text ------------------------------------------------------------------------------------------------------------


def test_text() -> None:
    shown = check_text.render(full())
    assert shown.startswith("src/a b.py:4:18: NAN301 bessel-of-one [*] variance of a selection (certain)\n")
    assert "  3 | def loss(g, mask):\n  4 |     x = '\U0001f600'; return torch.var(g[mask])\n" in shown
    # The tab is four columns wide and the emoji two: three and one more than they count.
    assert f"\n    | {' ' * (17 + 3 + 1)}{'^' * 18}\n" in shown
    assert "  src/a b.py:3:13: mask comes from data\n    3 | def loss(g, mask):\n      |             ^^^^\n" in shown
    assert "  src/b.py:9:1: second\n  third\n" in shown
    assert "  if: mask selects one\n  fix: population variance (--fix)\n  see: nanopsy explain NAN301\n" in shown
    assert "n.ipynb:cell 3:2:1: NAN302 mean-of-nothing mean (likely)\n  1 | x = 1\n  2 | f.mean()\n    | ^^^\n" in shown
    assert "fix: population variance; drop it (--unsafe-fixes, as it changes finite values)" in shown
    assert "  5 |     return f(\n    |            ^^\n  6 |         a,\n    |         ^^\n  7 |     )\n    |     ^\n" in shown
    assert "explain NAN000" not in shown + github.render(full())
    assert "bad.py:7: not checked: invalid syntax" in shown
    assert shown.splitlines()[-1] == (
        "Found 4 problems in 12 files (1 certain, 1 likely, 1 depends); 1 file could not be checked; 1 fixable with --fix, 1 more with --unsafe-fixes; "
        "4 hidden (depends): --min-confidence depends shows them; 1 hidden (noqa)."
    )
    assert "\x1b[1m" in check_text.render(full(), color=True)
    assert re.sub(r"\x1b\[\d+m", "", check_text.render(full(), color=True)) == shown


@pytest.mark.parametrize(
    ("inspection", "line"),
    [
        (Inspection(files=3), "All clear: 3 files."),
        (Inspection(files=1, fixed=2), "All clear: 1 file; 2 fixed."),
        (Inspection(files=1, hidden={"depends": 2}), "All clear: 1 file; 2 hidden (depends): --min-confidence depends shows them."),
        (Inspection(), "Nothing to check: no Python file or notebook was found."),
        (Inspection(problems=[Problem("a.py", 1, "m")], files=1), "Found nothing in 1 file; 1 file could not be checked."),
        (Inspection([Finding("NAN1", "s", None, "m", edits=(UNSAFE,))], files=1), "Found 1 problem in 1 file; 1 fixable with --unsafe-fixes."),
    ],
)
def test_summary(inspection: Inspection, line: str) -> None:
    assert check_text.render(inspection).splitlines()[-1] == line


@given(st.lists(st.text(max_size=300), max_size=8), st.text(), st.integers(0, 9), st.integers(1, 400), st.integers(0, 9), st.integers(0, 400), st.booleans())
def test_no_source_can_steer_the_terminal(lines: list[str], name: str, line: int, column: int, end: int, end_column: int, color: bool) -> None:
    place = Location(name, line, column, end, end_column)
    inspection = Inspection([Finding("NAN301", "s", place, name, also=(place,), story=(name,), condition=name)], lines={(name, 0): lines})
    shown = check_text.render(inspection, color=color)
    assert all(char.isprintable() or char == "\n" or unicodedata.combining(char) for char in re.sub(r"\x1b\[\d+m", "", shown))


def test_a_long_line_is_cut_around_the_finding() -> None:
    line = "a" * 500 + "BAD" + "c" * 500
    shown = check_text.render(Inspection([Finding("NAN1", "s", Location("a.py", 1, 501, 1, 504), "m")], lines={("a.py", 0): [line]}))
    code, carets = shown.splitlines()[1:3]
    assert len(code) < 180
    assert code[carets.index("^") : carets.rindex("^") + 1] == "BAD"


def test_a_tall_span_is_cut_in_the_middle() -> None:
    lines = [f"line{number}" for number in range(1, 31)]
    shown = check_text.render(Inspection([Finding("NAN1", "s", Location("a.py", 2, 1, 29, 3), "m")], lines={("a.py", 0): lines}))
    assert "line2" in shown
    assert "line29" in shown
    assert "line15" not in shown
    assert shown.count(".. |") == 1


# --- concise ---------------------------------------------------------------------------------------------------------


def test_concise() -> None:
    assert concise.render(full()).splitlines() == [
        "src/a b.py:4:18: NAN301 variance of a selection",
        "n.ipynb:cell 3:2:1: NAN302 mean",
        "src/a b.py:5:12: NAN000 noqa",
        "-: NAN301 nowhere",
        "bad.py:7:1: error: invalid syntax",
    ]


# --- json ------------------------------------------------------------------------------------------------------------


def test_json_is_strict() -> None:
    def refuse(word: str) -> None:
        raise ValueError(word)

    content = json.loads(check_json.render(full()), parse_constant=refuse)
    assert content["format"] == 1
    assert content["hidden"]["depends"] == 4
    first = content["findings"][0]
    assert first["evidence"] == {"low": "nan", "high": "inf"}
    assert first["edits"] == [{"file": "src/a b.py", "start": 60, "end": 60, "text": ", correction=0", "safety": "safe", "note": "population variance"}]
    assert (first["confidence"], first["condition"]) == ("certain", "mask selects one")
    assert content["findings"][1]["location"]["cell"] == 3
    assert content["problems"] == [{"file": "bad.py", "line": 7, "message": "invalid syntax"}]
    assert len({each["fingerprint"] for each in content["findings"]}) == 4


# --- sarif -----------------------------------------------------------------------------------------------------------

TEXT = {"type": "object", "required": ["text"], "properties": {"text": {"type": "string"}, "markdown": {"type": "string"}}, "additionalProperties": False}
ARTIFACT = {
    "type": "object",
    "properties": {"uri": {"type": "string", "pattern": r"^[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]*$"}, "uriBaseId": {"type": "string"}},
    "additionalProperties": False,
}
ONE, ZERO = {"type": "integer", "minimum": 1}, {"type": "integer", "minimum": 0}
REGION = {
    "type": "object",
    "properties": {"startLine": ONE, "startColumn": ONE, "endLine": ONE, "endColumn": ONE, "charOffset": ZERO, "charLength": ZERO},
    "additionalProperties": False,
}
LOCATION = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": -1},
        "message": TEXT,
        "physicalLocation": {
            "type": "object",
            "properties": {"artifactLocation": ARTIFACT, "region": REGION},
            "required": ["artifactLocation"],
            "additionalProperties": False,
        },
        "logicalLocations": {
            "type": "array",
            "items": {"type": "object", "properties": {"name": {"type": "string"}, "kind": {"type": "string"}}, "additionalProperties": False},
        },
    },
    "additionalProperties": False,
}
LEVEL = {"enum": ["none", "note", "warning", "error"]}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"const": "2.1.0"},
        "runs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["tool"],
                "additionalProperties": False,
                "properties": {
                    "tool": {
                        "type": "object",
                        "required": ["driver"],
                        "properties": {
                            "driver": {
                                "type": "object",
                                "required": ["name"],
                                "additionalProperties": False,
                                "properties": {
                                    "name": {"type": "string"},
                                    "version": {"type": "string"},
                                    "rules": {
                                        "type": "array",
                                        "uniqueItems": True,
                                        "items": {
                                            "type": "object",
                                            "required": ["id", "name", "shortDescription", "fullDescription", "help"],
                                            "additionalProperties": False,
                                            "properties": {
                                                "id": {"type": "string"},
                                                "name": {"type": "string"},
                                                "shortDescription": TEXT,
                                                "fullDescription": TEXT,
                                                "help": TEXT,
                                                "defaultConfiguration": {"type": "object", "properties": {"level": LEVEL}, "additionalProperties": False},
                                                "properties": {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}},
                                            },
                                        },
                                    },
                                },
                            }
                        },
                    },
                    "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                    "originalUriBaseIds": {
                        "type": "object",
                        "additionalProperties": {
                            "type": "object",
                            "properties": {"uri": {"type": "string", "pattern": "/$"}, "description": TEXT},
                            "additionalProperties": False,
                        },
                    },
                    "invocations": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["executionSuccessful"],
                            "additionalProperties": False,
                            "properties": {
                                "executionSuccessful": {"type": "boolean"},
                                "toolExecutionNotifications": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["message"],
                                        "properties": {"level": LEVEL, "message": TEXT, "locations": {"type": "array", "items": LOCATION}},
                                        "additionalProperties": False,
                                    },
                                },
                            },
                        },
                    },
                    "results": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["message"],
                            "additionalProperties": False,
                            "properties": {
                                "ruleId": {"type": "string"},
                                "ruleIndex": ZERO,
                                "level": LEVEL,
                                "message": TEXT,
                                "locations": {"type": "array", "items": LOCATION},
                                "relatedLocations": {"type": "array", "uniqueItems": True, "items": LOCATION},
                                "partialFingerprints": {"type": "object", "additionalProperties": {"type": "string"}},
                                "properties": {"type": "object"},
                                "fixes": {
                                    "type": "array",
                                    "items": {
                                        "type": "object",
                                        "required": ["artifactChanges"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "description": TEXT,
                                            "artifactChanges": {
                                                "type": "array",
                                                "minItems": 1,
                                                "items": {
                                                    "type": "object",
                                                    "required": ["artifactLocation", "replacements"],
                                                    "additionalProperties": False,
                                                    "properties": {
                                                        "artifactLocation": ARTIFACT,
                                                        "replacements": {
                                                            "type": "array",
                                                            "minItems": 1,
                                                            "items": {
                                                                "type": "object",
                                                                "required": ["deletedRegion"],
                                                                "additionalProperties": False,
                                                                "properties": {"deletedRegion": REGION, "insertedContent": TEXT},
                                                            },
                                                        },
                                                    },
                                                },
                                            },
                                        },
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
"""The objects and properties of SARIF 2.1.0 that the report uses, closed, so that a misspelt property is refused."""


def test_sarif_keeps_to_its_schema() -> None:
    for inspection in (full(), Inspection()):
        jsonschema.validate(json.loads(sarif.render(inspection)), SARIF)


def test_sarif() -> None:
    (run,) = json.loads(sarif.render(full()))["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert [rule["id"] for rule in rules] == ["NAN000", "NAN301", "NAN302"]
    assert rules[1]["name"] == "BesselOfOne"
    assert rules[1]["help"]["markdown"].startswith("# NAN301 bessel-of-one")
    assert rules[1]["shortDescription"]["text"] == "Sample variance of one element."
    assert "Bessel's correction" in rules[1]["fullDescription"]["text"]
    results = run["results"]
    assert [rules[result["ruleIndex"]]["id"] for result in results] == [result["ruleId"] for result in results]
    assert [result["level"] for result in results] == ["error", "warning", "note", "warning"]
    physical = results[0]["locations"][0]["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "src/a%20b.py", "uriBaseId": "SRCROOT"}
    assert physical["region"] == {"startLine": 4, "startColumn": 19, "endLine": 4, "endColumn": 37}
    assert [each["message"]["text"] for each in results[0]["relatedLocations"]] == ["mask comes from data", "second"]
    assert results[0]["message"]["text"] == "variance of a selection, if mask selects one"
    change = results[0]["fixes"][0]["artifactChanges"][0]
    assert change["replacements"] == [{"deletedRegion": {"charOffset": 60, "charLength": 0}, "insertedContent": {"text": ", correction=0"}}]
    assert results[1]["locations"][0]["logicalLocations"][0]["name"] == "cell 3"
    assert "fixes" not in results[1]
    assert results[3]["locations"] == []
    assert run["originalUriBaseIds"]["SRCROOT"]["uri"] == "file:///project/"
    assert run["invocations"][0]["executionSuccessful"] is False
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "invalid syntax"
    assert json.loads(sarif.render(Inspection()))["runs"][0]["invocations"][0]["executionSuccessful"] is True


def uri(file: str, root: str = "/project") -> dict[str, str]:
    inspection = Inspection([Finding("NAN301", "s", Location(file, 1), "m")], root=root)
    artifact: dict[str, str] = json.loads(sarif.render(inspection))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    return artifact


def test_sarif_uris() -> None:
    assert uri("../else/a.py") == {"uri": "file:///else/a.py"}
    assert uri("/project/in/a.py") == {"uri": "in/a.py", "uriBaseId": "SRCROOT"}
    assert uri("a:b%#?.py")["uri"] == "a%3Ab%25%23%3F.py"
    assert uri("\udcff.py")["uri"] == "%FF.py"


@given(st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0/\\"), min_size=1).filter(lambda name: name not in {".", ".."}))
def test_a_uri_names_its_file(name: str) -> None:
    assert unquote(uri(name)["uri"]) == name


@given(st.text(st.characters(exclude_categories=("Cs", "Zl", "Zp", "Cc"))), st.data())
def test_sarif_columns_count_utf16(line: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(1, len(line) + 1))
    end = data.draw(st.integers(start, len(line) + 1))
    place = Location("a.py", 1, start, 1, end)
    inspection = Inspection([Finding("NAN301", "s", place, "m")], lines={("a.py", 0): [line]})
    region = json.loads(sarif.render(inspection))["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"]
    raw = line.encode("utf-16-le")[2 * (region["startColumn"] - 1) : 2 * (region["endColumn"] - 1)]
    assert raw.decode("utf-16-le") == line[start - 1 : end - 1]


# --- github ----------------------------------------------------------------------------------------------------------


def parsed(command: str) -> tuple[str, dict[str, str], str]:
    """A workflow command as the runner reads it."""
    found = re.fullmatch(r"::(\w+) (.*?)::(.*)", command)
    assert found is not None
    properties = dict(each.split("=", 1) for each in found[2].split(","))

    def plain(text: str) -> str:
        return text.replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace("%2C", ",").replace("%25", "%")

    return found[1], {key: plain(value) for key, value in properties.items()}, found[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def test_github(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    first, notebook, tall, nowhere, problem = map(parsed, github.render(full()).splitlines())
    assert first == (
        "error",
        {"file": "src/a b.py", "line": "4", "endLine": "4", "col": "18", "endColumn": "36", "title": "NAN301 bessel-of-one"},
        "variance of a selection\nif mask selects one\nsee: nanopsy explain NAN301",
    )
    assert notebook[1] == {"file": "n.ipynb", "title": "NAN302 mean-of-nothing (cell 3, line 2)"}
    assert tall[0] == "notice"
    assert "col" not in tall[1]
    assert nowhere[1] == {"title": "NAN301 bessel-of-one"}
    assert problem == ("error", {"file": "bad.py", "line": "7", "title": "not checked"}, "invalid syntax")


def test_paths_count_from_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", "/")
    monkeypatch.setenv("CI_PROJECT_DIR", "/")
    assert parsed(github.render(full()).splitlines()[0])[1]["file"] == "project/src/a b.py"
    assert json.loads(gitlab.render(full()))[0]["location"]["path"] == "project/src/a b.py"
    monkeypatch.setenv("GITHUB_WORKSPACE", "/other")
    assert parsed(github.render(full()).splitlines()[0])[1]["file"] == "src/a b.py"


ANY = st.text(st.sampled_from("a%:,\r\n=;0AD25") | st.characters(exclude_categories=("Cs",)), max_size=20)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(file=ANY, message=ANY, condition=ANY)
def test_no_message_gets_out_of_its_command(monkeypatch: pytest.MonkeyPatch, file: str, message: str, condition: str) -> None:
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    shown = github.render(Inspection([Finding("NAN301", "s", Location(file, 1), message, condition=condition)]))
    assert "\n" not in shown
    assert "\r" not in shown
    level, properties, text = parsed(shown)
    assert level == "warning"
    assert properties["file"] == file
    assert text == "\n".join(filter(None, [message, f"if {condition}" if condition else "", "see: nanopsy explain NAN301"]))


# --- gitlab ----------------------------------------------------------------------------------------------------------


def test_gitlab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI_PROJECT_DIR", raising=False)
    entries = json.loads(gitlab.render(full()))
    assert [entry["severity"] for entry in entries] == ["critical", "major", "minor", "major", "blocker"]
    assert entries[0]["description"] == "NAN301 bessel-of-one: variance of a selection, if mask selects one"
    assert entries[0]["check_name"] == "bessel-of-one"
    assert entries[0]["location"] == {"path": "src/a b.py", "lines": {"begin": 4, "end": 4}}
    assert "cell 3" in entries[1]["description"]
    assert len({entry["fingerprint"] for entry in entries}) == len(entries)


def test_the_drawer_imports_only_what_it_may() -> None:
    folder = Path(check_text.__file__).parent
    for file in folder.glob("*.py"):
        assert set(re.findall(r"^from nanopsy\.(\w+)", file.read_text(), re.MULTILINE)) <= {"capsule", "causes", "errors", "findings", "report", "sources"}
