"""Launch the user's script or module under a watch, as faithfully as Python itself would.

``sys.argv``, ``sys.path[0]``, ``__file__`` and ``__main__`` are what they are without nanopsy; an uncaught
exception prints the user's own traceback; the exit status is the script's own unless an incident stopped it.
"""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import importlib.util
import json
import os
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import NoReturn

from nanopsy import registry
from nanopsy.capture.collect import CaptureOptions, check_destination
from nanopsy.capture.keeper import Keeper
from nanopsy.errors import EXIT_FINDINGS, NanopsyError
from nanopsy.examiner import MOST_AUTOPSIES, Examiner
from nanopsy.findings import Diagnosis, Outcome, made_earlier
from nanopsy.instrument import NAME, UserFinder, UserLoader, compile_user
from nanopsy.joint import JointExaminer
from nanopsy.refetch import FETCHES
from nanopsy.replay import Policy
from nanopsy.report.text import render
from nanopsy.rewind import Loops, Stopped
from nanopsy.snapshot import State

_BEGAN = time.time()
"""When this process began: a report that is younger comes from another rank of the same training."""
_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What the user asked of one run."""

    json: str | None = None
    on_incident: str = "stop"
    rerun: str = "auto"
    verify: bool = True
    mute: bool = False
    armed: int | None = None
    capsule: CaptureOptions | None = field(default_factory=CaptureOptions)
    """None: no capsule is written."""


def check_writable(path: str) -> None:
    """Refuse a report path before the training starts, not after the night."""
    target = Path(path)
    folder = target.resolve().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK) or target.is_dir():
        what = "it is a folder" if target.is_dir() else "its folder cannot be written to" if folder.is_dir() else "its folder does not exist"
        raise NanopsyError(f"cannot write the report {path}: {what}", where=str(folder), why="the findings would be lost at the end of the run",
                           do="give --json a path in a folder that exists and is writable")  # fmt: skip


def write_json(diagnosis: Diagnosis, path: str) -> None:
    """Write the report atomically: the whole file or none of it."""
    target = Path(path)
    text = json.dumps(diagnosis.to_dict(), indent=1, allow_nan=False, default=str)
    handle, temporary = tempfile.mkstemp(dir=target.resolve().parent, prefix=".nanopsy-")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise NanopsyError(f"cannot write the report {path}: {error.strerror}", do="choose another path for --json") from error


def _script(command: list[str]) -> tuple[CodeType, str, list[str], str]:
    """Code, ``__file__``, ``sys.argv`` and ``sys.path[0]`` of a script."""
    path = command[0]
    if os.path.isdir(path) and os.path.isfile(os.path.join(path, "__main__.py")):
        folder, path = path, os.path.join(path, "__main__.py")
        argv0 = folder
    else:
        folder, argv0 = os.path.dirname(os.path.realpath(path)), path
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise NanopsyError(
            f"cannot read the script {path}: {error.strerror}", where=os.getcwd(), do="check the path; options of nanopsy go before it"
        ) from None
    return _compile(source, path), path, [argv0, *command[1:]], folder


def _compile(source: bytes, path: str) -> CodeType:
    try:
        return compile_user(source, path)
    except (SyntaxError, ValueError) as error:
        if isinstance(error, SyntaxError):
            shown = "".join(traceback.format_exception_only(type(error), error)).rstrip()
            raise NanopsyError(f"the script does not compile\n{shown}", where=f"{path}:{error.lineno}", do="correct the syntax; nothing was run") from None
        raise NanopsyError(f"the script does not compile: {error}", where=path, do="correct the source; nothing was run") from None


def _module(name: str) -> tuple[CodeType, importlib.machinery.ModuleSpec]:
    """Code and spec of a module, found as ``python -m`` finds it."""
    try:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(name + ".__main__")
    except (ImportError, ValueError) as error:
        raise NanopsyError(f"cannot find the module {name}: {error}", where=os.getcwd(), do="run it from the folder that holds the package") from None
    if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
        raise NanopsyError(f"there is no module {name} with Python source", where=os.getcwd(), do="check the name and the folder you run from")
    return _compile(Path(spec.origin).read_bytes(), spec.origin), spec


def _prepare(module: str | None, command: list[str]) -> tuple[CodeType, ModuleType, list[str], str]:
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if module is not None:
        folder = os.getcwd()
        sys.path[0] = folder
        code, spec = _module(module)
        assert spec.origin is not None
        main.__spec__, main.__loader__, main.__package__ = spec, spec.loader, spec.parent
        main.__file__, argv = spec.origin, [spec.origin, *command]
        main.__dict__["__cached__"] = spec.cached
        return code, main, argv, folder
    code, path, argv, folder = _script(command)
    main.__file__, main.__spec__, main.__package__ = path, None, None
    main.__loader__ = UserLoader("__main__", path)
    main.__dict__["__cached__"] = None
    return code, main, argv, folder


def own_traceback(trace: TracebackType | None) -> TracebackType | None:
    """A traceback without nanopsy's own frames."""
    frames: list[TracebackType] = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            frames.append(trace)
        trace = trace.tb_next
    result: TracebackType | None = None
    for frame in reversed(frames):
        result = TracebackType(result, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return result


@dataclass(slots=True)
class Session:
    """One run of a script: its examiner, the status Python would have given (None when an incident stopped it), its seconds."""

    examiner: Examiner
    status: int | None
    seconds: float


def session(module: str | None, command: list[str], make: Callable[[Loops], Examiner]) -> Session:
    """Run a script or module to its end, with its loops instrumented, under the examiner that ``make`` gives."""
    if getattr(getattr(builtins, NAME, None), "active", False):
        raise NanopsyError("nanopsy watches this process already", where=" ".join(command[:1]), why="two watches would rewind each other's loops",
                           do="start nanopsy run once, from the outside")  # fmt: skip
    finder = UserFinder()
    sys.meta_path.insert(0, finder)
    code, main, argv, folder = _prepare(module, command)

    registry.install()
    loops = Loops(State(registry.REGISTRY))
    examiner = make(loops)
    setattr(builtins, NAME, loops)
    os.register_at_fork(after_in_child=loops.disable)
    sys.argv, sys.path[0] = argv, folder
    sys.modules["__main__"] = main
    examiner.watch.install()
    FETCHES.install()
    began = time.monotonic()
    status = _execute(code, main, examiner)
    examiner.watch.remove()
    FETCHES.remove()
    loops.active = False
    examiner.diagnosis.steps = examiner.watch.steps
    return Session(examiner, status, time.monotonic() - began - examiner.seconds)


def run(module: str | None, command: list[str], options: RunOptions) -> int:
    """Run a script or module under the watch; returns the exit status."""
    if options.json is not None:
        check_writable(options.json)
    keeper = None
    if options.capsule is not None:
        if options.capsule.path is not None:
            check_destination(options.capsule.path)
        keeper = Keeper(options.capsule, Path(module or command[0]).stem)

    def make(loops: Loops) -> Examiner:
        if options.armed is not None:
            from nanopsy.rerun import Armed

            examiner: Examiner = Armed(loops, registry.REGISTRY, options.armed)
        else:
            examiner = joint = JointExaminer(loops, registry.REGISTRY, Policy(options.on_incident, options.mute, options.verify))
            joint.report_lost = lambda: _report(joint, options)
        examiner.keeper = keeper
        return examiner

    ran = session(module, command, make)
    diagnosis = ran.examiner.diagnosis
    if options.armed is None and _wants_rerun(diagnosis, options):
        from nanopsy.rerun import rerun

        rerun(diagnosis, module, command, options, ran.seconds, keeper)
    return _finish(ran.examiner, options, ran.status, keeper)


def _wants_rerun(diagnosis: Diagnosis, options: RunOptions) -> bool:
    if options.rerun == "never" or not diagnosis.incidents:
        return False
    if any(incident.rank is not None for incident in diagnosis.incidents):
        return False
    return options.rerun == "always" or any(incident.outcome is not Outcome.REPRODUCED or made_earlier(incident) for incident in diagnosis.incidents)


def _execute(code: CodeType, main: ModuleType, examiner: Examiner) -> int | None:
    """Run the code; the exit status Python would have given, or None when an incident stopped it."""
    try:
        exec(code, main.__dict__)
    except Stopped:
        return None
    except SystemExit as leaving:
        if leaving.code is None:
            return 0
        if isinstance(leaving.code, int):
            return leaving.code
        print(leaving.code, file=sys.stderr)
        return 1
    except BaseException as error:
        _flush()
        if isinstance(error, KeyboardInterrupt) and examiner.unfinished:
            print("nanopsy: interrupted during the autopsy of a bad step; the weights had not been written by it", file=sys.stderr)
            return 130
        error.__traceback__ = own_traceback(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    finally:
        _flush()
    return 0


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue


def _finish(examiner: Examiner, options: RunOptions, status: int | None, keeper: Keeper | None) -> int:
    diagnosis, watch = examiner.diagnosis, examiner.watch
    if watch.scaler_skips:
        diagnosis.notes.append(f"GradScaler skipped {watch.scaler_skips} steps while it looked for its scale; that is normal")
    if examiner.unexamined:
        diagnosis.notes.append(f"{examiner.unexamined} further bad steps were not examined: a run opens {MOST_AUTOPSIES} at most")
    if _speaks(examiner, options):
        _report(examiner, options)
        if not diagnosis.incidents:
            if diagnosis.notes and watch.steps and not watch.scaler_skips:
                print("\n".join(f"nanopsy: {note}" for note in diagnosis.notes), file=sys.stderr)
            elif watch.steps == 0 and status == 0:
                print("nanopsy: the script never took an optimizer step, so there was nothing to watch", file=sys.stderr)
    if diagnosis.incidents and keeper is not None and keeper.written:
        print("\n" + "\n".join(keeper.summary()), file=sys.stderr)
    if status is None and isinstance(examiner, JointExaminer):
        _flush()
        examiner.wait_for_report()
        if examiner.ranks.rank is not None:
            _leave(EXIT_FINDINGS)
    return EXIT_FINDINGS if status is None else status


def _leave(status: int) -> NoReturn:
    """End a rank whose script was stopped in the middle: what the script registered for its end is run, the interpreter is not taken apart.

    A process group that was not destroyed can abort while Python unloads it, and the status would be lost.
    """
    _flush()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    _flush()
    os._exit(status)


def _speaks(examiner: Examiner, options: RunOptions) -> bool:
    """Of several ranks one reports: the first, unless an incident was another's alone, which has then reported it."""
    if isinstance(examiner, JointExaminer) and examiner.diagnosis.incidents:
        return examiner.speaks
    if os.environ.get("RANK", "0") != "0":
        return False
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    return not (several and options.json is not None and os.path.exists(options.json) and os.path.getmtime(options.json) > _BEGAN)


def _report(examiner: Examiner, options: RunOptions) -> None:
    """The incidents, as JSON where that was asked for, and as text."""
    diagnosis = examiner.diagnosis
    if options.json is not None:
        write_json(diagnosis, options.json)
    if diagnosis.incidents:
        print(render(diagnosis, color=sys.stderr.isatty()), file=sys.stderr)
        if options.json is not None:
            print(f"report written to {options.json}", file=sys.stderr)
