from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.ranges import Birth


class ClippingSpreads(Cause):
    """Gradient clipping by a norm that is not finite.

    ## What it does
    Finds a total gradient norm that overflowed although every gradient was finite, so that clipping multiplied all of them by 0 or NaN.

    ## Why is this bad?
    `clip_grad_norm_` scales by max_norm / total_norm. An infinite norm gives 0 * x (or NaN for the infinite element), a NaN norm gives NaN for *every*
    parameter: one bad value becomes all bad values.

    ## Guideline
    Cure what made the gradient huge; `error_if_nonfinite=True` turns the silent spread into an error.

    ## Fix safety
    No automatic edit.

    ## References
    PyTorch documentation of `torch.nn.utils.clip_grad_norm_`.
    """

    code, slug = "NAN603", "clipping-spreads"
    runs_as = "script"
    bad = """
import torch

w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    loss = (w * torch.tensor([3e38, 3e38])).sum() * 1e-38
    optimizer.zero_grad()
    loss.backward()
    w.grad.mul_(1e38)
    norm = torch.sqrt((w.grad ** 2).sum())
    w.grad.mul_(1.0 / norm * norm)
    optimizer.step()
"""
    good = """
import torch

w = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    loss = (w * torch.tensor([3.0, 3.0])).sum()
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([w], 1.0)
    optimizer.step()
"""
    _NORMS = ("linalg_vector_norm", "_foreach_norm", "norm", "pow", "sum", "square", "mul")

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase != "forward" or birth.sink != "gradient" or birth.op not in self._NORMS or birth.discard is not None:
            return None
        if not birth.settings.get("after_backward"):
            return None
        message = f"the gradient norm overflowed in {birth.op} although the gradients were finite; scaling by it made them bad; {elements(birth)}"
        return Claim(0.9, message)
