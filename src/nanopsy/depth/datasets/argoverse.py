"""Argoverse 1 stereo: disparities of the rectified front-left camera."""

from __future__ import annotations

import json
import os
from pathlib import Path

from nanopsy.depth.encodings import DataError, Encoding, depth_from_disparity, read_image, read_png16
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame


class Argoverse1(DepthDataset):
    """``stereo_front_left_rect_<time>.jpg`` with ``disparity_<time>.png``.

    Args:
        root: a folder that holds both, at any depth: the release's ``rectified_stereo_images_v1.1/<split>/<log>/stereo_front_left_rect/`` and
            ``disparity_maps_v1.1/<split>/<log>/stereo_front_left_rect_disparity/``, or the two side by side. Disparities of objects alone are left out.
        calibration: a ``vehicle_calibration_stereo_info.json``; None: the one nearest to each picture, in its folder or above.
        max_depth: the depth cap in metres (150 in iDisc, 200 in the paper's toolbox).

    Disparity: 16-bit PNG, pixels = value / 256, 0 = none; about 1 % of the pixels have one. depth = f B / disparity with the focal length of the *rectified*
    left camera (the raw one's, 6 % smaller, stands beside it in the same file) and the distance between the two raw cameras. Source: Chang et al. 2019.
    """

    title = "Argoverse 1 stereo"

    def __init__(self, root: str | os.PathLike[str], calibration: str | os.PathLike[str] | None = None, max_depth: float = 80.0) -> None:
        self.root = Path(root)
        self.protocol = Protocol(max_depth=max_depth)
        self.calibration = Path(calibration) if calibration is not None else None
        pictures = {path.stem.rpartition("_")[2]: path for path in sorted(self.root.rglob("stereo_front_left_rect_*.jpg"))}
        self.pairs = []
        for path in sorted(self.root.rglob("*disparity*.png")):
            stamp = path.stem.rpartition("_")[2]
            if not any("objects" in part for part in path.parts) and stamp in pictures:
                self.pairs.append((pictures[stamp], path))
        if not self.pairs:
            raise DataError(
                "no picture has a disparity of its time",
                where=str(self.root),
                why=f"{len(pictures)} pictures; expected: stereo_front_left_rect_<time>.jpg and …disparity…_<time>.png",
                do="check root: it must hold both archives",
            )

    def __len__(self) -> int:
        return len(self.pairs)

    def _camera(self, picture: Path) -> tuple[float, float]:
        file = self.calibration
        if file is None:
            above = [folder / "vehicle_calibration_stereo_info.json" for folder in picture.parents if folder.is_relative_to(self.root)]
            file = next((path for path in above if path.exists()), None)
        if file is None:
            raise DataError(
                "vehicle_calibration_stereo_info.json is missing",
                where=str(picture.parent),
                why="depth = focal * baseline / disparity, and both differ between logs",
                do="unpack it beside the pictures, or pass calibration=",
            )
        try:
            cameras = {entry["key"]: entry["value"] for entry in json.loads(file.read_text())["camera_data_"]}
            left, right = (cameras[f"image_raw_stereo_front_{side}"]["vehicle_SE3_camera_"]["translation"] for side in ("left", "right"))
            baseline = sum((a - b) ** 2 for a, b in zip(left, right, strict=True)) ** 0.5
            return float(cameras["image_raw_stereo_front_left_rect"]["focal_length_x_px_"]), baseline
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise DataError(
                f"no stereo calibration in {file.name}: {error}",
                where=str(file),
                why="depth = focal * baseline / disparity",
                do="fetch the calibration again, or take it away",
            ) from None

    def load(self, index: int) -> RawFrame:
        picture, file = self.pairs[index]
        disparity = read_png16(file, Encoding(256.0))
        return RawFrame(read_image(picture), depth_from_disparity(disparity, *self._camera(picture)), str(picture.relative_to(self.root)))
