"""Procedural scenes: a street or a room, ray-cast with exact depth, and the sensors that see only some of it.

Every frame is a function of its seed alone: the same on every machine, in every worker, in any order. Rays are ``(x, y, 1)`` in camera coordinates (x right,
y down, z forward), so that the ray parameter of a hit *is* its depth in metres.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanopsy.stable import _arguments as arguments

__all__ = ["Frame", "SceneOptions", "Sensor", "render", "sense"]

Floats = NDArray[np.float32]
_TILES = 64


class Frame(NamedTuple):
    """One rendered picture and its depth."""

    image: NDArray[np.uint8]
    """``H x W x 3``."""
    depth: Floats
    """``H x W`` in metres, 0 where the ray meets nothing (sky)."""


@dataclass(frozen=True, slots=True)
class SceneOptions:
    """What the generator draws."""

    kind: str = "street"
    """``street``: ground, house fronts, cars (boxes), poles and trunks (cylinders), open sky. ``room``: floor, ceiling, four walls, furniture."""
    height: int = 192
    width: int = 320
    fov: float = 62.0
    """Horizontal field of view in degrees."""
    objects: tuple[int, int] = (4, 10)
    """Fewest and most boxes and cylinders."""

    def __post_init__(self) -> None:
        where = "nanopsy.depth.scenes.SceneOptions"
        arguments.choice(where, "kind", self.kind, ("street", "room"))
        for name in ("height", "width"):
            arguments.whole(where, name, getattr(self, name), least=8)
        arguments.number(where, "fov", self.fov, least=10, most=150)

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return float(self.width / 2 / np.tan(np.radians(self.fov) / 2))


@dataclass(frozen=True, slots=True)
class Sensor:
    """How much of the depth is measured: what makes ground truth sparse."""

    kind: str = "lidar"
    """``lidar``: scan lines of a rotating sensor. ``kinect``: dense, with holes at depth edges, at grazing angles and outside its range. ``dense``: all."""
    lines: int = 24
    """Scan lines over the vertical field that the sensor sees (a lidar only)."""
    keep: float = 0.5
    """Share of the pixels on a scan line that return (a lidar), or of the holes' candidates that stay (kinect)."""
    top: float = 0.40
    """Share of the image, from above, that the lidar never sees."""
    min_range: float = 0.3
    max_range: float = 120.0
    """Metres; nothing nearer or farther is measured."""

    def __post_init__(self) -> None:
        where = "nanopsy.depth.scenes.Sensor"
        arguments.choice(where, "kind", self.kind, ("lidar", "kinect", "dense"))
        arguments.whole(where, "lines", self.lines, least=1)
        arguments.number(where, "keep", self.keep, least=0, most=1)
        arguments.number(where, "top", self.top, least=0, below=1)


@dataclass(slots=True)
class _Canvas:
    """The nearest hit of every ray so far, with its colour."""

    x: Floats
    y: Floats
    depth: Floats
    colour: Floats
    noise: Floats = field(repr=False)

    def texture(self, u: Floats, v: Floats, scale: float) -> Floats:
        """Two octaves of a tiled random pattern, in [0, 1]."""
        a, b = (np.floor(u * s).astype(np.int32) & (_TILES - 1) for s in (scale, 4 * scale))
        c, d = (np.floor(v * s).astype(np.int32) & (_TILES - 1) for s in (scale, 4 * scale))
        pattern: Floats = 0.65 * self.noise[c, a] + 0.35 * self.noise[d, b]
        return pattern

    def paint(self, rows: slice, columns: slice, depth: Floats, shade: Floats, tint: Floats) -> None:
        """Keep the hits of a window that are nearer than what is there."""
        window = self.depth[rows, columns]
        nearer = (depth > 0.05) & (depth < window)
        window[nearer] = depth[nearer]
        self.colour[rows, columns][nearer] = shade[nearer, None] * tint

    def window(self, points: NDArray[np.float64], focal: float) -> tuple[slice, slice]:
        """The pixels that a convex thing with these corners ``N x 3`` can cover; everything, if it reaches behind the camera."""
        height, width = self.depth.shape
        if points[:, 2].min() < 0.1:
            return slice(0, height), slice(0, width)
        u, v = points[:, 0] / points[:, 2] * focal + width / 2, points[:, 1] / points[:, 2] * focal + self.horizon
        top, bottom = int(np.clip(v.min() - 1, 0, height)), int(np.clip(v.max() + 2, 0, height))
        left, right = int(np.clip(u.min() - 1, 0, width)), int(np.clip(u.max() + 2, 0, width))
        return slice(top, bottom), slice(left, right)

    @property
    def horizon(self) -> float:
        return float(self.depth.shape[0] * 0.45)


def _plane(canvas: _Canvas, axis: str, offset: float, tint: Floats, scale: float, light: float) -> None:
    """The plane ``axis = offset``, a metre grid of texture on it."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        along = canvas.x if axis == "x" else canvas.y
        depth = np.full_like(canvas.depth, offset) if axis == "z" else offset / along
    depth = np.where(np.isfinite(depth) & (depth > 0) & (depth < 1e4), depth, 1e5).astype(np.float32)
    u = canvas.y * depth if axis == "x" else canvas.x * depth
    v = canvas.y * depth if axis == "z" else depth
    shade = light * (0.35 + 0.65 * canvas.texture(u, v, scale))
    canvas.paint(slice(None), slice(None), np.where(depth < 9e4, depth, np.float32(np.inf)), shade, tint)


def _box(canvas: _Canvas, focal: float, centre: Floats, half: Floats, yaw: float, tint: Floats) -> None:
    """An upright box, turned about the vertical; slab intersection in its own frame."""
    c, s = float(np.cos(yaw)), float(np.sin(yaw))
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, -1).T
    corners = signs * half
    corners = np.stack([c * corners[:, 0] + s * corners[:, 2], corners[:, 1], -s * corners[:, 0] + c * corners[:, 2]], 1) + centre
    rows, columns = canvas.window(corners.astype(np.float64), focal)
    x, y = canvas.x[rows, columns], canvas.y[rows, columns]
    if not x.size:
        return
    directions = (c * x - s, y, s * x + c)
    origin = (-(c * centre[0] - s * centre[2]), -centre[1], -(s * centre[0] + c * centre[2]))
    near, far = np.full_like(x, -np.inf), np.full_like(x, np.inf)
    face = np.zeros(x.shape, np.int8)
    with np.errstate(divide="ignore", invalid="ignore"):
        for number, (d, o, h) in enumerate(zip(directions, origin, half, strict=True)):
            first, second = (-h - o) / d, (h - o) / d
            low, high = np.minimum(first, second), np.maximum(first, second)
            face = np.where(low > near, np.int8(number), face)
            near, far = np.fmax(near, low), np.fmin(far, high)
    depth = np.where((near < far) & (near > 0), near, np.float32(np.inf)).astype(np.float32)
    reach = np.where(np.isfinite(depth), depth, 0)
    light = np.array([0.75, 1.0, 0.9], np.float32)[face]
    shade = light * (0.5 + 0.5 * canvas.texture((0.8 * x + 0.6) * reach, y * reach, 3.0))
    canvas.paint(rows, columns, depth, shade.astype(np.float32), tint)


def _cylinder(canvas: _Canvas, focal: float, foot: Floats, radius: float, tall: float, tint: Floats) -> None:
    """An upright cylinder that stands on ``foot``."""
    low, high = foot - np.array([radius, tall, radius]), foot + np.array([radius, 0, radius])
    corners = np.array([[a, b, c] for a in (low[0], high[0]) for b in (low[1], high[1]) for c in (low[2], high[2])])
    rows, columns = canvas.window(corners.astype(np.float64), focal)
    x, y = canvas.x[rows, columns], canvas.y[rows, columns]
    if not x.size:
        return
    a = x * x + 1
    b = x * foot[0] + foot[2]
    inside = b * b - a * (foot[0] ** 2 + foot[2] ** 2 - radius**2)
    root = np.sqrt(np.maximum(inside, 0))
    depth = (b - root) / a
    level = y * depth
    hit = (inside > 0) & (depth > 0) & (level < foot[1]) & (level > foot[1] - tall)
    depth = np.where(hit, depth, np.float32(np.inf)).astype(np.float32)
    light = 0.45 + 0.55 * root / np.sqrt(a) / radius
    reach = np.where(hit, depth, 0)
    shade = light * (0.6 + 0.4 * canvas.texture(x * reach * 3, y * reach, 2.0))
    canvas.paint(rows, columns, depth, shade.astype(np.float32), tint)


def _tint(rng: np.random.Generator) -> Floats:
    return rng.uniform(0.45, 1.0, 3).astype(np.float32)


def _things(canvas: _Canvas, rng: np.random.Generator, options: SceneOptions, floor: float, spread: float, reach: tuple[float, float]) -> None:
    """Boxes and cylinders that stand on the floor, anywhere in view."""
    for _ in range(int(rng.integers(options.objects[0], options.objects[1] + 1))):
        z = float(np.exp(rng.uniform(*np.log(reach))))
        x = float(rng.uniform(-spread, spread))
        tint = _tint(rng)
        if rng.random() < 0.65:
            half = rng.uniform(0.3, 1.0, 3).astype(np.float32) * np.array([1.1, 0.9, 2.0] if options.kind == "street" else [0.6, 0.5, 0.5], np.float32)
            _box(canvas, options.focal, np.array([x, floor - half[1], z], np.float32), half, float(rng.uniform(-0.6, 0.6)), tint)
        else:
            wide, tall = (rng.uniform(0.08, 0.35), rng.uniform(2, 6)) if options.kind == "street" else (rng.uniform(0.05, 0.3), rng.uniform(0.4, 1.6))
            _cylinder(canvas, options.focal, np.array([x, floor, z], np.float32), float(wide), float(tall), tint)


def render(seed: int, options: SceneOptions | None = None) -> Frame:
    """One frame.

    Args:
        seed: which one, at least 0.
        options: what is drawn, see `SceneOptions`.

    Returns:
        `Frame`: image ``H x W x 3`` in 8 bits and exact depth ``H x W`` in metres.

    >>> frame = render(0, SceneOptions(height=48, width=64))
    >>> frame.image.shape, frame.depth.shape, bool((frame.depth >= 0).all())
    ((48, 64, 3), (48, 64), True)
    """
    options = options or SceneOptions()
    rng = np.random.default_rng([0x6E616E, seed])
    height, width = options.height, options.width
    rows, columns = np.arange(height, dtype=np.float32) + 0.5, np.arange(width, dtype=np.float32) + 0.5
    pitch = np.float32(rng.uniform(-0.02, 0.02))
    x = np.broadcast_to((columns - width / 2) / np.float32(options.focal), (height, width))
    y = np.broadcast_to(((rows - height * 0.45) / np.float32(options.focal) + pitch)[:, None], (height, width))
    canvas = _Canvas(x, y, np.full((height, width), np.inf, np.float32), np.zeros((height, width, 3), np.float32), rng.random((_TILES, _TILES), np.float32))
    if options.kind == "street":
        eye = float(rng.uniform(1.3, 1.9))
        _plane(canvas, "y", eye, _tint(rng) * 0.6, 1.0, 0.9)
        for side in (-1, 1):
            if rng.random() < 0.7:
                for z in np.cumsum(rng.uniform(8, 22, 4)):
                    half = np.array([3.0, rng.uniform(2.5, 7), rng.uniform(3, 7)], np.float32)
                    _box(canvas, options.focal, np.array([side * rng.uniform(7, 13), eye - half[1], z], np.float32), half, 0.0, _tint(rng))
        if rng.random() < 0.5:
            half = np.array([30, rng.uniform(3, 9), 1], np.float32)
            _box(canvas, options.focal, np.array([0, eye - half[1], rng.uniform(45, 110)], np.float32), half, float(rng.uniform(-0.2, 0.2)), _tint(rng))
        _things(canvas, rng, options, eye, 6.0, (4.0, 60.0))
        fog, sky = 140.0, np.array([0.75, 0.83, 0.95], np.float32)
    else:
        eye, above = float(rng.uniform(1.0, 1.7)), float(rng.uniform(0.8, 1.6))
        far, left, right = float(rng.uniform(2.5, 9)), float(rng.uniform(1.2, 4)), float(rng.uniform(1.2, 4))
        for axis, offset, light in (("y", eye, 0.8), ("y", -above, 1.0), ("x", -left, 0.85), ("x", right, 0.75), ("z", far, 0.9)):
            _plane(canvas, axis, offset, _tint(rng), 2.0, light)
        _things(canvas, rng, options, eye, min(left, right), (0.9, max(1.0, far - 0.4)))
        fog, sky = 30.0, np.array([0.2, 0.2, 0.2], np.float32)
    seen = np.isfinite(canvas.depth) & (canvas.depth < 1000)
    depth = np.where(seen, canvas.depth, np.float32(0))
    haze = np.where(seen, np.exp(-depth / np.float32(fog)), np.float32(0))[..., None]
    colour = canvas.colour * haze + sky * (1 - haze)
    colour = colour * np.float32(rng.uniform(0.8, 1.1)) + rng.standard_normal((height, width, 1), np.float32) * np.float32(0.015)
    return Frame((np.clip(colour, 0, 1) * 255).astype(np.uint8), depth)


def sense(depth: Floats, sensor: Sensor, seed: int) -> Floats:
    """What a sensor measures of an exact depth.

    Args:
        depth: ``H x W`` in metres, 0 where there is nothing.
        sensor: see `Sensor`.
        seed: which rays return nothing.

    Returns:
        ``H x W``: the exact depth where it was measured, 0 elsewhere.
    """
    rng = np.random.default_rng([0x73656E, seed])
    there = (depth >= sensor.min_range) & (depth <= sensor.max_range)
    height = depth.shape[0]
    if sensor.kind == "lidar":
        rows = np.unique(np.linspace(sensor.top * height, height - 1, sensor.lines).astype(int))
        scanned = np.zeros_like(there)
        scanned[rows] = rng.random((len(rows), depth.shape[1]), np.float32) < sensor.keep
        there &= scanned
    elif sensor.kind == "kinect":
        step = np.maximum(np.abs(np.diff(depth, axis=0, prepend=depth[:1])), np.abs(np.diff(depth, axis=1, prepend=depth[:, :1])))
        doubtful = step > 0.03 * np.maximum(depth, 1e-3)
        there &= ~doubtful | (rng.random(depth.shape, np.float32) < sensor.keep * 0.2)
    return np.where(there, depth, np.float32(0))
