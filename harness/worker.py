"""The one entry point that executes runs: claims them one after the other and trains each.

``python -m harness.worker JOB`` works through a job file with the libraries loaded once. Any
number of workers may share a job, and jobs a run: whoever claims a run first executes it, the
others go on to the next.

Exit codes: 0 nothing is left to claim, 75 stopped on request with runs left, anything else a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from harness.callbacks import StopSignal
from harness.claim import claim
from harness.config import Execution
from harness.job import Job, read_job
from harness.paths import RunPaths, SweepPaths
from harness.recording import build_record
from harness.records import PlannedRun, write_record
from harness.training import depth_block_size, describe_machine, open_attempt, train

STOPPED = 75
"""Exit code of a worker that was asked to stop (EX_TEMPFAIL: try again later)."""
RESCAN_S = 0.5
"""Pause before a second look at runs that seemed claimed: a glance by ``status`` also locks."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Work through a job file."""
    parser = argparse.ArgumentParser(prog="python -m harness.worker", description=__doc__)
    parser.add_argument("job", type=Path, help="job file, as written by `isoloss run`")
    parser.add_argument("--parent", type=int, help="stop when this process is no longer the parent")
    parser.add_argument("--fail", metavar="REASON", help="record the runs as failed instead")
    options = parser.parse_args(arguments)
    job = read_job(options.job)
    if options.fail:
        return give_up(job, options.fail)
    return work(job, StopSignal(parent=options.parent))


def give_up(job: Job, reason: str) -> int:
    """Record every unfinished run of ``job`` that nobody holds as failed."""
    for run in job.runs:
        paths = SweepPaths(job.sweep_dir).run(run.run_id)
        with claim(paths.lock) as owner:
            if owner and not paths.record.exists():
                write_failure(run, job.sweep, paths, job.execution, reason)
    return 0


def work(job: Job, stop: StopSignal) -> int:
    """Claim and execute runs of ``job`` until none is left; return the exit code."""
    stop.install()
    paths = SweepPaths(job.sweep_dir)
    todo = job.runs
    idle_passes = 0
    while todo and idle_passes < 2 and not stop:
        claimed = [
            claim_and_execute(run, job.sweep, paths.run(run.run_id), job.execution, stop)
            for run in todo
        ]
        todo = [run for run in todo if not paths.run(run.run_id).record.exists()]
        idle_passes = 0 if any(claimed) else idle_passes + 1
        time.sleep(RESCAN_S if todo and not stop else 0)
    return STOPPED if stop else 0


def claim_and_execute(
    run: PlannedRun, sweep: str, paths: RunPaths, execution: Execution, stop: StopSignal
) -> bool:
    """Execute one run if it is free and unfinished; return whether it was."""
    if stop or paths.record.exists():
        return False
    with claim(paths.lock) as owner:
        if not owner or paths.record.exists():
            return False
        _execute(run, sweep, paths, execution, stop)
    return True


def _execute(
    run: PlannedRun, sweep: str, paths: RunPaths, execution: Execution, stop: StopSignal
) -> None:
    """Train one run with its output in the attempt's log; an exception makes it ``failed``."""
    attempt = open_attempt(paths)
    print(f"{run.run_id} attempt {attempt}: {run.cell}", flush=True)
    with (
        (paths.attempt(attempt) / "log").open("a", encoding="utf-8") as log,
        contextlib.redirect_stdout(log),
        contextlib.redirect_stderr(log),
    ):
        try:
            train(run, sweep, paths, execution, stop, attempt)
        except Exception as error:  # whatever a run raises is its result, not the worker's end
            traceback.print_exc()
            write_failure(run, sweep, paths, execution, f"{type(error).__name__}: {error}")


def write_failure(
    run: PlannedRun, sweep: str, paths: RunPaths, execution: Execution, error: str
) -> None:
    """Record a run as failed, with its error in one line."""
    line = " ".join(error.split())
    record = build_record(
        run,
        sweep,
        paths,
        status="failed",
        block_size=depth_block_size(run),
        provenance=describe_machine(execution),
        reason=f"failed: {line}",
        error=line,
    )
    write_record(paths.record, record)


if __name__ == "__main__":
    sys.exit(main())
