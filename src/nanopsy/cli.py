"""The command line: verbs, options, and errors as sentences. Each verb imports what it needs, inside."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from nanopsy import __version__
from nanopsy.errors import EXIT_CANNOT, EXIT_USAGE, NanopsyError

CHECK = "find the mistakes in source code, before anything runs"


REPLAY = "run a captured failing step again, alone or in an edited script"
REPORT = "show a captured failing step"
LAB = "the paper reproduced: demonstrations and training experiments"


def _parser(*, verb: str = "") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nanopsy",
        description="Name the line, the class of mistake and a verified fix of a PyTorch training run that went NaN.",
    )
    parser.add_argument("--version", action="version", version=f"nanopsy {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    run = verbs.add_parser(
        "run",
        help="run a training script under the watch",
        description="Run an unmodified training script; at the first non-finite loss or gradient, rewind the step, diagnose it and try a fix.",
        usage="nanopsy run [options] (SCRIPT | -m MODULE) [arguments of the script …]",
    )
    run.add_argument("--json", metavar="FILE", help="write the findings as JSON")
    run.add_argument("--on-incident", choices=("stop", "skip", "continue"), default="stop",
                     help="stop with status 3 (default), skip the bad step and go on, or let it happen")  # fmt: skip
    run.add_argument("--rerun", choices=("auto", "never", "always"), default="auto",
                     help="when the step cannot be rewound, run the script again from the start, traced at that step")  # fmt: skip
    run.add_argument("--no-verify", action="store_true", help="do not try the proposed edits on the failing step")
    run.add_argument("--mute", action="store_true", help="silence what the loop body prints while it is replayed")
    run.add_argument("--capsule", metavar="FILE|DIR",
                     help="where the failing step is kept: a file that ends in .nanopsy, or a folder (default: .nanopsy/, which git ignores)")  # fmt: skip
    run.add_argument("--no-capsule", action="store_true", help="do not keep the failing step")
    run.add_argument("--capture", choices=("slice", "full"), default="slice",
                     help="what the capsule holds: the failing chain of operators (default), or also weights, optimizer, batch and random states")  # fmt: skip
    run.add_argument("--no-data", action="store_true", help="leave every value out of the capsule: ranges only, and a repro.py that draws from them")
    run.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m does")
    run.add_argument("--armed", type=int, metavar="STEP", help=argparse.SUPPRESS)
    run.add_argument("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)

    check = verbs.add_parser(
        "check", help=CHECK, description="Find numerical mistakes in PyTorch source code before anything runs; needs no torch, runs nothing."
    )
    lab = verbs.add_parser("lab", help=LAB, description="Demonstrate the three vulnerabilities of arXiv 2311.03938, train depth networks, run its experiments.")
    if verb == "check":
        from nanopsy.check.command import add_arguments

        add_arguments(check)
    elif verb == "lab":
        from nanopsy.lab.command import add_arguments as add_lab_arguments

        add_lab_arguments(lab)

    replay = verbs.add_parser("replay", help=REPLAY, usage="nanopsy replay [options] CAPSULE [-- (SCRIPT | -m MODULE) [arguments of the script …]]",
                              description="Run a capsule's failing chain again, or put its full state in the place of a script's first step. "
                                          "Status 0: finite now; 3: still bad; 125: cannot be replayed.")  # fmt: skip
    replay.add_argument("capsule", metavar="CAPSULE", help="a file that nanopsy run wrote")
    report = verbs.add_parser("report", help=REPORT, description="Show a capsule as text, JSON, HTML, SARIF or GitHub annotations; needs no torch.")
    if verb == "report":
        from nanopsy.report.command import add_arguments as add_report_arguments

        add_report_arguments(report)

    explain = verbs.add_parser("explain", help="the page of one cause", description="Print what nanopsy knows about a cause; needs no torch.")
    explain.add_argument("name", nargs="?", help="a code (NAN301) or slug (bessel-of-one)")
    explain.add_argument("--all", action="store_true", help="every cause, one line each")
    explain.add_argument("--markdown", action="store_true", help="plain Markdown instead of terminal formatting")
    return parser


_RUN_WITH_VALUE = ("--json", "--on-incident", "--rerun", "--armed", "--capsule", "--capture")


def _split_run(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Options of ours, then the script's own command line, which is never looked into."""
    ours: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest[0]
        if word == "-m":
            ours += rest[:2]
            return ours, rest[2:]
        if word == "--":
            return ours, rest[1:]
        if not word.startswith("-"):
            return ours, rest
        ours.append(rest.pop(0))
        if word in _RUN_WITH_VALUE and rest:
            ours.append(rest.pop(0))
    return ours, rest


def _run(options: argparse.Namespace, command: list[str]) -> int:
    if options.module is None and not command:
        raise NanopsyError("no script was given", do="nanopsy run train.py [its arguments …], or nanopsy run -m package.module")
    if options.module == "nanopsy":
        return main(command)
    try:
        from nanopsy.capture.collect import CaptureOptions
        from nanopsy.run import RunOptions, run
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise _without_torch("nanopsy run watches a PyTorch training") from None
    if options.no_data and options.capture == "full":
        raise NanopsyError("--no-data and --capture full ask for opposite things", why="the full state is made of values", do="drop one of them")
    if options.no_capsule and options.capsule:
        raise NanopsyError("--capsule and --no-capsule ask for opposite things", do="drop one of them")
    capsule = None if options.no_capsule else CaptureOptions(options.capsule, full=options.capture == "full", data=not options.no_data)
    chosen = RunOptions(
        json=options.json, on_incident=options.on_incident, rerun=options.rerun, verify=not options.no_verify, mute=options.mute, armed=options.armed,
        capsule=capsule,
    )  # fmt: skip
    return run(options.module, command, chosen)


def _replay(words: Sequence[str]) -> int:
    """``nanopsy replay CAPSULE [-- SCRIPT …]``; every failure of our own is 125, so that ``git bisect run`` skips the commit."""
    at = words.index("--") if "--" in words else len(words)
    command = list(words[at + 1 :])
    options = _parser().parse_args(["replay", *words[:at]])
    module = None
    if command[:1] == ["-m"]:
        module, command = (command[1] if len(command) > 1 else ""), command[2:]
    try:
        from nanopsy.capture.again import replay

        return replay(options.capsule, module, command)
    except NanopsyError as error:
        print(error.render(), file=sys.stderr)
        return EXIT_CANNOT
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        print(_without_torch("nanopsy replay runs PyTorch operators").render(), file=sys.stderr)
        return EXIT_CANNOT


def _without_torch(why: str) -> NanopsyError:
    return NanopsyError("PyTorch is not installed in this environment", where=sys.prefix, why=why, do='install it beside nanopsy: pip install "nanopsy[torch]"')


def _explain(options: argparse.Namespace) -> int:
    from nanopsy.causes import find, load

    if options.all:
        for each in load().values():
            print(f"{each.code}  {each.slug:<28}  {each.title()}")
        return 0
    if not options.name:
        raise NanopsyError("no cause was named", do="nanopsy explain NAN301, or nanopsy explain --all")
    cause = find(options.name)
    if cause is None:
        import difflib

        names = [name for known in load().values() for name in (known.code, known.slug)]
        close = difflib.get_close_matches(options.name, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise NanopsyError(f"there is no cause named {options.name!r}", do=f"{hint}nanopsy explain --all lists them")
    page = cause.page()
    if options.markdown or not sys.stdout.isatty():
        print(page)
        return 0
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(page))
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if words[:1] == ["run"]:
            ours, command = _split_run(words[1:])
            return _run(_parser().parse_args(["run", *ours]), command)
        if words[:1] == ["check"]:
            from nanopsy.check.command import run as check

            return check(_parser(verb="check").parse_args(words))
        if words[:1] == ["replay"]:
            return _replay(words[1:])
        if words[:1] == ["report"]:
            from nanopsy.report.command import run as report

            return report(_parser(verb="report").parse_args(words))
        if words[:1] == ["lab"]:
            from nanopsy.lab.command import run as lab

            return lab(_parser(verb="lab").parse_args(words))
        options = _parser().parse_args(words)
        return _explain(options)
    except KeyboardInterrupt:
        if words[:1] not in (["check"], ["lab"]):
            raise
        if words[:1] == ["lab"]:
            print(
                "nanopsy: interrupted; finished cells and checkpoints are kept, the same command (lab train: with --resume) goes on from there", file=sys.stderr
            )
        return 130
    except BrokenPipeError:
        sys.stderr.close()
        return EXIT_USAGE
    except NanopsyError as error:
        print(error.render(), file=sys.stderr)
        return EXIT_USAGE
