from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth


class OptimizerEpsilon(Cause):
    """Optimizer epsilon that its weights' format cannot hold.

    ## What it does
    Finds weights that became bad *inside* `optimizer.step()` although loss and gradients were finite, because the eps of Adam (or RMSprop, Adagrad) is
    0 in the weights' format.

    ## Why is this bad?
    The update divides by sqrt(v) + eps. In float16 the default 1e-8 is exactly 0, and squared gradients below 6e-8 are 0 too: 0/0 is NaN.

    ## Guideline
    Keep float32 weights and use autocast; or pass an eps that the format holds (`eps=1e-4` for float16).

    ## Fix safety
    Unsafe: eps changes the size of updates for small gradients.

    ## References
    pytorch/pytorch issue 40497; afiaka87/glide-finetune issue 5.
    """

    code, slug = "NAN602", "optimizer-epsilon"
    sites = ("optimizer",)
    runs_as = "script"
    bad = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for step in range(5):
    x = torch.zeros(2, 4).half()
    loss = (net(x).float() ** 2).mean() * 1e-4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = """
import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 2).half()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, eps=1e-4)
for step in range(5):
    x = torch.zeros(2, 4).half()
    loss = (net(x).float() ** 2).mean() * 1e-4
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    def match(self, site: Site) -> Suspicion | None:
        eps = site.settings["eps"]
        if not site.settings["name"].startswith(("Adam", "NAdam", "RAdam", "RMSprop")) or not site.operand.has(Form.HALF):
            return None
        if eps is not None and (eps.number is None or eps.number >= 6e-8):
            return None
        written = "its default 1e-8" if eps is None else f"{eps.number:g}"
        return Suspicion(
            f"{site.settings['name']} over float16 weights with eps {written}, which float16 rounds to 0: a weight whose gradient is 0 becomes 0/0",
            Confidence.CERTAIN,
        )

    def claim(self, birth: Birth) -> Claim | None:
        facts = birth.optimizer
        if birth.phase != "optimizer" or facts is None or not facts.eps_lost or not facts.denominator_zero:
            return None
        name = birth.operand(0).name
        message = (
            f"{birth.bad_count:,} of {birth.total:,} elements of {name} became {birth.value} in {facts.name}.step(): its eps {facts.eps:g} is 0 in "
            f"{facts.dtype} and the second moment is 0 there, so the update was x/0; loss and gradients were finite"
        )
        return Claim(0.97, message, location=facts.location, evidence={"eps": facts.eps, "weights_dtype": facts.dtype})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if not isinstance(node, ast.Call):
            return
        word = _edits.keyword(node, "eps")
        note = "an eps that the weights' format holds"
        if word is not None:
            yield [_edits.replace_node(source, word.value, "1e-4", note)]
        else:
            yield [_edits.add_keyword(source, node, "eps=1e-4", note)]
