"""Settings of the whole test suite."""

from hypothesis import settings

# Timings never decide a test: the first call of a torch kernel is slow.
settings.register_profile("nanopsy", deadline=None)
settings.load_profile("nanopsy")
