"""Run a chain: operator by operator, on the CPU, from its constants to the value that is bad, or no longer."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from nanopsy.capsule.chain import DTYPES, Chain, Constant, spelled
from nanopsy.capsule.script import Numbers, drawn
from nanopsy.errors import NanopsyError
from nanopsy.watching import bad_elements

_BY_SAFETENSORS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What a chain came to: its results (or gradients) by name, and which of them are bad."""

    values: Mapping[str, torch.Tensor] = field(default_factory=dict)
    inside: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Every tensor on the way, by name, constants too."""

    @property
    def bad(self) -> list[str]:
        return [name for name, value in self.values.items() if bad_elements(value)]


def operator(name: str) -> Any:
    """The aten operator of a chain's step.

    Raises:
        NanopsyError: this torch has none of that name, or it writes into its arguments.
    """
    _, packet, overload = name.split(".")
    try:
        found = getattr(getattr(torch.ops.aten, packet), overload)
        writes = any(it.alias_info is not None and it.alias_info.is_write for it in found._schema.arguments)
    except (AttributeError, RuntimeError):
        raise NanopsyError(
            f"this torch ({torch.__version__}) has no operator {name}", do="replay with the torch that the capsule's environment names"
        ) from None
    if writes:
        raise NanopsyError(
            f"the operator {name} writes into its arguments", why="chains never do; this one was not written by nanopsy", do="do not trust this capsule"
        )
    name = spelled(name)
    return getattr(torch, name.removeprefix("torch.")) if name.count(".") == 1 else found


def _argument(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return tensors[content] if kind == "tensor" else float(content) if kind == "float" else getattr(torch, content)
    return [_argument(entry, tensors) for entry in value] if isinstance(value, list) else value


def run(chain: Chain, constants: Mapping[str, torch.Tensor]) -> Result:
    """Run a chain; raises what the operators raise."""
    with warnings.catch_warnings(), torch.enable_grad() if chain.backward else torch.no_grad():
        warnings.simplefilter("ignore")
        tensors = {it.name: constants[it.name].detach().requires_grad_(bool(it.requires_grad and chain.backward)) for it in chain.constants}
        leaves = dict(tensors)
        for step in chain.steps:
            out = operator(step.op)(
                *(_argument(value, tensors) for value in step.args), **{key: _argument(value, tensors) for key, value in step.kwargs.items()}
            )
            outs = [value for value in out if isinstance(value, torch.Tensor)] if isinstance(out, (tuple, list)) else [out]
            tensors.update(zip(step.out, outs, strict=False))
        if chain.backward is None:
            return Result({name: tensors[name] for name in chain.steps[-1].out if name in tensors}, tensors)
        of, gradient = chain.backward
        wanted = [it.name for it in chain.constants if it.requires_grad]
        found = torch.autograd.grad(tensors[of], [leaves[name] for name in wanted], tensors[gradient].detach(), allow_unused=True)
        return Result({f"{name}.grad": value for name, value in zip(wanted, found, strict=True) if value is not None}, tensors)


def draw(chain: Chain) -> dict[str, torch.Tensor]:
    """The constants of a chain whose values were left out, drawn exactly as its script draws them."""
    assert chain.seed is not None
    before = torch.get_rng_state()
    torch.manual_seed(chain.seed)
    try:
        return {constant.name: eval(drawn(constant), {"torch": torch, "float": float, "__builtins__": {}}) for constant in chain.constants}
    finally:
        torch.set_rng_state(before)


def numbers(tensor: torch.Tensor) -> Numbers:
    found: Numbers = tensor.detach().reshape(-1).tolist()
    return found


def loaded(dtype: str, shape: tuple[int, ...], data: bytes) -> torch.Tensor:
    """A tensor from a safetensors entry.

    Raises:
        NanopsyError: its dtype is not one that capsules hold.
    """
    kind = _BY_SAFETENSORS.get(dtype)
    if kind is None:
        raise NanopsyError(f"a tensor of dtype {dtype} in a capsule", why="capsules hold real numbers, integers and booleans", do="ask for the capsule again")
    if math.prod(shape) == 0:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=kind).reshape(shape)


def constants_of(chain: Chain, entries: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> dict[str, torch.Tensor]:
    """The constants of a chain out of a capsule's operands, drawn where only ranges were kept.

    Raises:
        NanopsyError: a constant is missing or has another shape or dtype than the chain says.
    """
    if chain.seed is not None:
        return draw(chain)
    found: dict[str, torch.Tensor] = {}
    for constant in chain.constants:
        entry = entries.get(constant.name)
        tensor = loaded(*entry) if entry is not None else None
        if tensor is None or not _fits(tensor, constant):
            raise NanopsyError(f"the capsule's tensor {constant.name!r} is not the one that its chain starts from", why="another thing would be shown",
                               do="ask for the capsule again")  # fmt: skip
        found[constant.name] = tensor
    return found


def _fits(tensor: torch.Tensor, constant: Constant) -> bool:
    return constant.dtype in DTYPES and tuple(tensor.shape) == constant.shape and str(tensor.dtype) == f"torch.{constant.dtype}"
