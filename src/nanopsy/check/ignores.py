"""What git would ignore: the rules of .gitignore, each file compiled to one regular expression. Stdlib only.

The rules are those of gitignore(5): the last line that matches decides, ``!`` takes back, a slash before the end anchors a
pattern to the folder of its file, ``**`` crosses folders, a slash at the end asks for a folder, and nothing below an ignored
folder can be taken back. One file becomes one alternation with its lines reversed, so that the first branch that matches is
the last line that does; neighbouring lines with one verdict share a group, and the group's number tells the verdict.
A folder is matched with a slash behind its name, which is how a pattern can ask for one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

_NAME = "(?=[^/])"
"""A path component begins here: no path of ours has an empty one, and a folder's closing slash begins none."""
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \t",
    "cntrl": "\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-\~",
    "space": " \t\n\r",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


def _trimmed(line: str) -> str:
    """The line without the spaces at its end that no backslash protects."""
    end = len(line)
    while end and line[end - 1] == " ":
        end -= 1
    slashes = len(line[:end]) - len(line[:end].rstrip("\\"))
    return line[: end + 1] if slashes % 2 and end < len(line) else line[:end]


def _set(body: str, at: int) -> tuple[str, int] | None:
    """The regular expression of the bracket expression that opens at ``at``, and where it ends; None if it never matches."""
    p = at + 1
    negated = body[p : p + 1] in {"!", "^"}
    p += negated
    members: list[str] = []
    before, first = "", True
    while True:
        if p >= len(body):
            return None
        char = body[p]
        if char == "]" and not first:
            break
        first = False
        if char == "\\":
            p += 1
            if p >= len(body):
                return None
            before = body[p]
            members.append(re.escape(before))
        elif char == "-" and before and body[p + 1 : p + 2] not in {"", "]"}:
            p += 1 + (body[p + 1] == "\\")
            if p >= len(body):
                return None
            if before <= body[p]:
                members.append(f"{re.escape(before)}-{re.escape(body[p])}")
            before = ""
        elif body.startswith("[:", p):
            end = body.find("]", p + 2)
            if end < 0:
                return None
            if end == p + 2 or body[end - 1] != ":":
                members.append(r"\[")
                before = "["
            else:
                known = _POSIX.get(body[p + 2 : end - 1])
                if known is None:
                    return None
                members.append(known)
                before, p = "", end
        else:
            members.append(re.escape(char))
            before = char
        p += 1
    inside = "".join(members)
    if negated:
        return f"[^/{inside}]", p + 1
    return (f"(?!/)[{inside}]" if inside else "(?!)"), p + 1


def _glob(body: str, *, anchored: bool) -> str | None:
    """A pattern as a regular expression, or None if it can match nothing."""
    out: list[str] = []
    at = 0
    while at < len(body):
        char = body[at]
        if char == "*":
            end = at
            while body[end : end + 1] == "*":
                end += 1
            whole = end - at > 1 and (at == 0 or body[at - 1] == "/") and body[end : end + 1] in {"", "/"}
            if not (anchored and whole):
                out.append("[^/]*")
            elif end == len(body):
                out.append(".*")
            else:
                if not (out and out[-1].startswith("(?:.*/)?")):
                    out.append(f"(?:.*/)?{_NAME}")
                end += 1
            at = end
        elif char == "[":
            found = _set(body, at)
            if found is None:
                return None
            out.append(found[0])
            at = found[1]
        else:
            if char == "\\":
                at += 1
                if at >= len(body):
                    return None
                char = body[at]
                out.append(f"/{_NAME}" if char == "/" else re.escape(char))
            else:
                out.append("[^/]" if char == "?" else f"/{_NAME}" if char == "/" else re.escape(char))
            at += 1
    return "".join(out)


def _rule(line: str) -> tuple[bool, str] | None:
    """Whether a line ignores (or takes back), and the regular expression of what; None for a line that says nothing."""
    if line.startswith("#"):
        return None
    body = _trimmed(line)
    ignores = not body.startswith("!")
    body = body if ignores else body[1:]
    folders_only = body.endswith("/")
    body = body[:-1] if folders_only else body
    anchored = "/" in body
    body = body.removeprefix("/")
    pattern = _glob(body, anchored=anchored) if body else None
    if pattern is None:
        return None
    head = "" if anchored else f"(?:.*/)?{_NAME}"
    return ignores, head + pattern + ("/" if folders_only else "/?")


class Patterns:
    """The lines of one ignore file, compiled."""

    __slots__ = ("_regex", "_verdicts")

    def __init__(self, lines: Iterable[str]) -> None:
        runs: list[tuple[bool, list[str]]] = []
        for rule in map(_rule, reversed(list(lines))):
            if rule is None:
                continue
            if not runs or runs[-1][0] != rule[0]:
                runs.append((rule[0], []))
            runs[-1][1].append(rule[1])
        self._verdicts = tuple(ignores for ignores, _ in runs)
        self._regex = re.compile("|".join("(" + "|".join(patterns) + ")" for _, patterns in runs), re.DOTALL) if runs else None

    @classmethod
    def of(cls, text: str) -> Patterns:
        """The patterns of an ignore file's text."""
        return cls(line.removesuffix("\r") for line in text.removeprefix("\ufeff").split("\n"))

    def verdict(self, path: str, *, folder: bool) -> bool | None:
        """True if the lines ignore this path itself, False if they take it back, None if they say nothing of it.

        ``path`` is relative to the folder of the ignore file, with forward slashes. What lies above it is not looked at.
        """
        found = self._regex.fullmatch(f"{path}/" if folder else path) if self._regex is not None else None
        return None if found is None or found.lastindex is None else self._verdicts[found.lastindex - 1]

    def covers(self, path: str) -> bool:
        """Whether a file is ignored, by its own name or because a folder above it is."""
        parts = path.split("/")
        return any(self.verdict("/".join(parts[:count]), folder=count < len(parts)) for count in range(1, len(parts) + 1))


@lru_cache(maxsize=256)
def patterns(lines: tuple[str, ...]) -> Patterns:
    """The patterns of these lines, compiled once: for settings, which are asked again for every finding."""
    return Patterns(lines)


def _slashed(path: str) -> str:
    return path.replace(os.sep, "/")


@dataclass(frozen=True, slots=True)
class Ignores:
    """The ignore files that hold in one folder, outermost first; the innermost that says something decides.

    Git's per-user file (``core.excludesFile``) is left out on purpose: a check finds the same on every machine.
    """

    layers: tuple[tuple[str, Patterns], ...] = ()

    @classmethod
    def around(cls, folder: str) -> Ignores:
        """What holds in ``folder``: its own .gitignore and, within a repository, those above it and .git/info/exclude."""
        here = Path(os.path.abspath(folder))
        top = next((each for each in (here, *here.parents) if (each / ".git").exists()), here)
        found = cls()._with(top, top / ".git" / "info" / "exclude")
        for each in [*reversed([parent for parent in here.parents if parent.is_relative_to(top)]), here]:
            found = found.below(str(each))
        return found

    def below(self, folder: str) -> Ignores:
        """What holds in a folder within this one."""
        return self._with(Path(folder), Path(folder) / ".gitignore")

    def _with(self, base: Path, file: Path) -> Ignores:
        try:
            text = file.read_bytes().decode("utf-8", "surrogateescape")
        except OSError:
            return self
        return Ignores((*self.layers, (_slashed(str(base)).rstrip("/") + "/", Patterns.of(text))))

    def ignores(self, path: str, *, folder: bool) -> bool:
        """Whether this absolute path itself is ignored; the folders above it are the caller's business, who did not enter ignored ones."""
        path = _slashed(path)
        for base, lines in reversed(self.layers):
            verdict = lines.verdict(path[len(base) :], folder=folder) if path.startswith(base) else None
            if verdict is not None:
                return verdict
        return False
