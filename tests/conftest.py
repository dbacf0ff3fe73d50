"""Settings of the whole test suite."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

# Timings never decide a test: the first call of a torch kernel is slow.
settings.register_profile("nanopsy", deadline=None)
settings.load_profile("nanopsy")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For tests that train: small networks' threads wait for each other, and the suite runs in two processes already."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
