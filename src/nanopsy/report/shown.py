"""Values that came from elsewhere, as a page can show them: bounded, without what steers a terminal or cannot be written as UTF-8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import islice

from nanopsy.findings import harmless

_LONG = 4_000
_ENTRIES = 16
_DEPTH = 4
_BITS = 1000
"""An integer with more bits is not turned into a float."""


def text(value: object, most: int = _LONG) -> str:
    """A string of at most ``most`` characters; anything else briefly."""
    if not isinstance(value, str):
        return brief(value)
    cut = value if len(value) <= most else value[:most] + "…"
    return harmless(cut).encode("utf-8", "replace").decode()


def short(value: object, most: int) -> str:
    """One line of at most ``most`` characters."""
    line = " ".join(text(value, 20 * most).split())
    return line if len(line) <= most else line[: max(most - 1, 0)].rstrip() + "…"


def number(value: object) -> float | None:
    """A number as JSON holds it, non-finite ones as text; None for anything else."""
    if isinstance(value, str):
        return float(value) if value in ("nan", "inf", "-inf") else None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, int) and value.bit_length() > _BITS:
        return math.inf if value > 0 else -math.inf
    return float(value)


def count(value: object) -> int | None:
    """How many of something; None for what cannot be that."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else None


def figure(value: float | None, digits: int = 4) -> str:
    """A number in few digits, NaN and infinities by name."""
    if value is None:
        return "?"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if value == int(value) and abs(value) < 1e7:
        return f"{int(value):,}"
    return f"{value:.{digits}g}"


def counted(value: object) -> str:
    """A count with separators."""
    known = count(value)
    return "?" if known is None else f"{known:,}"


def shape(value: object) -> str:
    """The sizes of a tensor: ``1 × 32 × 48``; ``scalar`` when there are none."""
    if not isinstance(value, (list, tuple)):
        return "?"
    sizes = [counted(size) for size in value[:8]] + (["…"] if len(value) > 8 else [])
    return " × ".join(sizes) or "scalar"


def brief(value: object, depth: int = _DEPTH) -> str:
    """Anything that JSON holds in a line, however large or deep it is."""
    if isinstance(value, str):
        return short(value, 240)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}" if value.bit_length() <= 64 else f"a number of {value.bit_length():,} bits"
    if isinstance(value, float):
        return figure(value)
    if isinstance(value, (list, tuple)):
        inner = "…" if depth == 0 and value else ", ".join([brief(entry, depth - 1) for entry in value[:_ENTRIES]] + ["…"] * (len(value) > _ENTRIES))
        return short(f"[{inner}]", 600)
    if isinstance(value, Mapping):
        pairs = [f"{short(str(key), 60)}: {brief(entry, depth - 1)}" for key, entry in islice(value.items(), _ENTRIES)] if depth else ["…"] * bool(value)
        return short("{" + ", ".join(pairs + ["…"] * (len(value) > _ENTRIES)) + "}", 600)
    return short(str(value), 240)


def size(bytes_: int) -> str:
    """Bytes as people read them."""
    for unit, power in (("GB", 3), ("MB", 2), ("kB", 1)):
        if bytes_ >= 1000**power:
            return f"{bytes_ / 1000**power:.3g} {unit}"
    return f"{bytes_} B"
