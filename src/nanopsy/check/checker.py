"""Whole files: every function of a file is taken through a :class:`Flow` of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from nanopsy.check import roles
from nanopsy.check.calls import Calls, without_gradient
from nanopsy.check.expressions import BudgetError
from nanopsy.check.flow import Flow
from nanopsy.check.knowledge import FOLLOWED, Verdict
from nanopsy.check.state import State
from nanopsy.check.tree import Class, Module
from nanopsy.check.walk import MODULES
from nanopsy.facts import Value

__all__ = ["Checker", "Verdict"]


class Checker(Calls):
    """Analyses the functions of a tree, one file at a time."""

    def check(self, file: str, display: str) -> None:
        """Analyse every function of a file; what was found is in :attr:`verdicts` afterwards."""
        module = self.tree.module(file)
        if module is None or not module.torch:
            return
        text = module.source.text
        if (
            "tensorflow" in text
            and re.search(r"^\s*(import|from) tensorflow", text, re.MULTILINE)
            and not re.search(r"^\s*(import|from) torch", text, re.MULTILINE)
        ):
            return
        quiet = roles.is_quiet_file(display)
        body = module.source.tree.body
        self._root(module, None, None, body, quiet=quiet)
        self._definitions(module, body, None, quiet=quiet, depth=0)

    def _definitions(self, module: Module, body: Sequence[ast.stmt], owner: Class | None, *, quiet: bool, depth: int) -> None:
        for statement in body:
            if isinstance(statement, (ast.ClassDef, ast.FunctionDef)) and owner is None and self._shadowed(module, statement):
                continue
            if isinstance(statement, ast.ClassDef):
                if depth < 12:
                    self._definitions(module, statement.body, self.tree.class_of(statement, module), quiet=quiet, depth=depth + 1)
            elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if self.interesting(module, statement):
                    self._root(module, statement, owner, statement.body, quiet=quiet)
            elif isinstance(statement, (ast.If, ast.Try, ast.With)) and depth < 12:
                for part in ("body", "orelse", "finalbody"):
                    inner = getattr(statement, part, None)
                    if inner:
                        self._definitions(module, inner, owner, quiet=quiet, depth=depth + 1)

    @staticmethod
    def _shadowed(module: Module, node: ast.ClassDef | ast.FunctionDef) -> bool:
        """Whether a later definition of the module takes the name away."""
        last = module.names.get(node.name)
        return isinstance(last, (ast.ClassDef, ast.FunctionDef)) and last is not node and last.lineno > node.lineno and last.col_offset == node.col_offset == 0

    def _root(
        self, module: Module, node: ast.FunctionDef | ast.AsyncFunctionDef | None, owner: Class | None, body: Sequence[ast.stmt], *, quiet: bool,
        closure: dict[str, Value] | None = None, level: int = 0,
    ) -> None:  # fmt: skip
        self.left, self.steps, self.nesting, self.following = FOLLOWED, 0, 0, 0
        self._memo.clear()
        name = node.name if node is not None else "<module>"
        torchy = self._torchy(module, node, owner)
        looking_on = quiet or self.looks_on(module, name, owner)
        no_grad = node is not None and (without_gradient(node) or (owner is not None and any(each.endswith("autograd.Function") for each in owner.outside)))
        flow = Flow(
            self, module, State(dict(closure) if closure else {}), function=name, owner=owner, no_grad=no_grad, quiet=looking_on, torchy=torchy,
            stack=(node,) if node is not None else (),
        )  # fmt: skip
        try:
            if node is not None:
                self.parameters(flow, node, owner)
            flow.run(body)
        except (BudgetError, RecursionError):
            pass
        if node is None:
            for value in list(flow.state.names.values()):
                flow.use(value)
        if level < 4:
            for inner, names in flow.nested[:60]:
                if isinstance(inner, ast.Lambda):
                    self._lambda(module, inner, owner, names, quiet=looking_on, torchy=torchy)
                else:
                    self._root(module, inner, owner, inner.body, quiet=looking_on, closure=names, level=level + 1)

    def _lambda(self, module: Module, node: ast.Lambda, owner: Class | None, closure: dict[str, Value], *, quiet: bool, torchy: bool) -> None:
        """A lambda alone, with arguments of which only the names are known."""
        flow = self.walker(module, State(dict(closure)), function="<lambda>", owner=owner, quiet=quiet, torchy=torchy, stack=(node,))
        self.nesting = 0
        try:
            for each in [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]:
                flow.state.names[each.arg] = self.parameter(flow, node, each)
            flow.give(flow.evaluate(node.body))
        except (BudgetError, RecursionError):
            pass

    def _torchy(self, module: Module, node: ast.AST | None, owner: Class | None) -> bool:
        """Whether values of unknown kind in a function are more likely tensors than arrays or plain numbers."""
        if owner is not None and owner.derives(MODULES):
            return True
        if node is None:
            return "torch" in module.names or any("torch" in getattr(entry, "module", "") for entry in module.names.values())
        start, end = getattr(node, "lineno", 1) - 1, getattr(node, "end_lineno", 1)
        starts = module.source.starts
        text = module.source.text[starts[start] : starts[end] if end < len(starts) else len(module.source.text)]
        numpy = _NUMPY.search(text) is not None
        if (_SURELY_TORCH if numpy else _TORCHY).search(text):
            return True
        return (
            not numpy
            and _TENSOR_METHOD.search(text) is not None
            and not module.file.endswith("_np.py")
            and "torch" in module.names
            and not _DATA_FILE.search(module.file)
        )


_TORCHY = re.compile(
    r"\btorch\.|\bF\.|\.cuda\(|\.detach\(|\.unsqueeze\(|\.backward\(|\.clamp\(|\.permute\(|\bnn\.|\.repeat\(|\.expand\(|Tensor\b|\.view\(|\.numel\("
)
_TENSOR_METHOD = re.compile(r"\.(?:mean|sum|abs|sqrt|log|exp|pow|clamp|norm|var|std|max|min|float|size|square|bool)\(|\*\*\s*0?\.5|mask|pred")
_SURELY_TORCH = re.compile(r"\btorch\.|\bF\.|\.cuda\(|\.detach\(|\.unsqueeze\(|\.backward\(|\bnn\.|Tensor\b")
_NUMPY = re.compile(r"\bnp\.|\bnumpy\.|\bcv2\.|Image\.")
_DATA_FILE = re.compile(r"(?:^|/)(?:data|datasets?|dataloaders?|transforms?)[/_.]|dataset|dataloader")
