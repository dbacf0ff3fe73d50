"""How well `nanopsy check` agrees with lines that people have labelled.

    python benchmarks/audit.py LABELS.jsonl CHECKOUTS [--min-confidence likely] [--misses]

LABELS holds one JSON object a line: repo, path, line, end_line, class ("safe" or a class of mistake), severity (nan, wrong, risk, none),
and optionally dead_code and framework. CHECKOUTS holds a folder for each repository, named owner+name, at the commit that was labelled.
Neither is part of this project. Recall counts live PyTorch lines of severity nan or wrong; precision counts labelled lines that are found,
where a line is right unless all its labels say safe. The last line is name=value pairs.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

from nanopsy.check.inspect import Request, inspect
from nanopsy.check.settings import Settings
from nanopsy.findings import Confidence, Finding

CODES: Mapping[str, set[str]] = {
    "mean_over_possibly_empty_mask": {"NAN302", "NAN301", "NAN303"},
    "sqrt_loss_at_zero": {"NAN101", "NAN102", "NAN103"},
    "norm_grad_at_zero": {"NAN101", "NAN102"},
    "exp_unbounded": {"NAN206"},
    "one_pass_variance_under_sqrt": {"NAN501", "NAN502", "NAN101"},
    "division_by_possibly_zero": {"NAN209", "NAN208", "NAN303", "NAN401", "NAN503"},
    "division_by_possibly_zero_sum": {"NAN303"},
    "log_of_scaled_sigmoid": {"NAN201"},
    "unbiased_var_small_n": {"NAN301"},
    "eps_too_small_for_half": {"NAN208", "NAN209"},
    "nan_to_num_gradient_trap": {"NAN402"},
    "where_grad_trap": {"NAN401", "NAN405"},
    "ill_conditioned_solve": {"NAN503", "NAN209"},
    "inf_depth_from_inverse_disparity": {"NAN209"},
}
"""The class of a label, and the causes that say the same; of any other class every cause will do."""

Line = tuple[str, str, int]


def labelled(file: Path) -> dict[Line, list[dict[str, object]]]:
    """Labels by (repository, path, line), PyTorch only."""
    lines: dict[Line, list[dict[str, object]]] = defaultdict(list)
    for text in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(text)
        if not entry.get("framework"):
            lines[entry["repo"], entry["path"], entry["line"]].append(entry)
    return dict(lines)


def found_in(folder: Path, confidence: Confidence) -> dict[str, list[Finding]]:
    """Findings of one checkout, by path."""
    result = inspect(Request([str(folder)], Settings(root=str(folder), min_confidence=confidence), respect_gitignore=False))
    files: dict[str, list[Finding]] = defaultdict(list)
    for finding in result.inspection.findings:
        if finding.location is not None:
            files[finding.location.file].append(finding)
    return files


def at(findings: Iterable[Finding], entries: list[dict[str, object]]) -> list[Finding]:
    first = int(str(entries[0]["line"]))
    last = max(int(str(entry.get("end_line", first))) for entry in entries)
    return [each for each in findings if each.location is not None and each.location.line <= last and (each.location.end_line or each.location.line) >= first]


def right(finding: Finding, entry: Mapping[str, object]) -> bool:
    return finding.code in CODES.get(str(entry["class"]), {finding.code})


def counts(entry: Mapping[str, object]) -> bool:
    """Whether a label asks for a finding: live, and NaN or a wrong number."""
    return entry["severity"] in ("nan", "wrong") and not entry.get("dead_code")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("labels", type=Path)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--min-confidence", default="likely", choices=[str(each) for each in Confidence])
    parser.add_argument("--misses", action="store_true", help="list what was missed and what safe lines were found")
    options = parser.parse_args()
    lines = labelled(options.labels)
    findings: dict[str, dict[str, list[Finding]]] = {}
    for repo in sorted({repo for repo, _, _ in lines}):
        folder = options.checkouts / repo.replace("/", "+")
        if folder.is_dir():
            findings[repo] = found_in(folder, Confidence(options.min_confidence))
        else:
            print(f"{repo}: no checkout at {folder}; its labels are left out")
    lines = {key: entries for key, entries in lines.items() if key[0] in findings}
    hits = {key: at(findings[key[0]].get(key[1], ()), entries) for key, entries in lines.items()}

    def text(key: Line) -> str:
        file = options.checkouts / key[0].replace("/", "+") / key[1]
        return file.read_text(encoding="utf-8", errors="replace").splitlines()[key[2] - 1].strip()

    wanted = [key for key, entries in lines.items() if any(counts(entry) for entry in entries)]
    got = [key for key in wanted if hits[key]]
    cause = [key for key in wanted if any(right(finding, entry) for entry in lines[key] if counts(entry) for finding in hits[key])]
    flagged = [key for key in lines if hits[key]]
    safe = [key for key in flagged if all(entry["class"] == "safe" for entry in lines[key])]
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    for key in wanted:
        for entry in lines[key]:
            if counts(entry):
                asked[str(entry["class"])] += 1
                answered[str(entry["class"])] += any(right(finding, entry) for finding in hits[key])
    print(f"{'class':34} found  labelled")
    for name, total in asked.most_common():
        print(f"{name:34} {answered[name]:5}  {total:5}")
    if options.misses:
        for title, keys in (("missed", [key for key in wanted if key not in cause]), ("safe, but found", safe)):
            print(f"\n{title}:")
            for key in keys:
                codes = ",".join(sorted({finding.code for finding in hits[key]})) or "-"
                print(f"  {key[0]} {key[1]}:{key[2]} {codes} {'/'.join(str(entry['class']) for entry in lines[key])}\n      {text(key)[:140]}")
    once = {text(key) for key in wanted}
    missed_once = {text(key) for key in wanted if key not in got}
    flagged_once, safe_once = {text(key) for key in flagged}, {text(key) for key in safe}
    unlabelled = sum(len(group) for files in findings.values() for group in files.values()) - sum(len(group) for group in hits.values())
    print(
        f"lines={len(lines)} vulnerable={len(wanted)} recall={len(got) / max(1, len(wanted)):.3f} right_cause={len(cause) / max(1, len(wanted)):.3f} "
        f"precision={1 - len(safe) / max(1, len(flagged)):.3f} recall_once={1 - len(missed_once) / max(1, len(once)):.3f} "
        f"precision_once={1 - len(safe_once) / max(1, len(flagged_once)):.3f} unlabelled={unlabelled}"
    )


if __name__ == "__main__":
    main()
