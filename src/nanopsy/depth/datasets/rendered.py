"""The built-in dataset: procedural scenes, rendered when asked for."""

from __future__ import annotations

from nanopsy.depth.crops import Crop
from nanopsy.depth.metrics import Protocol
from nanopsy.depth.samples import DepthDataset, RawFrame
from nanopsy.depth.scenes import SceneOptions, Sensor, render, sense
from nanopsy.stable._arguments import whole


class Rendered(DepthDataset):
    """``count`` frames of `nanopsy.depth.scenes`, as a sensor sees them.

    Args:
        count: number of frames.
        first: seed of the first; other frames follow. Training and evaluation take disjoint ranges.
        kind: ``street`` (cap 80 m, lidar) or ``room`` (cap 10 m, kinect).
        height, width: in pixels.
        sensor: ``lidar``, ``kinect`` or ``dense``; None takes the kind's own.
        lines, keep: of a lidar: scan lines, and the share of pixels on them that return.
    """

    title = "procedural scenes"

    def __init__(
        self,
        count: int = 400,
        first: int = 0,
        kind: str = "street",
        height: int = 192,
        width: int = 320,
        sensor: str | None = None,
        lines: int = 24,
        keep: float = 0.5,
    ) -> None:
        whole("nanopsy.depth.datasets.Rendered", "count", count, least=1)
        whole("nanopsy.depth.datasets.Rendered", "first", first, least=0)
        self.options = SceneOptions(kind, height, width)
        self.sensor = Sensor(sensor or ("lidar" if kind == "street" else "kinect"), lines=lines, keep=keep)
        self.count, self.first = count, first
        self.protocol = Protocol(max_depth=80.0 if kind == "street" else 10.0, crop=Crop())

    def __len__(self) -> int:
        return self.count

    def load(self, index: int) -> RawFrame:
        seed = self.first + index
        frame = render(seed, self.options)
        return RawFrame(frame.image, sense(frame.depth, self.sensor, seed), f"{self.options.kind} {seed}")
