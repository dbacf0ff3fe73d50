"""Depth losses, each as a function and as a module; all are re-exported by `nanopsy.stable`."""

from nanopsy.stable.losses.bins import BinsClassification, ChamferBins, OrdinalRegression, bins_classification, chamfer_bins, ordinal_regression
from nanopsy.stable.losses.gradients import EdgeAwareSmoothness, GradientMatching, edge_aware_smoothness, gradient_matching
from nanopsy.stable.losses.invariant import ScaleAndShiftInvariant, TrimmedProcrustes, scale_and_shift_invariant, trimmed_procrustes
from nanopsy.stable.losses.normals import CosineNormal, VirtualNormal, cosine_normal, sample_triples, virtual_normal
from nanopsy.stable.losses.presets import SILOG_PRESETS, SILogPreset, silog_preset
from nanopsy.stable.losses.ranking import Ranking, ranking, sample_pairs
from nanopsy.stable.losses.regression import BerHu, GaussianNLL, LaplaceNLL, berhu, gaussian_nll, laplace_nll
from nanopsy.stable.losses.reprojection import Photometric, Projection, backproject, photometric, project
from nanopsy.stable.losses.silog import SILog, SILogForm, silog, silog_from_log_depth, silog_from_logits
from nanopsy.stable.losses.structure import SSIM, ssim, ssim_loss

__all__ = [
    "SILOG_PRESETS",
    "SSIM",
    "BerHu",
    "BinsClassification",
    "ChamferBins",
    "CosineNormal",
    "EdgeAwareSmoothness",
    "GaussianNLL",
    "GradientMatching",
    "LaplaceNLL",
    "OrdinalRegression",
    "Photometric",
    "Projection",
    "Ranking",
    "SILog",
    "SILogForm",
    "SILogPreset",
    "ScaleAndShiftInvariant",
    "TrimmedProcrustes",
    "VirtualNormal",
    "backproject",
    "berhu",
    "bins_classification",
    "chamfer_bins",
    "cosine_normal",
    "edge_aware_smoothness",
    "gaussian_nll",
    "gradient_matching",
    "laplace_nll",
    "ordinal_regression",
    "photometric",
    "project",
    "ranking",
    "sample_pairs",
    "sample_triples",
    "scale_and_shift_invariant",
    "silog",
    "silog_from_log_depth",
    "silog_from_logits",
    "silog_preset",
    "ssim",
    "ssim_loss",
    "trimmed_procrustes",
    "virtual_normal",
]
