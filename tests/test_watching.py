"""The watch sees every bad step and nothing else, under every optimizer and gradient there is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import nanopsy
from nanopsy import registry
from nanopsy.findings import Incident, What
from nanopsy.watching import SKIPS_IN_A_ROW, bad_elements, gradients, total_norm


@pytest.fixture(autouse=True)
def _seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    registry.uninstall()


def train(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], *, spoil: int | None, steps: int = 5) -> list[Incident]:
    found: list[Incident] = []
    net = nn.Linear(3, 2)
    with nanopsy.watch(found.append) as diagnosis:
        optimizer = make(list(net.parameters()))
        for step in range(steps):
            loss = net(torch.randn(4, 3)).pow(2).mean() * (float("nan") if step == spoil else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert diagnosis.steps == steps
    return found


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer(name: str) -> None:
    assert train(OPTIMIZERS[name], spoil=None) == []
    found = train(OPTIMIZERS[name], spoil=3)
    assert found[0].step == 3
    assert found[0].what is What.LOSS


def test_a_finite_loss_with_bad_gradients_is_a_gradient_incident() -> None:
    found: list[Incident] = []
    x = nn.Parameter(torch.zeros(2))
    with nanopsy.watch(found.append):
        optimizer = torch.optim.SGD([x], lr=0.1)
        (x * x).sum().sqrt().backward()
        optimizer.step()
    assert [incident.what for incident in found] == [What.GRADIENT]


def test_two_optimizers_and_zero_grad_after() -> None:
    found: list[Incident] = []
    a, b = nn.Linear(2, 2), nn.Linear(2, 2)
    with nanopsy.watch(found.append) as diagnosis:
        first, second = torch.optim.Adam(a.parameters()), torch.optim.SGD(b.parameters(), lr=0.1)
        for step in range(4):
            for net, optimizer in ((a, first), (b, second)):
                loss = net(torch.randn(3, 2)).pow(2).mean()
                (loss * math.inf if step == 2 and net is b else loss).backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=step % 2 == 0)
    assert diagnosis.steps == 8
    assert found[0].step == 5


def test_lbfgs_closure_is_checked_each_time() -> None:
    found: list[Incident] = []
    net = nn.Linear(2, 1)
    with nanopsy.watch(found.append):
        optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
        calls = 0

        def closure() -> torch.Tensor:
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss: torch.Tensor = net(torch.ones(3, 2)).pow(2).mean() * (float("nan") if calls == 2 else 1.0)
            loss.backward()
            return loss

        optimizer.step(closure)
    assert len(found) >= 1


def test_sparse_complex_half_and_frozen_parameters() -> None:
    found: list[Incident] = []
    embedding = nn.Embedding(5, 3, sparse=True)
    spectrum = nn.Parameter(torch.randn(3, dtype=torch.complex64))
    half = nn.Parameter(torch.randn(3, dtype=torch.float16))
    frozen = nn.Parameter(torch.randn(3), requires_grad=False)
    with nanopsy.watch(found.append):
        sparse = torch.optim.SparseAdam(list(embedding.parameters()))
        dense = torch.optim.SGD([spectrum, half, frozen], lr=0.01)
        for bad in (False, True):
            factor = float("inf") if bad else 1.0
            embedding(torch.tensor([0, 2])).sum().backward()
            ((spectrum.abs() ** 2).sum() + half.float().sum() + frozen.sum()).mul(factor).backward()
            sparse.step()
            dense.step()
            sparse.zero_grad()
            dense.zero_grad()
    assert len(found) == 1


def test_large_finite_gradients_are_not_bad() -> None:
    found: list[Incident] = []
    x = nn.Parameter(torch.full((4,), 1.0))
    with nanopsy.watch(found.append):
        optimizer = torch.optim.SGD([x], lr=0.0)
        (x[0] * 3e37).backward()
        optimizer.step()
        x.grad = torch.full((4,), 3e38)
        assert not math.isfinite(float(torch.linalg.vector_norm(x.grad)))
        optimizer.step()
    assert found == []


def test_gradients_keep_their_version_and_their_graph() -> None:
    x = nn.Parameter(torch.ones(2))
    with nanopsy.watch():
        optimizer = torch.optim.SGD([x], lr=0.0)
        (gradient,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        x.grad = gradient
        version = gradient._version
        optimizer.step()
        assert gradient._version == version
        assert gradient.grad_fn is not None


class TestGradScaler:
    def run(self, steps: int, spoil: Callable[[int], bool], scale: float = 2.0**16) -> tuple[list[Incident], Any]:
        found: list[Incident] = []
        net = nn.Linear(2, 1)
        with nanopsy.watch(found.append):
            optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
            scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=1000)
            for step in range(steps):
                loss = net(torch.randn(4, 2)).pow(2).mean()
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                if spoil(step):
                    net.weight.grad.fill_(math.inf)
                scaler.step(optimizer)
                scaler.update()
        return found, scaler

    def test_early_overflows_are_normal(self) -> None:
        found, scaler = self.run(6, lambda step: step < 3)
        assert found == []
        assert scaler.get_scale() == 2.0**13

    def test_a_scaled_loss_may_overflow(self) -> None:
        found, _ = self.run(1, lambda step: False, scale=3e38)
        assert found == []

    def test_many_skips_in_a_row_are_an_incident(self) -> None:
        found, _ = self.run(SKIPS_IN_A_ROW + 1, lambda step: True)
        assert found
        assert found[0].what is What.SCALE


def test_the_ring_remembers_recent_steps() -> None:
    found: list[Incident] = []
    x = nn.Parameter(torch.tensor(1.0))
    with nanopsy.watch(found.append):
        optimizer = torch.optim.SGD([x], lr=0.1)
        for factor in (1.0, 2.0, 4.0, math.nan):
            optimizer.zero_grad()
            (x * factor).backward()
            optimizer.step()
    losses = [entry["loss"] for entry in found[0].history]
    assert len(losses) == 3
    assert all(isinstance(later, float) and isinstance(earlier, float) and later > earlier for earlier, later in pairwise(losses))


def test_on_incident_may_stop_the_training_before_the_weights_are_written() -> None:
    class Halt(Exception):
        pass

    def stop(incident: Incident) -> None:
        raise Halt

    x = nn.Parameter(torch.ones(2))
    with pytest.raises(Halt), nanopsy.watch(stop):
        optimizer = torch.optim.SGD([x], lr=0.1)
        (x * math.nan).sum().backward()
        optimizer.step()
    assert torch.isfinite(x).all()


def test_hooks_are_gone_afterwards() -> None:
    backward, grad = torch.autograd.backward, torch.autograd.grad
    with nanopsy.watch():
        assert torch.autograd.backward is not backward
    assert torch.autograd.backward is backward
    assert torch.autograd.grad is grad


@given(
    st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=0, max_size=20),
    st.sampled_from([torch.float32, torch.float64, torch.float16, torch.bfloat16]),
)
def test_bad_elements_is_exact(values: list[float], dtype: torch.dtype) -> None:
    tensor = torch.tensor(values, dtype=torch.float64).to(dtype)
    assert bad_elements(tensor) == any(not math.isfinite(value) for value in tensor.tolist())


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=8), min_size=1, max_size=5))
def test_total_norm_is_the_norm_of_all(rows: list[list[float]]) -> None:
    tensors = [torch.tensor(row) for row in rows]
    reference = torch.cat(tensors).double().norm().item()
    norm, extra = total_norm(tensors, [torch.tensor(2.5)])
    assert norm == pytest.approx(reference, rel=1e-5, abs=1e-30)
    assert extra == [2.5]
    assert gradients([nn.Parameter(torch.ones(1))]) == []


def test_an_autopsy_inside_a_watch_is_not_a_step_of_the_training() -> None:
    """The docs advise it: pass the step to autopsy when the watch reports it."""
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    optimizer = torch.optim.SGD([weight], 0.1)
    found: list[Incident] = []
    with nanopsy.watch(found.append) as seen:
        diagnosis = nanopsy.autopsy(lambda: torch.sqrt((weight - weight).sum()))
        weight.sum().backward()
        optimizer.step()
    assert diagnosis.incidents[0].findings[0].code.startswith("NAN1")
    assert found == []
    assert seen.steps == 1


class HashedByItsValues(nn.Module):
    """As torchmetrics' Metric: the hash reads attributes that do not exist while the module is being made, and changes with its state."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = [1.0]

    def __hash__(self) -> int:
        return hash(tuple(self.values))


class Unhashable(nn.Module):
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(2))


@pytest.mark.parametrize("kind", [HashedByItsValues, Unhashable])
def test_modules_are_known_by_identity_not_by_hash(kind: type[nn.Module]) -> None:
    with nanopsy.watch():
        module, other = kind(), kind()
        if isinstance(module, HashedByItsValues):
            module.values.append(2.0)
        known = list(registry.REGISTRY.modules)
        assert sum(each is module for each in known) == 1
        assert sum(each is other for each in known) == 1
        assert registry.REGISTRY.module_site(module) is not None
    count = len(registry.REGISTRY.modules)
    del module, known
    assert len(registry.REGISTRY.modules) == count - 1, "nothing is kept alive"


def test_a_torchmetrics_metric_can_be_made_and_used_under_the_watch() -> None:
    from torchmetrics import MeanMetric

    with nanopsy.watch():
        metric = MeanMetric()
        metric.update(torch.tensor(2.0))
    assert float(metric.compute()) == 2.0
