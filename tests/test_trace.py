"""The trace sees every operator, follows memory, and never takes uninitialised memory for a birth."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import nanopsy
from nanopsy.findings import Finding
from nanopsy.registry import Registry
from nanopsy.story import Story
from nanopsy.trace import Recording, Ref, Trace, interesting


def traced(run: object, weights: tuple[torch.Tensor, ...] = ()) -> tuple[Recording, torch.Tensor]:
    trace = Trace(set(), range(1 << 30))
    trace.start()
    try:
        out = run()  # type: ignore[operator]
    finally:
        recording = trace.stop()
    return recording, out


@given(st.permutations([0, 1, 2]), st.lists(st.integers(1, 4), min_size=3, max_size=3), st.integers(0, 5))
def test_positions_and_indices_are_inverse(order: list[int], shape: list[int], offset: int) -> None:
    tensor = torch.zeros(shape).permute(order)
    ref = Ref(1, offset, tuple(tensor.shape), tensor.stride(), tensor.dtype, 0)
    for index in [(0, 0, 0), tuple(size - 1 for size in ref.shape)]:
        assert ref.index_of(ref.position(index)) is not None
        assert ref.position(ref.index_of(ref.position(index)) or ()) == ref.position(index)
    assert ref.index_of(offset - 1) is None


def test_in_place_writes_are_followed_to_the_element() -> None:
    def run() -> torch.Tensor:
        out = torch.zeros(4)
        out[1] = torch.tensor(2.0).exp()
        out[2:] = torch.log(torch.tensor([1.0, 0.0]))
        return out * 2

    recording, _ = traced(run)
    multiply = recording.ops[-1]
    source = multiply.inputs[0]
    makers = [recording.producer(source, (i,)) for i in range(4)]
    assert [maker[0].name if maker else None for maker in makers] == ["zeros", "copy_", "copy_", "copy_"]
    story = Story(recording, Registry(), {}, {})
    chain = story.ancestry(multiply.outputs[0], (3,), -math.inf).chain
    assert chain[-1].op.name == "log"


def test_uninitialised_memory_is_no_birth() -> None:
    def run() -> torch.Tensor:
        out = torch.empty(64)
        out.view(torch.int32).fill_(0x7FC00000)
        again = torch.empty_like(out)
        again.copy_(torch.ones(64))
        return again.sum()

    recording, out = traced(run)
    assert float(out) == 64
    assert not any(op.birth for op in recording.ops)


def test_backward_operators_know_their_forward_operator() -> None:
    x = torch.tensor([0.0, 1.0], requires_grad=True)

    def run() -> torch.Tensor:
        y = torch.sqrt(x) * 3
        y.sum().backward()
        return y

    recording, _ = traced(run)
    births = [op for op in recording.ops if op.birth]
    assert [op.node for op in births] == ["SqrtBackward0"]
    forward = recording.forward_of(births[0])
    assert forward is not None
    assert forward.name == "sqrt"


def test_only_the_neighbourhood_of_a_birth_is_kept_when_the_step_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanopsy.trace.KEEP_ALL", 1000)

    def run() -> torch.Tensor:
        x = torch.randn(400)
        for _ in range(100):
            x = x.sin()
        return torch.log(x - x) + 1

    recording, _ = traced(run)
    chosen = interesting(recording, [recording.ops[-1].outputs[0]])
    log = next(op for op in recording.ops if op.name == "log")
    assert log.index in chosen
    assert len(chosen) < len(recording.ops) // 2


def first(loss: object) -> Finding:
    return nanopsy.autopsy(loss).findings[0]  # type: ignore[arg-type]


class TestNotBlamed:
    """Today's PyTorch defines these subgradients; nothing bad is seen, so nothing is said."""

    @pytest.mark.parametrize(
        "loss",
        [
            lambda x: torch.linalg.vector_norm(x),
            lambda x: torch.norm(x),
            lambda x: x.std(),
            lambda x: torch.cdist(x[None], x[None]).sum(),
            lambda x: torch.atan2(x, x).sum(),
            lambda x: torch.nn.functional.normalize(x, dim=0).sum(),
        ],
    )
    def test_norms_at_zero(self, loss: object) -> None:
        x = torch.zeros(3, requires_grad=True)
        assert nanopsy.autopsy(lambda: loss(x)).incidents == []  # type: ignore[operator]

    def test_intended_infinities(self) -> None:
        scores = torch.randn(2, 4, requires_grad=True)
        mask = torch.tensor([[False, True, True, False]])

        def loss() -> torch.Tensor:
            best = torch.full((4,), math.inf)
            p = torch.softmax(scores.masked_fill(mask, -math.inf), -1)
            return p.pow(2).sum() + torch.minimum(best, scores[0]).sum()

        assert nanopsy.autopsy(loss).incidents == []

    def test_a_detached_or_unused_bad_value(self) -> None:
        x = torch.ones(3, requires_grad=True)

        def loss() -> torch.Tensor:
            _ = torch.log(torch.zeros(3))
            return (x * 2).sum()

        assert nanopsy.autopsy(loss).incidents == []


class TestStories:
    def test_the_float64_shadow_shows_the_cancelled_value(self) -> None:
        x = torch.tensor([2.3000002, 2.3, 2.3, 2.3, 2.3000002], requires_grad=True)
        finding = first(lambda: torch.sqrt((x**2).mean() - x.mean() ** 2 - 1e-7))
        assert "in float64" in finding.message

    def test_a_value_is_followed_across_functions(self) -> None:
        logit = torch.tensor([-200.0, 0.0], requires_grad=True)

        def head() -> torch.Tensor:
            return 80 * torch.sigmoid(logit)

        def criterion(depth: torch.Tensor) -> torch.Tensor:
            return depth[depth >= 0].log().mean()

        finding = first(lambda: criterion(head()))
        assert finding.code == "NAN201"
        head_line = head.__code__.co_firstlineno + 1
        assert head_line in [place.line for place in finding.also]

    def test_gradient_of_leaves_is_put_back(self) -> None:
        x = torch.ones(2, requires_grad=True)
        x.grad = torch.full((2,), 7.0)
        nanopsy.autopsy(lambda: (x / 0).sum())
        assert x.grad.tolist() == [7.0, 7.0]

    def test_not_a_loss(self) -> None:
        with pytest.raises(nanopsy.NanopsyError, match="one element"):
            nanopsy.autopsy(lambda: torch.ones(3))

    def test_html_is_escaped(self) -> None:
        x = torch.zeros(2, requires_grad=True)
        html = nanopsy.autopsy(lambda: (x / x).sum())._repr_html_()
        assert "->" not in html
        assert "-&gt;" in html
