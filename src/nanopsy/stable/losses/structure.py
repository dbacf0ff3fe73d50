"""Structural similarity (SSIM) and its loss, with variances that are never negative."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import pattern, select, wide
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.statistics import masked_mean

__all__ = ["SSIM", "ssim", "ssim_loss"]


def ssim(x: Tensor, y: Tensor, *, window: int = 11, sigma: float | None = 1.5, max_value: float = 1.0) -> Tensor:
    """Structural similarity map of two images.

    Args:
        x, y: ``B x C x H x W`` of one shape, any floating dtype (half precision is computed in float32, also under autocast).
        window: odd window size in pixels, at least 3; borders are reflected, so height and width must exceed window // 2.
        sigma: standard deviation of the Gaussian window in pixels; None for a uniform window (Monodepth2: ``window=3, sigma=None``).
        max_value: the range of values, L in c1 = (0.01 L)^2 and c2 = (0.03 L)^2.

    Returns:
        ``B x C x H x W`` in [-1, 1], and 1 where the two are equal. Both images are centred on their common mean, variances are kept at or above 0 and
        the covariance within them: E[x^2] - E[x]^2 of a depth of 80 m alone loses more in float32 than c2, and the quotient can be anything. What
        float32 loses of a difference is about 1e-7 of the window's range squared, over c2: give depths their ``max_value``, or pass float64.

    Source: Wang et al. 2004, equation 13.
    """
    where = "nanopsy.stable.ssim"
    arguments.floating(where, x=x, y=y)
    arguments.alike(where, x=x, y=y)
    arguments.image(where, x=x)
    arguments.number(where, "max_value", max_value, above=0)
    if sigma is not None:
        arguments.number(where, "sigma", sigma, above=0)
    _check_window(where, window, x)
    dtype = torch.promote_types(wide(x).dtype, wide(y).dtype)
    a, b = x.to(dtype), y.to(dtype)
    if x.numel() == 0:
        return a * b
    c1, c2 = (0.01 * max_value) ** 2, (0.03 * max_value) ** 2
    with torch.autocast(x.device.type, enabled=False):
        common = (masked_mean(a, dim=(-2, -1), keepdim=True) + masked_mean(b, dim=(-2, -1), keepdim=True)).detach() / 2
        a, b = a - common, b - common
        kernel = _kernel(window, sigma, a)
        mean_a, mean_b = _blur(a, window, kernel), _blur(b, window, kernel)
        variances = (_blur(a * a + b * b, window, kernel) - (mean_a * mean_a + mean_b * mean_b)).clamp(min=0)
        covariance = _blur(a * b, window, kernel) - mean_a * mean_b
        covariance = torch.maximum(torch.minimum(covariance, variances / 2), -variances / 2)
        full_a, full_b = mean_a + common, mean_b + common
        luminance = 1 - (mean_a - mean_b).square() / (full_a.square() + full_b.square() + c1)
        return luminance * ((2 * covariance + c2) / (variances + c2))


def _check_window(where: str, window: int, x: Tensor) -> None:
    arguments.whole(where, "window", window, least=3)
    if window % 2 == 0 or min(x.shape[-2:]) <= window // 2:
        raise arguments.ArgumentError(
            f"a window of {window} for images of {x.shape[-2]} x {x.shape[-1]}",
            where=where,
            why="the window is centred on a pixel and its border reflected",
            do="pass an odd window with window // 2 below height and width",
        )


def _kernel(window: int, sigma: float | None, like: Tensor) -> Tensor | None:
    if sigma is None:
        return None
    steps = torch.arange(window, device=like.device, dtype=like.dtype) - window // 2
    weights = torch.exp(-0.5 * (steps / sigma).square())
    return weights / weights.sum()


def _blur(x: Tensor, window: int, kernel: Tensor | None) -> Tensor:
    """A window with reflected borders: uniform without a kernel, else separable."""
    half, channels = window // 2, x.shape[1]
    padded = F.pad(x, (half, half, half, half), mode="reflect")
    if kernel is None:
        return F.avg_pool2d(padded, window, 1)
    rows = F.conv2d(padded, kernel.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
    return F.conv2d(rows, kernel.reshape(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)


def ssim_loss(x: Tensor, y: Tensor, mask: Tensor | None = None, *, window: int = 11, sigma: float | None = 1.5, max_value: float = 1.0) -> Tensor:
    """Mean of clamp((1 - SSIM) / 2, 0, 1).

    Args:
        x, y, window, sigma, max_value: as in `ssim`.
        mask: boolean, broadcastable; only windows whose pixels are all selected count. What lies elsewhere reaches neither value nor gradient.

    Returns:
        A 0-dimensional tensor; 0 with zero gradient if no window counts.

    Source: Godard et al. 2017, equation 2.
    """
    where = "nanopsy.stable.ssim_loss"
    arguments.floating(where, x=x, y=y)
    arguments.alike(where, x=x, y=y)
    arguments.image(where, x=x)
    arguments.boolean(where, mask, x)
    _check_window(where, window, x)
    dtype = torch.promote_types(wide(x).dtype, wide(y).dtype)
    a, b = x.to(dtype), y.to(dtype)
    whole = None
    if mask is not None:
        keep = pattern(mask, a)
        a, b = select(a, keep), select(b, keep)
        half = window // 2
        holes = F.pad((~mask).expand(x.shape).to(a.dtype), (half, half, half, half))
        whole = F.max_pool2d(holes, window, stride=1) == 0 if x.numel() else mask.expand(x.shape)
    return masked_mean(((1 - ssim(a, b, window=window, sigma=sigma, max_value=max_value)) / 2).clamp(0, 1), whole)


class SSIM(Loss):
    """`ssim_loss` as a module."""

    function = staticmethod(ssim_loss)
