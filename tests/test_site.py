"""The site is built strictly and whole, and the tutorial's transcripts are what comes out."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from nanopsy.causes import load

ROOT = Path(__file__).parent.parent
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//|<link\b[^>]*\brel=["']?(?:stylesheet|preload|preconnect)[^>]*\bhref=["']?(?:https?:)?//"""
)


def python(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = {**os.environ, "COLUMNS": "110", "PYTHONPATH": path}
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False, env=environment)


def test_the_site_is_built_strictly_and_whole(tmp_path: Path) -> None:
    done = python("-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr

    causes = load()
    index = (tmp_path / "reference" / "causes" / "index.html").read_text()
    for code, cause in causes.items():
        page = (tmp_path / "reference" / "causes" / f"{code}.html").read_text()
        assert cause.slug in page
        assert "Why is this bad?" in page
        assert f'href="{code}.html"' in index
        assert f"{code} {cause.slug}" in page, "the navigation lists it"

    schema = (tmp_path / "reference" / "schema.html").read_text()
    for field in ("incidents", "findings", "verified", "fix.diff", "loss_bits"):
        assert f"<code>{field}</code>" in schema, field
    commands = (tmp_path / "reference" / "cli.html").read_text()
    for verb in re.findall(r"^    ([a-z]+)", python("-m", "nanopsy", "--help").stdout, re.MULTILINE):
        assert f"usage: nanopsy {verb}" in commands, verb
    assert "usage: nanopsy lab train" in commands
    assert 'id="masked_var"' in (tmp_path / "reference" / "api" / "nanopsy" / "stable.html").read_text()

    pages = {page.relative_to(tmp_path).as_posix(): page.read_text() for page in tmp_path.rglob("*.html")}
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix().replace("README", "index")
        assert name in pages, name
    assert [name for name, text in pages.items() if FETCHED.search(text)] == [], "nothing is fetched from elsewhere"
    assert not (tmp_path / "gen_pages.py").exists()


def masked(text: str) -> list[str]:
    """Lines without their indentation, digits of losses left out."""
    return [re.sub(r"(?<=loss )\s*\d+\.\d+", "#", line.strip()) for line in text.splitlines() if line.strip()]


def test_the_tutorial_is_real(tmp_path: Path) -> None:
    script = re.search(r"```py\n(.*?)```", TUTORIAL, re.DOTALL)
    assert script is not None
    (tmp_path / "train.py").write_text(script.group(1))
    shown = re.findall(r"```\n\$ (\S+) (.*)\n((?:.*\n)*?)```", TUTORIAL)
    statuses = {"run": [3, 0], "check": [1, 0], "explain": [0]}
    assert [f"{tool} {words}" for tool, words, _ in shown] == [
        "python train.py",
        "nanopsy run train.py",
        "nanopsy explain NAN102",
        "nanopsy check train.py",
        "nanopsy check --fix train.py",
        "nanopsy run train.py",
    ]
    for tool, words, transcript in shown:
        command = words.split() if tool == "python" else ["-m", tool, *words.split()]
        if command[:3] == ["-m", "nanopsy", "check"]:
            command.insert(3, "--no-cache")
        done = python(*command, folder=tmp_path)
        assert done.returncode == (0 if tool == "python" else statuses[command[2]].pop(0)), done.stderr
        said = masked(done.stdout + done.stderr)
        assert [line for line in masked(transcript) if line not in said] == [], done.stdout + done.stderr
    assert "step 190  loss nan" not in done.stdout
    assert "step 190  loss" in done.stdout


def test_every_field_of_the_schema_is_described() -> None:
    schema = json.loads((ROOT / "src" / "nanopsy" / "schema.json").read_text())
    silent: list[str] = []

    def look(node: Any, where: str) -> None:
        if isinstance(node, dict):
            fields = node.get("properties", {})
            silent.extend(f"{where}.{name}" for name, field in fields.items() if not field.get("description"))
            for name, child in node.items():
                look(child, f"{where}.{name}")
        elif isinstance(node, list):
            for child in node:
                look(child, where)

    look(schema, "report")
    assert silent == []
