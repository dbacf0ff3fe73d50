"""``pytest --nanopsy``: a test fails where a bad value is born, healthy ones pass, and nothing is imported or slowed for the others."""

from __future__ import annotations

import textwrap
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from nanopsy import autopsy, registry
from nanopsy.causes import load
from nanopsy.causes._cause import Cause
from nanopsy.findings import Diagnosis
from nanopsy.tested import Record, examined

pytest_plugins = ["pytester"]

# Where the installed package has the entry point, pytest has loaded the plugin; loading it under a second name is an error.
PLUGIN = () if list(entry_points(group="pytest11", name="nanopsy")) else ("-p", "_nanopsy_pytest")
OPTIONS = (*PLUGIN, "-p", "no:cacheprovider", "--strict-markers", "-W", "ignore")

LOSSES = """
    import torch


    def silog(prediction, depth):
        valid = depth > 0
        difference = torch.log(prediction[valid]) - torch.log(depth[valid])
        return torch.sqrt(torch.var(difference) + 0.15 * difference.mean() ** 2)
"""


def run(pytester: pytest.Pytester, test: str, *options: str, losses: str = LOSSES) -> pytest.RunResult:
    pytester.makepyfile(losses=textwrap.dedent(losses).lstrip("\n"), test_it=textwrap.dedent(test).lstrip("\n"))
    return pytester.runpytest_subprocess(*OPTIONS, *options, timeout=240)


ONE_PIXEL = """
    import torch
    from losses import silog


    def test_one_valid_pixel():
        silog(torch.rand(4, requires_grad=True), torch.tensor([0.0, 3.0, 0.0, 0.0])).backward()
"""


def test_a_bad_loss_fails_its_test_at_the_line_of_its_birth(pytester: pytest.Pytester) -> None:
    said = run(pytester, ONE_PIXEL, "--nanopsy")
    said.assert_outcomes(failed=1)
    said.stdout.fnmatch_lines(
        [
            "NAN301 bessel-of-one losses.py:7:23: var over 1 element with correction 1: N - 1 = 0, 0/0",
            "    return torch.sqrt(torch.var(difference) + 0.15 * difference.mean() ?? 2)",
            "                      ^^^^^^^^^^^^^^^^^^^^^",
            "    1 element because of a mask that kept 1 of 4 (losses.py:6:28)",
            "  see also losses.py:6:28, test_it.py:6:5",
            "    +    return torch.sqrt(torch.var(difference, correction=0) + 0.15 * difference.mean() ?? 2)",
        ]
    )
    said.stdout.fnmatch_lines(["FAILED test_it.py::test_one_valid_pixel - Failed: NAN301 bessel-of-one*"])


def test_without_the_option_the_same_test_passes(pytester: pytest.Pytester) -> None:
    run(pytester, ONE_PIXEL).assert_outcomes(passed=1)


def test_a_bad_gradient_of_a_finite_loss_fails(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
        import torch

        def test_root():
            x = torch.zeros(3, requires_grad=True)
            loss = (x.sum() + 1) * torch.sqrt(x * x).sum()
            loss.backward()
        """,
        "--nanopsy",
    )
    said.assert_outcomes(failed=1)
    said.stdout.fnmatch_lines(["NAN101 sqrt-at-zero test_it.py:5:28: *", "nanopsy: non-finite gradient at step 0"])


HEALTHY = """
    import torch
    from torch import nn


    def test_training():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
        optimizer = torch.optim.Adam(net.parameters())
        for _ in range(5):
            optimizer.zero_grad()
            net(torch.randn(8, 3)).pow(2).mean().backward()
            optimizer.step()


    def test_infinities_that_reach_no_gradient():
        x = torch.rand(2, 4, requires_grad=True)
        masked = x.masked_fill(torch.eye(2, 4).bool(), float("-inf")).softmax(1)
        seen = torch.log(torch.zeros(3)).sum()
        masked.pow(2).sum().backward()
        assert seen.isinf()
        assert torch.where(x > 0, x, x.log()).isfinite().all()


    def test_gradients_for_the_test_to_judge():
        x = torch.zeros(1, requires_grad=True)
        assert torch.autograd.grad(x.sqrt().sum(), x)[0].isinf().all()


    def test_an_overflow_of_the_scaler():
        w = torch.ones(2, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale((w * 3).sum()).backward()
            scaler.step(optimizer)
            scaler.update()


    def test_second_order():
        w = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.LBFGS([w])

        def closure():
            optimizer.zero_grad()
            loss = (w - 2).pow(2).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert torch.allclose(w, torch.full((3,), 2.0))


    def test_tracing_and_transforms():
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx

        assert torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))(torch.ones(3, 2)).sum() == 12
        graph = make_fx(lambda x: x.sin())(torch.ones(2))
        assert [node.name for node in graph.graph.nodes] == ["x_1", "sin", "output"]
        with FakeTensorMode():
            (torch.ones(3, requires_grad=True) * 2).sum().backward()
        torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),)).module()(torch.ones(1, 2))
        torch.autograd.gradcheck(lambda x: x.sin().sum(), torch.rand(4, dtype=torch.double, requires_grad=True))
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: (x * 2).sum(), backend="aot_eager")(x).backward()
        assert x.grad.tolist() == [2, 2, 2]
"""


def test_what_is_healthy_passes(pytester: pytest.Pytester) -> None:
    run(pytester, HEALTHY, "--nanopsy").assert_outcomes(passed=6)


def test_xdist(pytester: pytest.Pytester) -> None:
    said = run(pytester, textwrap.dedent(ONE_PIXEL) + textwrap.dedent(HEALTHY), "--nanopsy", "-n", "2")
    said.assert_outcomes(failed=1, passed=6)
    said.stdout.fnmatch_lines(["NAN301 bessel-of-one losses.py:7:23: *"])


def test_the_marker_lets_a_test_make_nan_on_purpose(pytester: pytest.Pytester) -> None:
    marked = (
        textwrap.dedent(ONE_PIXEL)
        .replace("def test_one", "@pytest.mark.nanopsy_off\ndef test_one")
        .replace("import torch\n", "import pytest\nimport torch\n", 1)
    )
    run(pytester, marked, "--nanopsy").assert_outcomes(passed=1)
    run(pytester, marked).assert_outcomes(passed=1)


def test_an_expected_failure_is_one(pytester: pytest.Pytester) -> None:
    marked = (
        textwrap.dedent(ONE_PIXEL)
        .replace("def test_one", "@pytest.mark.xfail(strict=True)\ndef test_one")
        .replace("import torch\n", "import pytest\nimport torch\n", 1)
    )
    run(pytester, marked, "--nanopsy").assert_outcomes(xfailed=1)


def test_a_failure_cannot_be_swallowed(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
        import torch

        def bad():
            (torch.zeros(1, requires_grad=True) / 0).sum().backward()

        def test_by_exception():
            try:
                bad()
            except Exception:
                pass

        def test_by_base_exception():
            try:
                bad()
            except BaseException:
                pass

        def test_by_another():
            try:
                bad()
            except BaseException:
                raise KeyError("the test's own")
        """,
        "--nanopsy",
    )
    said.assert_outcomes(failed=3)
    said.stdout.fnmatch_lines(["*Captured nanopsy call*", "NAN303* test_it.py:4:6: *"])
    said.stdout.fnmatch_lines(["FAILED test_it.py::test_by_another - KeyError: *own*"])


def test_unittest_and_hypothesis(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
        import unittest

        import torch
        from hypothesis import given, settings, strategies as st
        from losses import silog

        class TestLoss(unittest.TestCase):
            def test_one_pixel(self):
                silog(torch.rand(4, requires_grad=True), torch.tensor([0.0, 3.0, 0.0, 0.0])).backward()

        @settings(deadline=None, database=None)
        @given(st.integers(1, 9))
        def test_any_count(count):
            silog(torch.rand(9, requires_grad=True), (torch.arange(9) < count).float()).backward()
        """,
        "--nanopsy",
    )
    said.assert_outcomes(failed=2)
    assert said.stdout.str().count("FAILED test_it.py") == 2
    said.stdout.fnmatch_lines(["NAN301 *", "*test_any_count(*", "*count=1,*"])
    assert said.stdout.str().count("NAN301 bessel-of-one losses.py:7:23: ") >= 2


def test_a_diverging_training_names_its_optimizer(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
        import pytest
        import torch
        from torch import nn

        @pytest.fixture(scope="module")
        def spoilt():
            net = nn.Linear(2, 1)
            net.weight.data.fill_(float("nan"))
            return torch.optim.SGD(net.parameters(), lr=0.5)

        def test_training(spoilt):
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))
            optimizer = torch.optim.SGD(net.parameters(), lr=1e4)
            for _ in range(30):
                optimizer.zero_grad()
                net(torch.randn(16, 3)).pow(2).mean().backward()
                optimizer.step()
        """,
        "--nanopsy",
    )
    said.assert_outcomes(failed=1)
    said.stdout.fnmatch_lines(["NAN601 learning-rate-divergence test_it.py:14:17: training diverged at learning rate 10000: *"])


@pytest.mark.parametrize("option", [(), ("--nanopsy",)], ids=["off", "on"])
def test_nothing_is_imported_for_tests_without_torch(pytester: pytest.Pytester, option: tuple[str, ...]) -> None:
    said = run(
        pytester,
        """
        import sys

        def test_one():
            pass

        def test_two():
            assert [name for name in sys.modules if name.split(".")[0] in ("torch", "nanopsy")] == []
        """,
        *option,
        losses="",
    )
    said.assert_outcomes(passed=2)


def test_torch_imported_by_a_test_is_watched_from_the_next_one_on(pytester: pytest.Pytester) -> None:
    said = run(
        pytester,
        """
        def bad():
            import torch

            (torch.zeros(1, requires_grad=True) / 0).sum().backward()

        def test_first():
            bad()

        def test_second():
            bad()
        """,
        "--nanopsy",
        losses="",
    )
    said.assert_outcomes(passed=1, failed=1)
    said.stdout.fnmatch_lines(["FAILED test_it.py::test_second - Failed: NAN303*"])


FUNCTIONS = {code: cause for code, cause in load().items() if cause.runs_as == "function"}


@pytest.mark.filterwarnings("ignore:var:UserWarning", "ignore:std:UserWarning")
@pytest.mark.parametrize("cause", FUNCTIONS.values(), ids=FUNCTIONS.keys())
@pytest.mark.parametrize("kind", ["bad", "good"])
def test_one_recording_says_of_each_cause_what_an_autopsy_says(cause: Cause, kind: str, tmp_path: Path) -> None:
    file = tmp_path / f"{kind}.py"
    file.write_text(textwrap.dedent(getattr(cause, kind)))
    names: dict[str, Any] = {"__name__": "snippet"}
    exec(compile(file.read_text(), str(file), "exec"), names)
    told: list[Diagnosis] = []
    torch.manual_seed(0)
    with examined(told.append):
        names["loss"]().backward()
    registry.uninstall()
    if kind == "good":
        assert told == []
        return
    first = told[0].findings[0]
    torch.manual_seed(0)
    expected = autopsy(names["loss"]).findings[0]
    assert (first.code, first.location, first.message) == (cause.code, expected.location, expected.message)


class TestTheRecording:
    """The trace of a whole test, in process."""

    def found(self, body: object) -> list[Diagnosis]:
        told: list[Diagnosis] = []
        try:
            with examined(told.append) as test:
                body()  # type: ignore[operator]
                assert test.trace.broken == ""
        finally:
            registry.uninstall()
        return told

    def test_a_long_training_is_recorded_in_stretches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nanopsy.tested.STRETCH", 50)
        w = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([w], lr=0.1)
        lengths = []
        with examined(lambda diagnosis: None) as test:
            for _ in range(20):
                optimizer.zero_grad()
                (w * 2).pow(2).sum().backward()
                optimizer.step()
                lengths.append(len(test.trace.recording.ops))
        registry.uninstall()
        assert max(lengths) <= 50
        assert sum(later < earlier for earlier, later in pairwise(lengths)) >= 4

    def test_a_step_after_many_stretches_is_explained(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nanopsy.tested.STRETCH", 50)
        w = torch.nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([w], lr=0.1)

        def body() -> None:
            for step in range(20):
                optimizer.zero_grad()
                loss = (w * 2).pow(2).sum() + torch.var(w[: 1 if step == 19 else 2])
                loss.backward()
                optimizer.step()

        with pytest.warns(UserWarning, match="degrees of freedom"):
            told = self.found(body)
        assert [finding.code for finding in told[0].findings] == ["NAN301"]
        assert told[0].incidents[0].step == 19

    def test_a_weight_is_not_what_it_was_before_the_optimizer_wrote(self) -> None:
        def body() -> None:
            w = torch.nn.Parameter(torch.zeros(2))
            w.data = torch.zeros(2)
            optimizer = torch.optim.SGD([w], lr=1.0)
            (w.sum() * -4).backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.sqrt(w - 4).sum().backward()

        told = self.found(body)
        finding = told[0].findings[0]
        assert finding.code == "NAN101"
        assert "constant (zeros)" not in finding.message

    def test_a_running_variance_is_not_what_its_buffer_was_made_with(self, tmp_path: Path) -> None:
        """The script of the cause trains several steps, all in one recording: the buffer that a batch norm spoils was made of ones in it."""
        cause = load()["NAN304"]
        file = tmp_path / "train.py"
        file.write_text(textwrap.dedent(cause.bad))

        class Enough(Exception):
            pass

        told: list[Diagnosis] = []

        def tell(diagnosis: Diagnosis) -> None:
            told.append(diagnosis)
            raise Enough

        with pytest.raises(Enough), examined(tell):
            exec(compile(file.read_text(), str(file), "exec"), {"__name__": "snippet"})
        registry.uninstall()
        assert told[0].findings[0].code == cause.code

    def test_an_autopsy_inside_a_test_is_not_the_tests(self) -> None:
        import nanopsy

        x = torch.zeros(2, requires_grad=True)
        codes: list[str] = []
        told = self.found(lambda: codes.append(nanopsy.autopsy(lambda: (x / x).sum()).findings[0].code))
        assert told == []
        assert codes == ["NAN209"]

    def test_a_fault_of_the_bookkeeping_does_not_break_the_test(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Record, "_wrote", lambda *args: 1 / 0)
        told: list[Diagnosis] = []
        x = torch.zeros(2, requires_grad=True)
        with examined(told.append) as test:
            assert (torch.ones(2) + 1).tolist() == [2, 2]
            (x / x).sum().backward()
        registry.uninstall()
        assert "ZeroDivisionError" in test.trace.broken
        assert [finding.code for finding in told[0].findings] == ["NAN999"]
        assert "please report this" in told[0].notes[0]

    def test_a_value_from_before_a_cut_is_not_called_data(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def body() -> None:
            x = torch.zeros(2, requires_grad=True)
            loss = (x / x).sum()
            for _ in range(30):
                torch.ones(1) + 1
            loss.backward()

        assert self.found(body)[0].findings[0].code == "NAN209"
        monkeypatch.setattr("nanopsy.tested.MOST", 25)
        told = self.found(body)
        assert [finding.code for finding in told[0].findings] == ["NAN999"]
        assert "too many operators" in told[0].notes[0]

    def test_an_error_of_an_operator_is_the_tests_own(self) -> None:
        with pytest.raises(RuntimeError, match="must match"):
            self.found(lambda: torch.ones(2) + torch.ones(3))

    def test_the_modes_and_functions_are_put_back(self) -> None:
        from torch.utils._python_dispatch import _get_current_dispatch_mode

        before = torch.autograd.backward
        self.found(lambda: None)
        assert torch.autograd.backward is before
        assert _get_current_dispatch_mode() is None
