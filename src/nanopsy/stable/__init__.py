"""The cure as a library: statistics, elementary functions, depth heads and losses whose value and gradient are stated where the usual forms are NaN.

Every function takes any floating dtype (float64, float32, float16, bfloat16), any memory layout and any device; never synchronises with the device; works under
``torch.compile(fullgraph=True)``, ``torch.func.vmap`` and ``grad``; and can be differentiated twice. What a mask does not select reaches neither value
nor gradient.
"""

from nanopsy.stable._arguments import ArgumentError
from nanopsy.stable.activations import inverse_softplus, masked_log_softmax, masked_logsumexp, masked_softmax, softplus
from nanopsy.stable.alignment import ScaleAndShift, align_scale_and_shift, normalize_by_median
from nanopsy.stable.elementary import acos, asin, atan2, divide, exp, log, log1mexp, power, reciprocal, sqrt, where_safe, xlogy
from nanopsy.stable.heads import (
    BinsHead,
    DepthPrediction,
    ExpHead,
    InverseDepthSigmoidHead,
    OrdinalHead,
    ReluHead,
    ScaledSigmoidHead,
    SoftplusHead,
    bin_edges,
    bins_depth,
    exp_depth,
    inverse_depth_sigmoid,
    ordinal_depth,
    relu_depth,
    scaled_sigmoid,
    softplus_depth,
    spaced_edges,
)
from nanopsy.stable.losses import *  # noqa: F403
from nanopsy.stable.losses import __all__ as _losses
from nanopsy.stable.moments import Moments
from nanopsy.stable.order import masked_median, masked_quantile
from nanopsy.stable.statistics import masked_mean, masked_std, masked_var
from nanopsy.stable.vectors import norm, normalize

__all__ = [  # noqa: PLE0604
    "ArgumentError",
    "BinsHead",
    "DepthPrediction",
    "ExpHead",
    "InverseDepthSigmoidHead",
    "Moments",
    "OrdinalHead",
    "ReluHead",
    "ScaleAndShift",
    "ScaledSigmoidHead",
    "SoftplusHead",
    "acos",
    "align_scale_and_shift",
    "asin",
    "atan2",
    "bin_edges",
    "bins_depth",
    "divide",
    "exp",
    "exp_depth",
    "inverse_depth_sigmoid",
    "inverse_softplus",
    "log",
    "log1mexp",
    "masked_log_softmax",
    "masked_logsumexp",
    "masked_mean",
    "masked_median",
    "masked_quantile",
    "masked_softmax",
    "masked_std",
    "masked_var",
    "norm",
    "normalize",
    "normalize_by_median",
    "ordinal_depth",
    "power",
    "reciprocal",
    "relu_depth",
    "scaled_sigmoid",
    "softplus",
    "softplus_depth",
    "spaced_edges",
    "sqrt",
    "where_safe",
    "xlogy",
    *_losses,
]
