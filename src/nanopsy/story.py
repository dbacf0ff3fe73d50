"""Follow values back: from an offending element to the operator, weight, batch field or constant that explains it.

A :class:`Story` reads a :class:`~nanopsy.trace.Recording` whose operands were kept. It answers two questions about
one element: *why is it bad* (:meth:`Story.ancestry`) and *why has it this value* (:meth:`Story.origin`: a zero
product because one factor is zero, a zero because of a relu, a small difference because two large numbers cancelled).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from nanopsy.operators import CONSTANTS, REDUCTIONS, base_name
from nanopsy.origin import MOST_HOPS, Origins
from nanopsy.ranges import Origin, OriginKind, is_bad
from nanopsy.trace import FACTORIES, Ref, TracedOp
from nanopsy.values import Index, Node


@dataclass(slots=True)
class Ancestry:
    """Why an element is bad: the chain of operators from the sink back to the birth."""

    chain: list[Node] = field(default_factory=list)
    """Sink first, birth last."""
    nan_birth: Node | None = None
    """Where infinities became NaN, when the birth itself is an infinity."""
    leaf: Ref | None = None
    """The bad value was not made in this step: data, a weight, a constant."""
    leaf_index: Index = ()
    leaf_value: float = math.nan
    constant: Node | None = None
    """A bad value written on purpose: a fill with -inf or NaN."""

    @property
    def birth(self) -> Node | None:
        return self.chain[-1] if self.chain else None


@dataclass(slots=True)
class Story(Origins):
    """Reads one kept recording."""

    def ancestry(self, ref: Ref, index: Index, value: float) -> Ancestry:
        """From a bad element back to the operator that made it out of finite ones."""
        story = Ancestry()
        want_nan = math.isnan(value)
        for _ in range(MOST_HOPS * 20):
            made = self.recording.producer(ref, index)
            if made is None:
                story.leaf, story.leaf_index, story.leaf_value = ref, index, value
                return story
            op, output, found = made
            node = Node(op, output, found, value)
            story.chain.append(node)
            if op.name in FACTORIES:
                story.constant = node
                return story
            step = self._bad_parent(node, want_nan)
            if step is None:
                if self._written_on_purpose(op):
                    story.constant = node
                return story
            ref, index, value = step
            if want_nan and not math.isnan(value):
                story.nan_birth = node
                want_nan = False
        return story

    def _written_on_purpose(self, op: TracedOp) -> bool:
        """A bad scalar in the operator's own arguments: ``masked_fill(mask, -inf)``, ``full(n, nan)``."""
        if base_name(op) in ("lift_fresh",):
            return True
        return any(isinstance(v, float) and is_bad(v) for v in (*op.args, *op.kwargs.values())) and base_name(op) in CONSTANTS | {"where"}

    def _bad_parent(self, node: Node, want_nan: bool) -> tuple[Ref, Index, float] | None:
        op = node.op
        if (not any(op.bad_inputs) and op.bad) or op.kept_inputs is None:
            return None
        elementwise = self.elementwise(op, node.output)
        choices = self._bad_inputs(node, want_nan, elementwise=elementwise)
        if not choices and elementwise:
            choices = self._bad_inputs(node, want_nan, elementwise=False)
        if not choices:
            return None
        nans = [choice for choice in choices if math.isnan(choice[2])]
        number, where, value = (nans or choices)[0] if want_nan else choices[0]
        return op.inputs[number], where, value

    def _bad_inputs(self, node: Node, want_nan: bool, *, elementwise: bool) -> list[tuple[int, Index, float]]:
        """Bad elements of the inputs that can explain a bad output element."""
        op, index = node.op, node.index
        choices: list[tuple[int, Index, float]] = []
        for number, tensor in enumerate(op.kept_inputs or ()):
            if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.numel() == 0:
                continue
            where: Index | None = None
            if elementwise:
                where = self.input_index(op, index, number)
                if where is not None and not is_bad(self.element(tensor, where)):
                    where = None
                if where is not None and base_name(op) == "where" and not self.selected(op, index, number):
                    where = None
            else:
                part = tensor
                fixed: list[int | None] = [None] * tensor.dim()
                if base_name(op) in REDUCTIONS and number == 0:
                    part, fixed = self.slice_of(op, index, tensor)
                mask = part.isnan() if want_nan and bool(part.isnan().any()) else ~torch.isfinite(part)
                inner = self.first_element(part, mask)
                where = self.full_index(fixed, inner) if inner is not None else None
            if where is not None:
                choices.append((number, where, self.element(tensor, where)))
        return choices

    def selection(self, ref: Ref) -> Origin | None:
        """The indexing that decided how many elements a tensor has."""
        for _ in range(MOST_HOPS):
            made = next(iter(self.recording.producers(ref)), None)
            if made is None or not made.inputs:
                return None
            name = base_name(made)
            if name in ("index", "masked_select", "nonzero", "slice", "unique2", "_unique2", "split", "index_select"):
                before = made.inputs[0].numel
                mask = self.kept_input(made, 1) if len(made.inputs) > 1 else None
                kept = int(mask.sum()) if mask is not None and mask.dtype == torch.bool else ref.numel
                what = f"a mask that kept {kept:,} of {mask.numel() if mask is not None else before:,}" if name != "slice" else "a slice"
                return Origin(OriginKind.SELECTION, location=self.location(made), what=what)
            ref = max(made.inputs, key=lambda candidate: candidate.numel)
        return None
