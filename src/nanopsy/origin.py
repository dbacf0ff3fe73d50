"""Why has an element this value: from a zero, a negative or a huge number back to where the explanation ends."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from nanopsy.findings import Location
from nanopsy.operators import CONSTANTS, COPYING, LINEAR, RANDOM, REDUCTIONS, ROOTS, base_name, dtype_name
from nanopsy.ranges import FORMATS, Origin, OriginKind, Step
from nanopsy.shadow import Shadow
from nanopsy.trace import FACTORIES, Ref, TracedOp
from nanopsy.values import Index, Node

MOST_HOPS = 60


@dataclass(slots=True)
class Origins(Shadow):
    """Follows values back, one rule an operator."""

    def origin(self, ref: Ref, index: Index | None, want: str) -> Origin:
        """Where the value of an element is decided; ``want`` is zero, negative, huge or any."""
        steps: list[Step] = []
        value = math.nan
        made_at: Location | None = None
        squares = False
        for _ in range(MOST_HOPS):
            if index is None or ref.numel == 0:
                return Origin(OriginKind.UNKNOWN, value, steps=tuple(steps))
            made = self.recording.producer(ref, index)
            if made is None:
                return self._leaf(ref, index, value, steps)
            op, output, found = made
            kept = self.kept_output(op, output)
            if kept is None:
                return Origin(OriginKind.UNKNOWN, value, self.location(op), op.name, steps=tuple(steps))
            value = self.element(kept, found)
            location = self.location(op)
            node = Node(op, output, found, value)
            step = self._reason(node, want)
            if not steps or steps[-1].location != location or steps[-1].op != base_name(op):
                steps.append(Step(base_name(op), value, location, op.node))
            if isinstance(step, Origin):
                kind = step.kind
                if kind is OriginKind.CONSTANT and self._mixed(ref, op):
                    kind = OriginKind.DATA
                what = step.what or base_name(op)
                if kind is OriginKind.NETWORK and not op.from_weights:
                    kind, what = OriginKind.DATA, f"the data, through {what}"
                return Origin(kind, value, step.location or location, what, step.name, tuple(steps), step.cancellation,
                              step.lost, made_at, step.of_squares or squares)  # fmt: skip
            ref, index = step
        return Origin(OriginKind.UNKNOWN, value, steps=tuple(steps))

    def _mixed(self, ref: Ref, op: TracedOp) -> bool:
        """A constant written into a tensor that holds other things too is data, not configuration."""
        writers = list(self.recording.producers(ref))
        return any(base_name(w) not in CONSTANTS and base_name(w) not in FACTORIES for w in writers) or (
            len({w.index for w in writers if w.name not in FACTORIES}) > 1
        )

    def _leaf(self, ref: Ref, index: Index, value: float, steps: list[Step]) -> Origin:
        for table, kind in ((self.names, OriginKind.PARAMETER), (self.batch, OriginKind.DATA)):
            name = table.get(ref.storage)
            if name is not None:
                made_at = None
                if kind is OriginKind.PARAMETER and ref.storage in self.parameters:
                    made_at = self.registry.initial_site(self.parameters[ref.storage])[1]
                return Origin(kind, value, steps[-1].location if steps else None, f"{name}{list(index)}", name, tuple(steps), made_at=made_at)
        name = self.variables.get(ref.storage, "")
        kind = OriginKind.PARAMETER if ref.requires_grad else OriginKind.DATA
        return Origin(kind, value, steps[-1].location if steps else None, name or "a tensor made before this step", name, tuple(steps))

    def _reason(self, node: Node, want: str) -> Origin | tuple[Ref, Index]:
        op, index, value = node.op, node.index, node.value
        name = base_name(op)
        unknown = Origin(OriginKind.NETWORK, what=name)
        if name in RANDOM:
            return Origin(OriginKind.RANDOM)
        if name == "lift_fresh" and op.outputs[0].numel > 16:
            return Origin(OriginKind.DATA, what="a tensor made from Python or NumPy values")
        if name in CONSTANTS and not (name == "masked_fill" and not self._filled(op, index)):
            return Origin(OriginKind.CONSTANT)
        if name in LINEAR:
            return Origin(OriginKind.NETWORK)
        if name in ("sigmoid", "_softmax", "_safe_softmax") and value == 1:
            return Origin(OriginKind.SIGMOID if name == "sigmoid" else OriginKind.SOFTMAX, what=f"{name} saturated at 1")
        if want == "zero" and name in ("sigmoid", "_softmax", "_safe_softmax", "exp", "exp2", "softplus", "sign", "sgn"):
            kinds = {"sigmoid": OriginKind.SIGMOID, "exp": OriginKind.EXP, "exp2": OriginKind.EXP, "softplus": OriginKind.EXP,
                     "sign": OriginKind.SIGN, "sgn": OriginKind.SIGN}  # fmt: skip
            return Origin(kinds.get(name, OriginKind.SOFTMAX))
        if want == "huge" and name in ("exp", "exp2", "expm1", "cosh", "sinh"):
            return Origin(OriginKind.EXP)
        if name in ("relu", "threshold", "hardtanh", "clamp", "clamp_min", "clamp_max", "leaky_relu", "elu", "gelu", "silu"):
            before, where = self.at(op, index, 0)
            if where is not None and before == value and not (name == "relu" and value == 0):
                return op.inputs[0], where
            least = self.scalar(op, 1)
            if value == 0 and least is not None and least > 0 and name in ("clamp", "clamp_min", "threshold"):
                return Origin(OriginKind.ROUNDING, lost=least, what=f"{least:g} rounds to 0 in {dtype_name(op.outputs[0].dtype)}")
            kind = OriginKind.RELU if name in ("relu", "threshold", "leaky_relu", "elu", "gelu", "silu") else OriginKind.CLAMP
            return Origin(kind)
        if want == "zero" and self._counts(op):
            return Origin(OriginKind.COUNT, what=f"a count made by {name}")
        if name in REDUCTIONS:
            return self._reduction(node, want)
        if name in COPYING:
            return self._copied(node) or unknown
        if name in ("mul", "div", "add", "sub", "rsub", "addcmul", "addcdiv", "true_divide"):
            return self._arithmetic(node, want) or unknown
        if name == "pow" and want in ("zero", "negative", "huge"):
            before, where = self.at(op, index, 0)
            if where is not None and (want == "huge" or before == 0):
                return op.inputs[0], where
            return Origin(OriginKind.PRODUCT)
        if name in ROOTS and self.elementwise(op):
            before, where = self.at(op, index, 0)
            if where is not None and (want != "zero" or before == 0) and not (name == "neg" and want == "negative"):
                return op.inputs[0], where
        if name in ("maximum", "minimum", "fmax", "fmin"):
            for number in range(len(op.inputs)):
                before, where = self.at(op, index, number)
                if where is not None and before == value:
                    return op.inputs[number], where
        return unknown

    def _counts(self, op: TracedOp) -> bool:
        """Whether an operator adds up ones: a histogram, a scattered sum of ones."""
        name = base_name(op)
        if name in ("bincount", "histc", "count_nonzero", "unique_consecutive"):
            return True
        if name not in ("scatter_add", "index_add", "scatter_reduce", "index_put", "_unsafe_index_put", "segment_reduce"):
            return False
        source = self.kept_input(op, len(op.inputs) - 1)
        return source is not None and not op.from_weights and source.numel() > 0 and bool((source == 1).all())

    def _filled(self, op: TracedOp, index: Index) -> bool:
        mask, where = self.at(op, index, 1)
        return where is None or bool(mask)

    def _copied(self, node: Node) -> tuple[Ref, Index] | None:
        """For operators that move values: an input element that is equal."""
        op = node.op
        if base_name(op) == "where":
            for number in (1, 2):
                _, where = self.at(op, node.index, number)
                if where is not None and self.selected(op, node.index, number):
                    return op.inputs[number], where
            return None
        order = range(len(op.inputs) - 1, -1, -1) if base_name(op) in ("copy", "index_put", "scatter") else range(len(op.inputs))
        for number in order:
            tensor = self.kept_input(op, number)
            if tensor is None or not (tensor.is_floating_point() or number == 0) or tensor.dtype == torch.bool:
                continue
            same_place = self.input_index(op, node.index, number)
            if same_place is not None and tensor.shape == op.outputs[node.output].shape and self.element(tensor, same_place) == node.value:
                return op.inputs[number], same_place
            hit = self.first_element(tensor, tensor.isnan() if math.isnan(node.value) else tensor == node.value)
            if hit is not None:
                return op.inputs[number], hit
        return None

    def _reduction(self, node: Node, want: str) -> Origin | tuple[Ref, Index]:
        op, name = node.op, base_name(node.op)
        tensor = self.kept_input(op, 0)
        if tensor is None:
            return Origin(OriginKind.UNKNOWN, what=name)
        if name in ("var", "std", "var_mean", "std_mean"):
            return Origin(OriginKind.STD, what=name)
        part, fixed = self.slice_of(op, node.index, tensor)
        whole = self._is_mask(op.inputs[0], tensor)
        if want == "zero":
            if part.numel() == 0 or (name in ("sum", "count_nonzero", "any", "all") and whole and not op.from_weights):
                return Origin(OriginKind.COUNT, what=f"{name} of a mask of {tensor.numel():,}")
            if name in ("linalg_vector_norm", "norm", "_weight_norm_interface"):
                return Origin(OriginKind.NORM, of_squares=True)
            if name in ("amax", "amin", "max", "min", "median", "kthvalue"):
                inner = self.first_element(part, part == node.value)
                origin = self.origin(op.inputs[0], self.full_index(fixed, inner), want) if inner is not None else None
                return Origin(OriginKind.MAX, what=f"{name} of {origin.what}" if origin else name, of_squares=bool(origin and origin.of_squares))
            made = self.recording.producer(op.inputs[0], (0,) * len(op.inputs[0].shape)) if op.inputs[0].numel else None
            if made is not None and self.is_square(made[0]):
                return Origin(OriginKind.NORM, of_squares=True, what="sum of squares")
            if not bool((part == 0).all()):
                return Origin(OriginKind.CANCELLATION, what=name)
            inner = (0,) * part.dim()
            return op.inputs[0], self.full_index(fixed, inner)
        if name in ("sum", "mean", "amax", "amin", "max", "min", "median", "nansum") and part.is_floating_point() and part.numel():
            pick = part.argmin() if want == "negative" else part.abs().argmax()
            inner = tuple(int(i) for i in torch.unravel_index(pick, part.shape)) if part.dim() else ()
            return op.inputs[0], self.full_index(fixed, inner)
        return Origin(OriginKind.NETWORK if op.from_weights else OriginKind.DATA, what=name)

    def _is_mask(self, ref: Ref, tensor: torch.Tensor) -> bool:
        """Whether a tensor marks a selection: whole numbers, zeros *and* ones, or zeros that a comparison or constants made."""
        if not tensor.is_floating_point():
            return True
        if tensor.numel() == 0 or not bool(((tensor == 0) | (tensor == 1)).all()):
            return False
        return bool((tensor == 1).any()) or self._from_comparison(ref, 0)

    def _from_comparison(self, ref: Ref, depth: int) -> bool:
        writers = [op for op in self.recording.producers(ref) if op.name not in FACTORIES]
        if not writers or depth > 8:
            return False
        if all(base_name(op) in CONSTANTS for op in writers):
            return True
        op = writers[0]
        if any(not source.dtype.is_floating_point for source in op.inputs) and base_name(op) in ("_to_copy", "copy", "mul"):
            return True
        return base_name(op) in COPYING | {"mul"} and any(self._from_comparison(source, depth + 1) for source in op.inputs)

    def _arithmetic(self, node: Node, want: str) -> Origin | tuple[Ref, Index] | None:
        op, name, value = node.op, base_name(node.op), node.value
        if name in ("add", "sub", "rsub"):
            left, right, where_left, where_right = self.terms(node)
            sizes = [abs(left), abs(right)]
            largest = max(sizes, key=lambda x: -1.0 if math.isnan(x) else x)
            format_ = FORMATS.get(dtype_name(op.outputs[0].dtype), FORMATS["float32"])
            if want == "zero" and value == 0:
                if left == 0 and right != 0 and where_right is None and not math.isnan(right):
                    return Origin(OriginKind.ROUNDING, lost=abs(right), what=f"{abs(right):g} rounds to 0 in {format_.name}")
                if left == 0 and where_left is not None and (right == 0 or math.isnan(right)):
                    return op.inputs[0], where_left
                if right == 0 and where_right is not None and left == 0:
                    return op.inputs[1], where_right
                if left == 0 and right == 0 and where_left is not None:
                    return op.inputs[0], where_left
            if want == "zero" and value == 0 and (where_left is None) != (where_right is None):
                number, index = (0, where_left) if where_left is not None else (1, where_right)
                saturated = self.origin(op.inputs[number], index, "any")
                if saturated.passed(OriginKind.SIGMOID, OriginKind.SOFTMAX) and saturated.value == 1:
                    return replace(saturated, value=0.0, location=saturated.location)
            if largest > 0 and left * right < 0 and abs(value) <= largest * min(format_.eps * 1024, 0.05):
                return Origin(OriginKind.CANCELLATION, cancellation=self.cancellation(node, left, right))
            pick = where_left if abs(left) >= abs(right) or math.isnan(right) else where_right
            if want == "negative":
                pick = where_left if left <= right or math.isnan(right) else where_right
                chosen = left if pick is where_left else right
                if pick is not None and chosen < 0 and not (name == "sub" and pick is where_right):
                    return op.inputs[0 if pick is where_left else 1], pick
                return None
            if want == "huge" and pick is not None:
                return op.inputs[0 if pick is where_left else 1], pick
            return None
        left, where_left = self.at(op, node.index, 0)
        right, where_right = self.at(op, node.index, 1) if len(op.inputs) > 1 else (self.scalar(op, 1) or math.nan, None)
        if want == "zero":
            if left == 0 and where_left is not None:
                return op.inputs[0], where_left
            if name == "mul" and right == 0 and where_right is not None:
                return op.inputs[1], where_right
            return Origin(OriginKind.PRODUCT, what="underflow")
        if want == "negative":
            if left < 0 and where_left is not None:
                return op.inputs[0], where_left
            return (op.inputs[1], where_right) if right < 0 and where_right is not None else None
        if want == "huge":
            if name == "mul" and abs(right) > abs(left) and where_right is not None:
                return op.inputs[1], where_right
            if where_left is not None and abs(left) > 1e3:
                return op.inputs[0], where_left
        return None
