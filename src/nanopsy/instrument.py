"""Compile the user's own modules so that their loops can be made to go round again. Stdlib only.

Every ``for``, ``while`` and ``next(…)`` of the user's code is routed through one object, the *loops*
(:mod:`nanopsy.rewind`), found under a builtin name so that no module namespace changes::

    for x in E:                      try:
        body                             for x in LOOPS.each(7, E):
                                             try:
                                                 body
                                             except BaseException:
                                                 if not LOOPS.caught(7): raise
                                     finally:
                                         LOOPS.leave(7)

Positions of the user's nodes are kept, so tracebacks, ``inspect.getsource`` and line numbers stay as they were.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import os
import re
import site
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from functools import lru_cache
from types import CodeType, ModuleType

NAME = "__nanopsy__"
"""The builtin under which compiled code finds the loops."""

ALL_LOOPS = -1
"""Given to ``leaving`` before a ``return``: it ends every loop of its function."""
NO_LOOP = 0
"""Given to ``leaving`` where the script asks about bad values but stays in its loop."""

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_BAD_WORDS = re.compile(r"(^|_)(nans?|infs?|infinite|finite|nonfinite|non_finite)(_|$)|isnan|isinf|isfinite|finite", re.IGNORECASE)


def _library_folders() -> tuple[str, ...]:
    folders = {sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages() if hasattr(site, "getsitepackages") else [])
    folders.add(site.getusersitepackages())
    folders.add(_PACKAGE)
    folders.add(sysconfig.get_paths()["scripts"])
    folders.add(os.path.dirname(sys.executable))
    return tuple(os.path.realpath(folder) + os.sep for folder in folders)


_LIBRARIES = _library_folders()
CELL = "<ipython-input-"
"""How the names of IPython's cells begin; those of Jupyter's are paths like any other."""
_TRAINED = tuple(os.path.join(os.path.realpath(_PACKAGE), "depth", name) for name in ("models" + os.sep, "recipes.py", "train.py", "trainer.py"))
"""Code of ours that trains networks: watched like anybody's."""


_LOOPS = (
    "transformers/trainer.py",
    "lightning/pytorch/loops/",
    "pytorch_lightning/loops/",
    "ignite/engine/engine.py",
)
"""Modules of installed frameworks whose loops train the user's network: their loops are rewound, their lines are nobody's fault."""


@lru_cache(maxsize=4096)
def holds_training_loop(filename: str) -> bool:
    """Whether a file is the part of an installed framework that loops over batches."""
    path = filename.replace(os.sep, "/")
    return any(f"/{part}" in path and path.endswith(".py") for part in _LOOPS)


@lru_cache(maxsize=4096)
def is_user_file(filename: str) -> bool:
    """Whether a file is the user's own code: not the standard library, not installed, not nanopsy (but for the networks that it trains itself)."""
    if not filename or filename.startswith("<"):
        return filename.startswith(CELL)
    real = os.path.realpath(filename)
    if real.startswith(_TRAINED):
        return True
    return not real.startswith(_LIBRARIES) and f"{os.sep}site-packages{os.sep}" not in real


class _Rewriter(ast.NodeTransformer):
    """Route loops, ``next`` and the statements that leave a loop through the hooks."""

    def __init__(self) -> None:
        self.site = 0
        self.open: list[int] = []
        self.shadowed = False

    def _hook(self, at: ast.AST, method: str, *args: ast.expr) -> ast.Call:
        function = ast.Attribute(ast.Name(NAME, ast.Load()), method, ast.Load())
        call = ast.Call(function, list(args), [])
        for node in ast.walk(call):
            if node not in args and isinstance(node, ast.expr):
                ast.copy_location(node, at)
        return call

    def _loop(self, node: ast.For | ast.While) -> ast.Try:
        self.site += 1
        number = self.site
        self._body(node, number)
        site = ast.copy_location(ast.Constant(number), node)
        if isinstance(node, ast.For):
            at = node.iter
            node.iter = self._hook(at, "each", site, node.iter)
        else:
            again = self._hook(node.test, "begin", site)
            node.test = ast.copy_location(ast.BoolOp(ast.And(), [again, node.test]), node.test)
        unless = ast.If(
            ast.copy_location(ast.UnaryOp(ast.Not(), self._hook(node, "caught", site)), node),
            [ast.copy_location(ast.Raise(), node)],
            [],
        )
        handler = ast.ExceptHandler(ast.copy_location(ast.Name("BaseException", ast.Load()), node), None, [ast.copy_location(unless, node)])
        guarded = ast.Try(node.body, [ast.copy_location(handler, node)], [], [])
        node.body = [ast.copy_location(guarded, node.body[0])]
        leave = ast.Expr(self._hook(node, "leave", site))
        return ast.copy_location(ast.Try([node], [], [], [ast.copy_location(leave, node)]), node)

    def _body(self, node: ast.For | ast.While | ast.AsyncFor, number: int) -> ast.AST:
        self.open.append(number)
        self.generic_visit(node)
        self.open.pop()
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        return self._loop(node) if _may_train(node) else self._body(node, 0)

    def visit_While(self, node: ast.While) -> ast.AST:
        return self._loop(node) if _may_train(node) else self._body(node, 0)

    def visit_AsyncFor(self, node: ast.AsyncFor) -> ast.AST:
        return self._body(node, 0)

    def _leaving(self, node: ast.stmt, site: int) -> list[ast.stmt]:
        where = ast.copy_location(ast.Constant(site), node)
        return [ast.copy_location(ast.Expr(self._hook(node, "leaving", where)), node), node]

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        return self._leaving(node, self.open[-1]) if self.open and self.open[-1] else [node]

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        self.generic_visit(node)
        return self._leaving(node, ALL_LOOPS) if any(self.open) else [node]

    def visit_If(self, node: ast.If) -> ast.AST:
        suspicious = _asks_about_bad_values(node.test)
        self.generic_visit(node)
        if suspicious:
            nowhere = ast.copy_location(ast.Constant(NO_LOOP), node.test)
            look = ast.copy_location(ast.Expr(self._hook(node.test, "leaving", nowhere)), node.test)
            node.body.insert(0, look)
            if node.orelse and not (len(node.orelse) == 1 and isinstance(node.orelse[0], ast.If)):
                node.orelse.insert(0, look)
        return node

    def _function(self, node: ast.AST) -> ast.AST:
        outer, self.open = self.open, []
        self.generic_visit(node)
        self.open = outer
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = visit_Lambda = _function

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "next" and not self.shadowed and not node.keywords:
            if not any(isinstance(argument, ast.Starred) for argument in node.args):
                routed = ast.Attribute(ast.copy_location(ast.Name(NAME, ast.Load()), node.func), "draw", ast.Load())
                node.func = ast.copy_location(routed, node.func)
        return node


def _may_train(loop: ast.For | ast.While) -> bool:
    """A loop that calls nothing cannot contain a training step."""
    return any(isinstance(node, ast.Call) for statement in loop.body for node in ast.walk(statement))


def _asks_about_bad_values(test: ast.expr) -> bool:
    for node in ast.walk(test):
        name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
        if name and _BAD_WORDS.search(name):
            return True
        if isinstance(node, ast.Compare) and len(node.comparators) == 1 and isinstance(node.ops[0], ast.NotEq):
            if ast.dump(node.left) == ast.dump(node.comparators[0]):
                return True
    return False


def _defines_next(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id == "next" and isinstance(node.ctx, ast.Store):
            return True
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name == "next":
            return True
        if isinstance(node, ast.arg) and node.arg == "next":
            return True
        if isinstance(node, ast.alias) and (node.asname or node.name) == "next":
            return True
    return False


def rewrite(tree: ast.Module) -> ast.Module:
    """Instrument a module's syntax tree in place and return it."""
    rewriter = _Rewriter()
    rewriter.shadowed = _defines_next(tree)
    rewritten: ast.Module = rewriter.visit(tree)
    return ast.fix_missing_locations(rewritten)


def compile_user(source: str | bytes, filename: str) -> CodeType:
    """Compile a user's module with its loops instrumented; raises SyntaxError as ``compile`` does."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        tree = ast.parse(source, filename)
        try:
            code: CodeType = compile(rewrite(tree), filename, "exec", dont_inherit=True)
        except (RecursionError, SyntaxError, ValueError):
            # Code that Python accepts and the rewriter does not is run as it is; its loops cannot be rewound.
            code = compile(source, filename, "exec", dont_inherit=True)
    return code


class UserLoader(importlib.machinery.SourceFileLoader):
    """Loads a user's module from its source, instrumented; its bytecode is never cached."""

    def get_code(self, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        return compile_user(self.get_data(path), path)


class UserFinder(importlib.abc.MetaPathFinder):
    """Lets the other finders find, then swaps the loader of the user's own source files."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if isinstance(finder, UserFinder) or find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(fullname, path, target)
            if spec is None:
                continue
            if type(spec.loader) is importlib.machinery.SourceFileLoader and spec.origin and (is_user_file(spec.origin) or holds_training_loop(spec.origin)):
                spec.loader = UserLoader(spec.loader.name, spec.loader.path)
            return spec
        return None
