"""DIODE: dense laser scans of rooms and streets."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from nanopsy.depth.encodings import DataError, read_image, read_npy
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame


class Diode(DepthDataset):
    """``root/**/NAME.png`` with ``NAME_depth.npy`` (metres) and ``NAME_depth_mask.npy`` (1 where valid) beside it.

    Args:
        root: for example ``val/indoors``.
        max_depth: the depth cap in metres: 10 indoors, 300 outdoors (the scanner's range is 350).

    Source: Vasiljevic et al. 2019.
    """

    title = "DIODE"

    def __init__(self, root: str | os.PathLike[str], max_depth: float = 10.0) -> None:
        self.root = Path(root)
        self.protocol = Protocol(max_depth=max_depth)
        self.pictures = sorted(path for path in self.root.rglob("*.png") if path.with_name(f"{path.stem}_depth.npy").exists())
        if not self.pictures:
            raise DataError(
                "no pictures with depth were found", where=str(self.root), why="expected: NAME.png and NAME_depth.npy side by side", do="check root"
            )

    def __len__(self) -> int:
        return len(self.pictures)

    def load(self, index: int) -> RawFrame:
        picture = self.pictures[index]
        depth = np.squeeze(read_npy(picture.with_name(f"{picture.stem}_depth.npy"))).astype(np.float32)
        mask = np.squeeze(read_npy(picture.with_name(f"{picture.stem}_depth_mask.npy")))
        if depth.shape != mask.shape:
            raise DataError(
                f"depth {list(depth.shape)}, mask {list(mask.shape)}", where=str(picture), why="they describe the same pixels", do="fetch both again"
            )
        valid = (mask > 0) & np.isfinite(depth) & (depth > 0)
        return RawFrame(read_image(picture), np.where(valid, depth, np.float32(0)), str(picture.relative_to(self.root)))
