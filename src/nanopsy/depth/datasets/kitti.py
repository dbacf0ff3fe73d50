"""KITTI: the Eigen split with annotated depth as BTS lists it, and raw velodyne scans."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from nanopsy.depth.cameras import Doubles, kitti_calibration, project_points
from nanopsy.depth.crops import KB_HEIGHT, KB_WIDTH
from nanopsy.depth.encodings import KITTI_PNG, DataError, read_image, read_lines, read_png16, read_points
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame

_LINE = "'IMAGE DEPTH FOCAL' on each line, DEPTH may be None"


def kb_cropped(frame: RawFrame) -> RawFrame:
    """The KITTI benchmark crop: the last 352 rows, the middle 1216 columns."""
    height, width = frame.depth.shape
    if height < KB_HEIGHT or width < KB_WIDTH:
        raise DataError(
            f"a frame of {height} x {width}",
            where=frame.name,
            why=f"the KITTI benchmark crop is {KB_HEIGHT} x {KB_WIDTH}",
            do="pass full frames, or kb_crop=False",
        )
    rows, columns = slice(height - KB_HEIGHT, height), slice((width - KB_WIDTH) // 2, (width - KB_WIDTH) // 2 + KB_WIDTH)
    return RawFrame(frame.image[rows, columns], frame.depth[rows, columns], frame.name)


class KittiEigen(DepthDataset):
    """Pairs of a split file in the manner of BTS: ``2011_09_26/…/image_02/data/0000000005.jpg 2011_…/proj_depth/…/0000000005.png 721.5377``.

    Args:
        root: folder of the pictures (the raw data).
        split: the split file.
        depth_root: folder of the annotated depth, or of its ``train`` and ``val`` archives; None: the same as ``root``.
        kb_crop: take the KITTI benchmark crop of each frame.

    Lines whose depth is ``None`` (45 of the 697 test lines have no annotation) are left out and counted in ``without_depth``.

    Depth: 16-bit PNG, metres = value / 256, 0 = none. Source: Uhrig et al. 2017; Eigen et al. 2014.
    """

    title = "KITTI (Eigen split)"

    def __init__(
        self, root: str | os.PathLike[str], split: str | os.PathLike[str], depth_root: str | os.PathLike[str] | None = None, *, kb_crop: bool = True
    ) -> None:
        self.root, self.depth_root, self.kb_crop = Path(root), Path(depth_root if depth_root is not None else root), kb_crop
        self.protocol = Protocol.kitti("kb" if kb_crop else "full")
        self.pairs: list[tuple[str, str]] = []
        self.without_depth = 0
        for number, line in enumerate(read_lines(split, f"a split file, {_LINE}"), 1):
            words = line.split()
            if len(words) < 2:
                raise DataError(f"line {number} is {line!r}", where=str(split), why=f"expected: {_LINE}", do="use a split file in the manner of BTS")
            if words[1] == "None":
                self.without_depth += 1
            else:
                self.pairs.append((words[0].lstrip("/"), words[1].lstrip("/")))
        if not self.pairs:
            raise DataError("no line names a depth map", where=str(split), why=f"expected: {_LINE}", do="use a split file in the manner of BTS")

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self, index: int) -> RawFrame:
        picture, depth = self.pairs[index]
        found = [self.depth_root / part / depth for part in ("", "train", "val") if (self.depth_root / part / depth).exists()]
        frame = RawFrame(read_image(self.root / picture), read_png16(found[0] if found else self.depth_root / depth, KITTI_PNG), picture)
        return kb_cropped(frame) if self.kb_crop else frame


class KittiVelodyne(DepthDataset):
    """Sparse depth from velodyne scans, projected into the left colour camera.

    Two layouts are known: the object benchmark (``image_2/ velodyne/ calib/`` with one calibration file per frame) and raw drives
    (``<date>/calib_cam_to_cam.txt``, ``<date>/<drive>/image_02/data``, ``…/velodyne_points/data``).

    Args:
        root: the folder.
        kb_crop: take the KITTI benchmark crop of each frame.

    A pixel's depth is the third coordinate after P2 R0_rect Tr_velo_to_cam; of several points in one pixel the nearest is kept. Source: Geiger et al. 2013.
    """

    title = "KITTI velodyne"

    def __init__(self, root: str | os.PathLike[str], *, kb_crop: bool = False) -> None:
        self.root, self.kb_crop = Path(root), kb_crop
        self.protocol = Protocol.kitti("kb" if kb_crop else "full")
        self.frames: list[tuple[Path, Path, Path]] = []
        if (self.root / "velodyne").is_dir():
            for scan in sorted((self.root / "velodyne").glob("*.bin")):
                pictures = [self.root / "image_2" / f"{scan.stem}{ending}" for ending in (".png", ".jpg")]
                picture = next((path for path in pictures if path.exists()), pictures[0])
                self.frames.append((picture, scan, self.root / "calib" / f"{scan.stem}.txt"))
        else:
            for scan in sorted(self.root.glob("*/*/velodyne_points/data/*.bin")):
                drive = scan.parents[2]
                pictures = [drive / "image_02" / "data" / f"{scan.stem}{ending}" for ending in (".png", ".jpg")]
                self.frames.append((next((path for path in pictures if path.exists()), pictures[0]), scan, drive.parent))
        if not self.frames:
            raise DataError(
                "no velodyne scans were found",
                where=str(self.root),
                why="expected: velodyne/*.bin, or <date>/<drive>/velodyne_points/data/*.bin",
                do="check root",
            )

    def __len__(self) -> int:
        return len(self.frames)

    @staticmethod
    def _projection(calibration: Path) -> Doubles:
        def matrix(table: dict[str, Doubles], file: Path, key: str, shape: tuple[int, int]) -> Doubles:
            if key not in table or table[key].size != shape[0] * shape[1]:
                raise DataError(
                    f"no {key} with {shape[0] * shape[1]} numbers",
                    where=str(file),
                    why="points cannot be projected without it",
                    do="check the calibration file",
                )
            return table[key].reshape(shape)

        lift, rotate = np.eye(4), np.eye(4)
        if calibration.is_dir():
            camera, scanner = calibration / "calib_cam_to_cam.txt", calibration / "calib_velo_to_cam.txt"
            cameras, scanners = kitti_calibration(camera), kitti_calibration(scanner)
            project = matrix(cameras, camera, "P_rect_02", (3, 4))
            rotate[:3, :3] = matrix(cameras, camera, "R_rect_00", (3, 3))
            lift[:3, :3], lift[:3, 3] = matrix(scanners, scanner, "R", (3, 3)), matrix(scanners, scanner, "T", (3, 1))[:, 0]
        else:
            table = kitti_calibration(calibration)
            project = matrix(table, calibration, "P2", (3, 4))
            rotate[:3, :3] = matrix(table, calibration, "R0_rect", (3, 3))
            lift[:3] = matrix(table, calibration, "Tr_velo_to_cam", (3, 4))
        return project @ rotate @ lift

    def load(self, index: int) -> RawFrame:
        picture, scan, calibration = self.frames[index]
        image = read_image(picture)
        points = read_points(scan)
        points = points[points[:, 0] >= 0]  # behind the scanner nothing is in view
        frame = RawFrame(image, project_points(points, self._projection(calibration), *image.shape[:2]), str(picture.relative_to(self.root)))
        return kb_cropped(frame) if self.kb_crop else frame
