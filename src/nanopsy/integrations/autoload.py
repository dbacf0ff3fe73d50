"""What Lightning's entry points get: the callback when the environment says ``NANOPSY=1``, else nothing, and nothing is imported for it."""

from __future__ import annotations

import builtins
import os
from typing import Any

from nanopsy.instrument import NAME


def callbacks() -> list[Any]:
    """The callbacks that Lightning shall add to every Trainer; none where ``nanopsy run`` watches already."""
    if os.environ.get("NANOPSY") != "1" or getattr(getattr(builtins, NAME, None), "active", False):
        return []
    from nanopsy.integrations.lightning import NanopsyCallback

    return [NanopsyCallback()]
