"""Every public function of ``nanopsy.stable`` with ordinary inputs and an independent reference: what the bench and the accuracy table go through.

A reference is the textbook formula, written with indexing and plain operations; it is evaluated in float64 on the same (rounded) inputs and
differentiated by autograd.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from nanopsy import stable

Make = Callable[[torch.Generator, int], list[Tensor]]
"""Float64 inputs from a generator, for an image (or vector) of about this size."""


@dataclass(frozen=True)
class Subject:
    """One function under test."""

    name: str
    call: Callable[..., Tensor | tuple[Tensor, ...]]
    """With constants (masks, edges) and the floating inputs: ``call(*constants, *inputs)``."""
    reference: Callable[..., Tensor | tuple[Tensor, ...]]
    make: Make
    constants: Callable[[torch.Generator, int], list[Tensor]] = field(default=lambda generator, size: [])
    elementwise: bool = False
    """The gradient's error is measured in ulp of each element; otherwise in ulp of the gradient's largest element."""
    value_ulp: float = 4.0
    grad_ulp: float = 8.0
    floor: float = 0.0
    """Values smaller than this are measured in ulp of it: a stated zero crossing."""
    ties: bool = False
    """It sorts: half-precision inputs contain equal numbers, between which the gradient may go either way."""


def normal(g: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def uniform(g: torch.Generator, low: float, high: float, *shape: int) -> Tensor:
    return low + (high - low) * torch.rand(*shape, generator=g, dtype=torch.float64)


def some(g: torch.Generator, *shape: int) -> Tensor:
    mask = torch.rand(*shape, generator=g) < 0.6
    mask.view(-1)[:2] = True
    return mask


def _image(size: int) -> tuple[int, int, int, int]:
    return 2, 1, size, size + 1


def depths(g: torch.Generator, size: int) -> list[Tensor]:
    target = uniform(g, 1.0, 60.0, *_image(size))
    return [target * torch.exp(0.3 * normal(g, *_image(size))), target]


def image_mask(g: torch.Generator, size: int) -> list[Tensor]:
    return [some(g, *_image(size))]


def vector_mask(g: torch.Generator, size: int) -> list[Tensor]:
    return [some(g, 3, size)]


def on_vector(name: str, call: Callable[..., Tensor], reference: Callable[..., Tensor], low: float, high: float, count: int = 1, **more: object) -> Subject:
    """An elementwise function of arguments between two bounds."""
    return Subject(name, call, reference, lambda g, size: [uniform(g, low, high, 4, size) for _ in range(count)], elementwise=True, **more)  # type: ignore[arg-type]


def _rows(statistic: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda m, x: torch.stack([statistic(row[keep]) for row, keep in zip(x, m, strict=True)])


def _weighted(statistic: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda m, x, w: torch.stack([statistic(r[k], v[k]) for r, k, v in zip(x, m, w, strict=True)])


def _weighted_var(x: Tensor, w: Tensor) -> Tensor:
    mean = (w * x).sum() / w.sum()
    return (w * (x - mean) ** 2).sum() / w.sum()


def _signal(g: torch.Generator, size: int) -> list[Tensor]:
    return [3 + normal(g, 3, size)]


def _signal_and_weight(g: torch.Generator, size: int) -> list[Tensor]:
    return [3 + normal(g, 3, size), uniform(g, 0.5, 2.0, 3, size)]


def _lowest(reference: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    def of(m: Tensor, x: Tensor) -> Tensor:
        return reference(torch.where(m, x, -torch.inf))

    return of


def _silog(p: Tensor, t: Tensor, lam: float, scale: float, root: bool, correction: int = 0, offset: float = 0.0, under: float = 0.0) -> Tensor:  # noqa: FBT001
    g = torch.log(p + offset) - torch.log(t + offset)
    d = torch.var(g, correction=correction) + (1 - lam) * g.mean() ** 2 + under
    return scale * (d.sqrt() if root else d)


def _least_squares(p: Tensor, t: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    a00, a01, a11 = (m * p * p).sum((1, 2, 3)), (m * p).sum((1, 2, 3)), m.sum((1, 2, 3))
    b0, b1 = (m * p * t).sum((1, 2, 3)), (m * t).sum((1, 2, 3))
    det = a00 * a11 - a01 * a01
    shape = (-1, 1, 1, 1)
    return ((a11 * b0 - a01 * b1) / det).reshape(shape), ((a00 * b1 - a01 * b0) / det).reshape(shape)


def _gradient_matching(m: Tensor, p: Tensor, t: Tensor) -> Tensor:
    total = p.new_zeros(())
    for k in range(4):
        r, keep = (p - t)[..., :: 2**k, :: 2**k], m[..., :: 2**k, :: 2**k]
        across = (r[..., 1:] - r[..., :-1]).abs()[keep[..., 1:] & keep[..., :-1]].sum()
        down = (r[..., 1:, :] - r[..., :-1, :]).abs()[keep[..., 1:, :] & keep[..., :-1, :]].sum()
        total = total + (across + down) / keep.sum()
    return total


def _ssi(m: Tensor, p: Tensor, t: Tensor) -> Tensor:
    scale, shift = _least_squares(p, t, m)
    aligned = scale * p + shift
    return ((aligned - t)[m] ** 2).sum() / (2 * m.sum()) + 0.5 * _gradient_matching(m, aligned, t)


def _normalized(x: Tensor, m: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for i in range(x.shape[0]):
        values = x[i][m[i]]
        ordered = values.sort().values
        middle = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
        out = out.index_put((torch.tensor(i),), torch.where(m[i], (x[i] - middle) / (values - middle).abs().mean(), 0.0))
    return out


def _procrustes(m: Tensor, p: Tensor, t: Tensor) -> Tensor:
    p, t = _normalized(p, m), _normalized(t, m)
    total = p.new_zeros(())
    for i in range(p.shape[0]):
        errors = (p - t)[i][m[i]].abs().sort().values
        total = total + errors[: int(math.floor(torch.tensor(len(errors), dtype=torch.float32) * (1 - 0.2)))].sum()
    return total / (2 * m.sum()) + 0.5 * _gradient_matching(m, p, t)


def _smoothness(d: Tensor, image: Tensor) -> Tensor:
    d = d / d.mean((2, 3), keepdim=True)
    across = (d[..., 1:] - d[..., :-1]).abs() * torch.exp(-(image[..., 1:] - image[..., :-1]).abs().mean(1, keepdim=True))
    down = (d[..., 1:, :] - d[..., :-1, :]).abs() * torch.exp(-(image[..., 1:, :] - image[..., :-1, :]).abs().mean(1, keepdim=True))
    return across.mean() + down.mean()


def _ssim_map(x: Tensor, y: Tensor) -> Tensor:
    """Monodepth2's form: uniform 3 x 3 windows, one pass."""
    x, y = F.pad(x, (1, 1, 1, 1), mode="reflect"), F.pad(y, (1, 1, 1, 1), mode="reflect")
    mx, my = F.avg_pool2d(x, 3, 1), F.avg_pool2d(y, 3, 1)
    vx, vy, cov = F.avg_pool2d(x * x, 3, 1) - mx**2, F.avg_pool2d(y * y, 3, 1) - my**2, F.avg_pool2d(x * y, 3, 1) - mx * my
    return (2 * mx * my + 1e-4) * (2 * cov + 9e-4) / ((mx**2 + my**2 + 1e-4) * (vx + vy + 9e-4))


def _sobel_normals(z: Tensor) -> Tensor:
    kernel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=z.dtype) / 8
    dx = F.conv2d(z, kernel.reshape(1, 1, 3, 3))
    dy = F.conv2d(z, kernel.t().reshape(1, 1, 3, 3))
    n = torch.cat([-dx, -dy, torch.ones_like(dx)], 1)
    return n / n.norm(dim=1, keepdim=True)


def _cosine_normal(p: Tensor, t: Tensor) -> Tensor:
    return (1 - (_sobel_normals(p) * _sobel_normals(t)).sum(1)).mean()


def _virtual_normal(triples: Tensor, p: Tensor, t: Tensor) -> Tensor:
    height, width = p.shape[-2:]
    per_image = []
    for i in range(p.shape[0]):
        losses = []
        for a in triples.t().tolist():
            points = [
                torch.stack(
                    [
                        torch.stack(
                            [(j % width - (width - 1) / 2) / 20 * z.flatten()[j], (j // width - (height - 1) / 2) / 20 * z.flatten()[j], z.flatten()[j]]
                        )
                        for j in a
                    ]
                )
                for z in (p[i, 0], t[i, 0])
            ]
            sides = [points[1][1] - points[1][0], points[1][2] - points[1][0], points[1][2] - points[1][1]]
            if any(float(s.detach().abs().max()) == 0 for s in sides) or all(any(float(s.detach()[c].abs()) < 0.005 for s in sides) for c in range(3)):
                continue
            if any(float(abs(F.cosine_similarity(sides[x].detach(), sides[y].detach(), dim=0))) > 0.867 for x, y in ((0, 1), (0, 2), (1, 2))):
                continue
            normals = [torch.linalg.cross(q[1] - q[0], q[2] - q[0]) for q in points]
            losses.append((normals[0] / normals[0].norm() - normals[1] / normals[1].norm()).abs().sum())
        ordered = torch.stack(losses).sort().values
        per_image.append(ordered[int(0.25 * len(ordered)) :].mean())
    return torch.stack(per_image).mean()


def _ranking(pairs: Tensor, m: Tensor, p: Tensor, t: Tensor) -> Tensor:
    terms = []
    for i in range(p.shape[0]):
        z, y, keep = p[i].flatten(), t[i].flatten(), m[i].flatten()
        for a, b in pairs.t().tolist():
            if keep[a] and keep[b]:
                ratio, step = float((y[a] / y[b]).detach()), z[a] - z[b]
                label = 1 if ratio >= 1.03 else -1 if ratio <= 1 / 1.03 else 0
                terms.append(torch.log1p(torch.exp(-label * step)) if label else step**2)
    return torch.stack(terms).mean()


def _ordinal(edges: Tensor, m: Tensor, logits: Tensor, t: Tensor) -> Tensor:
    chance = torch.sigmoid(logits)
    deeper = t > edges[1:-1].reshape(1, -1, 1, 1).to(t.dtype)
    terms = -torch.where(deeper, chance.log(), (1 - chance).log()).sum(1, keepdim=True)
    return terms[m].mean()


def _classification(edges: Tensor, m: Tensor, logits: Tensor, t: Tensor) -> Tensor:
    label = (t >= edges[1:-1].reshape(1, -1, 1, 1).to(t.dtype)).sum(1)
    return F.cross_entropy(logits, label, reduction="none")[m.squeeze(1)].mean()


def _chamfer(m: Tensor, centres: Tensor, t: Tensor) -> Tensor:
    each = []
    for c, y, keep in zip(centres, t, m, strict=True):
        squares = (c[:, None] - y[keep][None]) ** 2
        each.append(squares.min(0).values.mean() + squares.min(1).values.mean())
    return torch.stack(each).mean()


def _edges(count: int) -> Callable[[torch.Generator, int], list[Tensor]]:
    return lambda g, size: [stable.spaced_edges(count, 0.5, 80.0), *image_mask(g, size)]


K = torch.tensor([[20.0, 0.0, 3.0], [0.0, 20.0, 3.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
POSE = torch.eye(4, dtype=torch.float64)
POSE[0, 3] = 0.25


def _backprojected(inverse: Tensor, d: Tensor) -> Tensor:
    u, v = torch.arange(d.shape[-1], dtype=d.dtype), torch.arange(d.shape[-2], dtype=d.dtype)
    rays = torch.stack([((u - 3) / 20).expand(d.shape[-2], -1), ((v - 3) / 20)[:, None].expand(-1, d.shape[-1]), torch.ones(d.shape[-2:], dtype=d.dtype)])
    return d * rays


def _projected(k: Tensor, pose: Tensor, points: Tensor) -> Tensor:
    x, y, z = (points + pose[:, :3, 3].reshape(-1, 3, 1, 1)).unbind(1)
    height, width = points.shape[-2:]
    return torch.stack([(20 * x / z + 3) / ((width - 1) / 2) - 1, (20 * y / z + 3) / ((height - 1) / 2) - 1], -1)


def _in_view(g: torch.Generator, size: int) -> list[Tensor]:
    z = uniform(g, 5.0, 10.0, 2, size, size + 1)
    return [torch.stack([uniform(g, -0.2, 0.2, 2, size, size + 1), uniform(g, 0.0, 0.2, 2, size, size + 1), z], 1)]


def _bins_depth(edges: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    centres = ((edges[1:] + edges[:-1]) / 2).to(logits.dtype).reshape(1, -1, 1, 1)
    depth = (logits.softmax(1) * centres).sum(1, keepdim=True)
    return depth, depth.log()


def _ordinal_depth(edges: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    middles = ((edges.log()[1:] + edges.log()[:-1]) / 2).to(logits.dtype)
    log_depth = middles[0] + (logits.sigmoid() * (middles[1:] - middles[:-1]).reshape(1, -1, 1, 1)).sum(1, keepdim=True)
    return log_depth.exp(), log_depth


def _berhu(m: Tensor, p: Tensor, t: Tensor) -> Tensor:
    error = (p - t)[m].abs()
    return torch.where(error <= 2, error, (error**2 + 4) / 4).mean()


def _colours(g: torch.Generator, size: int) -> list[Tensor]:
    image = uniform(g, 0, 1, 2, 3, size, size + 1)
    return [image, (image + 0.1 * normal(g, 2, 3, size, size + 1)).clamp(0, 1)]


def _photometric(x: Tensor, y: Tensor) -> Tensor:
    return (0.85 * ((1 - _ssim_map(x, y)) / 2).clamp(0, 1) + 0.15 * (x - y).abs()).mean()


ROOT = stable.SILogForm(scale=10, root=True)


def _preset_subjects() -> list[Subject]:
    subjects = []
    for name in ("bts", "glpdepth", "mde-toolbox", "idisc"):
        form = stable.SILOG_PRESETS[name].form
        subjects.append(
            Subject(
                "silog_preset",
                lambda m, p, t, name=name: stable.silog_preset(name)(p, t, m),
                lambda m, p, t, f=form: _silog(p[m], t[m], f.lam, f.scale, f.root, 0, f.offset, f.under_root),
                depths,
                image_mask,
            )
        )
    return subjects


SUBJECTS: Sequence[Subject] = (
    # statistics
    Subject("masked_mean", lambda m, x: stable.masked_mean(x, m, dim=1), _rows(torch.mean), _signal, vector_mask),
    Subject(
        "masked_mean", lambda m, x, w: stable.masked_mean(x, m, weight=w), lambda m, x, w: (x[m] * w[m]).sum() / w[m].sum(), _signal_and_weight, vector_mask
    ),
    Subject("masked_var", lambda m, x: stable.masked_var(x, m, dim=1), _rows(lambda v: v.var(correction=0)), _signal, vector_mask),
    Subject("masked_var", lambda m, x: stable.masked_var(x, m, correction=1), lambda m, x: x[m].var(), _signal, vector_mask),
    Subject("masked_var", lambda m, x, w: stable.masked_var(x, m, weight=w, dim=1), _weighted(_weighted_var), _signal_and_weight, vector_mask),
    Subject("masked_std", lambda m, x: stable.masked_std(x, m, correction=1, dim=1), _rows(lambda v: v.std()), _signal, vector_mask),
    Subject("masked_median", lambda m, x: stable.masked_median(x, m, dim=1), _rows(lambda v: v.quantile(0.5)), _signal, vector_mask, ties=True),
    Subject("masked_quantile", lambda m, x: stable.masked_quantile(x, 0.3, m, dim=1), _rows(lambda v: v.quantile(0.3)), _signal, vector_mask, ties=True),
    # elementary functions
    on_vector("sqrt", stable.sqrt, torch.sqrt, 0.01, 9.0),
    on_vector("power", lambda x: stable.power(x, 0.3), lambda x: x**0.3, 0.01, 9.0),
    on_vector("log", lambda x: stable.log(x, 1e-3), lambda x: x.clamp(min=1e-3).log(), 1.5, 90.0),
    on_vector("exp", stable.exp, torch.exp, -8.0, 8.0),
    on_vector("acos", stable.acos, torch.acos, -0.98, 0.98),
    on_vector("asin", stable.asin, torch.asin, -0.98, 0.98),
    on_vector("atan2", stable.atan2, torch.atan2, 0.2, 5.0, 2),
    on_vector("xlogy", stable.xlogy, lambda x, y: x * torch.log(y), 1.2, 5.0, 2),
    on_vector("log1mexp", stable.log1mexp, lambda x: torch.where(x < 0.7, torch.log(-torch.expm1(-x)), torch.log1p(-torch.exp(-x))), 0.01, 8.0),
    on_vector("divide", stable.divide, torch.div, 0.3, 5.0, 2),
    on_vector("reciprocal", stable.reciprocal, torch.reciprocal, 0.3, 5.0),
    on_vector("where_safe", lambda x: stable.where_safe(x > 0.5, torch.log, x), lambda x: torch.where(x > 0.5, x.log(), 0.0), 1.5, 9.0),
    on_vector("softplus", stable.softplus, lambda x: torch.log1p(torch.exp(x)), -8.0, 8.0),
    on_vector("inverse_softplus", stable.inverse_softplus, lambda y: torch.log(torch.expm1(y)), 0.01, 8.0, floor=1.0),
    Subject("norm", lambda x: stable.norm(x, 1), lambda x: (x * x).sum(1).sqrt(), lambda g, size: [normal(g, 3, size)]),
    Subject("normalize", stable.normalize, lambda x: x / (x * x).sum(1, keepdim=True).sqrt(), lambda g, size: [normal(g, 3, size)]),
    # softmax family
    Subject(
        "masked_softmax",
        lambda m, x: stable.masked_softmax(x, m),
        _lowest(lambda s: s.softmax(-1)),
        lambda g, size: [normal(g, 3, size)],
        vector_mask,
        value_ulp=8,
    ),
    Subject(
        "masked_log_softmax",
        lambda m, x: torch.where(m, stable.masked_log_softmax(x, m), 0.0),
        lambda m, x: torch.where(m, torch.where(m, x, -torch.inf).log_softmax(-1), 0.0),
        lambda g, size: [normal(g, 3, size)],
        vector_mask,
        floor=1.0,
    ),
    Subject(
        "masked_logsumexp", lambda m, x: stable.masked_logsumexp(x, m), _lowest(lambda s: s.logsumexp(-1)), lambda g, size: [normal(g, 3, size)], vector_mask
    ),
    # alignment
    Subject(
        "align_scale_and_shift",
        lambda m, p, t: tuple(stable.align_scale_and_shift(p, t, m)),
        lambda m, p, t: _least_squares(p, t, m),
        depths,
        image_mask,
        floor=30.0,
        value_ulp=8,
        grad_ulp=16,
    ),
    Subject(
        "normalize_by_median",
        lambda m, p: stable.normalize_by_median(p, m),
        lambda m, p: _normalized(p, m),
        lambda g, size: depths(g, size)[:1],
        image_mask,
        floor=1.0,
        ties=True,
    ),
    # heads
    on_vector(
        "scaled_sigmoid", lambda x: tuple(stable.scaled_sigmoid(x, 80.0)), lambda x: (80 * x.sigmoid(), F.logsigmoid(x) + math.log(80)), -8.0, 3.0, floor=1.0
    ),
    on_vector(
        "inverse_depth_sigmoid",
        lambda x: tuple(stable.inverse_depth_sigmoid(x)),
        lambda x: (1 / (0.01 + 9.99 * x.sigmoid()), -(0.01 + 9.99 * x.sigmoid()).log()),
        -4.0,
        -3.0,
        floor=1.0,
    ),
    on_vector("relu_depth", lambda x: tuple(stable.relu_depth(x)), lambda x: (x.relu() + 1e-3, (x.relu() + 1e-3).log()), 1.5, 60.0),
    on_vector("softplus_depth", lambda x: tuple(stable.softplus_depth(x)), lambda x: (F.softplus(x) + 1e-3, (F.softplus(x) + 1e-3).log()), 1.5, 9.0),
    on_vector("exp_depth", lambda x: tuple(stable.exp_depth(x)), lambda x: (x.exp(), x.clone()), -4.0, 4.0),
    Subject(
        "bin_edges",
        lambda x: stable.bin_edges(x, 0.5, 80.0),
        lambda x: 0.5 + 79.5 * F.pad(x.softmax(-1).cumsum(-1), (1, 0)),
        lambda g, size: [normal(g, 2, size)],
    ),
    Subject(
        "bins_depth",
        lambda e, x: tuple(stable.bins_depth(x, e)),
        _bins_depth,
        lambda g, size: [normal(g, 2, 4, size, size)],
        lambda g, size: [stable.spaced_edges(4, 0.5, 80.0).double()],
        floor=1.0,
    ),
    Subject(
        "ordinal_depth",
        lambda e, x: tuple(stable.ordinal_depth(x, e)),
        _ordinal_depth,
        lambda g, size: [normal(g, 2, 4, size, size)],
        lambda g, size: [stable.spaced_edges(5, 0.5, 80.0).double()],
        floor=1.0,
        value_ulp=8,
        grad_ulp=16,
    ),
    # losses
    Subject("silog", lambda m, p, t: stable.silog(p, t, m), lambda m, p, t: _silog(p[m], t[m], 0.85, 1, False), depths, image_mask),
    Subject("silog", lambda m, p, t: stable.silog(p, t, m, form=ROOT), lambda m, p, t: _silog(p[m], t[m], 0.85, 10, True), depths, image_mask),
    Subject(
        "silog",
        lambda m, p, t: stable.silog(p, t, m, form=stable.SILogForm(lam=0.5, reduction="image")),
        lambda m, p, t: torch.stack([_silog(a[k], b[k], 0.5, 1, False) for a, b, k in zip(p, t, m, strict=True)]).mean(),
        depths,
        image_mask,
    ),
    Subject(
        "silog_from_log_depth",
        lambda m, x, t: stable.silog_from_log_depth(x, t, m),
        lambda m, x, t: _silog(x[m].exp(), t[m], 0.85, 1, False),
        lambda g, size: [depths(g, size)[0].log(), depths(g, size)[1]],
        image_mask,
    ),
    Subject(
        "silog_from_logits",
        lambda m, x, t: stable.silog_from_logits(x, t, m, max_depth=80.0),
        lambda m, x, t: _silog(80 * x[m].sigmoid(), t[m], 0.85, 1, False),
        lambda g, size: [normal(g, *_image(size)), depths(g, size)[1]],
        image_mask,
    ),
    *_preset_subjects(),
    Subject(
        "berhu",
        lambda m, p, t: stable.berhu(p, t, m, threshold=2.0),
        _berhu,
        depths,
        image_mask,
    ),
    Subject(
        "gaussian_nll",
        lambda m, p, s, t: stable.gaussian_nll(p, s, t, m, full=True),
        lambda m, p, s, t: F.gaussian_nll_loss(p[m], t[m], s[m].exp(), full=True, eps=1e-12),
        lambda g, size: [depths(g, size)[0], normal(g, *_image(size)), depths(g, size)[1]],
        image_mask,
    ),
    Subject(
        "laplace_nll",
        lambda m, p, s, t: stable.laplace_nll(p, s, t, m),
        lambda m, p, s, t: ((p - t).abs() / s.exp() + s)[m].mean(),
        lambda g, size: [depths(g, size)[0], normal(g, *_image(size)), depths(g, size)[1]],
        image_mask,
    ),
    Subject("gradient_matching", lambda m, p, t: stable.gradient_matching(p, t, m), _gradient_matching, depths, image_mask),
    Subject("scale_and_shift_invariant", lambda m, p, t: stable.scale_and_shift_invariant(p, t, m), _ssi, depths, image_mask),
    Subject("trimmed_procrustes", lambda m, p, t: stable.trimmed_procrustes(p, t, m), _procrustes, depths, image_mask, ties=True),
    Subject(
        "edge_aware_smoothness",
        stable.edge_aware_smoothness,
        _smoothness,
        lambda g, size: [uniform(g, 0.1, 1.0, *_image(size)), uniform(g, 0, 1, 2, 3, size, size + 1)],
    ),
    Subject("ssim", lambda x, y: stable.ssim(x, y, window=3, sigma=None), _ssim_map, _colours, floor=1.0, value_ulp=128, grad_ulp=256),
    Subject(
        "ssim_loss",
        lambda x, y: stable.ssim_loss(x, y, window=3, sigma=None),
        lambda x, y: ((1 - _ssim_map(x, y)) / 2).clamp(0, 1).mean(),
        _colours,
        grad_ulp=128,
    ),
    Subject("cosine_normal", stable.cosine_normal, _cosine_normal, depths, grad_ulp=16),
    Subject(
        "virtual_normal",
        lambda triples, p, t: stable.virtual_normal(p, t, triples=triples, focal=20.0),
        _virtual_normal,
        depths,
        lambda g, size: [stable.sample_triples(size, size + 1, 40, generator=g)],
        value_ulp=6,
        grad_ulp=16,
    ),
    Subject(
        "ranking",
        lambda pairs, m, p, t: stable.ranking(p, t, m, pairs=pairs),
        _ranking,
        depths,
        lambda g, size: [stable.sample_pairs(size, size + 1, 40, generator=g), *image_mask(g, size)],
    ),
    Subject(
        "ordinal_regression",
        lambda e, m, x, t: stable.ordinal_regression(x, t, m, edges=e),
        _ordinal,
        lambda g, size: [normal(g, 2, 4, size, size + 1), depths(g, size)[1]],
        _edges(5),
    ),
    Subject(
        "bins_classification",
        lambda e, m, x, t: stable.bins_classification(x, t, m, edges=e),
        _classification,
        lambda g, size: [normal(g, 2, 5, size, size + 1), depths(g, size)[1]],
        _edges(5),
    ),
    Subject(
        "chamfer_bins",
        lambda m, c, t: stable.chamfer_bins(c, t, m),
        _chamfer,
        lambda g, size: [uniform(g, 1, 60, 2, 7), depths(g, size)[1]],
        image_mask,
        ties=True,
    ),
    Subject(
        "backproject",
        lambda k, d: stable.backproject(d, k.to(torch.promote_types(d.dtype, torch.float32))),
        _backprojected,
        lambda g, size: depths(g, size)[:1],
        lambda g, size: [torch.linalg.inv(K).expand(2, 3, 3)],
        floor=1.0,
    ),
    Subject(
        "project",
        lambda k, pose, points: stable.project(points, k.float(), pose.float()).grid,
        _projected,
        _in_view,
        lambda g, size: [K.expand(2, 3, 3), POSE.expand(2, 4, 4)],
        floor=1.0,
    ),
    Subject("photometric", stable.photometric, _photometric, _colours, grad_ulp=256),
)
IDS = [f"{subject.name}-{i}" for i, subject in enumerate(SUBJECTS)]
