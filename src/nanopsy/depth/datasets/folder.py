"""A plain folder of pictures and depth maps."""

from __future__ import annotations

import os
from pathlib import Path

from nanopsy.depth.encodings import DataError, Encoding, read_depth, read_image
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame
from nanopsy.stable._arguments import number

_PICTURES = (".png", ".jpg", ".jpeg", ".ppm", ".bmp")
_DEPTHS = (".png", ".pgm", ".pfm", ".npy")


class Folder(DepthDataset):
    """Pairs with one stem: ``root/image/0001.jpg`` and ``root/depth/0001.png``.

    Args:
        root: the folder.
        images, depths: the two folders in it.
        scale: units per metre of integer depths (256, 1000, 5000 …).
        invalid: raw values that mean "not measured", comma-separated; 0 always does.
        rotated, swapped: see `Encoding`.
        max_depth: the depth cap in metres.

    Raises:
        DataError: no pairs, or a picture without depth.
    """

    title = "folder"

    def __init__(
        self,
        root: str | os.PathLike[str],
        images: str = "image",
        depths: str = "depth",
        scale: float = 1000.0,
        invalid: str = "0",
        max_depth: float = 80.0,
        *,
        rotated: bool = False,
        swapped: bool = False,
    ) -> None:
        number("nanopsy.depth.datasets.Folder", "scale", scale, above=0)
        self.root = Path(root)
        self.encoding = Encoding(scale, tuple({0, *(int(word) for word in str(invalid).split(",") if word.strip())}), rotated=rotated, swapped=swapped)
        self.protocol = Protocol(max_depth=max_depth)
        pictures = sorted(path for path in (self.root / images).glob("*") if path.suffix.lower() in _PICTURES)
        found = {path.stem: path for path in sorted((self.root / depths).glob("*")) if path.suffix.lower() in _DEPTHS}
        if not pictures:
            raise DataError(
                "no pictures were found", where=str(self.root / images), why=f"expected: files ending in {', '.join(_PICTURES)}", do="check root and images="
            )
        alone = [path.name for path in pictures if path.stem not in found]
        if alone:
            raise DataError(
                f"{len(alone):,} of {len(pictures):,} pictures have no depth map, the first is {alone[0]}",
                where=str(self.root / depths),
                why=f"expected: a file with the same stem, ending in {', '.join(_DEPTHS)}",
                do="add it, or take the picture away",
            )
        self.pairs = [(path, found[path.stem]) for path in pictures]

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self, index: int) -> RawFrame:
        picture, depth = self.pairs[index]
        return RawFrame(read_image(picture), read_depth(depth, self.encoding), picture.stem)
