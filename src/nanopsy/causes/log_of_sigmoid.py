from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements, strength
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding, Safety
from nanopsy.ranges import Birth, OriginKind

LOGS = ("log", "log2", "log10", "log1p")


class LogOfSigmoid(Cause):
    """Logarithm of a sigmoid that underflowed to zero.

    ## What it does
    Finds a `log` whose argument is exactly 0 because it is (a multiple of) a saturated sigmoid, however far apart the two lie:
    `depth = max_depth * sigmoid(x)` in the model and `log(depth)` in the loss.

    ## Why is this bad?
    sigmoid(x) is exactly 0 from about x = -89 down in float32 and -17.5 in float16. log gives -inf, and its gradient is inf * 0 = NaN. It is the
    second cause of NaN in monocular depth training; a high learning rate or one bad step is enough to drive a logit there.

    ## Guideline
    Compute the logarithm from the logit: `logsigmoid(x) + log(max_depth)` is exact for every x. Or keep the depth above a positive
    minimum, `min_depth + (max_depth - min_depth) * sigmoid(x)`.

    ## Fix safety
    Safe where log and sigmoid meet in one expression (`logsigmoid` has the same value to a few ulp). A clamp at the log, when they lie apart,
    is unsafe: saturated pixels then have gradient 0.

    ## References
    arXiv 2311.03938, vulnerability 2 (log of a sigmoid).
    """

    code, slug = "NAN201", "log-of-sigmoid"
    sites = ("log",)
    replacement = "nanopsy.stable.scaled_sigmoid"
    bad = """
import torch

logit = torch.tensor([-120.0, 0.5], requires_grad=True)

def depth():
    return 80.0 * torch.sigmoid(logit)

def loss():
    return torch.log(depth()).mean()
"""
    good = """
import math
import torch
import torch.nn.functional as F

logit = torch.tensor([-120.0, 0.5], requires_grad=True)

def loss():
    return (F.logsigmoid(logit) + math.log(80.0)).mean()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if value.has(Form.SELF_SELECTED) and value.role == "prediction":
            message = (
                "the mask is made from the prediction itself: a saturated prediction, exactly 0, silently leaves the loss, and its error is never trained away"
            )
            return Suspicion(message, Confidence.LIKELY, facts=(("fix", "none"),))
        if value.lo > 0 or not value.has(Form.SIGMOID):
            return None
        also = (value.origin,) if value.origin is not None else ()
        message = (
            f"{site.settings['name']} of a sigmoid without a lower bound: the sigmoid underflows to 0 for logits below about -88 (-17 in float16), "
            "log 0 is -inf and its gradient NaN"
        )
        return Suspicion(message, Confidence.LIKELY, also=also)

    def claim(self, birth: Birth) -> Claim | None:
        argument = birth.operand(0)
        if birth.op not in LOGS or argument.value != 0 or argument.origin.kind is not OriginKind.SIGMOID:
            return None
        place = f" at {argument.origin.location}" if argument.origin.location else ""
        how = "is exactly 1, so 1 - sigmoid is 0" if "saturated" in argument.origin.what else "underflowed to 0 for a large negative logit"
        message = f"log of exactly 0: the sigmoid{place} {how}; {elements(birth)}"
        also = (argument.origin.location,) if argument.origin.location else ()
        return Claim(strength(birth, 0.97), message, also=also)

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        return iter(()) if facts.get("fix") == "none" else self.remedies(birth, finding)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        argument = _edits.subject(node)
        if argument is None or _edits.called(node) not in LOGS:
            return
        if _edits.called(node) == "log" and isinstance(argument, ast.Call) and _edits.called(argument) == "sigmoid":
            logit = _edits.subject(argument)
            if logit is not None:
                new = f"torch.nn.functional.logsigmoid({source.code(logit)})"
                yield [_edits.replace_node(source, node, new, "exact for every logit", Safety.SAFE)]
                return
        if _edits.called(node) == "log" and isinstance(argument, ast.BinOp) and isinstance(argument.op, ast.Sub):
            one, inner = argument.left, argument.right
            if isinstance(one, ast.Constant) and one.value == 1 and isinstance(inner, ast.Call) and _edits.called(inner) == "sigmoid":
                logit = _edits.subject(inner)
                if logit is not None:
                    new = f"torch.nn.functional.logsigmoid(-({source.code(logit)}))"
                    yield [_edits.replace_node(source, node, new, "exact for every logit", Safety.SAFE)]
                    return
        bound = _edits.floor_for(birth.dtype)
        yield [_edits.method(source, argument, f"clamp(min={bound})", "better still: logsigmoid of the logit + log(max_depth), at the head")]
