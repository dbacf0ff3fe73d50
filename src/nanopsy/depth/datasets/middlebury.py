"""Middlebury stereo 2014: disparities in PFM files."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nanopsy.depth.encodings import DataError, depth_from_disparity, read_image, read_lines, read_pfm
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame


class Middlebury(DepthDataset):
    """``root/SCENE/im0.png``, ``disp0.pfm`` (or ``disp0GT.pfm``) and ``calib.txt``; unknown disparities are infinite.

    Args:
        root: the folder of the scenes.
        max_depth: the depth cap in metres.

    depth = baseline * f / (disparity + doffs), the baseline is in millimetres. Source: Scharstein et al. 2014.
    """

    title = "Middlebury 2014"

    def __init__(self, root: str | os.PathLike[str], max_depth: float = 20.0) -> None:
        self.root = Path(root)
        self.protocol = Protocol(max_depth=max_depth)
        self.scenes = sorted(path.parent for path in self.root.glob("*/calib.txt"))
        if not self.scenes:
            raise DataError("no scenes were found", where=str(self.root), why="expected: SCENE/calib.txt, im0.png, disp0.pfm", do="check root")

    def __len__(self) -> int:
        return len(self.scenes)

    @staticmethod
    def calibration(file: Path) -> tuple[float, float, float]:
        """(focal in pixels, baseline in metres, doffs in pixels)."""
        table = dict(line.split("=", 1) for line in read_lines(file, "key=value on each line") if "=" in line)
        try:
            focal = float(re.split(r"[\s;]+", table["cam0"].strip().lstrip("["))[0])
            return focal, float(table["baseline"]) / 1000, float(table["doffs"])
        except (KeyError, ValueError) as error:
            raise DataError(
                f"no usable {error}", where=str(file), why="expected: cam0=[f 0 cx; …], doffs=, baseline= (millimetres)", do="check calib.txt"
            ) from None

    def load(self, index: int) -> RawFrame:
        scene = self.scenes[index]
        focal, baseline, offset = self.calibration(scene / "calib.txt")
        file = next((scene / name for name in ("disp0.pfm", "disp0GT.pfm") if (scene / name).exists()), scene / "disp0.pfm")
        return RawFrame(read_image(scene / "im0.png"), depth_from_disparity(read_pfm(file), focal, baseline, offset), scene.name)
