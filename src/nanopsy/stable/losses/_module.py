"""The module form of a loss function: its keyword options are given once, at construction."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn

from nanopsy.stable._arguments import ArgumentError


class Loss(nn.Module):
    """``Loss(option=…)(prediction, target, mask)`` is ``function(prediction, target, mask, option=…)``.

    Subclasses name their function. Options are those of the function; an unknown one is refused at construction.
    """

    function: ClassVar[Callable[..., Tensor]]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        known = [name for name, p in inspect.signature(type(self).function).parameters.items() if p.default is not p.empty or p.kind is p.KEYWORD_ONLY]
        for name in options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                raise ArgumentError(
                    f"unknown option {name!r}",
                    where=f"nanopsy.stable.{type(self).__name__}",
                    why="a misspelled option would train another loss than the one you meant",
                    do=f"did you mean {near[0]!r}?" if near else f"options: {', '.join(known)}",
                )
        self.names = tuple(options)
        for name, value in options.items():
            if isinstance(value, Tensor):
                self.register_buffer(name, value, persistent=False)  # it moves with the module
            else:
                setattr(self, name, value)

    def forward(self, *tensors: Any, **named: Any) -> Tensor:
        return type(self).function(*tensors, **{**{name: getattr(self, name) for name in self.names}, **named})

    def extra_repr(self) -> str:
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.names)
