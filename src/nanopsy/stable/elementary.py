"""Elementary functions whose gradient at the edge of their domain is stated and finite: root, power, log, exp, inverse cosine, division.

Every function keeps the value of its torch namesake, element by element, and its gradient wherever that is finite. NaN in is NaN out: an argument outside
the domain is another mistake and is not hidden.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import _Nonzero, nonzero, positive, wide

__all__ = ["acos", "asin", "atan2", "divide", "exp", "log", "log1mexp", "power", "reciprocal", "sqrt", "where_safe", "xlogy"]


LARGEST_EXPONENT = {torch.float64: 709.782712893384, torch.float32: 88.72283172607422, torch.bfloat16: 88.5, torch.float16: 11.0859375}
"""The largest number of each format whose exponential is finite."""


class _Sqrt(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x.sqrt()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        twice = positive(ctx.saved_tensors[0]) * 2
        return grad / twice if torch.is_grad_enabled() else twice.reciprocal_().mul_(grad)


def sqrt(x: Tensor) -> Tensor:
    """Square root with gradient 0 at 0.

    Args:
        x: any shape, any floating dtype. Negative elements give NaN, as in torch: a variance that came out negative needs `masked_var`, not a clamp.

    Returns:
        sqrt(x); the gradient is 1 / (2 sqrt(x)), and 0 where x is exactly 0 (torch: inf, which the chain rule turns into NaN).
        It is still unbounded as x approaches 0: train on the square where you can (arXiv 2311.03938, guideline 1).

    >>> x = torch.zeros(1, requires_grad=True)
    >>> sqrt(x).backward(); x.grad
    tensor([0.])
    """
    arguments.floating("nanopsy.stable.sqrt", x=x)
    root: Tensor = _Sqrt.apply(x)  # type: ignore[no-untyped-call]
    return root


class _Power(torch.autograd.Function):
    """x ** p with 0 in place of the infinities that a negative p makes at 0: closed under differentiation."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, p: float) -> Tensor:
        return _Nonzero.forward(x, math.inf).pow_(p) if p < 0 else x.pow(p)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.p = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return grad * (ctx.p * _Power.apply(x, ctx.p - 1)), None  # type: ignore[no-untyped-call]
        return _Power.forward(x, ctx.p - 1).mul_(ctx.p).mul_(grad), None


def power(x: Tensor, exponent: float) -> Tensor:
    """``x ** exponent`` with gradient 0 at 0, for a positive exponent.

    Args:
        x: any shape, any floating dtype. A negative base under a fractional exponent gives NaN, as in torch.
        exponent: a positive number.

    Returns:
        x to the power; the gradient is p x^(p - 1), and 0 where x is exactly 0 (torch: inf for 0 < p < 1). Higher derivatives likewise.

    Raises:
        ArgumentError: an exponent that is not positive: write ``reciprocal(power(x, p))``, which states a value at 0.

    >>> power(torch.tensor([0.0, 8.0]), 1 / 3)
    tensor([0., 2.])
    """
    where = "nanopsy.stable.power"
    arguments.floating(where, x=x)
    arguments.number(where, "exponent", exponent, above=0)
    raised: Tensor = _Power.apply(x, float(exponent))  # type: ignore[no-untyped-call]
    return raised


class _Log(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, floor: float) -> Tensor:
        return x.clamp(min=floor).log_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        x, ctx.floor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        above = F.threshold(ctx.saved_tensors[0], ctx.floor, math.inf)
        return grad / above if torch.is_grad_enabled() else above.reciprocal_().mul_(grad), None


def log(x: Tensor, floor: float | None = None) -> Tensor:
    """Natural logarithm of ``max(x, floor)``: bounded below, with gradient 0 at and under the floor.

    Args:
        x: any shape, any floating dtype.
        floor: smallest argument, positive. The default, and the least that it can be, is the format's smallest normal number (1.2e-38 in float32 and
            bfloat16, 6.1e-5 in float16), which bounds the value; a bound that means something (a minimum depth in metres) also bounds the gradient,
            by 1 / floor.

    Returns:
        log(max(x, floor)). NaN stays NaN. For the log of a sigmoid or a softmax use `nanopsy.stable.scaled_sigmoid` or `masked_log_softmax`: they are exact.

    Raises:
        ArgumentError: a floor that is not positive.

    >>> log(torch.tensor([0.0, 1.0]), floor=1e-3)
    tensor([-6.9078,  0.0000])
    """
    where = "nanopsy.stable.log"
    arguments.floating(where, x=x)
    if floor is not None:
        arguments.number(where, "floor", floor, above=0)
    value: Tensor = _Log.apply(x, max(floor or 0.0, torch.finfo(x.dtype).smallest_normal))  # type: ignore[no-untyped-call]
    return value


def exp(x: Tensor, limit: float | None = None) -> Tensor:
    """Exponential of ``min(x, limit)``: never infinite for a finite argument, with gradient 0 above the limit.

    Args:
        x: any shape, any floating dtype.
        limit: the largest exponent. The default is the largest number of the format whose exp is finite (709.78 in float64, 88.72 in float32, 88.5 in bfloat16,
            11.086 in float16); a smaller one leaves room for what comes after (a square, a sum).

    Returns:
        exp(min(x, limit)). NaN stays NaN.

    >>> exp(torch.tensor([0.0, 1e4]), limit=20.0)
    tensor([1.0000e+00, 4.8517e+08])
    """
    where = "nanopsy.stable.exp"
    arguments.floating(where, x=x)
    largest = LARGEST_EXPONENT[x.dtype]
    if limit is not None:
        arguments.number(where, "limit", limit, most=math.log(torch.finfo(x.dtype).max))
    return x.clamp(max=largest if limit is None else min(limit, largest)).exp()


class _Arc(torch.autograd.Function):
    """acos or asin; an excess over 1 of at most ``slack`` counts as 1. The slope is 0 there."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, cosine: bool, slack: float) -> Tensor:  # noqa: FBT001
        inside = x.clamp(-1, 1)
        inside.add_(F.hardshrink(x - inside, slack))
        return inside.acos_() if cosine else inside.asin_()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, bool, float], output: Tensor) -> None:
        x, cosine, _ = inputs
        ctx.sign = -1.0 if cosine else 1.0
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        return grad * (ctx.sign * positive((1 - x) * (1 + x)).rsqrt()), None, None


def _arc(where: str, x: Tensor, *, cosine: bool) -> Tensor:
    arguments.floating(where, x=x)
    wider = wide(x)
    angle: Tensor = _Arc.apply(wider, cosine, 64 * torch.finfo(x.dtype).eps)  # type: ignore[no-untyped-call]
    return angle.to(x.dtype)


def acos(x: Tensor) -> Tensor:
    """Inverse cosine with gradient 0 at -1 and 1, in radians.

    Args:
        x: any shape, any floating dtype, cosines. What rounding put beyond 1, by up to 64 eps, counts as 1; anything further out is NaN, as in torch.

    Returns:
        acos(x) in [0, pi]; the gradient is -1 / sqrt((1 - x)(1 + x)), and 0 where |x| is 1 or rounding made it more (torch: inf).

    >>> acos(torch.tensor([1.0, 0.0]))
    tensor([0.0000, 1.5708])
    """
    return _arc("nanopsy.stable.acos", x, cosine=True)


def asin(x: Tensor) -> Tensor:
    """Inverse sine with gradient 0 at -1 and 1, in radians. The edges are those of `acos`.

    >>> asin(torch.tensor([1.0, 0.0]))
    tensor([1.5708, 0.0000])
    """
    return _arc("nanopsy.stable.asin", x, cosine=False)


class _Atan2(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, x: Tensor) -> Tensor:
        return torch.atan2(y, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        y, x = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated again: hypot has no second derivative at the origin
            size = positive(torch.maximum(y.detach().abs(), x.detach().abs()))
            a, b = y / size, x / size
            slope = grad / positive(a * a + b * b) / size
            return slope * b, -slope * a
        length = F.threshold(torch.hypot(y, x), 0.0, math.inf, inplace=True)
        slope = grad / length
        return (x / length).mul_(slope), (y / length).mul_(slope).neg_()


def atan2(y: Tensor, x: Tensor) -> Tensor:
    """Angle of the vector (x, y) in radians, with gradient 0 at the origin and no overflow on the way.

    Args:
        y, x: tensors of one shape, any floating dtype.

    Returns:
        atan2(y, x) in [-pi, pi]; the gradient is (x, -y) / (x^2 + y^2), with x and y scaled first, so that components of 1e-30 or 1e30 keep
        theirs, and 0 where both are 0.

    >>> atan2(torch.tensor(0.0), torch.tensor(0.0))
    tensor(0.)
    """
    where = "nanopsy.stable.atan2"
    arguments.floating(where, y=y, x=x)
    arguments.alike(where, y=y, x=x)
    angle: Tensor = _Atan2.apply(wide(y), wide(x))  # type: ignore[no-untyped-call]
    return angle.to(torch.promote_types(y.dtype, x.dtype))


class _Xlogy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> Tensor:
        return torch.xlogy(x, y)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return grad * torch.where(y == 0, 1.0, y).log(), grad * (x / nonzero(y))


def xlogy(x: Tensor, y: Tensor) -> Tensor:
    """``x * log(y)``, 0 where x is 0, with finite gradients where y is 0: the term of an entropy.

    Args:
        x, y: tensors of one shape, any floating dtype.

    Returns:
        x log y, and 0 where x is 0 even if y is 0. Where y is 0 the gradients (log y and x / y elsewhere) are both 0; the value for x != 0 there is
        -inf or inf, which is the truth.

    >>> p = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> xlogy(p, p).sum().backward(); p.grad
    tensor([0., 1.])
    """
    where = "nanopsy.stable.xlogy"
    arguments.floating(where, x=x, y=y)
    arguments.alike(where, x=x, y=y)
    product: Tensor = _Xlogy.apply(x, y)  # type: ignore[no-untyped-call]
    return product


class _Log1mexp(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.where(x > math.log(2), torch.log1p(-torch.exp(-x)), torch.log(-torch.expm1(-x)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * (torch.exp(-x) / nonzero(-torch.expm1(-x)))


def log1mexp(x: Tensor) -> Tensor:
    """log(1 - exp(-x)) for x >= 0, accurate for small and for large x.

    Args:
        x: any shape, any floating dtype, non-negative; negative elements give NaN.

    Returns:
        log(1 - exp(-x)): the log-probability of the other outcome, from a negated log-probability. At 0 the value is -inf, the gradient (1 / (exp(x) - 1)
        elsewhere) is 0.

    Source: Mächler 2012, "Accurately computing log(1 - exp(-|a|))", equation 7.

    >>> log1mexp(torch.tensor([1e-10, 30.0]))
    tensor([-2.3026e+01, -9.3576e-14])
    """
    arguments.floating("nanopsy.stable.log1mexp", x=x)
    value: Tensor = _Log1mexp.apply(wide(x))  # type: ignore[no-untyped-call]
    return value.to(x.dtype)


def divide(a: Tensor, b: Tensor, *, at_zero: float = 0.0) -> Tensor:
    """``a / b`` with a stated value, and gradient 0, where b is exactly 0.

    Args:
        a, b: tensors that broadcast together, any floating dtype.
        at_zero: the quotient where b is 0 (of either sign).

    Returns:
        a / b, correctly rounded; ``at_zero`` where b is 0 and a is finite. A quotient too large for the format is inf, as in torch: bound the divisor by
        something that means something (a minimum depth) where that can happen.

    >>> divide(torch.tensor([1.0, 6.0]), torch.tensor([0.0, 3.0]))
    tensor([0., 2.])
    """
    where = "nanopsy.stable.divide"
    arguments.floating(where, a=a, b=b)
    quotient = a / nonzero(b)
    return quotient if at_zero == 0 else torch.where(b == 0, at_zero, quotient)


def reciprocal(x: Tensor, *, at_zero: float = 0.0) -> Tensor:
    """``1 / x`` with a stated value, and gradient 0, where x is exactly 0: depth from disparity, precision from variance.

    Args:
        x: any shape, any floating dtype.
        at_zero: the result where x is 0 (of either sign).

    >>> reciprocal(torch.tensor([0.0, 4.0]), at_zero=80.0)
    tensor([80.0000,  0.2500])
    """
    arguments.floating("nanopsy.stable.reciprocal", x=x)
    result = nonzero(x).reciprocal()
    return result if at_zero == 0 else torch.where(x == 0, at_zero, result)


def where_safe(condition: Tensor, function: Callable[[Tensor], Tensor], x: Tensor, otherwise: Tensor | float = 0.0, *, inside: float = 1.0) -> Tensor:
    """``torch.where(condition, function(x), otherwise)`` that evaluates the function only where the condition holds ("double where").

    Args:
        condition: boolean, broadcastable to ``x``: where ``function`` is defined.
        function: elementwise, for example ``torch.log``.
        x: its argument.
        otherwise: the result elsewhere.
        inside: a point of the function's domain, put in place of the arguments that are not used.

    Returns:
        function(x) where the condition holds, ``otherwise`` elsewhere. The gradient with respect to ``x`` is 0 elsewhere (``torch.where`` alone: 0 * inf
        = NaN).

    >>> x = torch.tensor([0.0, 1.0], requires_grad=True)
    >>> where_safe(x > 0, torch.log, x).sum().backward(); x.grad
    tensor([0., 1.])
    """
    where = "nanopsy.stable.where_safe"
    arguments.floating(where, x=x)
    arguments.boolean(where, condition, x)
    return torch.where(condition, function(torch.where(condition, x, inside)), otherwise)
