"""The error of every stable function in ulp, as the table of docs/accuracy.md.

    python benchmarks/accuracy.py [--seeds 20]

Goes through the subjects of the test bench (tests/subjects.py): random ordinary inputs of each format, against an independent reference in float64 on the
same inputs. Values in ulp of the format of the result (losses of half-precision inputs are float32), gradients in ulp of the format of the input. The last line
holds name=value pairs: the largest error of a value and of a gradient.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch

from accuracy import FORMATS, errors
from subjects import SUBJECTS


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    names = [str(dtype).removeprefix("torch.") for dtype in FORMATS]
    print("| function | " + " | ".join(f"{name} value" for name in names) + " | " + " | ".join(f"{name} gradient" for name in names) + " | measured in |")
    print("|---|" + "--:|" * 2 * len(names) + "---|")
    worst: dict[str, tuple[list[float], list[float], str]] = {}
    for subject in SUBJECTS:
        values, gradients, unit = worst.setdefault(subject.name, ([0.0] * 3, [0.0] * 3, ""))
        for i, dtype in enumerate(FORMATS):
            for seed in range(seeds):
                value, gradient = errors(subject, dtype, seed, size=10)
                values[i] = max(values[i], value)
                gradients[i] = float("nan") if subject.ties and dtype != torch.float32 else max(gradients[i], gradient)
        units = ([f"ulp of values, of {subject.floor:g} below it"] if subject.floor else []) + (
            [] if subject.elementwise else ["gradient: ulp of its largest element"]
        )
        worst[subject.name] = (values, gradients, "; ".join(units) or unit)
    for name, (values, gradients, unit) in worst.items():
        cells = [f"{x:.1f}" for x in values] + ["ties" if math.isnan(x) else f"{x:.1f}" for x in gradients]
        print(f"| `{name}` | " + " | ".join(cells) + f" | {unit} |")
    print(f"value_ulp={max(max(v) for v, _, _ in worst.values()):.1f} gradient_ulp={max(x for _, g, _ in worst.values() for x in g if not math.isnan(x)):.1f}")


if __name__ == "__main__":
    main()
