from __future__ import annotations

from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.causes._edits import POINTWISE
from nanopsy.findings import Edit, Finding
from nanopsy.ranges import Birth

DROPS = (
    "index", "masked_select", "maskedselect", "gather", "max", "min", "amax", "amin", "topk", "sort", "slice", "select", "index_select",
    "indexselect", "maxpool", "max_pool2d_with_indices", "take", "_unsafe_index",
)  # fmt: skip


class DroppedAfterSingular(Cause):
    """Element dropped by indexing or a maximum after a singular operator.

    ## What it does
    Finds an operator at a singular point whose result is not used: `f(x)[mask]`, `f(x).max()`, a slice that leaves it out.

    ## Why is this bad?
    An unused element gets gradient 0, and the singular operator's derivative there is infinite: 0 * inf is NaN, in an element that never
    counted.

    ## Guideline
    Select first, compute after: `f(x[mask])` instead of `f(x)[mask]`.

    ## Fix safety
    Unsafe as an automatic clamp; moving the selection inside is safe and yours to do.

    ## References
    See where-trap: the same mechanism with another way to drop.
    """

    code, slug = "NAN405", "dropped-after-singular"
    bad = """
import torch

x = torch.tensor([0.0, 4.0], requires_grad=True)

def loss():
    return torch.sqrt(x)[x > 1].sum()
"""
    good = """
import torch

x = torch.tensor([0.0, 4.0], requires_grad=True)

def loss():
    return torch.sqrt(x[x > 1]).sum()
"""

    def claim(self, birth: Birth) -> Claim | None:
        drop = birth.discard
        if birth.sink != "gradient" or drop is None or drop.op not in DROPS:
            return None
        message = f"{birth.op} at {birth.operand(0).value:.6g} was dropped afterwards ({drop.op}); its gradient is 0 * inf all the same; {elements(birth)}"
        return Claim(0.93, message, also=(drop.location,) if drop.location else ())

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, POINTWISE, f"clamp(min={_edits.floor_for(birth.dtype)})", "better: select before computing")
