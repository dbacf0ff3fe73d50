from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.causes.log_of_sigmoid import LOGS
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding, Safety
from nanopsy.ranges import Birth, OriginKind


class LogOfSoftmax(Cause):
    """Logarithm of a softmax probability that underflowed to zero.

    ## What it does
    Finds a `log` whose argument is exactly 0 because it is a softmax output.

    ## Why is this bad?
    A logit 104 below the largest gives probability 0 in float32. log is -inf there, and 0 * -inf (a one-hot target) is NaN even for classes
    that do not matter.

    ## Guideline
    Use `log_softmax` of the logits, or `cross_entropy`, which does so inside.

    ## Fix safety
    Safe where log and softmax meet in one expression. A clamp at the log is unsafe: clamped classes have gradient 0.

    ## References
    PyTorch documentation of `torch.nn.functional.log_softmax`.
    """

    code, slug = "NAN203", "log-of-softmax"
    sites = ("log",)
    replacement = "torch.log_softmax"
    bad = """
import torch

logits = torch.tensor([[300.0, 0.0, 1.0]], requires_grad=True)
target = torch.tensor([[1.0, 0.0, 0.0]])

def loss():
    p = torch.softmax(logits, dim=1)
    return -(target * torch.log(p)).sum()
"""
    good = """
import torch

logits = torch.tensor([[300.0, 0.0, 1.0]], requires_grad=True)
target = torch.tensor([[1.0, 0.0, 0.0]])

def loss():
    return -(target * torch.log_softmax(logits, dim=1)).sum()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.lo > 0 or not value.has(Form.SOFTMAX) or value.has(Form.SIGMOID) or (value.has(Form.PRODUCT) and not value.has(Form.ZERO)):
            return None
        also = (value.origin,) if value.origin is not None else ()
        return Suspicion(
            "log of a softmax: a probability underflows to 0 when its logit lies about 104 below the largest; log 0 is -inf", Confidence.LIKELY, also=also
        )

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        if birth.op not in LOGS or argument.value != 0 or argument.origin.kind is not OriginKind.SOFTMAX:
            return None
        place = f" at {argument.origin.location}" if argument.origin.location else ""
        how = "is exactly 1" if "saturated" in argument.origin.what else "underflowed"
        message = f"log of exactly 0: a softmax probability{place} {how}; {elements(birth)}"
        also = (argument.origin.location,) if argument.origin.location else ()
        return Claim(strength(birth, 0.97), message, also=also)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        argument = _edits.subject(node)
        if argument is None or _edits.called(node) not in LOGS:
            return
        if _edits.called(node) == "log" and isinstance(argument, ast.Call) and _edits.called(argument) == "softmax":
            start, _ = source.span(argument)
            _, name_end = source.span(argument.func)
            at = name_end - len("softmax") - start
            code = source.code(argument)
            inner = f"{code[:at]}log_{code[at:]}"
            yield [_edits.replace_node(source, node, inner, "exact for every logit", Safety.SAFE)]
            return
        note = "better still: log_softmax of the logits"
        yield [_edits.method(source, argument, f"clamp(min={_edits.floor_for(birth.dtype)})", note)]
