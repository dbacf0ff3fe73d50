"""Small folders in the true formats of the depth datasets, written by this project's own code from its procedural scenes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from nanopsy.depth.encodings import KITTI_PNG, MILLIMETRES, TUM_PNG, Encoding, write_pfm, write_png16
from nanopsy.depth.scenes import SceneOptions, Sensor, render, sense


def pair(seed: int = 0, height: int = 48, width: int = 64, kind: str = "street") -> tuple[np.ndarray, np.ndarray]:
    """A picture and sparse depth."""
    frame = render(seed, SceneOptions(kind, height, width))
    return frame.image, sense(frame.depth, Sensor("lidar", lines=12, max_range=60.0), seed)


def save(path: Path, image: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image).save(path)


def depth_png(path: Path, depth: np.ndarray, encoding: Encoding) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_png16(path, depth, encoding)


def kitti(root: Path) -> Path:
    """Two annotated frames of 375 x 1242, and a third line without annotation; returns the split file."""
    lines = []
    for number in (5, 9):
        image, depth = pair(number, 375, 1242)
        name = f"2011_09_26/2011_09_26_drive_0002_sync/image_02/data/{number:010d}.png"
        truth = f"2011_09_26_drive_0002_sync/proj_depth/groundtruth/image_02/{number:010d}.png"
        save(root / name, image)
        depth_png(root / ("" if number == 5 else "val") / truth, depth, KITTI_PNG)
        lines.append(f"{name} {truth} 721.5377")
    lines.append(f"{name} None 721.5377")
    split = root / "eigen.txt"
    split.write_text("\n".join(lines) + "\n")
    return split


POINTS = np.array([[10, 0, 0, 0.5], [20, 2, -1, 0.1], [20.4, 2.04, -1.02, 0.1], [-5, 0, 0, 0.3], [8, -1, 0.5, 0.2]], np.float32)
"""x forward, y left, z up; the third lies behind the second on its ray, the fourth behind the scanner."""
INTRINSICS = np.array([[50.0, 0, 32, 0], [0, 50.0, 24, 0], [0, 0, 1, 0]])
TO_CAMERA = np.array([[0, -1, 0, 0], [0, 0, -1, 0], [1, 0, 0, 0]], float)


def numbers(matrix: np.ndarray) -> str:
    return " ".join(f"{value:.6e}" for value in np.asarray(matrix).ravel())


def kitti_object(root: Path) -> None:
    image, _ = pair(1)
    save(root / "image_2" / "000000.png", image)
    (root / "velodyne").mkdir(parents=True)
    POINTS.tofile(root / "velodyne" / "000000.bin")
    (root / "calib").mkdir()
    (root / "calib" / "000000.txt").write_text(
        f"P0: {numbers(INTRINSICS)}\nP2: {numbers(INTRINSICS)}\nR0_rect: {numbers(np.eye(3))}\nTr_velo_to_cam: {numbers(TO_CAMERA)}\n\n"
    )


def kitti_raw(root: Path) -> None:
    drive = root / "2011_09_26" / "2011_09_26_drive_0001_sync"
    image, _ = pair(1)
    save(drive / "image_02" / "data" / "0000000000.png", image)
    (drive / "velodyne_points" / "data").mkdir(parents=True)
    POINTS.tofile(drive / "velodyne_points" / "data" / "0000000000.bin")
    (root / "2011_09_26" / "calib_cam_to_cam.txt").write_text(
        f"calib_time: 09-Jan-2012 13:57:47\nR_rect_00: {numbers(np.eye(3))}\nP_rect_02: {numbers(INTRINSICS)}\n"
    )
    (root / "2011_09_26" / "calib_velo_to_cam.txt").write_text(f"calib_time: 15-Mar-2012\nR: {numbers(TO_CAMERA[:, :3])}\nT: {numbers(TO_CAMERA[:, 3])}\n")


def nyu(root: Path) -> Path:
    image, depth = pair(3, 480, 640, "room")
    save(root / "kitchen_0028b" / "rgb_00045.jpg", image)
    depth_png(root / "kitchen_0028b" / "sync_depth_00045.png", depth, MILLIMETRES)
    split = root / "train.txt"
    split.write_text("/kitchen_0028b/rgb_00045.jpg /kitchen_0028b/sync_depth_00045.png 518.8579\n")
    return split


def nyu_labelled(file: Path) -> np.ndarray:
    """Three frames of 480 x 640 (here 6 x 8) with MATLAB's reversed axes; returns the depths N x H x W."""
    import h5py

    rng = np.random.default_rng(0)
    depths = rng.uniform(1, 9, (3, 6, 8)).astype(np.float32)
    with h5py.File(file, "w", userblock_size=512) as store:
        store["images"] = rng.integers(0, 255, (3, 3, 8, 6), np.uint8)
        store["depths"] = depths.transpose(0, 2, 1)
        store["rawDepths"] = np.where(depths > 5, 0, depths).transpose(0, 2, 1)
    return depths


def ddad(root: Path) -> None:
    """One scene of DGP: a scanner that turns a quarter to the camera, and moved 1 m between the two exposures."""
    scene = root / "000000"
    image, _ = pair(2)
    save(scene / "rgb" / "CAMERA_01" / "1.png", image)
    (scene / "point_cloud" / "LIDAR").mkdir(parents=True)
    np.savez(scene / "point_cloud" / "LIDAR" / "1.npz", data=POINTS)
    flat = {"qw": 1.0, "qx": 0.0, "qy": 0.0, "qz": 0.0}
    # camera to world: x right = -y, y down = -z, z forward = x
    turned = {"qw": 0.5, "qx": -0.5, "qy": 0.5, "qz": -0.5}

    def datum(kind: str, name: str, filename: str, rotation: dict[str, float], x: float) -> dict[str, object]:
        return {
            "id": {"index": "0", "log": "", "name": name, "timestamp": "2019-01-01T00:00:00Z"},
            "key": f"{name}-key",
            "datum": {kind: {"filename": filename, "pose": {"rotation": rotation, "translation": {"x": x, "y": 0.0, "z": 0.0}}}},
        }

    (scene / "scene_abc.json").write_text(
        json.dumps(
            {
                "name": "abc",
                "data": [
                    datum("point_cloud", "LIDAR", "point_cloud/LIDAR/1.npz", flat, 100.0),
                    datum("image", "CAMERA_01", "rgb/CAMERA_01/1.png", turned, 101.0),
                ],
                "samples": [{"calibration_key": "cal", "datum_keys": ["LIDAR-key", "CAMERA_01-key"], "id": {"name": ""}}],
            }
        )
    )
    (scene / "calibration").mkdir()
    k = {"fx": 50.0, "fy": 50.0, "cx": 32.0, "cy": 24.0, "skew": 0.0}
    (scene / "calibration" / "cal.json").write_text(json.dumps({"names": ["LIDAR", "CAMERA_01"], "intrinsics": [dict.fromkeys(k, 0.0), k], "extrinsics": []}))
    (root / "ddad.json").write_text(json.dumps({"scene_splits": {"0": {"filenames": ["000000/scene_abc.json"]}, "1": {"filenames": []}}}))


def argoverse(root: Path) -> np.ndarray:
    """One picture in the release's two archives; returns the disparity in pixels."""
    image, _ = pair(4)
    log = "5ab2697b-6e3e-3454-a36a-aba2c6f27818"
    save(root / "rectified_stereo_images_v1.1" / "train" / log / "stereo_front_left_rect" / "stereo_front_left_rect_315978406032859416.jpg", image)
    disparity = np.zeros((48, 64), np.float32)
    disparity[10, 20], disparity[30, 40] = 109.5, 21.25
    depth_png(
        root / "disparity_maps_v1.1" / "train" / log / "stereo_front_left_rect_disparity" / "disparity_315978406032859416.png",
        disparity,
        KITTI_PNG,
    )
    depth_png(
        root
        / "disparity_maps_v1.1"
        / "train"
        / log
        / "stereo_front_left_rect_objects_disparity"
        / "stereo_front_left_rect_objects_disparity_315978406032859416.png",
        disparity * 0,
        KITTI_PNG,
    )
    cameras = [("left", 3660.4, [1.6, 0.15, 1.36]), ("right", 3634.2, [1.6, -0.15, 1.36]), ("left_rect", 3894.0, [0, 0, 0]), ("right_rect", 3894.0, [0, 0, 0])]
    entries = [
        {"key": f"image_raw_stereo_front_{name}", "value": {"focal_length_x_px_": f, "vehicle_SE3_camera_": {"translation": place}}}
        for name, f, place in cameras
    ]
    (root / "rectified_stereo_images_v1.1" / "train" / log / "vehicle_calibration_stereo_info.json").write_text(json.dumps({"camera_data_": entries}))
    return disparity


def driving_stereo(root: Path) -> np.ndarray:
    image, depth = pair(6)
    name = "2018-07-09-16-11-56_2018-07-09-16-11-56-702"
    save(root / "test-left-image" / "left-image-half-size" / f"{name}.jpg", image)
    depth_png(root / "test-depth-map" / "depth-map-half-size" / f"{name}.png", depth, KITTI_PNG)
    save(root / "left-image-full-size" / f"{name}.jpg", np.repeat(np.repeat(image, 2, 0), 2, 1))
    depth_png(root / "depth-map-full-size" / f"{name}.png", np.repeat(np.repeat(depth, 2, 0), 2, 1), KITTI_PNG)
    return depth


def tum(root: Path) -> np.ndarray:
    image, depth = pair(7, kind="room")
    save(root / "rgb" / "1.031.png", image)
    save(root / "rgb" / "9.000.png", image)
    depth_png(root / "depth" / "1.040.png", depth, TUM_PNG)
    depth_png(root / "depth" / "1.080.png", depth * 0, TUM_PNG)
    (root / "rgb.txt").write_text("# color images\n# timestamp filename\n1.031 rgb/1.031.png\n9.000 rgb/9.000.png\n")
    (root / "depth.txt").write_text("# depth maps\n1.040 depth/1.040.png\n1.080 depth/1.080.png\n")
    return depth


def diode(root: Path) -> np.ndarray:
    image, depth = pair(8, kind="room")
    scan = root / "indoors" / "scene_00019" / "scan_00183"
    save(scan / "00019_00183_indoors_000_010.png", image)
    np.save(scan / "00019_00183_indoors_000_010_depth.npy", np.where(depth > 0, depth, np.nan).astype(np.float32)[..., None])
    np.save(scan / "00019_00183_indoors_000_010_depth_mask.npy", (depth > 0).astype(np.float32))
    return depth


def middlebury(root: Path) -> np.ndarray:
    image, _ = pair(9)
    disparity = np.full((48, 64), 40.0, np.float32)
    disparity[0, :], disparity[-1, 5] = np.inf, 20.0
    save(root / "Motorcycle" / "im0.png", image)
    write_pfm(root / "Motorcycle" / "disp0.pfm", disparity)
    (root / "Motorcycle" / "calib.txt").write_text(
        "cam0=[994.978 0 311.193; 0 994.978 254.877; 0 0 1]\ncam1=[1 0 0; 0 1 0; 0 0 1]\ndoffs=32.778\nbaseline=193.001\nwidth=64\nheight=48\n"
    )
    return disparity
