"""Edits of one expression, shared by the remedies of causes. Stdlib only."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from nanopsy.findings import Edit, Location, Safety
from nanopsy.sources import Source, load

MODULES = frozenset({"torch", "F", "nn", "functional", "special", "linalg", "math", "np", "numpy"})
POINTWISE = ("log", "log2", "log10", "sqrt", "rsqrt", "/", "div", "reciprocal", "**", "pow")
"""Singular element-wise operators whose argument can be bounded."""
_SIMPLE = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Constant)


def expression(location: Location | None) -> tuple[Source, ast.expr] | None:
    """The expression that spans exactly ``location``."""
    source = load(location.file) if location is not None else None
    if source is None or location is None:
        return None
    for node in source.at(location):
        if isinstance(node, ast.expr):
            return source, node
    for node in source.at(location):
        if isinstance(node, ast.AugAssign):
            return source, node.value
    return None


def is_function(call: ast.Call) -> bool:
    """``torch.sqrt(x)`` or ``sqrt(x)``, as opposed to the method ``x.sqrt()``."""
    if isinstance(call.func, ast.Name):
        return True
    root: ast.expr = call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in MODULES


def called(node: ast.expr) -> str:
    """The last name of a call: ``sqrt`` for both forms; ``**`` and ``/`` for the operators."""
    if isinstance(node, ast.Call):
        return node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
    if isinstance(node, ast.BinOp):
        return {ast.Pow: "**", ast.Div: "/", ast.Mult: "*", ast.Add: "+", ast.Sub: "-"}.get(type(node.op), "")
    return ""


def subject(node: ast.expr) -> ast.expr | None:
    """What a call works on: its first argument, or the object of the method; the left side of an operator."""
    if isinstance(node, ast.BinOp):
        return node.left
    if isinstance(node, ast.Call):
        if is_function(node):
            return node.args[0] if node.args else None
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    return None


def denominator(node: ast.expr) -> ast.expr | None:
    """The right side of a division, however it is written."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return node.right
    if isinstance(node, ast.Call) and called(node) in ("div", "div_", "true_divide", "divide"):
        position = 1 if is_function(node) else 0
        return node.args[position] if len(node.args) > position else None
    if isinstance(node, ast.Call) and called(node) in ("reciprocal", "rsqrt"):
        return subject(node)
    return None


def divisions(location: Location | None) -> Iterator[tuple[Source, ast.expr, ast.expr]]:
    """The division at ``location``, or the divisions of its expression: (source, division, denominator)."""
    found = expression(location)
    if found is None:
        return
    source, node = found
    for inner in ast.walk(node):
        if isinstance(inner, ast.expr):
            below = denominator(inner)
            if below is not None:
                yield source, inner, below
                return


def text(source: Source, node: ast.expr) -> str:
    """A node's own text, in parentheses unless it binds tightly already."""
    code = source.code(node)
    return code if isinstance(node, _SIMPLE) else f"({code})"


def replace_node(source: Source, node: ast.AST, new: str, note: str = "", safety: Safety = Safety.UNSAFE) -> Edit:
    start, end = source.span(node)
    return Edit(source.file, start, end, new, safety, note)


def method(source: Source, node: ast.expr, suffix: str, note: str = "", safety: Safety = Safety.UNSAFE) -> Edit:
    """``E`` becomes ``E.suffix`` (parenthesised where it must be)."""
    return replace_node(source, node, f"{text(source, node)}.{suffix}", note, safety)


def bounded(location: Location | None, names: tuple[str, ...], suffix: str, note: str) -> Iterator[list[Edit]]:
    """One edit: bound what the call at ``location`` works on (``E`` becomes ``E.suffix``), if it is one of ``names``."""
    found = expression(location)
    if found is None:
        return
    source, node = found
    argument = denominator(node) or subject(node)
    if argument is not None and called(node) in names:
        yield [method(source, argument, suffix, note)]


def floor_for(dtype: str) -> str:
    """A positive lower bound that a format resolves and whose inverse it still holds."""
    return {"float16": "1e-4", "bfloat16": "1e-6", "float32": "1e-6", "float64": "1e-12"}.get(dtype, "1e-6")


def below_one(dtype: str) -> str:
    """The distance from 1 that a cosine keeps."""
    return {"float16": "1e-2", "bfloat16": "1e-2", "float32": "1e-6", "float64": "1e-12"}.get(dtype, "1e-6")


def keyword(call: ast.Call, name: str) -> ast.keyword | None:
    return next((word for word in call.keywords if word.arg == name), None)


def add_keyword(source: Source, call: ast.Call, text_: str, note: str, safety: Safety = Safety.UNSAFE) -> Edit:
    """Append a keyword argument to a call."""
    _, end = source.span(call)
    inside = end - 1
    before = source.text[:inside].rstrip()
    comma = "" if before.endswith(("(", ",")) else ", "
    return Edit(source.file, inside, inside, f"{comma}{text_}", safety, note)
