"""The one entry point that executes runs: claims them one after the other and trains each.

``python -m harness.worker JOB`` works through a job file with the libraries loaded once: as a
member of the local pool, as an array task (``--task K``: its slice of the runs), or as the head of
a packed allocation (``--workers N``: N of its kind). Any number of workers may share a job, and
jobs a run: whoever owns a run's lease executes it, the others go on to the next.

Exit codes: 0 nothing is left to do here, 74 results can no longer be written, 75 stopped on request
with runs left, anything else a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from harness.attempts import (
    LIVES,
    deaths_without_progress,
    microbatch_after_oom,
    open_attempt,
)
from harness.checkpoints import last_step
from harness.control import read_early_stop
from harness.errors import LeaseLost, OutOfMemory
from harness.failures import hold_reason, record_failure
from harness.holder import Holder, this_process
from harness.job import Job, read_job
from harness.launch.pool import NO_DISK, STOPPED, Pool
from harness.launch.rank_errors import RankKilled
from harness.launch.ranks import train_in_ranks
from harness.lease import Lease, acquire, fs_now, look
from harness.paths import RunPaths, SweepPaths
from harness.provenance import attempt_facts
from harness.recording import build_record
from harness.records import PlannedRun, RunRecord, Status, write_record
from harness.stop import StopSignal
from harness.training import depth_block_size, describe_machine, train
from harness.trunks import run_ahead, tidy

RESCAN_S = 0.5
"""Pause before the next look at runs whose owner has gone silent."""
MORE_S = 0.2
"""Pause before the next look at a job to which runs may still be added."""
DISK_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ESTALE, errno.EIO),
    *(errno.EACCES, errno.EPERM),
)
"""Errors of the results folder, not of a run: the worker ends, the run stays resumable."""

Outcome = Literal["settled", "again", "wait"]
"""settled: ended, or no business of this worker. again: take it up at once. wait: unfinished, look
at it again in the next pass: its owner is silent, it was given up on request, or it will go on from
where another run is not yet."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Work through a job file."""
    parser = argparse.ArgumentParser(prog="python -m harness.worker", description=__doc__)
    parser.add_argument("job", type=Path, help="job file, as written by `isoloss run`")
    parser.add_argument("--task", type=int, help="number of the array task: its runs only")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--parent", type=int, help="stop when this process is no longer the parent")
    options = parser.parse_args(arguments)
    job, stop = read_job(options.job), StopSignal(parent=options.parent)
    stop.install()
    if options.workers == 1:
        return Worker(job, options.job, job.task(options.task), stop).work()
    pool = Pool(job, options.job, options.workers, task=options.task)
    pool.run(lambda: bool(stop), lambda: None)
    for trouble in pool.troubles:
        print(trouble, flush=True)
    return NO_DISK if pool.troubles else STOPPED if pool.stopped else 0


class RunStop:
    """Asks one run to stop: this worker must, its lease is lost, or the run is cancelled.

    Parameters
    ----------
    worker
        Stop request of the whole worker.
    lease
        Ownership of the run.
    cancel
        File that asks for the run to be stopped for good.
    """

    def __init__(self, worker: StopSignal, lease: Lease, cancel: Path) -> None:
        self.worker, self.lease, self.cancel = worker, lease, cancel
        self.install = worker.install

    @property
    def installed(self) -> bool:
        """Whether this process's signals are ours."""
        return self.worker.installed

    @property
    def lost(self) -> bool:
        """Whether another process owns the run now."""
        return self.lease.lost

    @property
    def cancelled(self) -> bool:
        """Whether the run is not wanted any more."""
        return self.cancel.exists()

    def __bool__(self) -> bool:
        return bool(self.worker) or self.cancelled or self.lost


class Worker:
    """Claims and executes runs until none is left for it."""

    def __init__(self, job: Job, job_file: Path, runs: list[PlannedRun], stop: StopSignal) -> None:
        self.job, self.job_file, self.runs, self.stop = job, job_file, runs, stop
        self.paths = SweepPaths(job.sweep_dir)
        self.said: set[str] = set()
        self.executed = 0
        """Attempts that this worker has made."""

    def work(self) -> int:
        """Go through the runs until none is left; return the exit code."""
        todo = self.runs
        try:
            while (todo or self.job.more_to_come) and not self.stop:
                began = self.executed
                todo = [run for run in todo if self._settle(run) != "settled"]
                if self.job.more_to_come:
                    todo = self._more(idle=self.executed == began)
                else:
                    time.sleep(RESCAN_S if todo and not self.stop else 0)
        except OSError as error:
            if error.errno not in DISK_ERRORS:
                raise
            self._say(
                f"{error.filename or self.paths.root}: {error.strerror}; stopped, unfinished "
                "runs stay resumable. Make room, then: isoloss run with the grid"
            )
            return NO_DISK
        return STOPPED if todo else 0

    def _more(self, *, idle: bool) -> list[PlannedRun]:
        """Runs of the job as it is now: a search adds trials while others train.

        All of them, as one that was in other hands may have been left since.
        """
        if idle and not self.stop:
            time.sleep(MORE_S)
        self.job = read_job(self.job_file)
        return self.job.runs

    def _say(self, line: str) -> None:
        if line not in self.said:
            self.said.add(line)
            print(line, flush=True)

    def _settle(self, run: PlannedRun) -> Outcome:
        """Execute one run if it is free and unfinished, as often as it takes."""
        outcome: Outcome = "again"
        while outcome == "again" and not self.stop:
            outcome = self._try(run)
        return outcome

    def _try(self, run: PlannedRun) -> Outcome:
        paths = self.paths.run(run.run_id)
        stopped_early = run.role == "trial" and read_early_stop(paths) is not None
        if paths.record.exists() or (paths.cancel.exists() and not stopped_early):
            return "settled"
        held = hold_reason(self.paths, run, self.job.execution.equal_failures)
        if held:
            self._say(f"{run.run_id} is held back: {held}")
            return "settled"
        behind = self._behind(run)
        if behind is not None:
            return behind
        lease = acquire(paths.attempts, lease_s=self.job.execution.lease_s)
        if lease is None:
            return self._taken(run, paths)
        if paths.record.exists():
            lease.end("superfluous")
            return "settled"
        return self._execute(run, paths, lease)

    def _behind(self, run: PlannedRun) -> Outcome | None:
        """Let a shorter run of the same trunk reach its branch first: by taking it, or by waiting
        for who trains it. None when there is none, or nobody is at work on it.
        """
        ahead = run_ahead(self.paths, run)
        if ahead is None:
            return None
        mine = next((other for other in self.runs if other.run_id == ahead), None)
        if mine is not None and (self._settle(mine) == "wait" or self.stop):
            return "wait"
        if run_ahead(self.paths, run) != ahead:
            return "again"
        attempts, lease_s = self.paths.run(ahead).attempts, self.job.execution.lease_s
        taken = look(attempts, fs_now(self.paths.root), lease_s=lease_s).taken
        return "wait" if taken else None

    def _taken(self, run: PlannedRun, paths: RunPaths) -> Outcome:
        """Leave a run to its owner, unless that one has fallen silent."""
        lease_s = self.job.execution.lease_s
        seen = look(paths.attempts, fs_now(paths.attempts), lease_s=lease_s)
        who = seen.holder.describe() if seen.holder else "another process"
        if seen.liveness == "live":
            if not self._is_mate(seen.holder):
                self._say(f"{run.run_id} is in the hands of {who}: left to it")
            return "settled"
        if seen.liveness == "silent":
            self._say(f"{run.run_id}: no sign of life from {who} for {seen.age_s:.0f} s, waiting")
            return "wait"
        return "again"

    def _is_mate(self, holder: Holder | None) -> bool:
        """Whether an owner works in the same pool or allocation as this worker."""
        me = this_process()
        return holder is not None and (holder.host, holder.job) == (me.host, me.job)

    def _execute(self, run: PlannedRun, paths: RunPaths, lease: Lease) -> Outcome:
        """Train one run with its output in the attempt's log; an exception makes it ``failed``."""
        facts = attempt_facts(self.job.execution)
        self.executed += 1
        attempt = open_attempt(paths, lease, first_step=last_step(paths), facts=facts)
        print(f"{run.run_id} attempt {attempt}: {run.cell}", flush=True)
        with (
            (lease.folder / "log").open("a", encoding="utf-8") as log,
            contextlib.redirect_stdout(log),
            contextlib.redirect_stderr(log),
        ):
            try:
                return self._attempt(run, paths, lease)
            except LeaseLost as error:
                print(error)
                return "wait"

    def _attempt(self, run: PlannedRun, paths: RunPaths, lease: Lease) -> Outcome:
        stop = RunStop(self.stop, lease, paths.cancel)
        dead = deaths_without_progress(paths, lease.number, last_step(paths))
        if dead >= LIVES:
            return self._fail(run, paths, lease, f"{dead} attempts in a row died without a word")
        if paths.cancel.exists():  # a trial that was given up while nobody was at work on it
            return self._give_up(run, paths, lease)
        try:
            return self._train(run, paths, lease, stop)
        except LeaseLost:
            raise
        except OutOfMemory as error:
            return self._less_memory(run, paths, lease, error)
        except RankKilled as error:  # by somebody outside, who may be about to end this worker too
            print(error)
            lease.end("killed")
            return "again"
        except Exception as error:  # whatever a run raises is its result, not the worker's end
            traceback.print_exc()
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                with contextlib.suppress(OSError):
                    lease.end("interrupted")
                raise
            return self._fail(run, paths, lease, f"{type(error).__name__}: {error}")

    def _train(self, run: PlannedRun, paths: RunPaths, lease: Lease, stop: RunStop) -> Outcome:
        execution, sweep = self.job.execution, self.job.sweep
        microbatch = microbatch_after_oom(paths, lease.number)
        if execution.devices * execution.nodes > 1:
            record = train_in_ranks(
                run, sweep, paths, execution, stop, lease.number, self.job_file, microbatch
            )
        else:
            record = train(run, sweep, paths, execution, stop, lease.number, microbatch)
        if record is not None:
            tidy(self.paths, run)
            lease.end(record.status)
            return "settled"
        if stop.cancelled:
            return self._give_up(run, paths, lease)
        lease.end("interrupted")
        return "wait"

    def _give_up(self, run: PlannedRun, paths: RunPaths, lease: Lease) -> Outcome:
        """End a run that is not wanted; a trial that a search gave up gets a record of why."""
        why = read_early_stop(paths) if run.role == "trial" else None
        if why is not None:
            print(why)
            lease.check()
            record = self._record(run, paths, status="cancelled", reason=why)
            write_record(paths.record, record)
        lease.end("cancelled")
        return "settled"

    def _less_memory(
        self, run: PlannedRun, paths: RunPaths, lease: Lease, error: OutOfMemory
    ) -> Outcome:
        """Go on with half the micro-batch: the global batch, and so the science, stays the same."""
        print(f"out of memory: {error}")
        tried = microbatch_after_oom(paths, lease.number)
        if error.microbatch_seqs <= 1 or (tried is not None and error.microbatch_seqs > tried):
            return self._fail(run, paths, lease, f"OutOfMemory: {error}")
        print(f"micro-batch of {error.microbatch_seqs} sequences halved, global batch unchanged")
        lease.end("out_of_memory", microbatch_seqs=error.microbatch_seqs)
        return "again"

    def _fail(self, run: PlannedRun, paths: RunPaths, lease: Lease, error: str) -> Outcome:
        """Record a run as failed, with its error in one line."""
        # A file name that is no valid text must not keep its failure from being recorded.
        line = " ".join(error.encode("utf-8", "replace").decode("utf-8").split())
        lease.check()
        record = self._record(run, paths, status="failed", reason=f"failed: {line}", error=line)
        # Counts only once the record says so: a kill between the two loses nothing.
        record_failure(self.paths, run, line, lease.number)
        write_record(paths.record, record)
        lease.end("failed", error=line)
        return "settled"

    def _record(
        self,
        run: PlannedRun,
        paths: RunPaths,
        *,
        status: Status,
        reason: str,
        error: str | None = None,
    ) -> RunRecord:
        """Record of a run that has not reached its end."""
        return build_record(
            run,
            self.job.sweep,
            paths,
            status=status,
            block_size=depth_block_size(run),
            provenance=describe_machine(self.job.execution),
            reason=reason,
            error=error,
        )


if __name__ == "__main__":
    sys.exit(main())
