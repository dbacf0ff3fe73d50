"""Run cells: here in a few processes, or as Slurm jobs. What is done already is not done again."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from nanopsy.errors import NanopsyError
from nanopsy.lab.grid import Cell, Outcome, run_cell

__all__ = ["Slurm", "run_here", "run_slurm"]

Done = Callable[[Cell, Outcome], None]
"""Called after each cell."""


@dataclass(frozen=True, slots=True)
class Slurm:
    """What a job asks for."""

    partition: str = ""
    cluster: str = "slurm"
    """``local`` runs the same jobs as processes here, to try a grid before it is submitted."""
    hours: float = 24.0
    gpus: int = 1
    cpus: int = 8
    memory_gb: int = 32


def _quiet() -> None:
    """One thread for each process: cells are many and small."""
    import warnings

    import torch

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=r"var\(\)", category=UserWarning)  # what torch says of one valid pixel is what is measured


@contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_quiet)
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def run_here(cells: Sequence[Cell], folder: str | Path, jobs: int = 0, done: Done | None = None) -> list[Outcome]:
    """Run cells in local processes; outcomes in the order of the cells.

    Args:
        cells: the grid.
        folder: where their files go; cells found there are not run again.
        jobs: processes; 0: one for each core.
        done: called after each cell.

    Raises:
        NanopsyError: a process died (out of memory, killed); what was finished is kept, and the same command goes on from there.
    """
    jobs = jobs or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else jobs or os.cpu_count() or 1
    found: dict[str, Outcome] = {}
    with _pool(min(jobs, max(len(cells), 1))) as pool:
        waiting: dict[Future[Outcome], Cell] = {pool.submit(run_cell, cell, folder): cell for cell in cells}
        for future in as_completed(waiting):
            cell = waiting[future]
            try:
                found[cell.key] = future.result()
            except Exception as error:
                raise NanopsyError(
                    f"the cell {cell.key} was lost: {error or type(error).__name__}",
                    where=str(folder),
                    why=f"{len(found)} of {len(cells)} cells are finished and kept",
                    do="run the same command again; with less memory, fewer --jobs",
                ) from None
            if done is not None:
                done(cell, found[cell.key])
    return [found[cell.key] for cell in cells]


def run_slurm(cells: Sequence[Cell], folder: str | Path, slurm: Slurm, done: Done | None = None) -> list[Outcome]:
    """Submit each cell as a job of an array through submitit, and wait for all.

    Raises:
        NanopsyError: submitit or Slurm is not there; a job failed.
    """
    try:
        import submitit
    except ImportError:
        raise NanopsyError("submitit is not installed", why="it submits to Slurm", do='pip install "nanopsy[lab]"') from None
    try:
        executor: Any = submitit.AutoExecutor(folder=str(Path(folder) / "slurm"), cluster=slurm.cluster)
    except RuntimeError as error:
        raise NanopsyError(f"Slurm cannot be used: {error}", why="no job was submitted", do="run on a login node, or leave --slurm out") from None
    options: dict[str, Any] = {"timeout_min": int(slurm.hours * 60), "gpus_per_node": slurm.gpus, "cpus_per_task": slurm.cpus, "mem_gb": slurm.memory_gb}
    if slurm.partition:
        options["slurm_partition"] = slurm.partition
    executor.update_parameters(**options)
    jobs = executor.map_array(run_cell, list(cells), [str(folder)] * len(cells))
    found = []
    for cell, job in zip(cells, jobs, strict=True):
        try:
            found.append(job.result())
        except Exception as error:
            raise NanopsyError(
                f"the job of {cell.key} failed: {error}", where=str(job.paths.stderr), do="read its log; run the same command again to go on"
            ) from None
        if done is not None:
            done(cell, found[-1])
    return found
