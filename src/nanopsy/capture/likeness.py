"""Whether a smaller chain fails as the whole one does, and not in some way of its own.

A selection that has become empty, a variance that is left with one element, a quotient that is now 0/0 where it was 1/0: all of them are
bad values, and none of them is *this* bad value. Likeness is what has to stay while a chain is cut down.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from nanopsy.capsule.chain import Chain, ChainStep, tensors_of
from nanopsy.capture.execute import Result

_CORRECTED = frozenset({"var", "std", "var_mean", "std_mean"})
_FEW = 2


def _kind(value: float) -> str:
    """What matters of a number for how an operator fails on it."""
    if math.isnan(value):
        return "nan"
    sign = "-" if value < 0 else ""
    return f"{sign}inf" if math.isinf(value) else "0" if value == 0 else f"{sign}x"


def operands_of(step: ChainStep) -> list[str]:
    """The names of the tensors that a step reads."""
    return tensors_of([*step.args, *step.kwargs.values()])


@dataclass(frozen=True, slots=True)
class Likeness:
    """What is kept: emptiness and kinds of values of every result, the size of what a variance runs over, the operands of the bad element."""

    results: tuple[tuple[str, bool, bool, bool, bool], ...]
    counts: tuple[tuple[str, int], ...]
    focus: tuple[str, ...] | None

    @classmethod
    def of(cls, chain: Chain, result: Result) -> Likeness:
        """The likeness of a chain that was run; its focus is the first bad element of the last operator."""
        return cls(_results(chain, result), _counts(chain, result), next(iter(_foci(chain, result, once=True)), None))

    def holds(self, chain: Chain, result: Result) -> bool:
        """Whether a smaller chain's run still fails like this one."""
        if _results(chain, result) != self.results or _counts(chain, result) != self.counts:
            return False
        return self.focus is None or self.focus in _foci(chain, result, once=False)


def _results(chain: Chain, result: Result) -> tuple[tuple[str, bool, bool, bool, bool], ...]:
    found = []
    for step in chain.steps:
        for name in step.out:
            value = result.inside.get(name)
            if value is None:
                continue
            value = value.detach()
            if value.dtype == torch.bool:
                found.append((name, value.numel() == 0, bool(value.any()), False, False))
            else:
                exact = value.is_floating_point()
                nan, inf = exact and bool(value.isnan().any()), exact and bool(value.isinf().any())
                found.append((name, value.numel() == 0, nan, inf, False))
    for constant in chain.constants:
        value = result.inside[constant.name]
        selected = value.dtype == torch.bool and bool(value.any())
        found.append((constant.name, value.numel() == 0, selected, False, True))
    found += [
        (name, value is None, bool(value.isnan().any()), bool(value.isinf().any()), True) for name, value in result.values.items() if name.endswith(".grad")
    ]
    return tuple(found)


def _counts(chain: Chain, result: Result) -> tuple[tuple[str, int], ...]:
    """How many elements a corrected variance runs over, up to where the number no longer matters."""
    found = []
    for step in chain.steps:
        if step.op.split(".")[1] in _CORRECTED:
            for name in operands_of(step)[:1]:
                out = result.inside.get(step.out[0])
                per = result.inside[name].numel() // max(out.numel() if out is not None else 1, 1)
                found.append((name, min(per, _FEW)))
    return tuple(found)


def _foci(chain: Chain, result: Result, *, once: bool) -> list[tuple[str, ...]]:
    """The kinds of the operands (and of the arriving gradient) at bad elements of an element-wise last operator."""
    last = chain.steps[-1]
    out = result.inside.get(last.out[0])
    if out is None or not out.numel():
        return []
    names = [*operands_of(last), *([chain.backward[1]] if chain.backward else [])]
    try:
        wide = [result.inside[name].detach().to(torch.float64).expand(out.shape).reshape(-1) for name in names]
    except RuntimeError:
        return []
    places = (~torch.isfinite(out.detach().reshape(-1))).nonzero().reshape(-1) if chain.backward is None else _bad_gradients(chain, result, out)
    found: list[tuple[str, ...]] = []
    for place in places[: 1 if once else 64].tolist():
        found.append(tuple(_kind(float(value[place])) for value in wide))
    return found


def _bad_gradients(chain: Chain, result: Result, out: torch.Tensor) -> torch.Tensor:
    """The elements of the last operator at which a gradient of its own shape is bad; all of them when no shape says."""
    for name in result.bad:
        value = result.values[name]
        if value.shape == out.shape:
            return (~torch.isfinite(value.reshape(-1))).nonzero().reshape(-1)
    return torch.arange(min(out.numel(), 64)) if out.numel() == 1 else torch.arange(0)
