"""Surface-normal losses: cosine of local normals, and virtual normals of point triples."""

from __future__ import annotations

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import nonzero, pattern, select
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses._reduce import pair
from nanopsy.stable.statistics import masked_mean
from nanopsy.stable.vectors import normalize

__all__ = ["CosineNormal", "VirtualNormal", "cosine_normal", "sample_triples", "virtual_normal"]


def cosine_normal(prediction: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """1 - cosine between the normals (-dz/dx, -dz/dy, 1) of two depth maps, from 3 x 3 Sobel slopes per pixel.

    Args:
        prediction, target: ``B x 1 x H x W``, any floating dtype (half precision gives float32).
        mask: boolean, broadcastable; a pixel counts where all nine of its neighbourhood are selected.

    Returns:
        The mean over counted inner pixels, 0 with zero gradient if there are none. Computed as half the squared distance of the unit normals, which keeps
        its digits near 0. Slopes are in metres per pixel; borders, where published code pads with zeros and sees a cliff, do not count.

    Source: Hu et al. 2019, equation 5.
    """
    where = "nanopsy.stable.cosine_normal"
    arguments.depth_map(where, prediction=prediction, target=target)
    p, t, _ = pair(where, prediction, target, mask)
    if min(p.shape[-2:]) < 3:
        return p.flatten()[:0].sum()
    counted = None
    if mask is not None:
        full = mask.expand(p.shape)
        rows = full[..., :-2, :] & full[..., 1:-1, :] & full[..., 2:, :]
        counted = (rows[..., :-2] & rows[..., 1:-1] & rows[..., 2:]).squeeze(1)
    apart = _normals(p) - _normals(t)
    return masked_mean(0.5 * apart.square().sum(1), counted)


def _normals(z: Tensor) -> Tensor:
    """Unit normals ``B x 3 x (H - 2) x (W - 2)``."""
    across = z[..., 2:] - z[..., :-2]
    down = z[..., 2:, :] - z[..., :-2, :]
    dx = (across[..., :-2, :] + 2 * across[..., 1:-1, :] + across[..., 2:, :]) / 8
    dy = (down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]) / 8
    return normalize(torch.cat([-dx, -dy, torch.ones_like(dx)], 1), dim=1)


def sample_triples(height: int, width: int, count: int, *, generator: torch.Generator | None = None, device: torch.device | str | None = None) -> Tensor:
    """Random pixel triples for `virtual_normal`: flat indices, ``3 x count``, with replacement.

    Args:
        height, width: of the depth maps.
        count: number of triples; Yin et al. take 0.15 * height * width.
        generator: for the same triples again.
    """
    where = "nanopsy.stable.sample_triples"
    for name, value in (("height", height), ("width", width), ("count", count)):
        arguments.whole(where, name, value, least=1)
    return torch.randint(height * width, (3, count), generator=generator, device=device)


def virtual_normal(
    prediction: Tensor,
    target: Tensor,
    mask: Tensor | None = None,
    *,
    triples: Tensor,
    focal: float | tuple[float, float],
    centre: tuple[float, float] | None = None,
    largest_cosine: float = 0.867,
    least_distance: float = 0.005,
    drop: float = 0.25,
) -> Tensor:
    """L1 distance between the normals of planes through three far-apart points.

    Args:
        prediction, target: ``B x 1 x H x W`` in metres, any floating dtype (half precision gives float32).
        mask: boolean, broadcastable.
        triples: flat pixel indices ``3 x N`` from `sample_triples`.
        focal: focal length in pixels, or (fx, fy); of the crop or resize that the maps are in.
        centre: principal point (cx, cy) in pixels; the middle of the map by default.
        largest_cosine: a triple counts if all three |cosines| between its sides (in the target) are at most this: not nearly on one line.
        least_distance: and if its points are this far apart (metres) along x, y or z, in the target.
        drop: fraction in [0, 1) of each image's counted triples, those with the smallest loss, that is left out.

    Returns:
        The mean over the kept triples of the summed absolute differences of the unit normals; images without one do not count, and a batch without any gives 0
        with zero gradient (published: NaN). A degenerate predicted triangle has normal 0, with gradient 0.
        Published code pools and trims the triples of the whole batch, has the principal point at (W // 2, H // 2), takes |z| for x and y of negative
        predictions, and itself leaves out targets below 1e-4: pass ``mask=target > 1e-4``.

    Source: Yin et al. 2019, equations 2 to 5.
    """
    where = "nanopsy.stable.virtual_normal"
    arguments.depth_map(where, prediction=prediction, target=target)
    fx, fy = focal if isinstance(focal, tuple) else (focal, focal)
    arguments.number(where, "focal", fx, above=0)
    arguments.number(where, "focal", fy, above=0)
    arguments.number(where, "drop", drop, least=0, below=1)
    p, t, _ = pair(where, prediction, target, mask)
    arguments.index(where, "triples", triples, 3, "sample_triples(H, W, N)")
    height, width = p.shape[-2:]
    cx, cy = centre if centre is not None else ((width - 1) / 2, (height - 1) / 2)
    u = (torch.arange(width, device=p.device, dtype=p.dtype) - cx) / fx
    v = (torch.arange(height, device=p.device, dtype=p.dtype) - cy) / fy
    rays = torch.stack([u.expand(height, width), v[:, None].expand(height, width), torch.ones(height, width, device=p.device, dtype=p.dtype)]).flatten(1)[
        :, triples
    ]  # 3 x 3 points x N
    flat = triples.flatten()
    points_p = p.flatten(1).index_select(1, flat).reshape(-1, 1, *triples.shape) * rays
    points_t = t.flatten(1).index_select(1, flat).reshape(-1, 1, *triples.shape) * rays
    chosen = torch.ones_like(p, dtype=torch.bool) if mask is None else mask.expand(p.shape)
    counted = chosen.flatten(1).index_select(1, flat).reshape(-1, *triples.shape).all(1) & _far_apart(points_t.detach(), largest_cosine, least_distance)
    loss = (_plane_normal(points_p) - _plane_normal(points_t)).abs().sum(1)
    loss = select(loss, pattern(counted, loss))
    order = torch.where(counted, loss.detach(), torch.nan).argsort(1)
    count = counted.sum(1, keepdim=True)
    rank = torch.arange(loss.shape[1], device=loss.device).expand_as(loss)
    kept = (rank >= (count * drop).floor()) & (rank < count)
    each = masked_mean(loss.gather(1, order), kept | loss.gather(1, order).isnan(), dim=1)
    return masked_mean(each, count.squeeze(1) > 0)


def _plane_normal(points: Tensor) -> Tensor:
    """Unit normals ``B x 3 x N`` of ``B x 3 x 3 points x N``; 0 for a degenerate triangle."""
    a, b = points[:, :, 1] - points[:, :, 0], points[:, :, 2] - points[:, :, 0]
    return normalize(torch.linalg.cross(a, b, dim=1), dim=1)


def _far_apart(points: Tensor, largest_cosine: float, least_distance: float) -> Tensor:
    """Triples ``B x N`` whose points are apart and not on one line."""
    sides = torch.stack([points[:, :, 1] - points[:, :, 0], points[:, :, 2] - points[:, :, 0], points[:, :, 2] - points[:, :, 1]], 2)
    near = (sides.abs() < least_distance).any(2).all(1)
    unit = sides / nonzero(torch.linalg.vector_norm(sides, dim=1, keepdim=True))
    cosines = torch.stack([(unit[:, :, i] * unit[:, :, j]).sum(1).abs() for i, j in ((0, 1), (0, 2), (1, 2))], 1)
    degenerate = (sides == 0).all(1).any(1)
    return ~near & ~degenerate & ~(cosines > largest_cosine).any(1)  # NaN is counted, and shows


class CosineNormal(Loss):
    """`cosine_normal` as a module."""

    function = staticmethod(cosine_normal)


class VirtualNormal(Loss):
    """`virtual_normal` as a module; pass ``triples=`` and ``focal=`` with each call."""

    function = staticmethod(virtual_normal)
