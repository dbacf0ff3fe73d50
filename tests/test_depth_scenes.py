"""Procedural scenes, sensors and augmentation: exact, seeded, and never a made-up depth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanopsy.depth.augment import Augment, resize_image, resize_sparse, rotate_pair
from nanopsy.depth.datasets import Rendered
from nanopsy.depth.encodings import DataError
from nanopsy.depth.samples import SampleSet
from nanopsy.depth.scenes import SceneOptions, Sensor, _box, _Canvas, _cylinder, render, sense
from nanopsy.stable import ArgumentError


@pytest.mark.parametrize("kind", ["street", "room"])
def test_a_frame_depends_on_its_seed_alone(kind: str) -> None:
    options = SceneOptions(kind, 48, 64)
    first, again, other = render(3, options), render(3, options), render(4, options)
    assert (first.image == again.image).all()
    assert (first.depth == again.depth).all()
    assert (first.depth != other.depth).any()
    assert first.depth.dtype == np.float32
    assert np.isfinite(first.depth).all()


def test_the_ground_is_a_plane() -> None:
    """Below the horizon of an empty street, depth times slope is the eye's height in every row."""
    options = SceneOptions("street", 96, 128, objects=(0, 0))
    for seed in range(20):
        depth = render(seed, options).depth
        rows = np.arange(96) + 0.5
        bottom = depth[-8:, 56:72]
        if not (bottom > 0).all() or np.ptp(bottom, axis=1).max() > 1e-4:
            continue  # a house front reaches down here
        slope = (rows[-8:] - 96 * 0.45) / options.focal
        inverse = 1 / bottom[:, 0]
        fitted = np.polyfit(slope, inverse, 1)  # 1/depth = (slope + pitch) / eye
        assert 1.3 <= 1 / fitted[0] <= 1.9
        assert np.abs(np.polyval(fitted, slope) - inverse).max() < 1e-5
        return
    pytest.fail("no seed shows the ground")


def _canvas(height: int = 40, width: int = 60, focal: float = 50.0) -> tuple[_Canvas, float]:
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    x, y = (x + 0.5 - width / 2) / focal, (y + 0.5 - height * 0.45) / focal
    return _Canvas(x, y, np.full((height, width), np.inf, np.float32), np.zeros((height, width, 3), np.float32), np.ones((64, 64), np.float32)), focal


@given(st.floats(-0.7, 0.7), st.floats(4, 20), st.floats(-1, 1))
def test_every_hit_of_a_box_lies_on_its_surface(yaw: float, z: float, x: float) -> None:
    canvas, focal = _canvas()
    centre, half = np.array([x, 0.2, z], np.float32), np.array([1.0, 0.8, 1.5], np.float32)
    _box(canvas, focal, centre, half, yaw, np.ones(3, np.float32))
    hit = np.isfinite(canvas.depth)
    assert hit.any()
    points = np.stack([canvas.x * canvas.depth, canvas.y * canvas.depth, canvas.depth], -1)[hit] - centre
    c, s = np.cos(yaw), np.sin(yaw)
    local = np.stack([c * points[:, 0] - s * points[:, 2], points[:, 1], s * points[:, 0] + c * points[:, 2]], -1)
    assert np.abs((np.abs(local) / half).max(1) - 1).max() < 1e-3


@given(st.floats(3, 20), st.floats(-1, 1), st.floats(0.1, 0.8))
def test_every_hit_of_a_cylinder_lies_on_its_surface(z: float, x: float, radius: float) -> None:
    canvas, focal = _canvas()
    foot = np.array([x, 0.6, z], np.float32)
    _cylinder(canvas, focal, foot, radius, 2.0, np.ones(3, np.float32))
    hit = np.isfinite(canvas.depth)
    across = np.hypot(canvas.x * canvas.depth - x, canvas.depth - z)[hit]
    assert np.abs(across - radius).max(initial=0) < 2e-3 * max(1, z)
    level = (canvas.y * canvas.depth)[hit]
    assert ((level <= 0.6 + 1e-4) & (level >= -1.4 - 1e-4)).all()


@pytest.mark.parametrize("sensor", [Sensor("lidar", lines=8), Sensor("kinect"), Sensor("dense"), Sensor("lidar", lines=8, keep=0.05, max_range=20)])
def test_a_sensor_measures_or_does_not(sensor: Sensor) -> None:
    depth = render(1, SceneOptions("street", 48, 64)).depth
    seen = sense(depth, sensor, 5)
    assert ((seen == 0) | (seen == depth)).all()
    assert (seen[seen > 0] <= sensor.max_range).all()
    assert (seen == sense(depth, sensor, 5)).all()
    assert (seen > 0).any()


def test_a_lidar_scans_lines() -> None:
    seen = sense(np.full((100, 50), 10, np.float32), Sensor("lidar", lines=7, keep=1.0, top=0.5), 0)
    assert (np.flatnonzero(seen.any(1)).min(), int((seen > 0).any(1).sum())) == (50, 7)


def test_options_that_make_no_sense_are_refused() -> None:
    for make in (lambda: SceneOptions("garden"), lambda: SceneOptions(height=2), lambda: Sensor("radar"), lambda: Sensor(keep=1.5), lambda: Augment(flip=2)):
        with pytest.raises(ArgumentError):
            make()
    with pytest.raises(ArgumentError):
        Augment(resize=(2.0, 1.0))


# -- augmentation --------------------------------------------------------------------------------


def _sparse(seed: int, shape: tuple[int, int] = (20, 30)) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(shape) < 0.1, rng.uniform(1, 80, shape), 0).astype(np.float32)


@given(st.integers(0, 1000), st.integers(4, 45), st.integers(4, 60))
def test_resizing_sparse_depth_makes_no_depth_up(seed: int, height: int, width: int) -> None:
    depth = _sparse(seed)
    small = resize_sparse(depth, height, width)
    assert small.shape == (height, width)
    assert set(small[small > 0].tolist()) <= set(depth[depth > 0].tolist())
    assert (small > 0).any() == (depth > 0).any()


def test_bilinear_resizing_would_make_depth_up() -> None:
    """The twin of the law above: the usual way breaks it."""
    depth = _sparse(0)
    mixed = resize_image(np.repeat(depth[..., None], 3, 2).astype(np.uint8), 10, 15)[..., 0]
    assert not set(mixed[mixed > 0].tolist()) <= set(depth.astype(np.uint8)[depth > 0].tolist())


def test_of_several_points_in_one_pixel_the_nearest_stays() -> None:
    depth = np.zeros((4, 4), np.float32)
    depth[0, 0], depth[1, 1] = 30, 10
    assert resize_sparse(depth, 2, 2).tolist() == [[10, 0], [0, 0]]


@given(st.integers(0, 1000), st.floats(-10, 10))
def test_rotation_moves_depth_and_keeps_values(seed: int, degrees: float) -> None:
    depth = _sparse(seed)
    _, turned = rotate_pair(np.zeros((20, 30, 3), np.uint8), depth, degrees)
    assert set(turned[turned > 0].tolist()) <= set(depth[depth > 0].tolist())


@given(st.integers(0, 10_000))
def test_picture_and_depth_stay_together(seed: int) -> None:
    """A picture that spells its depth still does after crop and flip."""
    depth = np.random.default_rng(seed).integers(1, 255, (24, 32)).astype(np.float32)
    image = np.repeat(depth[..., None], 3, 2).astype(np.uint8)
    cropped, kept = Augment(crop=(10, 12), flip=0.5)(image, depth, np.random.default_rng(seed))
    assert kept.shape == (10, 12)
    assert (cropped[..., 0] == kept).all()


def test_a_zoom_brings_the_world_nearer() -> None:
    depth = np.full((20, 20), 10, np.float32)
    _, near = Augment(resize=(2.0, 2.0))(np.zeros((20, 20, 3), np.uint8), depth, np.random.default_rng(0))
    assert near.shape == (40, 40)
    assert set(near.ravel().tolist()) == {5.0}


def test_a_crop_that_does_not_fit_is_a_sentence() -> None:
    with pytest.raises(DataError, match="20 x 20 for a crop of 30 x 10"):
        Augment(crop=(30, 10))(np.zeros((20, 20, 3), np.uint8), np.zeros((20, 20), np.float32), np.random.default_rng(0))


def test_a_sample_depends_on_seed_epoch_and_index_alone() -> None:
    source = Rendered(4, height=48, width=64)
    make = lambda: SampleSet(source, Augment.bts((32, 32)), seed=5)  # noqa: E731
    one, two = make(), make()
    _ = two[0, 1], two[3, 2]
    first, second = one[2, 3], two[2, 3]
    assert (first.image == second.image).all()
    assert (first.depth == second.depth).all()
    assert (one[3, 3].image != first.image).any()
    assert (SampleSet(source, Augment.bts((32, 32)), seed=6)[2, 3].image != first.image).any()
    assert first.image.shape == (3, 32, 32)
    assert 0 <= float(first.image.min()) <= float(first.image.max()) <= 1
