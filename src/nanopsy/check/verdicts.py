"""From what the causes said in each context to findings: callers decide what a function alone cannot."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nanopsy.facts import Origin
from nanopsy.findings import Confidence

Place = tuple[str, int, int, str]
"""File, line, column and operation of a site that was found harmless in one call."""
Head = tuple[str, int, str, str]
"""File, line and name of a function whose result is a scaled sigmoid."""


@dataclass(frozen=True, slots=True)
class Span:
    """A span of source text: lines and columns as ``ast`` counts them (columns are UTF-8 bytes)."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    what: str = ""

    @classmethod
    def of(cls, file: str, node: ast.AST, what: str = "") -> Span:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        return cls(file, line, column, getattr(node, "end_lineno", None) or line, getattr(node, "end_col_offset", None) or column, what)


@dataclass(frozen=True, slots=True)
class Opinion:
    """What one cause said of one place, in one context: plain data that travels between processes and into the cache."""

    code: str
    op: str
    span: Span
    message: str
    confidence: str
    condition: str
    open: bool
    live: bool
    needs_gradient: bool
    quiet: bool
    also: tuple[Span, ...]
    caller: Span | None
    function: str
    facts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Judged:
    """A finding before it is shown: where, what, how sure."""

    code: str
    span: Span
    message: str
    confidence: Confidence
    condition: str
    also: tuple[Span, ...]
    function: str
    op: str = ""
    facts: tuple[tuple[str, str], ...] = ()


def place(origin: Origin) -> Span:
    return Span.of(origin.file, origin.node, origin.what)


def judge(opinions: Iterable[Opinion], cleared: Iterable[Place], heads: Sequence[Head]) -> list[Judged]:
    """One finding for each place and cause, or none."""
    groups: dict[tuple[str, int, int, str], list[Opinion]] = {}
    for opinion in sorted(opinions, key=_order):
        groups.setdefault((opinion.span.file, opinion.span.line, opinion.span.column, opinion.code), []).append(opinion)
    safe = {(file, line, column, op) for file, line, column, op in cleared}
    decided = {
        (opinion.span.file, opinion.span.line, opinion.span.column)
        for opinion in (each for group in groups.values() for each in group)
        if opinion.live and not opinion.open
    }
    found: dict[tuple[str, int, str], Judged] = {}
    for (file, line, column, _code), group in groups.items():
        judged = _one(group, safe=(file, line, column, group[0].op) in safe, decided=(file, line, column) in decided, heads=heads)
        if judged is None:
            continue
        key = (file, line, judged.code)
        known = found.get(key)
        if known is None or _RANK[judged.confidence] < _RANK[known.confidence]:
            found[key] = judged
    return sorted(found.values(), key=lambda each: (each.span.file, each.span.line, each.span.column, each.code))


def _order(opinion: Opinion) -> tuple[object, ...]:
    caller = opinion.caller
    return (
        opinion.span.file,
        opinion.span.line,
        opinion.span.column,
        opinion.code,
        "" if caller is None else caller.file,
        0 if caller is None else caller.line,
        opinion.message,
    )


_RANK = {Confidence.CERTAIN: 0, Confidence.LIKELY: 1, Confidence.DEPENDS: 2}


def _one(group: list[Opinion], *, safe: bool, decided: bool, heads: Sequence[Head]) -> Judged | None:
    alone = [opinion for opinion in group if opinion.caller is None]
    called = [opinion for opinion in group if opinion.caller is not None]
    closed = [opinion for opinion in alone if not opinion.open and opinion.live]
    if closed:
        if closed[0].op in ("mean", "loss", "variance") and safe and not any(opinion.live for opinion in called):
            return None  # every caller in the tree makes sure that something is selected
        if closed[0].needs_gradient and safe and not any(opinion.live for opinion in called):
            return None  # no caller in the tree has a gradient there
        if called and all(opinion.quiet for opinion in called) and not closed[0].quiet:
            return _finding(replace(closed[0], quiet=True))
        if closed[0].op == "sqrt" and closed[0].needs_gradient and called and not any(opinion.live for opinion in called):
            return None  # every caller in the tree drops the gradient
        training = [opinion for opinion in called if opinion.live and not opinion.open and not opinion.quiet]
        return _finding(training[0], caller=training[0].caller) if closed[0].quiet and training else _finding(closed[0])
    found = [opinion for opinion in called if not opinion.open and opinion.live]
    if found:
        return _finding(found[0], caller=found[0].caller)
    waiting = [opinion for opinion in alone if opinion.open and opinion.live]
    if not waiting or decided or safe:
        return None
    first = waiting[0]
    if first.code == "NAN202" and heads and dict(first.facts).get("role") == "prediction":
        file, line, name, _ = heads[0]
        also = (Span(file, line, 0, line, 1, f"{name} returns a sigmoid times a range"),)
        message = (
            "log of a prediction without a lower bound: a head in this tree returns a scaled sigmoid, which underflows to 0; log 0 is -inf and its gradient NaN"
        )
        return Judged(
            "NAN201",
            first.span,
            message,
            Confidence.DEPENDS if first.quiet else Confidence.LIKELY,
            f"if {name} is the network behind it",
            also,
            first.function,
            first.op,
        )
    return _finding(first)


def _finding(opinion: Opinion, caller: Span | None = None) -> Judged:
    confidence = Confidence(opinion.confidence)
    condition = opinion.condition
    if opinion.quiet and confidence is not Confidence.DEPENDS:
        confidence = Confidence.DEPENDS
        condition = condition or "if the result of this evaluation or logging code matters"
    also = opinion.also + ((caller,) if caller is not None else ())
    return Judged(opinion.code, opinion.span, opinion.message, confidence, condition, tuple(dict.fromkeys(also)), opinion.function, opinion.op, opinion.facts)


def by_file(judged: Iterable[Judged]) -> Mapping[str, list[Judged]]:
    files: dict[str, list[Judged]] = {}
    for each in judged:
        files.setdefault(each.span.file, []).append(each)
    return files
