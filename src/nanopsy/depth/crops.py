"""The evaluation crops of the field, by name; two of them exist in two versions that give different numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nanopsy.stable._arguments import ArgumentError, choice

__all__ = ["KB_HEIGHT", "KB_WIDTH", "Crop", "kb_crop", "kb_paste"]

KB_HEIGHT, KB_WIDTH = 352, 1216
"""Size in pixels of the KITTI benchmark crop: the bottom rows, the middle columns."""

_GARG = (0.40810811, 0.99189189, 0.03594771, 0.96405229)
_EIGEN_KITTI = (0.3324324, 0.91351351, 0.0359477, 0.96405229)
_EIGEN_NYU = (45, 471, 41, 601)


def kb_crop(x: Tensor) -> Tensor:
    """The KITTI benchmark crop of ``… x H x W``: the last 352 rows, the middle 1216 columns.

    Raises:
        ArgumentError: a map smaller than the crop.
    """
    top, left = _kb_corner("nanopsy.depth.kb_crop", *x.shape[-2:])
    return x[..., top : top + KB_HEIGHT, left : left + KB_WIDTH]


def kb_paste(cropped: Tensor, height: int, width: int, fill: float = 0.0) -> Tensor:
    """A prediction on the KITTI benchmark crop put back into its full frame of ``height x width`` pixels.

    Args:
        cropped: ``… x 352 x 1216``.
        height, width: of the full frame.
        fill: what the rest holds. The Garg crop of the full frame lies inside the KITTI benchmark crop on KITTI's frames, so that it is not evaluated.
    """
    where = "nanopsy.depth.kb_paste"
    if cropped.shape[-2:] != (KB_HEIGHT, KB_WIDTH):
        raise ArgumentError(
            f"a map of {cropped.shape[-2]} x {cropped.shape[-1]}", where=where, why="the crop's place is known only for its own size", do="pass … x 352 x 1216"
        )
    top, left = _kb_corner(where, height, width)
    full = cropped.new_full((*cropped.shape[:-2], height, width), fill)
    full[..., top : top + KB_HEIGHT, left : left + KB_WIDTH] = cropped
    return full


def _kb_corner(where: str, height: int, width: int) -> tuple[int, int]:
    if height < KB_HEIGHT or width < KB_WIDTH:
        raise ArgumentError(
            f"a frame of {height} x {width} pixels",
            where=where,
            why=f"the KITTI benchmark crop is {KB_HEIGHT} x {KB_WIDTH}",
            do="pass full KITTI frames (about 375 x 1242)",
        )
    return height - KB_HEIGHT, (width - KB_WIDTH) // 2


@dataclass(frozen=True, slots=True)
class Crop:
    """A rectangle in which pixels are evaluated.

    >>> Crop("garg").box(375, 1242)
    (153, 371, 44, 1197)
    >>> Crop("garg", frame="kb").box(375, 1242)
    (166, 372, 56, 1185)
    """

    name: str = "none"
    """``none``; ``garg`` (Garg et al. 2016); ``eigen-kitti`` (Eigen et al. 2014); ``eigen-nyu`` (rows 45:471, columns 41:601 of 480 x 640)."""
    frame: str = "full"
    """What the fractions of ``garg`` and ``eigen-kitti`` are taken of. ``full``: the full frame (BTS, NeWCRFs; they paste predictions back). ``kb``: the KITTI
    benchmark crop (AdaBins, MDE-Toolbox), 13 rows lower on a 375 x 1242 frame and so without most of the far pixels: the easier test."""

    def __post_init__(self) -> None:
        choice("nanopsy.depth.Crop", "name", self.name, ("none", "garg", "eigen-kitti", "eigen-nyu"))
        choice("nanopsy.depth.Crop", "frame", self.frame, ("full", "kb"))

    def box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """(top, bottom, left, right) in pixels of a map of ``height x width``, bottom and right exclusive.

        Raises:
            ArgumentError: a map on which the crop is not defined.
        """
        where = f"nanopsy.depth.Crop({self.name!r}, frame={self.frame!r})"
        if self.name == "none":
            return 0, height, 0, width
        if self.name == "eigen-nyu":
            if (height, width) != (480, 640):
                raise ArgumentError(
                    f"a map of {height} x {width} pixels",
                    where=where,
                    why="the crop removes the border of NYU Depth v2's 480 x 640 frames, in pixels",
                    do="resize the prediction to 480 x 640, and leave the ground truth as it is",
                )
            return _EIGEN_NYU
        top, bottom, left, right = _GARG if self.name == "garg" else _EIGEN_KITTI
        cropped = (height, width) == (KB_HEIGHT, KB_WIDTH)
        if self.frame == "full" and cropped:
            raise ArgumentError(
                f"a map of {height} x {width}, the KITTI benchmark crop",
                where=where,
                why="fractions of the full frame fall elsewhere",
                do="put the prediction back with kb_paste, or ask for frame='kb' and say so beside the numbers",
            )
        if self.frame == "full" or cropped:
            return int(top * height), int(bottom * height), int(left * width), int(right * width)
        row, column = _kb_corner(where, height, width)
        return row + int(top * KB_HEIGHT), row + int(bottom * KB_HEIGHT), column + int(left * KB_WIDTH), column + int(right * KB_WIDTH)

    def mask(self, height: int, width: int, device: torch.device | str | None = None) -> Tensor:
        """``H x W``, True inside."""
        top, bottom, left, right = self.box(height, width)
        inside = torch.zeros(height, width, dtype=torch.bool, device=device)
        inside[top:bottom, left:right] = True
        return inside
