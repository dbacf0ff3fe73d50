"""Values that forward dropped (where, indexing, a maximum, a repair) and backward brings back."""

from __future__ import annotations

from nanopsy.operators import CONSTANTS, base_name
from nanopsy.ranges import Discard
from nanopsy.story import Story
from nanopsy.trace import Ref, TracedOp
from nanopsy.values import Index

DROPPING = (
    "Where", "Index", "MaskedFill", "MaskedSelect", "Max", "Min", "Gather", "Amax", "Amin", "Maximum", "Minimum", "Clamp", "NanToNum",
    "Topk", "Sort", "MaskedScatter", "CopySlices", "Slice", "Select", "MaxPool", "Nansum", "Take",
)  # fmt: skip
"""Backward nodes that pass a zero to elements whose value was dropped."""


def discarded(story: Story, op: TracedOp, output: int) -> Discard | None:
    """The operator that drops a bad forward value, if it never reaches the loss."""
    if not op.bad:
        return None
    seen: set[int] = set()
    queue = [(op, output)]
    while queue:
        current, number = queue.pop(0)
        if current.index in seen:
            continue
        seen.add(current.index)
        for reader in story.recording.consumers(current, number):
            if reader.backward or not reader.outputs or all(kind == "view" for kind in reader.aliases):
                continue
            if not reader.outputs[0].dtype.is_floating_point or base_name(reader) in CONSTANTS - {"masked_fill"}:
                continue
            if reader.bad:
                queue.append((reader, 0))
            else:
                dropped = current.outputs[number].storage
                argument = next((ref.argument for ref in reader.inputs if ref.storage == dropped), "")
                return Discard(base_name(reader), story.location(reader), argument)
    return None


def zero_sent(story: Story, ref: Ref, index: Index, depth: int = 0) -> Discard | None:
    """The operator whose backward sent this zero because it had dropped the element; None if another use sent (part of) it."""
    made = story.recording.producer(ref, index) if ref.numel else None
    if made is None or depth > 24 or not made[0].backward:
        return None
    op, _, found = made
    node = op.node.rstrip("0123456789").removesuffix("Backward")
    sums = base_name(op) == "add" and len(op.inputs) == 2  # the engine adds up gradients under the name of the node that ran last
    passed = _passed_gradient(story, op, found) if base_name(op) == "where" else None
    if passed is not None:
        return zero_sent(story, *passed, depth + 1)
    if node in DROPPING and not sums:
        return Discard(node.lower(), story.location(op), "its gradient is zero there")
    terms: list[Discard | None] = []
    for number, source in enumerate(op.inputs):
        tensor = story.kept_input(op, number)
        where = story.input_index(op, found, number) if story.elementwise(op) else None
        if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        if where is None:
            where = story.first_element(tensor, tensor == 0)
        if where is None or story.element(tensor, where) != 0:
            continue
        terms.append(zero_sent(story, source, where, depth + 1))
    if sums:
        return terms[0] if terms and all(term is not None for term in terms) else None
    return next((term for term in terms if term is not None), None)


def _passed_gradient(story: Story, op: TracedOp, index: Index) -> tuple[Ref, Index] | None:
    """For the ``where`` of a backward: the gradient it let through at this element, if it did."""
    for number in range(1, len(op.inputs)):
        where = story.input_index(op, index, number)
        made = story.recording.producer(op.inputs[number], where) if where is not None else None
        if where is None or made is None or not made[0].backward or base_name(made[0]) in CONSTANTS:
            continue
        if story.selected(op, index, number):
            return op.inputs[number], where
    return None
