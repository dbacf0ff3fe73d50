"""The linted tree: modules, what their names mean, and which file an import leads to. Nothing is ever executed."""

from __future__ import annotations

import ast
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nanopsy.sources import Source, parse

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Imported:
    """A name that an import bound: the dotted module, and the name in it (empty for the module itself)."""

    module: str
    name: str = ""
    level: int = 0


@dataclass(eq=False, slots=True)
class Module:
    """One parsed file and its module-level names."""

    file: str
    source: Source
    names: dict[str, Imported | Definition | ast.expr] = field(default_factory=dict)
    starred: list[Imported] = field(default_factory=list)
    torch: bool = False


@dataclass(eq=False, slots=True)
class Class:
    """A class of the tree: its definition, its module, its bases as far as they can be resolved."""

    node: ast.ClassDef
    module: Module
    methods: dict[str, ast.FunctionDef | ast.AsyncFunctionDef] = field(default_factory=dict)
    bases: list[Class] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)
    """Dotted names of bases that are not in the tree."""

    def find(self, name: str, depth: int = 0) -> tuple[Class, ast.FunctionDef | ast.AsyncFunctionDef] | None:
        """The class that defines a method, and the method."""
        if name in self.methods:
            return self, self.methods[name]
        if depth < 8:
            for base in self.bases:
                found = base.find(name, depth + 1)
                if found is not None:
                    return found
        return None

    def derives(self, dotted: tuple[str, ...], depth: int = 0) -> bool:
        """Whether it comes, through bases of the tree, from one of these outside classes."""
        if any(name.endswith(dotted) for name in self.outside):
            return True
        return depth < 8 and any(base.derives(dotted, depth + 1) for base in self.bases)


class Tree:
    """Every module that the check may look into, loaded when first needed."""

    def __init__(self, root: str, texts: Mapping[str, str] | None = None) -> None:
        self.root = os.path.realpath(root)
        self.texts: Mapping[str, str] = texts if texts is not None else {}
        """Texts already read (notebooks, standard input, tests), by file."""
        self._modules: dict[str, Module | None] = {}
        self._paths: dict[tuple[str, str], str | None] = {}
        self._exists: dict[str, bool] = {}
        self._classes: dict[int, Class] = {}
        self.touched: set[str] = set()
        """Every file asked for, present or not, since it was last cleared: what a cached answer depends on."""

    def module(self, file: str) -> Module | None:
        """The module in a file, or None when it cannot be read or parsed."""
        self.touched.add(file)
        if file in self._modules:
            return self._modules[file]
        text = self.texts.get(file)
        if text is None:
            try:
                with open(file, encoding="utf-8", newline="") as handle:
                    text = handle.read()
            except (OSError, UnicodeDecodeError):
                text = None
        module = None
        if text is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                source = parse(file, text)
            if source is not None:
                module = _index(file, source)
        self._modules[file] = module
        return module

    def broken(self, file: str) -> tuple[int, str] | None:
        """Why a file cannot be parsed (line and message); None when it can. One without PyTorch is not kept."""
        known = file in self._modules
        module = self.module(file)
        if module is not None:
            if not module.torch and not known:
                del self._modules[file]  # nothing refers to its nodes yet
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(self.texts.get(file, ""))
        except SyntaxError as error:
            return error.lineno or 1, f"cannot be parsed: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            return 1, f"cannot be parsed: {error or type(error).__name__}"
        return 1, "cannot be read"

    @property
    def loaded(self) -> int:
        return len(self._modules)

    def find(self, module: Module, imported: Imported) -> Module | None:
        """The module of the tree that an import in ``module`` leads to."""
        folder = os.path.dirname(module.file)
        if imported.level:
            for _ in range(imported.level - 1):
                folder = os.path.dirname(folder)
            path = self._file(folder, imported.module)
        else:
            path = self._search(folder, imported.module)
        return self.module(path) if path is not None and path != module.file else None

    def _search(self, folder: str, dotted: str) -> str | None:
        key = (folder, dotted)
        if key in self._paths:
            return self._paths[key]
        path = None
        here = folder
        while True:
            path = self._file(here, dotted)
            if path is not None or here == self.root or not here.startswith(self.root) or os.path.dirname(here) == here:
                break
            here = os.path.dirname(here)
        self._paths[key] = path
        return path

    def _file(self, folder: str, dotted: str) -> str | None:
        base = os.path.join(folder, *dotted.split(".")) if dotted else folder
        for candidate in (f"{base}.py", os.path.join(base, "__init__.py")):
            if candidate not in self._exists:
                self._exists[candidate] = candidate in self.texts or os.path.isfile(candidate)
                self.touched.add(candidate)
            if self._exists[candidate]:
                return candidate
        return None

    def lookup(self, module: Module, name: str, depth: int = 0) -> tuple[Module, Definition | ast.expr] | str | None:
        """What a module-level name means: a definition of the tree, a dotted name outside it, or nothing known."""
        entry = module.names.get(name)
        if entry is None:
            for star in module.starred:
                target = self.find(module, star) if depth < 6 else None
                if target is not None:
                    found = self.lookup(target, name, depth + 1)
                    if found is not None:
                        return found
                elif target is None and star.module.startswith("torch"):
                    return None
            return None
        if not isinstance(entry, Imported):
            return module, entry
        if depth >= 6:
            return None
        return self.member(module, entry, depth)

    def member(self, module: Module, entry: Imported, depth: int = 0) -> tuple[Module, Definition | ast.expr] | str | None:
        """What an import binds."""
        if entry.module.split(".")[0] in _OUTSIDE and not entry.level:
            return f"{entry.module}.{entry.name}" if entry.name else entry.module
        target = self.find(module, entry)
        if target is None:
            return f"{entry.module}.{entry.name}".strip(".") if entry.name else entry.module
        if not entry.name:
            return entry.module
        found = self.lookup(target, entry.name, depth + 1)
        if found is not None:
            return found
        return f"{entry.module}.{entry.name}"

    def class_of(self, node: ast.ClassDef, module: Module) -> Class:
        """The class that a definition makes; one object for each definition."""
        known = self._classes.get(id(node))
        if known is not None:
            return known
        made = Class(node, module)
        self._classes[id(node)] = made
        made.methods = {item.name: item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))}
        for base in node.bases:
            dotted = dotted_name(base)
            if not dotted:
                continue
            first, _, rest = dotted.partition(".")
            found = self.lookup(module, first)
            if isinstance(found, tuple) and isinstance(found[1], ast.ClassDef) and not rest:
                parent = self.class_of(found[1], found[0])
                if parent is not made:
                    made.bases.append(parent)
            elif isinstance(found, str):
                target = self.inside(module, f"{found}.{rest}" if rest else found)
                if target is not None and isinstance(target[1], ast.ClassDef):
                    made.bases.append(self.class_of(target[1], target[0]))
                else:
                    made.outside.append(f"{found}.{rest}" if rest else found)
            else:
                made.outside.append(dotted)
        return made

    def inside(self, module: Module, dotted: str) -> tuple[Module, Definition | ast.expr] | None:
        """The definition of the tree that a dotted name ``package.module.name`` leads to."""
        head, _, name = dotted.rpartition(".")
        if not head or head.split(".")[0] in _OUTSIDE:
            return None
        path = self._search(os.path.dirname(module.file), head)
        target = self.module(path) if path is not None else None
        found = self.lookup(target, name) if target is not None else None
        return found if isinstance(found, tuple) else None


_OUTSIDE = frozenset(
    ("torch", "numpy", "math", "os", "sys", "re", "scipy", "torchvision", "tensorflow", "jax", "PIL", "cv2", "typing", "random", "time", "pandas")
)


def dotted_name(node: ast.expr) -> str:
    """``a.b.c`` as text, or nothing when it is anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


_TORCH = re.compile(r"\btorch\b|\btensors?\b|\bTensor\b|\bkornia\b|\blightning\b|\bbackward\(")


def mentions_torch(text: str) -> bool:
    """Whether a file can hold PyTorch code at all."""
    return _TORCH.search(text) is not None


def _index(file: str, source: Source) -> Module:
    module = Module(file, source)
    module.torch = mentions_torch(source.text)
    _bind(module, source.tree.body, 0)
    return module


def _bind(module: Module, body: Iterable[ast.stmt], depth: int) -> None:
    names = module.names
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names[statement.name] = statement
        elif isinstance(statement, ast.Import):
            for alias in statement.names:
                names[alias.asname or alias.name.split(".")[0]] = Imported(alias.name if alias.asname else alias.name.split(".")[0])
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if alias.name == "*":
                    module.starred.append(Imported(statement.module or "", "", statement.level))
                else:
                    names[alias.asname or alias.name] = Imported(statement.module or "", alias.name, statement.level)
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Name):
                    names[target.id] = statement.value
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
            names[statement.target.id] = statement.value
        elif isinstance(statement, (ast.If, ast.Try)) and depth < 3:
            _bind(module, statement.body, depth + 1)
            for handler in getattr(statement, "handlers", ()):
                _bind(module, [item for item in handler.body if isinstance(item, (ast.Import, ast.ImportFrom))], depth + 1)
            if isinstance(statement, ast.If):
                _bind(module, statement.orelse, depth + 1)
