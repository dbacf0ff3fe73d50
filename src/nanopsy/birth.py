"""Turn one bad element of a kept recording into a :class:`~nanopsy.ranges.Birth`: plain numbers that causes read."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from nanopsy.drops import discarded, zero_sent
from nanopsy.findings import Location
from nanopsy.growth import amplification, with_growth
from nanopsy.operators import CONSTANTS, COPYING, base_name, dtype_name
from nanopsy.ranges import FORMATS, Birth, Discard, History, Operand, Origin, OriginKind
from nanopsy.registry import locate
from nanopsy.sources import assigned, load
from nanopsy.story import Ancestry, Story
from nanopsy.trace import TracedOp
from nanopsy.values import Index, Node

ROWS = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "logsumexp", "logcumsumexp"})


@dataclass(slots=True)
class BirthReader:
    """Builds births out of a story."""

    story: Story
    history: History
    sink: str
    modules: Mapping[int, str]
    module_objects: Mapping[int, torch.nn.Module]

    def read(self, ancestry: Ancestry) -> list[Birth]:
        """The births that explain a bad element, most fundamental first."""
        births: list[Birth] = []
        chain = ancestry.chain
        path = self._path(chain)
        if ancestry.leaf is not None:
            leaf = self._leaf(ancestry, path)
            if not self._intended(ancestry.leaf_value, ancestry) or ancestry.nan_birth is None or leaf.phase == "forward":
                births.append(leaf)
        elif ancestry.constant is not None:
            if math.isnan(ancestry.constant.value) or ancestry.nan_birth is None:
                births.append(self._constant(ancestry, path))
        elif chain:
            first = self.at(chain[-1], path, chain)
            mask = first.operand(0)
            if not (ancestry.nan_birth is not None and first.op == "log" and mask.binary and not mask.from_weights):
                births.append(first)
        if ancestry.nan_birth is not None:
            position = next(i for i, node in enumerate(chain) if node is ancestry.nan_birth)
            second = self.at(ancestry.nan_birth, self._path(chain[: position + 1]), chain[: position + 1])
            births.append(replace(second, nan_from=births[0] if births else None))
        return births

    def _intended(self, value: float, ancestry: Ancestry) -> bool:
        """An infinity that existed before the step is a neutral element or a mask, not data gone wrong."""
        return math.isinf(value) and ancestry.nan_birth is not None and ancestry.leaf is not None and not self.story.batch.get(ancestry.leaf.storage)

    # -- one operator ----------------------------------------------------------------------------

    def at(self, node: Node, path: tuple[str, ...], chain: list[Node]) -> Birth:
        """The birth at one operator, forward or backward."""
        op = node.op
        if op.backward:
            forward = self.story.recording.forward_of(op)
            if forward is not None and forward is not op:
                return self._backward(node, forward, path)
        output = self.story.kept_output(op, node.output)
        birth = Birth(
            op=base_name(op),
            phase="backward" if op.backward else "forward",
            value=node.value,
            dtype=dtype_name(op.outputs[node.output].dtype),
            location=self.story.location(op),
            shape=op.outputs[node.output].shape,
            bad_count=int((~torch.isfinite(output)).sum()) if output is not None and output.is_floating_point() else 0,
            total=op.outputs[node.output].numel,
            operands=self.operands(op, node.index, node.output),
            node=op.node,
            settings=self.settings(op),
            path=path,
            history=self.history,
            uses=self.uses(op),
            sink=self.sink,
        )
        birth = with_growth(self.story, self._module(self._row(birth, op, node.index), op))
        return replace(birth, discard=self._discarded(op, node.output)) if not op.backward else birth

    def _row(self, birth: Birth, op: TracedOp, index: Index) -> Birth:
        """For softmax-like operators: whether the very row is -inf throughout."""
        tensor = self.story.kept_input(op, 0)
        if base_name(op) not in ROWS or tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
            return birth
        part, _ = self.story.slice_of(op, index, tensor)
        masked = bool((part == -math.inf).all())
        return replace(birth, settings={**birth.settings, "row_all_minus_inf": masked, "row_length": part.numel()})

    def _discarded(self, op: TracedOp, output: int) -> Discard | None:
        return discarded(self.story, op, output) if self.sink == "gradient" else None

    def _module(self, birth: Birth, op: TracedOp) -> Birth:
        module = self.module_objects.get(op.module)
        if module is None:
            return birth
        return replace(birth, module=self.modules.get(op.module, ""), module_type=type(module).__name__, module_made_at=self._layer_site(module))

    def _layer_site(self, module: torch.nn.Module | None) -> Location | None:
        """Where a library layer was constructed; the user's own modules have their own source lines."""
        if module is None or not type(module).__module__.startswith("torch."):
            return None
        return self.story.registry.module_site(module)

    def _backward(self, node: Node, forward: TracedOp, path: tuple[str, ...]) -> Birth:
        op = node.op
        index = self._forward_index(node, forward)
        produced = self.story.kept_output(forward)
        forward_value = None
        if produced is not None and index is not None and len(index) == produced.dim() and produced.numel():
            inside = all(i < size for i, size in zip(index, produced.shape, strict=True))
            forward_value = self.story.element(produced, index) if inside else None
        incoming, incoming_origin, drop = self._incoming(node)
        output = self.story.kept_output(op, node.output)
        decades, strongest = amplification(self.story)
        layer = self.story.recording.forward_of(strongest) if strongest is not None else None
        module = self.module_objects.get(layer.module) if layer is not None else None
        birth = Birth(
            op=base_name(forward),
            phase="backward",
            value=node.value,
            dtype=dtype_name(forward.outputs[0].dtype) if forward.outputs else "float32",
            location=self.story.location(forward),
            shape=forward.outputs[0].shape if forward.outputs else (),
            bad_count=int((~torch.isfinite(output)).sum()) if output is not None else 0,
            total=op.outputs[node.output].numel,
            operands=self.operands(forward, index, 0) if index is not None else self.operands(forward, (), 0),
            node=op.node,
            settings={**self.settings(forward), "backward_op": op.name, "backward_inputs": self._input_peaks(op), "amplified_decades": decades},
            amplifier=base_name(layer) if layer is not None else "",
            amplifier_at=(self._layer_site(module) or self.story.location(layer)) if layer is not None else None,
            incoming=incoming,
            incoming_origin=incoming_origin,
            forward_value=forward_value,
            path=path,
            history=self.history,
            uses=self.uses(forward),
            sink=self.sink,
        )
        output_index = index if index is not None else ()
        if forward.outputs and forward.inputs and len(output_index) != len(forward.outputs[0].shape):
            dims = self.story.reduced_dims(forward, len(forward.inputs[0].shape))
            kept = tuple(i for d, i in enumerate(output_index) if dims is not None and d not in dims)
            output_index = kept if len(kept) == len(forward.outputs[0].shape) else output_index
        birth = with_growth(self.story, self._module(self._row(birth, forward, output_index), forward))
        return replace(birth, discard=self._discarded(forward, 0) or drop)

    def _input_peaks(self, op: TracedOp) -> list[float]:
        peaks = []
        for tensor in op.kept_inputs or []:
            if tensor.is_floating_point() and tensor.numel():
                peaks.append(float(tensor.abs().max()))
        return peaks

    def _forward_index(self, node: Node, forward: TracedOp) -> Index | None:
        """The forward element that a backward element belongs to; a singular one when shapes do not tell."""
        shape = node.op.outputs[node.output].shape
        if forward.inputs and forward.inputs[0].shape == shape:
            return node.index
        if forward.outputs and forward.outputs[0].shape == shape:
            return node.index
        tensor = self.story.kept_input(forward, 0)
        if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
            return None
        hit = self.story.first_element(tensor, tensor == 0)
        return hit if hit is not None else (0,) * tensor.dim()

    def _incoming(self, node: Node) -> tuple[float | None, Origin | None, Discard | None]:
        """The gradient that arrived at the node, at this element: the first input that backward made elsewhere."""
        recording, op = self.story.recording, node.op
        started = recording.backward_starts[-1] if recording.backward_starts else len(recording.ops)
        for part in recording.ops[started:]:
            if part.node != op.node or part.sequence != op.sequence:
                continue
            for number, ref in enumerate(part.inputs):
                made = recording.producer(ref) if ref.numel else None
                if made is None or made[0].index < started or (made[0].node == op.node and made[0].sequence == op.sequence):
                    continue
                tensor = self.story.kept_input(part, number)
                if tensor is None or not tensor.is_floating_point() or tensor.numel() == 0:
                    continue
                index = self.story.input_index(part, node.index, number) if len(node.index) >= tensor.dim() else None
                if index is None:
                    index = (0,) * tensor.dim()
                value = self.story.element(tensor, index)
                if value != 0:
                    return value, None, None
                return value, self.story.origin(ref, index, "zero"), zero_sent(self.story, ref, index)
        return None, None, None

    # -- operands --------------------------------------------------------------------------------

    def settings(self, op: TracedOp) -> dict[str, object]:
        """The plain (non-tensor) arguments of an operator, by name."""
        found: dict[str, object] = {}
        schema = op.func._schema.arguments
        for position, argument in enumerate(schema):
            value = op.args[position] if position < len(op.args) else op.kwargs.get(argument.name, argument.default_value)
            if isinstance(value, (int, float, bool, str)) or value is None:
                found[argument.name] = value
            elif isinstance(value, (list, tuple)) and all(isinstance(entry, (int, float)) for entry in value):
                found[argument.name] = list(value)
        return found

    def operands(self, op: TracedOp, index: Index, output: int) -> tuple[Operand, ...]:
        """Every argument that takes part, with the offending element and where it comes from."""
        found: list[Operand] = []
        elementwise = self.story.elementwise(op, output)
        number = 0
        for position, value in enumerate(op.args):
            for entry in value if isinstance(value, (list, tuple)) else [value]:
                if entry is Ellipsis:
                    if number < len(op.inputs):
                        found.append(self._operand(op, number, index, elementwise))
                    number += 1
                elif isinstance(entry, (int, float)) and not isinstance(entry, bool) and not isinstance(value, (list, tuple)):
                    schema = op.func._schema.arguments
                    name = schema[position].name if position < len(schema) else str(position)
                    found.append(Operand(name, float(entry), 1, scalar=True, integral=isinstance(entry, int)))
        return tuple(found)

    def _operand(self, op: TracedOp, number: int, index: Index, elementwise: bool) -> Operand:
        ref, tensor = op.inputs[number], self.story.kept_input(op, number)
        made = self.story.recording.producer(ref) if ref.numel else None
        from_weights = ref.storage in self.story.names or (made[0].from_weights if made is not None else ref.requires_grad)
        base = Operand(ref.argument, math.nan, ref.numel, ref.shape, dtype_name(ref.dtype), from_weights=from_weights,
                       integral=not ref.dtype.is_floating_point)  # fmt: skip
        if ref.numel <= 1 or base_name(op) in ("var", "std"):
            base = replace(base, origin=self.story.selection(ref) or base.origin)
        if tensor is None or tensor.numel() == 0 or tensor.is_complex():
            return base
        numbers = tensor if tensor.is_floating_point() else tensor.double()
        finite = numbers[torch.isfinite(numbers)]
        base = replace(
            base,
            low=float(finite.min()) if finite.numel() else math.nan,
            high=float(finite.max()) if finite.numel() else math.nan,
            largest=float(finite.abs().max()) if finite.numel() else math.nan,
            bad=tensor.numel() - finite.numel(),
            binary=bool(((numbers == 0) | (numbers == 1)).all()),
        )
        where = self.story.input_index(op, index, number) if elementwise else None
        if where is None:
            where = self._telling(op, numbers, index, number)
        if where is None:
            return base
        value = self.story.element(numbers, where)
        if base.origin.kind is OriginKind.SELECTION and value != 0:
            return replace(base, value=value)
        limit = FORMATS.get(dtype_name(ref.dtype), FORMATS["float32"]).max
        want = "zero" if value == 0 else "negative" if value < 0 and abs(value) < math.sqrt(limit) else "huge" if abs(value) > 1e3 else "any"
        return replace(base, value=value, origin=self.story.origin(ref, where, want))

    def _telling(self, op: TracedOp, tensor: torch.Tensor, index: Index, number: int) -> Index | None:
        """For operators that are not element-wise: the input element that says most."""
        if number == 0 and len(index) <= tensor.dim() + 1:
            part, fixed = self.story.slice_of(op, index, tensor)
            if part.numel() == 0:
                return None
            pick = (~torch.isfinite(part)).int().argmax() if not bool(torch.isfinite(part).all()) else part.abs().argmax()
            inner = tuple(int(i) for i in torch.unravel_index(pick, part.shape)) if part.dim() else ()
            return self.story.full_index(fixed, inner)
        pick = tensor.abs().argmax()
        return tuple(int(i) for i in torch.unravel_index(pick, tensor.shape)) if tensor.dim() else ()

    # -- values that were not made in this step --------------------------------------------------

    def _leaf(self, ancestry: Ancestry, path: tuple[str, ...]) -> Birth:
        ref = ancestry.leaf
        assert ref is not None
        story = self.story
        name = story.names.get(ref.storage) or story.batch.get(ref.storage) or story.variables.get(ref.storage) or "a tensor made before this step"
        is_weight = ref.storage in story.names or ref.requires_grad
        made = story.made.get(ref.storage)
        source = assigned(made.file, made.name, made.owner) if made is not None and ref.storage not in story.batch else None
        early = self._made_early(ancestry, source, name, path)
        if early is not None:
            return early
        consumer = self._arithmetic(ancestry.chain)
        origin = Origin(OriginKind.PARAMETER if is_weight else OriginKind.DATA, ancestry.leaf_value, source, f"{name}{list(ancestry.leaf_index)}", name)
        operand = Operand(name, ancestry.leaf_value, ref.numel, ref.shape, dtype_name(ref.dtype), from_weights=is_weight, origin=origin)
        if ancestry.chain and (ancestry.chain[-1].op.kept_inputs is not None):
            op = ancestry.chain[-1].op
            number = next((i for i, r in enumerate(op.inputs) if r.storage == ref.storage), None)
            tensor = story.kept_input(op, number) if number is not None else None
            if tensor is not None:
                operand = replace(operand, bad=int((~torch.isfinite(tensor)).sum()))
        return Birth("weights" if is_weight else "data", "weights" if is_weight else "data", ancestry.leaf_value, operand.dtype,
                     story.location(consumer.op) if consumer else None, ref.shape, operand.bad, ref.numel, (operand,), path=path,
                     history=self.history, settings={"origin": "batch" if ref.storage in story.batch else "earlier"})  # fmt: skip

    def _made_early(self, ancestry: Ancestry, source: Location | None, name: str, path: tuple[str, ...]) -> Birth | None:
        """A tensor made once at set-up by an expression whose value tells the operand: ``torch.log(…)`` gave -inf, so it was 0."""
        loaded = load(source.file) if source is not None else None
        if loaded is None or source is None:
            return None
        for node in loaded.at(source):
            called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
            if called in ("log", "log2", "log10") and ancestry.leaf_value == -math.inf:
                origin = Origin(OriginKind.CONSTANT, 0.0, source, f"computed once for {name}")
                operand = Operand(name, 0.0, 1, origin=origin)
                return Birth(called, "forward", ancestry.leaf_value, "float32", source, operands=(operand,), path=(called, *path), history=self.history)
        return None

    def _constant(self, ancestry: Ancestry, path: tuple[str, ...]) -> Birth:
        node = ancestry.constant
        assert node is not None
        consumer = self._arithmetic(ancestry.chain[:-1])
        op = node.op
        output = self.story.kept_output(op, node.output)
        name = self.story.batch.get(op.outputs[node.output].storage) or self.story.variables.get(op.outputs[node.output].storage) or "a tensor"
        written = self.story.location(op)
        bad = int((~torch.isfinite(output)).sum()) if output is not None and output.is_floating_point() else 0
        origin = Origin(OriginKind.DATA, node.value, written, f"{base_name(op)} wrote it", name)
        operand = Operand(name, node.value, op.outputs[node.output].numel, op.outputs[node.output].shape,
                          dtype_name(op.outputs[node.output].dtype), bad=bad, origin=origin)  # fmt: skip
        return Birth("data", "data", node.value, operand.dtype, (self.story.location(consumer.op) if consumer else None) or written, operand.shape,
                     bad, operand.count, (operand,), path=path, history=self.history, settings={"origin": "written"})  # fmt: skip

    def _arithmetic(self, chain: list[Node]) -> Node | None:
        """The first operator after the source that computes with the value rather than moving it."""
        for node in reversed(chain):
            if base_name(node.op) not in COPYING | CONSTANTS and not node.op.backward and self.story.location(node.op) is not None:
                return node
        return chain[-1] if chain else None

    # -- paths -----------------------------------------------------------------------------------

    def _path(self, chain: list[Node]) -> tuple[str, ...]:
        """Birth to sink, operator names, moves left out."""
        names: list[str] = []
        for node in reversed(chain):
            name = node.op.node.removesuffix("0") if node.op.backward and node.op.node else base_name(node.op)
            if base_name(node.op) in COPYING and not node.op.backward:
                continue
            if not names or names[-1] != name:
                names.append(name)
        return tuple(names[:12] + (["…", *names[-3:]] if len(names) > 15 else names[12:]))

    def uses(self, op: TracedOp) -> tuple[Location, ...]:
        """The user's frames outside the innermost one: who called."""
        found = []
        frames = op.frames[1:4] if op.frames else ()
        for site in frames:
            place = locate(site)
            if place is not None:
                found.append(place)
        return tuple(found)


def bad_index(tensor: torch.Tensor) -> tuple[Index, float] | None:
    """The first bad element of a tensor: NaN before infinite."""
    if tensor.numel() == 0:
        return None
    mask = tensor.isnan() if bool(tensor.isnan().any()) else ~torch.isfinite(tensor)
    hits = mask.nonzero()
    if not len(hits):
        return None
    index = tuple(int(i) for i in hits[0])
    value: Any = tensor[index] if tensor.dim() else tensor
    return index, float(value.real if value.is_complex() else value)
