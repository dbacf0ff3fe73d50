from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from nanopsy.causes import _edits
from nanopsy.causes._cause import Cause, Claim, elements
from nanopsy.facts import Form, Site, Suspicion
from nanopsy.findings import Confidence, Edit, Finding
from nanopsy.ranges import Birth

SOFTMAXES = (
    "_softmax", "_log_softmax", "_safe_softmax", "softmax", "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu",
    "scaled_dot_product_attention", "_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_masked_softmax",
)  # fmt: skip


class FullyMaskedSoftmax(Cause):
    """Softmax of a row that is masked everywhere.

    ## What it does
    Finds a softmax (or attention) over a row of nothing but -inf: a sequence of only padding, a query that may see no key.

    ## Why is this bad?
    softmax subtracts the maximum: -inf - -inf is NaN. The -inf are meant; the row without any finite entry is not.

    ## Guideline
    Leave at least one key unmasked in every row (`mask & ~mask.all(-1, keepdim=True)`) and drop that row's output, or mask with `finfo.min`.

    ## Fix safety
    Safe for rows with at least one unmasked entry.

    ## References
    pytorch/pytorch issues 24816 and 41508 (key_padding_mask of all True).
    """

    code, slug = "NAN404", "fully-masked-softmax"
    sites = ("softmax",)
    replacement = "nanopsy.stable.masked_softmax"
    bad = """
import torch

scores = torch.zeros(2, 3, requires_grad=True)
pad = torch.tensor([[False, False, True], [True, True, True]])

def loss():
    return torch.softmax(scores.masked_fill(pad, float("-inf")), dim=-1).pow(2).sum()
"""
    good = """
import torch

scores = torch.zeros(2, 3, requires_grad=True)
pad = torch.tensor([[False, False, True], [True, True, True]])

def loss():
    pad_ = pad & ~pad.all(dim=-1, keepdim=True)
    return torch.softmax(scores.masked_fill(pad_, float("-inf")), dim=-1).pow(2).sum()
"""
    source_good = """
import torch

def attention(scores, pad):
    return torch.softmax(scores.masked_fill(pad, -1e4), dim=-1)
"""

    def match(self, site: Site) -> Suspicion | None:
        if not site.operand.has(Form.MINUS_INFINITY):
            return None
        if site.settings.get("padding"):
            return Suspicion(
                "attention masks padding with -inf: a sequence of nothing but padding is a softmax over an empty row, NaN", Confidence.DEPENDS,
                "if a sequence is only padding",
            )  # fmt: skip
        return Suspicion(
            "softmax over scores that were masked with -inf: a row whose every entry is masked is NaN", Confidence.DEPENDS, "if a row is masked completely"
        )

    def claim(self, birth: Birth) -> Claim | None:
        if birth.op not in SOFTMAXES or not birth.settings.get("row_all_minus_inf"):
            return None
        message = f"softmax over a row of {birth.settings.get('row_length', '?')} entries that are all -inf; {elements(birth)}"
        return Claim(0.97 if birth.nan_from is None else 0.6, message)

    def remedies(self, birth: Birth, finding: Finding) -> Iterator[Sequence[Edit]]:
        found = _edits.expression(finding.location)
        if found is None:
            return
        source, node = found
        if not isinstance(node, ast.Call):
            return
        word = _edits.keyword(node, "key_padding_mask") or _edits.keyword(node, "src_key_padding_mask")
        if word is not None:
            code = _edits.text(source, word.value)
            new = f"{code} & ~{code}.all(dim=1, keepdim=True)"
            yield [_edits.replace_node(source, word.value, new, "a row of only padding keeps its keys; drop its output")]
            return
        statement_line = finding.location.line if finding.location else 0
        for edit in self._finite_masks(source, statement_line, node):
            yield [edit]

    @staticmethod
    def _finite_masks(source: object, line: int, node: ast.Call) -> Iterator[Edit]:
        from nanopsy.sources import Source

        assert isinstance(source, Source)
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and _edits.called(inner) in ("masked_fill", "masked_fill_") and len(inner.args) >= 2:
                target = _edits.subject(inner)
                if target is not None:
                    new = f"torch.finfo({_edits.text(source, target)}.dtype).min"
                    yield _edits.replace_node(source, inner.args[-1], new, "a finite mask value: a fully masked row becomes uniform")
