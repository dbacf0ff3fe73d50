"""Depth files as they lie on disk: 16-bit PNG and PGM, PFM, NumPy arrays, disparities. Everything comes out as float32 metres, 0 where nothing was measured.

A file that is missing, truncated or of another kind is refused with a `DataError` that names it and says what was expected.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from nanopsy.depth.writing import atomically
from nanopsy.stable._arguments import ArgumentError

__all__ = [
    "KITTI_PNG",
    "MILLIMETRES",
    "SUN_RGBD",
    "TUM_PNG",
    "DataError",
    "Encoding",
    "depth_from_disparity",
    "read_depth",
    "read_image",
    "read_lines",
    "read_npy",
    "read_npz",
    "read_pfm",
    "read_png16",
    "read_points",
    "write_pfm",
    "write_png16",
]

Floats = NDArray[np.float32]


class DataError(ArgumentError):
    """A file of a dataset that is missing, truncated, or not what its format says."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """How an integer in a depth image becomes metres.

    >>> KITTI_PNG.metres(np.array([[0, 256, 2560]], np.uint16)).tolist()
    [[0.0, 1.0, 10.0]]
    """

    scale: float
    """Units per metre: 256 (KITTI), 1000 (millimetres: NYU, DDAD exports), 5000 (TUM RGB-D), 10000 (tenths of millimetres)."""
    invalid: tuple[int, ...] = (0,)
    """Raw values that mean "not measured". Some exports use 65535."""
    rotated: bool = False
    """Raw 16 bits rotated left by 3 (SUN RGB-D)."""
    swapped: bool = False
    """Bytes in the other order (the raw NYU dump's PGM files)."""

    def metres(self, raw: NDArray[Any]) -> Floats:
        """``H x W`` unsigned integers to float32 metres."""
        if self.swapped:
            raw = raw.astype(np.uint16).byteswap()
        invalid = np.isin(raw, self.invalid)
        if self.rotated:
            raw = raw.astype(np.uint16)
            raw = (raw >> 3) | (raw << 13)
        depth = (raw.astype(np.float64) / self.scale).astype(np.float32)
        depth[invalid] = 0
        return depth

    def raw(self, depth: Floats) -> NDArray[np.uint16]:
        """The inverse of `metres`, for depths that 16 bits hold; larger ones become the largest."""
        units: NDArray[np.uint16] = np.clip(np.round(depth.astype(np.float64) * self.scale), 0, 65535).astype(np.uint16)
        if self.rotated:
            units = ((units << 3) | (units >> 13)).astype(np.uint16)
        return units.byteswap() if self.swapped else units


KITTI_PNG = Encoding(256.0)
MILLIMETRES = Encoding(1000.0)
TUM_PNG = Encoding(5000.0)
SUN_RGBD = Encoding(1000.0, rotated=True)


def _opened(path: Path, expected: str, read: Callable[[Path], Any]) -> Any:
    """What ``read`` makes of the file, or the sentence that says why it cannot."""
    try:
        if path.stat().st_size == 0:
            raise DataError(
                f"{path.name} is empty", where=str(path), why="an interrupted download or copy leaves such files", do=f"fetch it again; expected: {expected}"
            )
        return read(path)
    except FileNotFoundError:
        raise DataError(
            f"{path.name} is missing",
            where=str(path),
            why=f"expected there: {expected}",
            do="check the root folder and that the archive was unpacked completely",
        ) from None
    except DataError:
        raise
    except (OSError, UnidentifiedImageError, SyntaxError, ValueError, KeyError, EOFError) as error:
        raise DataError(
            f"{path.name} cannot be read: {error}",
            where=str(path),
            why=f"expected there: {expected}",
            do="the file is truncated or of another format; fetch it again",
        ) from None


def read_image(path: str | os.PathLike[str]) -> NDArray[np.uint8]:
    """A colour picture, ``H x W x 3``, 8 bits; grey ones are repeated.

    Raises:
        DataError: missing, truncated, or not a picture.
    """

    def load(file: Path) -> NDArray[np.uint8]:
        with Image.open(file) as picture:
            return np.asarray(picture.convert("RGB"))

    array: NDArray[np.uint8] = _opened(Path(path), "a colour image (PNG or JPEG)", load)
    return array


def read_png16(path: str | os.PathLike[str], encoding: Encoding) -> Floats:
    """A depth image of 16-bit (or 8-bit) integers, PNG or PGM, as metres.

    Raises:
        DataError: missing, truncated, or a colour image: an 8-bit picture *of* a depth map is not a depth map.
    """

    def load(file: Path) -> Floats:
        with Image.open(file) as picture:
            if picture.mode not in ("I;16", "I;16B", "I", "L"):
                raise DataError(
                    f"{file.name} has mode {picture.mode}",
                    where=str(file),
                    why="depth is one channel of integers; a colour picture of it has lost the metres",
                    do="use the dataset's depth archive, not its visualisation",
                )
            return encoding.metres(np.asarray(picture))

    depth: Floats = _opened(Path(path), f"a one-channel 16-bit image, metres = value / {encoding.scale:g}", load)
    return depth


def read_pfm(path: str | os.PathLike[str]) -> Floats:
    """A PFM file (Middlebury), ``H x W`` float32, rows from top to bottom; infinities are kept: they mean "unknown" there.

    Raises:
        DataError: missing, truncated or not PFM.
    """

    def load(file: Path) -> Floats:
        with file.open("rb") as stream:
            kind = stream.readline().strip()
            if kind != b"Pf":
                raise ValueError(f"the first line is {kind[:20]!r}, not 'Pf' (one channel)")
            size = re.fullmatch(rb"\s*(\d+)\s+(\d+)\s*", stream.readline())
            if size is None:
                raise ValueError("the second line does not hold width and height")
            width, height = int(size[1]), int(size[2])
            scale = float(stream.readline())
            data = stream.read(4 * width * height + 1)
        if len(data) < 4 * width * height:
            raise ValueError(f"{len(data):,} bytes of pixels, {4 * width * height:,} were announced")
        values = np.frombuffer(data, "<f4" if scale < 0 else ">f4", count=width * height)
        return values.reshape(height, width)[::-1].astype(np.float32)

    array: Floats = _opened(Path(path), "a PFM file with one channel", load)
    return array


def read_npy(path: str | os.PathLike[str]) -> NDArray[Any]:
    """A NumPy array; arrays of Python objects (pickles) are refused."""
    array: NDArray[Any] = _opened(Path(path), "a NumPy array (.npy)", lambda file: np.load(file, allow_pickle=False))
    return array


def read_npz(path: str | os.PathLike[str], key: str) -> NDArray[Any]:
    """One array of a NumPy archive; arrays of Python objects (pickles) are refused."""

    def load(file: Path) -> NDArray[Any]:
        with np.load(file, allow_pickle=False) as archive:
            if key not in archive.files:
                raise ValueError(f"it holds {', '.join(archive.files) or 'nothing'}, not {key!r}")
            return np.asarray(archive[key])

    array: NDArray[Any] = _opened(Path(path), f"a NumPy archive (.npz) with an array {key!r}", load)
    return array


def read_points(path: str | os.PathLike[str], columns: int = 4) -> Floats:
    """A velodyne scan: float32 rows of ``columns`` numbers (x, y, z, reflectance)."""

    def load(file: Path) -> Floats:
        values = np.fromfile(file, np.float32)
        if values.size % columns:
            raise ValueError(f"{values.size:,} numbers are no multiple of {columns}")
        return values.reshape(-1, columns)

    points: Floats = _opened(Path(path), f"float32 rows of {columns}", load)
    return points


def read_lines(path: str | os.PathLike[str], expected: str) -> list[str]:
    """The lines of a text file that are not empty, stripped."""
    text: str = _opened(Path(path), expected, lambda file: file.read_text(encoding="utf-8"))
    return [line.strip() for line in text.splitlines() if line.strip()]


def read_depth(path: str | os.PathLike[str], encoding: Encoding) -> Floats:
    """Depth by the file's ending: .png and .pgm through ``encoding``, .pfm and .npy in metres; what is not finite or not positive becomes 0."""
    ending = Path(path).suffix.lower()
    if ending in (".png", ".pgm"):
        return read_png16(path, encoding)
    if ending not in (".pfm", ".npy"):
        raise DataError(f"a depth file with the ending {ending!r}", where=str(path), why="the ending says how to read it", do="use .png, .pgm, .pfm or .npy")
    depth = np.squeeze(read_pfm(path) if ending == ".pfm" else read_npy(path)).astype(np.float32)
    return np.where(np.isfinite(depth) & (depth > 0), depth, np.float32(0))


def depth_from_disparity(disparity: Floats, focal: float, baseline: float, offset: float = 0.0) -> Floats:
    """focal * baseline / (disparity + offset), 0 where the disparity is 0, negative or not finite.

    Args:
        disparity: pixels.
        focal: pixels.
        baseline: metres.
        offset: ``doffs`` of Middlebury: difference of the principal points, in pixels.
    """
    known = np.isfinite(disparity) & (disparity > 0) & (disparity + offset > 0)
    return np.where(known, np.float32(focal * baseline) / np.where(known, disparity + np.float32(offset), np.float32(1)), np.float32(0)).astype(np.float32)


def write_png16(path: str | os.PathLike[str], depth: Floats, encoding: Encoding) -> None:
    """Write metres as a 16-bit PNG, atomically."""
    atomically(path, lambda file: Image.fromarray(encoding.raw(depth)).save(file, format="PNG"))


def write_pfm(path: str | os.PathLike[str], values: Floats) -> None:
    """Write ``H x W`` float32 as a little-endian PFM, atomically."""
    header = f"Pf\n{values.shape[1]} {values.shape[0]}\n-1.0\n".encode()
    atomically(path, lambda file: file.write(header + values[::-1].astype("<f4").tobytes()))
