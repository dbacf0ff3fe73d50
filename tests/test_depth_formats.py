"""Depth files and datasets: every encoding, every loader on files in its true format, and what is said of files that are not right."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

import depth_files
from nanopsy.depth import encodings
from nanopsy.depth.cameras import pose_matrix, project_points
from nanopsy.depth.datasets import DATASETS, open_dataset
from nanopsy.depth.encodings import KITTI_PNG, MILLIMETRES, SUN_RGBD, TUM_PNG, DataError, Encoding

# -- encodings -----------------------------------------------------------------------------------


@given(arrays.arrays(np.uint16, (3, 4)), st.sampled_from([KITTI_PNG, MILLIMETRES, TUM_PNG, SUN_RGBD, Encoding(256.0, swapped=True), Encoding(10_000.0)]))
def test_metres_and_back_is_the_identity(raw: np.ndarray, encoding: Encoding) -> None:
    assert (encoding.raw(encoding.metres(raw)) == raw).all()


@pytest.mark.parametrize(
    ("encoding", "raw", "metres"),
    [
        (KITTI_PNG, 2560, 10.0),
        (KITTI_PNG, 1, 0.00390625),
        (MILLIMETRES, 1500, 1.5),
        (TUM_PNG, 5000, 1.0),
        (Encoding(10_000.0), 12_345, 1.2345),
        (SUN_RGBD, (1500 << 3) & 0xFFFF, 1.5),
        (Encoding(1000.0, swapped=True), 0xDC05, 1.5),
        (Encoding(1000.0, (0, 65535)), 65535, 0.0),
        (KITTI_PNG, 0, 0.0),
    ],
)
def test_each_encoding_by_hand(encoding: Encoding, raw: int, metres: float) -> None:
    assert encoding.metres(np.array([[raw]], np.uint16))[0, 0] == np.float32(metres)


def test_pfm_is_bottom_up_and_says_its_byte_order(tmp_path: Path) -> None:
    rows = [[1.0, 2.0], [3.0, np.inf]]
    for name, order, scale in (("little", "<", "-1.0"), ("big", ">", "1.0")):
        file = tmp_path / f"{name}.pfm"
        file.write_bytes(f"Pf\n2 2\n{scale}\n".encode() + struct.pack(f"{order}4f", *rows[1], *rows[0]))
        assert encodings.read_pfm(file).tolist() == rows
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    encodings.write_pfm(tmp_path / "own.pfm", values)
    assert (encodings.read_pfm(tmp_path / "own.pfm") == values).all()


def test_depth_from_disparity_leaves_unknown_pixels_out() -> None:
    disparity = np.array([[0.0, -3.0, np.inf, np.nan, 10.0]], np.float32)
    depth = encodings.depth_from_disparity(disparity, 1000.0, 0.5)
    assert depth.tolist() == [[0.0, 0.0, 0.0, 0.0, 50.0]]


@pytest.mark.parametrize(
    ("name", "content", "reader", "said"),
    [
        ("absent.png", None, lambda path: encodings.read_png16(path, KITTI_PNG), "is missing"),
        ("empty.png", b"", lambda path: encodings.read_png16(path, KITTI_PNG), "is empty"),
        ("cut.png", "cut", lambda path: encodings.read_png16(path, KITTI_PNG), "cannot be read"),
        ("text.png", b"not a picture", encodings.read_image, "cannot be read"),
        ("colour.png", "colour", lambda path: encodings.read_png16(path, KITTI_PNG), "has mode RGB"),
        ("short.pfm", b"Pf\n4 4\n-1.0\n1234", encodings.read_pfm, "64 were announced"),
        ("three.pfm", b"PF\n4 4\n-1.0\n", encodings.read_pfm, "cannot be read"),
        ("size.pfm", b"Pf\nfour four\n-1.0\n", encodings.read_pfm, "width and height"),
        ("odd.bin", b"1234" * 5, encodings.read_points, "no multiple of 4"),
        ("bad.npy", b"\x93NUMPY garbage", encodings.read_npy, "cannot be read"),
        ("pickle.npy", "pickle", encodings.read_npy, "cannot be read"),
        ("depth.tif", b"x", lambda path: encodings.read_depth(path, KITTI_PNG), "ending '.tif'"),
    ],
)
def test_files_that_are_not_right_are_named(tmp_path: Path, name: str, content: bytes | str | None, reader: object, said: str) -> None:
    file = tmp_path / name
    if content == "cut":
        encodings.write_png16(file, np.ones((64, 64), np.float32) * np.arange(64, dtype=np.float32), KITTI_PNG)
        file.write_bytes(file.read_bytes()[:60])
    elif content == "colour":
        Image.new("RGB", (4, 4)).save(file)
    elif content == "pickle":
        np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif isinstance(content, bytes):
        file.write_bytes(content)
    with pytest.raises(DataError, match=said) as refused:
        reader(file)  # type: ignore[operator]
    assert name in refused.value.render()
    assert refused.value.do


def test_an_archive_without_its_array_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "scan.npz", other=np.zeros(3))
    with pytest.raises(DataError, match="not 'data'"):
        encodings.read_npz(tmp_path / "scan.npz", "data")


# -- projection ----------------------------------------------------------------------------------

SEEN = {(24, 32): 10.0, (26, 27): 20.0, (21, 38): 8.0}
"""Row, column -> depth of `depth_files.POINTS` in its camera."""


def seen_in(depth: np.ndarray) -> dict[tuple[int, int], float]:
    return {(int(row), int(column)): float(depth[row, column]) for row, column in zip(*np.nonzero(depth), strict=True)}


def test_points_are_projected_nearest_first() -> None:
    depth = project_points(depth_files.POINTS, depth_files.INTRINSICS @ np.vstack([depth_files.TO_CAMERA, [0, 0, 0, 1]]), 48, 64)
    assert {place: pytest.approx(value) for place, value in SEEN.items()} == seen_in(depth)


def test_the_last_column_of_p2_moves_the_depth() -> None:
    projection = depth_files.INTRINSICS.copy()
    projection[2, 3] = 0.5
    assert project_points(np.array([[0.0, 0.0, 10.0]]), projection, 48, 64).max() == np.float32(10.5)


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda q: sum(v * v for v in q) > 1e-3))
def test_a_pose_is_a_rotation(quaternion: list[float]) -> None:
    pose = pose_matrix(dict(zip(("qw", "qx", "qy", "qz"), quaternion, strict=True)), {"x": 1, "y": 2, "z": 3})
    assert pose[:3, :3] @ pose[:3, :3].T == pytest.approx(np.eye(3), abs=1e-12)
    assert np.linalg.det(pose[:3, :3]) == pytest.approx(1)
    assert pose[:3, 3].tolist() == [1, 2, 3]


# -- datasets ------------------------------------------------------------------------------------


def test_kitti_as_bts_lists_it(tmp_path: Path) -> None:
    split = depth_files.kitti(tmp_path)
    data = open_dataset("kitti", root=tmp_path, split=split)
    assert (len(data), data.without_depth) == (2, 1)  # type: ignore[attr-defined]
    frame = data.frame(0)
    assert frame.depth.shape == (352, 1216)
    _, exact = depth_files.pair(5, 375, 1242)
    cropped = exact[375 - 352 :, (1242 - 1216) // 2 : (1242 - 1216) // 2 + 1216]
    assert np.abs(frame.depth - cropped).max() <= 1 / 512 + 1e-6
    assert ((frame.depth > 0) == (cropped > 1 / 512)).all()
    assert open_dataset("kitti", root=tmp_path, split=split, kb_crop=False).frame(1).depth.shape == (375, 1242)


@pytest.mark.parametrize("layout", [depth_files.kitti_object, depth_files.kitti_raw])
def test_kitti_velodyne(tmp_path: Path, layout: object) -> None:
    layout(tmp_path)  # type: ignore[operator]
    frame = open_dataset("kitti-velodyne", root=tmp_path).frame(0)
    assert {place: pytest.approx(value) for place, value in SEEN.items()} == seen_in(frame.depth)


def test_kitti_velodyne_without_a_matrix(tmp_path: Path) -> None:
    depth_files.kitti_object(tmp_path)
    (tmp_path / "calib" / "000000.txt").write_text("P2: 1 2 3\n")
    with pytest.raises(DataError, match="no P2 with 12 numbers"):
        open_dataset("kitti-velodyne", root=tmp_path).frame(0)


def test_nyu_as_bts_lists_it(tmp_path: Path) -> None:
    frame = open_dataset("nyu", root=tmp_path, split=depth_files.nyu(tmp_path)).frame(0)
    _, exact = depth_files.pair(3, 480, 640, "room")
    assert np.abs(frame.depth - exact).max() <= 5.1e-4


def test_nyu_labelled(tmp_path: Path) -> None:
    depths = depth_files.nyu_labelled(tmp_path / "nyu.mat")
    (tmp_path / "test.txt").write_text("3\n1\n")
    data = open_dataset("nyu-labelled", root=tmp_path / "nyu.mat", split=tmp_path / "test.txt")
    assert [data.frame(k).name for k in range(len(data))] == ["labelled 3", "labelled 1"]
    assert (data.frame(0).depth == depths[2]).all()
    assert data.frame(0).image.shape == (6, 8, 3)
    assert (open_dataset("nyu-labelled", root=tmp_path / "nyu.mat", raw=True).frame(1).depth == np.where(depths[1] > 5, 0, depths[1])).all()
    (tmp_path / "test.txt").write_text("4\n")
    with pytest.raises(DataError, match="outside 1 to 3"):
        open_dataset("nyu-labelled", root=tmp_path / "nyu.mat", split=tmp_path / "test.txt")
    from scipy.io import savemat

    savemat(tmp_path / "splits.mat", {"trainNdxs": np.array([[2]]), "testNdxs": np.array([[3], [1]])})
    official = {subset: open_dataset("nyu-labelled", root=tmp_path / "nyu.mat", split=tmp_path / "splits.mat", subset=subset) for subset in ("train", "test")}
    assert [each.frame(0).name for each in official.values()] == ["labelled 2", "labelled 3"]
    with pytest.raises(DataError, match="holds no valNdxs"):
        open_dataset("nyu-labelled", root=tmp_path / "nyu.mat", split=tmp_path / "splits.mat", subset="val")
    (tmp_path / "bad.mat").write_bytes(b"MATLAB 5.0")
    with pytest.raises(DataError, match="cannot be read"):
        open_dataset("nyu-labelled", root=tmp_path / "bad.mat")


def test_ddad(tmp_path: Path) -> None:
    depth_files.ddad(tmp_path)
    frame = open_dataset("ddad", root=tmp_path).frame(0)
    # the camera stands 1 m further on than the scanner
    assert sorted(seen_in(frame.depth).values()) == pytest.approx([7.0, 9.0, 19.0], abs=1e-5)
    assert len(open_dataset("ddad", root=tmp_path / "000000")) == 1
    with pytest.raises(DataError, match="CAMERA_01"):
        open_dataset("ddad", root=tmp_path, cameras="CAMERA_09")
    (tmp_path / "000000" / "rgb" / "CAMERA_01" / "1.png").unlink()
    with pytest.raises(DataError, match="is missing"):
        open_dataset("ddad", root=tmp_path).frame(0)
    with pytest.raises(DataError, match="no picture"):
        open_dataset("ddad", root=tmp_path, present_only=True)


def test_argoverse(tmp_path: Path) -> None:
    depth_files.argoverse(tmp_path)
    frame = open_dataset("argoverse", root=tmp_path).frame(0)
    assert seen_in(frame.depth) == {(10, 20): pytest.approx(3894.0 * 0.3 / 109.5, rel=1e-6), (30, 40): pytest.approx(3894.0 * 0.3 / 21.25, rel=1e-6)}
    next(tmp_path.rglob("vehicle_calibration_stereo_info.json")).unlink()
    with pytest.raises(DataError, match="is missing"):
        open_dataset("argoverse", root=tmp_path).frame(0)


def test_driving_stereo(tmp_path: Path) -> None:
    exact = depth_files.driving_stereo(tmp_path)
    data = open_dataset("drivingstereo", root=tmp_path)
    assert [data.frame(k).depth.shape for k in range(len(data))] == [(48, 64), (96, 128)]
    assert np.abs(data.frame(0).depth - exact).max() <= 1 / 512 + 1e-6


def test_tum_pairs_by_time(tmp_path: Path) -> None:
    exact = depth_files.tum(tmp_path)
    data = open_dataset("tum", root=tmp_path)
    assert len(data) == 1
    assert np.abs(data.frame(0).depth - exact).max() <= 1.1e-4


def test_diode(tmp_path: Path) -> None:
    exact = depth_files.diode(tmp_path)
    assert (open_dataset("diode", root=tmp_path).frame(0).depth == exact).all()


def test_middlebury(tmp_path: Path) -> None:
    disparity = depth_files.middlebury(tmp_path)
    depth = open_dataset("middlebury", root=tmp_path).frame(0).depth
    assert (depth[0] == 0).all()
    assert depth[-1, 5] == pytest.approx(994.978 * 0.193001 / (20 + 32.778), rel=1e-6)
    assert np.isfinite(disparity[1:]).all()


@pytest.mark.parametrize("ending", [".png", ".npy", ".pfm"])
def test_a_plain_folder(tmp_path: Path, ending: str) -> None:
    image, depth = depth_files.pair(0)
    depth_files.save(tmp_path / "image" / "a.jpg", image)
    (tmp_path / "depth").mkdir()
    if ending == ".png":
        encodings.write_png16(tmp_path / "depth" / "a.png", depth, MILLIMETRES)
    elif ending == ".npy":
        np.save(tmp_path / "depth" / "a.npy", depth)
    else:
        encodings.write_pfm(tmp_path / "depth" / "a.pfm", depth)
    assert np.abs(open_dataset("folder", root=tmp_path).frame(0).depth - depth).max() <= 5.1e-4
    depth_files.save(tmp_path / "image" / "b.jpg", image)
    with pytest.raises(DataError, match=r"1 of 2 pictures have no depth map, the first is b\.jpg"):
        open_dataset("folder", root=tmp_path)


def test_a_depth_map_of_another_size(tmp_path: Path) -> None:
    image, depth = depth_files.pair(0)
    depth_files.save(tmp_path / "image" / "a.jpg", image)
    (tmp_path / "depth").mkdir()
    encodings.write_png16(tmp_path / "depth" / "a.png", depth[::2, ::2], MILLIMETRES)
    with pytest.raises(DataError, match="image 48 x 64, depth 24 x 32"):
        open_dataset("folder", root=tmp_path).frame(0)


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in ("scenes", "nyu-labelled")])
def test_an_empty_root_is_a_sentence(tmp_path: Path, name: str) -> None:
    options = {"root": tmp_path} | ({"split": tmp_path / "none.txt"} if name in ("kitti", "nyu") else {})
    with pytest.raises(DataError) as refused:
        open_dataset(name, **options)
    assert refused.value.do
    assert str(tmp_path) in refused.value.render()


def test_names_and_options_are_checked() -> None:
    with pytest.raises(DataError, match="did you mean 'kitti'"):
        open_dataset("kiti")
    with pytest.raises(DataError, match="did you mean 'height'"):
        open_dataset("scenes", heigth=3)
    with pytest.raises(DataError, match="needs root, split"):
        open_dataset("kitti")


def test_split_files_that_are_not() -> None:
    with pytest.raises(DataError, match="is missing"):
        open_dataset("kitti", root=".", split="no/such/split.txt")
