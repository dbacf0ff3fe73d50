from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class NonFiniteData(Cause):
    """NaN or infinity that came with the data.

    ## What it does
    Finds a bad value that was not computed in the step: it was in the batch, or was written into a tensor on purpose, and arithmetic used it.

    ## Why is this bad?
    Datasets mark missing depth with NaN or inf (Hypersim, Middlebury PFM). One such pixel in a sum, a mean or a pooling window makes the whole loss NaN,
    and multiplying by a 0/1 mask does not remove it.

    ## Guideline
    Turn invalid pixels into a mask when loading, select with it before any arithmetic, and downsample with a masked average.

    ## Fix safety
    No automatic edit: which value a missing pixel should have is yours to say.

    ## References
    apple/ml-hypersim issue 63.
    """

    code, slug = "NAN701", "non-finite-data"
    bad = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
depth = torch.tensor([float("nan"), 3.0])

def loss():
    valid = torch.isfinite(depth).float()
    return ((prediction - depth) * valid).abs().sum()
"""
    good = """
import torch

prediction = torch.tensor([1.0, 2.0], requires_grad=True)
depth = torch.tensor([float("nan"), 3.0])

def loss():
    valid = torch.isfinite(depth)
    return (prediction[valid] - depth[valid]).abs().sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase != "data":
            return None
        operand = birth.operand(0)
        written = f", written at {operand.origin.location}" if operand.origin.location else ""
        message = (
            f"{operand.origin.name or operand.name} holds {operand.bad:,} bad of {operand.count:,} values (first: {operand.origin.what or operand.name} = "
            f"{operand.value}{written}); this line is the first to compute with them"
        )
        also = (operand.origin.location,) if operand.origin.location else ()
        return Claim(0.95, message, also=also, evidence={"field": operand.name, "came": birth.settings.get("origin", "")})
