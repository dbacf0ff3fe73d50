"""The documentation tells the truth: its Python runs, its options exist, its transcript is what comes out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from nanopsy import cli, registry

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "howto").glob("*.md")),
]
BLOCKS = [(page.name, number, block) for page in PAGES for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))]


@pytest.mark.filterwarnings("ignore:var:UserWarning")
@pytest.mark.parametrize(("page", "number", "block"), BLOCKS, ids=lambda value: str(value) if not isinstance(value, str) or len(value) < 30 else "code")
def test_python_blocks_run(page: str, number: int, block: str, tmp_path: Path) -> None:
    file = tmp_path / "block.py"
    file.write_text(textwrap.dedent(block))
    try:
        exec(compile(block, str(file), "exec"), {"__name__": "__docs__"})
    finally:
        registry.uninstall()


def test_options_in_the_docs_exist() -> None:
    said = subprocess.run([sys.executable, "-m", "nanopsy", "run", "--help"], capture_output=True, text=True, check=True).stdout
    usage = (ROOT / "docs" / "usage.md").read_text()
    for option in set(re.findall(r"`(--[a-z-]+)", usage)):
        assert option in said, option
    assert cli.main(["explain", "--all"]) == 0


def test_options_of_the_linter_in_the_docs_exist() -> None:
    said = subprocess.run([sys.executable, "-m", "nanopsy", "check", "--help"], capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "check.md").read_text()
    documented = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", page.partition("## In a pipeline")[0]))
    offered = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", said)) - {"--help"}
    assert documented == offered


def test_the_linters_example_in_the_readme_is_real() -> None:
    done = subprocess.run([sys.executable, "-m", "nanopsy", "check", "--no-cache", "examples/bts"], cwd=ROOT, capture_output=True, text=True, check=False)
    shown = re.search(r"\$ nanopsy check examples/bts\n(.*?)\n```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert done.returncode == 1
    assert shown is not None
    assert shown.group(1) in done.stdout


def test_the_transcript_in_the_readme_is_real() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nanopsy", "run", "examples/bts/train.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "110"},
    )
    assert done.returncode == 3
    transcript = re.search(r"```\n\$ nanopsy run examples/bts/train.py\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert transcript is not None
    shown = [line.strip() for line in transcript.group(1).splitlines() if line.strip()]
    said = {line.strip() for line in (done.stdout + done.stderr).splitlines()}
    missing = [line for line in shown if line not in said and not re.search(r"loss \d", line)]
    assert missing == [], done.stderr


def test_every_relative_link_leads_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            if "reference/" in target:
                continue  # written by docs/gen_pages.py: the strict build in test_site.py follows these
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_user_docs_speak_of_the_project_alone() -> None:
    for page in PAGES[:1] + PAGES[3:]:
        assert "shared/" not in page.read_text()


def test_the_api_pages_hold_every_public_name(tmp_path: Path) -> None:
    from nanopsy import stable

    command = [sys.executable, "-m", "pdoc", "--docformat", "google", "--output-directory", str(tmp_path), "nanopsy.stable", "nanopsy.depth.metrics"]
    subprocess.run(command, check=True, capture_output=True)
    page = (tmp_path / "nanopsy" / "stable.html").read_text()
    assert [name for name in stable.__all__ if f'id="{name}"' not in page] == []
    assert 'id="DepthMetrics"' in (tmp_path / "nanopsy" / "depth" / "metrics.html").read_text()


def test_every_preset_has_a_before_and_after() -> None:
    from nanopsy import stable

    page = (ROOT / "docs" / "losses.md").read_text()
    assert [name for name in stable.SILOG_PRESETS if f'"{name}"' not in page] == []


def test_the_accuracy_table_has_every_function_of_the_bench() -> None:
    from subjects import SUBJECTS

    page = (ROOT / "docs" / "accuracy.md").read_text()
    assert [subject.name for subject in SUBJECTS if f"| `{subject.name}` |" not in page] == []
