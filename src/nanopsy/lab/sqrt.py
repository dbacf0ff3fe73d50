"""Demonstration 1: the square-root loss. Its gradient against D down to 0, the step size it implies, and the landscapes with and without the root."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nanopsy.lab.sheets import Sheets, Table
from nanopsy.lab.trained import Trained, small_config, spread, trained

__all__ = ["demonstrate", "filter_normalized", "gradient_at"]

LAM, SCALE = 0.85, 10.0
FORMATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def _errors(d: float, count: int = 64) -> Tensor:
    """``count`` log errors whose D = var + 0.15 mean^2 is ``d``, in float64."""
    shape = torch.linspace(-1, 1, count, dtype=torch.float64) + 0.3
    unit = shape.var(correction=0) + (1 - LAM) * shape.mean().square()
    return shape * math.sqrt(d / float(unit))


def gradient_at(d: float, dtype: torch.dtype, *, root: bool = True, eps: float = 0.0) -> tuple[float, float]:
    """(|dL/dg| by autograd in a format, |dL/dg| in closed form) of L = 10 sqrt(D + eps) or 10 D at D = ``d``, 64 pixels."""
    exact = _errors(d)
    mean = exact.mean()
    slope = 2 / exact.numel() * ((exact - mean) + (1 - LAM) * mean)
    factor = SCALE * (0.5 / math.sqrt(d + eps) if root and d + eps > 0 else math.inf if root else 1.0)
    norm = float(slope.norm())
    analytic = factor * norm if norm else (math.nan if math.isinf(factor) else 0.0)
    g = exact.to(dtype).requires_grad_()
    spread = (g - g.mean()).square().mean() + (1 - LAM) * g.mean().square()
    loss = SCALE * (torch.sqrt(spread + eps) if root else spread)
    (gradient,) = torch.autograd.grad(loss, g)
    return float(gradient.double().norm()), analytic


def _gradients(sheets: Sheets) -> None:
    exponents = np.arange(0, -50.5, -0.5)
    table = Table(
        "Gradient of 10 sqrt(D) with respect to the log error, 64 pixels",
        ("D", "dL/dD = 5/sqrt(D)", *(f"|dL/dg| {name}" for name in FORMATS), "|dL/dg| of 10 D, float32"),
    )
    for d in (1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-12, 1e-20, 1e-38, 1e-46, 0.0):
        table.add(
            d, 5 / math.sqrt(d) if d else math.inf, *(gradient_at(d, dtype)[0] for dtype in FORMATS.values()), gradient_at(d, torch.float32, root=False)[0]
        )
    sheets.table("gradient", table)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        d = 10.0**exponents
        left.loglog(d, 5 / np.sqrt(d), "k--", label="dL/dD, 5/sqrt(D)")
        for name, dtype in FORMATS.items():
            left.loglog(d, [gradient_at(each, dtype)[0] for each in d], label=f"|dL/dg|, {name}")
        left.loglog(d, [gradient_at(each, torch.float32, root=False)[0] for each in d], ":", label="|dL/dg| without root")
        left.set(xlabel="D", ylabel="gradient", title="10 sqrt(D): the length does not vanish with D")
        left.legend(fontsize=7)
        right.loglog(d, 0.5 / np.sqrt(d), label="none")
        for eps in (1e-8, 1e-6, 1e-4):
            right.loglog(d, 0.5 / np.sqrt(d + eps), label=f"eps {eps:g} under the root")
        right.set(xlabel="D", ylabel="step of 10 sqrt(D) over step of 10 D", title="implied learning rate, relative")
        right.legend(fontsize=7)

    sheets.figure(
        "gradient",
        "Gradient norm and implied step size as the loss falls. A missing line is NaN: D underflowed to 0, and 0 times infinity follows.",
        draw,
        (9, 3.8),
    )


def _remedies(sheets: Sheets) -> None:
    table = Table("What eps and clipping change", ("remedy", "|dL/dg| at D = 1e-2", "at 1e-8", "at 1e-20", "at exactly 0", "value at 0"))

    def clipped(d: float) -> float:
        norm = gradient_at(d, torch.float32)[0]
        return norm if math.isnan(norm) else norm * min(1.0, 0.1 / norm)

    at = (1e-2, 1e-8, 1e-20, 0.0)
    table.add("none", *(gradient_at(d, torch.float32)[0] for d in at), 0.0)
    table.add("clip the norm to 0.1", *(clipped(d) for d in at), 0.0)
    for eps in (1e-8, 1e-6):
        table.add(f"eps {eps:g} under the root", *(gradient_at(d, torch.float32, eps=eps)[0] for d in at), SCALE * math.sqrt(eps))
    table.add("no root", *(gradient_at(d, torch.float32, root=False)[0] for d in at), 0.0)
    sheets.table("remedies", table)
    sheets.say(
        "Clipping bounds a long gradient and does nothing about NaN: the norm of a gradient with one NaN is NaN, and dividing by it makes every parameter NaN. "
        "eps removes the singularity and leaves the implied schedule: for D well above eps the step still grows as 1/sqrt(D). Without the root both go."
    )


def filter_normalized(found: Trained, generator: torch.Generator) -> list[Tensor]:
    """A random direction with the norm of each filter of the network; biases and norms' weights do not move. Source: Li et al. 2018, section 4."""
    direction = []
    for parameter in found.trainer.bare.parameters():
        if parameter.ndim < 2:
            direction.append(torch.zeros_like(parameter))
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        flat, weights = noise.flatten(1), parameter.detach().flatten(1)
        direction.append((flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12) * weights.norm(dim=1, keepdim=True)).reshape(parameter.shape))
    return direction


def _along(found: Trained, directions: list[tuple[float, list[Tensor]]]) -> float:
    """D on the batch with the weights moved."""
    parameters = list(found.trainer.bare.parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    with torch.no_grad():
        for amount, direction in directions:
            for parameter, part in zip(parameters, direction, strict=True):
                parameter.add_(part, alpha=amount)
        value = spread(found)
        for parameter, saved in zip(parameters, before, strict=True):
            parameter.copy_(saved)
    return value


def _landscape(sheets: Sheets, steps: int, points: int) -> None:
    found = trained(small_config("all", steps=steps))
    generator = torch.Generator().manual_seed(1)
    first, second = filter_normalized(found, generator), filter_normalized(found, generator)
    line = np.linspace(-0.5, 0.5, 4 * points + 1)
    values: NDArray[np.float64] = np.array([_along(found, [(float(t), first)]) for t in line])
    grid = np.linspace(-0.5, 0.5, points)
    surface = np.array([[_along(found, [(float(a), first), (float(b), second)]) for a in grid] for b in grid])
    at, step = int(values.argmin()), float(line[1] - line[0])
    at = min(max(at, 1), len(line) - 2)

    def bend(f: NDArray[np.float64]) -> float:
        return float((f[at + 1] - 2 * f[at] + f[at - 1]) / step**2 / max(f[at], 1e-12))

    rooted = SCALE * np.sqrt(values)
    table = Table("Sharpness at the bottom of the line, relative to the value there", ("loss", "argmin", "value", "curvature / value"))
    table.add("10 D", float(line[values.argmin()]), float(SCALE * values.min()), bend(SCALE * values))
    table.add("10 sqrt(D)", float(line[rooted.argmin()]), float(rooted.min()), bend(rooted))
    sheets.table("sharpness", table)

    # the root's own shape: the same line with the residual at the bottom taken away, as in a network that fits its data
    fitted = values - values.min()

    def draw_line(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        for axis, d, title in ((left, values, "as trained"), (right, fitted, "if the data were fitted (D - min D)")):
            axis.plot(line, SCALE * d, label="10 D")
            axis.plot(line, SCALE * np.sqrt(d), label="10 sqrt(D)")
            axis.set(xlabel="distance along a filter-normalised direction", ylabel="loss", title=title)
            axis.legend(fontsize=8)

    def draw_surface(figure: Any) -> None:
        for axis, f, title in zip(figure.subplots(1, 2), (SCALE * surface, SCALE * np.sqrt(surface)), ("10 D", "10 sqrt(D)"), strict=True):
            drawn = axis.contourf(grid, grid, f, 20, cmap="viridis")
            axis.set(title=title, xlabel="direction 1", ylabel="direction 2")
            axis.grid(visible=False)
            figure.colorbar(drawn, ax=axis)

    sheets.figure(
        "landscape-line",
        "Loss along a line through a trained network: the same minimum, another shape. The closer D comes to 0, the sharper the root's kink.",
        draw_line,
        (9, 3.6),
    )
    sheets.figure("landscape-surface", "The same in two directions.", draw_surface, (9, 3.6))


def demonstrate(folder: str | Path, *, quick: bool = False) -> Path:
    """Write the demonstration; returns its README."""
    sheets = Sheets(folder, "Vulnerability 1: the square-root loss")
    sheets.say(
        "L = 10 sqrt(D) with D = mean(g^2) - 0.85 mean(g)^2 and g = log depth - log target. Its gradient is dL/dtheta = 5 / sqrt(D) dD/dtheta: the first "
        "factor grows without bound as D falls, the second falls as sqrt(D), and the product keeps its length however good the fit is: an implied learning "
        "rate that grows as the loss falls. At D = 0 (one valid pixel that fits, a format too coarse to see the error) it is infinity times 0, NaN."
    )
    _gradients(sheets)
    _remedies(sheets)
    _landscape(sheets, 20 if quick else 120, 5 if quick else 13)
    sheets.say("Guideline: train on D. The optimum is the same, the gradient vanishes there, and D = 0 is harmless. `nanopsy.stable.silog` does so.")
    return sheets.close()
