"""The files to check, found: what paths mean, less what the settings exclude and git ignores. Stdlib only."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nanopsy.check.ignores import Ignores, Patterns, patterns
from nanopsy.errors import NanopsyError

if TYPE_CHECKING:
    from nanopsy.check.settings import Settings

SUFFIXES = (".py", ".ipynb")


@dataclass(frozen=True, slots=True)
class _Excluded:
    """The globs of the settings, which count from the settings' folder, or from the walked one if that lies elsewhere."""

    globs: Patterns
    root: str

    def _relative(self, path: str, base: str) -> str:
        inside = self.root and (path == self.root or path.startswith(self.root.rstrip(os.sep) + os.sep))
        return os.path.relpath(path, self.root if inside else base).replace(os.sep, "/")

    def skips(self, path: str, base: str, *, folder: bool) -> bool:
        return bool(self.globs.verdict(self._relative(path, base), folder=folder))

    def covers(self, path: str) -> bool:
        """Whether a path that was named is excluded, itself or by a folder above it."""
        return self.globs.covers(self._relative(path, os.path.dirname(path)))


def _walk(folder: str, base: str, excluded: _Excluded, ignores: Ignores | None) -> Iterator[str]:
    """The files below a folder. Linked folders are not entered; a folder that cannot be listed stands for itself, and :func:`read` says why."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: entry.name)
    except OSError:
        yield folder
        return
    for entry in entries:
        is_folder = entry.is_dir(follow_symlinks=False)
        if not is_folder and not (entry.name.endswith(SUFFIXES) and os.path.isfile(entry.path)):
            continue
        absolute = os.path.abspath(entry.path)
        if excluded.skips(absolute, base, folder=is_folder) or (ignores is not None and ignores.ignores(absolute, folder=is_folder)):
            continue
        if is_folder:
            yield from _walk(entry.path, base, excluded, ignores.below(absolute) if ignores is not None else None)
        else:
            yield entry.path


def discover(paths: Sequence[str], settings: Settings, *, respect_gitignore: bool = True, force_exclude: bool = False) -> list[str]:
    """The files that ``paths`` mean, sorted, each once, spelled as the path that led to it.

    A path that is named is taken whatever it is called, even if the settings exclude it, unless ``force_exclude``. What a
    named folder holds is taken if it is Python or a notebook and neither the settings nor git ignore it.
    """
    excluded = _Excluded(patterns(tuple(settings.exclude)), os.path.abspath(settings.root) if settings.root else "")
    found: list[str] = []
    for path in paths:
        if not os.path.lexists(path):
            folder = os.path.dirname(path) or "."
            beside = os.listdir(folder) if os.path.isdir(folder) else []
            close = difflib.get_close_matches(os.path.basename(path), beside, n=1)
            hint = f"did you mean {os.path.join(os.path.dirname(path), close[0])}? " if close else ""
            raise NanopsyError("there is no such file or folder", where=path, do=f"{hint}paths count from {os.getcwd()}")
        spelled = os.path.normpath(path)
        absolute = os.path.abspath(path)
        if force_exclude and excluded.covers(absolute):
            continue
        if os.path.isdir(path):
            found += map(os.path.normpath, _walk(spelled, absolute, excluded, Ignores.around(absolute) if respect_gitignore else None))
        else:
            found.append(spelled)
    once: dict[str, str] = {}
    for path in sorted(found, key=os.path.islink):
        once.setdefault(os.path.realpath(path), path)
    return sorted(once.values())
