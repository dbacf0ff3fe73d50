"""Follow values back: from an offending element to the operator, weight, batch field or constant that explains it.

A :class:`Story` reads a :class:`~nanopsy.trace.Recording` whose operands were kept. It answers two questions about
one element: *why is it bad* (:meth:`Story.ancestry`) and *why has it this value* (:meth:`Story.origin`: a zero
product because one factor is zero, a zero because of a relu, a small difference because two large numbers cancelled).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from nanopsy.findings import Location
from nanopsy.ranges import FORMATS, Cancellation, Origin, OriginKind, Step, is_bad
from nanopsy.registry import Registry, locate
from nanopsy.trace import FACTORIES, Recording, Ref, TracedOp

Index = tuple[int, ...]
MOST_HOPS = 60

COPYING = frozenset({
    "clone", "_to_copy", "copy", "alias", "index", "gather", "index_select", "masked_select", "cat", "stack", "flip", "roll", "repeat",
    "constant_pad_nd", "reflection_pad2d", "replication_pad2d", "take", "unfold", "as_strided", "slice_scatter", "select_scatter",
    "scatter", "index_put", "masked_scatter", "lift_fresh_copy", "contiguous", "expand_copy", "view_copy", "sort", "topk", "_unsafe_index",
    "slice_backward", "select_backward", "embedding", "tril", "triu", "diag_embed", "_reshape_copy", "permute_copy", "index_copy", "diagonal_copy",
    "pixel_shuffle", "upsample_nearest2d", "_unsafe_masked_index", "im2col", "embedding_renorm", "where",
    "value_selecting_reduction_backward", "index_backward", "unbind_copy", "_weight_norm_copy", "max_pool2d_with_indices",
})  # fmt: skip
CONSTANTS = frozenset({
    "fill", "zero", "full", "full_like", "zeros", "zeros_like", "ones", "ones_like", "new_zeros", "new_ones", "new_full", "scalar_tensor",
    "linspace", "logspace", "arange", "eye", "lift_fresh", "masked_fill", "tril_indices", "triu_indices", "hann_window", "hamming_window",
})  # fmt: skip
RANDOM = frozenset({
    "rand", "rand_like", "randn", "randn_like", "randint", "randint_like", "uniform", "normal", "bernoulli", "exponential", "random",
    "multinomial", "native_dropout", "randperm", "poisson", "_sample_dirichlet", "_standard_gamma", "geometric", "cauchy", "log_normal",
    "normal_functional", "dropout",
})  # fmt: skip
LINEAR = frozenset({
    "mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot", "convolution", "_convolution", "mkldnn_convolution", "linear", "matmul", "einsum",
    "mkldnn_rnn_layer", "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_attention_math", "native_batch_norm",
    "native_layer_norm", "native_group_norm", "_native_batch_norm_legit", "addbmm", "vdot", "cudnn_convolution", "_thnn_fused_gru_cell",
    "_batch_norm_with_update", "cudnn_batch_norm", "_fused_rms_norm", "avg_pool2d", "_adaptive_avg_pool2d", "upsample_bilinear2d",
    "grid_sampler_2d", "grid_sampler_3d", "upsample_bicubic2d", "avg_pool1d", "avg_pool3d", "addr", "_cdist_forward",
    "_trilinear", "_embedding_bag", "fft_c2c", "_fft_r2c", "_fft_c2r", "_fft_c2c", "convolution_backward",
})  # fmt: skip
REDUCTIONS = frozenset({
    "sum", "mean", "nansum", "logsumexp", "amax", "amin", "max", "min", "var", "std", "var_mean", "std_mean", "linalg_vector_norm", "norm",
    "prod", "cumsum", "cumprod", "_softmax", "_log_softmax", "median", "any", "all", "_safe_softmax", "nanmedian", "count_nonzero", "argmax",
    "logcumsumexp", "_weight_norm_interface", "trace", "kthvalue", "cummax", "cummin",
})  # fmt: skip
MEANS = frozenset({
    "mean", "sum", "convolution", "mkldnn_convolution", "avg_pool2d", "mm", "_adaptive_avg_pool2d", "avg_pool1d", "avg_pool3d", "cumsum", "scatter_add",
    "index_add", "scatter_reduce", "segment_reduce", "einsum", "bmm",
})  # fmt: skip
"""Operators that average or add up: box filters and scattered sums among them."""
ROOTS = frozenset({"log1p", "expm1", "asinh", "sqrt", "abs", "square", "neg", "floor", "ceil", "round", "trunc", "tanh", "sin", "asin", "tan", "atan", "erf", "sinh", "real"})
WHOLE_SLICE = frozenset({"_softmax", "_log_softmax", "cumsum", "cumprod", "_safe_softmax", "logcumsumexp", "cummax", "cummin"})


def base_name(op: TracedOp | str) -> str:
    """The operator's name without the underscore of its in-place form."""
    name = op if isinstance(op, str) else op.name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _broadcasts(shape: Index, out: Index) -> bool:
    """Whether a shape broadcasts to exactly ``out``."""
    return len(shape) <= len(out) and all(size in (1, wide) for size, wide in zip(reversed(shape), reversed(out), strict=False))


@dataclass(frozen=True, slots=True)
class Node:
    """One element of one output of one operator."""

    op: TracedOp
    output: int
    index: Index
    value: float


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
    inf_after_nan: bool = False

    @property
    def birth(self) -> Node | None:
        return self.chain[-1] if self.chain else None


@dataclass(slots=True)
class Story:
    """Reads one kept recording."""

    recording: Recording
    registry: Registry
    names: Mapping[int, str]
    """Storage key -> name of a parameter or buffer."""
    batch: Mapping[int, str]
    """Storage key -> where in the batch the tensor lies."""
    variables: Mapping[int, str] = field(default_factory=dict)
    parameters: Mapping[int, torch.Tensor] = field(default_factory=dict)
    made: Mapping[int, Any] = field(default_factory=dict)
    """Storage key -> the variable or attribute that holds a tensor made before the step."""

    # -- values ----------------------------------------------------------------------------------

    def kept_input(self, op: TracedOp, number: int) -> torch.Tensor | None:
        return op.kept_inputs[number] if op.kept_inputs is not None and number < len(op.kept_inputs) else None

    def kept_output(self, op: TracedOp, number: int = 0) -> torch.Tensor | None:
        return op.kept_outputs[number] if op.kept_outputs is not None and number < len(op.kept_outputs) else None

    def location(self, op: TracedOp) -> Location | None:
        """The user's expression that ran an operator; for backward, the forward expression."""
        if not op.frames and op.backward:
            forward = self.recording.forward_of(op)
            return self.location(forward) if forward is not None else None
        if op.backward:
            forward = self.recording.forward_of(op)
            if forward is not None and forward.frames:
                return locate(forward.frames[0])
        return locate(op.frames[0]) if op.frames else None

    def element(self, tensor: torch.Tensor, index: Index) -> float:
        value = tensor[index] if tensor.dim() else tensor
        if value.is_complex():
            return float(value.abs())
        return float(value)

    def input_index(self, op: TracedOp, out_index: Index, number: int) -> Index | None:
        """The element of an input that makes an element of the output, for element-wise operators."""
        if number >= len(op.inputs) or not op.outputs:
            return None
        shape = op.inputs[number].shape
        if len(shape) > len(out_index):
            return None
        aligned = out_index[len(out_index) - len(shape) :]
        index = tuple(0 if size == 1 else i for i, size in zip(aligned, shape, strict=True))
        return index if all(i < size for i, size in zip(index, shape, strict=True)) else None

    def elementwise(self, op: TracedOp, output: int = 0) -> bool:
        """Whether an operator works element by element (with broadcasting)."""
        name = base_name(op)
        if (name in COPYING and name not in ("clone", "_to_copy", "copy", "where")) or name in LINEAR or name in REDUCTIONS or not op.outputs:
            return False
        out = op.outputs[output].shape
        return all(_broadcasts(ref.shape, out) for ref in op.inputs) and bool(op.inputs)

    def slice_of(self, op: TracedOp, out_index: Index, tensor: torch.Tensor) -> tuple[torch.Tensor, list[int | None]]:
        """The part of a reduction's input that makes one output element, and the fixed coordinates."""
        fixed: list[int | None] = [None] * tensor.dim()
        dims = self.reduced_dims(op, tensor.dim())
        if dims is None:
            return tensor, fixed
        keep = [d for d in range(tensor.dim()) if d not in dims]
        if base_name(op) in WHOLE_SLICE or len(out_index) == tensor.dim():
            for d in keep:
                fixed[d] = out_index[d]
        elif len(out_index) == len(keep):
            for d, i in zip(keep, out_index, strict=True):
                fixed[d] = i
        else:
            return tensor, [None] * tensor.dim()
        return tensor[tuple(slice(None) if i is None else i for i in fixed)], fixed

    def reduced_dims(self, op: TracedOp, rank: int) -> set[int] | None:
        """Dimensions that a reduction runs over; None means all."""
        name = base_name(op)
        arguments = [argument.name for argument in op.func._schema.arguments]
        dim: Any = None
        for key in ("dim", "dims"):
            if key in op.kwargs:
                dim = op.kwargs[key]
            elif key in arguments and arguments.index(key) < len(op.args):
                dim = op.args[arguments.index(key)]
        if dim is None or dim == []:
            return None
        if name == "_weight_norm_interface":
            return None
        dims = [dim] if isinstance(dim, int) else list(dim)
        return {d % rank for d in dims} if rank else set()

    def first_element(self, tensor: torch.Tensor, mask: torch.Tensor) -> Index | None:
        hits = mask.nonzero()
        return tuple(int(i) for i in hits[0]) if len(hits) else None

    def _full(self, fixed: list[int | None], inner: Index) -> Index:
        rest = iter(inner)
        return tuple(next(rest) if i is None else i for i in fixed)

    # -- why is it bad ---------------------------------------------------------------------------

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
                if where is not None and base_name(op) == "where" and not self._selected(op, index, number):
                    where = None
            else:
                part = tensor
                fixed: list[int | None] = [None] * tensor.dim()
                if base_name(op) in REDUCTIONS and number == 0:
                    part, fixed = self.slice_of(op, index, tensor)
                mask = part.isnan() if want_nan and bool(part.isnan().any()) else ~torch.isfinite(part)
                inner = self.first_element(part, mask)
                where = self._full(fixed, inner) if inner is not None else None
            if where is not None:
                choices.append((number, where, self.element(tensor, where)))
        return choices

    def _selected(self, op: TracedOp, index: Index, number: int) -> bool:
        """Whether ``where`` took this input at ``index``."""
        condition = self.kept_input(op, 0)
        where = self.input_index(op, index, 0)
        if condition is None or where is None:
            return True
        took_first = bool(self.element(condition, where))
        return number == (1 if took_first else 2) or number == 0

    # -- why has it this value -------------------------------------------------------------------

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

    def operands(self, op: TracedOp) -> list[Any]:
        """Positional arguments with the kept tensors put back."""
        kept = iter(op.kept_inputs or ())

        def fill(value: Any) -> Any:
            if value is Ellipsis:
                return next(kept, None)
            if isinstance(value, (list, tuple)):
                return [fill(entry) for entry in value]
            return value

        return [fill(value) for value in op.args]

    def _at(self, op: TracedOp, index: Index, number: int) -> tuple[float, Index | None]:
        tensor = self.kept_input(op, number)
        where = self.input_index(op, index, number)
        if tensor is None or where is None:
            return math.nan, None
        return self.element(tensor, where), where

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
            before, where = self._at(op, index, 0)
            if where is not None and before == value and not (name == "relu" and value == 0):
                return op.inputs[0], where
            least = self._scalar(op, 1)
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
            before, where = self._at(op, index, 0)
            if where is not None and (want == "huge" or before == 0):
                return op.inputs[0], where
            return Origin(OriginKind.PRODUCT)
        if name in ROOTS and self.elementwise(op):
            before, where = self._at(op, index, 0)
            if where is not None and (want != "zero" or before == 0) and not (name == "neg" and want == "negative"):
                return op.inputs[0], where
        if name in ("maximum", "minimum", "fmax", "fmin"):
            for number in range(len(op.inputs)):
                before, where = self._at(op, index, number)
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
        mask, where = self._at(op, index, 1)
        return where is None or bool(mask)

    def _copied(self, node: Node) -> tuple[Ref, Index] | None:
        """For operators that move values: an input element that is equal."""
        op = node.op
        if base_name(op) == "where":
            for number in (1, 2):
                _, where = self._at(op, node.index, number)
                if where is not None and self._selected(op, node.index, number):
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
                origin = self.origin(op.inputs[0], self._full(fixed, inner), want) if inner is not None else None
                return Origin(OriginKind.MAX, what=f"{name} of {origin.what}" if origin else name, of_squares=bool(origin and origin.of_squares))
            made = self.recording.producer(op.inputs[0], (0,) * len(op.inputs[0].shape)) if op.inputs[0].numel else None
            if made is not None and self.is_square(made[0]):
                return Origin(OriginKind.NORM, of_squares=True, what="sum of squares")
            if not bool((part == 0).all()):
                return Origin(OriginKind.CANCELLATION, what=name)
            inner = (0,) * part.dim()
            return op.inputs[0], self._full(fixed, inner)
        if name in ("sum", "mean", "amax", "amin", "max", "min", "median", "nansum") and part.is_floating_point() and part.numel():
            pick = part.argmin() if want == "negative" else part.abs().argmax()
            inner = tuple(int(i) for i in torch.unravel_index(pick, part.shape)) if part.dim() else ()
            return op.inputs[0], self._full(fixed, inner)
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

    def is_square(self, op: TracedOp) -> bool:
        """x*x, x**2, x.square(), |x|**2."""
        name = base_name(op)
        if name == "square":
            return True
        if name == "pow" and len(op.args) > 1:
            return bool(op.args[1] == 2)
        if name == "mul" and len(op.inputs) == 2:
            first, second = op.inputs
            return (first.storage, first.offset, first.shape) == (second.storage, second.offset, second.shape)
        return False

    def _scalar(self, op: TracedOp, position: int) -> float | None:
        value = op.args[position] if position < len(op.args) else None
        return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def terms(self, node: Node) -> tuple[float, float, Index | None, Index | None]:
        """The two terms of an addition or subtraction, signed, with their input elements."""
        op, name = node.op, base_name(node.op)
        left, where_left = self._at(op, node.index, 0)
        right, where_right = math.nan, None
        if len(op.inputs) > 1:
            right, where_right = self._at(op, node.index, 1)
        else:
            scalar = self._scalar(op, 1)
            right = math.nan if scalar is None else scalar
        alpha = op.kwargs.get("alpha", op.args[2] if len(op.args) > 2 else 1)
        factor = float(alpha) if isinstance(alpha, (int, float)) else 1.0
        if name == "rsub":
            return -left * factor, right, where_left, where_right
        return left, right * factor * (-1.0 if name == "sub" else 1.0), where_left, where_right

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
        left, where_left = self._at(op, node.index, 0)
        right, where_right = self._at(op, node.index, 1) if len(op.inputs) > 1 else (self._scalar(op, 1) or math.nan, None)
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

    def cancellation(self, node: Node, left: float, right: float) -> Cancellation:
        """What is known of a difference that lost its digits, with its value in float64."""
        op = node.op
        sides = [self._squareness(op, number) for number in range(min(2, len(op.inputs)))]
        one_pass = len(sides) == 2 and {"mean of squares", "squared mean"} <= set(sides)
        determinant = sides[:1] == ["product"] and sides[1:] in (["product"], ["squared mean"], ["square"])
        return Cancellation(abs(left), abs(right), node.value, self.in_float64(node), one_pass, any("square" in side for side in sides),
                            determinant, self.location(op))  # fmt: skip

    def _squareness(self, op: TracedOp, number: int, depth: int = 0) -> str:
        """Is an input a mean of squares, a squared mean, or a product?"""
        ref = op.inputs[number]
        made = self.recording.producer(ref) if ref.numel else None
        if made is None or depth > 5:
            return "other"
        maker, name = made[0], base_name(made[0])
        if name in MEANS:
            inner = self.recording.producer(maker.inputs[0]) if maker.inputs and maker.inputs[0].numel else None
            while inner is not None and base_name(inner[0]) in COPYING and inner[0].inputs and inner[0].inputs[0].numel:
                inner = self.recording.producer(inner[0].inputs[0])
            if inner is not None and (self.is_square(inner[0]) or self._same_factors(inner[0])):
                return "mean of squares"
            return "mean"
        if name in ("div", "mul") and len(maker.inputs) == 1:
            return self._squareness(maker, 0, depth + 1)
        if name in ("div",) and len(maker.inputs) == 2 and maker.inputs[1].numel == 1:
            return self._squareness(maker, 0, depth + 1)
        if self.is_square(maker):
            inside = self._squareness(maker, 0, depth + 1)
            return "squared mean" if inside == "mean" or maker.outputs[0].numel == 1 else "square"
        if name == "mul" and len(maker.inputs) == 2:
            means = [self._mean_behind(maker.inputs[n]) for n in (0, 1)]
            return "squared mean" if means[0] is not None and means[0] == means[1] else "product"
        if name in ("clone", "_to_copy", "neg"):
            return self._squareness(maker, 0, depth + 1)
        return "other"

    def _mean_behind(self, ref: Ref, depth: int = 0) -> int | None:
        """The memory that a mean (or sum) was taken of, through scaling by constants."""
        made = self.recording.producer(ref) if ref.numel else None
        if made is None or depth > 4 or not made[0].inputs:
            return None
        if base_name(made[0]) in MEANS:
            return made[0].inputs[0].storage
        if len(made[0].inputs) == 1 or (base_name(made[0]) == "div" and made[0].inputs[1].numel == 1):
            return self._mean_behind(made[0].inputs[0], depth + 1)
        return None

    def _same_factors(self, op: TracedOp) -> bool:
        return base_name(op) == "mul" and len(op.inputs) == 2 and op.inputs[0].storage == op.inputs[1].storage

    def in_float64(self, node: Node) -> float | None:
        """The same element computed again in float64 from as far back as the kept operands reach."""
        budget = [200]
        try:
            shadow = self._shadow(node.op, node.output, 0, budget)
        except (RuntimeError, TypeError, ValueError, IndexError):
            return None
        if shadow is None or shadow.dim() != len(node.index):
            return None
        value = self.element(shadow, node.index)
        return value if math.isfinite(value) else None

    def _shadow(self, op: TracedOp, output: int, depth: int, budget: list[int]) -> torch.Tensor | None:
        budget[0] -= 1
        if op.kept_inputs is None or depth > 12 or budget[0] < 0 or len(op.outputs) != 1 or base_name(op) in RANDOM | CONSTANTS:
            return None
        wide: list[torch.Tensor] = []
        for ref, tensor in zip(op.inputs, op.kept_inputs, strict=True):
            if not tensor.is_floating_point():
                wide.append(tensor)
                continue
            made = self.recording.producer(ref) if ref.numel else None
            deeper = None
            if made is not None and made[0].outputs[made[1]].numel == ref.numel and "write" not in made[0].aliases:
                deeper = self._shadow(made[0], made[1], depth + 1, budget)
            if deeper is not None and made is not None:
                source = made[0].outputs[made[1]]
                if (source.shape, source.stride) != (ref.shape, ref.stride):
                    deeper = deeper.reshape(-1).reshape(ref.shape) if source.numel == ref.numel and source.shape == ref.shape else None
            wide.append(deeper if deeper is not None else tensor.double())
        if base_name(op) == "_to_copy":
            return wide[0]
        if any(isinstance(value, torch.dtype) for value in op.kwargs.values()):
            return None
        kept = iter(wide)

        def fill(value: Any) -> Any:
            if value is Ellipsis:
                return next(kept)
            if isinstance(value, (list, tuple)):
                return [fill(entry) for entry in value]
            return value

        result = op.func(*[fill(value) for value in op.args], **{key: fill(value) for key, value in op.kwargs.items()})
        return result if isinstance(result, torch.Tensor) else None
