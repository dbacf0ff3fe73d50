"""What is bad where it counts is shown, never hidden: NaN in selected pixels, labels that are not finite, values too large, options that move."""

from __future__ import annotations

import math

import pytest
import torch

from nanopsy import stable
from nanopsy.depth.metrics import DepthMetrics, Protocol
from nanopsy.stable.order import smallest
from test_stable_edges import LOSSES, STATISTICS, H, Loss, W, scene

INF, NAN = math.inf, math.nan
LOWEST = torch.finfo(torch.float32).min
losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)


@losses
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("where", ["prediction", "target"])
def test_nan_in_a_selected_pixel_is_nan(loss: Loss, masked: bool, where: str) -> None:  # noqa: FBT001
    if loss is LOSSES["smoothness"] and where == "target":
        pytest.skip("this lambda has no target")
    p, t = scene()
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[:, :, 3:10, 3:11] = True  # a block that every loss looks at
    mask[:, :, 0, :7] = True  # these are the centres of the Chamfer distance
    bad = {"prediction": p, "target": t}[where].clone()
    bad[:, :, 3:10, 3:11] = NAN
    bad[:, :, 0, :7] = NAN
    value = loss(bad if where == "prediction" else p, t if where == "prediction" else bad, mask if masked else None)
    assert value.isnan()


@pytest.mark.parametrize("name", STATISTICS)
def test_infinities_among_the_selected(name: str) -> None:
    for dim in (None, 1):
        x, mask = torch.tensor([[5.0, INF, 1.0]]), torch.tensor([[False, True, False]])
        found = STATISTICS[name](x, mask, dim=dim).flatten()[0]
        assert found.isnan() or found.isinf()
    if name == "median":
        assert stable.masked_median(torch.tensor([1.0, INF, INF])) == INF
        assert stable.masked_median(torch.tensor([-3e38, 3e38])) == 0
        assert stable.masked_quantile(torch.tensor([[5.0, 6.0, INF, 1.0]]), 1.0, torch.tensor([[False, False, True, True]]), dim=1) == INF


def test_alignment_with_weights_that_see_nothing_and_with_nan() -> None:
    p, t = torch.tensor([[1.0, 1.0, 5.0]]), torch.tensor([[2.0, 3.0, 9.0]])
    for weight, mean in (([1.0, 1.0, 0.0], 2.5), ([1.0, 0.0, 0.0], 2.0), ([0.0, 0.0, 0.0], 0.0)):
        fit = stable.align_scale_and_shift(p, t, weight=torch.tensor([weight]), dim=None)
        assert fit.scale == 0
        assert fit.shift == mean
    bad = torch.tensor([[1.0, 2.0, NAN, 4.0, 5.0]])
    assert stable.align_scale_and_shift(bad, torch.arange(5.0)[None], dim=None, trim=0.2).shift.isnan()


@pytest.mark.parametrize("count", [1, 2, 5, 7, 10, 20])
@pytest.mark.parametrize("trim", [0.1, 0.2, 0.5, 0.9])
def test_trimming_leaves_out_the_stated_share(count: int, trim: float) -> None:
    x = torch.randperm(count, generator=torch.Generator().manual_seed(0)).float()
    stay = max(int(count * (1 - trim)), 1)
    assert int((x <= smallest(x, 1 - trim, None, (0,))).sum()) == stay
    padded, mask = torch.cat([x, torch.full((3,), -5.0)]), torch.arange(count + 3) < count
    assert float(smallest(padded, 1 - trim, mask, (0,))) == stay - 1


@pytest.mark.parametrize("steps", [1.0, 80.0, 1000.0])
@pytest.mark.parametrize("window", [3, 11])
def test_ssim_of_depths_with_a_step(steps: float, window: int) -> None:
    g = torch.Generator().manual_seed(0)
    z = torch.zeros(1, 1, 40, 40)
    z[..., 20:] = steps
    z = z + 0.001 * torch.randn(z.shape, generator=g)
    other = z + 0.001 * torch.randn(z.shape, generator=g)
    assert stable.ssim_loss(z, z, window=window) < 1e-6
    torch.testing.assert_close(stable.ssim(z, z, window=window), torch.ones_like(z), rtol=0, atol=1e-6)
    found = stable.ssim(z, other, window=window)
    assert found.abs().max() <= 1 + 1e-6
    if steps > 1:
        exact = stable.ssim(z.double(), other.double(), window=window, max_value=steps)
        torch.testing.assert_close(stable.ssim(z, other, window=window, max_value=steps).double(), exact, rtol=0, atol=1e-3)


def test_softmax_gives_nothing_to_what_is_not_selected() -> None:
    mask = torch.tensor([True, True, False])
    for low in (LOWEST, -INF, -1e38):
        p = stable.masked_softmax(torch.tensor([low, low, 0.0]), mask)
        torch.testing.assert_close(p, torch.tensor([0.5, 0.5, 0.0]))
        torch.testing.assert_close(stable.masked_log_softmax(torch.tensor([low, low, 0.0]), mask)[:2], torch.full((2,), math.log(0.5)))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for scores in ([-INF, 0.0], [-60000.0, 60000.0], [-INF, 3e4]):
            x = torch.tensor(scores, dtype=dtype, requires_grad=True)
            y = stable.masked_log_softmax(x)
            assert y.isfinite().all()
            assert torch.autograd.grad(y.sum(), x)[0].isfinite().all()


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_depth_that_is_not_finite_does_not_reach_the_pose(bad: float) -> None:
    depth = 1 + torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    depth[0, 0, 1, 1] = bad
    k, pose = torch.eye(3)[None].requires_grad_(), torch.eye(4)[None].requires_grad_()
    projection = stable.project(stable.backproject(depth, torch.eye(3)[None]), k, pose)
    assert not projection.valid[0, 0, 1, 1]
    assert projection.grid.isfinite().all()
    for grad in torch.autograd.grad(projection.grid.sum(), [k, pose]):
        assert grad.isfinite().all()


def test_the_identity_keeps_the_border() -> None:
    k = torch.tensor([[[718.856, 0, 607.19], [0, 718.856, 185.2], [0, 0, 1.0]]])
    depth = 1 + 80 * torch.rand(1, 1, 376, 1241, generator=torch.Generator().manual_seed(0))
    assert stable.project(stable.backproject(depth, torch.linalg.inv(k)), k, torch.eye(4)[None]).valid.all()


def test_a_ranking_of_huge_differences() -> None:
    prediction = torch.tensor([[[[1e20, 0.0]]]], requires_grad=True)
    loss = stable.ranking(prediction, torch.tensor([[[[2.0, 1.0]]]]), pairs=torch.tensor([[0], [1]]))
    assert loss == 0
    assert torch.autograd.grad(loss, prediction)[0].isfinite().all()


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_xlogy_at_zero_of_either_sign(zero: float) -> None:
    x, y = torch.zeros(1, requires_grad=True), torch.full((1,), zero, requires_grad=True)
    grads = torch.autograd.grad(stable.xlogy(x, y), [x, y], create_graph=True)
    assert all(grad == 0 for grad in grads)
    for grad in grads:
        for second in torch.autograd.grad(grad.sum(), [x, y], retain_graph=True, allow_unused=True, materialize_grads=True):
            assert second == 0


def test_bounds_that_a_format_does_not_hold() -> None:
    assert stable.log(torch.tensor([0.0], dtype=torch.float16), floor=1e-8).isfinite()
    assert stable.log(torch.tensor([0.0]), floor=1e-50).isfinite()
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        limit = torch.tensor(stable.elementary.LARGEST_EXPONENT[dtype], dtype=dtype)
        assert float(limit) == stable.elementary.LARGEST_EXPONENT[dtype]
        assert torch.equal(stable.exp(limit), limit.exp())
        assert stable.exp(limit).isfinite()
        assert stable.exp(torch.tensor(1e4, dtype=dtype)).isfinite()
        above = (limit.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[limit.element_size()]) + 1).view(dtype)
        assert above.exp().isinf()
    assert stable.exp(torch.tensor([88.0], dtype=torch.bfloat16), limit=88.7) == torch.tensor([88.0], dtype=torch.bfloat16).exp()
    assert stable.inverse_softplus(torch.tensor([1e38]), beta=100.0) == 1e38
    assert (stable.exp_depth(torch.tensor([100.0, -100.0]), 0.1, 80.0).depth == torch.tensor([80.0, 0.1])).all()
    assert stable.masked_std(torch.tensor([3e38, 3e38, -3e38, -3e38])) == torch.tensor(3e38)
    x = torch.tensor([INF], requires_grad=True)
    assert torch.autograd.grad(stable.power(x, 0.5), x)[0] == 0


def test_an_accumulator_holds_no_graph() -> None:
    weight = torch.ones(3, requires_grad=True)
    assert not any(part.requires_grad for part in stable.Moments.of(torch.ones(3, requires_grad=True), weight=weight))


def test_images_whose_weights_are_zero_do_not_count() -> None:
    p, t = scene()
    weight = torch.ones(2, 1, 1, 1)
    weight[0] = 0
    for call in (
        lambda p, t, **k: stable.silog(p, t, form=stable.SILogForm(reduction="image"), **k),
        lambda p, t, **k: stable.berhu(p, t, threshold=1.0, reduction="image", **k),
    ):
        torch.testing.assert_close(call(p, t, weight=weight), call(p[1:], t[1:]))


def test_options_that_are_tensors_move_with_the_module() -> None:
    loss = stable.BinsClassification(edges=stable.spaced_edges(4, 0.5, 8.0))
    assert loss.to("meta").edges.device.type == "meta"
    assert loss.state_dict() == {}


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
def test_numbers_that_a_compiler_holds_as_symbols() -> None:
    torch._dynamo.reset()
    p, t = scene()
    for call in (stable.berhu, lambda p, t: stable.scale_and_shift_invariant(p, t, alpha=0.3), lambda p, t: stable.ssim_loss(p, t, window=3)):
        compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
        torch.testing.assert_close(compiled(p, t), call(p, t), rtol=1e-5, atol=1e-6)
    quantile = torch.compile(lambda x, q: stable.masked_quantile(x, q), fullgraph=True, backend="aot_eager")
    for q in (0.1, 0.15, 0.9):
        torch.testing.assert_close(quantile(p, q), stable.masked_quantile(p, q))


def test_metrics_do_not_reward_negative_predictions() -> None:
    t = torch.full((1, 1, 2, 2), 2.0)
    unclipped = DepthMetrics(Protocol(max_depth=10.0, clip=False))
    unclipped.update(-t, t)
    assert unclipped.compute()["delta1"].isnan()
    for prediction in (-t, torch.tensor([0.0, 0.0, 0.0, 5.0]).reshape(1, 1, 2, 2)):
        for nonfinite in ("propagate", "exclude"):
            metrics = DepthMetrics(Protocol(max_depth=10.0, median_scaling=True, nonfinite=nonfinite))
            labels = t.clone()
            labels[..., 0] = torch.where(torch.tensor([False, True]), 0.0, labels[..., 0])  # a pixel that is not scored
            metrics.update(torch.where(labels > 0, prediction, NAN), labels)
            metrics.update(t, t)
            found = metrics.compute()
            assert int(found["unscaled_images"]) == 1
            assert found["abs_rel"].isnan() == (nonfinite == "propagate")
            assert "cannot be scaled" in metrics.report()
            assert float(found["scale_median"]) == 1


REFUSED = {
    "two dimensions of a softmax": lambda: stable.masked_softmax(torch.ones(2, 2), dim=(0, 1)),  # type: ignore[arg-type]
    "no dimension of a logsumexp": lambda: stable.masked_logsumexp(torch.ones(2, 2), dim=None),  # type: ignore[arg-type]
    "a window of 0": lambda: stable.ssim_loss(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4, dtype=torch.bool), window=0),
    "no bounds": lambda: stable.gaussian_nll(torch.ones(2), torch.ones(2), torch.ones(2), bounds=None),  # type: ignore[arg-type]
    "a form that is none": lambda: stable.silog(torch.ones(2), torch.ones(2), form={"lam": 1}),  # type: ignore[arg-type]
    "pairs in a list": lambda: stable.ranking(torch.ones(1, 1, 2, 2), torch.ones(1, 1, 2, 2), pairs=[[0], [1]]),  # type: ignore[arg-type]
    "one edge": lambda: stable.bins_depth(torch.ones(1, 3, 2, 2), torch.tensor(1.0)),
    "a root in words": lambda: stable.SILog(root="no"),
    "normals of three channels": lambda: stable.cosine_normal(torch.ones(1, 3, 4, 4), torch.ones(1, 3, 4, 4)),
    "rays of three depths": lambda: stable.backproject(torch.ones(1, 3, 4, 4), torch.eye(3)[None]),
    "an ordinal head from 0": lambda: stable.OrdinalHead(4, 0.0, 10.0, "uniform"),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_refusals(call: object) -> None:
    with pytest.raises(stable.ArgumentError) as caught:
        call()  # type: ignore[operator]
    assert caught.value.do
