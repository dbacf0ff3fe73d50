"""Demonstration 2: the log of a sigmoid. Error and first bad logit of each way to write it, per format; and how far logits go in training."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy.depth.trainer import Trainer
from nanopsy.lab.sheets import Sheets, Table
from nanopsy.lab.trained import small_config

__all__ = ["FORMS", "Form", "demonstrate", "first_bad", "ulp_error"]

CAP = 80.0
FORMATS = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write the log of a depth between 0 and 80 m."""

    text: str
    compute: Callable[[Tensor], Tensor]
    exact: Callable[[float], float]
    """The number it stands for, in float64."""


def _log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def _depth(x: float) -> float:
    return CAP * (1 / (1 + math.exp(-x)) if x > 0 else math.exp(x) / (1 + math.exp(x)))


def _exact(x: float) -> float:
    return _log_sigmoid(x) + math.log(CAP)


FORMS = (
    Form("log(80 sigmoid(x))", lambda x: torch.log(CAP * torch.sigmoid(x)), _exact),
    Form("log(80 sigmoid(x) + 1e-8)", lambda x: torch.log(CAP * torch.sigmoid(x) + 1e-8), _exact),
    Form("log(80 sigmoid(x) + 1e-3)", lambda x: torch.log(CAP * torch.sigmoid(x) + 1e-3), _exact),
    Form("log(clamp(80 sigmoid(x), 1e-3))", lambda x: torch.log((CAP * torch.sigmoid(x)).clamp(min=1e-3)), _exact),
    Form("log(1e-3 + 79.999 sigmoid(x))", lambda x: torch.log(1e-3 + (CAP - 1e-3) * torch.sigmoid(x)), lambda x: math.log(1e-3 + (1 - 1e-3 / CAP) * _depth(x))),
    Form("logsigmoid(x) + log(80)", lambda x: F.logsigmoid(x) + math.log(CAP), _exact),
)


def ulp_error(value: float, exact: float, dtype: torch.dtype) -> float:
    """|value - exact| in units in the last place of the exact number in a format; infinite for NaN and inf."""
    if not math.isfinite(value):
        return math.inf
    info = torch.finfo(dtype)
    exponent = math.floor(math.log2(max(abs(exact), info.smallest_normal)))
    return float(abs(value - exact) / (info.eps * 2.0**exponent))


def _at(form: Form, x: float, dtype: torch.dtype) -> tuple[float, float]:
    """Value and derivative in a format."""
    point = torch.tensor(x, dtype=dtype, requires_grad=True)
    value = form.compute(point)
    (slope,) = torch.autograd.grad(value, point)
    return float(value.detach()), float(slope)


def first_bad(form: Form, dtype: torch.dtype, *, lowest: float = -1000.0) -> tuple[float | None, float | None]:
    """The first logits, from 0 in steps of 1/2, at which the value is not finite, and at which the derivative is NaN, infinite or (it should be near 1) 0."""
    value_at: float | None = None
    slope_at: float | None = None
    x = torch.arange(0.0, lowest - 0.5, -0.5, dtype=torch.float64).to(dtype).requires_grad_()
    value = form.compute(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    for logit, v, s in zip(x.tolist(), value.tolist(), slope.tolist(), strict=True):
        if value_at is None and not math.isfinite(v):
            value_at = logit
        if slope_at is None and (not math.isfinite(s) or (s == 0 and logit < -1)):
            slope_at = logit
    return value_at, slope_at


def _errors(sheets: Sheets) -> None:
    bad = Table(
        "First bad logit, from 0 downwards (empty: none down to -1000)", ("form", *(f"{what}, {name}" for name in FORMATS for what in ("value", "gradient")))
    )
    for form in FORMS:
        bad.add(form.text, *(at for dtype in FORMATS.values() for at in first_bad(form, dtype)))
    sheets.table("first-bad", bad)

    errors = Table("Error of the value in ulp of the exact log depth, float32", ("form", *(f"x = {x:g}" for x in (5, 0, -5, -10, -20, -50, -100))))
    for form in FORMS:
        errors.add(form.text, *(ulp_error(_at(form, x, torch.float32)[0], _exact(x), torch.float32) for x in (5.0, 0.0, -5.0, -10.0, -20.0, -50.0, -100.0)))
    sheets.table("ulp", errors)
    slopes = Table(
        "Gradient with respect to the logit, float32; exactly it is 1 - sigmoid(x)", ("form", *(f"x = {x:g}" for x in (5, 0, -5, -10, -20, -50, -100)))
    )
    for form in FORMS:
        slopes.add(form.text, *(_at(form, x, torch.float32)[1] for x in (5.0, 0.0, -5.0, -10.0, -20.0, -50.0, -100.0)))
    sheets.table("gradient", slopes)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        line = np.linspace(-110, 10, 481)
        for form in FORMS:
            values = [_at(form, float(x), torch.float32) for x in line]
            left.plot(line, [v if math.isfinite(v) else np.nan for v, _ in values], label=form.text)
            right.plot(line, [s if math.isfinite(s) else np.nan for _, s in values], label=form.text)
        left.set(xlabel="logit", ylabel="log depth", title="value, float32")
        right.set(xlabel="logit", ylabel="d log depth / d logit", title="gradient, float32", ylim=(-0.1, 1.15))
        left.legend(fontsize=6)

    sheets.figure(
        "forms",
        "Each way to write it. A line that ends is -inf or NaN from there on; a gradient of 0 means that such a pixel never comes back.",
        draw,
        (9, 3.8),
    )


def _excursion(model: str, lr: float, steps: int, *, bad_step: bool) -> list[float]:
    """The smallest logit on a valid pixel after each step; training stops where the loss is not finite."""
    trainer = Trainer(replace(small_config("published", lr=lr, schedule="constant", steps=steps, model=model), batch=2))
    trainer.network.train()
    lowest = []
    for step, batch in trainer.batches(0):
        if bad_step and step == steps // 2:  # one mislabelled batch: a depth map in kilometres
            batch = batch._replace(depth=batch.depth / 1000)
        loss = trainer.loss(batch)
        assert trainer.logits is not None
        assert trainer.valid is not None
        if bool(trainer.valid.any()):
            lowest.append(float(trainer.logits[trainer.valid].min()))
        if not bool(torch.isfinite(loss)):
            break
        loss.backward()
        trainer.optimizer.step()
        trainer.optimizer.zero_grad(set_to_none=True)
    return lowest


def _training(sheets: Sheets, steps: int) -> None:
    plan = [
        ("bts", 1e-3, False),
        ("bts", 1e-3, True),
        ("bts", 3e-2, False),
        ("depthformer", 3e-3, False),
        ("depthformer", 3e-3, True),
        ("depthformer", 1e-2, False),
        ("depthformer", 3e-2, False),
    ]
    table = Table(
        "How far logits go: smallest logit on a valid pixel",
        ("network (tiny)", "learning rate", "one mislabelled batch", "steps done", "smallest logit", "ended in"),
    )
    lines = {}
    for model, lr, bad in plan:
        lowest = _excursion(model, lr, steps, bad_step=bad)
        low = min(lowest, default=math.nan)
        table.add(model, lr, bad, len(lowest), low, "log 0" if low < -88 else "log 0 in float16" if low < -17 else "a finite loss")
        lines[f"{model}, lr {lr:g}{', one bad batch' if bad else ''}"] = lowest
    sheets.table("training", table)

    def draw(figure: Any) -> None:
        axis = figure.subplots()
        for label, values in lines.items():
            axis.plot([max(-each, 0.05) for each in values], label=label)
        for level, name in ((17.5, "float16"), (89, "float32, bfloat16")):
            axis.axhline(level, color="k", linestyle=":", linewidth=0.8)
            axis.text(0, level * 1.05, f"sigmoid is 0: {name}", fontsize=7)
        axis.set(yscale="log", xlabel="step", ylabel="- smallest logit", title="training with log(80 sigmoid(x)), constant learning rate")
        axis.legend(fontsize=6)

    sheets.figure("training", "The smallest logit on a valid pixel, step by step; dotted: where the sigmoid underflows.", draw)


def demonstrate(folder: str | Path, *, quick: bool = False) -> Path:
    """Write the demonstration; returns its README."""
    sheets = Sheets(folder, "Vulnerability 2: the log of a sigmoid")
    sheets.say(
        "depth = 80 sigmoid(x), and a loss that takes its logarithm. The sigmoid of a very negative logit is exactly 0, the log of 0 is -inf, and the gradient "
        "is 0 times infinity. An eps inside the log or a clamp keeps the value finite and makes the gradient vanish there: the pixel stays wrong for ever."
    )
    _errors(sheets)
    _training(sheets, 12 if quick else 40)
    sheets.say(
        "Guideline: logsigmoid(x) + log(max_depth) is finite for every logit and its gradient is 1 - sigmoid(x). `nanopsy.stable.scaled_sigmoid` returns both."
    )
    return sheets.close()
