"""The rooms and the arrows between them: who may import whom, and who must never import torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "nanopsy"
ALLOWED: dict[str, set[str]] = {
    "errors": {"findings"},
    "findings": {"report"},
    "ranges": {"findings"},
    "sources": {"findings"},
    "instrument": set(),
    "facts": {"findings", "sources"},
    "causes": {"causes", "facts", "findings", "ranges", "sources"},
    "capsule": {"capsule", "errors", "findings"},
    "report": {"capsule", "causes", "errors", "findings", "report", "sources"},
    "check": {"causes", "check", "errors", "facts", "findings", "nanopsy", "ranges", "report", "sources"},
    "_torch": set(),
    "registry": {"_torch", "findings", "instrument"},
    "snapshot": {"instrument", "registry"},
    "rewind": {"_torch", "instrument", "snapshot"},
    "watching": {"_torch"},
    "ranks": {"_torch"},
    "trace": {"_torch", "registry"},
    "operators": {"trace"},
    "values": {"findings", "operators", "registry", "trace"},
    "shadow": {"operators", "ranges", "trace", "values"},
    "origin": {"findings", "operators", "ranges", "shadow", "trace", "values"},
    "story": {"operators", "origin", "ranges", "trace", "values"},
    "drops": {"operators", "ranges", "story", "trace", "values"},
    "growth": {"findings", "operators", "ranges", "sources", "story", "trace"},
    "birth": {"drops", "findings", "growth", "operators", "ranges", "registry", "sources", "story", "trace", "values"},
    "diagnose": {
        "_torch",
        "birth",
        "causes",
        "examiner",
        "findings",
        "instrument",
        "operators",
        "ranges",
        "registry",
        "replay",
        "story",
        "trace",
        "values",
        "watching",
    },
    "refetch": {"_torch", "birth", "causes", "diagnose", "findings", "instrument", "ranges", "replay", "sources", "story", "trace"},
    "verify": {"causes", "diagnose", "findings", "instrument", "ranges", "replay", "rewind", "sources"},
    "replay": {"_torch", "diagnose", "examiner", "findings", "registry", "trace", "verify", "watching"},
    "closures": {"_torch", "watching"},
    "suspects": {"_torch", "watching"},
    "plan": {"diagnose", "examiner", "findings", "refetch", "replay", "trace", "verify"},
    "examiner": {"_torch", "closures", "findings", "instrument", "plan", "refetch", "registry", "replay", "rewind", "suspects", "watching"},
    "joint": {"_torch", "examiner", "findings", "plan", "ranks", "registry", "replay", "rewind", "suspects", "verify"},
    "capture": {
        "_torch",
        "capsule",
        "capture",
        "diagnose",
        "errors",
        "examiner",
        "findings",
        "nanopsy",
        "operators",
        "registry",
        "replay",
        "rewind",
        "run",
        "snapshot",
        "sources",
        "story",
        "trace",
        "watching",
    },
    "rerun": {"_torch", "capsule", "capture", "diagnose", "examiner", "findings", "registry", "replay", "rewind", "run", "trace", "watching"},
    "run": {"capture", "errors", "examiner", "findings", "instrument", "joint", "refetch", "registry", "replay", "report", "rerun", "rewind", "snapshot"},
    "library": {"_torch", "diagnose", "errors", "examiner", "findings", "registry", "replay", "rewind", "snapshot", "trace", "verify", "watching"},
    "tested": {
        "_torch",
        "causes",
        "diagnose",
        "examiner",
        "findings",
        "library",
        "nanopsy",
        "registry",
        "replay",
        "rewind",
        "snapshot",
        "trace",
        "verify",
        "watching",
    },
    "notebook": {"errors", "findings", "library", "sources"},
    "stepwatch": {"_torch", "errors", "findings", "library", "nanopsy", "registry", "replay", "rewind", "snapshot", "watching"},
    "integrations": {"findings", "instrument", "integrations", "stepwatch"},
    "stable": {"_torch", "errors", "stable"},
    "depth": {"depth", "errors", "findings", "nanopsy", "stable"},
    "lab": {"depth", "errors", "findings", "lab", "stable"},
    "cli": {"capture", "causes", "check", "errors", "lab", "report", "run", "nanopsy"},
    "__main__": {"cli"},
    "__init__": {"errors", "findings", "library", "nanopsy", "notebook"},
}
WITHOUT_TORCH = {
    "capsule",
    "errors",
    "facts",
    "findings",
    "ranges",
    "sources",
    "instrument",
    "causes",
    "check",
    "report",
    "notebook",
    "cli",
    "__main__",
    "__init__",
}


def room(file: Path) -> str:
    return file.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(file: Path) -> set[str]:
    """The rooms of ours, and ``torch``, that a file imports anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "torch":
                found.add("torch")
            elif parts[0] == "nanopsy":
                found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names if (SOURCE / f"{alias.name}.py").exists()} or {"nanopsy"}
    return found


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_follow_the_arrows(file: Path) -> None:
    name = room(file)
    assert name in ALLOWED, f"{name} is a new room: say in this table whom it may import"
    assert imported(file) - {"torch"} <= ALLOWED[name]
    if name in WITHOUT_TORCH:
        assert "torch" not in imported(file)


@pytest.mark.parametrize("arguments", [["explain", "NAN301"], ["explain", "--all"], ["--version"], ["check", "--no-cache", "examples/bts"]], ids=" ".join)
def test_the_torch_wall(arguments: list[str]) -> None:
    code = f"import sys; sys.argv = ['nanopsy', *{arguments!r}]\nfrom nanopsy.cli import main\ntry: main()\nexcept SystemExit: pass\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_loading_the_notebook_extension_and_showing_a_diagnosis_import_no_torch() -> None:
    code = "import sys, nanopsy, nanopsy.notebook; nanopsy.Diagnosis()._repr_html_(); sys.exit('torch' in sys.modules or 'IPython' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_the_torch_wall_can_be_seen_to_fall() -> None:
    code = "import sys, nanopsy; nanopsy.autopsy; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 1


def test_no_file_is_a_drawer_of_everything() -> None:
    names = {file.stem for file in SOURCE.rglob("*.py")}
    assert not names & {"utils", "helpers", "common", "misc", "core"}
