"""A soak: trainings with faults injected at random, each of which must be classified rightly, and whose healthy steps must stay as they were.

    python benchmarks/soak.py [--minutes 30] [--seed 0]

Each episode is a process: 80 steps of a small depth network under ``nanopsy run --on-incident skip`` with up to four faults at random steps,
and the same training without nanopsy and without faults, whose script leaves the steps with bad batches out by itself (a step whose fault was
transient is taken under nanopsy too, as it comes out when it is run again). The incidents must be exactly the injected
faults, each with its code; the weights at the end must be equal to the last bit. The last line holds name=value pairs.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

EXPECTED = {
    "nan-pixel": "NAN701",       # a bad batch
    "zero-label": "NAN702",      # a bad batch: depth 0 under the logarithm
    "one-pixel": "NAN301",       # a batch that the loss cannot bear
    "no-pixel": "NAN302",
    "gradient-flip": "NAN901",   # a bit of a gradient flips, once
    "loss-flip": "NAN901",       # a transient NaN
    "weight-flip": "NAN703",     # a bit of a weight flips, and stays: always the last fault
}  # fmt: skip
TRAIN = '''
import hashlib
import json
import sys

import torch

faults = {int(step): kind for step, kind in json.loads(sys.argv[1]).items()}
seed, reference = int(sys.argv[2]), sys.argv[3] == "reference"
torch.set_num_threads(1)
torch.manual_seed(seed)

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.GELU(), torch.nn.Dropout(0.1),
                                        torch.nn.Conv2d(8, 1, 3, padding=1))

    def forward(self, image):
        return 10 * torch.sigmoid(self.body(image)) + 0.1


def silog(prediction, depth, valid):
    g = torch.log(prediction[valid]) - torch.log(depth[valid])
    return torch.var(g) + 0.15 * g.mean() ** 2


class Scenes(torch.utils.data.Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, number):
        draw = torch.Generator().manual_seed(seed * 1000 + number)
        image, depth = torch.rand(3, 8, 8, generator=draw), torch.rand(1, 8, 8, generator=draw) * 9 + 0.5
        valid = torch.rand(1, 8, 8, generator=draw) > 0.5
        kind = faults.get(number)
        if kind == "nan-pixel":
            image[1, 2, 3] = float("nan")
        if kind == "zero-label":
            depth[0, 4, 4] = 0.0
            valid[0, 4, 4] = True
        if kind in ("one-pixel", "no-pixel"):
            valid = torch.zeros_like(valid)
            valid[0, 5, 5] = kind == "one-pixel"
        return image, depth, valid


def flip(tensor):
    """The highest bits of one element: a NaN, as a broken memory cell makes one."""
    bits = tensor.detach().view(torch.int32).reshape(-1)
    bits[3 % bits.numel()] |= 0x7FC00000


def once(step, kind):
    """True the first time only: a replay of the step, which puts names and lists back, does not see the fault again."""
    if faults.get(step) == kind and step not in once.seen:
        once.seen.add(step)
        return True
    return False


once.seen = set()


net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
for step, (image, depth, valid) in enumerate(torch.utils.data.DataLoader(Scenes(), batch_size=1)):
    if once(step, "weight-flip"):
        if reference:
            break
        flip(net.body[0].weight)
    loss = silog(net(image), depth, valid)
    if not reference and once(step, "loss-flip"):
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    if not reference and once(step, "gradient-flip"):
        flip(net.body[4].weight.grad)
    if not reference or faults.get(step) in (None, "gradient-flip", "loss-flip"):
        optimizer.step()
    if faults.get(step + 1) == "weight-flip" or step == 79:
        print(hashlib.sha256(b"".join(value.detach().numpy().tobytes() for value in net.parameters())).hexdigest())
'''


def faults_of(draw: random.Random) -> dict[int, str]:
    """Up to four faults at steps of their own; one that stays comes last."""
    steps = sorted(draw.sample(range(2, 78), draw.randint(1, 4)))
    passing = [kind for kind in EXPECTED if kind != "weight-flip"]
    kinds = draw.sample(passing, len(steps))
    if kinds[-1].endswith("flip") or draw.random() < 0.3:
        kinds[-1] = "weight-flip"
    if sum(kind in ("gradient-flip", "loss-flip") for kind in kinds) > 1:
        kinds = [kind for kind in kinds if kind != "loss-flip"]
        steps = steps[: len(kinds)]
    return dict(zip(steps, kinds, strict=True))


def episode(folder: Path, faults: dict[int, str], seed: int) -> list[str]:
    """What went wrong in one episode; nothing, if all is well."""
    words = [json.dumps(faults), str(seed)]
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    watched = subprocess.run(
        [sys.executable, "-m", "nanopsy", "run", "--rerun", "never", "--on-incident", "skip", "--no-capsule", "--json", "report.json",
         "train.py", *words, "watched"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    plain = subprocess.run([sys.executable, "train.py", *words, "reference"], cwd=folder, capture_output=True, text=True, check=False)
    wrong = []
    found = (
        {it["step"]: it["findings"][0]["code"] if it["findings"] else "none" for it in json.loads(report.read_text())["incidents"]} if report.exists() else {}
    )
    for step, kind in sorted(faults.items()):
        said = found.pop(step, "nothing")
        if said != EXPECTED[kind]:
            wrong.append(f"{kind} at step {step} was called {said}, not {EXPECTED[kind]}")
    wrong += [f"an incident at step {step} that nobody injected: {code}" for step, code in found.items()]
    if plain.stdout.split()[:1] != watched.stdout.split()[:1] or not plain.stdout.split():
        wrong.append(f"the weights differ: {plain.stdout.split()[:1]} and {watched.stdout.split()[:1]} {watched.stderr[-300:] if not watched.stdout else ''}")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    until, draw = time.monotonic() + options.minutes * 60, random.Random(options.seed)
    injected: Counter[str] = Counter()
    failures, episodes = 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        while time.monotonic() < until:
            faults, seed = faults_of(draw), draw.randrange(10_000)
            episodes += 1
            injected.update(faults.values())
            for sentence in episode(folder, faults, seed):
                failures += 1
                print(f"episode {episodes}, seed {seed}, {faults}: {sentence}", flush=True)
    print(", ".join(f"{kind} {count}" for kind, count in sorted(injected.items())))
    print(f"episodes={episodes} faults={injected.total()} failures={failures}")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
