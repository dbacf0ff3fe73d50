"""DrivingStereo: full- or half-resolution pictures with depth in PNG."""

from __future__ import annotations

import os
from pathlib import Path

from nanopsy.depth.encodings import KITTI_PNG, DataError, read_image, read_png16
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame


class DrivingStereo(DepthDataset):
    """``…left-image…/**/NAME.jpg`` with ``…depth-map…/**/NAME.png``, half and full size apart.

    Args:
        root: folder of both (``train-left-image``, ``train-depth-map``, or ``left-image-half-size``, ``depth-map-half-size``), nested as the archives unpack.
        max_depth: the depth cap in metres (80; 200 in the paper's toolbox).

    Depth: 16-bit PNG, metres = value / 256, 0 = none. Source: Yang et al. 2019.
    """

    title = "DrivingStereo"

    def __init__(self, root: str | os.PathLike[str], max_depth: float = 80.0) -> None:
        self.root = Path(root)
        self.protocol = Protocol(max_depth=max_depth)
        pictures: dict[tuple[bool, str], Path] = {}
        depths: dict[tuple[bool, str], Path] = {}
        for path in sorted(self.root.rglob("*")):
            parts = path.relative_to(self.root).parts[:-1]
            into = pictures if any("left-image" in part for part in parts) else depths if any("depth-map" in part for part in parts) else None
            if into is not None and path.suffix.lower() in (".jpg", ".jpeg", ".png"):
                into[any("full-size" in part for part in parts), path.stem] = path
        if not pictures or not depths:
            raise DataError(
                f"{len(pictures)} pictures and {len(depths)} depth maps were found",
                where=str(self.root),
                why="expected: folders named …left-image… and …depth-map… with files of the same names",
                do="unpack both archives into root",
            )
        alone = sorted(key for key in pictures if key not in depths)
        if alone:
            raise DataError(
                f"{len(alone):,} of {len(pictures):,} pictures have no depth map, the first is {alone[0][1]}",
                where=str(self.root),
                why="a picture without depth cannot train",
                do="unpack the depth archive completely",
            )
        self.pairs = [(path, depths[key]) for key, path in sorted(pictures.items())]

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self, index: int) -> RawFrame:
        picture, depth = self.pairs[index]
        return RawFrame(read_image(picture), read_png16(depth, KITTI_PNG), str(picture.relative_to(self.root)))
