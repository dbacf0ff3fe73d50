from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.causes._edits import POINTWISE
from nanopsy.facts import Form, Kind, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth

REPAIRS = {
    "nan_to_num": "nan_to_num", "nantonum": "nan_to_num", "masked_fill": "masked_fill", "maskedfill": "masked_fill", "index_put": "index assignment",
    "indexput": "index assignment", "clamp": "clamp", "clamp_min": "clamp", "clamp_max": "clamp", "minimum": "minimum", "maximum": "maximum",
    "copyslices": "slice assignment", "nansum": "nansum", "nanmean": "nanmean", "masked_scatter": "masked_scatter", "hardtanh": "hardtanh",
    "copy": "slice assignment", "fill": "index assignment",
}  # fmt: skip


class RepairAfterTheFact(Cause):
    """Bad value repaired in forward, where its gradient cannot be.

    ## What it does
    Finds an operator at a singular point whose result is replaced afterwards: `nan_to_num`, `masked_fill`, `out[mask] = 0`, `clamp` after the operator.

    ## Why is this bad?
    The repair cleans the value only. Backward still differentiates the singular operator, with a zero arriving: 0 * inf is NaN.

    ## Guideline
    Repair the *argument*: clamp or mask before `log`, `sqrt`, `/`, not after.

    ## Fix safety
    Unsafe: the bound changes values near the singularity.

    ## References
    PyTorch documentation of `torch.nan_to_num`; see also where-trap.
    """

    code, slug = "NAN402", "repair-after-the-fact"
    sites = ("repair", "discarded", "nan-compare")
    bad = """
import torch

x = torch.tensor([0.0, 4.0], requires_grad=True)

def loss():
    return torch.nan_to_num(torch.log(x), neginf=0.0).sum()
"""
    good = """
import torch

x = torch.tensor([0.0, 4.0], requires_grad=True)

def loss():
    return torch.log(x.clamp(min=1e-6)).sum()
"""

    def match(self, site: Site) -> Suspicion | None:
        value = site.operand
        if site.op == "discarded":
            if site.settings["name"] != "nan_to_num":
                return None
            return Suspicion("nan_to_num returns a new tensor and its result is dropped here: nothing is repaired", Confidence.CERTAIN)
        if site.op == "nan-compare":
            return Suspicion("nothing is equal to NaN, NaN itself included: this comparison selects nothing (isnan does)", Confidence.CERTAIN)
        checked = site.settings.get("checked")
        if checked is not None and checked.has(Form.REPAIRED) and checked.sym != value.sym:
            return Suspicion(
                "the NaN mask is taken from a tensor whose NaN were already replaced: it selects nothing, so this value is never repaired", Confidence.CERTAIN
            )
        if value.role in ("label", "image") or value.has(Form.DATA) or value.kind == Kind.ARRAY or not value.grad:
            return None
        message = "NaN is replaced after it was made: the loss is clean, but the gradient of the operation that made it is still NaN"
        certain = site.settings["name"] in ("isnan", "isfinite") or any(each.code and not each.suspicion.needs_gradient for each in value.hazards)
        return Suspicion(message, Confidence.LIKELY if certain else Confidence.DEPENDS, "if a NaN gets there", needs_gradient=True)

    def claim(self, birth: Birth) -> Claim | None:
        drop = birth.discard
        if birth.sink != "gradient" or drop is None or drop.op not in REPAIRS:
            return None
        if birth.backward and birth.forward_value == 0 and drop.op in ("clamp", "clamp_min", "maximum", "minimum") and birth.incoming != 0:
            return None
        message = (
            f"{birth.op} at {birth.operand(0).value:.6g} was repaired afterwards by {REPAIRS[drop.op]}; its gradient was not: "
            f"0 * inf in backward; {elements(birth)}"
        )
        return Claim(0.92, message, also=(drop.location,) if drop.location else ())

    def cures(self, birth: Birth, finding: Finding, facts: Mapping[str, str]) -> Iterator[Sequence[Edit]]:
        return iter(())  # the operation that made the NaN lies elsewhere

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        yield from _edits.bounded(finding.location, POINTWISE, f"clamp(min={_edits.floor_for(birth.dtype)})", "repairs the argument")
