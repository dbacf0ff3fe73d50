"""SILog losses by their published names: the exact formula of each, and its stable twin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from nanopsy.stable import _arguments as arguments
from nanopsy.stable.heads import DepthPrediction
from nanopsy.stable.losses.silog import SILogForm, silog

__all__ = ["SILOG_PRESETS", "SILogPreset", "silog_preset"]


@dataclass(frozen=True, slots=True)
class SILogPreset:
    """A published SILog: what its code computes, and the form that is stable."""

    name: str
    formula: str
    """With g = log prediction - log target over the selected pixels."""
    form: SILogForm
    """The stable twin."""
    variance: str
    """How the published code computes the spread: ``one-pass`` (mean of squares less a multiple of the squared mean), ``bessel`` or ``population``."""
    differs: str
    """How the twin differs from the published code."""
    used_by: tuple[str, ...]
    """Codebases, as owner/name on GitHub, or a paper."""
    aliases: tuple[str, ...] = ()


_TWO_PASS = (
    "Equal in exact arithmetic; the twin adds var(g) and (1 - lambda) mean(g)^2 instead of subtracting, is 0 with zero gradient for an empty "
    "mask and for an exact fit (published: NaN)."
)
_POPULATION = (
    "The twin takes the population variance: smaller by (N - 1) / N under the root, finite for one pixel (published: 0/0), 0 with "
    "zero gradient for an empty mask "
)

_ALL = (
    SILogPreset(
        "eigen2014",
        "mean(g^2) - 0.5 mean(g)^2, per image",
        SILogForm(lam=0.5, reduction="image"),
        "one-pass",
        "Equal in exact arithmetic; the twin adds var(g) and 0.5 mean(g)^2 instead of subtracting, and images without a valid "
        "pixel do not count (published: NaN).",
        ("Eigen, Puhrsch and Fergus 2014",),
    ),
    SILogPreset(
        "bts",
        "10 sqrt(mean(g^2) - 0.85 mean(g)^2)",
        SILogForm(lam=0.85, scale=10, root=True),
        "one-pass",
        _TWO_PASS,
        ("cleinc/bts", "aliyun/NeWCRFs", "ashutosh1807/PixelFormer", "ShuweiShao/IEBins"),
        ("newcrfs", "pixelformer", "iebins"),
    ),
    SILogPreset(
        "adabins",
        "10 sqrt(var(g, correction=1) + 0.15 mean(g)^2)",
        SILogForm(lam=0.85, scale=10, root=True),
        "bessel",
        _POPULATION + "and for an exact fit (published: NaN).",
        ("shariqfarooq123/AdaBins",),
    ),
    SILogPreset(
        "zoedepth",
        "10 sqrt(var(g, correction=1) + 0.15 mean(g)^2), with g = log(prediction + 1e-7) - log(target + 1e-7)",
        SILogForm(lam=0.85, scale=10, root=True, offset=1e-7),
        "bessel",
        _POPULATION + "and for an exact fit (published: NaN). The offset is kept; it is below the resolution of float32 from a depth of 2 m up.",
        ("isl-org/ZoeDepth",),
    ),
    SILogPreset(
        "glpdepth",
        "sqrt(mean(g^2) - 0.5 mean(g)^2)",
        SILogForm(lam=0.5, root=True),
        "one-pass",
        _TWO_PASS,
        ("vinvino02/GLPDepth", "SwinTransformer/MIM-Depth-Estimation", "wl-zhao/VPD", "DepthAnything/Depth-Anything-V2"),
        ("mim", "vpd", "depth-anything-v2"),
    ),
    SILogPreset(
        "mde-toolbox",
        "sqrt(var(g, correction=1) + 0.15 mean(g)^2), with g = log(prediction + 1e-3) - log(target + 1e-3)",
        SILogForm(lam=0.85, root=True, offset=1e-3),
        "bessel",
        _POPULATION + "and for an exact fit (published: NaN). The loss weight of the configuration (1 or 10) is the scale; the warm-up term is not part of it.",
        ("zhyever/Monocular-Depth-Estimation-Toolbox", "facebookresearch/dinov2"),
        ("dinov2", "sigloss"),
    ),
    SILogPreset(
        "idisc",
        "10 sqrt(var(g, correction=1) + 0.15 mean(g)^2 + 1e-6), with g = log(prediction + 1e-6) - log(target + 1e-6)",
        SILogForm(lam=0.85, scale=10, root=True, offset=1e-6, under_root=1e-6),
        "bessel",
        _POPULATION + "(published: NaN). Both are 0.01 for an exact fit, with zero gradient.",
        ("SysCV/idisc",),
    ),
    SILogPreset(
        "unidepth",
        "sqrt(var(g, correction=0) + 0.15 mean(g)^2 + 1e-4) per image, with g = log(prediction + 1e-4) - log(target + 1e-4)",
        SILogForm(lam=0.85, root=True, offset=1e-4, under_root=1e-4, reduction="image"),
        "population",
        "Images without a valid pixel do not count (published: 0.01 each). The released code adds a [B] tensor to a [B, 1] one and so mixes the means "
        "of a batch's images; the formula is the intended one, which equals it for one image.",
        ("lpiccinelli-eth/UniDepth",),
    ),
)

SILOG_PRESETS: dict[str, SILogPreset] = {name: preset for preset in _ALL for name in (preset.name, *preset.aliases)}
"""Every preset under its name and its aliases."""


class SILogNamed(nn.Module):
    """A preset as a module: ``loss(prediction, target, mask)``."""

    def __init__(self, preset: SILogPreset, *, stable: bool) -> None:
        super().__init__()
        self.preset, self.stable = preset, stable

    def forward(self, prediction: Tensor | DepthPrediction, target: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.stable:
            return silog(prediction, target, mask, form=self.preset.form)
        depth = prediction.depth if isinstance(prediction, DepthPrediction) else prediction
        return published(self.preset, depth, target, mask)

    def extra_repr(self) -> str:
        return f"{self.preset.name!r}, stable={self.stable}"


def silog_preset(name: str, *, stable: bool = True, **changes: Any) -> nn.Module:
    """A SILog loss by its published name.

    Args:
        name: a key of `SILOG_PRESETS`: eigen2014, bts (newcrfs, pixelformer, iebins), adabins, zoedepth, glpdepth (mim, vpd, depth-anything-v2),
            mde-toolbox (dinov2, sigloss), idisc, unidepth.
        stable: the stable twin (default), or the published formula as its code computes it, NaN included, for comparisons (UniDepth's for
            one image: with several its code mixes their means).
        changes: fields of `SILogForm` to change in the twin, for example ``root=False``, the first guideline of arXiv 2311.03938.

    Returns:
        A module ``loss(prediction, target, mask=None)``. ``loss.preset`` says the formula and how the twin differs.

    Raises:
        ArgumentError: an unknown name; changes to a published formula.

    >>> silog_preset("bts", root=False).preset.form.root
    False
    """
    where = "nanopsy.stable.silog_preset"
    arguments.choice(where, "name", name, tuple(SILOG_PRESETS))
    preset = SILOG_PRESETS[name]
    if changes and not stable:
        raise arguments.ArgumentError(
            f"{', '.join(changes)} changed with stable=False",
            where=where,
            why="the published formula is given as it is",
            do="change the stable twin, or write SILog(…) with the fields you want",
        )
    return SILogNamed(replace(preset, form=replace(preset.form, **changes)), stable=stable)


def published(preset: SILogPreset, prediction: Tensor, target: Tensor, mask: Tensor | None) -> Tensor:
    """The published formula with the published operations: indexing, torch.log, torch.var or one pass. It can be NaN."""
    if mask is None:
        mask = torch.ones_like(target, dtype=torch.bool)
    form = preset.form
    if form.reduction == "image":
        each = [_published(preset, p[m], t[m]) for p, t, m in zip(prediction, target, mask.expand(target.shape), strict=True)]
        return torch.stack(each).mean()
    return _published(preset, prediction[mask], target[mask])


def _published(preset: SILogPreset, p: Tensor, t: Tensor) -> Tensor:
    form = preset.form
    g = torch.log(p + form.offset) - torch.log(t + form.offset)
    if preset.variance == "one-pass":
        d = (g**2).mean() - form.lam * g.mean() ** 2
    elif preset.variance == "bessel":
        d = torch.var(g) + (1 - form.lam) * g.mean() ** 2
    else:
        count = max(g.numel(), 1)
        mean = g.sum() / count
        d = ((g - mean) ** 2).sum() / count + (1 - form.lam) * mean**2
    return form.scale * torch.sqrt(d + form.under_root) if form.root else form.scale * d
