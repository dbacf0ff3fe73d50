"""The failing chain: a few operators and the tensors that they start from, as plain data.

A chain is what is left of a step when everything that does not matter for its bad value is cut away. It is data, not code:
:mod:`nanopsy.capture.execute` runs it, operator by operator, and :mod:`nanopsy.capsule.script` writes it down as a script.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from nanopsy.errors import NanopsyError

MOST_STEPS = 64
MOST_OPERANDS = 64
DTYPES = frozenset({
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
})  # fmt: skip
_OPERATOR = re.compile(r"aten\._?[a-z][a-z0-9_]*\.[A-Za-z][A-Za-z0-9_]*")
_NAME = re.compile(r"[a-z][a-z0-9]{0,7}")
_REFUSED = frozenset({"from_file", "set_", "set", "resize_", "as_strided", "as_strided_", "empty", "empty_strided", "empty_like", "_efficientzerotensor"})
"""Operators that a chain never needs and that could read files or memory."""


def allowed(op: str) -> bool:
    """Whether a chain may hold an operator."""
    return _OPERATOR.fullmatch(op) is not None and op.split(".")[1] not in _REFUSED


@dataclass(frozen=True, slots=True)
class Spread:
    """What is known of a tensor's values without the values: finite range, counts."""

    low: float = math.nan
    high: float = math.nan
    zeros: int = 0
    bad: int = 0
    count: int = 0
    histogram: tuple[int, ...] = ()
    """Counts in equal bins from ``low`` to ``high``."""

    def to_dict(self) -> dict[str, object]:
        low, high = (None if math.isnan(value) else value for value in (self.low, self.high))
        return {"low": low, "high": high, "zeros": self.zeros, "bad": self.bad, "count": self.count, "histogram": list(self.histogram)}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Spread:
        low, high = (math.nan if entry[key] is None else float(entry[key]) for key in ("low", "high"))
        return cls(low, high, int(entry["zeros"]), int(entry["bad"]), int(entry["count"]), tuple(int(n) for n in entry["histogram"]))


@dataclass(frozen=True, slots=True)
class Constant:
    """A tensor that the chain starts from; its values are in the capsule under ``name``, or are drawn (``seed``)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    what: str = ""
    """Where it came from: a batch field, a weight, an expression."""
    requires_grad: bool = False
    whole: tuple[int, ...] = ()
    """Its shape before it was cut down to the elements that matter."""
    spread: Spread = field(default_factory=Spread)
    """Of the whole tensor."""
    zeros: int = 0
    """Zeros (or False) among the elements that are left."""
    bad: int = 0
    """NaN among the elements that are left."""

    def to_dict(self) -> dict[str, object]:
        return {"name": self.name, "dtype": self.dtype, "shape": list(self.shape), "what": self.what, "requires_grad": self.requires_grad,
                "whole": list(self.whole), "spread": self.spread.to_dict(), "zeros": self.zeros, "bad": self.bad}  # fmt: skip

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Constant:
        shapes = [tuple(int(size) for size in entry[key]) for key in ("shape", "whole")]
        if any(size < 0 for shape in shapes for size in shape) or math.prod(shapes[0]) > 1 << 26:
            raise ValueError(f"a tensor of shape {list(shapes[0])}")
        if entry["dtype"] not in DTYPES:
            raise ValueError(f"a tensor of dtype {entry['dtype']!r}")
        return cls(_name(entry["name"]), entry["dtype"], shapes[0], str(entry["what"]), bool(entry["requires_grad"]), shapes[1],
                   Spread.from_dict(entry["spread"]), int(entry["zeros"]), int(entry["bad"]))  # fmt: skip


@dataclass(frozen=True, slots=True)
class ChainStep:
    """One operator: names of its results, and its arguments (tensors by name)."""

    out: tuple[str, ...]
    op: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    location: str = ""
    code: str = ""
    """The user's expression, as written."""
    value: str = ""
    """The element that the bad value depends on, as it came out."""

    def to_dict(self) -> dict[str, object]:
        return {"out": list(self.out), "op": self.op, "args": list(self.args), "kwargs": dict(self.kwargs), "location": self.location, "code": self.code,
                "value": self.value}  # fmt: skip

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> ChainStep:
        op = str(entry["op"])
        if not allowed(op):
            raise ValueError(f"the operator {op!r}")
        args, kwargs = entry["args"], entry["kwargs"]
        for value in [*args, *kwargs.values()]:
            _check_argument(value, 2)
        if not all(isinstance(key, str) and key.isidentifier() for key in kwargs):
            raise ValueError("a keyword that is no name")
        return cls(tuple(_name(name) for name in entry["out"]), op, tuple(args), dict(kwargs), str(entry["location"]), str(entry["code"]), str(entry["value"]))


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators in order; ``backward`` names the result whose gradient is taken, with the tensor that holds the incoming gradient."""

    constants: tuple[Constant, ...]
    steps: tuple[ChainStep, ...]
    backward: tuple[str, str] | None = None
    seed: int | None = None
    """Set where the values are not in the capsule: they are drawn from the ranges, with this seed."""

    def to_dict(self) -> dict[str, object]:
        return {"constants": [it.to_dict() for it in self.constants], "steps": [it.to_dict() for it in self.steps],
                "backward": list(self.backward) if self.backward else None, "seed": self.seed}  # fmt: skip

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Chain:
        """The chain that :meth:`to_dict` wrote.

        Raises:
            NanopsyError: it is none: a wrong type, an operator that chains do not use, a name that nothing defines.
        """
        try:
            constants = tuple(Constant.from_dict(it) for it in entry["constants"])
            steps = tuple(ChainStep.from_dict(it) for it in entry["steps"])
            backward = tuple(_name(it) for it in entry["backward"]) if entry["backward"] else None
            seed = None if entry["seed"] is None else int(entry["seed"])
            if len(steps) > MOST_STEPS or len(constants) > MOST_OPERANDS or not steps:
                raise ValueError(f"{len(steps)} operators over {len(constants)} tensors")
            _check_names(constants, steps, backward)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise NanopsyError(f"the chain of operators in this capsule is not one: {error}", why="it would be run", do="ask for the capsule again") from None
        return cls(constants, steps, (backward[0], backward[1]) if backward else None, seed)


def _name(value: object) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ValueError(f"the name {str(value)[:40]!r}")
    return value


def _check_argument(value: object, depth: int) -> None:
    if value is None or isinstance(value, (bool, int, float, str)):
        if isinstance(value, int) and abs(value) > 1 << 40 and value != -(1 << 63) and value != (1 << 63) - 1:
            raise ValueError("an argument that is too large")
        return
    if isinstance(value, list) and depth and len(value) <= 64:
        for entry in value:
            _check_argument(entry, depth - 1)
        return
    if isinstance(value, dict) and len(value) == 1:
        ((kind, content),) = value.items()
        if kind == "tensor":
            _name(content)
            return
        if (kind == "dtype" and content in DTYPES) or (kind == "float" and content in ("nan", "inf", "-inf")):
            return
    raise ValueError(f"the argument {str(value)[:40]!r}")


_PLAIN = frozenset({
    "abs", "acos", "add", "addmm", "asin", "atan2", "bmm", "clamp", "cos", "cumsum", "div", "exp", "expm1", "log", "log10", "log1p", "log2", "logsumexp",
    "masked_fill", "maximum", "mean", "minimum", "mm", "mul", "neg", "pow", "prod", "reciprocal", "relu", "rsqrt", "sigmoid", "sin", "sqrt", "square",
    "std", "std_mean", "sub", "sum", "tanh", "var", "var_mean", "where",
})  # fmt: skip
_OVERLOADS = frozenset({"default", "Tensor", "Scalar", "self", "correction", "dim", "dim_IntList", "Tensor_Tensor", "Tensor_Scalar"})


def spelled(op: str) -> str:
    """An operator as people write it, where torch's own function takes the same arguments: ``torch.sqrt`` for ``aten.sqrt.default``."""
    _, packet, overload = op.split(".")
    return f"torch.{packet}" if packet in _PLAIN and overload in _OVERLOADS else f"torch.ops.{op}"


def tensors_of(value: object) -> list[str]:
    """The names of the tensors in an argument."""
    if isinstance(value, dict):
        return [str(value["tensor"])] if "tensor" in value else []
    return [name for entry in value for name in tensors_of(entry)] if isinstance(value, (list, tuple)) else []


def _check_names(constants: tuple[Constant, ...], steps: tuple[ChainStep, ...], backward: tuple[str, ...] | None) -> None:
    known = {constant.name for constant in constants}
    for step in steps:
        used = tensors_of(list(step.args)) + tensors_of(list(step.kwargs.values()))
        if not step.out or not set(used) <= known or known & set(step.out):
            raise ValueError(f"{step.op} uses a tensor that is not there, or names one twice")
        known |= set(step.out)
    if backward is not None and (len(backward) != 2 or not set(backward) <= known):
        raise ValueError("a gradient of something that is not there")
