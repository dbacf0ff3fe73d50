"""Files that are either whole or not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from nanopsy.errors import NanopsyError

__all__ = ["atomically", "make_folder", "write_text"]


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder, made if it is not there.

    Raises:
        NanopsyError: it cannot be made or written to.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("it cannot be written to")
    except OSError as error:
        raise NanopsyError(
            f"the folder {folder} cannot be used: {error.strerror or error}",
            where=str(folder),
            why="results would be lost",
            do="name a folder that you may write to",
        ) from None
    return folder


def atomically(path: str | os.PathLike[str], write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside its place, then move it there: a reader, or a kill, never sees half of it."""
    target = Path(path)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`atomically`, for text."""
    atomically(path, lambda file: file.write(text.encode("utf-8")))
