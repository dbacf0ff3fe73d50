"""The drawer of causes: one file per root cause; :func:`load` finds them all."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache

from nanopsy.causes._cause import Cause, Claim

__all__ = ["Cause", "Claim", "find", "load"]


@lru_cache(maxsize=1)
def load() -> dict[str, Cause]:
    """Code -> cause, in order of code. A code that is defined twice is an error."""
    found: dict[str, Cause] = {}
    for module in pkgutil.iter_modules(__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module.name}")
    for kind in Cause.__subclasses__():
        if kind.code in found:
            raise ValueError(f"cause code {kind.code} is defined twice: {type(found[kind.code]).__name__} and {kind.__name__}")
        found[kind.code] = kind()
    return dict(sorted(found.items()))


def find(name: str) -> Cause | None:
    """The cause with this code or slug, whatever the case."""
    wanted = name.strip().lower()
    for cause in load().values():
        if wanted in (cause.code.lower(), cause.slug):
            return cause
    return None
