"""What watching costs: step times under nanopsy and its alternatives, interleaved in one process, as ratios of medians.

    python benchmarks/watch.py [--rounds 8] [--block 4] [--skip-peers]

The big net is a depth network with a ResNet-50 encoder at 2x3x192x320, the small one has about a million weights.
Blocks of plain and instrumented steps alternate, so that a slow minute of the machine hits all alike. The last line
holds name=value pairs: ratios of nanopsy to plain, of peak memory, and a whole autopsy in plain steps.
"""

from __future__ import annotations

import argparse
import builtins
import gc
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from nanopsy import registry
from nanopsy.examiner import Examiner
from nanopsy.instrument import NAME, compile_user
from nanopsy.replay import Policy
from nanopsy.rewind import Loops, Stopped
from nanopsy.snapshot import State


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * 4
        self.main = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs),
        )  # fmt: skip
        plain = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if plain else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.main(x) + self.skip(x))


class BigDepth(nn.Module):
    """ResNet-50 encoder (3, 4, 6, 3 bottlenecks) and a light decoder."""

    def __init__(self) -> None:
        super().__init__()
        stages: list[nn.Module] = [nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))]
        inputs = 64
        for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            layers = []
            for number in range(blocks):
                layers.append(Bottleneck(inputs, width, stride if number == 0 else 1))
                inputs = width * 4
            stages.append(nn.Sequential(*layers))
        self.encoder = nn.Sequential(*stages)
        self.decoder = nn.Sequential(nn.Conv2d(2048, 64, 1), nn.ReLU(), nn.Conv2d(64, 1, 3, padding=1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 80 * torch.sigmoid(F.interpolate(self.decoder(self.encoder(x)), x.shape[-2:], mode="bilinear"))


class SmallDepth(nn.Module):
    """About a million weights."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 48, 96, 160, 256)
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(widths):
            layers += [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Conv2d(256, 160, 3, padding=1), nn.ReLU(), nn.Conv2d(160, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 80 * torch.sigmoid(F.interpolate(self.net(x), x.shape[-2:], mode="bilinear"))


LOOP = """
def criterion(prediction, depth):
    mask = depth > 0
    g = torch.log(prediction[mask]) - torch.log(depth[mask])
    return 10 * torch.sqrt(torch.var(g) + 0.15 * g.mean() ** 2)

def train(net, optimizer, batches, times):
    for image, depth in batches:
        began = clock()
        loss = criterion(net(image), depth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        times.append(clock() - began)
"""
SIZES = {"big": (BigDepth, (2, 3, 192, 320)), "small": (SmallDepth, (2, 3, 96, 160))}


def setting(size: str) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[int], Iterator[Any]]]:
    torch.manual_seed(0)
    kind, shape = SIZES[size]
    net = kind()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5)
    image = torch.rand(shape)
    depth = (1 + 70 * torch.rand(shape[0], 1, *shape[2:])) * (torch.rand(shape[0], 1, *shape[2:]) < 0.05)
    return net, optimizer, lambda count: iter([(image, depth)] * count)


class Finite(TorchDispatchMode):
    """The alternative of looking at every operator's result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                bool(torch.isfinite(value).all())
        return out


@contextmanager
def anomaly(net: nn.Module) -> Iterator[None]:
    with torch.autograd.set_detect_anomaly(True):
        yield


@contextmanager
def dispatch(net: nn.Module) -> Iterator[None]:
    with Finite():
        yield


@contextmanager
def hooks(net: nn.Module) -> Iterator[None]:
    def look(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            bool(torch.isfinite(output).all())

    handles = [module.register_forward_hook(look) for module in net.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def debug_underflow_overflow(net: nn.Module) -> Iterator[None]:
    from transformers.debug_utils import DebugUnderflowOverflow

    before = {module: dict(module._forward_hooks) for module in net.modules()}
    DebugUnderflowOverflow(net)
    try:
        yield
    finally:
        for module, kept in before.items():
            module._forward_hooks.clear()
            module._forward_hooks.update(kept)


PEERS: dict[str, Callable[[nn.Module], Any]] = {
    "set_detect_anomaly": anomaly, "forward hooks + isfinite": hooks, "dispatch mode + isfinite": dispatch,
    "HF DebugUnderflowOverflow": debug_underflow_overflow,
}  # fmt: skip


class Nanopsy:
    """nanopsy's own machinery, switched on and off around blocks of steps."""

    def __init__(self) -> None:
        registry.install()
        self.loops = Loops(State(registry.REGISTRY))
        self.examiner = Examiner(self.loops, registry.REGISTRY, Policy())
        setattr(builtins, NAME, self.loops)
        self.loops.active = False

    @contextmanager
    def on(self, net: nn.Module) -> Iterator[None]:
        self.loops.active = True
        self.examiner.watch.install()
        try:
            yield
        finally:
            self.examiner.watch.remove()
            self.loops.active = False


def train_functions() -> tuple[Callable[..., None], Callable[..., None]]:
    """The loop as the user wrote it, and as nanopsy compiles it."""
    made = []
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "loop_of_the_benchmark.py")
    for code in (compile(LOOP, path, "exec"), compile_user(LOOP, path)):
        names: dict[str, Any] = {"torch": torch, "clock": time.perf_counter}
        exec(code, names)
        made.append(names["train"])
    return made[0], made[1]


def measure(size: str, rounds: int, block: int, *, peers: bool) -> dict[str, float]:
    """Median seconds per step of each variant: plain and nanopsy in turn, or plain and the peers."""
    ours = Nanopsy()
    plain, compiled = train_functions()
    net, optimizer, batches = setting(size)
    variants: dict[str, tuple[Callable[..., None], Callable[[nn.Module], Any] | None]] = {"plain": (plain, None)}
    variants |= {name: (plain, make) for name, make in PEERS.items()} if peers else {"nanopsy": (compiled, ours.on)}
    times: dict[str, list[float]] = {name: [] for name in variants}
    plain(net, optimizer, batches(2), [])
    for number in range(rounds):
        names = list(variants) if number % 2 == 0 else list(reversed(variants))
        for name in names:
            run, make = variants[name]
            gc.collect()
            taken: list[float] = []
            try:
                if make is None:
                    run(net, optimizer, batches(block), taken)
                else:
                    with make(net):
                        run(net, optimizer, batches(block), taken)
            except ImportError:
                continue
            times[name] += taken[1:] if block > 1 else taken
    return {name: statistics.median(values) for name, values in times.items() if values}


def autopsy_steps(plain_step: float) -> float:
    """A whole autopsy of the big net (rewinds, trace, verification), in plain steps."""
    ours = Nanopsy()
    _, compiled = train_functions()
    net, optimizer, batches = setting("big")
    one = torch.zeros(2, 1, 192, 320)
    one[0, 0, 5, 7] = 3.0
    image, depth = next(batches(1))
    ours.loops.active = True
    ours.examiner.watch.install()
    try:
        compiled(net, optimizer, iter([(image, depth)] * 3 + [(image, one)]), [])
    except Stopped:
        pass
    finally:
        ours.examiner.watch.remove()
    (incident,) = ours.examiner.diagnosis.incidents
    assert incident.findings[0].code == "NAN301", incident.findings[0]
    return ours.examiner.seconds / plain_step


def peak_memory(*, watched: bool) -> int:
    """Peak resident size of a process that trains the big net for a few steps."""
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(os.path.abspath(__file__))!r}); import watch, resource\n"
        "ours = watch.Nanopsy(); plain, compiled = watch.train_functions(); net, opt, batches = watch.setting('big')\n"
        + ("with ours.on(net): compiled(net, opt, batches(4), [])\n" if watched else "plain(net, opt, batches(4), [])\n")
        + "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--block", type=int, default=4)
    parser.add_argument("--skip-peers", action="store_true")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.rounds} rounds of {options.block} steps\n")
    result: dict[str, float] = {}
    print("| net | variant | median step, ms | ratio to plain |\n|---|---|---|---|")
    for size in SIZES:
        factor = 1 if size == "big" else 6
        medians = measure(size, options.rounds * 2, options.block * factor, peers=False)
        passes = [medians] if options.skip_peers else [medians, measure(size, max(options.rounds // 2, 2), options.block * factor, peers=True)]
        for taken in passes:
            for name, seconds in taken.items():
                print(f"| {size} | {name} | {seconds * 1e3:.1f} | {seconds / taken['plain']:.3f} |")
        result[f"watch_{size}"] = medians["nanopsy"] / medians["plain"]
        if size == "big":
            result["plain"] = medians["plain"]
    memory = [statistics.median(peak_memory(watched=watched) for _ in range(3)) for watched in (False, True)]
    steps = autopsy_steps(result["plain"])
    print(f"\nwatch_big={result['watch_big']:.3f} watch_small={result['watch_small']:.3f} memory_big={memory[1] / memory[0]:.3f} autopsy_steps={steps:.1f}")


if __name__ == "__main__":
    main()
