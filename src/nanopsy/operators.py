"""What aten operators are to a story: which move values, make constants, draw at random, reduce, or mix linearly."""

from __future__ import annotations

import torch

from nanopsy.trace import TracedOp

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
ROOTS = frozenset({
    "abs", "asin", "asinh", "atan", "ceil", "erf", "expm1", "floor", "log1p", "neg", "real", "round", "sin", "sinh",
    "sqrt", "square", "tan", "tanh", "trunc",
})  # fmt: skip
"""Element-wise operators through which a value (a zero, above all) is followed to their argument."""
WHOLE_SLICE = frozenset({"_softmax", "_log_softmax", "cumsum", "cumprod", "_safe_softmax", "logcumsumexp", "cummax", "cummin"})


def base_name(op: TracedOp | str) -> str:
    """The operator's name without the underscore of its in-place form."""
    name = op if isinstance(op, str) else op.name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
