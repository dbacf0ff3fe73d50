"""A drawer: one file per dataset; `open_dataset` finds them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nanopsy.depth.datasets.argoverse import Argoverse1
from nanopsy.depth.datasets.ddad import DDAD
from nanopsy.depth.datasets.diode import Diode
from nanopsy.depth.datasets.drivingstereo import DrivingStereo
from nanopsy.depth.datasets.folder import Folder
from nanopsy.depth.datasets.kitti import KittiEigen, KittiVelodyne
from nanopsy.depth.datasets.middlebury import Middlebury
from nanopsy.depth.datasets.nyu import NyuLabelled, NyuSync
from nanopsy.depth.datasets.rendered import Rendered
from nanopsy.depth.datasets.tum import TumRgbd
from nanopsy.depth.samples import DepthDataset, pick

__all__ = [
    "DATASETS",
    "DDAD",
    "Argoverse1",
    "Diode",
    "DrivingStereo",
    "Folder",
    "KittiEigen",
    "KittiVelodyne",
    "Middlebury",
    "NyuLabelled",
    "NyuSync",
    "Rendered",
    "TumRgbd",
    "open_dataset",
]

DATASETS: dict[str, Callable[..., DepthDataset]] = {
    "scenes": Rendered,
    "kitti": KittiEigen,
    "kitti-velodyne": KittiVelodyne,
    "nyu": NyuSync,
    "nyu-labelled": NyuLabelled,
    "ddad": DDAD,
    "argoverse": Argoverse1,
    "drivingstereo": DrivingStereo,
    "tum": TumRgbd,
    "diode": Diode,
    "middlebury": Middlebury,
    "folder": Folder,
}
"""Every dataset by its name on the command line."""


def open_dataset(name: str, **options: Any) -> DepthDataset:
    """A dataset by name.

    Args:
        name: a key of `DATASETS`.
        options: of that dataset; all but ``scenes`` take ``root``, the folder it lies in.

    Raises:
        DataError: an unknown name or option, or files that are not there.

    >>> open_dataset("scenes", count=2).frame(0).depth.shape
    (192, 320)
    """
    make = DATASETS[pick(tuple(DATASETS), name, "nanopsy.depth.open_dataset")]
    import inspect

    known = tuple(inspect.signature(make).parameters)
    for option in options:
        pick(known, option, f"options of the dataset {name!r}")
    missing = [key for key, each in inspect.signature(make).parameters.items() if each.default is each.empty and key not in options]
    if missing:
        from nanopsy.depth.encodings import DataError

        raise DataError(f"the dataset {name!r} needs {', '.join(missing)}", why="it lies on your disk, not in this package", do=f"pass {missing[0]}=…")
    return make(**options)
