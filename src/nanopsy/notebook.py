"""``%%autopsy``: the loss that a notebook cell computes, examined as :func:`nanopsy.autopsy` does, with positions that say which cell.

IPython gives the code of every cell a file name and keeps its lines in ``linecache``. The magic's own cell gets one too. Since such a name
(``<ipython-input-3-0f1e…>``, ``/tmp/ipykernel_71/2718.py``) means nothing to a reader, the report calls it ``cell 3``.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from types import CodeType
from typing import Any

from nanopsy.errors import NanopsyError
from nanopsy.findings import Diagnosis, Finding, Location
from nanopsy.sources import give, parse

NAME = "autopsy"
FIRST_LINE = "# %%autopsy\n"
"""Stands where the magic does, so that lines are numbered as the notebook numbers them."""


def install(shell: Any) -> None:
    """Register the magic with an IPython shell."""

    def magic(line: str, cell: str) -> Diagnosis:
        """Examine the loss that this cell computes: the value of its last expression, else the variable ``loss``."""
        return examine(shell, line, cell)

    shell.register_magic_function(magic, magic_kind="cell", magic_name=NAME)


def uninstall(shell: Any) -> None:
    """Take the magic away again."""
    shell.magics_manager.magics["cell"].pop(NAME, None)


@dataclass(slots=True)
class Cell:
    """A cell as a callable that returns its loss; each call begins with the names as they were before the first."""

    shell: Any
    statements: CodeType
    value: CodeType | None
    before: dict[str, Any]
    runs: int = field(default=0)

    def __call__(self) -> Any:
        self.runs += 1
        if self.runs == 1:
            return self._run()
        from IPython.utils.capture import capture_output

        self._put_back()
        with capture_output():  # it has been seen
            return self._run()

    def _run(self) -> Any:
        names, local = self.shell.user_global_ns, self.shell.user_ns
        exec(self.statements, names, local)
        value = eval(self.value, names, local) if self.value is not None else None
        if not hasattr(value, "backward"):
            value = local.get("loss", value)
        if not hasattr(value, "backward"):
            raise NanopsyError(
                f"the cell has no loss: its last line gives {type(value).__name__}, and no variable is called loss",
                why="autopsy follows one loss and its gradient", do="end the cell with the loss, or call it loss",
            )  # fmt: skip
        return value

    def _put_back(self) -> None:
        names = self.shell.user_ns
        for name in set(names) - set(self.before):
            del names[name]
        names.update(self.before)


def examine(shell: Any, line: str, cell: str) -> Diagnosis:
    """Run a cell of ``shell`` as a loss; what it assigns stays, what it prints is shown once."""
    from IPython.core.error import UsageError

    from nanopsy.library import autopsy

    if line.strip():
        raise UsageError(f"%%autopsy takes no arguments, got {line.strip()!r}: the loss is the last line of the cell, or the variable loss")
    name, call = _compiled(shell, cell)
    try:
        diagnosis = autopsy(call)
    except NanopsyError as error:
        raise UsageError(str(error)) from None
    except RuntimeError as error:
        if "backward through the graph a second time" not in str(error):
            raise
        raise UsageError("the cell calls backward itself and goes on; end it with the loss: %%autopsy runs backward") from error
    numbers = _numbers(shell)
    magics = {other for other, number in numbers.items() if number == numbers.get(name) and other != name}
    return _labelled(diagnosis, _labels({other: number for other, number in numbers.items() if other not in magics}), magics)


def _numbers(shell: Any) -> dict[str, int]:
    """File name of each cell that has run -> its number."""
    return dict(getattr(shell.compile, "_filename_map", {}))


def _compiled(shell: Any, text: str) -> tuple[str, Cell]:
    """The cell's file name, and the cell as a callable."""
    source = shell.transform_cell(FIRST_LINE + text)
    # The shell has cached the cell that the magic stands in, and counts on before or after running it, as its version has it.
    number = max(_numbers(shell).values(), default=shell.execution_count)
    name = shell.compile.cache(source, number=number, raw_code=FIRST_LINE + text)
    body = shell.transform_ast(shell.compile.ast_parse(source, name)).body
    last = body.pop().value if body and isinstance(body[-1], ast.Expr) else None
    if isinstance(last, ast.Call) and isinstance(last.func, ast.Attribute) and last.func.attr == "backward" and not last.args and not last.keywords:
        last = last.func.value  # a closing loss.backward() is the autopsy's part
    statements = shell.compile(ast.Module(body, []), name, "exec")
    value = shell.compile(ast.Expression(last), name, "eval") if last is not None else None
    return name, Cell(shell, statements, value, dict(shell.user_ns))


def _labels(numbers: Mapping[str, int]) -> dict[str, str]:
    """File name of each cell -> what the report calls it; sources are found under both."""
    labels = {name: f"cell {number}" for name, number in numbers.items()}
    for name, label in labels.items():
        entry = linecache.cache.get(name)
        if entry is not None and len(entry) == 4:
            linecache.cache[label] = entry
            source = parse(label, "".join(entry[2]))
            if source is not None:
                give(source)
    return labels


def _labelled(diagnosis: Diagnosis, labels: Mapping[str, str], magics: Container[str]) -> Diagnosis:
    """The diagnosis with cells called by their numbers, in places and in sentences, without the calls of the magic itself."""

    def text(value: str) -> str:
        for name, label in labels.items():
            value = value.replace(name, label)
        return value

    def place(location: Location) -> Location:
        return replace(location, file=labels.get(location.file, location.file))

    def finding(found: Finding) -> Finding:
        return replace(
            found,
            location=place(found.location) if found.location is not None else None,
            also=tuple(place(location) for location in found.also if location.file not in magics),
            message=text(found.message),
            story=tuple(text(line) for line in found.story),
            fix=replace(found.fix, diff=text(found.fix.diff)) if found.fix is not None else None,
        )

    for incident in diagnosis.incidents:
        incident.findings = [finding(found) for found in incident.findings]
        incident.detail = incident.detail.replace("called twice", "the cell ran twice")
    return diagnosis
