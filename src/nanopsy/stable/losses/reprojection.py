"""Photometric reprojection with its guards: points behind or in the camera plane, and pixels that leave the image."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nanopsy.stable import _arguments as arguments
from nanopsy.stable._select import pattern, select, wide
from nanopsy.stable.losses._module import Loss
from nanopsy.stable.losses.structure import ssim_loss
from nanopsy.stable.statistics import masked_mean

__all__ = ["Photometric", "Projection", "backproject", "photometric", "project"]


SLACK = 1e-5
"""How far beyond the outermost pixel centres a point may lie, by rounding, and still be inside: 0.006 pixels of 1242."""


class Projection(NamedTuple):
    """Where points land."""

    grid: Tensor
    """``B x H x W x 2``, x and y in [-1, 1] inside the image, for ``grid_sample(align_corners=True)``; 0 where not valid."""
    valid: Tensor
    """``B x 1 x H x W``, boolean: in front of the camera and inside the image."""
    depth: Tensor
    """``B x 1 x H x W``: z in the second camera, metres."""


def _matrices(where: str, rows: int, columns: int, **matrices: Tensor) -> None:
    arguments.floating(where, **matrices)
    for name, value in matrices.items():
        if value.ndim != 3 or value.shape[1:] != (rows, columns):
            raise arguments.ArgumentError(
                f"{name} has shape {list(value.shape)}",
                where=where,
                why="one matrix per image maps its points",
                do=f"pass {name} as B x {rows} x {columns}",
            )


def backproject(depth: Tensor, inverse_intrinsics: Tensor) -> Tensor:
    """Points in camera coordinates from a depth map.

    Args:
        depth: ``B x 1 x H x W`` in metres, any floating dtype (half precision gives float32).
        inverse_intrinsics: ``B x 3 x 3``, of the map's own size in pixels.

    Returns:
        ``B x 3 x H x W``: depth * K^-1 (u, v, 1), pixel centres at integers.
    """
    where = "nanopsy.stable.backproject"
    arguments.floating(where, depth=depth)
    arguments.depth_map(where, depth=depth)
    _matrices(where, 3, 3, inverse_intrinsics=inverse_intrinsics)
    z = wide(depth)
    height, width = z.shape[-2:]
    u = torch.arange(width, device=z.device, dtype=z.dtype).expand(height, width)
    v = torch.arange(height, device=z.device, dtype=z.dtype)[:, None].expand(height, width)
    pixels = torch.stack([u, v, torch.ones_like(u)])
    return z * _transform(wide(inverse_intrinsics).to(z.dtype), pixels[None])


def _transform(matrix: Tensor, points: Tensor) -> Tensor:
    """``B x 3 x 3`` times ``B x 3 x H x W``, without a matrix product that autocast or TF32 would round."""
    return (matrix[:, :, :, None, None] * points[:, None]).sum(2)


def project(points: Tensor, intrinsics: Tensor, pose: Tensor | None = None, *, min_depth: float = 1e-3) -> Projection:
    """Pixels of 3-D points in a second camera.

    Args:
        points: ``B x 3 x H x W`` in metres, any floating dtype (half precision gives float32).
        intrinsics: ``B x 3 x 3``, of the map's own size in pixels.
        pose: ``B x 4 x 4`` from the first camera to the second; None if the points are in the second already.
        min_depth: metres, positive. Points nearer to the camera plane, or behind it, are not valid; their grid is 0 and no gradient flows through
            them. (Published: z + 1e-7, which is 0 at z = -1e-7 and projects points behind the camera to mirrored pixels.)

    Returns:
        `Projection`. Multiply or mask what is sampled with ``valid``.

    Source: Zhou et al. 2017, equation 2; Godard et al. 2019 (Monodepth2).
    """
    where = "nanopsy.stable.project"
    arguments.floating(where, points=points)
    if points.ndim != 4 or points.shape[1] != 3:
        raise arguments.ArgumentError(
            f"points of shape {list(points.shape)}", where=where, why="each pixel has three coordinates", do="pass B x 3 x H x W, as backproject returns"
        )
    _matrices(where, 3, 3, intrinsics=intrinsics)
    arguments.number(where, "min_depth", min_depth, above=0)
    p = wide(points)
    finite = p.detach().isfinite().all(1, keepdim=True)
    p = select(p, pattern(finite, p))
    if pose is not None:
        _matrices(where, 4, 4, pose=pose)
        motion = wide(pose).to(p.dtype)
        p = _transform(motion[:, :3, :3], p) + motion[:, :3, 3, None, None]
    image = _transform(wide(intrinsics).to(p.dtype), p)
    z = image[:, 2:]
    front = finite & (z >= min_depth)
    height, width = p.shape[-2:]
    safe = torch.where(front, z, 1.0)
    xy = torch.cat([image[:, :1] / safe * (2 / max(width - 1, 1)), image[:, 1:2] / safe * (2 / max(height - 1, 1))], 1) - 1
    valid = front & (xy.detach().abs() <= 1 + SLACK).all(1, keepdim=True)
    grid = select(xy, pattern(valid, xy))
    return Projection(grid.permute(0, 2, 3, 1), valid, p[:, 2:])


def photometric(warped: Tensor, image: Tensor, valid: Tensor | None = None, *, alpha: float = 0.85, window: int = 3, sigma: float | None = None) -> Tensor:
    """Photometric error: alpha * (1 - SSIM) / 2 + (1 - alpha) * |difference|.

    Args:
        warped: the second image sampled at the projection, ``B x C x H x W``, values in [0, 1], any floating dtype (half precision gives float32).
        image: the first image, same shape.
        valid: boolean, ``B x 1 x H x W``, as `project` returns it.
        alpha: share of the structural term, in [0, 1].
        window, sigma: of the `ssim`; Monodepth2's uniform 3 x 3 by default.

    Returns:
        A 0-dimensional tensor; 0 with zero gradient if no pixel is valid. The structural term is averaged over the windows whose pixels are all valid,
        the other
        over valid pixels: what lies elsewhere, in either image, reaches neither value nor gradient.

    Source: Godard et al. 2017, equation 2; Godard et al. 2019 (Monodepth2), equation 2.
    """
    where = "nanopsy.stable.photometric"
    arguments.number(where, "alpha", alpha, least=0, most=1)
    arguments.floating(where, warped=warped, image=image)
    arguments.alike(where, warped=warped, image=image)
    arguments.image(where, image=image)
    arguments.boolean(where, valid, image)
    dtype = torch.promote_types(wide(warped).dtype, wide(image).dtype)
    a, b = warped.to(dtype), image.to(dtype)
    if valid is not None:
        keep = pattern(valid, a)
        a, b = select(a, keep), select(b, keep)
    structure = ssim_loss(a, b, valid, window=window, sigma=sigma)
    return alpha * structure + (1 - alpha) * masked_mean((a - b).abs(), valid)


class Photometric(Loss):
    """`photometric` as a module."""

    function = staticmethod(photometric)
