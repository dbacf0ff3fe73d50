"""One bench takes every public function of ``nanopsy.stable`` through reference, formats, derivatives, layouts, compilers and transforms."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import nanopsy.depth
import nanopsy.stable
from accuracy import FORMATS, errors, tuple_of
from nanopsy import causes, stable
from subjects import IDS, SUBJECTS, Subject

every = pytest.mark.parametrize("subject", SUBJECTS, ids=IDS)


def made(subject: Subject, dtype: torch.dtype = torch.float32, size: int = 6, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """Constants and inputs."""
    generator = torch.Generator().manual_seed(seed)
    inputs = [x.to(dtype) for x in subject.make(generator, size)]
    return subject.constants(generator, size), inputs


def values_and_gradients(subject: Subject, constants: list[Tensor], inputs: list[Tensor], call: Callable[..., object] | None = None) -> list[Tensor]:
    leaves = [x.detach().requires_grad_() for x in inputs]
    outputs = tuple_of((call or subject.call)(*constants, *leaves))  # type: ignore[arg-type]
    grads = torch.autograd.grad([o.sum() for o in outputs], leaves, allow_unused=True, materialize_grads=True)
    return [o.detach() for o in outputs] + list(grads)


def test_every_public_function_is_on_the_bench() -> None:
    functions = {name for name in stable.__all__ if inspect.isfunction(getattr(stable, name))}
    made_only = {"spaced_edges", "sample_pairs", "sample_triples"}  # no differentiable input; tested by themselves
    assert functions - made_only == {subject.name for subject in SUBJECTS}


def test_every_replacement_that_a_cause_names_exists() -> None:
    named = [(cause.code, cause.replacement) for cause in causes.load().values() if cause.replacement is not None]
    assert len(named) > 10
    for code, replacement in named:
        module, _, name = replacement.rpartition(".")
        assert callable(getattr(importlib.import_module(module), name)), code
        assert name in importlib.import_module(module).__all__, code


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@every
def test_error_in_ulp(subject: Subject, dtype: torch.dtype) -> None:
    for seed in range(2):
        value, gradient = errors(subject, dtype, seed)
        assert value <= subject.value_ulp
        if not (subject.ties and dtype != torch.float32):
            assert gradient <= subject.grad_ulp


@every
def test_float64_is_exact(subject: Subject) -> None:
    constants, inputs = made(subject, torch.float64)
    references = tuple_of(subject.reference(*constants, *inputs))
    for output, reference in zip(tuple_of(subject.call(*constants, *inputs)), references, strict=True):
        assert output.dtype == torch.float64
        torch.testing.assert_close(output, reference, rtol=1e-11, atol=1e-12)


@every
def test_gradients_of_both_orders(subject: Subject) -> None:
    constants, inputs = made(subject, torch.float64, size=5 if subject.name == "ssim_loss" else 4)
    leaves = [x.requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *x: subject.call(*constants, *x), leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda *x: subject.call(*constants, *x), leaves, fast_mode=True)


@every
def test_layout_does_not_matter(subject: Subject) -> None:
    constants, inputs = made(subject)
    expected = values_and_gradients(subject, constants, inputs)
    layouts = [
        [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in inputs],
        [torch.stack([x, x], -1)[..., 0] for x in inputs],
        [x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs],
    ]
    for other in layouts:
        for a, b in zip(values_and_gradients(subject, constants, other), expected, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-6, atol=5e-6)


@every
def test_the_same_twice(subject: Subject) -> None:
    constants, inputs = made(subject)
    for a, b in zip(values_and_gradients(subject, constants, inputs), values_and_gradients(subject, constants, inputs), strict=True):
        assert torch.equal(a, b)


@every
def test_autocast_changes_nothing(subject: Subject) -> None:
    constants, inputs = made(subject)
    expected = values_and_gradients(subject, constants, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = values_and_gradients(subject, constants, inputs)
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@every
def test_compiles_in_one_graph(subject: Subject) -> None:
    torch._dynamo.reset()
    constants, inputs = made(subject)
    compiled = torch.compile(subject.call, fullgraph=True, backend="aot_eager")
    for a, b in zip(values_and_gradients(subject, constants, inputs, compiled), values_and_gradients(subject, constants, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*:FutureWarning")
@pytest.mark.parametrize("index", [next(i for i, s in enumerate(SUBJECTS) if s.name == name) for name in ("masked_var", "silog")])
def test_compiles_to_machine_code(index: int) -> None:
    torch._dynamo.reset()
    subject = SUBJECTS[index]
    constants, inputs = made(subject)
    compiled = torch.compile(subject.call, fullgraph=True)
    for a, b in zip(values_and_gradients(subject, constants, inputs, compiled), values_and_gradients(subject, constants, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@every
def test_vmap_and_func_grad(subject: Subject) -> None:
    several = [made(subject, torch.float64, size=5, seed=seed) for seed in range(3)]
    constants = several[0][0]
    dims = [0 if c.dtype == torch.bool else None for c in constants]
    mapped_constants = [torch.stack([each[0][i] for each in several]) if d == 0 else c for i, (c, d) in enumerate(zip(constants, dims, strict=True))]
    mapped_inputs = [torch.stack(group) for group in zip(*(each[1] for each in several), strict=True)]

    def total(*arguments: Tensor) -> Tensor:
        return sum((o.sum() for o in tuple_of(subject.call(*arguments))), torch.zeros((), dtype=torch.float64))

    where = tuple(range(len(constants), len(constants) + len(mapped_inputs)))
    in_dims = (*dims, *([0] * len(mapped_inputs)))
    outputs = torch.func.vmap(total, in_dims=in_dims)(*mapped_constants, *mapped_inputs)
    slopes = torch.func.vmap(torch.func.grad(total, argnums=where), in_dims=in_dims)(*mapped_constants, *mapped_inputs)
    for i, (own, inputs) in enumerate(several):
        mine = [c if d is None else o for c, d, o in zip(constants, dims, own, strict=True)]
        torch.testing.assert_close(outputs[i], total(*mine, *inputs), rtol=1e-9, atol=1e-9)
        leaves = [x.clone().requires_grad_() for x in inputs]
        expected = torch.autograd.grad(total(*mine, *leaves), leaves, allow_unused=True, materialize_grads=True)
        for a, b in zip(slopes, expected, strict=True):
            torch.testing.assert_close(a[i], b, rtol=1e-9, atol=1e-9)


MODULES = [module.name for package in (nanopsy.stable, nanopsy.depth) for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_the_docstrings(name: str) -> None:
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
    for public in getattr(module, "__all__", ()):
        assert inspect.getdoc(getattr(module, public)), public


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every
def test_no_synchronisation_on_a_gpu(subject: Subject) -> None:
    constants, inputs = made(subject)
    constants, inputs = [c.cuda() for c in constants], [x.cuda() for x in inputs]
    values_and_gradients(subject, constants, inputs)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = values_and_gradients(subject, constants, inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for a, b in zip(found, values_and_gradients(subject, [c.cpu() for c in constants], [x.cpu() for x in inputs]), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)


MODULE_FORMS = [
    (stable.BerHu, "berhu", {"threshold": 2.0}),
    (stable.GaussianNLL, "gaussian_nll", {"full": True}),
    (stable.LaplaceNLL, "laplace_nll", {"bounds": (-5.0, 5.0)}),
    (stable.GradientMatching, "gradient_matching", {"scales": 2}),
    (stable.EdgeAwareSmoothness, "edge_aware_smoothness", {"normalize": False}),
    (stable.ScaleAndShiftInvariant, "scale_and_shift_invariant", {"alpha": 0.0}),
    (stable.TrimmedProcrustes, "trimmed_procrustes", {"trim": 0.5}),
    (stable.SSIM, "ssim_loss", {"window": 3}),
    (stable.CosineNormal, "cosine_normal", {}),
    (stable.VirtualNormal, "virtual_normal", {"drop": 0.0, "focal": 20.0}),
    (stable.Ranking, "ranking", {"tolerance": 0.1}),
    (stable.OrdinalRegression, "ordinal_regression", {"reduction": "image"}),
    (stable.BinsClassification, "bins_classification", {"softness": 0.2}),
    (stable.ChamferBins, "chamfer_bins", {}),
    (stable.Photometric, "photometric", {"alpha": 0.5}),
]
NAMED = {"virtual_normal": ("triples",), "ranking": ("pairs",), "ordinal_regression": ("edges",), "bins_classification": ("edges",)}


@pytest.mark.parametrize(("module", "name", "options"), MODULE_FORMS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_module_is_its_function(module: type[nn.Module], name: str, options: dict[str, object]) -> None:
    subject = next(s for s in SUBJECTS if s.name == name)
    constants, inputs = made(subject)
    names = NAMED.get(name, ())
    named = dict(zip(names, constants, strict=False))
    masks = constants[len(names) :]
    loss = module(**options)
    assert torch.equal(loss(*inputs, *masks, **named), getattr(stable, name)(*inputs, *masks, **named, **options))
    assert all(str(value) in repr(loss) for value in options.values())
    with pytest.raises(stable.ArgumentError, match="unknown option 'weihgt'"):
        module(weihgt=1)


def test_every_module_form_is_tested() -> None:
    modules = {value for value in vars(stable).values() if inspect.isclass(value) and issubclass(value, nn.Module) and hasattr(value, "function")}
    assert {form[0] for form in MODULE_FORMS} == modules


HEADS = [
    (stable.ScaledSigmoidHead(80.0), stable.scaled_sigmoid, (80.0,)),
    (stable.InverseDepthSigmoidHead(0.5, 60.0), stable.inverse_depth_sigmoid, (0.5, 60.0)),
    (stable.ReluHead(0.1), stable.relu_depth, (0.1,)),
    (stable.SoftplusHead(0.1), stable.softplus_depth, (0.1,)),
    (stable.ExpHead(0.1, 60.0), stable.exp_depth, (0.1, 60.0)),
    (stable.BinsHead(4, 0.5, 80.0), stable.bins_depth, (stable.spaced_edges(4, 0.5, 80.0),)),
    (stable.OrdinalHead(4, 0.5, 80.0), stable.ordinal_depth, (stable.spaced_edges(5, 0.5, 80.0),)),
]


@pytest.mark.parametrize(("head", "function", "arguments"), HEADS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_heads_are_finite_for_every_finite_logit(
    head: nn.Module, function: Callable[..., stable.DepthPrediction], arguments: tuple[object, ...], dtype: torch.dtype
) -> None:
    extremes = torch.tensor([0.0, -0.0, 1.0, -1.0, 17.5, -17.5, -89.0, -104.0, -1e4, 1e4, 6e4, -6e4], dtype=dtype).reshape(1, 4, 3, 1).requires_grad_()
    prediction = head(extremes)
    expected = function(extremes, *arguments)
    assert torch.equal(prediction.depth, expected.depth)
    assert torch.equal(prediction.log_depth, expected.log_depth)
    assert prediction.log_depth.isfinite().all()
    assert prediction.depth.isfinite().all()
    assert (prediction.depth >= 0).all()
    (gradient,) = torch.autograd.grad(prediction.log_depth.sum(), extremes)
    assert gradient.isfinite().all()
    target = torch.full_like(prediction.depth, 3.0)
    (through_loss,) = torch.autograd.grad(stable.silog(head(extremes), target, form=stable.SILogForm(root=True, scale=10)), extremes)
    assert through_loss.isfinite().all()
