"""NYU Depth v2: the synchronised frames as BTS lists them, and the 1,449 labelled frames in one HDF5 file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from nanopsy.depth.encodings import MILLIMETRES, DataError, read_image, read_lines, read_png16
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame

_LINE = "'IMAGE DEPTH FOCAL' on each line"


class NyuSync(DepthDataset):
    """Pairs of a split file in the manner of BTS: ``/kitchen_0028b/rgb_00045.jpg /kitchen_0028b/sync_depth_00045.png 518.8579``.

    Args:
        root: the folder of the scenes.
        split: the split file.
        depth_root: where the depth lies; None: the same as ``root``.

    Depth: 16-bit PNG in millimetres, 0 = none, cap 10 m. A white border surrounds the pictures; evaluation takes Eigen's crop.
    Source: Silberman et al. 2012.
    """

    title = "NYU Depth v2"

    def __init__(self, root: str | os.PathLike[str], split: str | os.PathLike[str], depth_root: str | os.PathLike[str] | None = None) -> None:
        self.root, self.depth_root = Path(root), Path(depth_root if depth_root is not None else root)
        self.protocol = Protocol.nyu()
        self.pairs: list[tuple[str, str]] = []
        for number, line in enumerate(read_lines(split, f"a split file, {_LINE}"), 1):
            words = line.split()
            if len(words) < 2:
                raise DataError(f"line {number} is {line!r}", where=str(split), why=f"expected: {_LINE}", do="use a split file in the manner of BTS")
            self.pairs.append((words[0].lstrip("/"), words[1].lstrip("/")))

    def __len__(self) -> int:
        return len(self.pairs)

    def load(self, index: int) -> RawFrame:
        picture, depth = self.pairs[index]
        return RawFrame(read_image(self.root / picture), read_png16(self.depth_root / depth, MILLIMETRES), picture)


def _numbers(file: Path, subset: str) -> list[int]:
    """The frame numbers of a split, from 1."""
    if file.suffix != ".mat":
        return [int(line) for line in read_lines(file, "frame numbers from 1, one on each line")]
    from scipy.io import loadmat

    try:
        return [int(number) for number in loadmat(file)[f"{subset}Ndxs"].ravel()]
    except (OSError, KeyError, NotImplementedError, TypeError) as error:
        raise DataError(
            f"{file.name} holds no {subset}Ndxs: {error}", where=str(file), why="expected: trainNdxs and testNdxs", do="fetch splits.mat again"
        ) from None


class NyuLabelled(DepthDataset):
    """``nyu_depth_v2_labeled.mat``: 1,449 dense frames.

    Args:
        root: the .mat file itself (MATLAB 7.3, that is HDF5).
        split: the official ``splits.mat``, or a text file of 1-based frame numbers; None: all frames.
        subset: ``test`` (654 frames) or ``train`` (795): which list of ``splits.mat``.
        raw: take ``rawDepths`` (with holes) instead of the in-painted ``depths``.

    In the file the axes are reversed: ``images`` N x 3 x W x H, ``depths`` N x W x H in metres.
    """

    title = "NYU Depth v2 (labelled)"

    def __init__(self, root: str | os.PathLike[str], split: str | os.PathLike[str] | None = None, subset: str = "test", *, raw: bool = False) -> None:
        import h5py

        self.file, self.key = Path(root), "rawDepths" if raw else "depths"
        self.protocol = Protocol.nyu()
        try:
            with h5py.File(self.file, "r") as store:
                missing = [key for key in ("images", self.key) if key not in store]
                if missing:
                    raise DataError(
                        f"{self.file.name} holds no {missing[0]!r}",
                        where=str(self.file),
                        why="expected: images and depths",
                        do="fetch the labelled dataset again",
                    )
                count = len(store["images"])
        except OSError as error:
            raise DataError(
                f"{self.file.name} cannot be read: {error}",
                where=str(self.file),
                why="expected: a MATLAB 7.3 (HDF5) file",
                do="fetch nyu_depth_v2_labeled.mat again",
            ) from None
        self.numbers = list(range(count))
        if split is not None:
            try:
                self.numbers = [number - 1 for number in _numbers(Path(split), subset)]
            except ValueError as error:
                raise DataError(f"a line is no number: {error}", where=str(split), why="expected: frame numbers from 1", do="check the file") from None
            if not self.numbers or min(self.numbers) < 0 or max(self.numbers) >= count:
                raise DataError(f"frame numbers outside 1 to {count}", where=str(split), why="expected: frame numbers from 1", do="check the file")

    def __len__(self) -> int:
        return len(self.numbers)

    def load(self, index: int) -> RawFrame:
        import h5py

        number = self.numbers[index]
        with h5py.File(self.file, "r") as store:  # opened for each frame: handles do not survive a fork
            image: np.ndarray[Any, Any] = np.asarray(store["images"][number]).transpose(2, 1, 0)
            depth = np.asarray(store[self.key][number]).T.astype(np.float32)
        return RawFrame(np.ascontiguousarray(image), np.ascontiguousarray(depth), f"labelled {number + 1}")
