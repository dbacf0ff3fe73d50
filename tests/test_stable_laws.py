"""Laws that hold for all inputs, searched by Hypothesis; elementary functions against mpmath; moments merged across processes."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nanopsy import stable
from nanopsy.stable import Moments, SILogForm

EPS = torch.finfo(torch.float32).eps
seeds = st.integers(0, 2**32 - 1)
depths = st.lists(st.floats(1e-3, 200.0), min_size=1, max_size=40)
numbers = st.lists(st.floats(-1e15, 1e15), min_size=1, max_size=60)


def tensor(values: list[float], dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.tensor(values, dtype=dtype)


@given(depths, seeds, st.floats(0.01, 100.0), st.floats(0.0, 1.0), st.booleans())
def test_silog_does_not_see_a_common_unit(values: list[float], seed: int, unit: float, lam: float, root: bool) -> None:  # noqa: FBT001
    target = tensor(values, torch.float64)
    prediction = target * torch.exp(torch.randn(len(target), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    form = SILogForm(lam=lam, root=root)
    torch.testing.assert_close(stable.silog(unit * prediction, unit * target, form=form), stable.silog(prediction, target, form=form), rtol=1e-9, atol=1e-12)


@given(depths, seeds, st.floats(0.01, 100.0))
def test_silog_with_lambda_one_does_not_see_the_scale(values: list[float], seed: int, scale: float) -> None:
    target = tensor(values, torch.float64)
    prediction = target * torch.exp(torch.randn(len(target), generator=torch.Generator().manual_seed(seed), dtype=torch.float64))
    form = SILogForm(lam=1.0)
    torch.testing.assert_close(stable.silog(scale * prediction, target, form=form), stable.silog(prediction, target, form=form), rtol=1e-8, atol=1e-12)


@given(depths, seeds, st.floats(0.0, 1.0))
def test_silog_is_never_negative_and_symmetric(values: list[float], seed: int, lam: float) -> None:
    target = tensor(values)
    prediction = target * torch.exp(0.1 * torch.randn(len(target), generator=torch.Generator().manual_seed(seed)))
    form = SILogForm(lam=lam)
    loss = stable.silog(prediction, target, form=form)
    assert loss >= 0
    torch.testing.assert_close(stable.silog(target, prediction, form=form), loss, rtol=1e-6, atol=0)


@given(numbers, st.integers(0, 1))
def test_a_variance_is_never_negative(values: list[float], correction: int) -> None:
    x = tensor(values)
    assert stable.masked_var(x, correction=correction) >= 0
    assert stable.masked_std(x, correction=correction) >= 0
    spread = float(x.max() - x.min())
    step = 2.0**-149  # among subnormals a result can only be right to a step of the format: half a step may come out as one
    assert float(stable.masked_std(x)) <= 0.5 * spread * (1 + 1e-5) + 4 * EPS * float(x.abs().max()) + step


@given(numbers, seeds)
def test_the_full_mask_is_no_mask_and_an_order_does_not_matter(values: list[float], seed: int) -> None:
    x = tensor(values)
    full = torch.ones_like(x, dtype=torch.bool)
    size = float(x.abs().max())
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    for statistic in (stable.masked_mean, stable.masked_var, stable.masked_std, stable.masked_median):
        plain = statistic(x)
        slack = 8 * EPS * (size**2 if statistic is stable.masked_var else size)
        assert torch.equal(statistic(x, full), plain)
        torch.testing.assert_close(statistic(x, full, dim=0), plain, rtol=1e-5, atol=slack)
        torch.testing.assert_close(statistic(x[order]), plain, rtol=1e-5, atol=slack)


@given(numbers, st.integers(0, 60), st.integers(0, 60))
def test_moments_split_anywhere_and_merge(values: list[float], first: int, second: int) -> None:
    x = tensor(values, torch.float64)
    a, b = sorted((min(first, len(x)), min(second, len(x))))
    parts = [Moments.of(part) for part in (x[:a], x[a:b], x[b:])]
    whole = Moments.of(x)
    size = float(x.abs().max())
    for merged in (parts[0] + parts[1] + parts[2], parts[2].merge(parts[0]).merge(parts[1]), Moments.merged(parts)):
        assert merged.total == len(x)
        torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-12, atol=1e-14 * size)
        torch.testing.assert_close(merged.var(), whole.var(), rtol=1e-10, atol=(1e-14 * size) ** 2)
        assert merged.var() >= 0
        if len(x) == 1:
            assert merged.var(correction=1) == 0


@given(st.lists(st.floats(-60, 60), min_size=2, max_size=20), seeds)
def test_softmax_laws(values: list[float], seed: int) -> None:
    x = tensor(values)
    mask = torch.rand(len(x), generator=torch.Generator().manual_seed(seed)) < 0.6
    p = stable.masked_softmax(x, mask)
    assert abs(float(p.sum()) - float(mask.any())) < 1e-5
    torch.testing.assert_close(stable.masked_softmax(x + 7, mask), p, rtol=2e-4, atol=1e-7)
    torch.testing.assert_close(stable.masked_log_softmax(x, mask)[mask].exp(), p[mask], rtol=1e-4, atol=1e-30)
    if mask.any():
        torch.testing.assert_close(stable.masked_logsumexp(x, mask), x[mask].logsumexp(0), rtol=1e-6, atol=1e-5)


@given(depths, st.floats(0.1, 10.0), st.floats(-5.0, 5.0), seeds)
def test_an_aligned_prediction_does_not_see_scale_and_shift(values: list[float], scale: float, shift: float, seed: int) -> None:
    target = tensor([*values, 1.0, 50.0], torch.float64).reshape(1, 1, 1, -1)
    prediction = target + torch.randn(target.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    aligned = stable.align_scale_and_shift(prediction, target).apply(prediction)
    other = scale * prediction + shift
    torch.testing.assert_close(stable.align_scale_and_shift(other, target).apply(other), aligned, rtol=1e-7, atol=1e-7)
    residual = (aligned - target).flatten()
    assert abs(float(residual.sum())) < 1e-6
    assert abs(float((residual * prediction.flatten()).sum())) < 1e-4


@given(st.lists(st.floats(1.0, 60.0), min_size=1, max_size=30), st.lists(st.floats(0.5, 80.0), min_size=1, max_size=10))
def test_chamfer_is_that_of_all_pairs(target: list[float], centres: list[float]) -> None:
    t, c = tensor(target, torch.float64), tensor(centres, torch.float64)
    squares = (t[:, None] - c[None]) ** 2
    expected = squares.min(1).values.mean() + squares.min(0).values.mean()
    torch.testing.assert_close(stable.chamfer_bins(c[None], t[None]), expected)


def ulps(found: float, exact: mpmath.mpf) -> float:
    size = abs(float(exact))
    return float(abs(mpmath.mpf(found) - exact)) / max(math.ulp(size), 5e-324) if math.isfinite(size) else 0.0


EXACT: list[tuple[str, Callable[[Tensor], Tensor], Callable[[mpmath.mpf], mpmath.mpf], float, float]] = [
    ("sqrt", stable.sqrt, mpmath.sqrt, 0.0, 1e300),
    ("power", lambda x: stable.power(x, 0.3), lambda x: mpmath.power(x, mpmath.mpf(0.3)), 0.0, 1e6),
    ("log", stable.log, mpmath.log, 1e-300, 1e300),
    ("exp", stable.exp, mpmath.exp, -700.0, 700.0),
    ("acos", stable.acos, mpmath.acos, -1.0, 1.0),
    ("asin", stable.asin, mpmath.asin, -1.0, 1.0),
    ("log1mexp", stable.log1mexp, lambda x: mpmath.log1p(-mpmath.exp(-x)), 1e-12, 700.0),
    ("softplus", stable.softplus, lambda x: mpmath.log1p(mpmath.exp(x)), -700.0, 1e6),
    ("inverse_softplus", stable.inverse_softplus, lambda x: mpmath.log(mpmath.expm1(x)), 1.0, 1e6),
    ("reciprocal", stable.reciprocal, lambda x: 1 / x, 1e-300, 1e300),
    ("scaled_sigmoid", lambda x: stable.scaled_sigmoid(x, 80.0).log_depth, lambda x: mpmath.log(mpmath.mpf(80)) - mpmath.log1p(mpmath.exp(-x)), -1e4, -10.0),
]


@pytest.mark.parametrize(("function", "exact", "low", "high"), [case[1:] for case in EXACT], ids=[case[0] for case in EXACT])
@settings(max_examples=60)
@given(st.data())
def test_float64_within_a_few_ulp_of_the_true_value(
    function: Callable[[Tensor], Tensor], exact: Callable[[mpmath.mpf], mpmath.mpf], low: float, high: float, data: st.DataObject
) -> None:
    x = data.draw(st.floats(low, high))
    with mpmath.workdps(60):
        assert ulps(float(function(torch.tensor(x, dtype=torch.float64))), exact(mpmath.mpf(x))) <= 4


@settings(max_examples=60)
@given(st.floats(1e-3, 1e3), st.floats(-1e-3, 1e-3))
def test_a_log_ratio_is_exact_however_near_the_two_depths_are(target: float, step: float) -> None:
    t = torch.tensor([target, target], dtype=torch.float64)
    p = t * (1 + torch.tensor([step, 0.0], dtype=torch.float64))
    with mpmath.workdps(60):
        g = mpmath.log(mpmath.mpf(float(p[0])) / mpmath.mpf(float(t[0])))
        assert ulps(float(stable.silog(p[:1], t[:1], form=SILogForm(lam=0.0))), g * g) <= 8


WORKER = """
import sys, torch, torch.distributed as dist
from nanopsy.stable import Moments
rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
x = 1e8 + torch.arange(100, dtype=torch.float64).reshape(10, 10)
mine = Moments.of(x[rank::size], dim=0)
merged = mine.all_reduce()
whole = Moments.of(x, dim=0)
torch.testing.assert_close(merged.mean, whole.mean, rtol=1e-15, atol=0)
torch.testing.assert_close(merged.var(1), x.var(0), rtol=1e-10, atol=0)
everyone = [torch.empty_like(merged.squares) for _ in range(size)]
dist.all_gather(everyone, merged.squares)
assert all(torch.equal(other, merged.squares) for other in everyone)
assert Moments.of(x[:0]).all_reduce().total == 0
dist.destroy_process_group()
"""


def test_moments_of_several_processes(tmp_path: Path) -> None:
    store = tmp_path / "store"
    workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(rank), "3", str(store)], stderr=subprocess.PIPE, text=True) for rank in range(3)]
    for worker in workers:
        _, said = worker.communicate(timeout=120)
        assert worker.returncode == 0, said


def test_moments_of_one_process_and_per_channel() -> None:
    x = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    moments = Moments.of(x[:2], dim=(0, 2, 3)) + Moments.of(x[2:], dim=(0, 2, 3))
    torch.testing.assert_close(moments.std(1), x.double().std((0, 2, 3)))
    assert moments.all_reduce() is moments
    assert Moments.of(x, x > 5).var() == 0
    with pytest.raises(TypeError):
        moments + 1  # type: ignore[operator]
