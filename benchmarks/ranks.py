"""What agreeing on a flag each step costs several ranks: ``python benchmarks/ranks.py [WORLD]``.

Each rank trains a convolutional network under DistributedDataParallel on gloo, one thread, with and without the watch, in turn within one
process; the flag alone is timed too. Medians over steps; the last line is for machines.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time

STEPS = 30
ROUNDS = 5


def rank() -> None:
    import torch
    import torch.distributed as dist

    from nanopsy import registry
    from nanopsy.joint import JointExaminer
    from nanopsy.replay import Policy
    from nanopsy.rewind import Loops
    from nanopsy.snapshot import State

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    registry.install()
    net = torch.nn.Sequential(*(layer for _ in range(6) for layer in (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.BatchNorm2d(16), torch.nn.ReLU())))
    net = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    x = torch.rand(4, 16, 48, 48)

    def steps() -> list[float]:
        times = []
        for _ in range(STEPS):
            began = time.perf_counter()
            optimizer.zero_grad()
            net(x).pow(2).mean().backward()
            optimizer.step()
            times.append(time.perf_counter() - began)
        return times

    examiner = JointExaminer(Loops(State(registry.REGISTRY)), registry.REGISTRY, Policy())
    plain: list[float] = []
    watched: list[float] = []
    flags: list[float] = []
    steps()
    for _ in range(ROUNDS):
        plain += steps()
        examiner.watch.install()
        watched += steps()
        examiner.watch.remove()
        for _ in range(STEPS):
            dist.barrier()
            began = time.perf_counter()
            examiner.ranks.agree(0)
            flags.append(time.perf_counter() - began)
    if dist.get_rank() == 0:
        before, after, flag = (statistics.median(times) * 1e3 for times in (plain, watched, flags))
        print(f"step {before:.2f} ms, watched {after:.2f} ms, the flag alone {flag:.3f} ms, {dist.get_world_size()} ranks")
        print(f"world={dist.get_world_size()} step_ms={before:.2f} watched_ms={after:.2f} ratio={after / before:.3f} flag_ms={flag:.3f}")
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    world = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen([sys.executable, __file__], env={**environment, "RANK": str(number)}) for number in range(world)]
    sys.exit(max(process.wait() for process in running))


if __name__ == "__main__":
    rank() if "RANK" in os.environ else main()
