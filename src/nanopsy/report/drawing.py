"""Small SVG drawings, made here and not by a library: curves over steps, and histograms. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup, escape

from nanopsy.report.shown import figure

_WIDTH, _HEIGHT = 320.0, 174.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 54.0, 10.0, 24.0, 36.0
_LARGEST = 1e300
_WIDE = 100.0
"""From this ratio of largest to smallest on, a logarithmic axis."""
_MOST_BINS = 64
_DOTTED = 80


def element(name: str, *children: Markup | str, **attributes: str | float) -> Markup:
    """One SVG element; every attribute and every text is escaped. A trailing underscore is dropped, others become hyphens."""
    written = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(_value(value))}"' for key, value in attributes.items())
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), Markup(written), Markup().join(children))


def _value(value: str | float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def words(x: float, y: float, content: str, kind: str = "label", anchor: str = "start") -> Markup:
    """Text at a point."""
    return element("text", content, x=x, y=y, class_=kind, text_anchor=anchor)


def drawing(title: str, parts: Sequence[Markup], width: float = _WIDTH, height: float = _HEIGHT, kind: str = "chart", smallest: int = 0) -> Markup:
    """An SVG with a title that screen readers read, not narrower than ``smallest`` pixels."""
    return element("svg", element("title", title), *parts, viewBox=f"0 0 {_value(width)} {_value(height)}", width=width, height=height, role="img", class_=kind,
                   style=f"min-width: {smallest}px")  # fmt: skip


class Axis:
    """Values to a length on the screen, linear or logarithmic, with ticks that people would write."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, log: bool | None = False) -> None:
        finite = [min(max(value, -_LARGEST), _LARGEST) for value in values if math.isfinite(value)]
        low, high = (min(finite), max(finite)) if finite else (0.0, 1.0)
        self.log = low > 0 and high / low >= _WIDE if log is None else log and low > 0
        self.start, self.end = start, end
        if self.log:
            low, high = math.log10(low), math.log10(high)
        if high - low <= max(abs(low), abs(high)) * 1e-9 or high - low < 1e-290:
            around = abs(high) * 0.1 or 1.0
            low, high = (low - around, high + around) if abs(high) > 1e-280 else (-1.0, 1.0)
        self.low, self.high = low, high

    def padded(self) -> Axis:
        """With room at both ends."""
        room = (self.high - self.low) * 0.06
        self.low, self.high = self.low - room, self.high + room
        return self

    def __call__(self, value: float) -> float:
        """Where on the screen; what lies beyond the axis is put at its end."""
        if self.log:
            value = math.log10(value) if value > 0 else self.low
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Three to six round values on the axis."""
        if self.log:
            first, last = math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9)
            stride = max(1, (last - first + 4) // 5)
            decades = [10.0**power for power in range(first, last + 1, stride) if -307 < power < 308]
            return decades if len(decades) >= 2 else [10.0**power for power in (self.low, self.high)]
        step = self._step()
        return [number * step for number in range(math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9) + 1)][:8]

    def _step(self) -> float:
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)


def curve(title: str, points: Sequence[tuple[float, float]], incident: float) -> Markup:
    """A quantity over the steps before the incident; non-finite values stand on the upper edge, named."""
    down = Axis([value for _, value in points], _HEIGHT - _BOTTOM, _TOP, log=None).padded()
    across = Axis([*(step for step, _ in points), incident], _LEFT, _WIDTH - _RIGHT)
    parts = [words(4, 11, title + (" (log)" if down.log else ""), "heading"), *_grid(down)]
    parts += [words(across(tick), _HEIGHT - _BOTTOM + 14, figure(tick), anchor="middle") for tick in across.ticks() if tick >= 0 and tick == int(tick)]
    parts.append(words((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "step", anchor="middle"))
    at = across(incident)
    parts += [element("path", d=f"M{at:.1f} {_TOP:.1f}V{_HEIGHT - _BOTTOM:.1f}", class_="incident")]
    parts.append(words(_WIDTH - _RIGHT, 11, f"incident at {figure(incident)}", "alarm", "end"))
    pieces, pen = [], "M"
    for step, value in points:
        if not math.isfinite(value):
            pen = "M"
            continue
        pieces.append(f"{pen}{across(step):.1f} {down(value):.1f}")
        pen = "L"
    parts.append(element("path", d="".join(pieces), class_="curve"))
    if len(points) <= _DOTTED:
        parts += [element("circle", cx=across(step), cy=down(value), r=1.8, class_="dot") for step, value in points if math.isfinite(value)]
    for step, value in [point for point in points if not math.isfinite(point[1])][:40]:
        x, y = across(step), _TOP + 14
        parts.append(element("path", d=f"M{x - 3:.1f} {y - 3:.1f}l6 6m0 -6l-6 6", class_="bad"))
        parts.append(words(x - 6, y + 4, figure(value), "alarm", "end"))
    return drawing(title, parts)


def _grid(axis: Axis) -> list[Markup]:
    parts = []
    ticks = axis.ticks()
    digits = next((digits for digits in range(3, 8) if len({figure(tick, digits) for tick in ticks}) == len(ticks)), 8)
    for tick in ticks:
        y = axis(tick)
        parts.append(element("path", d=f"M{_LEFT:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", class_="grid"))
        parts.append(words(_LEFT - 5, y + 3.5, figure(tick, digits), anchor="end"))
    return parts


def histogram(title: str, counts: Sequence[int], low: float, high: float) -> Markup:
    """How many elements lie where, from ``low`` to ``high``; a logarithmic height where a few would not be seen."""
    bins = [max(0, min(each, 1 << 53)) for each in counts]
    if len(bins) > _MOST_BINS:
        wide = -(-len(bins) // _MOST_BINS)
        bins = [sum(bins[start : start + wide]) for start in range(0, len(bins), wide)]
    filled = [each for each in bins if each]
    most = max(filled, default=1)
    log = most / min(filled, default=1) >= _WIDE
    base, each_wide = _HEIGHT - _BOTTOM, (_WIDTH - _LEFT - _RIGHT) / max(len(bins), 1)
    gap = min(1.0, each_wide * 0.2)

    def tall(number: float) -> float:
        share = math.log1p(number) / math.log1p(most) if log else number / most
        return share * (base - _TOP - 4)

    parts = [words(4, 11, "elements" + (" (log)" if log else ""), "heading")]
    for tick in _heights(most, log):
        y = base - tall(tick)
        parts.append(element("path", d=f"M{_LEFT:.0f} {y:.1f}H{_WIDTH - _RIGHT:.0f}", class_="grid"))
        parts.append(words(_LEFT - 5, y + 3.5, figure(float(tick)), anchor="end"))
    for position, number in enumerate(bins):
        if number:
            up = max(tall(number), 1.5)
            parts.append(element("rect", element("title", f"{number:,}"), x=_LEFT + position * each_wide + gap / 2, y=base - up, width=each_wide - gap,
                                 height=up, class_="bar"))  # fmt: skip
    parts.append(element("path", d=f"M{_LEFT:.0f} {base:.1f}H{_WIDTH - _RIGHT:.0f}", class_="axis"))
    for x, edge, anchor in ((_LEFT, low, "start"), (_WIDTH - _RIGHT, high, "end")):
        parts.append(words(x, base + 14, figure(edge), anchor=anchor))
    parts.append(words((_LEFT + _WIDTH - _RIGHT) / 2, _HEIGHT - 6, "value", anchor="middle"))
    return drawing(title, parts)


def _heights(most: int, log: bool) -> list[int]:
    if not log:
        return [most // 2, most] if most > 1 else [most]
    stride = max(1, len(str(most)) // 4)
    return [10**power for power in range(0, len(str(most)), stride)]
