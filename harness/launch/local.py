"""Executes runs on this machine: a pool of warm workers and, beside them, the MLflow mirror."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.job import Job, write_job, write_run_configs
from harness.launch.pool import STOP_PATIENCE_S, Pool, end_processes, last_line
from harness.lease import acquire
from harness.paths import SweepPaths
from harness.records import PlannedRun, write_text_atomically


@dataclass(frozen=True)
class Outcome:
    """How a local execution ended."""

    undisturbed: bool
    """False when Ctrl-C stopped it; every unfinished run can then be resumed."""
    troubles: tuple[str, ...]
    """What went wrong outside the runs, one line each, with the file that says more."""


def run_local(
    paths: SweepPaths,
    job: Job,
    *,
    workers: int,
    code: Path | None,
    mirror: list[str] | None,
    on_poll: Callable[[], None],
) -> Outcome:
    """Execute the runs of ``job`` with ``workers`` processes.

    Parameters
    ----------
    code
        Snapshot of the code that workers import; None: the code as it is.
    mirror
        Command of the MLflow mirror to run beside the workers; None for none.
    on_poll
        Called a few times a second, to show progress.
    """
    paths.logs.mkdir(parents=True, exist_ok=True)
    job_file = paths.jobs / f"{int(time.time())}-{os.getpid()}.json"
    write_job(job_file, job)
    write_run_configs(paths, job.runs)
    pool = Pool(
        job, job_file, min(workers, len(job.runs)), log=paths.logs / "workers.log", code=code
    )
    with in_hand(paths, job.runs), beside(mirror, paths, pool.troubles):
        pool.run(lambda: False, on_poll)
    return Outcome(not pool.stopped, tuple(pool.troubles))


@contextlib.contextmanager
def in_hand(
    paths: SweepPaths, runs: Sequence[PlannedRun]
) -> Iterator[Callable[[Sequence[PlannedRun]], None]]:
    """Show to others, while the block runs, which runs this process has in hand.

    Yields
    ------
    Callable
        To be called with the runs when they have changed.
    """
    folder = paths.controllers / f"{socket.gethostname()}-{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)

    def show(runs: Sequence[PlannedRun]) -> None:
        write_text_atomically(folder / "runs", "".join(f"{run.run_id}\n" for run in runs))

    show(runs)
    lease = acquire(folder)
    try:
        yield show
    finally:
        if lease is not None:
            lease.end("left")
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def beside(command: list[str] | None, paths: SweepPaths, troubles: list[str]) -> Iterator[None]:
    """Run the mirror at the lowest priority beside the block, and let it finish after it."""
    if command is None:
        yield
        return
    log_file = paths.logs / "mlflow.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            ["nice", "-n", "19", *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(KeyboardInterrupt):
            end_processes([process], STOP_PATIENCE_S)
        end_processes([process], 0.0)
        if process.returncode:
            troubles.append(
                f"MLflow is incomplete: {last_line(log_file)} (see {log_file}); "
                f"bring it up to date with: isoloss sync {paths.root}"
            )
