"""nanopsy, the NaN autopsy: the line, the class of mistake and a verified fix of a training run that went NaN.

``import nanopsy`` does not import torch; the names below do so when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nanopsy.errors import NanopsyError, NonFiniteStep
from nanopsy.findings import Diagnosis, Finding, Incident, Location

if TYPE_CHECKING:
    from nanopsy.library import autopsy, watch

__version__ = "0.1.0"
__all__ = ["Diagnosis", "Finding", "Incident", "Location", "NanopsyError", "NonFiniteStep", "__version__", "autopsy", "watch"]


def __getattr__(name: str) -> Any:
    if name in ("autopsy", "watch"):
        from nanopsy import library

        return getattr(library, name)
    raise AttributeError(f"module 'nanopsy' has no attribute {name!r}")


def load_ipython_extension(ipython: Any) -> None:
    """``%load_ext nanopsy``: gives IPython and Jupyter the cell magic ``%%autopsy``. torch is imported when the magic is first used."""
    from nanopsy import notebook

    notebook.install(ipython)


def unload_ipython_extension(ipython: Any) -> None:
    """``%unload_ext nanopsy``: takes the magic away again."""
    from nanopsy import notebook

    notebook.uninstall(ipython)
