"""The standard depth metrics as one ``torchmetrics.Metric``: per image, then the mean over images; what cannot be scored is counted, never replaced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from nanopsy.depth.crops import Crop
from nanopsy.stable import _arguments as arguments
from nanopsy.stable import masked_mean, masked_median, masked_var

__all__ = ["METRICS", "DepthMetrics", "Protocol", "flip_average"]

METRICS = ("abs_rel", "sq_rel", "rmse", "rmse_log", "log10", "silog", "delta1", "delta2", "delta3")
"""In this order. Lower is better, but for the deltas."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """Everything that makes "the same" number another one.

    >>> Protocol.kitti().max_depth, Protocol.nyu().crop.name
    (80.0, 'eigen-nyu')
    """

    min_depth: float = 1e-3
    """Metres. A pixel counts if min_depth < target < max_depth, strictly."""
    max_depth: float = 80.0
    """Metres: the depth cap."""
    crop: Crop = field(default_factory=Crop)
    clip: bool = True
    """Clip finite predictions to [min_depth, max_depth] first."""
    median_scaling: bool = False
    """Multiply each prediction by median(target) / median(prediction) over its counted pixels, before clipping (self-supervised networks)."""
    silog_lam: float = 1.0
    silog_scale: float = 100.0
    """silog = scale * sqrt(mean(e^2) - lam mean(e)^2); the KITTI leaderboard has lam = 1 and 100, GLPDepth and MIM 0.5 and 1."""
    nonfinite: str = "propagate"
    """What a NaN or infinite prediction on a counted pixel does to the score. ``propagate``: the score is NaN. ``exclude``: the pixel is left out.
    It is counted in both."""

    def __post_init__(self) -> None:
        where = "nanopsy.depth.Protocol"
        arguments.number(where, "min_depth", self.min_depth, above=0)
        arguments.number(where, "max_depth", self.max_depth, above=self.min_depth)
        arguments.number(where, "silog_lam", self.silog_lam, least=0, most=1)
        arguments.number(where, "silog_scale", self.silog_scale, above=0)
        arguments.choice(where, "nonfinite", self.nonfinite, ("propagate", "exclude"))

    @classmethod
    def kitti(cls, frame: str = "full") -> Protocol:
        """KITTI Eigen split: cap 80 m, Garg crop of the full frame (BTS, NeWCRFs) or of the KITTI benchmark crop (``frame="kb"``: AdaBins, MDE-Toolbox)."""
        return cls(crop=Crop("garg", frame))

    @classmethod
    def nyu(cls) -> Protocol:
        """NYU Depth v2: cap 10 m, Eigen crop."""
        return cls(max_depth=10.0, crop=Crop("eigen-nyu"))


class DepthMetrics(Metric):
    """abs_rel, sq_rel, rmse, rmse_log, log10, silog, delta1, delta2, delta3, with counts of what could not be scored.

    Each metric is computed per image in float64 and averaged over the images that have a counted pixel. Sums and counts are added over processes, so that a
    distributed evaluation gives the same numbers (a ``DistributedSampler`` that pads its last batch evaluates some images twice; use one that does not).

    Evaluators in the field replace NaN predictions by the smallest depth, or a NaN silog by 0, a perfect score. Here a non-finite prediction on a
    counted pixel makes the score NaN (or is left out, ``Protocol(nonfinite="exclude")``) and is counted in any case; images without a counted pixel are
    counted and left out.

    >>> metrics = DepthMetrics(Protocol(max_depth=10.0))
    >>> target = torch.full((1, 1, 2, 2), 2.0)
    >>> metrics.update(target * 1.1, target)
    >>> round(float(metrics.compute()["abs_rel"]), 4)
    0.1

    Source: Eigen, Puhrsch and Fergus 2014, section 4; Uhrig et al. 2017 (silog).
    """

    full_state_update = False
    higher_is_better = None

    sums: Tensor
    images: Tensor
    empty_images: Tensor
    nonfinite_images: Tensor
    unscaled_images: Tensor
    pixels: Tensor
    nonfinite_pixels: Tensor
    ratios: list[Tensor]

    def __init__(self, protocol: Protocol | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.protocol = protocol or Protocol()
        self.add_state("sums", torch.zeros(len(METRICS), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("images", "empty_images", "nonfinite_images", "unscaled_images", "pixels", "nonfinite_pixels"):
            self.add_state(name, torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("ratios", [], dist_reduce_fx="cat")

    def update(self, prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> None:
        """Score a batch.

        Args:
            prediction, target: depth in metres, ``B x 1 x H x W``, one shape (resize the prediction, never the target), any floating dtype.
            mask: boolean, broadcastable: a further condition beside the depth range and the crop.
        """
        where = "nanopsy.depth.DepthMetrics.update"
        arguments.floating(where, prediction=prediction, target=target)
        arguments.image(where, prediction=prediction, target=target)
        arguments.alike(where, prediction=prediction, target=target)
        arguments.boolean(where, mask, target)
        rules = self.protocol
        p, t = prediction.detach().double(), target.detach().double()
        counted = (target > rules.min_depth) & (target < rules.max_depth) & rules.crop.mask(t.shape[-2], t.shape[-1], t.device)
        if mask is not None:
            counted = counted & mask
        lost = counted & ~p.isfinite()
        over = (1, 2, 3)
        self.pixels += counted.sum()
        self.nonfinite_pixels += lost.sum()
        self.nonfinite_images += lost.any(3).any(2).any(1).sum()
        if rules.nonfinite == "exclude":
            counted = counted & ~lost
        p = torch.where(lost, torch.nan, p)
        seen = there = counted.any(3).any(2).any(1)
        if rules.median_scaling:
            ratio = masked_median(t, counted, dim=over, keepdim=True) / masked_median(p, counted, dim=over, keepdim=True)
            scaled = (ratio > 0) & ratio.isfinite()
            self.unscaled_images += (there & ~scaled.flatten() & ~(lost & counted).any(3).any(2).any(1)).sum()
            if rules.nonfinite == "exclude":
                there = there & scaled.flatten()
            p = p * torch.where(scaled, ratio, torch.nan)
            self.ratios.append(ratio.flatten()[there & scaled.flatten()])
        if rules.clip:
            p = p.clamp(rules.min_depth, rules.max_depth)
        p, t = torch.where(counted, p, 1.0), torch.where(counted, t, 1.0)
        scores = torch.stack([masked_mean(term, counted, dim=over) for term in self._terms(p, t)])
        scores[2], scores[3] = scores[2].sqrt(), scores[3].sqrt()
        error = p.log() - t.log()
        spread = masked_var(error, counted, dim=over) + (1 - rules.silog_lam) * masked_mean(error, counted, dim=over).square()
        scores[5] = rules.silog_scale * spread.sqrt()
        self.sums += torch.where(there, scores, 0.0).sum(1)
        self.images += there.sum()
        self.empty_images += (~seen).sum()

    @staticmethod
    def _terms(p: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        """What is averaged over an image for each metric; the place of silog is filled afterwards. A NaN prediction is NaN in all of them."""
        log_error, error = p.log() - t.log(), p - t
        worst = torch.where(p > 0, torch.maximum(p / t, t / p), torch.nan)
        deltas = tuple(torch.where(worst.isnan(), torch.nan, (worst < 1.25**k).double()) for k in (1, 2, 3))
        return (error.abs() / t, error.square() / t, error.square(), log_error.square(), (p.log10() - t.log10()).abs(), error * 0, *deltas)

    def compute(self) -> dict[str, Tensor]:
        """The metrics, NaN if no image could be scored, and the counts ``images``, ``empty_images``, ``nonfinite_images``, ``unscaled_images`` (median of the
        prediction not positive), ``pixels`` and ``nonfinite_pixels``.

        With median scaling also ``scale_median``, and ``scale_spread``, the standard deviation of the ratios over their median.
        """
        means = torch.where(self.images > 0, self.sums / self.images.clamp(min=1), torch.nan)
        result = dict(zip(METRICS, means.unbind(), strict=True))
        result |= {name: getattr(self, name) for name in ("images", "empty_images", "nonfinite_images", "unscaled_images", "pixels", "nonfinite_pixels")}
        if self.protocol.median_scaling:
            ratios = torch.cat(self.ratios) if isinstance(self.ratios, list) and self.ratios else self.ratios
            if isinstance(ratios, Tensor) and ratios.numel():
                middle = masked_median(ratios)
                result |= {"scale_median": middle, "scale_spread": masked_var(ratios / middle).sqrt()}
        return result

    def report(self) -> str:
        """One line of metrics, and a sentence for everything that could not be scored."""
        result = self.compute()
        lines = ["  ".join(f"{name} {float(result[name]):.4f}" for name in METRICS)]
        lost, pixels, images = int(result["nonfinite_pixels"]), int(result["pixels"]), int(result["nonfinite_images"])
        if lost:
            share = "their scores are NaN" if self.protocol.nonfinite == "propagate" else "left out of the scores"
            lines.append(f"{lost:,} non-finite predictions on {pixels:,} pixels, in {images:,} images: {share}")
        unscaled = int(result["unscaled_images"])
        if unscaled:
            share = "their scores are NaN" if self.protocol.nonfinite == "propagate" else "left out of the scores"
            lines.append(f"{unscaled:,} images cannot be scaled, the median of the prediction is not positive: {share}")
        empty, scored = int(result["empty_images"]), int(result["images"])
        if empty:
            lines.append(f"{empty:,} of {empty + scored:,} images have no pixel to score and do not count")
        return "\n".join(lines)


def flip_average(predict: Callable[[Tensor], Tensor], image: Tensor, *, blend: str = "mean") -> Tensor:
    """A prediction averaged with that of the mirrored image.

    Args:
        predict: from ``B x C x H x W`` images to ``B x 1 x H x W`` depths or disparities.
        image: the images.
        blend: ``mean``: (p(x) + flip(p(flip(x)))) / 2 (AdaBins, MIM). ``ramp``: the same, but the left 5 % of columns come from the mirrored
            prediction and the right 5 % from the direct one, with linear transitions to 10 % (Monodepth on disparities: hides the occlusion at the
            borders of stereo training; NeWCRFs on depths).

    Source: Godard et al. 2017, section 4.1 (post-processing).
    """
    where = "nanopsy.depth.flip_average"
    arguments.choice(where, "blend", blend, ("mean", "ramp"))
    arguments.floating(where, image=image)
    arguments.image(where, image=image)
    direct, mirrored = predict(image), predict(image.flip(-1)).flip(-1)
    mean = 0.5 * (direct + mirrored)
    if blend == "mean":
        return mean
    columns = torch.linspace(0, 1, direct.shape[-1], device=direct.device, dtype=direct.dtype)
    left = 1 - (20 * (columns - 0.05)).clamp(0, 1)
    right = left.flip(-1)
    return right * direct + left * mirrored + (1 - left - right) * mean
