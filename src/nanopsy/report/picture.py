"""The pictures of a capsule as PNG: depth in perceptual colours, bad pixels in a colour of their own and outlined."""

from __future__ import annotations

import base64
import binascii
import math
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from nanopsy.report.drawing import element
from nanopsy.report.shown import count, counted, figure, number, shape, short

MOST_PICTURES = 16
MOST_SIDE = 512
MOST_MARKS = 400
_SHOWN_SIDE = 272.0
"""Pixels on the screen of a picture's longer side."""
_LISTED = 6
_SIGNAL = (255, 0, 84)
_EMPTY = (128, 132, 138)


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture as a page shows it: an SVG around its PNG, and what there is to say."""

    name: str
    drawing: Markup
    facts: str
    low: str
    high: str
    legend: str
    """Empty where the scale of colours is the legend."""
    grey_zeros: bool
    bad: str
    """Where the bad pixels are, or empty."""


def png(width: int, height: int, rgb: bytes) -> bytes:
    """A PNG file of 8-bit RGB pixels, row by row."""
    if len(rgb) != width * height * 3:
        raise ValueError(f"{len(rgb)} bytes for {width} × {height} pixels of three")
    rows = b"".join(b"\0" + rgb[start : start + width * 3] for start in range(0, len(rgb), width * 3))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def _linear(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """A colour of the OKLab space in linear red, green and blue."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    brief = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * brief,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * brief,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * brief,
    )


def _displayed(lightness: float, chroma: float, hue: float) -> tuple[int, int, int]:
    """As the screen takes it (sRGB), as colourful as it can show at this lightness up to ``chroma``."""
    while chroma > 0 and not all(-1e-9 <= part <= 1 for part in _linear(lightness, chroma, hue)):
        chroma -= 0.004
    clipped = [min(max(part, 0.0), 1.0) for part in _linear(lightness, max(chroma, 0.0), hue)]
    red, green, blue = (round(255 * (12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055)) for part in clipped)
    return red, green, blue


def _scale() -> list[tuple[int, int, int]]:
    """256 colours of evenly rising lightness, from dark violet over teal to light yellow."""
    return [_displayed(0.25 + 0.69 * at, 0.15, 300 - 195 * at) for at in (step / 255 for step in range(256))]


SCALE = _scale()
GRADIENT = "linear-gradient(to right, " + ", ".join(f"rgb({red} {green} {blue})" for red, green, blue in SCALE[::17]) + ")"
"""The scale as CSS, for legends."""


def pictures(entries: Iterable[Mapping[str, Any]]) -> tuple[list[Picture], list[str]]:
    """The pictures that can be shown, and a sentence for each that cannot."""
    found: list[Picture] = []
    skipped: list[str] = []
    for position, entry in enumerate(entries):
        if position == MOST_PICTURES:
            skipped.append(f"More than {MOST_PICTURES} pictures are in the capsule; the others are not shown.")
            break
        try:
            found.append(_picture(entry))
        except ValueError as error:
            skipped.append(f"The picture {short(entry.get('name'), 60)!r} is not shown: {error}.")
    return found, skipped


def _picture(entry: Mapping[str, Any]) -> Picture:
    height, width, channels = (count(entry.get(key)) for key in ("height", "width", "channels"))
    if not height or not width or height > MOST_SIDE or width > MOST_SIDE:
        raise ValueError(f"its size is not one from 1 × 1 to {MOST_SIDE} × {MOST_SIDE}")
    if channels not in (1, 3):
        raise ValueError("it has neither one channel nor three")
    pixels = _pixels(entry.get("pixels"), height * width * channels)
    marks = _marks(entry.get("marks"), height, width)
    low, high = number(entry.get("low")), number(entry.get("high"))
    zeros = count(entry.get("zeros")) or 0
    grey_zeros = channels == 1 and low == 0 and zeros > 0
    rgb = bytearray(pixels) if channels == 3 else _coloured(pixels, grey_zeros)
    for row, column in marks:
        start = (row * width + column) * 3
        rgb[start : start + 3] = bytes(_SIGNAL)
    name = short(entry.get("name"), 200) or "a tensor without a name"
    bad = count(entry.get("bad")) or 0
    facts = f"{short(entry.get('dtype'), 12)} {shape(entry.get('shape'))}, {counted(zeros)} zero and {counted(bad)} bad of {counted(entry.get('count'))}"
    if low == high:
        legend = "no finite value here" if len(marks) == height * width else f"every finite value is {figure(low)}"
    else:
        legend = f"{figure(low)} to {figure(high)}, shown as 0 to 255" if channels == 3 else ""
    return Picture(name, _drawn(name, width, height, bytes(rgb), marks), facts, figure(low), figure(high), legend, grey_zeros,
                   _whereabouts(entry, marks, bad, height, width))  # fmt: skip


def _pixels(value: object, wanted: int) -> bytes:
    """The bytes of a picture, when they are as many as its size says."""
    if not isinstance(value, str) or len(value) != 4 * -(-wanted // 3):
        raise ValueError("its pixels are not as many as its size says")
    try:
        pixels = base64.b64decode(value.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("its pixels are not base64") from None
    if len(pixels) != wanted:
        raise ValueError("its pixels are not as many as its size says")
    return pixels


def _marks(value: object, height: int, width: int) -> list[tuple[int, int]]:
    found: dict[tuple[int, int], None] = {}
    for pair in value[:MOST_MARKS] if isinstance(value, list) else ():
        if isinstance(pair, list) and len(pair) == 2:
            row, column = count(pair[0]), count(pair[1])
            if row is not None and column is not None and row < height and column < width:
                found[row, column] = None
    return list(found)


def _coloured(grey: bytes, grey_zeros: bool) -> bytearray:
    rgb = bytearray(3 * len(grey))
    for channel in range(3):
        table = bytearray(colour[channel] for colour in SCALE)
        if grey_zeros:
            table[0] = _EMPTY[channel]
        rgb[channel::3] = grey.translate(bytes(table))
    return rgb


def _drawn(name: str, width: int, height: int, rgb: bytes, marks: Sequence[tuple[int, int]]) -> Markup:
    """The PNG, with the outline of the bad pixels, crosses in them where they are large, and rings around them where they are few and small."""
    scale = _SHOWN_SIDE / max(width, height)
    uri = "data:image/png;base64," + base64.b64encode(png(width, height, rgb)).decode()
    parts = [element("title", name), element("image", href=uri, width=width, height=height, class_="pixels", preserveAspectRatio="none")]
    if marks:
        parts += [element("path", d=_outline(marks), class_="halo"), element("path", d=_outline(marks), class_="outline")]
        if scale >= 7:
            parts.append(element("path", d=" ".join(f"M{c + 0.3} {r + 0.3}l.4 .4m0 -.4l-.4 .4" for r, c in marks), class_="cross"))
        elif len(marks) <= 24:
            radius = 9 / scale
            parts += [element("circle", cx=c + 0.5, cy=r + 0.5, r=radius, class_=kind) for r, c in marks for kind in ("halo", "ring")]
    return element("svg", *parts, viewBox=f"0 0 {width} {height}", width=round(width * scale), height=round(height * scale), role="img", class_="picture")


def _outline(marks: Sequence[tuple[int, int]]) -> str:
    """The border of a set of pixels."""
    inside = set(marks)
    edges = []
    for row, column in marks:
        for beyond, path in (((row - 1, column), f"M{column} {row}h1"), ((row + 1, column), f"M{column} {row + 1}h1"),
                             ((row, column - 1), f"M{column} {row}v1"), ((row, column + 1), f"M{column + 1} {row}v1")):  # fmt: skip
            if beyond not in inside:
                edges.append(path)
    return "".join(edges)


def _whereabouts(entry: Mapping[str, Any], marks: Sequence[tuple[int, int]], bad: int, height: int, width: int) -> str:
    """The places of the bad pixels in words, in rows and columns of the tensor where its shape tells how it was thinned out."""
    if not marks:
        return ""
    sizes = entry.get("shape")
    tall, wide = (count(size) for size in sizes[-2:]) if isinstance(sizes, list) and len(sizes) >= 2 else (None, None)
    step = max(1, -(-tall // height), -(-wide // width)) if tall and wide else 1
    known = bool(tall and wide and -(-tall // step) == height and -(-wide // step) == width)
    factor = step if known else 1
    places = ", ".join(f"row {row * factor} column {column * factor}" for row, column in marks[:_LISTED])
    more = f" and {len(marks) - _LISTED} more" if len(marks) > _LISTED else ""
    if not known:
        return f"Bad in the picture at {places}{more}."
    return f"Bad at {places}{more}." if factor == 1 else f"Bad within {factor} pixels of {places}{more}."
