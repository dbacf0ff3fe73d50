"""What the alternatives say about the same failures: a table over a folder of cases.

    python benchmarks/peers.py CASES [--jobs 2]

CASES holds one folder per case: ``case.py`` (a script that goes NaN), ``fixed.py`` (its cure) and ``truth.json`` with the true
line. Each script runs with its own check removed, under torch.autograd.set_detect_anomaly, under a dispatch mode that stops at
the first operator turning finite inputs into NaN or inf, and under nanopsy. A line counts as right when it is the true line or
one that the truth calls acceptable; an alarm on ``fixed.py`` is false. The last line holds name=value pairs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ANOMALY = """
import re, runpy, sys, traceback, warnings
import torch
said = []
warnings.showwarning = lambda message, *rest: said.append(str(message))
torch.autograd.set_detect_anomaly(True)
try:
    runpy.run_path(sys.argv[1], run_name="__main__")
except RuntimeError as error:
    if "returned nan values" in str(error):
        frames = re.findall(r'File "([^"]+)", line (\\d+)', said[-1] if said else "")
        mine = [frame for frame in frames if "site-packages" not in frame[0] and "runpy" not in frame[0] and "<" not in frame[0]]
        print("SAID", *(mine[-1] if mine else ("?", "0")))
except SystemExit:
    pass
"""
DISPATCH = """
import runpy, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Found(BaseException):
    pass

class FirstBad(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        def bad(value):
            return isinstance(value, torch.Tensor) and value.is_floating_point() and not bool(torch.isfinite(value).all())
        if "empty" not in str(func) and any(map(bad, out if isinstance(out, (tuple, list)) else (out,))) and not any(map(bad, args)):
            frame, place = sys._getframe(1), ("?", "0")
            while frame is not None:
                file = frame.f_code.co_filename
                if "site-packages" not in file and "lib/python" not in file and "<" not in file:
                    place = (file, str(frame.f_lineno))
                    break
                frame = frame.f_back
            print("SAID", *place, flush=True)
            raise Found
        return out

sys.path.insert(0, ".")
try:
    with FirstBad():
        runpy.run_path(sys.argv[1], run_name="__main__")
except (Found, SystemExit):
    pass
"""


def without_check(source: str) -> str:
    source = re.sub(r"^(\s*)check\(step.*\)$", r"\1pass", source, flags=re.MULTILINE)
    source = re.sub(r"^(\s*)watch\(step.*\)$", r"\1pass", source, flags=re.MULTILINE)
    return re.sub(r"^(\s*)loss = train_step\(step\)$", r"\1loss = train_step(step); continue", source, flags=re.MULTILINE)


def said(tool: str, folder: Path, script: str) -> tuple[str, int] | None:
    """The file and line that a tool names; None when it raises no alarm."""
    if tool == "nanopsy":
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "nanopsy", "run", "--json", str(report), script], cwd=folder, capture_output=True, check=False, timeout=300)
        incidents = json.loads(report.read_text())["incidents"]
        place = incidents[0]["findings"][0]["location"] if incidents else None
        return (os.path.basename(place["file"]), place["line"]) if place else None
    code = ANOMALY if tool == "set_detect_anomaly" else DISPATCH
    done = subprocess.run([sys.executable, "-c", code, script], cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    match = re.search(r"^SAID (\S+) (\d+)$", done.stdout, re.MULTILINE)
    return (os.path.basename(match.group(1)), int(match.group(2))) if match else None


TOOLS = ("set_detect_anomaly", "dispatch mode", "nanopsy")


def one(folder: Path) -> dict[str, tuple[str, bool]]:
    """Per tool: right, wrong line, or silent on the case; and whether it raised a false alarm on the cure."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name) / folder.name
        shutil.copytree(folder, work, copy_function=shutil.copyfile)
        work.chmod(0o755)
        truth = json.loads((work / "truth.json").read_text())
        lines = {(truth["file"], truth["line"])} | {(place["file"], place["line"]) for place in truth.get("also_acceptable", [])}
        (work / "case.py").write_text(without_check((work / "case.py").read_text()))
        result = {}
        for tool in TOOLS:
            place = said(tool, work, "case.py")
            verdict = "silent" if place is None else "right" if place in lines else "wrong line"
            result[tool] = (verdict, said(tool, work, "fixed.py") is not None)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    folders = sorted(folder for folder in options.cases.iterdir() if (folder / "truth.json").exists())
    if not folders:
        parser.error(f"no case with a truth.json in {options.cases}")
    with ThreadPoolExecutor(options.jobs) as pool:
        results = dict(zip((folder.name for folder in folders), pool.map(one, folders), strict=True))
    print("| case | " + " | ".join(TOOLS) + " |\n|---|" + "---|" * len(TOOLS))
    for name, result in results.items():
        cells = [verdict + (", false alarm on the cure" if false else "") for verdict, false in (result[tool] for tool in TOOLS)]
        print(f"| {name} | " + " | ".join(cells) + " |")
    pairs = []
    for tool in TOOLS:
        verdicts = [result[tool][0] for result in results.values()]
        alarms = sum(result[tool][1] for result in results.values())
        key = tool.replace(" ", "_")
        pairs += [f"{key}_right={verdicts.count('right')}", f"{key}_wrong={verdicts.count('wrong line')}", f"{key}_silent={verdicts.count('silent')}",
                  f"{key}_false_alarms={alarms}"]  # fmt: skip
    print(f"\ncases={len(results)} " + " ".join(pairs))


if __name__ == "__main__":
    main()
