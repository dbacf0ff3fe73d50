"""The scale-invariant log loss (SILog), from depth, log-depth or logits."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import compact, nonzero, pattern, select, selected_size, wide
from nanopsy.stable.elementary import sqrt
from nanopsy.stable.heads import DepthPrediction
from nanopsy.stable.losses._reduce import over, over_images
from nanopsy.stable.statistics import Selection, centred, mean_of

__all__ = ["SILog", "SILogForm", "silog", "silog_from_log_depth", "silog_from_logits"]


@dataclass(frozen=True, slots=True)
class SILogForm:
    """Which member of the SILog family: scale * D or scale * sqrt(D), with D = mean(g^2) - lam mean(g)^2 and g = log prediction - log target.

    D is computed as var(g) + (1 - lam) mean(g)^2, a sum of non-negative terms: the same number without the cancellation.
    """

    lam: float = 0.85
    """lambda in [0, 1]: 0 is the mean squared log error, 1 is invariant to the prediction's scale (AdaBins and others write beta = 1 - lambda)."""
    scale: float = 1.0
    """Factor of the whole, positive."""
    root: bool = False
    """Take the root of D. Off by default: the optimum is the same, and the gradient vanishes there instead of keeping its length (arXiv 2311.03938,
    guideline 1). On: the gradient with respect to g has norm at most scale / sqrt(N - correction), and is 0 where D is exactly 0."""
    correction: float = 0
    """Bessel's correction of the variance; 0 is the population variance (guideline 3), and the only one that is D above."""
    offset: float = 0.0
    """Added to both depths inside the log, in metres, not negative."""
    under_root: float = 0.0
    """Added to D under the root, not negative."""
    reduction: str = "batch"
    """``batch``: one D over all selected pixels. ``image``: one D per image, then the mean over the images in which a pixel is selected."""

    def __post_init__(self) -> None:
        where = "nanopsy.stable.SILogForm"
        arguments.number(where, "lam", self.lam, least=0, most=1)
        arguments.number(where, "scale", self.scale, above=0)
        if not isinstance(self.root, bool):
            raise arguments.ArgumentError(f"root is {self.root!r}", where=where, why="it says whether the root is taken", do="pass True or False")
        for name in ("correction", "offset", "under_root"):
            arguments.number(where, name, getattr(self, name), least=0)
        arguments.choice(where, "reduction", self.reduction, ("batch", "image"))


DEFAULT = SILogForm()


def _over(grad: Tensor, x: Tensor, keep: Tensor | None) -> Tensor:
    """grad / x where selected; 0, with zero derivative, elsewhere."""
    if keep is not None and torch.is_grad_enabled():  # differentiated again: nothing may divide by what is not selected
        return grad / nonzero(select(x, keep))
    return select(grad / x, keep)


class _LogRatio(torch.autograd.Function):
    """log(p / t) as +-log1p(|p - t| / min(p, t)): three ulp of itself however near the two are. 0 where not selected, whatever lies there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, t: Tensor, keep: Tensor | None) -> Tensor:
        difference = p - t
        negative = -torch.finfo(p.dtype).smallest_normal * torch.finfo(p.dtype).eps
        least = F.threshold(torch.minimum(p, t), negative, math.nan)  # the log of a negative number is NaN
        return select(difference.abs().div_(least).log1p_().copysign_(difference), keep)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        p, t, keep = ctx.saved_tensors
        return (
            _over(grad, p, keep) if ctx.needs_input_grad[0] else None,
            -_over(grad, t, keep) if ctx.needs_input_grad[1] else None,
            None,
        )


class _LogDifference(torch.autograd.Function):
    """log_p - log(t), 0 where not selected, whatever lies there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_p: Tensor, t: Tensor, keep: Tensor | None) -> Tensor:
        return select(log_p - t.log(), keep)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1], inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        t, keep = ctx.saved_tensors
        return (
            select(grad, keep) if ctx.needs_input_grad[0] else None,
            -_over(grad, t, keep) if ctx.needs_input_grad[1] else None,
            None,
        )


class _Moments(torch.autograd.Function):
    """Mean and summed squared deviation of a log error, straight from depths (or a log-depth), in few passes.

    The first derivative is written out; a second goes through the functions above, which are differentiable any number of times.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(p: Tensor, t: Tensor, keep: Tensor | None, total: Tensor, dim: tuple[int, ...], logs: bool) -> tuple[Tensor, Tensor, Tensor]:  # noqa: FBT001
        g = _LogDifference.forward(p, t, keep) if logs else _LogRatio.forward(p, t, keep)
        count = nonzero(total)
        mean = g.sum(dim, keepdim=True) / count
        c = select(g - mean, keep)
        c = select(c.sub_(c.sum(dim, keepdim=True) / count), keep)
        return mean, c.square().sum(dim, keepdim=True), c

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        p, t, keep, total, ctx.dim, ctx.logs = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(p, t, keep, total, output[2])

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_squares: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        p, t, keep, total, c = ctx.saved_tensors
        if torch.is_grad_enabled():
            g = (_LogDifference if ctx.logs else _LogRatio).apply(p, t, keep)  # type: ignore[no-untyped-call]
            c = centred(Selection(g, keep, None, total, ctx.dim, ()), small=True)
        by_error = select(torch.add(by_mean / nonzero(total), c * (2 * by_squares)), keep)
        by_p = None
        if ctx.needs_input_grad[0]:
            by_p = by_error if ctx.logs else _over(by_error, p, keep)
        return by_p, -_over(by_error, t, keep) if ctx.needs_input_grad[1] else None, None, None, None, None


def _checked(
    where: str, prediction: Tensor, target: Tensor, mask: Tensor | None, weight: Tensor | None, form: SILogForm
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Prediction and target, at least float32, the mask, its bits, and the weights."""
    if not isinstance(form, SILogForm):
        raise arguments.ArgumentError(f"form is a {type(form).__name__}", where=where, why="it says which SILog is meant", do="pass SILogForm(lam=…, root=…)")
    arguments.floating(where, prediction=prediction, target=target)
    arguments.alike(where, prediction=prediction, target=target)
    arguments.boolean(where, mask, prediction)
    over(where, prediction, form.reduction)
    if weight is not None:
        arguments.floating(where, weight=weight)
        arguments.broadcasts(where, "weight", weight, prediction)
    if form.reduction == "batch":
        mask, (prediction, target, *rest) = compact(mask, prediction, target) if weight is None else compact(mask, prediction, target, weight)
        weight = rest[0] if rest else None
    p, t = wide(prediction), wide(target)
    dtype = torch.promote_types(p.dtype, t.dtype)
    p, t = p.to(dtype), t.to(dtype)
    return p, t, mask, None if mask is None else pattern(mask, p), weight


def _loss(where: str, inputs: tuple[Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None], form: SILogForm, *, logs: bool) -> Tensor:
    """The loss of what `_checked` returned."""
    p, t, mask, keep, weight = inputs
    dim = over(where, p, form.reduction)
    if weight is None:
        total = selected_size(p, mask, dim, keepdim=True)
        mean, squares, _ = _Moments.apply(p, t, keep, total, dim, logs)  # type: ignore[no-untyped-call]
    else:
        g = (_LogDifference if logs else _LogRatio).apply(p, t, keep)  # type: ignore[no-untyped-call]
        w = select(weight.to(p.dtype).expand(p.shape), keep)
        total = w.sum(dim, keepdim=True)
        s = Selection(g, keep, w, total, dim, ())
        mean, squares = mean_of(s, small=True), (centred(s, small=True).square() * w).sum(dim, keepdim=True)
    d = squares / nonzero((total - form.correction).clamp(min=0) if form.correction else total)
    if form.lam < 1:
        d = d + (1 - form.lam) * mean.square()
    if form.root:
        d = sqrt(d + form.under_root) if form.under_root else sqrt(d)
    loss = form.scale * d
    if form.under_root:
        loss = torch.where(total > 0, loss, 0.0)
    return loss.squeeze() if form.reduction == "batch" else over_images(loss, total)


def silog(
    prediction: Tensor | DepthPrediction, target: Tensor, mask: Tensor | None = None, *, weight: Tensor | None = None, form: SILogForm = DEFAULT
) -> Tensor:
    """Scale-invariant log loss of a predicted depth.

    Args:
        prediction: depth in metres, any shape, any floating dtype (half precision is computed in float32, also under autocast); or a head's
            `DepthPrediction`, whose exact ``log_depth`` is then used.
        target: depth in metres, same shape.
        mask: boolean, broadcastable; True where the target is valid. What lies elsewhere (0, NaN, inf, in either) reaches neither value nor gradient.
        weight: non-negative weights, broadcastable.
        form: which member of the family, see `SILogForm`.

    Returns:
        A 0-dimensional tensor, float32 (float64 for float64 input). An empty mask gives 0 with zero gradient; one pixel gives (1 - lam) g^2. A *selected* depth
        that is 0 or negative, or a ratio beyond the format's range, gives inf or NaN, as the logarithm does: bound the head, not the loss.

    Raises:
        ArgumentError: shapes, dtypes or devices that do not fit, a mask that is not boolean, a form out of range.

    Source: Eigen, Puhrsch and Fergus 2014, equation 4; arXiv 2311.03938.

    >>> depth, target = torch.tensor([2.0, 4.0]), torch.tensor([1.0, 2.0])
    >>> silog(depth, target, form=SILogForm(lam=1.0))  # twice too deep everywhere: only the scale is wrong
    tensor(0.)
    """
    where = "nanopsy.stable.silog"
    if isinstance(prediction, DepthPrediction):
        if form.offset == 0:
            return silog_from_log_depth(prediction.log_depth, target, mask, weight=weight, form=form)
        prediction = prediction.depth
    p, t, mask, keep, weight = _checked(where, prediction, target, mask, weight, form)
    if form.offset:
        p, t = p + form.offset, t + form.offset
    return _loss(where, (p, t, mask, keep, weight), form, logs=False)


def silog_from_log_depth(log_depth: Tensor, target: Tensor, mask: Tensor | None = None, *, weight: Tensor | None = None, form: SILogForm = DEFAULT) -> Tensor:
    """`silog` of a network that predicts the natural logarithm of depth; the target is still in metres.

    Raises:
        ArgumentError: as `silog`; a form with an ``offset``, which is defined on depths.
    """
    where = "nanopsy.stable.silog_from_log_depth"
    _no_offset(where, form)
    return _loss(where, _checked(where, log_depth, target, mask, weight, form), form, logs=True)


def _no_offset(where: str, form: SILogForm) -> None:
    if form.offset:
        raise arguments.ArgumentError(
            f"offset={form.offset} with a log-depth",
            where=where,
            why="the offset is added to the depth before the log",
            do="pass the depth to silog, or a form without an offset: a log-depth needs none",
        )


def silog_from_logits(
    logits: Tensor, target: Tensor, mask: Tensor | None = None, *, max_depth: float, weight: Tensor | None = None, form: SILogForm = DEFAULT
) -> Tensor:
    """`silog` of depth = max_depth * sigmoid(logits), from the logits: the log of a sigmoid never happens.

    log depth = logsigmoid(logits) + log(max_depth) is finite, with a finite gradient, for every finite logit (arXiv 2311.03938, guideline 2).

    Raises:
        ArgumentError: as `silog_from_log_depth`; max_depth <= 0.
    """
    where = "nanopsy.stable.silog_from_logits"
    arguments.number(where, "max_depth", max_depth, above=0)
    _no_offset(where, form)
    x, t, mask, keep, weight = _checked(where, logits, target, mask, weight, form)
    log_depth = F.logsigmoid(select(x, keep)) + math.log(max_depth)
    return _loss(where, (log_depth, t, mask, keep, weight), form, logs=True)


class SILog(nn.Module):
    """`silog` as a module; the options are the fields of `SILogForm`.

    >>> loss = SILog(lam=0.5, reduction="image")
    >>> loss(torch.full((2, 1, 4, 4), 3.0), torch.full((2, 1, 4, 4), 3.0))
    tensor(0.)
    """

    def __init__(self, **options: Any) -> None:
        super().__init__()
        known = [field.name for field in fields(SILogForm)]
        for name in options:
            if name not in known:
                raise arguments.ArgumentError(
                    f"unknown option {name!r}",
                    where="nanopsy.stable.SILog",
                    why="a misspelled option would train another loss than the one you meant",
                    do=f"options: {', '.join(known)}",
                )
        self.form = SILogForm(**options)

    def forward(self, prediction: Tensor | DepthPrediction, target: Tensor, mask: Tensor | None = None, weight: Tensor | None = None) -> Tensor:
        return silog(prediction, target, mask, weight=weight, form=self.form)

    def extra_repr(self) -> str:
        return ", ".join(f"{field.name}={getattr(self.form, field.name)!r}" for field in fields(SILogForm))
