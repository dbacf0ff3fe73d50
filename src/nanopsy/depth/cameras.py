"""Points into pictures: project a scan through a camera to a sparse depth map, and the calibration files that say how."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanopsy.depth.encodings import DataError, read_lines

__all__ = ["kitti_calibration", "pose_matrix", "project_points"]

Doubles = NDArray[np.float64]


def project_points(points: NDArray[np.floating], projection: Doubles, height: int, width: int) -> NDArray[np.float32]:
    """A depth map from points; where several fall on one pixel the nearest is kept.

    Args:
        points: ``N x 3`` in the frame that ``projection`` takes.
        projection: ``3 x 4``: intrinsics times rigid motion. Its last column may shift the principal ray (KITTI's P2), so the depth is the third
            homogeneous coordinate, not z of the input frame.
        height, width: of the picture in pixels. Pixel centres lie at whole numbers.

    Returns:
        ``H x W`` float32 metres, 0 where no point falls.
    """
    homogeneous = np.concatenate([points[:, :3].astype(np.float64), np.ones((len(points), 1))], 1) @ projection.T
    homogeneous = homogeneous[homogeneous[:, 2] > 0]
    depth = homogeneous[:, 2]
    u, v = np.round(homogeneous[:, 0] / depth).astype(np.int64), np.round(homogeneous[:, 1] / depth).astype(np.int64)
    inside = (u >= 0) & (u < width) & (v >= 0) & (v < height)
    u, v, depth = u[inside], v[inside], depth[inside].astype(np.float32)
    sparse = np.full((height, width), np.inf, np.float32)
    np.minimum.at(sparse, (v, u), depth)
    return np.where(np.isfinite(sparse), sparse, np.float32(0))


def kitti_calibration(path: str | os.PathLike[str]) -> dict[str, Doubles]:
    """A KITTI calibration file: ``key: numbers`` on each line; lines without numbers (dates) are left out."""
    table: dict[str, Doubles] = {}
    for line in read_lines(path, "a KITTI calibration file, 'key: numbers' on each line"):
        key, _, rest = line.partition(":")
        try:
            table[key.strip()] = np.array([float(word) for word in rest.split()])
        except ValueError:
            continue
    if not table:
        raise DataError(f"{Path(path).name} holds no calibration", where=str(path), why="expected: 'key: numbers' on each line", do="check the file")
    return table


def pose_matrix(rotation: dict[str, float], translation: dict[str, float]) -> Doubles:
    """``4 x 4`` from a quaternion (qw, qx, qy, qz) and a translation (x, y, z), as DGP writes a pose."""
    w, x, y, z = (float(rotation[key]) for key in ("qw", "qx", "qy", "qz"))
    norm = np.sqrt(w * w + x * x + y * y + z * z)
    if not norm > 0:
        raise DataError("a pose with a zero quaternion", why="it is no rotation", do="check the calibration file")
    w, x, y, z = w / norm, x / norm, y / norm, z / norm
    pose = np.eye(4)
    pose[:3, :3] = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    pose[:3, 3] = [float(translation[key]) for key in ("x", "y", "z")]
    return pose
