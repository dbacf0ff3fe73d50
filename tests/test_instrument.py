"""Compiled user code does exactly what it did, and can be rewound."""

from __future__ import annotations

import ast
import builtins
import textwrap
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanopsy.findings import Edit, Location
from nanopsy.instrument import NAME, compile_user, is_user_file, rewrite
from nanopsy.registry import Registry
from nanopsy.rewind import Loops
from nanopsy.snapshot import State
from nanopsy.sources import apply, assigned, constant_at, diff, excerpt, load, parse

PROGRAMS = [
    "out = []\nfor i in range(6):\n    if i == n: continue\n    out.append(str(i))\nelse:\n    out.append('else')\n",
    "out = []\nfor i in range(6):\n    if i == n: break\n    out.append(str(i))\nelse:\n    out.append('else')\n",
    "out = []\ni = 0\nwhile i < 5:\n    i += 1\n    if i == n: continue\n    out.append(str(i))\nelse:\n    out.append('else')\n",
    "out = []\nfor i in range(4):\n    try:\n        if i == n: raise KeyError(str(i))\n        out.append(repr(i))\n    except KeyError as e:\n        out.append(str(e))\n",
    "def f():\n    for i in range(9):\n        for j in range(3):\n            if i * j == n: return str((i, j))\n    return 'none'\nout = [f()]\n",
    "def g():\n    for i in range(5):\n        got = yield str(i)\n        if i == n: return\nout = list(g())\n",
    "it = iter([str(x) for x in range(9)])\nout = []\nwhile True:\n    v = next(it, None)\n    if v is None or v == str(n): break\n    out.append(v)\n",
    "def next(x): return 'mine'\nout = []\nfor i in range(2):\n    out.append(next(i))\n",
    "out = []\nfor i in range(3):\n    for j in range(3):\n        if j == n: break\n        out.append(str(i) + str(j))\n    else:\n        out.append('inner else')\n",
]


def execute(code: Any) -> Any:
    names: dict[str, Any] = {"n": execute.n}  # type: ignore[attr-defined]
    exec(code, names)
    return names["out"]


@pytest.mark.parametrize("program", PROGRAMS)
@given(n=st.integers(-1, 9))
@settings(max_examples=15)
def test_programs_do_what_they_did(program: str, n: int) -> None:
    execute.n = n  # type: ignore[attr-defined]
    loops = Loops(State(Registry()))
    setattr(builtins, NAME, loops)
    try:
        assert execute(compile_user(program, "program.py")) == execute(compile(program, "program.py", "exec"))
        assert loops.frames == {}, "every loop that began has been left"
    finally:
        delattr(builtins, NAME)


@pytest.mark.parametrize("program", PROGRAMS)
def test_positions_of_the_users_nodes_stay(program: str) -> None:
    def places(tree: ast.AST) -> set[tuple[str, int, int]]:
        return {(type(node).__name__, node.lineno, node.col_offset) for node in ast.walk(tree) if isinstance(node, (ast.Call, ast.Name, ast.BinOp))}

    before = places(ast.parse(program))
    after = places(rewrite(ast.parse(program)))
    assert before <= after


def test_a_loop_that_calls_nothing_is_left_alone() -> None:
    program = "total = 0\nfor i in (1, 2, 3):\n    total += i\n"
    assert ast.dump(rewrite(ast.parse(program))) == ast.dump(ast.parse(program))


def test_idle_loops_are_soon_handed_through() -> None:
    loops = Loops(State(Registry()))
    setattr(builtins, NAME, loops)
    try:
        exec(compile_user("for k in range(3):\n    for i in range(500):\n        str(i)\n", "program.py"), {})
    finally:
        delattr(builtins, NAME)
    assert any(place.passive for place in loops.places.values())


def test_whose_file_is_it() -> None:
    assert is_user_file(__file__)
    assert not is_user_file(pytest.__file__)
    assert not is_user_file(ast.__file__)
    assert not is_user_file("<string>")


class TestSources:
    TEXT = "x = 1\nμ = torch.sqrt(a + b)  # ü\nfor q in z:\n    y = torch.var(μ[m])\n"

    def test_expressions_are_found_by_their_span_and_edited(self) -> None:
        source = parse("f.py", self.TEXT)
        assert source is not None
        call = next(node for node in ast.walk(source.tree) if isinstance(node, ast.Call) and "var" in ast.dump(node.func))
        place = source.location(call)
        assert place == Location("f.py", 4, 9, 4, 24)
        assert source.at(place)[0] is call
        start, end = source.span(call)
        edited = apply(source, [Edit("f.py", start, end, "torch.var(μ[m], correction=0)")])
        assert "y = torch.var(μ[m], correction=0)\n" in edited
        assert "+    y = torch.var(μ[m], correction=0)" in diff(source, [Edit("f.py", start, end, "torch.var(μ[m], correction=0)")])

    @given(st.text(alphabet="ab μü\n", max_size=40), st.data())
    def test_edits_touch_only_their_span(self, text: str, data: st.DataObject) -> None:
        source = parse("f.py", "'''" + text + "'''")
        assert source is not None
        start = data.draw(st.integers(0, len(source.text)))
        end = data.draw(st.integers(start, len(source.text)))
        edited = apply(source, [Edit("f.py", start, end, "NEW")])
        assert edited == source.text[:start] + "NEW" + source.text[end:]

    def test_assignments_and_constants(self, tmp_path: Any) -> None:
        file = tmp_path / "m.py"
        file.write_text(
            textwrap.dedent("""
            LIMIT = 2e5
            class A:
                def __init__(self):
                    self.v = torch.log(z)
            a, b = one(), two()
            """)
        )
        made = assigned(str(file), "v", "A")
        assert made is not None
        assert made.line == 5
        assert assigned(str(file), "b") is not None
        assert assigned(str(file), "nothing") is None
        place = constant_at(2e5, [str(file)])
        assert place is not None
        assert place.line == 2
        line, carets = excerpt(made)
        assert line == "self.v = torch.log(z)"
        assert carets.strip() == "^" * len("torch.log(z)")
        assert load(str(tmp_path / "absent.py")) is None
