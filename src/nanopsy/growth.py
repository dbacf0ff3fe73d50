"""What enlarged the numbers: normalisations in backward, linear operators in forward, a constant on a loss term."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from nanopsy.findings import Location
from nanopsy.operators import LINEAR, base_name
from nanopsy.ranges import Birth, Growth
from nanopsy.sources import constant_at
from nanopsy.story import Story
from nanopsy.trace import TracedOp

NORMALISING = (
    "NativeBatchNorm",
    "NativeLayerNorm",
    "NativeGroupNorm",
    "Rsqrt",
    "FusedRmsNorm",
    "CudnnBatchNorm",
    "LinalgVectorNorm",
    "Std",
    "Var",
    "Div",
)


def amplification(story: Story) -> tuple[float, TracedOp | None]:
    """How much the backward of all normalisations together enlarged the gradient, and the strongest of them."""
    total, strongest, best = 0.0, 1.0, None
    for op in story.recording.ops:
        if not op.node.startswith(NORMALISING) or not op.kept_inputs or not op.kept_outputs:
            continue
        before, after = op.kept_inputs[0], op.kept_outputs[0]
        if not (before.is_floating_point() and after.is_floating_point()) or before.numel() == 0 or after.numel() == 0:
            continue
        arrived, left = float(before.abs().max()), float(after.abs().max())
        if not (math.isfinite(arrived) and math.isfinite(left)) or arrived == 0 or left == 0:
            continue
        total += math.log10(left / arrived)
        if left / arrived > strongest:
            strongest, best = left / arrived, op
    return total, best


def _grown(story: Story, birth: Birth) -> Birth:
    """Where linear operators enlarged the values most: sums over all rounds of a recurrence or depth of a stack."""
    decades: dict[Location, float] = {}
    weights: dict[Location, Location | None] = {}
    for op in story.recording.ops:
        if op.backward or base_name(op) not in LINEAR or not op.kept_inputs or not op.kept_outputs or not op.from_weights:
            continue
        place = story.location(op)
        numbers = [float(t.abs().max()) for t in op.kept_inputs if t.is_floating_point() and t.numel()]
        after = op.kept_outputs[0]
        if place is None or not numbers or not after.numel() or not after.is_floating_point():
            continue
        finite = after[torch.isfinite(after)]
        peak = float(finite.abs().max()) if finite.numel() else 0.0
        if peak <= 0 or max(numbers) <= 0 or not math.isfinite(max(numbers)):
            continue
        decades[place] = decades.get(place, 0.0) + math.log10(peak / max(numbers))
        for ref in op.inputs:
            parameter = story.parameters.get(ref.storage)
            if parameter is not None and parameter.dim() > 1:
                weights.setdefault(place, story.registry.initial_site(parameter, direct=True)[1])
    if not decades:
        return birth
    worst = max(decades, key=lambda place: decades[place])
    return replace(birth, growth_at=worst, growth_made_at=weights.get(worst), growth_decades=decades[worst])


def with_growth(story: Story, birth: Birth) -> Birth:
    """For a run that diverged or exploded at once: what enlarged the values, and the largest constant on a loss term."""
    if birth.history.steps <= 2:
        birth = _grown(story, birth)
    if birth.history.growth is not Growth.DIVERGING:
        return birth
    best: TracedOp | None = None
    for op in story.recording.ops:
        factor = op.args[1] if base_name(op) == "mul" and len(op.args) > 1 else None
        if op.backward or not isinstance(factor, (int, float)) or not op.from_weights or op.outputs[0].numel != 1 or not op.frames:
            continue
        if abs(factor) >= 1e3 and (best is None or abs(factor) > abs(best.args[1])):
            best = op
    if best is None:
        return birth
    factor, place = float(best.args[1]), story.location(best)
    files = [code.co_filename for code, _ in best.frames]
    return replace(birth, scale=factor, scale_at=constant_at(factor, files) or place, uses=(*((place,) if place else ()), *birth.uses))
