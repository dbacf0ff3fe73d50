"""Demonstration 3: variance implementations. Their error, their negatives and NaN; how often a crop has one valid pixel; what each loss does with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nanopsy.depth.datasets import Rendered
from nanopsy.depth.samples import DepthDataset
from nanopsy.lab.crops import count_crops
from nanopsy.lab.sheets import Sheets, Table
from nanopsy.stable import SILogForm, masked_var, silog

__all__ = ["ALGORITHMS", "demonstrate", "loss_at", "variance_errors"]

FORMATS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def one_pass(x: Tensor, correction: int) -> Tensor:
    """(sum x^2 - (sum x)^2 / N) / (N - correction)."""
    return ((x * x).sum() - x.sum() ** 2 / x.numel()) / (x.numel() - correction)


def two_pass(x: Tensor, correction: int) -> Tensor:
    """sum (x - mean)^2 / (N - correction)."""
    return (x - x.mean()).square().sum() / (x.numel() - correction)


def welford(x: Tensor, correction: int) -> Tensor:
    """Mean and squares updated one number at a time. Source: Welford 1962."""
    mean, squares = x.new_zeros(()), x.new_zeros(())
    for count, each in enumerate(x, 1):
        apart = each - mean
        mean = mean + apart / count
        squares = squares + apart * (each - mean)
    return squares / (x.numel() - correction)


def pairwise(x: Tensor, correction: int) -> Tensor:
    """Halves combined. Source: Chan, Golub and LeVeque 1983."""

    def moments(part: Tensor) -> tuple[int, Tensor, Tensor]:
        if part.numel() <= 1:
            return part.numel(), part.sum(), part.new_zeros(())
        (n, a, p), (m, b, q) = moments(part[: part.numel() // 2]), moments(part[part.numel() // 2 :])
        apart = b - a
        return n + m, a + apart * m / (n + m), p + q + apart * apart * n * m / (n + m)

    return moments(x)[2] / (x.numel() - correction)


ALGORITHMS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "one pass": one_pass,
    "two passes": two_pass,
    "Welford": welford,
    "pairwise": pairwise,
    "torch.var": lambda x, correction: torch.var(x, correction=correction),
    "nanopsy.stable": lambda x, correction: masked_var(x, correction=correction),
}


def variance_errors(name: str, count: int, offset: float, dtype: torch.dtype, *, correction: int = 0, trials: int = 50, seed: int = 0) -> dict[str, float]:
    """Median and largest relative error, and the shares of negative and NaN results, over random samples.

    The reference is two passes in float64 over the very numbers of the format; an exact 0 counts relative to the squared spread of the samples (1).
    """
    generator = torch.Generator().manual_seed(seed)
    errors, negative, bad = [], 0, 0
    for _ in range(trials):
        x = (torch.randn(count, generator=generator, dtype=torch.float64) + offset).to(dtype)
        exact = float(two_pass(x.double(), 0)) if count else math.nan
        exact = exact * count / (count - correction) if count > correction else math.nan
        value = float(ALGORITHMS[name](x, correction))
        negative += value < 0
        bad += not math.isfinite(value)
        if math.isfinite(value) and math.isfinite(exact):
            errors.append(abs(value - exact) / (exact if exact > 0 else 1.0))
    return {
        "median": float(np.median(errors)) if errors else math.nan,
        "largest": max(errors, default=math.nan),
        "negative": negative / trials,
        "nan": bad / trials,
    }


def _algorithms(sheets: Sheets, trials: int) -> None:
    by_count = Table("N: value for N = 0, 1, 2 numbers (3.0, then 3.0 and 5.0), float32", ("algorithm", "correction", "N = 0", "N = 1", "N = 2"))
    for name, compute in ALGORITHMS.items():
        for correction in (0, 1):
            values = [float(compute(torch.tensor([3.0, 5.0][:count]), correction)) for count in range(3)]
            by_count.add(name, correction, *values)
    sheets.table("counts", by_count)

    table = Table(
        "Relative error of the population variance of N(offset, 1)", ("algorithm", "format", "N", "offset", "median", "largest", "negative", "NaN or inf")
    )
    for name in ALGORITHMS:
        for label, dtype in FORMATS.items():
            for count, offset in ((2, 0.0), (10, 10.0), (100, 0.0), (100, 100.0), (100, 10_000.0)):
                if name in ("Welford", "pairwise") and count > 100:
                    continue
                found = variance_errors(name, count, offset, dtype, trials=max(trials // 4, 3) if name in ("Welford", "pairwise") else trials)
                table.add(name, label, count, offset, found["median"], found["largest"], found["negative"], found["nan"])
    sheets.table("errors", table)

    def draw(figure: Any) -> None:
        left, right = figure.subplots(1, 2)
        offsets = np.logspace(0, 5, 11)
        for name in ("one pass", "two passes", "torch.var", "nanopsy.stable"):
            found = [variance_errors(name, 1000, float(offset), torch.float32, trials=trials) for offset in offsets]
            left.loglog(offsets, [max(each["median"], 1e-9) for each in found], marker=".", label=name)
            right.semilogx(offsets, [each["negative"] for each in found], marker=".", label=name)
        left.set(xlabel="mean / standard deviation", ylabel="median relative error", title="float32, N = 1000")
        right.set(xlabel="mean / standard deviation", ylabel="share of negative variances", title="a root of these is NaN")
        left.legend(fontsize=7)

    sheets.figure(
        "errors",
        "One pass loses the square of the ratio between mean and spread; the sums of squares cancel, and what is left can be negative.",
        draw,
        (9, 3.6),
    )


def loss_at(form: str, valid: int, masking: str, per: str) -> tuple[float, str]:
    """Value of a SILog form on two pictures of 8 x 8 pixels, the first with ``valid`` valid pixels, the second with as many; and what its gradient is like.

    Args:
        form: ``bts`` (one pass), ``adabins`` (torch.var), ``population`` or ``stable``.
        valid: valid pixels of each picture.
        masking: ``index`` (prediction[mask]) or ``multiply`` (mask * value, divided by mask.sum()).
        per: ``batch`` or ``image``.
    """
    generator = torch.Generator().manual_seed(0)
    depth = (torch.rand(2, 1, 8, 8, generator=generator) * 10 + 1).requires_grad_()
    target = torch.rand(2, 1, 8, 8, generator=generator) * 10 + 1
    mask = torch.zeros(2, 64, dtype=torch.bool)
    mask[:, :valid] = True
    mask = mask.reshape(2, 1, 8, 8)
    target = torch.where(mask, target, 0.0)

    def one(p: Tensor, t: Tensor, m: Tensor) -> Tensor:
        if form == "stable":
            return silog(p, t, m, form=SILogForm(lam=0.85, scale=10, root=True))
        if masking == "index":
            g = torch.log(p[m]) - torch.log(t[m])
            d = torch.var(g, correction=1 if form == "adabins" else 0) + 0.15 * g.mean() ** 2
            if form == "bts":
                d = (g**2).mean() - 0.85 * g.mean() ** 2
        else:
            g = (torch.log(p) - torch.log(torch.where(m, t, 1.0))) * m
            n = m.sum()
            mean = g.sum() / n
            d = ((g - mean) ** 2 * m).sum() / (n - (1 if form == "adabins" else 0)) + 0.15 * mean**2
            if form == "bts":
                d = (g**2).sum() / n - 0.85 * mean**2
        return 10 * torch.sqrt(d)

    loss = one(depth, target, mask) if per == "batch" else torch.stack([one(*each) for each in zip(depth, target, mask, strict=True)]).mean()
    (gradient,) = torch.autograd.grad(loss, depth)
    bad, there = int((~gradient.isfinite()).sum()), int((gradient != 0).sum())
    kind = "finite" if bad == 0 and there else "all zero" if bad == 0 else f"{bad} of 128 NaN"
    return float(loss.detach()), kind


def _losses(sheets: Sheets) -> None:
    table = Table(
        "A loss with n valid pixels in each of two pictures: value, gradient",
        ("form", "masking", "reduction", *(f"{what}, n = {n}" for n in (0, 1, 5) for what in ("value", "gradient"))),
    )
    for form in ("bts", "adabins", "population", "stable"):
        for masking in ("index", "multiply") if form != "stable" else ("any",):
            for per in ("batch", "image"):
                cells: list[str | float] = []
                for count in (0, 1, 5):
                    cells += [*loss_at(form, count, masking, per)]
                table.add(form, masking, per, *cells)
    sheets.table("losses", table)
    sheets.say(
        "With index masking an empty mask makes the loss NaN and leaves the weights alone (the gradient is zero), while one valid pixel under Bessel's "
        "correction destroys them: a NaN gradient in one pixel is a NaN in every weight upstream. With multiply masking an empty mask is the destructive "
        "one. Two pictures with one pixel each have two in the batch: the reduction decides how often it happens."
    )


def _crops(sheets: Sheets, source: DepthDataset | None, maps: int) -> None:
    plans: list[tuple[str, DepthDataset]] = (
        [(source.title, source)]
        if source is not None
        else [
            ("streets, lidar with 24 lines", Rendered(maps, height=192, width=320, lines=24)),
            ("streets, lidar with 8 lines", Rendered(maps, height=192, width=320, lines=8, keep=0.1)),
            ("rooms, kinect", Rendered(maps, kind="room")),
        ]
    )
    table = Table("Valid pixels in a random crop, over every position", ("depth maps", "maps", "crop", "P(0) %", "P(1) %", "P(at most 5) %", "least", "median"))
    for title, each in plans:
        depths = [each.frame(index).depth for index in range(min(len(each), maps))]
        for height, width in ((16, 16), (32, 32), (32, 48), (64, 96), (128, 128), (192, 320), (352, 704)):
            if all(depth.shape[0] >= height and depth.shape[1] >= width for depth in depths):
                found = count_crops(depths, height, width, max_depth=each.protocol.max_depth)
                table.add(title, len(depths), f"{height} x {width}", 100 * found.empty, 100 * found.one, 100 * found.few, found.least, found.median)
    sheets.table("crops", table)


def demonstrate(folder: str | Path, *, quick: bool = False, source: DepthDataset | None = None, maps: int = 20) -> Path:
    """Write the demonstration; returns its README.

    Args:
        folder: where.
        quick: fewer trials.
        source: whose crops are counted; None: procedural scenes.
        maps: how many of its depth maps.
    """
    sheets = Sheets(folder, "Vulnerability 3: variance implementations")
    sheets.say(
        "torch.var divides by N - 1 (Bessel's correction): with one valid pixel that is 0/0. mean(g^2) - mean(g)^2 subtracts two large numbers: what is left "
        "can be wrong in every digit, and negative under the root."
    )
    import warnings

    with warnings.catch_warnings():  # torch says itself that var of one element has no degrees of freedom: that is what is shown
        warnings.filterwarnings("ignore", message=r"var\(\)", category=UserWarning)
        _algorithms(sheets, 10 if quick else 50)
        _losses(sheets)
    _crops(sheets, source, 4 if quick else maps)
    sheets.say("Guideline: population variance in two passes, over the valid pixels, 0 for none and for one. `nanopsy.stable.masked_var` does so.")
    return sheets.close()
