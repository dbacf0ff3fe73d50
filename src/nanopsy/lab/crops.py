"""How many valid pixels a random crop holds: counted exactly over every position, by integral images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanopsy.depth.encodings import DataError

__all__ = ["CropCounts", "count_crops"]


@dataclass(frozen=True, slots=True)
class CropCounts:
    """Over all positions of an ``height x width`` crop in some maps, each map weighing the same."""

    height: int
    width: int
    empty: float
    """Probability of 0 valid pixels."""
    one: float
    """Of exactly 1."""
    few: float
    """Of at most 5."""
    least: int
    median: float


def crop_sums(valid: NDArray[np.bool_], height: int, width: int) -> NDArray[np.int64]:
    """The number of valid pixels of every crop.

    Raises:
        DataError: a map smaller than the crop.
    """
    if valid.shape[0] < height or valid.shape[1] < width:
        raise DataError(f"a map of {valid.shape[0]} x {valid.shape[1]} for crops of {height} x {width}", why="no crop fits", do="choose a smaller crop")
    total = np.zeros((valid.shape[0] + 1, valid.shape[1] + 1), np.int64)
    total[1:, 1:] = valid.astype(np.int64).cumsum(0).cumsum(1)
    found: NDArray[np.int64] = total[height:, width:] - total[:-height, width:] - total[height:, :-width] + total[:-height, :-width]
    return found


def count_crops(depths: list[NDArray[np.float32]], height: int, width: int, *, min_depth: float = 1e-3, max_depth: float = 80.0) -> CropCounts:
    """`CropCounts` of depth maps in metres; a pixel is valid if min_depth < depth < max_depth."""
    empty, one, few, medians, least = [], [], [], [], []
    for depth in depths:
        sums = crop_sums((depth > min_depth) & (depth < max_depth), height, width)
        empty.append(float((sums == 0).mean()))
        one.append(float((sums == 1).mean()))
        few.append(float((sums <= 5).mean()))
        medians.append(float(np.median(sums)))
        least.append(int(sums.min()))
    if not empty:
        raise DataError("no depth maps", why="there is nothing to count", do="pass at least one")
    return CropCounts(height, width, float(np.mean(empty)), float(np.mean(one)), float(np.mean(few)), min(least), float(np.median(medians)))
