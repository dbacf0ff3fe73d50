"""The pytest plugin: ``pytest --nanopsy`` fails a test where it calls ``backward`` on a bad loss, or gets a bad gradient, and says why.

It lies beside the package, not in it, so that a run of pytest without the option imports nothing of nanopsy. With the option nothing is imported
either until a test begins while torch is there: a suite that never imports torch is not made to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from nanopsy.findings import Diagnosis


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("nanopsy").addoption(
        "--nanopsy", action="store_true", help="fail a test where a NaN or inf reaches backward() or an optimizer step, with its line and cause (slower)"
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nanopsy_off: not watched by --nanopsy, for a test that makes a bad loss or gradient on purpose")
    if config.getoption("nanopsy"):
        config.pluginmanager.register(Watching(), "nanopsy-watching")


class Watching:
    """The hooks of a run with ``--nanopsy``."""

    def pytest_report_header(self) -> str:
        return "nanopsy: tests that use torch fail where a NaN or inf reaches backward() or an optimizer step"

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        if sys.modules.get("torch") is None or item.get_closest_marker("nanopsy_off") is not None:
            return (yield)
        from nanopsy.tested import examined

        seen: list[str] = []

        def fail(diagnosis: Diagnosis) -> None:
            __tracebackhide__ = True
            seen.append(_text(diagnosis))
            pytest.fail(seen[-1], pytrace=False)

        try:
            with examined(fail):
                result = yield
        except BaseException as error:
            if isinstance(error, pytest.fail.Exception) and error.msg in seen:
                error.msg = "\n".join([error.msg, *getattr(error, "__notes__", ())])  # hypothesis notes the example that fails
            elif seen:  # the test made something else of the failure
                item.add_report_section("call", "nanopsy", seen[0])
            raise
        if seen:
            pytest.fail(seen[0], pytrace=False)
        return result

    def pytest_unconfigure(self) -> None:
        registry = sys.modules.get("nanopsy.registry")
        if registry is not None:
            registry.uninstall()


def _text(diagnosis: Diagnosis) -> str:
    """The report, below a first line that pytest's short summary can show alone."""
    finding, incident = next(iter(diagnosis.findings), None), diagnosis.incidents[0]
    if finding is None:
        return f"non-finite {incident.what}\n{diagnosis}"
    place = f" {finding.location}" if finding.location is not None else ""
    first = f"{finding.code} {finding.slug}{place}: {finding.message}".replace(os.getcwd() + os.sep, "")
    return f"{first}\n{diagnosis}"
