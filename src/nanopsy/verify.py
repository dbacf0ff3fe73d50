"""Try a remedy in memory on the failing step: edit, swap, rewind, compare. Nothing is written to disk.

Functions get the edited code object for one replay. Code of the loop's own frame is running and cannot be swapped:
there the edited *body* of the loop is compiled by itself and run in a copy of the frame's names.
"""

from __future__ import annotations

import ast
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType, FunctionType
from typing import TYPE_CHECKING, Any

from nanopsy.findings import Edit, Finding, Fix, Location, Safety
from nanopsy.instrument import compile_user
from nanopsy.ranges import Birth
from nanopsy.sources import Source, apply, diff, load, parse

if TYPE_CHECKING:
    from nanopsy.diagnose import Evidence
    from nanopsy.replay import Replay
    from nanopsy.rewind import Live

Body = Callable[[FrameType, Any], None]


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _same(left: CodeType, right: CodeType) -> bool:
    def constants(code: CodeType) -> list[Any]:
        return [value for value in code.co_consts if not isinstance(value, CodeType)]

    inner = [value for value in left.co_consts if isinstance(value, CodeType)]
    others = [value for value in right.co_consts if isinstance(value, CodeType)]
    same = left.co_code == right.co_code and constants(left) == constants(right) and left.co_names == right.co_names
    return same and len(inner) == len(others) and all(_same(a, b) for a, b in zip(inner, others, strict=True))


def _files(edits: Sequence[Edit]) -> Iterator[tuple[Source, list[Edit]]]:
    for file in dict.fromkeys(edit.file for edit in edits):
        source = load(file)
        if source is not None:
            yield source, [edit for edit in edits if edit.file == file]


def _fix(edits: Sequence[Edit]) -> Fix:
    safety = Safety.SAFE if all(edit.safety is Safety.SAFE for edit in edits) else Safety.UNSAFE
    notes = dict.fromkeys(edit.note for edit in edits if edit.note)
    return Fix("\n".join(diff(source, mine) for source, mine in _files(edits)), safety, "; ".join(notes))


@dataclass(slots=True)
class Patch:
    """Edits of one or more files, applied in memory for one replay."""

    edits: tuple[Edit, ...]
    live: Live
    problem: str = ""
    body: Body | None = None
    _swapped: list[tuple[FunctionType, CodeType]] = field(default_factory=list)

    def files(self) -> Iterator[tuple[Source, list[Edit]]]:
        """The edits, file by file."""
        return _files(self.edits)

    def fix(self) -> Fix:
        """The patch as the report shows it."""
        return _fix(self.edits)

    def extended(self, edits: Sequence[Edit]) -> Patch:
        """This patch and further edits; the same patch when they collide."""
        for new in edits:
            if any(new.file == old.file and new.start < old.end and old.start < new.end for old in self.edits):
                return self
        return Patch((*self.edits, *edits), self.live)

    def original(self, location: Location) -> Location:
        """Where a span of the patched source lies in the source as the user wrote it."""
        for source, edits in self.files():
            if source.file != location.file:
                continue
            patched = parse(source.file, apply(source, edits))
            if patched is None:
                return location
            line, column = self._back(source, patched, edits, location.line, location.column)
            end_line, end_column = self._back(source, patched, edits, location.end_line, location.end_column)
            return replace(location, line=line, column=column, end_line=end_line, end_column=end_column)
        return location

    @staticmethod
    def _back(source: Source, patched: Source, edits: list[Edit], line: int, column: int) -> tuple[int, int]:
        at = patched.starts[max(line, 1) - 1] + column - 1
        shift = 0
        for edit in sorted(edits, key=lambda edit: edit.start):
            if at >= edit.start + shift + len(edit.text):
                shift += len(edit.text) - (edit.end - edit.start)
        at -= shift
        number = max(i for i, start in enumerate(source.starts) if start <= at)
        return number + 1, at - source.starts[number] + 1

    # -- applying --------------------------------------------------------------------------------

    def apply(self) -> None:
        """Swap the edited functions in; :attr:`problem` says why if that cannot be done."""
        self.problem, self.body = "", None
        for source, edits in self.files():
            text = apply(source, edits)
            try:
                before = {code.co_qualname: code for code in _codes(compile_user(source.text, source.file))}
                after = {code.co_qualname: code for code in _codes(compile_user(text, source.file))}
            except SyntaxError as error:
                self.problem = f"the edited source does not compile ({error.msg})"
                return
            for name in self._edited(source, edits):
                if name in after and name in before and not _same(before[name], after[name]):
                    self._replace(source, edits, text, name, after[name])

    def _edited(self, source: Source, edits: list[Edit]) -> list[str]:
        """Qualified names of the functions that the edits lie in, outer ones too."""
        names = []
        for edit in edits:
            inside, functions = "", []
            for node in ast.walk(source.tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    start, end = source.span(node.body[0])[0], source.span(node)[1]
                    if not start <= edit.start <= end:
                        continue
                    inside = f"{inside}.{node.name}" if inside else node.name
                    if not isinstance(node, ast.ClassDef):
                        functions.append(inside)
                        inside += ".<locals>"
            names += functions or ["<module>"]
        return list(dict.fromkeys(names))

    def _replace(self, source: Source, edits: list[Edit], text: str, name: str, code: CodeType) -> None:
        if name == self.live.code_name and self._in_loop(source, edits):
            self.body = _compile_body(source.file, text, self.live.line)
            if self.body is None:
                self.problem = "the edited loop body cannot be run by itself"
            return
        last = name.rsplit(".", 1)[-1]
        if last in ("<module>", "__init__") or source.statement(1) is None:
            self.problem = "the edited code runs before the training step: it takes effect in a new run"
            return
        found = False
        for thing in gc.get_objects():
            if type(thing) is not FunctionType or thing.__code__.co_filename != source.file or thing.__code__.co_qualname != name:
                continue
            if len(thing.__code__.co_freevars) == len(code.co_freevars):
                self._swapped.append((thing, thing.__code__))
                thing.__code__ = code
                found = True
        if not found and not self._swapped:
            self.problem = f"no function {name} is alive to be edited"

    def _in_loop(self, source: Source, edits: list[Edit]) -> bool:
        loop = _loop_at(source.tree, self.live.line)
        if loop is None:
            return False
        start, end = source.span(loop)
        return all(start <= edit.start <= end for edit in edits)

    def undo(self) -> None:
        """Put the original code back."""
        while self._swapped:
            function, code = self._swapped.pop()
            function.__code__ = code

    def judge(self, finding: Finding, cured: Replay) -> Finding:
        """The finding with its fix and what trying it showed."""
        fix = self.fix()
        if self.problem:
            return replace(finding, fix=fix, verified=None, verification=f"not verified: {self.problem}")
        if cured.bad:
            what = "the loss is still bad" if cured.bad_loss else "gradients are still bad"
            return replace(finding, fix=fix, verified=False, verification=f"not verified: {what} with the edit")
        if cured.error is not None:
            text = f"not verified: with the edit the step raises {type(cured.error).__name__}: {cured.error}"
            return replace(finding, fix=fix, verified=False, verification=text)
        if not cured.loss_values or not cured.backward_ran:
            return replace(finding, fix=fix, verified=None, verification="not verified: the step did not come to its end")
        loss = cured.loss_values[-1]
        if not math.isfinite(loss):
            return replace(finding, fix=fix, verified=False, verification="not verified: the loss is still bad with the edit")
        before = finding.evidence.get("finite_loss")
        changed = ""
        if isinstance(before, float):
            off = abs(loss - before) / max(abs(before), 1e-12)
            changed = ", loss unchanged" if off == 0 else f", loss changed by {off:.1e}"
            if fix.safety is Safety.SAFE and off > 1e-3:
                return replace(finding, fix=fix, verified=False, verification=f"not verified: the edit changes a finite loss from {before:.6g} to {loss:.6g}")
        return replace(finding, fix=fix, verified=True, verification=f"verified: loss {loss:.4g}, all gradients finite{changed}")


def _loop_at(tree: ast.Module, line: int) -> ast.For | ast.While | None:
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)) and node.lineno <= line <= (node.body[0].lineno):
            if node.lineno == line or any(getattr(inner, "lineno", 0) == line for inner in ast.walk(node.iter if isinstance(node, ast.For) else node.test)):
                return node
    return None


class _Flat(ast.NodeTransformer):
    """Names assigned in a loop body, at its own level; scope statements removed."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.refused = False

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if isinstance(node.ctx, ast.Store):
            self.names.add(node.id)
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        return ast.copy_location(ast.Pass(), node)

    def _named(self, node: Any) -> ast.AST:
        self.names.add(node.name)
        result: ast.AST = node
        return result

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _named

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return node

    def _scoped(self, node: Any) -> Any:
        return node

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _scoped

    def visit_Yield(self, node: ast.AST) -> ast.AST:
        self.refused = True
        return node

    visit_YieldFrom = visit_Await = visit_Yield

    def visit_Import(self, node: ast.Import) -> ast.AST:
        self.names.update((alias.asname or alias.name.split(".")[0]) for alias in node.names)
        return node


def _compile_body(file: str, text: str, line: int) -> Body | None:
    """The loop at ``line`` of ``text`` as a function of one item, run in a copy of the frame's names."""
    tree = ast.parse(text)
    loop = _loop_at(tree, line)
    if loop is None:
        return None
    target: ast.expr = loop.target if isinstance(loop, ast.For) else ast.Name("__nanopsy_once__", ast.Store())
    flat = _Flat()
    body = [flat.visit(statement) for statement in loop.body]
    flat.visit(target)
    if flat.refused:
        return None
    again = ast.For(target, ast.Name("__nanopsy_items__", ast.Load()), body, [])
    arguments = ast.arguments([], [ast.arg("__nanopsy_items__")], None, [], [], None, [])
    statements: list[ast.stmt] = [ast.Global(sorted(flat.names))] if flat.names else []
    function = ast.FunctionDef("__nanopsy_body__", arguments, [*statements, again], [], None)
    if "type_params" in ast.FunctionDef._fields:
        function.type_params = []  # type: ignore[attr-defined]
    module = ast.Module([ast.copy_location(function, loop)], [])
    try:
        code = compile(ast.fix_missing_locations(module), file, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return None

    def run(frame: FrameType, item: Any) -> None:
        names = {**frame.f_globals, **frame.f_locals}
        exec(code, names)
        names["__nanopsy_body__"]([item])

    return run


def remedies(finding: Finding, birth: Birth) -> Iterator[list[Edit]]:
    """The edits that a finding's cause proposes, those that parse, best first."""
    from nanopsy.causes import load as load_causes

    cause = load_causes().get(finding.code)
    if cause is None:
        return
    for edits in cause.remedies(birth, finding):
        if not edits:
            continue
        source = load(edits[0].file)
        if source is not None and parse(source.file, apply(source, list(edits))) is not None:
            yield list(edits)


def patches_for(finding: Finding, evidence: Evidence, live: Live) -> Iterator[Patch]:
    """One patch for each set of edits proposed."""
    birth = evidence.birth_of(finding)
    if birth is not None:
        for edits in remedies(finding, birth):
            yield Patch(tuple(edits), live)


def proposed(finding: Finding, evidence: Evidence, why: str) -> Finding:
    """The finding with the first edit that its cause proposes, where ``why`` says that nothing was run with it."""
    birth = evidence.birth_of(finding)
    edits = next(remedies(finding, birth), None) if birth is not None else None
    return replace(finding, fix=_fix(edits), verification=f"not verified: {why}") if edits is not None else finding
