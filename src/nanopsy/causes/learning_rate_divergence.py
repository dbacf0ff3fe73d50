from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth, Growth

GROWS = (
    "add", "sub", "mul", "sum", "mm", "addmm", "bmm", "baddbmm", "convolution", "linear", "pow", "square", "mean", "dot", "matmul", "native_batch_norm",
    "mse_loss", "cumsum", "mkldnn_rnn_layer", "addmv", "mv", "linalg_vector_norm", "div", "native_layer_norm", "_log_softmax", "_thnn_fused_gru_cell",
    "exp", "var", "einsum", "smooth_l1_loss", "avg_pool2d", "grid_sampler_2d", "_cdist_forward", "tanh",
    "nll_loss_forward", "nll_loss2d_forward", "softplus", "abs", "l1_loss", "huber_loss", "binary_cross_entropy_with_logits",
)  # fmt: skip


def overflowed(birth: Birth) -> bool:
    """An ordinary operator whose finite operands are simply too large."""
    if birth.op not in GROWS or birth.dtype == "float16":
        return False
    peaks = [operand.largest for operand in birth.operands if math.isfinite(operand.largest)]
    extra = birth.settings.get("backward_inputs")
    if isinstance(extra, list):
        peaks += [peak for peak in extra if isinstance(peak, float) and math.isfinite(peak)]
    return (bool(peaks) and max(peaks) > 1e12) or birth.phase == "optimizer"


class LearningRateDivergence(Cause):
    """Training that diverged: steps too large.

    ## What it does
    Finds an overflow whose operands had been growing for several steps: losses, gradient norms and weight norms of the recent steps show it.
    Never concluded from one step.

    ## Why is this bad?
    No operator is at fault: each update overshoots, the next gradient is larger, and the numbers leave the format.

    ## Guideline
    Lower the learning rate (by 10 first), warm it up, clip the gradient norm, check the scale of the loss and of the inputs.

    ## Fix safety
    Unsafe: the learning rate is a choice of the training. It cannot be verified on the failing step, whose weights are already large.

    ## References
    Goodfellow, Bengio and Courville, "Deep Learning", chapter 8.2.4 (cliffs and exploding gradients); pytorch/examples issue 223.
    """

    code, slug = "NAN601", "learning-rate-divergence"
    runs_as = "script"
    bad = """
import torch

torch.manual_seed(0)
w = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(w.parameters(), lr=50.0)
for step in range(200):
    x = torch.randn(8, 4)
    loss = (w(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
    good = """
import torch

torch.manual_seed(0)
w = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(w.parameters(), lr=0.05)
for step in range(200):
    x = torch.randn(8, 4)
    loss = (w(x) - x.sum(1, keepdim=True)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

    def claim(self, birth: Birth) -> Claim | None:
        facts = birth.optimizer
        if birth.history.growth is not Growth.DIVERGING or facts is None:
            return None
        if birth.phase == "optimizer" and (facts.eps_lost or facts.eps == 0) and facts.denominator_zero:
            return None
        if not overflowed(birth):
            return None
        message = f"training diverged at learning rate {facts.lr:g}: {birth.history.text}; then {birth.op} overflowed; {elements(birth)}"
        also = (birth.location,) if birth.location else ()
        return Claim(0.9, message, location=facts.location, also=also, evidence={"lr": facts.lr, "growth": birth.history.text})

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if not isinstance(node, ast.Call):
            return
        word = _edits.keyword(node, "lr")
        value = word.value if word is not None else node.args[1] if len(node.args) > 1 else None
        if isinstance(value, ast.Constant) and isinstance(value.value, (int, float)):
            yield [_edits.replace_node(source, value, f"{value.value / 10:g}", "a tenth of the learning rate, to begin with")]
