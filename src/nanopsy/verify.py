"""Try a remedy in memory on the failing step: edit, swap, rewind, compare. Nothing is written to disk."""

from __future__ import annotations

import ast
import gc
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

from nanopsy.findings import Edit, Finding, Fix, Safety
from nanopsy.instrument import compile_user
from nanopsy.sources import Source, apply, diff, load

if TYPE_CHECKING:
    from nanopsy.autopsy import Replay
    from nanopsy.diagnose import Evidence
    from nanopsy.rewind import Live


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


@dataclass(slots=True)
class Patch:
    """A set of edits to one file, applied by swapping the code of the functions concerned."""

    source: Source
    edits: list[Edit]
    running: tuple[str, ...] = ()
    """Qualified names of code that is running (the loop's own frame) and so cannot be swapped."""
    problem: str = ""
    _swapped: list[tuple[FunctionType, CodeType]] = field(default_factory=list)

    @property
    def safety(self) -> Safety:
        return Safety.SAFE if all(edit.safety is Safety.SAFE for edit in self.edits) else Safety.UNSAFE

    def fix(self) -> Fix:
        """The patch as the report shows it."""
        return Fix(diff(self.source, self.edits), self.safety, "; ".join(edit.note for edit in self.edits if edit.note))

    def apply(self) -> None:
        """Swap the edited functions in; :attr:`problem` says why if that cannot be done."""
        self.problem = ""
        try:
            edited = compile_user(apply(self.source, self.edits), self.source.file)
            original = compile_user(self.source.text, self.source.file)
        except SyntaxError as error:
            self.problem = f"the edited source does not compile ({error.msg})"
            return
        before = {code.co_qualname: code for code in _codes(original)}
        after = {code.co_qualname: code for code in _codes(edited)}
        changed = [name for name in after if name in before and not _same(before[name], after[name])]
        live = {}
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__.co_filename == self.source.file:
                live.setdefault(thing.__code__.co_qualname, []).append(thing)
        inner = [name for name in changed if not any(other != name and other.startswith(name + ".") for other in changed)]
        done = False
        for name in inner:
            for function in live.get(name, []):
                if len(function.__code__.co_freevars) == len(after[name].co_freevars):
                    self._swapped.append((function, function.__code__))
                    function.__code__ = after[name]
                    done = True
        if not done:
            self.problem = "the edited code is the running loop itself" if inner else "the edit changes no function"

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
        if cured.error is not None:
            text = f"not verified: with the edit the step raises {type(cured.error).__name__}: {cured.error}"
            return replace(finding, fix=fix, verified=False, verification=text)
        if cured.bad:
            what = "the loss is still bad" if cured.bad_loss else "gradients are still bad"
            return replace(finding, fix=fix, verified=False, verification=f"not verified: {what} with the edit")
        if not cured.reached or not cured.loss_values:
            return replace(finding, fix=fix, verified=None, verification="not verified: the step did not come to its end")
        loss = cured.loss_values[-1]
        if not math.isfinite(loss):
            return replace(finding, fix=fix, verified=False, verification="not verified: the loss is still bad with the edit")
        return replace(finding, fix=fix, verified=True, verification=f"verified: loss {loss:.4g}, all gradients finite")


def _same(left: CodeType, right: CodeType) -> bool:
    def constants(code: CodeType) -> list[Any]:
        return [value for value in code.co_consts if not isinstance(value, CodeType)]

    return left.co_code == right.co_code and constants(left) == constants(right) and left.co_names == right.co_names


def patches_for(finding: Finding, evidence: Evidence, live: Live) -> Iterator[Patch]:
    """The edits that the finding's cause proposes, best first."""
    from nanopsy.causes import load as load_causes

    cause = load_causes().get(finding.code)
    birth = evidence.birth_of(finding)
    if cause is None or birth is None:
        return
    for edits in cause.remedies(birth, finding):
        if not edits:
            continue
        source = load(edits[0].file)
        if source is None:
            continue
        try:
            ast.parse(apply(source, list(edits)))
        except SyntaxError:
            continue
        yield Patch(source, list(edits))
