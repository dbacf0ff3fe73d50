"""``# noqa: NAN301``: findings that the author of a line has seen and wants to hear no more of. Stdlib only.

The comment may stand on the first or last line of the expression, anywhere between them, or on the last line of its statement,
where a formatter leaves it. Codes of other tools in the same comment are theirs. A code of ours that silences nothing is a
finding of its own: it would silence the next mistake on its line.
"""

from __future__ import annotations

import re
import tokenize
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from nanopsy.check.files import split_lines
from nanopsy.findings import Confidence, Edit, Finding, Location, Safety

UNUSED_CODE, UNUSED_SLUG = "NAN000", "unused-noqa"
OURS = "NAN"
_CODE = r"[A-Za-z]+[0-9]+(?!\w)"
_DIRECTIVE = re.compile(rf"#\s*noqa(?![\w-])(?:\s*(?P<colon>:)\s*(?P<codes>{_CODE}(?:\s*,\s*{_CODE}|\s+{_CODE})*)?)?", re.IGNORECASE)


@dataclass(slots=True)
class _Directive:
    """One noqa: its line, where its comment and itself lie in the text, and the codes it names (none: all)."""

    line: int
    comment: tuple[int, int]
    span: tuple[int, int]
    codes_at: int
    codes: str
    used: set[str] = field(default_factory=set)
    """The words that silenced something."""

    @property
    def words(self) -> list[str]:
        return re.findall(_CODE, self.codes)

    def silences(self, code: str) -> bool:
        """Whether a finding of ``code`` is silenced; what silenced it counts as used."""
        if not self.codes:
            return True
        matching = [word.upper() for word in self.words if code.startswith(word.upper())]
        self.used.update(matching)
        return bool(matching)


@dataclass(frozen=True, slots=True)
class _Comments:
    directives: list[_Directive]
    ends: list[int]
    """The last lines of the statements, ascending."""

    def last_line(self, line: int) -> int:
        """The last line of the statement (or the head of a compound one) that ``line`` belongs to."""
        at = bisect_left(self.ends, line)
        return self.ends[at] if at < len(self.ends) else line


def _comments(text: str) -> _Comments | None:
    """Every noqa of a text that is truly a comment; None when it cannot be told what is one."""
    lines = split_lines(text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    feed = iter([line.rstrip("\r\n") + "\n" for line in lines])
    directives: list[_Directive] = []
    ends: list[int] = []
    try:
        for token in tokenize.generate_tokens(lambda: next(feed, "")):
            if token.type == tokenize.NEWLINE:
                ends.append(token.start[0])
            elif token.type == tokenize.COMMENT:
                at = starts[token.start[0] - 1] + token.start[1]
                for found in _DIRECTIVE.finditer(token.string):
                    if not found["colon"] or found["codes"]:
                        codes_at = at + (found.start("codes") if found["codes"] else found.end())
                        span = (at + found.start(), at + found.end())
                        directives.append(_Directive(token.start[0], (at, at + len(token.string)), span, codes_at, found["codes"] or ""))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return None
    return _Comments(directives, ends)


def _covered(location: Location, comments: _Comments) -> set[int]:
    """The lines on which a noqa speaks of this location."""
    end = max(location.end_line, location.line)
    last = comments.last_line(location.line)
    return {end, last, *range(location.line, min(end, last) + 1)}


def _removal(text: str, directive: _Directive, unused: set[str]) -> tuple[int, int, str]:
    """The edit that takes the unused codes out of a directive: a span and its new text."""
    left = [word for word in directive.words if word.upper() not in unused]
    if left:
        between = re.search(rf"{_CODE}([\s,]+){_CODE}", directive.codes)
        separator = between[1] if between else ", "
        return directive.codes_at, directive.codes_at + len(directive.codes), separator.join(left)
    start, end = directive.span
    before = text[directive.comment[0] : start].rstrip()
    after = text[end : directive.comment[1]].strip()
    if after and not before:
        return start, directive.comment[1], after if after.startswith("#") else f"# {after}"
    if after:
        return start, directive.comment[1], after
    while start and text[start - 1] in " \t\f":
        start -= 1
    if start == 0 or text[start - 1] in "\r\n":
        terminator = re.compile(r"\r\n|\r|\n").match(text, end)
        end = terminator.end() if terminator else end
    return start, end, ""


def _unused(text: str, file: str, directives: list[_Directive], checked: Callable[[str], bool]) -> Iterator[Finding]:
    starts = [0]
    for line in split_lines(text):
        starts.append(starts[-1] + len(line))
    for directive in directives:
        ours = {word.upper() for word in directive.words if word.upper().startswith(OURS)}
        unused = {code for code in ours - directive.used - {UNUSED_CODE} if checked(code)}
        if not unused or UNUSED_CODE in ours:
            continue
        at = starts[directive.line - 1]
        place = Location(file, directive.line, directive.span[0] - at + 1, directive.line, directive.span[1] - at + 1)
        names = ", ".join(sorted(unused))
        start, end, new = _removal(text, directive, unused)
        edit = Edit(file, start, end, new, Safety.SAFE, "remove the unused noqa")
        message = f"noqa of {names} silences nothing here"
        yield Finding(UNUSED_CODE, UNUSED_SLUG, place, message, confidence=Confidence.CERTAIN, edits=(edit,))


def suppress(findings: list[Finding], text: str, file: str, *, checked: Callable[[str], bool]) -> tuple[list[Finding], list[Finding], int]:
    """Take out the findings of one file that a noqa in ``text`` silences.

    Locations count the lines of ``text``; a notebook's are to be mapped to its cells afterwards.

    Args:
        findings: the findings of this file, in this text.
        text: the file's text, as the offsets of edits count it.
        file: the name that findings of unused noqas carry.
        checked: whether a code was looked for at all; a noqa of one that was not is left alone.

    Returns:
        the findings that stay, the findings of noqas that silenced nothing, and how many were silenced.
    """
    if "noqa" not in text.lower():
        return list(findings), [], 0
    comments = _comments(text)
    if comments is None or not comments.directives:
        return list(findings), [], 0
    by_line: dict[int, list[_Directive]] = {}
    for directive in comments.directives:
        by_line.setdefault(directive.line, []).append(directive)
    kept: list[Finding] = []
    for finding in findings:
        lines = _covered(finding.location, comments) if finding.location else set()
        verdicts = [directive.silences(finding.code) for line in lines for directive in by_line.get(line, ())]
        if not any(verdicts):
            kept.append(finding)
    return kept, list(_unused(text, file, comments.directives, checked)), len(findings) - len(kept)
