"""Paired augmentation: whatever happens to the picture happens to the depth, and no depth is ever made up.

Depth is moved, never interpolated: flips, crops and nearest-neighbour rotation keep values; a resize keeps measured points and divides the depth by the
zoom, because a picture enlarged s times is what a camera sees of a world s times nearer.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nanopsy.depth.encodings import DataError
from nanopsy.stable import _arguments as arguments

__all__ = ["Augment", "resize_image", "resize_sparse", "rotate_pair"]

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


def resize_image(image: Bytes, height: int, width: int) -> Bytes:
    """``H x W x 3`` to another size, bilinear with antialiasing."""
    return np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BILINEAR))


def resize_sparse(depth: Floats, height: int, width: int) -> Floats:
    """``H x W`` to another size by moving each measured point; of several that meet in one pixel the nearest is kept.

    Every value of the result is a value of the input: nothing is interpolated (bilinear resizing mixes the zeros in: of a 4 % dense map 19 % of the
    "valid" pixels came out below the true minimum).
    """
    rows, columns = np.nonzero(depth > 0)
    values = depth[rows, columns]
    v = np.minimum(((rows + 0.5) * (height / depth.shape[0])).astype(np.int64), height - 1)
    u = np.minimum(((columns + 0.5) * (width / depth.shape[1])).astype(np.int64), width - 1)
    moved = np.full((height, width), np.inf, np.float32)
    np.minimum.at(moved, (v, u), values)
    if height > depth.shape[0] or width > depth.shape[1]:  # enlarging leaves gaps between the pixels of dense regions; the nearest source pixel fills them
        source = depth[(np.arange(height) * depth.shape[0] // height)[:, None], np.arange(width) * depth.shape[1] // width]
        moved = np.where(np.isfinite(moved), moved, np.where(source > 0, source, np.float32(np.inf)))
    return np.where(np.isfinite(moved), moved, np.float32(0))


def rotate_pair(image: Bytes, depth: Floats, degrees: float) -> tuple[Bytes, Floats]:
    """Turn both about the centre: the picture bilinearly, the depth by the nearest pixel; what comes from outside has no depth."""
    turned = Image.fromarray(image).rotate(degrees, Image.Resampling.BILINEAR)
    return np.asarray(turned), np.asarray(Image.fromarray(depth).rotate(degrees, Image.Resampling.NEAREST))


@dataclass(frozen=True, slots=True)
class Augment:
    """What happens to a training pair; the defaults change nothing.

    >>> Augment(crop=(4, 6))(np.zeros((8, 8, 3), np.uint8), np.ones((8, 8), np.float32), np.random.default_rng(0))[1].shape
    (4, 6)
    """

    crop: tuple[int, int] | None = None
    """Height and width in pixels of a random crop; None keeps the frame."""
    flip: float = 0.0
    """Probability of a left-right flip."""
    rotate: float = 0.0
    """Largest rotation in degrees (BTS: 2.5 outdoors, 2.5 to 5 indoors)."""
    resize: tuple[float, float] = (1.0, 1.0)
    """Least and greatest random zoom; depth is divided by it."""
    colour: tuple[float, float] = (1.0, 1.0)
    """Least and greatest factor of each colour channel ([0.9, 1.1] in BTS)."""
    gamma: tuple[float, float] = (1.0, 1.0)
    brightness: tuple[float, float] = (1.0, 1.0)
    centre: bool = False
    """Take the middle instead of a random crop (evaluation)."""

    def __post_init__(self) -> None:
        where = "nanopsy.depth.Augment"
        arguments.number(where, "flip", self.flip, least=0, most=1)
        arguments.number(where, "rotate", self.rotate, least=0, most=180)
        for name in ("resize", "colour", "gamma", "brightness"):
            low, high = getattr(self, name)
            arguments.number(where, f"{name}[0]", low, above=0)
            arguments.number(where, f"{name}[1]", high, least=low)
        for side in self.crop or ():
            arguments.whole(where, "crop", side, least=1)

    @classmethod
    def bts(cls, crop: tuple[int, int] | None, degrees: float = 1.0) -> Augment:
        """The recipe of BTS and most that followed: rotation, random crop, flip, gamma, brightness and colour in [0.9, 1.1]."""
        return cls(crop=crop, flip=0.5, rotate=degrees, colour=(0.9, 1.1), gamma=(0.9, 1.1), brightness=(0.9, 1.1))

    def __call__(self, image: Bytes, depth: Floats, rng: np.random.Generator) -> tuple[Bytes, Floats]:
        """One pair, changed with the generator's numbers.

        Raises:
            DataError: a frame smaller than the crop.
        """
        if self.resize != (1.0, 1.0):
            zoom = float(rng.uniform(*self.resize))
            size = max(round(depth.shape[0] * zoom), 1), max(round(depth.shape[1] * zoom), 1)
            image, depth = resize_image(image, *size), resize_sparse(depth, *size) / np.float32(zoom)
        if self.rotate:
            image, depth = rotate_pair(image, depth, float(rng.uniform(-self.rotate, self.rotate)))
        if self.crop is not None:
            image, depth = self._cropped(image, depth, rng)
        if self.flip and rng.random() < self.flip:
            image, depth = image[:, ::-1], depth[:, ::-1]
        if (self.colour, self.gamma, self.brightness) != ((1.0, 1.0),) * 3:
            colours = image.astype(np.float32) / 255
            colours = colours ** np.float32(rng.uniform(*self.gamma)) * np.float32(rng.uniform(*self.brightness))
            colours = colours * rng.uniform(*self.colour, 3).astype(np.float32)
            image = (np.clip(colours, 0, 1) * 255).astype(np.uint8)
        return image, depth

    def _cropped(self, image: Bytes, depth: Floats, rng: np.random.Generator) -> tuple[Bytes, Floats]:
        assert self.crop is not None
        height, width = self.crop
        spare = depth.shape[0] - height, depth.shape[1] - width
        if min(spare) < 0:
            raise DataError(
                f"a frame of {depth.shape[0]} x {depth.shape[1]} for a crop of {height} x {width}",
                where="nanopsy.depth.Augment",
                why="padding would invent pixels",
                do="choose a smaller crop, or a larger zoom",
            )
        top, left = (spare[0] // 2, spare[1] // 2) if self.centre else (int(rng.integers(spare[0] + 1)), int(rng.integers(spare[1] + 1)))
        return image[top : top + height, left : left + width], depth[top : top + height, left : left + width]
