from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.ranges import Birth


class Unknown(Cause):
    """Bad value whose cause is not known to nanopsy.

    ## What it does
    Names the operator that made a bad value out of finite ones, and its operands; it claims no class of mistake.

    ## Why is this bad?
    The step is bad all the same. The catalogue does not cover everything, and a wrong cause would be worse than none.

    ## Guideline
    Read the operands and the path, and please report the case.

    ## Fix safety
    No fix is proposed.

    ## References
    None.
    """

    code, slug = "NAN999", "unknown"
    bad = """
import torch

x = torch.tensor([30000.0], requires_grad=True)

def loss():
    return torch.special.i0(x).sum()
"""
    good = """
import torch

x = torch.tensor([3.0], requires_grad=True)

def loss():
    return torch.special.i0(x).sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase in ("transient", "compiled", "optimizer", "weights", "data"):
            return None
        if birth.phase == "unknown":
            return Claim(0.01, "the step is bad, but the trace shows no operator that made a bad value out of finite ones; cause unknown")
        values = ", ".join(f"{operand.name}={operand.value:.6g}" for operand in birth.operands[:4])
        return Claim(0.05, f"{birth.op} made {birth.value} out of finite operands ({values}); no known cause claims it; {elements(birth)}")
