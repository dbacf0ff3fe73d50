from __future__ import annotations

from nanopsy.causes._cause import Cause, Claim
from nanopsy.ranges import Birth


class OnlyCompiled(Cause):
    """Step that is bad only under torch.compile.

    ## What it does
    Says that the compiled step gives a bad value and the same step in eager mode, on the same inputs, does not.

    ## Why is this bad?
    Fused kernels round and associate differently; a guard that barely held in eager mode may not hold in them. It can also be a compiler bug.

    ## Guideline
    Find the function with `torch.compile(..., disable=…)` or `TORCHINDUCTOR_NAN_ASSERTS=1`, make its guards robust, and report the rest upstream.

    ## Fix safety
    No automatic edit.

    ## References
    pytorch/pytorch issues 114109 and 146129.
    """

    code, slug = "NAN902", "only-compiled"
    runs_as = "script"
    bad = ""
    good = ""

    def claim(self, birth: Birth) -> Claim | None:
        if birth.phase != "compiled":
            return None
        return Claim(0.6, f"the compiled step is bad again, the same step in eager mode is finite: {birth.settings.get('detail')}")
