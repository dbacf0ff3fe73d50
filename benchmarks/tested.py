"""What ``pytest --nanopsy`` costs a test: a training of a small network, plain and under the trace.

    python benchmarks/tested.py [--rounds 5]

Two networks: one whose tensors are so small that only the number of operators counts, the worst case, and a convolutional one. Each round times
both variants, one after the other, on one thread. The last lines hold name=value pairs: medians in seconds, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from nanopsy.tested import examined


def tiny() -> None:
    net = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    train(net, (32, 16), 100)


def convolutional() -> None:
    net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 1, 3))
    train(net, (4, 3, 64, 64), 10)


def train(net: nn.Module, shape: tuple[int, ...], steps: int) -> None:
    optimizer = torch.optim.Adam(net.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(shape)).pow(2).mean().backward()
        optimizer.step()


def seconds(body: Callable[[], None]) -> float:
    began = time.perf_counter()
    body()
    return time.perf_counter() - began


def under_the_trace(body: Callable[[], None]) -> None:
    with examined(print):
        body()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds: int = parser.parse_args().rounds
    torch.set_num_threads(1)
    for body in (tiny, convolutional):
        body()
        plain, traced = [], []
        for _ in range(rounds):
            plain.append(seconds(body))
            traced.append(seconds(lambda: under_the_trace(body)))  # noqa: B023
        once, then = statistics.median(plain), statistics.median(traced)
        print(f"{body.__name__}_plain={once:.4f} {body.__name__}_traced={then:.4f} {body.__name__}_ratio={then / once:.2f}")
    empty = statistics.median(seconds(lambda: under_the_trace(lambda: None)) for _ in range(200))
    print(f"empty_traced={empty:.6f}")


if __name__ == "__main__":
    main()
