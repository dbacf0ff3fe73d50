"""The linter on programs that nobody wrote: it answers, it answers the same twice, and what it edits still means the same."""

from __future__ import annotations

import ast
import math
import textwrap
import warnings
from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nanopsy.causes import Cause, load
from nanopsy.check import fixes
from nanopsy.check.files import Text
from nanopsy.check.inspect import Request, inspect
from nanopsy.check.settings import Settings
from nanopsy.findings import Confidence, Finding

FILE = "/nowhere/losses.py"
SLOW = settings(max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much])


def check(text: str) -> Sequence[Finding]:
    """What is found in a text that lies on no disk."""
    request = Request([FILE], Settings(root="/nowhere", min_confidence=Confidence.DEPENDS), jobs=1)
    inspection = inspect(request, given={FILE: Text(FILE, text)}).inspection
    assert inspection.problems == []
    return inspection.findings


def fixed(text: str, *, unsafe: bool = False) -> str:
    """The text after ``--fix``."""
    for _ in range(fixes.ROUNDS):
        new, count = fixes.carried_out(Text(FILE, text), check(text), unsafe=unsafe)
        if not count:
            break
        text = new.text
    return text


# --- any program -----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["pred", "target", "mask", "x", "d", "eps", "n", "valid", "image", "self", "model", "max_depth", "loss", "rmse", "_"])
NUMBERS = st.sampled_from(["0", "1", "-1", "2", "0.5", "1e-8", "1e400", "1j", "True", "None", "'text'", "...", "float('nan')", "math.inf", "10 ** 400", "b''"])
METHODS = st.sampled_from(
    [
        "sqrt",
        "log",
        "exp",
        "mean",
        "sum",
        "var",
        "std",
        "norm",
        "clamp",
        "abs",
        "sigmoid",
        "softmax",
        "relu",
        "pow",
        "square",
        "max",
        "min",
        "any",
        "all",
        "numel",
        "item",
        "detach",
        "nonzero",
        "masked_fill",
        "half",
        "float",
        "view",
        "log1p",
        "clamp_",
        "add_",
        "unsqueeze",
        "size",
        "shape",
        "T",
        "values",
        "nan_to_num",
        "isnan",
        "isfinite",
        "softplus",
        "prod",
        "median",
        "new_method",
        "__class__",
    ]
)
FUNCTIONS = st.sampled_from(
    [
        "torch.sqrt",
        "torch.log",
        "torch.exp",
        "torch.where",
        "torch.mean",
        "torch.sum",
        "torch.var",
        "torch.std",
        "torch.clamp",
        "torch.max",
        "torch.maximum",
        "torch.norm",
        "torch.linalg.norm",
        "F.softmax",
        "F.l1_loss",
        "F.normalize",
        "F.relu",
        "nn.Sigmoid()",
        "nn.Sequential",
        "nn.Conv2d",
        "nn.MSELoss()",
        "torch.acos",
        "torch.logspace",
        "torch.tensor",
        "torch.nan_to_num",
        "torch.isnan",
        "torch.pow",
        "torch.optim.Adam",
        "torch.no_grad",
        "math.sqrt",
        "max",
        "min",
        "len",
        "range",
        "print",
        "super",
        "f",
        "g",
        "C",
        "zip",
        "map",
        "sorted",
        "getattr",
        "torch.autograd.grad",
        "torch.einsum",
        "torch.special.expit",
    ]
)
OPERATORS = st.sampled_from(["+", "-", "*", "/", "**", "@", "//", "%", "&", "|", "^", "<<", ">", "<", "==", "!=", ">=", "and", "or", "is", "in"])
KEYWORDS = st.sampled_from(["", "dim=-1, ", "min=1e-8, ", "min=0, ", "reduction='sum', ", "unbiased=False, ", "keepdim=True, ", "*d, ", "**d, "])


def expressions() -> st.SearchStrategy[str]:
    leaf = st.one_of(NAMES, NAMES, NUMBERS)

    def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        several = st.lists(inner, max_size=3).map(", ".join)
        return st.one_of(
            st.builds("({} {} {})".format, inner, OPERATORS, inner),
            st.builds("({}{})".format, st.sampled_from(["-", "not ", "+"]), inner),
            st.builds("(~{})".format, st.one_of(NAMES, st.just("[x, x]"))),
            st.builds("({}).{}({})".format, inner, METHODS, several),
            st.builds("({}).{}".format, inner, METHODS),
            st.builds("{}({}{})".format, FUNCTIONS, several.map(lambda words: f"{words}, " if words else ""), KEYWORDS),
            st.builds("({})[{}]".format, inner, inner),
            st.builds("({})[{}:{}, ..., None]".format, inner, inner, inner),
            st.builds("({} if {} else {})".format, inner, inner, inner),
            st.builds("(lambda x=0, *d: {})".format, inner),
            st.builds("(lambda x: {})({})".format, inner, inner),
            st.builds("[{} for x, d in {} if {}]".format, inner, inner, inner),
            st.builds("{{**{}, 'a': {}, {}: 0}}".format, inner, inner, inner),
            st.builds("f'{{{}!r}} {{{}:>5}}'".format, NAMES, NAMES),
            st.builds("(n := {})".format, inner),
            st.builds("({}, *{})".format, inner, inner),
            st.builds("{{{}}}".format, inner),
            st.builds("sum({} for d in {})".format, inner, inner),
        )

    return st.recursive(leaf, more, max_leaves=12)


EXPRESSION = expressions()
TARGETS = st.sampled_from(["x", "d", "loss", "x, d", "x, *d", "self.y", "x[mask]", "x[0]", "d['a']", "(x, (d, n))", "x.y.z", "pred", "mask", "f"])


def _block(head: str, *bodies: str) -> str:
    """A compound statement: its heads, one for each body, separated by ``;``."""
    return "\n".join(f"{line.strip()}\n{textwrap.indent(body, '    ')}" for line, body in zip(head.split(";"), bodies, strict=True))


def statements() -> st.SearchStrategy[str]:
    simple = st.one_of(
        st.builds("{} = {}".format, TARGETS, EXPRESSION),
        st.builds("{} {}= {}".format, st.sampled_from(["x", "d", "self.y", "x[mask]"]), st.sampled_from(["+", "-", "*", "/", "**", "@", "&"]), EXPRESSION),
        st.builds("x: {} = {}".format, EXPRESSION, EXPRESSION),
        EXPRESSION,
        st.builds("return {}".format, EXPRESSION),
        st.builds("raise {}".format, EXPRESSION),
        st.builds("assert {}, {}".format, EXPRESSION, EXPRESSION),
        st.sampled_from(
            [
                "pass",
                "return",
                "del x",
                "global zz",
                "import torch as t",
                "from losses import f as g",
                "from . import nothing",
                "yield x",
                "import nowhere.at_all",
            ]
        ),
    )

    def more(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        body = st.lists(inner, min_size=1, max_size=3).map("\n".join)
        return st.one_of(
            st.builds(lambda test, one, two: _block(f"if {test}:; else:", one, two), EXPRESSION, body, body),
            st.builds(lambda test, one: _block(f"if {test}:", one), EXPRESSION, body),
            st.builds(lambda test, one: _block(f"while {test}:", f"{one}\nbreak"), EXPRESSION, body),
            st.builds(lambda target, over, one: _block(f"for {target} in {over}:", f"{one}\ncontinue"), TARGETS, EXPRESSION, body),
            st.builds(lambda one: _block("with torch.no_grad():", one), body),
            st.builds(lambda item, one: _block(f"with {item} as (x, d):", one), EXPRESSION, body),
            st.builds(lambda one, two, three: _block("try:; except (A, B) as d:; finally:", one, two, three), body, body, body),
            st.builds(lambda default, one: _block(f"def f(x, mask=None, *d, eps={default}, **n):", one), EXPRESSION, body),
            st.builds(lambda one: _block("@torch.no_grad()\nasync def g(x, /, pred: 'int' = f(1)):", one), body),
            st.builds(lambda base, one: _block(f"class C({base}):", one.replace("return", "x =").replace("yield x", "x = 1")), EXPRESSION, body),
            st.builds(lambda base, one: _block(f"class C({base}):", _block("def forward(self, x):", one)), EXPRESSION, body),
            st.builds(
                lambda what, one: _block(f"match {what}:", _block("case [x, *d] if x:; case {'a': n, **d}:; case _:", one, "pass", "pass")), EXPRESSION, body
            ),
        )

    return st.recursive(simple, more, max_leaves=8)


def _parsed(text: str) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(text, FILE, "exec")
        except (SyntaxError, ValueError, OverflowError):
            return None
    return text


HEADER = "import math\nimport torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n"
BODY = st.lists(statements(), min_size=1, max_size=5).map("\n".join)
PROGRAM = st.builds(
    lambda outside, inside: _parsed(f"{HEADER}{outside}\n\n\ndef loss(pred, target, mask, self=None):\n{textwrap.indent(inside, '    ')}\n"),
    st.one_of(st.just(""), BODY),
    BODY,
).filter(bool)


@SLOW
@given(PROGRAM)
def test_any_program_is_answered_and_answered_the_same_twice(text: str) -> None:
    assert check(text) == check(text)


@SLOW
@given(PROGRAM)
def test_places_and_edits_lie_in_the_text(text: str) -> None:
    lines = text.split("\n")
    for finding in check(text):
        for place in (finding.location, *finding.also):
            assert place is not None
            assert 1 <= place.line <= len(lines)
            assert 1 <= place.column <= len(lines[place.line - 1]) + 1
        assert all(0 <= edit.start <= edit.end <= len(text) for edit in finding.edits)


@SLOW
@given(PROGRAM, st.booleans())
def test_edits_of_any_program_parse_and_come_to_an_end(text: str, unsafe: bool) -> None:
    new = fixed(text, unsafe=unsafe)
    ast.parse(new)
    assert fixed(new, unsafe=unsafe) == new


@given(st.lists(st.sampled_from([*"()[]{}:.,=+-*/ \n\t'\"#x1@\\", "def ", "torch", "é", "\x0c", "\r", "import torch\n"]), max_size=40).map("".join))
def test_any_text_is_answered(text: str) -> None:
    request = Request([FILE], Settings(root="/nowhere"), jobs=1)
    inspection = inspect(request, given={FILE: Text(FILE, text)}).inspection
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError:
            assert len(inspection.problems) == 1
        else:
            assert inspection.problems == []


# --- programs that run -----------------------------------------------------------------------------------------------

RUNNING = st.recursive(
    st.sampled_from(["pred", "target", "x", "pred", "(pred - target)", "torch.sigmoid(pred)", "F.relu(x)", "F.softmax(x, dim=-1)", "(pred - target) ** 2"]),
    lambda inner: st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "/"]), inner),
        st.builds("torch.{}({})".format, st.sampled_from(["log", "exp", "sqrt", "sigmoid", "tanh", "log1p", "neg", "square", "abs"]), inner),
        st.builds("({}).{}()".format, inner, st.sampled_from(["log", "exp", "sqrt", "sigmoid", "log2", "log10", "relu"])),
        st.builds("{}({}, dim=-1)".format, st.sampled_from(["F.softmax", "torch.softmax", "F.normalize"]), inner),
        st.builds("torch.log(1 + torch.exp({}))".format, inner),
        st.builds("torch.log({} * {})".format, st.sampled_from(["80", "80.0", "0.5", "max_depth"]), inner.map(lambda code: f"torch.sigmoid({code})")),
        st.builds("torch.log({})".format, inner.map(lambda code: f"torch.sigmoid({code})")),
        st.builds("({}).softmax(-1).log()".format, inner),
        st.builds("torch.sqrt(({} ** 2).sum({}))".format, inner, st.sampled_from(["-1, keepdim=True", "dim=-1, keepdim=True", "1, True", "(0, 1)", ""])),
        st.builds("({}).pow(2).sum(-1, keepdim=True).sqrt()".format, inner),
        st.builds("torch.sqrt({} ** 2 + {} ** 2)".format, inner, inner),
        st.builds(
            "torch.where({} {} 0, {}, {})".format, inner, st.sampled_from([">", "!=", ">=", "=="]), inner, st.sampled_from(["torch.zeros_like(x)", "0.0", "x"])
        ),
        st.builds("torch.where(x > 0, torch.log(x), {})".format, inner),
        st.builds("torch.where(x == 0, {}, {} / x)".format, inner, inner),
        st.builds(
            "({} * mask).sum() / {}".format, inner, st.sampled_from(["mask.sum()", "torch.count_nonzero(mask)", "(target > 0).sum()", "mask.float().sum()"])
        ),
        st.builds("({})[mask].{}()".format, inner, st.sampled_from(["mean", "sum", "std", "var", "norm"])),
        st.builds("({} if mask.any() else {})".format, inner, inner),
    ),
    max_leaves=5,
)
LOSS = st.lists(RUNNING, min_size=1, max_size=3).map(
    lambda parts: (
        f"{HEADER}\ndef loss(pred, target, x, mask, max_depth):\n    mask = mask > 0\n"
        + "".join(f"    y{i} = {code}\n" for i, code in enumerate(parts))
        + f"    return [{', '.join(f'y{i}' for i in range(len(parts)))}]\n"
    )
)
INPUTS = [
    [[0.5, -1.0, 2.0], [0.0, 3.0, -0.25]],
    [[1.0, 2.0, 0.0], [0.5, 0.0, 4.0]],
    [[0.3, 1.5, 0.0], [2.5, -1.0, 0.7]],
    [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0]],
]


def run(text: str, scale: float = 1.0) -> list[torch.Tensor]:
    """What a loss returns."""
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, FILE, "exec"), names)
        arguments = [torch.tensor(each, dtype=torch.float64) for each in INPUTS]
        for each in arguments[:3]:
            each.mul_(scale).requires_grad_()
        return list(names["loss"](*arguments, 80.0))  # type: ignore[operator]


def outcomes(text: str, scale: float = 1.0) -> list[torch.Tensor]:
    """What a loss returns; nothing if its shapes do not fit."""
    try:
        return run(text, scale)
    except (RuntimeError, IndexError, TypeError):
        return []


def assert_finite_values_stay(before: torch.Tensor, after: torch.Tensor) -> None:
    """Where a value was finite it is what it was, but for rounding."""
    assert before.shape == after.shape
    finite = before.isfinite()
    torch.testing.assert_close(after[finite], before[finite].to(after.dtype), rtol=1e-6, atol=1e-9)


@SLOW
@given(LOSS, st.sampled_from([1.0, 4.0, 20.0]))
@example(
    f"{HEADER}\ndef loss(pred, target, x, mask, max_depth):\n    return [torch.sqrt((x ** 2).sum()), -torch.log(pred.sigmoid()), torch.log(1 + torch.exp(x))]\n",
    1.0,
)
def test_safe_edits_keep_every_finite_value(text: str, scale: float) -> None:
    new = fixed(text)
    if new == text:
        return
    before = outcomes(text, scale)
    for old, now in zip(before, run(new, scale) if before else [], strict=True):
        assert_finite_values_stay(old, now)


@SLOW
@given(LOSS)
def test_unsafe_edits_still_run_and_keep_shapes(text: str) -> None:
    before = outcomes(text)
    if before:
        assert [each.shape for each in before] == [each.shape for each in run(fixed(text, unsafe=True))]


# --- the causes' own examples ----------------------------------------------------------------------------------------

EXAMPLES = {code: cause for code, cause in load().items() if cause.runs_as == "function" and cause.sites}


def outcome(text: str) -> float:
    names: dict[str, object] = {"__name__": "snippet"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, FILE, "exec"), names)
        torch.manual_seed(0)
        return float(names["loss"]())  # type: ignore[operator]


@pytest.mark.parametrize("unsafe", [False, True], ids=["safe", "unsafe"])
@pytest.mark.parametrize("cause", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_the_examples_after_their_fix(cause: Cause, unsafe: bool) -> None:
    before, new = outcome(cause.bad), fixed(cause.bad, unsafe=unsafe)
    after = outcome(new)
    if math.isfinite(before) and not unsafe:
        assert after == pytest.approx(before, rel=1e-5, abs=1e-7)
    if new != cause.bad and not [finding for finding in check(new) if finding.confidence is not Confidence.DEPENDS]:
        assert math.isfinite(after), "the linter is content with it"


# --- edits that were wrong once ---------------------------------------------------------------------------------------


def body(*lines: str) -> str:
    return f"{HEADER}\ndef loss(pred, target, x, mask, max_depth):\n    mask = mask > 0\n" + "".join(f"    {line}\n" for line in lines)


MENDED = [
    # AttributeError: 'str' object has no attribute 'kind'
    body("a, b = ~[x, x]", "return [a, b]"),
    # the edit renames the first "softmax" of the text, whatever it is: a name, or another call
    body("softmax_scores = x * 2", "return [softmax_scores.softmax(-1).log()]"),
    body("return [(F.softmax(x, dim=-1)).softmax(-1).log()]"),
    # the result of the singular operation is used elsewhere too, and changes there
    body("out = torch.log(x)", "return [torch.where(x > 1, out, 0.0), out]"),
    # the condition speaks of another x than the operation
    body("out = torch.log(x)", "x = x + 5", "return [torch.where(x > 1, out, 0.0)]"),
    # the condition is not yet assigned where it is inserted
    body("out = torch.log(x)", "m = x > 0", "return [torch.where(m, out, 0.0)]"),
    # the condition has another shape than the argument; the edit is carried out again in every round (220,000 characters)
    body("n = x.norm(dim=-1)", "return [torch.where(n > 0, (pred / n[:, None]).sum(-1), torch.zeros_like(n))]"),
    # the edit does not silence its finding and is carried out again in every round
    body("n = x * 1.0", "return [torch.where(n > 0, (pred / F.relu(n)).sum(), torch.zeros_like(n))]"),
    # half a count is no whole number: of one element it is 0.5, and clamp(min=1) changes it
    body("return [pred.sum() / (torch.count_nonzero(x > 2) * 0.5)]"),
    # a positional keepdim behind dim=: the edit is announced as safe and does not parse
    body("return [torch.sqrt((x ** 2).sum(1, True))]"),
    # vector_norm refuses a narrower dtype
    body("return [torch.sqrt((x ** 2).sum(dtype=torch.float32))]"),
]
"""Losses that an edit once broke."""


@pytest.mark.parametrize("text", MENDED)
def test_losses_that_an_edit_once_broke(text: str) -> None:
    new = fixed(text)
    assert fixed(new) == new
    assert len(new) < len(text) + 400
    try:
        before = outcomes(text)
    except (TypeError, RuntimeError):
        return  # not a program that runs: it only had to be answered
    for old, value in zip(before, outcomes(new), strict=True):
        assert_finite_values_stay(old, value)
