"""A chain as a stand-alone script: at most 40 lines, needs only torch, ends with status 3 while the value is still bad."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping

from nanopsy.capsule.chain import Chain, ChainStep, Constant, spelled

MOST_LINES = 40
READABLE = 64
"""Tensors of up to this many elements are written as numbers, larger ones packed."""

Numbers = list[float] | list[int] | list[bool]


def _number(value: float) -> str:
    if isinstance(value, bool) or math.isfinite(value):
        return repr(value)
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _tensor(constant: Constant, values: Numbers, raw: bytes) -> str:
    shape, dtype = list(constant.shape), f"torch.{constant.dtype}"
    if len(values) > READABLE:
        packed = base64.b64encode(zlib.compress(raw, 9)).decode()
        return f'torch.frombuffer(bytearray(zlib.decompress(base64.b64decode("{packed}"))), dtype={dtype}).reshape({shape})'
    flat = ", ".join(_number(value) for value in values)
    if not shape:
        return f"torch.tensor({flat}, dtype={dtype})"
    reshaped = "" if len(shape) == 1 and values else f".reshape({shape})"
    return f"torch.tensor([{flat}], dtype={dtype}){reshaped}"


def drawn(constant: Constant) -> str:
    """An expression that draws a tensor from the range of the whole one, with as many zeros as the elements have that were left."""
    shape, dtype, spread = list(constant.shape), f"torch.{constant.dtype}", constant.spread
    count, zeros = math.prod(constant.shape), constant.zeros
    if constant.dtype == "bool":
        return f"(torch.arange({count}) >= {zeros}).reshape({shape})"
    low, high = (0.0 if math.isnan(value) else value for value in (spread.low, spread.high))
    if not constant.dtype.startswith(("float", "bfloat")):
        return f"torch.randint({int(low)}, {int(high) + 1}, {shape}, dtype={dtype})"
    if constant.bad:
        return f'torch.full({shape}, float("nan"), dtype={dtype})'
    if zeros == count:
        return f"torch.zeros({shape}, dtype={dtype})"
    values = f"torch.rand({shape}, dtype=torch.float64) * {high - low!r} + {low!r}" if high > low else f"torch.full({shape}, {low!r}, dtype=torch.float64)"
    if zeros:
        values = f"({values}) * (torch.arange({count}) >= {zeros}).reshape({shape})"
    return f"({values}).to({dtype})"


def _argument(value: object) -> str:
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return {"tensor": str(content), "dtype": f"torch.{content}", "float": f'float("{content}")'}[kind]
    if isinstance(value, list):
        return f"[{', '.join(_argument(entry) for entry in value)}]"
    return repr(value)


def _call(step: ChainStep) -> str:
    arguments = [_argument(value) for value in step.args] + [f"{key}={_argument(value)}" for key, value in step.kwargs.items()]
    return f"{spelled(step.op)}({', '.join(arguments)})"


def _comment(text: str) -> str:
    """One line, whatever the text holds: a comment must not become code."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return f"  # {plain[:100]}" if plain else ""


def script(chain: Chain, title: str, values: Mapping[str, Numbers], raw: Mapping[str, bytes]) -> str:
    """The chain as Python; ``values`` and ``raw`` hold the constants' numbers and bytes unless the chain has a seed."""
    packed = chain.seed is None and any(len(values[constant.name]) > READABLE for constant in chain.constants)
    lines = [f"# {_comment(title)[4:]}", "# Status 3: still bad; 0: finite with this torch. Needs only torch."]
    lines += (["import base64", "import zlib", ""] if packed else []) + ["import torch", ""]
    if chain.seed is None and any(not math.isfinite(value) for numbers in values.values() for value in numbers):
        lines.append('nan, inf = float("nan"), float("inf")')
    if chain.seed is not None:
        lines.append(f"torch.manual_seed({chain.seed})  # the values are drawn: only their ranges were kept")
    for constant in chain.constants:
        made = drawn(constant) if chain.seed is not None else _tensor(constant, values[constant.name], raw[constant.name])
        grad = ".requires_grad_()" if constant.requires_grad and chain.backward else ""
        lines.append(f"{constant.name} = {made}{grad}{_comment(constant.what)}")
    for step in chain.steps:
        out = ", ".join(step.out)
        lines.append(f"{out} = {_call(step)}{_comment(' '.join(filter(None, (step.location, step.code))))}")
    if chain.backward:
        of, gradient = chain.backward
        lines.append(f"{of}.backward({gradient})")
        leaves = ", ".join(f'"{it.name}.grad": {it.name}.grad' for it in chain.constants if it.requires_grad)
        lines.append(f"results = {{{leaves}}}")
    else:
        lines.append("results = {" + ", ".join(f'"{name}": {name}' for name in chain.steps[-1].out) + "}")
    lines += ["for name, value in results.items():", "    print(name, value)",
              "raise SystemExit(3 if any(v is not None and not torch.isfinite(v).all() for v in results.values()) else 0)"]  # fmt: skip
    return "\n".join(lines) + "\n"
