from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, came_from, elements, strength
from nanopsy.causes.log_of_sigmoid import LOGS
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth, OriginKind


class NegativeDomain(Cause):
    """Logarithm, root or fractional power of a negative number.

    ## What it does
    Finds `log`, `sqrt`, `rsqrt` or `x ** p` (p not whole) of a negative value: an unconstrained output, or `1 - cosine` that rounding made negative.

    ## Why is this bad?
    The result is NaN. An unconstrained network output is negative for half of all weights: nothing keeps it positive but luck.

    ## Guideline
    Make the output positive by construction (softplus, exp of a bounded logit, scaled sigmoid + minimum), not by a clamp after the fact.

    ## Fix safety
    Unsafe: a clamp hides negative outputs, which then have gradient 0.

    ## References
    IEEE 754-2019, section 9.2 (domain errors of elementary functions).
    """

    code, slug = "NAN204", "negative-domain"
    sites = ("log", "sqrt", "power")
    bad = """
import torch

prediction = torch.tensor([-0.5, 2.0], requires_grad=True)

def loss():
    return torch.log(prediction).mean()
"""
    good = """
import torch

prediction = torch.tensor([-0.5, 2.0], requires_grad=True)

def loss():
    return torch.log(torch.nn.functional.softplus(prediction)).mean()
"""
    source_bad = """
import torch

head = torch.nn.Linear(4, 1)

def loss(features):
    return torch.log(head(features)).mean()
"""
    source_good = """
import torch

head = torch.nn.Linear(4, 1)

def loss(features):
    return torch.log(torch.nn.functional.softplus(head(features)) + 1e-6).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.lo >= 0 or not value.has(Form.SIGNED) or (value.has(Form.EPSILON | Form.ABSOLUTE) and site.op == "power"):
            return None
        if site.op == "power":
            number = site.other.number if site.other is not None else None
            if number is None or not math.isfinite(number) or number.is_integer():
                return None
        if not value.has(Form.DIFFERENCE | Form.NETWORK | Form.DETERMINANT | Form.PRODUCT) or value.has(Form.LOGARITHM):
            return None
        what = {"log": "the logarithm", "sqrt": "the square root", "power": "a fractional power"}[site.op]
        kind = "a layer's unbounded output" if value.has(Form.NETWORK) else "a difference" if value.has(Form.DIFFERENCE) else "a sum of signed products"
        confidence = Confidence.LIKELY if value.has(Form.NETWORK) and not value.has(Form.DIFFERENCE | Form.PRODUCT) else Confidence.DEPENDS
        return Suspicion(f"{what} of {kind} is NaN where it is negative", confidence, "if it gets negative")

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        edge = -1.0 if birth.op == "log1p" else 0.0
        if birth.op not in (*LOGS, "sqrt", "rsqrt", "pow", "xlogy", "lgamma") or not argument.value < edge:
            return None
        if birth.op == "pow":
            exponent = birth.settings.get("exponent", birth.operand(1).value)
            if not isinstance(exponent, (int, float)) or float(exponent).is_integer():
                return None
        lost = argument.origin.cancellation
        if lost is not None and (lost.one_pass or lost.squares or lost.determinant):
            return None
        if birth.op in LOGS and argument.origin.kind is OriginKind.DATA and not argument.from_weights:
            return None
        message = f"{birth.op} of {argument.value:.6g}: {came_from(argument.origin)}; {elements(birth)}"
        return Claim(strength(birth, 0.9), message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(
            finding.location,
            (*LOGS, "sqrt", "rsqrt", "**", "pow"),
            f"clamp(min={_edits.floor_for(birth.dtype)})",
            "a positive output by construction (softplus) is the better cure",
        )
