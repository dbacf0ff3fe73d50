"""DDAD in TRI's DGP format: scenes as JSON, LiDAR scans projected into each camera."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from nanopsy.depth.cameras import pose_matrix, project_points
from nanopsy.depth.encodings import DataError, read_image, read_npz
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame


def _json(path: Path, expected: str) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path.name} is missing", where=str(path), why=f"expected there: {expected}", do="check root and unpack the archive completely"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} cannot be read: {error}", where=str(path), why=f"expected there: {expected}", do="fetch it again") from None


class DDAD(DepthDataset):
    """Every picture of the chosen cameras, with the LiDAR scan of the same sample projected into it.

    Args:
        root: the folder of ``ddad.json``, or of scene folders (``*/scene_*.json``), or one scene folder.
        split: ``train`` or ``val``: which list of ``ddad.json`` is taken (without that file all scenes are).
        cameras: comma-separated; ``CAMERA_01`` is the front camera. ``all`` takes every camera.
        lidar: name of the scanner.
        max_depth: the depth cap in metres (200 in the benchmark).
        present_only: leave out frames whose picture or scan is not on the disk (a part of the archive); otherwise they are an error when loaded.

    Points go from the scanner to the world by the scanner's pose, then into the camera by its pose at its own exposure, so that the car's motion between the
    two is accounted for. 0.2 to 0.5 % of the pixels of a 1216 x 1936 picture get a depth: the set on which Bessel's correction broke training in
    arXiv 2311.03938. Source: Guizilini et al. 2020; TRI-ML/dgp.
    """

    title = "DDAD"

    def __init__(self, root: str | os.PathLike[str], split: str = "train", cameras: str = "CAMERA_01", lidar: str = "LIDAR", max_depth: float = 200.0, *,
                 present_only: bool = False) -> None:  # fmt: skip
        self.root, self.lidar = Path(root), lidar
        self.protocol = Protocol(max_depth=max_depth)
        wanted = {word.strip() for word in cameras.split(",")}
        self.frames: list[tuple[Path, dict[str, Any], dict[str, Any], str]] = []
        self._calibrations: dict[Path, Any] = {}
        names: set[str] = set()
        for file in self._scenes(split):
            scene = _json(file, "a DGP scene")
            data = {entry["key"]: entry for entry in scene.get("data", [])}
            for sample in scene.get("samples", []):
                entries = {entry["id"]["name"]: entry for key in sample["datum_keys"] if (entry := data.get(key)) is not None}
                names |= {name for name, entry in entries.items() if "image" in entry["datum"]}
                scan = entries.get(lidar)
                if scan is None:
                    continue
                for name, entry in sorted(entries.items()):
                    if "image" in entry["datum"] and (name in wanted or "all" in wanted):
                        self.frames.append((file.parent, entry, scan, sample["calibration_key"]))
        if present_only:
            self.frames = [each for each in self.frames if all((each[0] / name).exists() for name in self._files(*each[1:3]))]
        if not self.frames:
            raise DataError(
                f"no picture of {cameras} has a scan of {lidar}",
                where=str(self.root),
                why=f"cameras seen: {', '.join(sorted(names)) or 'none'}",
                do="check root, cameras= and lidar=",
            )

    @staticmethod
    def _files(entry: dict[str, Any], scan: dict[str, Any]) -> tuple[str, str]:
        return entry["datum"]["image"]["filename"], scan["datum"]["point_cloud"]["filename"]

    def _scenes(self, split: str) -> list[Path]:
        index = self.root / "ddad.json"
        if index.exists():
            splits = _json(index, "the list of scenes").get("scene_splits", {})
            number = {"train": "0", "val": "1", "test": "2"}.get(split, split)
            if number not in splits:
                raise DataError(f"there is no split {split!r}", where=str(index), why=f"it lists {', '.join(splits)}", do="pass train or val")
            return [self.root / name for name in splits[number]["filenames"]]
        return sorted([*self.root.glob("scene_*.json"), *self.root.glob("*/scene_*.json")])

    def __len__(self) -> int:
        return len(self.frames)

    def _intrinsics(self, folder: Path, key: str, camera: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        file = folder / "calibration" / f"{key}.json"
        if file not in self._calibrations:
            self._calibrations[file] = _json(file, "a DGP calibration: names, intrinsics, extrinsics")
        table = self._calibrations[file]
        try:
            k = table["intrinsics"][table["names"].index(camera)]
            return np.array([[k["fx"], k.get("skew", 0.0), k["cx"], 0], [0, k["fy"], k["cy"], 0], [0, 0, 1, 0]], np.float64)
        except (KeyError, ValueError, IndexError):
            raise DataError(
                f"no intrinsics of {camera}", where=str(file), why="points cannot be projected without them", do="fetch the calibration again"
            ) from None

    def load(self, index: int) -> RawFrame:
        folder, entry, scan, key = self.frames[index]
        picture, cloud = entry["datum"]["image"], scan["datum"]["point_cloud"]
        image = read_image(folder / picture["filename"])
        points = read_npz(folder / cloud["filename"], "data")[:, :3]
        to_world, from_camera = pose_matrix(**cloud["pose"]), pose_matrix(**picture["pose"])
        projection = self._intrinsics(folder, key, entry["id"]["name"]) @ np.linalg.inv(from_camera) @ to_world
        finite = points[np.isfinite(points).all(1)]
        return RawFrame(image, project_points(finite, projection, *image.shape[:2]), f"{folder.name}/{picture['filename']}")
