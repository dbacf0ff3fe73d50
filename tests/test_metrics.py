"""The depth metrics against their published formulas, their protocols, and what cannot be scored."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from nanopsy.depth.crops import Crop, kb_crop, kb_paste
from nanopsy.depth.metrics import METRICS, DepthMetrics, Protocol, flip_average
from nanopsy.stable import ArgumentError


def published(p: np.ndarray, t: np.ndarray) -> dict[str, float]:
    """The formulas of Eigen et al. 2014 and the KITTI leaderboard, on vectors of valid pixels."""
    ratio = np.maximum(t / p, p / t)
    e = np.log(p) - np.log(t)
    return {
        "abs_rel": np.mean(np.abs(t - p) / t),
        "sq_rel": np.mean((t - p) ** 2 / t),
        "rmse": np.sqrt(np.mean((t - p) ** 2)),
        "rmse_log": np.sqrt(np.mean((np.log(t) - np.log(p)) ** 2)),
        "log10": np.mean(np.abs(np.log10(t) - np.log10(p))),
        "silog": 100 * np.sqrt(np.mean(e**2) - np.mean(e) ** 2),
        **{f"delta{k}": np.mean(ratio < 1.25**k) for k in (1, 2, 3)},
    }


def batch(seed: int = 0, images: int = 3, height: int = 30, width: int = 40) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    target = 100 * torch.rand(images, 1, height, width, generator=g)
    target[torch.rand(target.shape, generator=g) < 0.5] = 0
    return (target + 1) * torch.exp(0.3 * torch.randn(target.shape, generator=g)), target


def test_the_metrics_are_the_published_ones_per_image() -> None:
    p, t = batch()
    metrics = DepthMetrics()
    metrics.update(p[:1], t[:1])
    metrics.update(p[1:], t[1:])
    found = metrics.compute()
    each = []
    for prediction, target in zip(p.double().numpy(), t.double().numpy(), strict=True):
        valid = (target > 1e-3) & (target < 80)
        each.append(published(np.clip(prediction, 1e-3, 80)[valid], target[valid]))
    for name in METRICS:
        assert float(found[name]) == pytest.approx(np.mean([one[name] for one in each]), rel=1e-12), name
    assert int(found["images"]) == 3
    assert int(found["pixels"]) == int(((t > 1e-3) & (t < 80)).sum())
    assert int(found["empty_images"]) == int(found["nonfinite_pixels"]) == 0
    assert metrics.report().count("\n") == 0


def test_silog_of_another_school() -> None:
    p, t = batch(images=1)
    metrics = DepthMetrics(Protocol(silog_lam=0.5, silog_scale=1.0, clip=False))
    metrics.update(p, t)
    valid = (t > 1e-3) & (t < 80)
    e = (p[valid].double().log() - t[valid].double().log()).numpy()
    assert float(metrics.compute()["silog"]) == pytest.approx(np.sqrt(np.mean(e**2) - 0.5 * np.mean(e) ** 2), rel=1e-12)


def test_the_range_is_strict_and_predictions_are_clipped() -> None:
    t = torch.tensor([1e-3, 80.0, 40.0, 20.0]).reshape(1, 1, 2, 2)
    p = torch.tensor([1.0, 1.0, 1000.0, -5.0]).reshape(1, 1, 2, 2)
    metrics = DepthMetrics()
    metrics.update(p, t)
    found = metrics.compute()
    assert int(found["pixels"]) == 2
    assert float(found["abs_rel"]) == pytest.approx((40 / 40 + (20 - 1e-3) / 20) / 2)
    unclipped = DepthMetrics(Protocol(clip=False))
    unclipped.update(p, t)
    assert math.isnan(float(unclipped.compute()["rmse_log"]))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_predictions_that_are_not_finite_are_counted_and_not_replaced(bad: float) -> None:
    p, t = batch()
    valid = (t > 1e-3) & (t < 80)
    first, second = valid[1].nonzero()[:2]
    invalid = (~valid[2]).nonzero()[0]
    p[1][tuple(first)] = p[1][tuple(second)] = bad
    p[2][tuple(invalid)] = bad  # not a counted pixel
    metrics = DepthMetrics()
    metrics.update(p, t)
    found = metrics.compute()
    assert all(math.isnan(float(found[name])) for name in METRICS)
    assert int(found["nonfinite_pixels"]) == 2
    assert int(found["nonfinite_images"]) == 1
    assert "2 non-finite predictions" in metrics.report()
    excluding = DepthMetrics(Protocol(nonfinite="exclude"))
    excluding.update(p, t)
    rest = t.clone()
    rest[1][tuple(first)] = rest[1][tuple(second)] = 0
    reference = DepthMetrics()
    reference.update(p.nan_to_num(1, 1, 1), rest)
    for name in METRICS:
        assert float(excluding.compute()[name]) == pytest.approx(float(reference.compute()[name]), rel=1e-12)
    assert int(excluding.compute()["nonfinite_pixels"]) == 2
    assert "left out" in excluding.report()


def test_images_without_a_pixel_are_counted_and_left_out() -> None:
    p, t = batch()
    metrics, alone = DepthMetrics(), DepthMetrics()
    t[1] = 0
    metrics.update(p, t)
    alone.update(p[::2], t[::2])
    assert int(metrics.compute()["empty_images"]) == 1
    assert torch.equal(metrics.compute()["rmse"], alone.compute()["rmse"])
    assert "1 of 3 images" in metrics.report()
    nothing = DepthMetrics()
    nothing.update(p[:1], torch.zeros_like(t[:1]))
    assert all(math.isnan(float(nothing.compute()[name])) for name in METRICS)


def test_median_scaling_is_numpys_and_before_clipping() -> None:
    p, t = batch(images=2)
    metrics = DepthMetrics(Protocol(median_scaling=True))
    metrics.update(p / 7, t)
    found = metrics.compute()
    each, ratios = [], []
    for prediction, target in zip((p / 7).double().numpy(), t.double().numpy(), strict=True):
        valid = (target > 1e-3) & (target < 80)
        ratios.append(np.median(target[valid]) / np.median(prediction[valid]))
        each.append(published(np.clip(prediction[valid] * ratios[-1], 1e-3, 80), target[valid]))
    for name in METRICS:
        assert float(found[name]) == pytest.approx(np.mean([one[name] for one in each]), rel=1e-6), name
    assert float(found["scale_median"]) == pytest.approx(np.median(ratios), rel=1e-6)
    assert float(found["scale_spread"]) == pytest.approx(np.std(np.array(ratios) / np.median(ratios)), rel=1e-4)


def test_a_further_mask_and_reset() -> None:
    p, t = batch()
    mask = torch.zeros(1, 1, 30, 40, dtype=torch.bool)
    mask[..., :10, :] = True
    metrics, cut = DepthMetrics(), DepthMetrics()
    metrics.update(p, t, mask)
    cut.update(p[..., :10, :], t[..., :10, :])
    assert torch.equal(metrics.compute()["abs_rel"], cut.compute()["abs_rel"])
    metrics.reset()
    assert int(metrics.images) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_floating_format(dtype: torch.dtype) -> None:
    p, t = batch()
    metrics, reference = DepthMetrics(), DepthMetrics()
    metrics.update(p.to(dtype), t.to(dtype))
    reference.update(p.to(dtype).double(), t.to(dtype).double())
    assert torch.equal(metrics.compute()["silog"], reference.compute()["silog"])


def test_the_garg_crop_of_the_full_frame_and_of_the_benchmark_crop_differ() -> None:
    full, kb = Crop("garg"), Crop("garg", "kb")
    assert full.box(375, 1242) == (153, 371, 44, 1197)
    assert kb.box(375, 1242)[:2] == (166, 372)
    top, bottom, left, right = kb.box(375, 1242)
    assert Crop("garg", "kb").box(352, 1216) == (top - 23, bottom - 23, left - 13, right - 13)
    assert Crop("eigen-kitti").box(375, 1242) == (124, 342, 44, 1197)
    assert Crop("eigen-nyu").box(480, 640) == (45, 471, 41, 601)
    assert Crop().box(7, 9) == (0, 7, 0, 9)
    assert int(full.mask(375, 1242).sum()) == 218 * 1153
    whole = torch.arange(375.0 * 1242).reshape(1, 1, 375, 1242)
    pasted = kb_paste(kb_crop(whole), 375, 1242, fill=-1)
    assert torch.equal(pasted[..., 23:, 13:1229], whole[..., 23:, 13:1229])
    assert (pasted[..., :23, :] == -1).all()
    assert Protocol.kitti("kb").crop == kb
    assert Protocol.kitti().max_depth == 80


def test_flip_averaging() -> None:
    g = torch.Generator().manual_seed(0)
    image = torch.rand(1, 3, 4, 100, generator=g)

    def predict(x: Tensor) -> Tensor:
        return x[:, :1] + torch.linspace(0, 1, 100)  # not equivariant

    direct, mirrored = predict(image), predict(image.flip(-1)).flip(-1)
    torch.testing.assert_close(flip_average(predict, image), (direct + mirrored) / 2)
    ramp = flip_average(predict, image, blend="ramp")
    torch.testing.assert_close(ramp[..., :5], mirrored[..., :5])
    torch.testing.assert_close(ramp[..., -5:], direct[..., -5:])
    torch.testing.assert_close(ramp[..., 12:-12], ((direct + mirrored) / 2)[..., 12:-12])


def test_what_makes_no_sense_is_refused() -> None:
    p, t = batch()
    for call in (
        lambda: DepthMetrics().update(p, t[:, 0]),
        lambda: DepthMetrics().update(p[..., :-1], t),
        lambda: DepthMetrics().update(p, t, t),
        lambda: Protocol(min_depth=0.0),
        lambda: Protocol(max_depth=1e-4),
        lambda: Protocol(nonfinite="replace"),
        lambda: Crop("grag"),
        lambda: Crop("garg").box(352, 1216),
        lambda: Crop("eigen-nyu").box(240, 320),
        lambda: Crop("garg", "kb").box(200, 400),
        lambda: kb_crop(p),
        lambda: kb_paste(p, 375, 1242),
        lambda: flip_average(lambda x: x, p, blend="max"),
    ):
        with pytest.raises(ArgumentError) as caught:
            call()
        assert caught.value.do


WORKER = """
import sys, torch, torch.distributed as dist
from nanopsy.depth.metrics import DepthMetrics, Protocol
rank, store = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
g = torch.Generator().manual_seed(0)
target = 90 * torch.rand(5, 1, 6, 7, generator=g)
target[4] = 0
prediction = target + 1
metrics, alone = DepthMetrics(Protocol(median_scaling=True)), DepthMetrics(Protocol(median_scaling=True), sync_on_compute=False)
metrics.update(prediction[rank::2], target[rank::2])
alone.update(prediction, target)
together, expected = metrics.compute(), alone.compute()
for name in expected:
    torch.testing.assert_close(together[name], expected[name], rtol=1e-12, atol=0)
assert int(together["empty_images"]) == 1 and int(together["images"]) == 4
dist.destroy_process_group()
"""


def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True) for rank in range(2)]
    for worker in workers:
        _, said = worker.communicate(timeout=120)
        assert worker.returncode == 0, said
