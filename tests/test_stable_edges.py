"""Where the usual forms are NaN: empty masks, one pixel, equal values, zeros, subnormals, huge values, and whatever lies in unselected pixels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nanopsy import stable
from nanopsy.stable import ArgumentError

INF, NAN = math.inf, math.nan
FORMATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]
H, W = 12, 13
TRIPLES = stable.sample_triples(H, W, 200, generator=torch.Generator().manual_seed(0))
PAIRS = stable.sample_pairs(H, W, 200, generator=torch.Generator().manual_seed(0))
EDGES = stable.spaced_edges(5, 0.5, 80.0)
FORM = stable.SILogForm


def logits_of(p: Tensor, channels: int) -> Tensor:
    """Scores that depend on a prediction."""
    return torch.cat([p * (0.1 * k - 0.2) for k in range(channels)], 1)


LOSSES: dict[str, Loss] = {
    "silog": lambda p, t, m: stable.silog(p, t, m),
    "silog-root": lambda p, t, m: stable.silog(p, t, m, form=FORM(root=True, scale=10)),
    "silog-root-lam1": lambda p, t, m: stable.silog(p, t, m, form=FORM(root=True, lam=1.0)),
    "silog-image": lambda p, t, m: stable.silog(p, t, m, form=FORM(root=True, reduction="image")),
    "silog-bessel": lambda p, t, m: stable.silog(p, t, m, form=FORM(root=True, correction=1)),
    "silog-log": lambda p, t, m: stable.silog_from_log_depth(p, t, m, form=FORM(root=True)),
    "silog-logits": lambda p, t, m: stable.silog_from_logits(p, t, m, max_depth=80.0, form=FORM(root=True)),
    **{f"preset-{name}": (lambda p, t, m, name=name: stable.silog_preset(name)(p, t, m)) for name in stable.SILOG_PRESETS},
    "berhu": lambda p, t, m: stable.berhu(p, t, m),
    "berhu-image": lambda p, t, m: stable.berhu(p, t, m, reduction="image"),
    "gaussian": lambda p, t, m: stable.gaussian_nll(p, p * 0.1, t, m),
    "laplace": lambda p, t, m: stable.laplace_nll(p, p * 0.1, t, m),
    "gradients": lambda p, t, m: stable.gradient_matching(p, t, m),
    "gradients-image": lambda p, t, m: stable.gradient_matching(p, t, m, reduction="image"),
    "ssi": lambda p, t, m: stable.scale_and_shift_invariant(p, t, m),
    "ssi-trimmed": lambda p, t, m: stable.scale_and_shift_invariant(p, t, m, trim=0.2, reduction="image"),
    "procrustes": lambda p, t, m: stable.trimmed_procrustes(p, t, m),
    "procrustes-image": lambda p, t, m: stable.trimmed_procrustes(p, t, m, reduction="image"),
    "smoothness": lambda p, t, m: stable.edge_aware_smoothness(p, torch.zeros_like(t), m),
    "ssim": lambda p, t, m: stable.ssim_loss(p, t, m, window=3, max_value=80.0),
    "cosine": lambda p, t, m: stable.cosine_normal(p, t, m),
    "virtual": lambda p, t, m: stable.virtual_normal(p, t, m, triples=TRIPLES, focal=20.0),
    "ranking": lambda p, t, m: stable.ranking(p, t, m, pairs=PAIRS),
    "ordinal": lambda p, t, m: stable.ordinal_regression(logits_of(p, 4), t, m, edges=EDGES),
    "bins": lambda p, t, m: stable.bins_classification(logits_of(p, 5), t, m, edges=EDGES),
    "bins-soft": lambda p, t, m: stable.bins_classification(logits_of(p, 5), t, m, edges=EDGES, softness=0.2),
    "chamfer": lambda p, t, m: stable.chamfer_bins(p[:, 0, 0, :7], t, m),
    "photometric": lambda p, t, m: stable.photometric(p / 80, t / 80, m),
}
losses = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
formats = pytest.mark.parametrize("dtype", FORMATS, ids=str)
UNMASKED_TARGET = {"smoothness"}  # an image, which this lambda does not use


def scene(dtype: torch.dtype = torch.float32, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    target = 1 + 50 * torch.rand(2, 1, H, W, generator=g)
    return (target * torch.exp(0.3 * torch.randn(2, 1, H, W, generator=g))).to(dtype), target.to(dtype)


def run(loss: Loss, p: Tensor, t: Tensor, m: Tensor | None) -> tuple[Tensor, Tensor]:
    leaf = p.detach().clone().requires_grad_()
    value = loss(leaf, t, m)
    assert value.shape == ()
    assert value.dtype == (torch.float64 if p.dtype == torch.float64 else torch.float32)
    (grad,) = torch.autograd.grad(value, leaf)
    return value.detach(), grad


@formats
@losses
def test_an_empty_mask_is_zero_with_zero_gradient(loss: Loss, dtype: torch.dtype) -> None:
    p, t = scene(dtype)
    value, grad = run(loss, p, t, torch.zeros(2, 1, H, W, dtype=torch.bool))
    assert value == 0
    assert torch.equal(grad, torch.zeros_like(grad))


@formats
@losses
def test_one_pixel_is_finite(loss: Loss, dtype: torch.dtype) -> None:
    p, t = scene(dtype)
    mask = torch.zeros(2, 1, H, W, dtype=torch.bool)
    mask[0, 0, 5, 5] = True
    value, grad = run(loss, p, t, mask)
    assert value.isfinite()
    assert grad.isfinite().all()
    if loss is not LOSSES["chamfer"]:
        assert torch.equal(grad[~mask], torch.zeros_like(grad[~mask]))


@formats
@losses
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 0.0, -3.0])
def test_nothing_leaks_from_unselected_pixels(loss: Loss, dtype: torch.dtype, bad: float, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    p, t = scene(dtype)
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.7
    if loss is LOSSES["chamfer"]:
        mask[:, 0, 0, :7] = True  # its centres are no pixels
    mask[:, :, 3:10, 3:11] = True
    value, grad = run(loss, p, t, mask)
    assert value != 0
    keeps_target = any(word in name for word in UNMASKED_TARGET)
    poisoned, poisoned_grad = run(loss, torch.where(mask, p, bad), t if keeps_target else torch.where(mask, t, bad), mask)
    assert torch.equal(value, poisoned)
    assert torch.equal(grad, poisoned_grad)
    assert torch.equal(grad[~mask], torch.zeros_like(grad[~mask]))


def test_nothing_leaks_from_images_where_not_selected() -> None:
    g = torch.Generator().manual_seed(0)
    disparity, image, other = torch.rand(2, 1, H, W, generator=g), torch.rand(2, 3, H, W, generator=g), torch.rand(2, 3, H, W, generator=g)
    mask = torch.rand(2, 1, H, W, generator=g) < 0.7
    mask[:, :, 3:10, 3:11] = True
    for call in (
        lambda x, y: stable.edge_aware_smoothness(disparity, x, mask),
        lambda x, y: stable.photometric(x, y, mask),
        lambda x, y: stable.ssim_loss(x, y, mask, window=3),
    ):
        leaves = [image.clone().requires_grad_(), other.clone().requires_grad_()]
        poisoned = [torch.where(mask, image, NAN).requires_grad_(), torch.where(mask, other, INF).requires_grad_()]
        clean, found = call(*leaves), call(*poisoned)
        assert clean != 0
        assert torch.equal(found, clean)
        grads = torch.autograd.grad(found, poisoned, allow_unused=True, materialize_grads=True)
        for grad, expected in zip(grads, torch.autograd.grad(clean, leaves, allow_unused=True, materialize_grads=True), strict=True):
            assert torch.equal(grad, expected)
            assert torch.equal(grad * ~mask, torch.zeros_like(grad))


@formats
@losses
def test_an_exact_fit_and_equal_values_have_finite_gradients(loss: Loss, dtype: torch.dtype) -> None:
    p, t = scene(dtype)
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.9
    for prediction, target in (
        (t, t),
        (torch.full_like(p, 3.0), t),
        (p, torch.full_like(t, 3.0)),
        (torch.full_like(p, 3.0), torch.full_like(t, 3.0)),
        (2 * t, t),
    ):
        for selected in (mask, None):
            value, grad = run(loss, prediction, target, selected)
            assert value.isfinite()
            assert grad.isfinite().all()


@losses
def test_an_empty_batch(loss: Loss) -> None:
    p, t = scene()
    value, grad = run(loss, p[:0], t[:0], torch.ones(0, 1, H, W, dtype=torch.bool))
    assert value == 0
    assert grad.shape == (0, 1, H, W)


@losses
def test_a_full_mask_is_no_mask(loss: Loss) -> None:
    p, t = scene()
    full, none = run(loss, p, t, torch.ones(2, 1, H, W, dtype=torch.bool)), run(loss, p, t, None)
    torch.testing.assert_close(full, none, rtol=1e-5, atol=1e-7)


@losses
@pytest.mark.parametrize(
    "formats", [(torch.float16, torch.float32), (torch.float32, torch.float64), (torch.bfloat16, torch.float16), (torch.float64, torch.float32)]
)
def test_prediction_and_target_of_two_formats(loss: Loss, formats: tuple[torch.dtype, torch.dtype]) -> None:
    p, t = scene()
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.9
    leaf = p.to(formats[0], copy=True).requires_grad_()
    value = loss(leaf, t.to(formats[1]), mask)
    (grad,) = torch.autograd.grad(value, leaf)
    assert value.isfinite()
    assert grad.dtype == formats[0]
    assert grad.isfinite().all()
    wide = torch.float64 if torch.float64 in formats else torch.float32
    torch.testing.assert_close(
        value.double(), loss(p.to(formats[0]).to(wide), t.to(formats[1]).to(wide), mask).double(), rtol=2e-2 if torch.float16 in formats else 1e-5, atol=1e-5
    )  # some of these lambdas compute in the prediction's format


SMOOTH = {name: loss for name, loss in LOSSES.items() if name != "chamfer"}


@pytest.mark.parametrize("loss", SMOOTH.values(), ids=SMOOTH)
@pytest.mark.parametrize("bad", [NAN, INF, 0.0])
def test_nothing_leaks_into_the_second_derivative(loss: Loss, bad: float, request: pytest.FixtureRequest) -> None:
    p, t = scene(torch.float64)
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.7
    mask[:, :, 3:10, 3:11] = True
    keeps_target = any(word in request.node.callspec.id for word in UNMASKED_TARGET)
    leaf = torch.where(mask, p, bad).requires_grad_()
    (grad,) = torch.autograd.grad(loss(leaf, t if keeps_target else torch.where(mask, t, bad), mask), leaf, create_graph=True)
    (second,) = torch.autograd.grad((grad * torch.arange(grad.numel()).reshape(grad.shape)).sum(), leaf, allow_unused=True, materialize_grads=True)
    assert second.isfinite().all()
    assert torch.equal(second[~mask], torch.zeros_like(second[~mask]))


@losses
def test_parameters_inference_and_targets_with_gradients(loss: Loss) -> None:
    p, t = scene()
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.9
    expected, _ = run(loss, p, t, mask)
    weight, target = torch.nn.Parameter(p.clone()), t.clone().requires_grad_()
    value = loss(weight, target, mask)
    value.backward()
    torch.testing.assert_close(value.detach(), expected)
    assert weight.grad is not None
    assert weight.grad.isfinite().all()
    assert target.grad is None or target.grad.isfinite().all()
    with torch.inference_mode():
        assert torch.equal(loss(p.clone(), t.clone(), mask.clone()), expected)


@pytest.mark.parametrize("statistic", [stable.masked_mean, stable.masked_var, stable.masked_std, stable.masked_median, lambda x, m, **k: stable.silog(x, x + 1, m, form=FORM(root=True), **k), lambda x, m, **k: stable.berhu(x, x + 1, m, **k)])  # fmt: skip
@pytest.mark.parametrize("weights", ["zero", "some zero", "nan where not selected"])
def test_gradients_with_respect_to_weights(statistic: Callable[..., Tensor], weights: str) -> None:
    p, _ = scene()
    g = torch.Generator().manual_seed(2)
    mask = torch.rand(p.shape, generator=g) < 0.7
    w = torch.rand(p.shape, generator=g) * (torch.rand(p.shape, generator=g) < 0.5)
    w = {"zero": torch.zeros_like(w), "some zero": w, "nan where not selected": torch.where(mask, w, NAN)}[weights].requires_grad_()
    leaf = p.clone().requires_grad_()
    value = statistic(leaf, mask, weight=w)
    assert value.isfinite()
    if weights == "zero":
        assert value == 0
    for grad in torch.autograd.grad(value, [leaf, w], allow_unused=True, materialize_grads=True):
        assert grad.isfinite().all()
        assert torch.equal(grad[~mask], torch.zeros_like(grad[~mask]))


@losses
def test_an_expanded_prediction_is_its_copy(loss: Loss) -> None:
    p, t = scene()
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.9
    expanded, target = p[:1].expand(2, 1, H, W), t[:1, :, :, :1].expand(2, 1, H, W)
    torch.testing.assert_close(run(loss, expanded, target, mask), run(loss, expanded.contiguous(), target.contiguous(), mask), rtol=1e-6, atol=1e-8)
    leaf = p[:1].clone().requires_grad_()
    (grad,) = torch.autograd.grad(loss(leaf.expand(2, 1, H, W), target, mask), leaf)
    torch.testing.assert_close(grad, run(loss, expanded.contiguous(), target.contiguous(), mask)[1].sum(0, keepdim=True), rtol=1e-5, atol=1e-7)


@losses
def test_an_expanded_mask_and_a_broadcast_one_are_the_same(loss: Loss) -> None:
    p, t = scene()
    mask = torch.rand(1, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.9
    torch.testing.assert_close(run(loss, p, t, mask), run(loss, p, t, mask.expand(2, 1, H, W)), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("lam", [0.0, 0.5, 0.85, 1.0])
def test_the_gradient_of_the_root_is_bounded_on_the_way_to_the_optimum(lam: float) -> None:
    _, t = scene()
    direction = torch.randn(t.shape, generator=torch.Generator().manual_seed(3))
    for size in (1e-1, 1e-3, 1e-5, 1e-6, 0.0):
        log_depth = (t.log() + size * direction).requires_grad_()
        (grad,) = torch.autograd.grad(stable.silog_from_log_depth(log_depth, t, form=FORM(root=True, lam=lam)), log_depth)
        assert grad.isfinite().all()
        assert float(grad.norm()) <= 1.01 / math.sqrt(t.numel())
        (square,) = torch.autograd.grad(stable.silog_from_log_depth(log_depth, t, form=FORM(lam=lam)), log_depth)
        assert float(square.norm()) <= 4 * (size + 1e-6) / math.sqrt(t.numel())


def test_a_log_ratio_keeps_its_digits_near_the_optimum() -> None:
    target = torch.full((1000,), 50.0)
    near = target.clone()
    near[::2] = torch.nextafter(near[::2], torch.tensor(INF))
    exact = stable.silog(near.double(), target.double(), form=FORM(lam=1.0))
    naive = torch.var(near.log() - target.log(), correction=0)
    assert abs(float(stable.silog(near, target, form=FORM(lam=1.0))) / float(exact) - 1) < 1e-6
    assert abs(float(naive) / float(exact) - 1) > 0.1


def test_a_selected_depth_that_is_not_positive_is_not_hidden() -> None:
    t = torch.tensor([1.0, 2.0, 3.0])
    for bad in (0.0, -1.0, NAN, INF):
        assert not stable.silog(torch.tensor([1.0, bad, 2.0]), t).isfinite()
        assert not stable.silog(t, torch.tensor([1.0, bad, 2.0])).isfinite()
    assert stable.silog(-t, -t).isnan()


@pytest.mark.parametrize("name", sorted({preset.name for preset in stable.SILOG_PRESETS.values()}))
def test_a_preset_is_its_published_formula(name: str) -> None:
    preset = stable.SILOG_PRESETS[name]
    p, t = scene(torch.float64)
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.5
    found = stable.silog_preset(name, stable=False)(p, t, mask)
    spread, _, error = preset.formula.partition(", with g = ")
    code = re.sub(r"(\d) (sqrt|mean)", r"\1 * \2", spread.replace(", per image", "").replace(" per image", "").replace("^", "**"))
    groups = [(p[i][mask[i]], t[i][mask[i]]) for i in range(2)] if "per image" in spread else [(p[mask], t[mask])]
    each = []
    for prediction, target in groups:
        names = {"sqrt": torch.sqrt, "mean": torch.mean, "var": torch.var, "log": torch.log, "prediction": prediction, "target": target}
        g = eval(error or "log(prediction) - log(target)", {}, names)
        each.append(eval(code, {}, {**names, "g": g}))
    expected = torch.stack(each).mean()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    twin = stable.silog_preset(name)(p, t, mask)
    n = int(mask.sum())
    torch.testing.assert_close(twin, expected, rtol=2 / n if preset.variance == "bessel" else 1e-10, atol=0)
    if preset.variance == "bessel":
        exact = stable.silog_preset(name, correction=1)(p, t, mask)
        torch.testing.assert_close(exact, expected, rtol=1e-10, atol=0)
    assert preset.differs.endswith(".")


@pytest.mark.filterwarnings("ignore:var:UserWarning")
def test_published_presets_fail_where_their_twins_do_not() -> None:
    p, t = scene()
    one = torch.zeros(2, 1, H, W, dtype=torch.bool)
    one[0, 0, 0, 0] = True
    for name in ("adabins", "zoedepth", "mde-toolbox", "idisc"):
        assert stable.silog_preset(name, stable=False)(p, t, one).isnan()
        assert stable.silog_preset(name)(p, t, one).isfinite()
    assert stable.silog_preset("bts", stable=False)(p, t, torch.zeros_like(one)).isnan()
    leaf = t.clone().requires_grad_()
    (grad,) = torch.autograd.grad(stable.silog_preset("bts", stable=False)(leaf, t, None), leaf)
    assert grad.isnan().any()
    head = stable.DepthPrediction(p, p.log())
    torch.testing.assert_close(stable.silog_preset("bts")(head, t), stable.silog_preset("bts")(p, t))
    assert torch.equal(stable.silog_preset("idisc", stable=False)(head, t), stable.silog_preset("idisc", stable=False)(p, t))


STATISTICS: dict[str, Callable[..., Tensor]] = {
    "mean": stable.masked_mean,
    "var": stable.masked_var,
    "var-bessel": lambda x, m=None, **k: stable.masked_var(x, m, correction=1, **k),
    "std": stable.masked_std,
    "std-bessel": lambda x, m=None, **k: stable.masked_std(x, m, correction=1, **k),
    "median": stable.masked_median,
    "quantile": lambda x, m=None, **k: stable.masked_quantile(x, 0.25, m, **k),
}
REFERENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": torch.mean,
    "var": lambda x: x.var(correction=0),
    "var-bessel": lambda x: x.var() if len(x) > 1 else x.sum() * 0,
    "std": lambda x: x.std(correction=0),
    "std-bessel": lambda x: x.std() if len(x) > 1 else x.sum() * 0,
    "median": lambda x: x.quantile(0.5),
    "quantile": lambda x: x.quantile(0.25),
}
statistics = pytest.mark.parametrize("name", STATISTICS)


def adversarial(dtype: torch.dtype) -> dict[str, Tensor]:
    f = torch.finfo(dtype)
    g = torch.Generator().manual_seed(5)
    noise = torch.randn(64, generator=g)
    return {
        "one": torch.tensor([2.5], dtype=dtype),
        "two": torch.tensor([2.5, -1.0], dtype=dtype),
        "all equal": torch.full((37,), 0.1, dtype=dtype),
        "zeros": torch.zeros(5, dtype=dtype),
        "signed zeros": torch.tensor([0.0, -0.0, 0.0], dtype=dtype),
        "subnormals": (torch.arange(1, 9) * f.smallest_normal / 64).to(dtype),
        "max/2": torch.full((9,), f.max / 2, dtype=dtype),
        "+-max/2": torch.tensor([f.max / 2, -f.max / 2] * 4, dtype=dtype),
        "tiny spread": (1 + torch.arange(8) * f.eps).to(dtype),
        **({"offset": (1e8 + 100 * noise.double()).to(dtype)} if dtype in (torch.float32, torch.float64) else {}),
    }


@formats
@statistics
@pytest.mark.parametrize("dim", [None, 0], ids=["dense or compact", "dense"])
def test_statistics_on_adversarial_values(name: str, dtype: torch.dtype, dim: int | None) -> None:
    for case, values in adversarial(dtype).items():
        x = torch.cat([values, torch.tensor([NAN, INF, -INF], dtype=dtype)])
        mask = torch.arange(len(x)) < len(values)
        leaf = x.clone().requires_grad_()
        found = STATISTICS[name](leaf, mask, dim=dim)
        unit = float(values.abs().max()) if dtype == torch.float64 and "max" in case else 1.0
        expected = REFERENCES[name](values.double() / unit).item() * unit
        if name.startswith("var"):
            expected *= unit
        if abs(expected) > torch.finfo(dtype).max:
            assert found.isinf(), case
            continue
        spacing = max(abs(expected), torch.finfo(dtype).smallest_normal) * torch.finfo(dtype).eps
        slack = 0.0
        if name.startswith("var"):
            slack = (
                2 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * min(float(values.abs().max()), 1e150)
            ) ** 2  # equal values: rounding of their mean
        if name.startswith("std"):
            slack = 2 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps * float(values.abs().max())
        assert abs(float(found.detach()) - expected) <= 8 * spacing + slack, (case, float(found.detach()), expected)
        (grad,) = torch.autograd.grad(found, leaf)
        assert torch.equal(grad[~mask], torch.zeros_like(grad[~mask])), case
        if not (name.startswith("var") and "max/2" in case):
            assert grad.isfinite().all(), case


@formats
@statistics
def test_statistics_of_nothing(name: str, dtype: torch.dtype) -> None:
    statistic = STATISTICS[name]
    for shape, dim in (((3, 4), None), ((3, 4), 1), ((0,), None), ((3, 0), 1), ((), None)):
        x = torch.full(shape, NAN, dtype=dtype).requires_grad_()
        mask = torch.zeros(shape, dtype=torch.bool)
        found = statistic(x, mask, dim=dim)
        assert torch.equal(found, torch.zeros_like(found))
        (grad,) = torch.autograd.grad(found.sum(), x)
        assert torch.equal(grad, torch.zeros_like(grad))
        assert statistic(x, mask, dim=dim, empty=NAN).isnan().all()
        kept = statistic(x, mask, dim=dim, keepdim=True)
        assert kept.ndim == len(shape)
        assert kept.dtype == dtype


@statistics
def test_statistics_keep_dimensions_like_torch(name: str) -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mask = torch.ones(1, 1, 4, 5, dtype=torch.bool)
    for dim in (None, 1, -1, (0, 2), (-1, -3), (0, 1, 2, 3)):
        for keepdim in (False, True):
            found = STATISTICS[name](x, mask, dim=dim, keepdim=keepdim)
            assert found.shape == x.mean(dim if dim is not None else (0, 1, 2, 3), keepdim=keepdim).shape
            torch.testing.assert_close(found, STATISTICS[name](x, None, dim=dim, keepdim=keepdim))
    assert STATISTICS[name](torch.tensor(3.0)).shape == ()


@statistics
def test_nan_in_a_selected_element_is_not_hidden(name: str) -> None:
    x = torch.tensor([1.0, NAN, 3.0, 4.0])
    mask = torch.tensor([True, True, True, False])
    assert STATISTICS[name](x, mask).isnan()
    assert STATISTICS[name](x, mask, dim=0).isnan()


def test_an_offset_of_a_hundred_million_costs_no_digit() -> None:
    x = 1e8 + torch.randn(10_000, generator=torch.Generator().manual_seed(0)) * 100
    exact = x.double().var(correction=0)
    one_pass = (x**2).mean() - x.mean() ** 2
    assert abs(float(stable.masked_var(x)) / float(exact) - 1) < 1e-6
    assert abs(float(one_pass) / float(exact) - 1) > 1


def test_weighted_statistics() -> None:
    x, w = torch.tensor([1.0, 2.0, 4.0, NAN]), torch.tensor([1.0, 2.0, 1.0, NAN])
    mask = torch.tensor([True, True, True, False])
    repeated = torch.tensor([1.0, 2.0, 2.0, 4.0])
    for name in ("mean", "var", "var-bessel", "std", "std-bessel"):
        torch.testing.assert_close(STATISTICS[name](x, mask, weight=w), REFERENCES[name](repeated))
        torch.testing.assert_close(STATISTICS[name](x, mask, weight=w, dim=0), REFERENCES[name](repeated))
    assert stable.masked_median(x, mask, weight=w) == 2
    assert stable.masked_quantile(x, 1.0, mask, weight=w) == 4
    assert stable.masked_quantile(x, 0.0, mask, weight=torch.tensor([0.0, 1.0, 1.0, 1.0])) == 2
    assert stable.masked_mean(x, mask, weight=torch.zeros(4)) == 0
    for statistic in (stable.masked_mean, stable.masked_median):
        assert statistic(x, mask, weight=torch.tensor([1.0, NAN, 1.0, 1.0])).isnan()


@pytest.mark.parametrize("interpolation", ["linear", "lower", "higher", "midpoint", "nearest"])
@pytest.mark.parametrize("q", [0.0, 0.1, 0.5, 0.77, 1.0])
def test_quantiles_are_those_of_torch(interpolation: str, q: float) -> None:
    x = torch.randn(3, 17, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(stable.masked_quantile(x, q, dim=1, interpolation=interpolation), x.quantile(q, 1, interpolation=interpolation))


ELEMENTARY: list[tuple[str, Callable[[Tensor], Tensor], float, float, float]] = [
    # name, function, argument, value, gradient: what is stated at the edge
    ("sqrt at 0", stable.sqrt, 0.0, 0.0, 0.0),
    ("power at 0", lambda x: stable.power(x, 0.3), 0.0, 0.0, 0.0),
    ("power 1.5 at 0", lambda x: stable.power(x, 1.5), 0.0, 0.0, 0.0),
    ("log at 0", lambda x: stable.log(x, 1e-3), 0.0, math.log(1e-3), 0.0),
    ("log of a negative", lambda x: stable.log(x, 1e-3), -5.0, math.log(1e-3), 0.0),
    ("exp above", lambda x: stable.exp(x, 5.0), 1e4, math.exp(5.0), 0.0),
    ("acos at 1", stable.acos, 1.0, 0.0, 0.0),
    ("acos at -1", stable.acos, -1.0, math.pi, 0.0),
    ("asin at 1", stable.asin, 1.0, math.pi / 2, 0.0),
    ("asin at -1", stable.asin, -1.0, -math.pi / 2, 0.0),
    ("atan2 at 0", lambda x: stable.atan2(x, x), 0.0, 0.0, 0.0),
    ("xlogy at 0", lambda x: stable.xlogy(x, x), 0.0, 0.0, 0.0),
    ("log1mexp at 0", stable.log1mexp, 0.0, -INF, 0.0),
    ("divide by 0", lambda x: stable.divide(torch.ones_like(x), x), 0.0, 0.0, 0.0),
    ("divide by -0", lambda x: stable.divide(torch.ones_like(x), x, at_zero=7.0), -0.0, 7.0, 0.0),
    ("0 / 0", lambda x: stable.divide(x, x), 0.0, 0.0, 0.0),
    ("reciprocal of 0", stable.reciprocal, 0.0, 0.0, 0.0),
    ("reciprocal of -0", lambda x: stable.reciprocal(x, at_zero=80.0), -0.0, 80.0, 0.0),
    ("where", lambda x: stable.where_safe(x > 0, torch.log, x, -9.0), 0.0, -9.0, 0.0),
    ("inverse softplus at 0", stable.inverse_softplus, 0.0, -INF, 0.0),
    ("softplus far below", stable.softplus, -1e4, 0.0, 0.0),
    ("softplus far above", stable.softplus, 1e4, 1e4, 1.0),
    ("norm of 0", lambda x: stable.norm(torch.stack([x, x]), 0), 0.0, 0.0, 0.0),
    ("normalize 0", lambda x: stable.normalize(torch.stack([x, x]), 0)[0], 0.0, 0.0, 0.0),
]


@formats
@pytest.mark.parametrize(("function", "argument", "value", "gradient"), [case[1:] for case in ELEMENTARY], ids=[case[0] for case in ELEMENTARY])
def test_the_stated_value_and_gradient_at_an_edge(
    function: Callable[[Tensor], Tensor], argument: float, value: float, gradient: float, dtype: torch.dtype
) -> None:
    if abs(argument) == 1e4 and dtype == torch.bfloat16:
        argument, value = math.copysign(9984.0, argument), 9984.0 if value == 1e4 else value
    x = torch.tensor([0.5, argument], dtype=dtype, requires_grad=True)
    y = function(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y[1], torch.tensor(value, dtype=dtype))
    (grad,) = torch.autograd.grad(y[1], x, create_graph=True)
    assert torch.equal(grad.detach(), torch.tensor([0.0, gradient], dtype=dtype))
    if grad.requires_grad:
        (second,) = torch.autograd.grad(grad.sum(), x, allow_unused=True, materialize_grads=True)
        assert second.isfinite().all()


@pytest.mark.parametrize("function", [stable.sqrt, lambda x: stable.power(x, 0.3), stable.log, stable.exp, stable.acos, stable.asin, stable.softplus, stable.log1mexp, stable.reciprocal, stable.inverse_softplus, lambda x: stable.norm(x, 0), lambda x: stable.normalize(x, 0)])  # fmt: skip
def test_nan_in_is_nan_out(function: Callable[[Tensor], Tensor]) -> None:
    assert function(torch.tensor([0.5, NAN])).isnan().any()


def test_the_domain_is_not_widened() -> None:
    assert stable.sqrt(torch.tensor(-1e-9)).isnan()
    assert stable.power(torch.tensor(-1.0), 0.5).isnan()
    assert stable.acos(torch.tensor(1 + 1e-4)).isnan()
    assert stable.acos(torch.tensor(1 + 4e-7)) == 0
    assert stable.log1mexp(torch.tensor(-1.0)).isnan()


@pytest.mark.parametrize("size", [1e-40, 1e-38, 1e-30, 1e-20, 1.0, 1e20, 1e30, 1.5e38])
def test_norms_neither_overflow_nor_vanish(size: float) -> None:
    x = (size * torch.tensor([0.6, -0.8, 0.0])).requires_grad_()
    exact = float(x.detach().double().norm())
    length = stable.norm(x)
    digits = 1e-6 if size > 1e-37 else 2e-5  # subnormal numbers have fewer
    assert abs(float(length.detach()) / exact - 1) < digits
    (grad,) = torch.autograd.grad(length, x)
    torch.testing.assert_close(grad.double(), x.detach().double() / exact, rtol=digits, atol=0)
    torch.testing.assert_close(stable.normalize(x.detach()).double(), x.detach().double() / exact, rtol=1e-6, atol=0)
    y = x.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(stable.atan2(y[1], y[0]), y)
    if size > 1e-37:  # below, the slope 1 / size is too large for float32
        assert float((slope * y.detach()).sum().abs()) < 1e-5  # along the vector the angle does not change


@formats
def test_masked_softmax_family(dtype: torch.dtype) -> None:
    f = torch.finfo(dtype)
    x = torch.tensor([[1.0, NAN, -2.0], [NAN, INF, -INF], [f.max / 2, -f.max / 2, NAN], [f.max, NAN, f.max / 2]], dtype=dtype, requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, False, False], [True, True, False], [True, False, True]])
    for function in (stable.masked_softmax, stable.masked_log_softmax, stable.masked_logsumexp):
        y = function(x, mask)
        assert y.isfinite().all()
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad.isfinite().all()
        assert torch.equal(grad[~mask], torch.zeros_like(grad[~mask]))
    p = stable.masked_softmax(x, mask)
    assert torch.equal(p[~mask], torch.zeros_like(p[~mask]))
    torch.testing.assert_close(p.sum(1), torch.tensor([1.0, 0.0, 1.0, 1.0], dtype=dtype))
    log_p = stable.masked_log_softmax(x, mask)
    assert torch.equal(log_p[~mask], torch.full_like(log_p[~mask], f.min))
    assert stable.masked_logsumexp(x, mask)[1] == f.min
    everything = torch.full((2,), -INF, dtype=dtype, requires_grad=True)
    (grad,) = torch.autograd.grad(stable.masked_logsumexp(everything), everything)
    assert torch.equal(grad, torch.zeros_like(grad))


@formats
def test_alignment_of_hopeless_predictions(dtype: torch.dtype) -> None:
    _, t = scene(dtype)
    mask = torch.rand(2, 1, H, W, generator=torch.Generator().manual_seed(1)) < 0.7
    one = torch.zeros_like(mask)
    one[:, 0, 2, 2] = True
    wobble = torch.full_like(t, 0.5)
    wobble[..., ::2] *= 1 + torch.finfo(dtype).eps
    for p, m, mean in (
        (torch.full_like(t, 0.1), mask, stable.masked_mean(t.float(), mask, dim=(2, 3))),
        (wobble.to(dtype), mask, stable.masked_mean(t.float(), mask, dim=(2, 3))),
        (t * 0.5, one, t[:, :, 2, 2].float()),
        (t * 0.5, torch.zeros_like(mask), torch.zeros(2, 1)),
    ):
        leaf = p.clone().requires_grad_()
        fit = stable.align_scale_and_shift(leaf, torch.where(m, t, NAN), m)
        if dtype in (torch.float32, torch.float64) or p is not wobble:
            assert torch.equal(fit.scale.flatten(), torch.zeros(2, dtype=fit.scale.dtype))
            torch.testing.assert_close(fit.shift.flatten().float(), mean.flatten(), rtol=1e-3, atol=0)
            (grad,) = torch.autograd.grad(fit.apply(leaf)[m].sum() + fit.scale.sum(), leaf)
            assert grad.isfinite().all()


def test_alignment_is_well_conditioned_on_nearly_constant_predictions() -> None:
    _, t = scene(torch.float64)
    p = 100 + 1e-4 * t
    exact = stable.align_scale_and_shift(p.float().double(), t)
    fit = stable.align_scale_and_shift(p.float(), t.float())
    torch.testing.assert_close(fit.scale.double(), exact.scale, rtol=1e-5, atol=0)
    q = p.float()
    a00, a01, a11, b0, b1 = (q * q).sum((2, 3)), q.sum((2, 3)), torch.tensor(float(H * W)), (q * t.float()).sum((2, 3)), t.float().sum((2, 3))
    naive = (a11 * b0 - a01 * b1) / (a00 * a11 - a01 * a01)
    assert ((naive.double() / exact.scale.flatten(1) - 1).abs() > 0.1).any()


def test_trimming_finds_the_line_through_outliers() -> None:
    p, _ = scene(torch.float64)
    t = 2 * p + 3
    t.view(2, -1)[:, ::10] += 500
    plain, trimmed = stable.align_scale_and_shift(p, t), stable.align_scale_and_shift(p, t, trim=0.2, rounds=3)
    assert ((plain.shift - 3).abs() > 10).all()
    torch.testing.assert_close(trimmed.scale, torch.full_like(trimmed.scale, 2.0))
    torch.testing.assert_close(trimmed.shift, torch.full_like(trimmed.shift, 3.0))


def test_edges_are_exact_at_both_ends() -> None:
    edges = stable.spaced_edges(80, 1e-3, 80.0)
    assert float(edges[0]) == torch.tensor(1e-3)
    assert float(edges[-1]) == 80
    torch.testing.assert_close(edges[1:] / edges[:-1], (edges[1] / edges[0]).expand(80), rtol=1e-5, atol=0)
    torch.testing.assert_close(stable.spaced_edges(4, 0.0, 10.0, "uniform"), torch.tensor([0.0, 2.5, 5, 7.5, 10]))
    adaptive = stable.bin_edges(torch.tensor([[1e4, -1e4, 0.0], [0.0, 0.0, 0.0]]), 0.1, 80.0)
    assert torch.equal(adaptive[:, 0], torch.full((2,), 0.1))
    assert torch.equal(adaptive[:, -1], torch.full((2,), 80.0))
    assert (adaptive.diff() >= 0).all()


def test_ordinal_training_decodes_to_the_targets_own_bin() -> None:
    edges = stable.spaced_edges(41, 0.5, 80.0)
    target = torch.tensor([0.7, 3.0, 20.0, 75.0]).reshape(1, 1, 2, 2)
    deeper = target > edges[1:-1].reshape(1, -1, 1, 1)
    logits = torch.where(deeper, 50.0, -50.0)
    assert stable.ordinal_regression(logits, target, edges=edges) < 1e-6
    decoded = stable.ordinal_depth(logits, edges).depth
    assert ((decoded / target).log().abs() <= math.log(160) / 41 / 2 + 1e-5).all()


def test_points_behind_and_in_the_camera_plane_are_not_valid() -> None:
    points = torch.tensor([[0.1, 0.1, 5.0], [0.1, 0.1, -5.0], [0.0, 0.0, 0.0], [0.1, 0.1, -1e-7], [9.0, 0.0, 1.0]]).t().reshape(1, 3, 1, 5).requires_grad_()
    k = torch.tensor([[[20.0, 0, 2], [0, 20.0, 0], [0, 0, 1]]])
    projection = stable.project(points, k)
    assert projection.valid.flatten().tolist() == [True, False, False, False, False]
    (grad,) = torch.autograd.grad(projection.grid.sum(), points)
    assert grad.isfinite().all()
    assert projection.grid.isfinite().all()
    assert torch.equal(grad[..., 1:], torch.zeros_like(grad[..., 1:]))


def test_identity_reprojection_is_the_image() -> None:
    g = torch.Generator().manual_seed(0)
    depth, image = 5 + torch.rand(1, 1, 9, 11, generator=g), torch.rand(1, 3, 9, 11, generator=g)
    k = torch.tensor([[[20.0, 0, 5], [0, 20.0, 4], [0, 0, 1]]])
    projection = stable.project(stable.backproject(depth, torch.linalg.inv(k)), k)
    inner = torch.zeros(1, 1, 9, 11, dtype=torch.bool)
    inner[..., 1:-1, 1:-1] = True
    assert projection.valid[inner].all()
    warped = torch.nn.functional.grid_sample(image, projection.grid, align_corners=True)
    torch.testing.assert_close(warped[..., 1:-1, 1:-1], image[..., 1:-1, 1:-1], rtol=0, atol=1e-5)
    assert stable.photometric(warped, image, inner) < 1e-5


REFUSED: dict[str, Callable[[], object]] = {
    "mask of numbers": lambda: stable.masked_mean(torch.ones(3), torch.ones(3)),
    "mask of another shape": lambda: stable.masked_var(torch.ones(3), torch.ones(4, dtype=torch.bool)),
    "mask with more dimensions": lambda: stable.masked_var(torch.ones(3), torch.ones(2, 3, dtype=torch.bool)),
    "mask elsewhere": lambda: stable.masked_mean(torch.ones(3), torch.ones(3, dtype=torch.bool, device="meta")),
    "integers": lambda: stable.masked_mean(torch.arange(3)),
    "complex": lambda: stable.sqrt(torch.ones(2, dtype=torch.complex64)),
    "a list": lambda: stable.sqrt([1.0]),  # type: ignore[arg-type]
    "no such dimension": lambda: stable.masked_mean(torch.ones(3), dim=1),
    "a dimension twice": lambda: stable.masked_mean(torch.ones(3, 3), dim=(0, -2)),
    "a dimension of 1.0": lambda: stable.masked_mean(torch.ones(3, 3), dim=1.0),  # type: ignore[arg-type]
    "a dimension by name": lambda: stable.masked_mean(torch.ones(3, 3), dim="height"),
    "half a scale": lambda: stable.gradient_matching(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), scales=2.5),  # type: ignore[arg-type]
    "no round": lambda: stable.align_scale_and_shift(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), rounds=0),
    "half a bin": lambda: stable.spaced_edges(2.5, 1.0, 10.0),  # type: ignore[arg-type]
    "no pair": lambda: stable.sample_pairs(4, 4, 0),
    "a lambda in words": lambda: stable.SILog(lam="high"),
    "a depth below zero": lambda: stable.ReluHead(-1.0),
    "no minimum": lambda: stable.SoftplusHead(0.0),
    "depths the wrong way round": lambda: stable.ExpHead(5.0, 1.0),
    "disparities the wrong way round": lambda: stable.InverseDepthSigmoidHead(5.0, 1.0),
    "no dimension": lambda: stable.masked_mean(torch.ones(3, 3), dim=()),
    "negative correction": lambda: stable.masked_var(torch.ones(3), correction=-1),
    "q above 1": lambda: stable.masked_quantile(torch.ones(3), 1.5),
    "unknown interpolation": lambda: stable.masked_quantile(torch.ones(3), 0.5, interpolation="cubic"),
    "exponent 0": lambda: stable.power(torch.ones(3), 0.0),
    "floor 0": lambda: stable.log(torch.ones(3), 0.0),
    "limit beyond the format": lambda: stable.exp(torch.ones(3), 100.0),
    "beta 0": lambda: stable.softplus(torch.ones(3), 0.0),
    "two shapes": lambda: stable.silog(torch.ones(2, 1, 4, 4), torch.ones(2, 4, 4)),
    "two devices": lambda: stable.silog(torch.ones(3), torch.ones(3, device="meta")),
    "lambda 1.5": lambda: stable.SILog(lam=1.5),
    "lambda -0.1": lambda: stable.SILogForm(lam=-0.1),
    "scale 0": lambda: stable.SILog(scale=0.0),
    "unknown reduction": lambda: stable.SILog(reduction="none"),
    "unknown option": lambda: stable.SILog(lambd=0.5),
    "max_depth 0": lambda: stable.silog_from_logits(torch.ones(3), torch.ones(3), max_depth=0.0),
    "max_depth nan": lambda: stable.scaled_sigmoid(torch.ones(3), NAN),
    "min_depth above": lambda: stable.scaled_sigmoid(torch.ones(3), 10.0, 20.0),
    "head at construction": lambda: stable.ScaledSigmoidHead(-1.0),
    "offset of a log": lambda: stable.silog_from_log_depth(torch.ones(3), torch.ones(3), form=FORM(offset=1e-3)),
    "image without images": lambda: stable.silog(torch.ones(3), torch.ones(3), form=FORM(reduction="image")),
    "preset": lambda: stable.silog_preset("unknown"),
    "published, changed": lambda: stable.silog_preset("bts", stable=False, root=False),
    "not an image": lambda: stable.gradient_matching(torch.ones(4, 4), torch.ones(4, 4)),
    "even window": lambda: stable.ssim(torch.ones(1, 1, 9, 9), torch.ones(1, 1, 9, 9), window=4),
    "window too large": lambda: stable.ssim(torch.ones(1, 1, 5, 5), torch.ones(1, 1, 5, 5), window=11),
    "trim 1": lambda: stable.align_scale_and_shift(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), trim=1.0),
    "triples": lambda: stable.virtual_normal(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), triples=torch.ones(2, 5), focal=1.0),
    "pairs": lambda: stable.ranking(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 4, 4), pairs=torch.ones(3, 5, dtype=torch.int64)),
    "edges": lambda: stable.ordinal_regression(torch.ones(1, 4, 4, 4), torch.ones(1, 1, 4, 4), edges=EDGES[:-1]),
    "target of bins": lambda: stable.bins_classification(torch.ones(1, 5, 4, 4), torch.ones(1, 4, 4, 4), edges=EDGES),
    "log edges from 0": lambda: stable.spaced_edges(4, 0.0, 10.0),
    "bins and edges": lambda: stable.bins_depth(torch.ones(1, 3, 4, 4), torch.ones(3)),
    "ordinal edges": lambda: stable.ordinal_depth(torch.ones(1, 3, 4, 4), torch.ones(3)),
    "centres": lambda: stable.chamfer_bins(torch.ones(3, 4), torch.ones(2, 5)),
    "smoothness": lambda: stable.edge_aware_smoothness(torch.ones(1, 1, 4, 4), torch.ones(1, 3, 8, 8)),
    "matrix": lambda: stable.backproject(torch.ones(1, 1, 4, 4), torch.eye(3)),
    "points": lambda: stable.project(torch.ones(1, 2, 4, 4), torch.eye(3)[None]),
    "bounds": lambda: stable.gaussian_nll(torch.ones(3), torch.ones(3), torch.ones(3), bounds=(2.0, -2.0)),
    "scale of another shape": lambda: stable.laplace_nll(torch.ones(3), torch.ones(4), torch.ones(3)),
    "nothing to merge": lambda: stable.Moments.merged([]),
}


@pytest.mark.parametrize("call", REFUSED.values(), ids=REFUSED)
def test_arguments_without_meaning_are_refused_with_a_sentence(call: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.what
    assert error.where.startswith("nanopsy.stable.")
    assert error.why
    assert error.do
    assert str(error).count("\n") >= 3
