"""What `nanopsy check` costs on a tree, beside other linters.

    python benchmarks/check.py TREE [--torchfix] [--repeats 3]

Everything runs as a command of its own, so that start-up counts, and CPU seconds are those of all its processes. ruff runs with all rules
and without its cache. torchfix (if it is installed and asked for) takes minutes and is stopped after ten. The last line is name=value pairs.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def measured(command: list[str], limit: float = 3600.0) -> tuple[float, float, bool]:
    """CPU seconds and wall seconds of a command, and whether it ended by itself."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    try:
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=limit)
        ended = True
    except subprocess.TimeoutExpired:
        ended = False
    wall = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall, ended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tree", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--torchfix", action="store_true", help="measure torchfix too, for at most ten minutes")
    options = parser.parse_args()
    tree = str(options.tree)
    files = [file for file in options.tree.rglob("*.py") if file.is_file()]
    lines = sum(file.read_bytes().count(b"\n") for file in files)
    print(f"{len(files)} files, {lines} lines, {os.cpu_count()} processors, Python {sys.version.split()[0]}")
    nanopsy = [sys.executable, "-m", "nanopsy", "check", "--exit-zero", "--format", "concise"]
    ruff = shutil.which("ruff") or str(Path(sys.executable).parent / "ruff")
    plain, walls, rival, second = [], [], [], []
    for _ in range(options.repeats):
        cpu, wall, _ = measured([*nanopsy, "--no-cache", tree])
        plain.append(cpu)
        walls.append(wall)
        rival.append(measured([ruff, "check", "--isolated", "--select", "ALL", "--no-cache", "--exit-zero", "--quiet", tree])[0])
    with tempfile.TemporaryDirectory() as folder:
        first = measured([*nanopsy, "--cache-dir", folder, tree])[1]
        second = [measured([*nanopsy, "--cache-dir", folder, tree])[1] for _ in range(options.repeats)]
        small = Path(folder) / "loss.py"
        small.write_text("import torch\n\n\ndef loss(pred, target, mask):\n    return torch.sqrt(((pred[mask] - target[mask]) ** 2).mean())\n")
        cold = [measured([*nanopsy, "--no-cache", str(small)])[1] for _ in range(7)]
    cpu, other = statistics.median(plain), statistics.median(rival)
    print(f"nanopsy check            {cpu:7.1f} CPU s {statistics.median(walls):7.1f} s   {lines / statistics.median(walls):9.0f} lines/s")
    print(f"  again, from its cache  {'':7}       {statistics.median(second):7.1f} s   (first run with a cache: {first:.1f} s)")
    print(f"  one file of five lines {'':7}       {statistics.median(cold):7.2f} s")
    print(f"ruff check --select ALL  {other:7.1f} CPU s")
    ratio = ""
    if options.torchfix:
        command = shutil.which("torchfix") or str(Path(sys.executable).parent / "torchfix")
        if Path(command).exists():
            seconds, _, ended = measured([command, "--select", "ALL", tree], limit=600)
            print(f"torchfix --select ALL    {seconds:7.1f} CPU s{'' if ended else ' (stopped after ten minutes)'}")
            ratio = f" ratio_torchfix={cpu / max(seconds, 1e-9):.3f}"
        else:
            print("torchfix is not installed")
    print(
        f"cpu_seconds={cpu:.1f} lines={lines} ratio_ruff={cpu / max(other, 1e-9):.2f} cold_start={statistics.median(cold):.3f} "
        f"cached_ratio={statistics.median(second) / max(first, 1e-9):.3f}{ratio}"
    )


if __name__ == "__main__":
    main()
