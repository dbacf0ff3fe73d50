"""Norms, products of matrices and decompositions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from nanopsy.check.operations._rule import Arguments, Keywords, carry, first_of, keyword_number, made, operation
from nanopsy.facts import INF, Form, Kind, Value

if TYPE_CHECKING:
    from nanopsy.check.flow import Flow


@operation("norm", "vector_norm", "matrix_norm", "cdist", "pairwise_distance", "dist", "hypot")
def norm(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    forms = Form.NORM if flow.called(node) in ("norm", "vector_norm", "matrix_norm") else Form.ABSOLUTE
    if value.has(Form.UNIT):
        return made(flow, args[:1], 1e-6, INF, forms | Form.FLOORED, base=value.sym)
    return made(flow, args[:1], 0.0, INF, forms | Form.ZERO, base=value.sym, origin=flow.origin(node, "the norm of a zero vector is 0"))


@operation("normalize")
def normalize(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return carry(made(flow, args[:1], -1.0, 1.0, Form.NORMALIZED), flow.site("normalize", node, first_of(args), eps=keyword_number(args, kw, "eps", 3)))


@operation("cosine_similarity", "CosineSimilarity")
def cosine(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return made(flow, args[:2], -1.0, 1.0, Form.COSINE | Form.SIGNED)


@operation("matmul", "bmm", "mm", "mv", "dot", "inner", "outer", "tensordot", "baddbmm", "addmm", "vdot")
def product(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    first, second = (*args, Value(), Value())[:2]
    if first.lo >= 0 and second.lo >= 0:
        return made(flow, args[:2], 0.0, INF, (first.forms | second.forms) & (Form.ZERO | Form.UNDERFLOW))
    forms = Form.SIGNED | Form.PRODUCT
    if first.has(Form.NORMALIZED) and second.has(Form.NORMALIZED):
        return made(flow, args[:2], -1.0, 1.0, forms | Form.COSINE)
    return made(flow, args[:2], -INF, INF, forms)


@operation("cross", "det", "slogdet", "logdet", "linear", "bilinear", "layer_norm", "batch_norm", "group_norm", "instance_norm")
def signed(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    name = flow.called(node)
    forms = Form.SIGNED | (Form.DETERMINANT if name == "det" else Form.NETWORK)
    if name in ("logdet", "slogdet"):
        forms = Form.LOGARITHM
    return made(flow, args[:2], -INF, INF, forms)


@operation("svd", "eigh", "symeig", "svd_lowrank", "pca_lowrank", "eig")
def decomposition(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    value = first_of(args)
    hazards = flow.site("decompose", node, value, name=flow.called(node))
    part, values = carry(made(flow, [value]), hazards), made(flow, [value], 0.0, INF, Form.ZERO)
    singular = "svd" in flow.called(node)
    return Value(Kind.SEQUENCE, ref=(part, values, part) if singular else (values, part), sym=flow.fresh(), hazards=part.hazards)


@operation("inverse", "inv", "solve", "pinv", "lstsq", "cholesky", "linalg_solve", "pinverse")
def inverse(flow: Flow, node: ast.expr, args: Arguments, kw: Keywords) -> Value:
    return made(flow, args[:2], -INF, INF, 0)
