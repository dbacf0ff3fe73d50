"""TUM RGB-D: pictures and depth maps that are matched by time."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from nanopsy.depth.encodings import TUM_PNG, DataError, read_image, read_lines, read_png16
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame


def _stamped(file: Path) -> list[tuple[float, str]]:
    entries = []
    for line in read_lines(file, "'timestamp filename' on each line"):
        if line.startswith("#"):
            continue
        words = line.split()
        try:
            entries.append((float(words[0]), words[1]))
        except (ValueError, IndexError):
            raise DataError(f"a line is {line!r}", where=str(file), why="expected: 'timestamp filename'", do="check the file") from None
    return sorted(entries)


class TumRgbd(DepthDataset):
    """One sequence: ``rgb.txt`` and ``depth.txt`` list stamped files; each picture takes the depth map nearest in time.

    Args:
        root: the folder of the sequence.
        tolerance: largest difference in seconds; pictures without a depth map within it are left out.

    Depth: 16-bit PNG, metres = value / 5000, 0 = none. Source: Sturm et al. 2012.
    """

    title = "TUM RGB-D"

    def __init__(self, root: str | os.PathLike[str], tolerance: float = 0.02) -> None:
        self.root = Path(root)
        self.protocol = Protocol(max_depth=10.0)
        pictures, depths = _stamped(self.root / "rgb.txt"), _stamped(self.root / "depth.txt")
        times = np.array([time for time, _ in depths])
        self.pairs: list[tuple[str, str]] = []
        for time, picture in pictures if len(depths) else []:
            nearest = int(np.abs(times - time).argmin())
            if abs(times[nearest] - time) <= tolerance:
                self.pairs.append((picture, depths[nearest][1]))
        if not self.pairs:
            raise DataError(
                f"no picture has a depth map within {tolerance:g} s",
                where=str(self.root),
                why=f"{len(pictures)} pictures, {len(depths)} depth maps",
                do="check rgb.txt and depth.txt",
            )

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self, index: int) -> RawFrame:
        picture, depth = self.pairs[index]
        return RawFrame(read_image(self.root / picture), read_png16(self.root / depth, TUM_PNG), picture)
