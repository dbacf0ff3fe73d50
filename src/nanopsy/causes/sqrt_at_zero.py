from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.facts import Form, Site, Suspicion, Value
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth


class SqrtAtZero(Cause):
    """Square root whose argument is exactly zero.

    ## What it does
    Finds `sqrt`, `x ** 0.5` or `x.pow(0.5)` that was differentiated at zero. The value is fine (0); its derivative
    1 / (2 sqrt(x)) is infinite there, and the chain rule then multiplies that infinity by a zero: NaN.

    ## Why is this bad?
    The loss looks healthy while every weight upstream becomes NaN at the next optimizer step. `sqrt(x) + eps`,
    `clamp(min=0).sqrt()` and gradient clipping do not help: the infinity is made inside. It is the first of the three
    causes of NaN in monocular depth training: the loss 10 * sqrt(D) of SILog has gradient 10 / (2 sqrt(D)) dD, which
    grows without bound as the loss approaches its optimum and is NaN at it.

    ## Guideline
    Train on the squared quantity where you can (SILog without the root has the same optimum). Otherwise keep the argument
    away from zero before the root: `x.clamp(min=1e-12).sqrt()` (gradient 0 below the bound) or `(x + eps).sqrt()`.

    ## Fix safety
    Unsafe in name only: clamping the argument at 1e-12 moves values by at most 1e-6 and sets the gradient to 0 below the bound.

    ## References
    arXiv 2311.03938, vulnerability 1 (square-root loss).
    """

    code, slug = "NAN101", "sqrt-at-zero"
    sites = ("sqrt",)
    replacement = "nanopsy.stable.sqrt"
    bad = """
import torch

x = torch.tensor([3.0, 3.0], requires_grad=True)

def loss():
    d = (x - 3.0).pow(2).mean()
    return 10 * torch.sqrt(d)
"""
    good = """
import torch

x = torch.tensor([3.0, 3.0], requires_grad=True)

def loss():
    d = (x - 3.0).pow(2).mean()
    return 10 * torch.sqrt(d.clamp(min=1e-12))
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.lo > 0 or value.has(Form.SIGNED) or not value.has(Form.ZERO) or _is_norm(value):
            return None
        reason = value.origin.what if value.origin is not None else "every term of it can be 0"
        if value.has(Form.SUMMED):
            reason = "all its terms are 0 together, as for residuals that are all 0"
        if value.has(Form.MEAN_OF_SQUARES | Form.ONE_PASS | Form.VARIANCE):
            reason = "all residuals equal to 0 (a perfect fit, a saturated head, a single pixel) make it exactly 0"
        elif value.has(Form.SQUARED_MEAN):
            reason = "it is a square: |x| written as the root of x², 0/0 in backward at 0"
        message = f"the square root has an infinite slope at 0 and its argument gets there: {reason}; 0 * inf is NaN in backward"
        return Suspicion(message, Confidence.CERTAIN if value.has(Form.MEAN_OF_SQUARES | Form.ONE_PASS) else Confidence.LIKELY, needs_gradient=True)

    def claim(self, birth: Birth) -> Claim | None:
        if not birth.backward or not birth.node.startswith(("Sqrt", "Pow")):
            return None
        argument = birth.operand(0)
        if argument.value != 0:
            return None
        root = birth.op == "sqrt" or (birth.op == "pow" and birth.settings.get("exponent") == 0.5)
        if not root:
            return None
        incoming = "0 arrived (0/0)" if birth.incoming == 0 else f"{birth.incoming:.3g} arrived (x/0)" if birth.incoming is not None else "it was used"
        message = (
            f"the square root was differentiated at exactly 0: its slope 1/(2*sqrt(0)) is infinite; gradient {incoming}, "
            f"{elements(birth)}; the argument is 0 because {came_from(argument.origin)}"
        )
        literal = birth.op == "sqrt" or _literal_half(birth)
        score = 0.86 if argument.origin.of_squares else 0.9
        return Claim(strength(birth, score if literal else 0.8), message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        bound = {"float16": "1e-7", "float64": "1e-24"}.get(birth.dtype, "1e-12")
        yield from _edits.bounded(finding.location, ("sqrt", "sqrt_", "**", "pow", "rsqrt"), f"clamp(min={bound})", "keeps the argument of the root positive")


def _literal_half(birth: Birth) -> bool:
    """Whether the source says 0.5 itself rather than naming an exponent."""
    found = _edits.expression(birth.location)
    if found is None:
        return True
    return any(isinstance(node, ast.Constant) and node.value == 0.5 for node in ast.walk(found[1]))


def _is_norm(value: Value) -> bool:
    """Whether an argument of a root is a sum of squares, which makes the root a norm."""
    return value.has(Form.SUM_OF_SQUARES) and not value.has(Form.MEAN_OF_SQUARES | Form.VARIANCE | Form.ONE_PASS | Form.SQUARED_MEAN)
