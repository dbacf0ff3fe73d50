"""What the stable forms cost: forward and backward against the form that the field writes, alternating in one process, as ratios of medians.

    python benchmarks/stable.py [--rounds 15]

Masked functions and losses work on 4x1x352x704 pixels of which 20 % are valid, as float32 on the CPU; elementary functions on all of them. ``peak`` is the
most memory that forward and backward hold beyond their inputs, as the profiler counts allocations. If kornia can be imported, its losses are measured
beside those of ours that compute the same. The last line holds name=value pairs; below 1 the stable form is faster.
"""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from nanopsy import stable

Step = Callable[[Tensor], Tensor]
g = torch.Generator().manual_seed(0)
SHAPE = (4, 1, 352, 704)
TARGET = 1 + 79 * torch.rand(SHAPE, generator=g)
MASK = torch.rand(SHAPE, generator=g) < 0.2
SPARSE = torch.where(MASK, TARGET, 0.0)
DEPTH = TARGET * torch.exp(0.3 * torch.randn(SHAPE, generator=g))
IMAGE = torch.rand(4, 3, 352, 704, generator=g)
SCORES = torch.randn(64, 16, 32, 32, generator=g)
SCORE_MASK = torch.rand(64, 16, 32, 32, generator=g) < 0.7
SCORE_MASK[..., 0] = True
POINTS = torch.randn(4 * 352 * 704 // 3, 3, generator=g)
UNIT = torch.rand(SHAPE, generator=g) * 1.9 - 0.95
OTHER = 0.5 + torch.rand(SHAPE, generator=g)
EDGES = stable.spaced_edges(16, 0.5, 80.0)
LOGITS = torch.randn(4, 16, 88, 176, generator=g)
SMALL, SMALL_MASK = SPARSE[..., ::4, ::4].contiguous(), MASK[..., ::4, ::4].contiguous()
BTS = stable.SILogForm(lam=0.85, scale=10, root=True)


def silog(p: Tensor) -> Tensor:
    d = torch.log(p[MASK]) - torch.log(SPARSE[MASK])
    return torch.sqrt((d**2).mean() - 0.85 * (d.mean() ** 2)) * 10.0


def silog_var(p: Tensor) -> Tensor:
    d = torch.log(p[MASK]) - torch.log(SPARSE[MASK])
    return 10 * torch.sqrt(torch.var(d) + 0.15 * d.mean() ** 2)


def berhu(p: Tensor) -> Tensor:
    error = (p[MASK] - SPARSE[MASK]).abs()
    c = 0.2 * error.max().item()
    return torch.where(error <= c, error, (error**2 + c * c) / (2 * c)).mean()


def gradients(p: Tensor) -> Tensor:
    total = p.new_zeros(())
    for k in range(4):
        m = MASK[..., :: 2**k, :: 2**k].float()
        r = m * (p - SPARSE)[..., :: 2**k, :: 2**k]
        across, down = (r[..., 1:] - r[..., :-1]).abs() * m[..., 1:] * m[..., :-1], (r[..., 1:, :] - r[..., :-1, :]).abs() * m[..., 1:, :] * m[..., :-1, :]
        total = total + (across.sum() + down.sum()) / m.sum()
    return total


def scale_and_shift(p: Tensor) -> tuple[Tensor, Tensor]:
    m = MASK.float()
    a00, a01, a11 = (m * p * p).sum((1, 2, 3)), (m * p).sum((1, 2, 3)), m.sum((1, 2, 3))
    b0, b1 = (m * p * SPARSE).sum((1, 2, 3)), (m * SPARSE).sum((1, 2, 3))
    det = a00 * a11 - a01 * a01
    return (a11 * b0 - a01 * b1) / det, (a00 * b1 - a01 * b0) / det


def ssi(p: Tensor) -> Tensor:
    scale, shift = scale_and_shift(p)
    aligned = scale[:, None, None, None] * p + shift[:, None, None, None]
    return (MASK.float() * (aligned - SPARSE) ** 2).sum() / (2 * MASK.sum()) + 0.5 * gradients(aligned)


def smoothness(d: Tensor) -> Tensor:
    d = d / (d.mean(2, True).mean(3, True) + 1e-7)
    dx, dy = (d[..., :-1] - d[..., 1:]).abs(), (d[..., :-1, :] - d[..., 1:, :]).abs()
    ix, iy = (IMAGE[..., :-1] - IMAGE[..., 1:]).abs().mean(1, keepdim=True), (IMAGE[..., :-1, :] - IMAGE[..., 1:, :]).abs().mean(1, keepdim=True)
    return (dx * torch.exp(-ix)).mean() + (dy * torch.exp(-iy)).mean()


def ssim(x: Tensor) -> Tensor:
    a, b = F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(IMAGE, (1, 1, 1, 1), mode="reflect")
    ma, mb = F.avg_pool2d(a, 3, 1), F.avg_pool2d(b, 3, 1)
    va, vb, cov = F.avg_pool2d(a**2, 3, 1) - ma**2, F.avg_pool2d(b**2, 3, 1) - mb**2, F.avg_pool2d(a * b, 3, 1) - ma * mb
    s = (2 * ma * mb + 1e-4) * (2 * cov + 9e-4) / ((ma**2 + mb**2 + 1e-4) * (va + vb + 9e-4))
    return ((1 - s) / 2).clamp(0, 1).mean()


def normals(p: Tensor) -> Tensor:
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
    kernel = torch.stack([kernel, kernel.t()])[:, None] / 8

    def of(z: Tensor) -> Tensor:
        return torch.cat([-F.conv2d(z, kernel), torch.ones_like(z[..., 1:-1, 1:-1])], 1)

    return (1 - F.cosine_similarity(of(p), of(TARGET), dim=1)).mean()


def ordinal(x: Tensor) -> Tensor:
    chance = x.sigmoid().clamp(1e-8, 1 - 1e-8)
    deeper = EDGES[1:].reshape(1, -1, 1, 1) < SMALL
    terms = -torch.where(deeper, chance.log(), (1 - chance).log()).sum(1, keepdim=True)
    return terms[SMALL_MASK].mean()


def classes(x: Tensor) -> Tensor:
    label = torch.bucketize(SMALL.squeeze(1), EDGES[1:-1])
    return F.cross_entropy(x, torch.where(SMALL_MASK.squeeze(1), label, -100))


def chamfer(c: Tensor) -> Tensor:
    total = c.new_zeros(())
    for centres, t, m in zip(c, SMALL, SMALL_MASK, strict=True):
        squares = (centres[:, None] - t[m][None]) ** 2
        total = total + squares.min(0).values.mean() + squares.min(1).values.mean()
    return total / len(c)


CENTRES = 80 * torch.rand(4, 64, generator=g)

FORMS: list[tuple[str, Tensor, Step, Step]] = [
    # name, input, the usual form, the stable form
    ("silog", DEPTH, silog, lambda p: stable.silog(p, SPARSE, MASK, form=BTS)),
    ("silog (torch.var)", DEPTH, silog_var, lambda p: stable.silog(p, SPARSE, MASK, form=BTS)),
    ("masked_mean", DEPTH, lambda p: p[MASK].mean(), lambda p: stable.masked_mean(p, MASK)),
    ("masked_var", DEPTH, lambda p: torch.var(p[MASK]), lambda p: stable.masked_var(p, MASK, correction=1)),
    ("masked_std", DEPTH, lambda p: torch.std(p[MASK]), lambda p: stable.masked_std(p, MASK, correction=1)),
    ("masked_median", DEPTH, lambda p: torch.quantile(p[MASK], 0.5), lambda p: stable.masked_median(p, MASK)),
    ("masked_quantile", DEPTH, lambda p: torch.quantile(p[MASK], 0.9), lambda p: stable.masked_quantile(p, 0.9, MASK)),
    ("sqrt", TARGET, lambda x: torch.sqrt(x + 1e-8), stable.sqrt),
    ("power", TARGET, lambda x: (x + 1e-8) ** 0.3, lambda x: stable.power(x, 0.3)),
    ("log", TARGET, lambda x: torch.log(x + 1e-8), lambda x: stable.log(x, 1e-3)),
    ("exp", UNIT, lambda x: torch.exp(x.clamp(max=20)), lambda x: stable.exp(x, 20)),
    ("acos", UNIT, lambda x: torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6)), stable.acos),
    ("atan2", UNIT, lambda x: torch.atan2(x, OTHER + 1e-8), lambda x: stable.atan2(x, OTHER)),
    ("xlogy", OTHER, lambda x: x * torch.log(x + 1e-8), lambda x: stable.xlogy(x, x)),
    ("log1mexp", OTHER, lambda x: torch.where(x < 0.7, torch.log(-torch.expm1(-x)), torch.log1p(-torch.exp(-x))), stable.log1mexp),
    ("divide", TARGET, lambda x: OTHER / (x + 1e-8), lambda x: stable.divide(OTHER, x)),
    ("reciprocal", TARGET, lambda x: 1 / (x + 1e-8), stable.reciprocal),
    ("softplus", UNIT, F.softplus, stable.softplus),
    ("inverse_softplus", OTHER, lambda x: x + torch.log(-torch.expm1(-x)), stable.inverse_softplus),
    ("norm", POINTS, lambda x: torch.sqrt((x**2).sum(-1) + 1e-12), lambda x: stable.norm(x, -1)),
    ("normalize", POINTS, lambda x: F.normalize(x, dim=-1), stable.normalize),
    ("masked_softmax", SCORES, lambda x: x.masked_fill(~SCORE_MASK, -math.inf).softmax(-1), lambda x: stable.masked_softmax(x, SCORE_MASK)),
    ("masked_log_softmax", SCORES, lambda x: x.masked_fill(~SCORE_MASK, -1e9).log_softmax(-1), lambda x: stable.masked_log_softmax(x, SCORE_MASK)),
    ("masked_logsumexp", SCORES, lambda x: x.masked_fill(~SCORE_MASK, -math.inf).logsumexp(-1), lambda x: stable.masked_logsumexp(x, SCORE_MASK)),
    ("align_scale_and_shift", DEPTH, lambda p: sum(scale_and_shift(p)), lambda p: sum(stable.align_scale_and_shift(p, SPARSE, MASK))),
    ("scaled_sigmoid", UNIT, lambda x: torch.log(80 * x.sigmoid() + 1e-6), lambda x: stable.scaled_sigmoid(x, 80.0).log_depth),
    ("berhu", DEPTH, berhu, lambda p: stable.berhu(p, SPARSE, MASK)),
    ("gradient_matching", DEPTH, gradients, lambda p: stable.gradient_matching(p, SPARSE, MASK)),
    ("scale_and_shift_invariant", DEPTH, ssi, lambda p: stable.scale_and_shift_invariant(p, SPARSE, MASK)),
    ("edge_aware_smoothness", DEPTH, smoothness, lambda p: stable.edge_aware_smoothness(p, IMAGE)),
    ("ssim_loss", IMAGE * 0.9, ssim, lambda x: stable.ssim_loss(x, IMAGE, window=3, sigma=None)),
    ("cosine_normal", DEPTH, normals, lambda p: stable.cosine_normal(p, TARGET)),
    (
        "ordinal_regression",
        LOGITS[:, :15],
        lambda x: ordinal(torch.cat([x, x[:, :1]], 1)),
        lambda x: stable.ordinal_regression(x, SMALL, SMALL_MASK, edges=EDGES),
    ),
    ("bins_classification", LOGITS, classes, lambda x: stable.bins_classification(x, SMALL, SMALL_MASK, edges=EDGES)),
    ("chamfer_bins", CENTRES, chamfer, lambda c: stable.chamfer_bins(c, SMALL, SMALL_MASK)),
]


def kornia_forms() -> list[tuple[str, Tensor, Step, Step]]:
    try:
        import kornia
    except ImportError:
        return []
    losses = kornia.losses
    return [
        (
            "kornia inverse_depth_smoothness_loss",
            DEPTH,
            lambda p: losses.inverse_depth_smoothness_loss(p, IMAGE),
            lambda p: stable.edge_aware_smoothness(p, IMAGE, normalize=False),
        ),
        ("kornia ssim_loss (11)", IMAGE * 0.9, lambda x: losses.ssim_loss(x, IMAGE, 11), lambda x: stable.ssim_loss(x, IMAGE)),
        ("kornia ssim_loss (3)", IMAGE * 0.9, lambda x: losses.ssim_loss(x, IMAGE, 3), lambda x: stable.ssim_loss(x, IMAGE, window=3)),
    ]


def once(step: Step, x: Tensor) -> float:
    leaf = x.detach().requires_grad_()
    start = time.perf_counter()
    step(leaf).sum().backward()
    return (time.perf_counter() - start) * 1e3


def peak(step: Step, x: Tensor) -> float:
    """MiB held at most by forward and backward."""
    leaf = x.detach().requires_grad_()
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step(leaf).sum().backward()
    events = sorted((e for e in record.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns())
    held = most = 0
    for event in events:
        held += event.nbytes()
        most = max(most, held)
    return most / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, medians of {rounds} rounds, forward and backward")
    print(f"| {'function':38s} | usual ms | stable ms | ratio | usual MiB | stable MiB |")
    print(f"|{'-' * 40}|---------:|----------:|------:|----------:|-----------:|")
    result: dict[str, float] = {}
    for name, x, usual, ours in [*FORMS, *kornia_forms()]:
        for step in (usual, ours):
            once(step, x), once(step, x)
        pairs = [(once(usual, x), once(ours, x)) for _ in range(rounds)]
        a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
        memory = peak(usual, x), peak(ours, x)
        result[name] = b / a
        result[f"{name} memory"] = memory[1] / memory[0]
        print(f"| {name:38s} | {a:8.2f} | {b:9.2f} | {b / a:5.2f} | {memory[0]:9.1f} | {memory[1]:10.1f} |", flush=True)
    others = [ratio for name, ratio in result.items() if not name.endswith(" memory") and not name.startswith(("silog", "masked_var", "kornia"))]
    above = sum(ratio > 1.1 for ratio in others)
    print(
        f"silog_speedup={1 / result['silog']:.2f} silog_memory={result['silog memory']:.2f} masked_var_ratio={result['masked_var']:.2f} "
        f"others_median={statistics.median(others):.2f} others_above_1.1={above}/{len(others)}"
    )


if __name__ == "__main__":
    main()
