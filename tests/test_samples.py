"""Real frames load, hold the depths that their encodings say, and train. They are not part of the project (``NANOPSY_SAMPLES`` names their folder); without them this skips."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nanopsy.depth.datasets import open_dataset
from nanopsy.depth.samples import DepthDataset

ROOT = Path(__file__).parent.parent
SAMPLES = Path(os.environ.get("NANOPSY_SAMPLES", Path(__file__).parents[2] / "shared" / "data"))
pytestmark = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample frames are not here")


def options(name: str, folder: Path) -> dict[str, object]:
    """Where the frames of a dataset lie; split files are written as that dataset's are."""
    if name == "kitti":
        (folder / "split.txt").write_text("rgb/0000000005.png depth/0000000005.png 721.5377\nrgb/0000000050.png depth/0000000050.png 721.5377\n")
        return {"root": SAMPLES / "kitti_depth", "split": folder / "split.txt"}
    if name == "nyu":
        (folder / "split.txt").write_text("".join(f"/rgb/rgb_{n}.jpg /depth/sync_depth_{n}.png 518.8579\n" for n in ("00000", "00050", "00100")))
        return {"root": SAMPLES / "nyuv2", "split": folder / "split.txt"}
    if name == "ddad":
        return {"root": SAMPLES / "ddad_dgp", "cameras": "all", "present_only": "true"}
    if name == "argoverse":
        return {"root": SAMPLES / "argoverse1_stereo", "max_depth": 150}
    return {"root": SAMPLES / {"kitti-velodyne": "kitti_object", "middlebury": "middlebury2014"}[name]}


@pytest.mark.parametrize(
    ("name", "valid", "depths"),
    [
        ("kitti", (0.15, 0.25), (4, 90)),
        ("kitti-velodyne", (0.03, 0.05), (3, 80)),
        ("nyu", (0.6, 0.8), (0.5, 10)),
        ("ddad", (0.0015, 0.006), (2, 230)),
        ("argoverse", (0.005, 0.01), (5, 200)),
        ("middlebury", (0.95, 1.0), (1.5, 6)),
    ],
)
def test_real_frames(name: str, valid: tuple[float, float], depths: tuple[float, float], tmp_path: Path) -> None:
    data: DepthDataset = open_dataset(name, **{key: True if value == "true" else value for key, value in options(name, tmp_path).items()})
    for index in range(len(data)):
        depth = data.frame(index).depth
        seen = depth[depth > 0]
        assert valid[0] <= seen.size / depth.size <= valid[1]
        assert depths[0] <= seen.min() <= seen.max() <= depths[1]


@pytest.mark.parametrize(("name", "file", "scale"), [("kitti", "kitti_depth/depth/0000000005.png", 256), ("nyu", "nyuv2/depth/sync_depth_00000.png", 1000)])
def test_depth_is_the_raw_number_over_the_scale(name: str, file: str, scale: int, tmp_path: Path) -> None:
    depth = open_dataset(name, **options(name, tmp_path)).frame(0).depth
    with Image.open(SAMPLES / file) as picture:
        raw = np.asarray(picture).astype(np.float64)
    if name == "kitti":
        raw = raw[raw.shape[0] - 352 :, (raw.shape[1] - 1216) // 2 : (raw.shape[1] - 1216) // 2 + 1216]
    assert np.abs(depth - raw / scale).max() < 1e-5


@pytest.mark.parametrize("name", ["kitti", "nyu", "ddad", "argoverse"])
def test_real_frames_train(name: str, tmp_path: Path) -> None:
    words = [f"{key}={value}" for key, value in options(name, tmp_path).items()]
    command = [sys.executable, str(ROOT / "examples" / "depth" / "train_on_frames.py"), name, *words, "--steps", "40", "--crop", "96", "192"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
