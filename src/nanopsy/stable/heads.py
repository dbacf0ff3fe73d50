"""Depth heads: from a network's output to a depth and its exact logarithm, together.

Every head returns a `DepthPrediction`. A loss that works on the log of depth takes ``log_depth``, which is finite for every logit, and never forms the
logarithm of a number that underflowed (arXiv 2311.03938, vulnerability 2).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import wide

__all__ = [
    "BinsHead",
    "DepthPrediction",
    "ExpHead",
    "InverseDepthSigmoidHead",
    "OrdinalHead",
    "ReluHead",
    "ScaledSigmoidHead",
    "SoftplusHead",
    "bin_edges",
    "bins_depth",
    "exp_depth",
    "inverse_depth_sigmoid",
    "ordinal_depth",
    "relu_depth",
    "scaled_sigmoid",
    "softplus_depth",
    "spaced_edges",
]


class DepthPrediction(NamedTuple):
    """A depth in metres and its natural logarithm; float32 for half-precision logits."""

    depth: Tensor
    log_depth: Tensor


class _Sigmoid(torch.autograd.Function):
    """The sigmoid, with slope sigmoid(x) sigmoid(-x): y (1 - y) loses the digits of 1 - y where y is near 1."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sigmoid()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        slope: Tensor = y * _sigmoid(-x)
        return grad * slope


def _sigmoid(x: Tensor) -> Tensor:
    y: Tensor = _Sigmoid.apply(x)  # type: ignore[no-untyped-call]
    return y


def scaled_sigmoid(logits: Tensor, max_depth: float, min_depth: float = 0.0) -> DepthPrediction:
    """min_depth + (max_depth - min_depth) * sigmoid(logits), and its exact log.

    Args:
        logits: any shape, any floating dtype.
        max_depth: the depth cap in metres, positive.
        min_depth: the smallest depth, at least 0 and below ``max_depth``.

    Returns:
        `DepthPrediction`. With ``min_depth=0`` the log is logsigmoid(logits) + log(max_depth), finite for every finite logit and with gradient 1 -
        sigmoid(logits), where log(max_depth * sigmoid(x)) is -inf from x = -89 down (float16: -17.5). With a positive ``min_depth`` it is the log of the
        depth, which is bounded away from 0.

    Raises:
        ArgumentError: max_depth <= 0, min_depth < 0 or >= max_depth.

    >>> scaled_sigmoid(torch.tensor([-200.0]), max_depth=80.0).log_depth
    tensor([-195.6180])
    """
    where = "nanopsy.stable.scaled_sigmoid"
    arguments.floating(where, logits=logits)
    arguments.number(where, "max_depth", max_depth, above=0)
    arguments.number(where, "min_depth", min_depth, least=0, below=max_depth)
    x = wide(logits)
    if min_depth == 0:
        return DepthPrediction(max_depth * _sigmoid(x), F.logsigmoid(x) + math.log(max_depth))
    depth = min_depth + (max_depth - min_depth) * _sigmoid(x)
    return DepthPrediction(depth, depth.log())


def inverse_depth_sigmoid(logits: Tensor, min_depth: float = 0.1, max_depth: float = 100.0) -> DepthPrediction:
    """Depth whose inverse is a sigmoid between 1 / max_depth and 1 / min_depth (the disparity head of self-supervised networks).

    Args:
        logits: any shape, any floating dtype.
        min_depth, max_depth: metres, 0 < min_depth < max_depth.

    Returns:
        `DepthPrediction`; the disparity stays above 1 / max_depth, so that nothing divides by zero. Note the sign: a larger logit is nearer.

    Source: Godard et al. 2019 (Monodepth2), section 5.
    """
    where = "nanopsy.stable.inverse_depth_sigmoid"
    arguments.floating(where, logits=logits)
    arguments.number(where, "min_depth", min_depth, above=0)
    arguments.number(where, "max_depth", max_depth, above=min_depth)
    disparity = 1 / max_depth + (1 / min_depth - 1 / max_depth) * _sigmoid(wide(logits))
    return DepthPrediction(disparity.reciprocal(), -disparity.log())


def relu_depth(logits: Tensor, min_depth: float = 1e-3) -> DepthPrediction:
    """relu(logits) + min_depth.

    Args:
        logits: any shape, any floating dtype.
        min_depth: metres, positive; it bounds the log from below and its gradient by 1 / min_depth.

    Returns:
        `DepthPrediction`. A pixel whose logit is negative has gradient 0 and cannot recover by itself: `softplus_depth` can.
    """
    where = "nanopsy.stable.relu_depth"
    arguments.floating(where, logits=logits)
    arguments.number(where, "min_depth", min_depth, above=0)
    depth = wide(logits).relu() + min_depth
    return DepthPrediction(depth, depth.log())


def softplus_depth(logits: Tensor, min_depth: float = 1e-3) -> DepthPrediction:
    """softplus(logits) + min_depth: as `relu_depth`, with a gradient everywhere.

    Args:
        logits: any shape, any floating dtype.
        min_depth: metres, positive.
    """
    where = "nanopsy.stable.softplus_depth"
    arguments.floating(where, logits=logits)
    arguments.number(where, "min_depth", min_depth, above=0)
    depth = F.softplus(wide(logits)) + min_depth
    return DepthPrediction(depth, depth.log())


def exp_depth(logits: Tensor, min_depth: float = 1e-3, max_depth: float = 1e3) -> DepthPrediction:
    """exp(logits) between two depths: the network predicts log-depth, bounded before the exp.

    Args:
        logits: log-depth, any shape, any floating dtype.
        min_depth, max_depth: metres, 0 < min_depth < max_depth. Outside [log min_depth, log max_depth] the gradient is 0.

    Returns:
        `DepthPrediction`; ``log_depth`` is the clamped logit itself.
    """
    where = "nanopsy.stable.exp_depth"
    arguments.floating(where, logits=logits)
    arguments.number(where, "min_depth", min_depth, above=0)
    arguments.number(where, "max_depth", max_depth, above=min_depth)
    log_depth = wide(logits).clamp(math.log(min_depth), math.log(max_depth))
    return DepthPrediction(log_depth.exp().clamp(min_depth, max_depth), log_depth)


def spaced_edges(bins: int, min_depth: float, max_depth: float, spacing: str = "log", *, device: torch.device | str | None = None) -> Tensor:
    """``bins + 1`` edges from min_depth to max_depth in metres.

    Args:
        bins: number of bins, at least 1.
        min_depth, max_depth: metres, min_depth < max_depth; positive for ``log``.
        spacing: ``log`` (spacing-increasing discretisation, SID) or ``uniform``.
        device: where to put them.

    Returns:
        float32, shape ``[bins + 1]``, exact at both ends.

    Source: Fu et al. 2018 (DORN), equation 1. (``torch.logspace(min, max)`` takes exponents of 10, not depths.)
    """
    where = "nanopsy.stable.spaced_edges"
    arguments.whole(where, "bins", bins, least=1)
    arguments.choice(where, "spacing", spacing, ("log", "uniform"))
    arguments.number(where, "min_depth", min_depth, **({"above": 0.0} if spacing == "log" else {"least": 0.0}))
    arguments.number(where, "max_depth", max_depth, above=min_depth)
    if spacing == "log":
        edges = torch.linspace(math.log(min_depth), math.log(max_depth), bins + 1, dtype=torch.float64).exp()
    else:
        edges = torch.linspace(min_depth, max_depth, bins + 1, dtype=torch.float64)
    edges[0], edges[-1] = min_depth, max_depth
    return edges.to(torch.float32).to(device)


def bin_edges(widths: Tensor, min_depth: float, max_depth: float) -> Tensor:
    """Adaptive bin edges from a network's width logits: softmax, then cumulated between two depths.

    Args:
        widths: logits ``B x P``, any floating dtype (half precision gives float32).
        min_depth, max_depth: metres, 0 <= min_depth < max_depth.

    Returns:
        Increasing edges ``B x (P + 1)``; the first is min_depth and the last max_depth, to the last bit.

    Source: Bhat et al. 2021 (AdaBins), equations 1 and 2, with a softmax for the widths (relu + 0.1 has no gradient for negative logits).
    """
    where = "nanopsy.stable.bin_edges"
    arguments.floating(where, widths=widths)
    arguments.number(where, "min_depth", min_depth, least=0)
    arguments.number(where, "max_depth", max_depth, above=min_depth)
    share = wide(widths).softmax(-1).cumsum(-1)
    share = (share / share[..., -1:]).clamp(max=1)
    low = torch.full_like(share[..., :1], min_depth)
    return torch.cat([low, torch.lerp(low.expand_as(share), torch.full_like(share, max_depth), share)], -1)


def bins_depth(logits: Tensor, edges: Tensor) -> DepthPrediction:
    """Depth as the mean of bin centres under a softmax over bins.

    Args:
        logits: ``B x P x H x W``, any floating dtype.
        edges: ``B x (P + 1)`` (adaptive, from `bin_edges`) or ``P + 1`` (fixed, from `spaced_edges`), metres.

    Returns:
        `DepthPrediction` with shape ``B x 1 x H x W``. The depth lies between the first and the last centre, to rounding, so that its log is bounded.

    Source: Bhat et al. 2021 (AdaBins), equation 3.
    """
    where = "nanopsy.stable.bins_depth"
    arguments.floating(where, logits=logits, edges=edges)
    arguments.image(where, logits=logits)
    if edges.ndim not in (1, 2) or edges.shape[-1] != logits.shape[1] + 1 or (edges.ndim == 2 and edges.shape[0] not in (1, logits.shape[0])):
        raise arguments.ArgumentError(
            f"edges of shape {list(edges.shape)} for logits of shape {list(logits.shape)}",
            where=where,
            why="P bins have P + 1 edges, of all images or of each",
            do=f"pass edges of shape [{logits.shape[1] + 1}] or [{logits.shape[0]}, {logits.shape[1] + 1}]",
        )
    bounds = wide(edges).to(wide(logits).dtype)
    centres = bounds[..., :-1] + (bounds[..., 1:] - bounds[..., :-1]) / 2
    centres = centres.reshape(-1, logits.shape[1], 1, 1)
    depth = (wide(logits).softmax(1) * centres).sum(1, keepdim=True)
    return DepthPrediction(depth, depth.log())


def ordinal_depth(logits: Tensor, edges: Tensor) -> DepthPrediction:
    """Depth from ordinal logits: the expected position among the edges, in log depth.

    Args:
        logits: ``B x K x H x W``; channel k is the logit of "deeper than edge k + 1 of K + 1 (counted from 0)", as `ordinal_regression` trains it with
            the same edges.
        edges: ``K + 2`` increasing positive depths in metres: K inner thresholds between the two ends.

    Returns:
        `DepthPrediction` with shape ``B x 1 x H x W``: log depth = log e_0 + sum_k P(deeper than threshold k) (log width of bin k), differentiable. It
        equals the hard decision (count of P >= 1/2) where all probabilities are 0 or 1, to half a bin.

    Source: Fu et al. 2018 (DORN), section 3.3, made differentiable.
    """
    where = "nanopsy.stable.ordinal_depth"
    arguments.floating(where, logits=logits, edges=edges)
    arguments.image(where, logits=logits)
    if edges.ndim != 1 or edges.shape[0] != logits.shape[1] + 2:
        raise arguments.ArgumentError(
            f"edges of shape {list(edges.shape)} for logits of shape {list(logits.shape)}",
            where=where,
            why="K thresholds lie inside K + 2 edges",
            do=f"pass spaced_edges({logits.shape[1] + 1}, min_depth, max_depth)",
        )
    logs = wide(edges).to(wide(logits).dtype).log()
    middles = (logs[1:] + logs[:-1]) / 2
    steps = (middles[1:] - middles[:-1]).reshape(1, -1, 1, 1)
    log_depth = middles[0] + (_sigmoid(wide(logits)) * steps).sum(1, keepdim=True)
    return DepthPrediction(log_depth.exp(), log_depth)


class ScaledSigmoidHead(nn.Module):
    """`scaled_sigmoid` as a module: ``head(logits).log_depth``."""

    def __init__(self, max_depth: float, min_depth: float = 0.0) -> None:
        super().__init__()
        arguments.number("nanopsy.stable.ScaledSigmoidHead", "max_depth", max_depth, above=0)
        arguments.number("nanopsy.stable.ScaledSigmoidHead", "min_depth", min_depth, least=0, below=max_depth)
        self.max_depth, self.min_depth = max_depth, min_depth

    def forward(self, logits: Tensor) -> DepthPrediction:
        return scaled_sigmoid(logits, self.max_depth, self.min_depth)


class InverseDepthSigmoidHead(nn.Module):
    """`inverse_depth_sigmoid` as a module."""

    def __init__(self, min_depth: float = 0.1, max_depth: float = 100.0) -> None:
        super().__init__()
        arguments.number("nanopsy.stable.InverseDepthSigmoidHead", "min_depth", min_depth, above=0)
        arguments.number("nanopsy.stable.InverseDepthSigmoidHead", "max_depth", max_depth, above=min_depth)
        self.min_depth, self.max_depth = min_depth, max_depth

    def forward(self, logits: Tensor) -> DepthPrediction:
        return inverse_depth_sigmoid(logits, self.min_depth, self.max_depth)


class ReluHead(nn.Module):
    """`relu_depth` as a module."""

    def __init__(self, min_depth: float = 1e-3) -> None:
        super().__init__()
        arguments.number("nanopsy.stable.ReluHead", "min_depth", min_depth, above=0)
        self.min_depth = min_depth

    def forward(self, logits: Tensor) -> DepthPrediction:
        return relu_depth(logits, self.min_depth)


class SoftplusHead(nn.Module):
    """`softplus_depth` as a module."""

    def __init__(self, min_depth: float = 1e-3) -> None:
        super().__init__()
        arguments.number("nanopsy.stable.SoftplusHead", "min_depth", min_depth, above=0)
        self.min_depth = min_depth

    def forward(self, logits: Tensor) -> DepthPrediction:
        return softplus_depth(logits, self.min_depth)


class ExpHead(nn.Module):
    """`exp_depth` as a module."""

    def __init__(self, min_depth: float = 1e-3, max_depth: float = 1e3) -> None:
        super().__init__()
        arguments.number("nanopsy.stable.ExpHead", "min_depth", min_depth, above=0)
        arguments.number("nanopsy.stable.ExpHead", "max_depth", max_depth, above=min_depth)
        self.min_depth, self.max_depth = min_depth, max_depth

    def forward(self, logits: Tensor) -> DepthPrediction:
        return exp_depth(logits, self.min_depth, self.max_depth)


class BinsHead(nn.Module):
    """`bins_depth` as a module, over fixed edges (a buffer) or, if width logits ``B x P`` are passed, adaptive ones."""

    edges: Tensor

    def __init__(self, bins: int, min_depth: float, max_depth: float, spacing: str = "log") -> None:
        super().__init__()
        self.min_depth, self.max_depth = min_depth, max_depth
        self.register_buffer("edges", spaced_edges(bins, min_depth, max_depth, spacing))

    def forward(self, logits: Tensor, widths: Tensor | None = None) -> DepthPrediction:
        return bins_depth(logits, self.edges if widths is None else bin_edges(widths, self.min_depth, self.max_depth))


class OrdinalHead(nn.Module):
    """`ordinal_depth` as a module, with ``thresholds`` inner edges."""

    edges: Tensor

    def __init__(self, thresholds: int, min_depth: float, max_depth: float, spacing: str = "log") -> None:
        super().__init__()
        arguments.number("nanopsy.stable.OrdinalHead", "min_depth", min_depth, above=0)
        self.register_buffer("edges", spaced_edges(thresholds + 1, min_depth, max_depth, spacing))

    def forward(self, logits: Tensor) -> DepthPrediction:
        return ordinal_depth(logits, self.edges)
