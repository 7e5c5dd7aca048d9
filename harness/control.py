"""What a person does to runs that exist: set them free again, or stop them for good."""

from __future__ import annotations

import contextlib
import getpass
import json
from collections.abc import Sequence
from dataclasses import dataclass

from harness.attempts import forgive_deaths
from harness.errors import IsolossError
from harness.lease import fs_now, look
from harness.paths import RunPaths, SweepPaths
from harness.recording import utc_now
from harness.records import PlannedRun, read_record, write_text_atomically
from harness.slurm.view import SchedulerView


@dataclass(frozen=True)
class Cancelled:
    """What `isoloss cancel` did."""

    waiting: list[str]
    """Runs that nobody had begun to execute: they are cancelled now."""
    running: list[str]
    """Runs at work: they save at their next step and stop."""
    jobs: list[str]
    """Slurm jobs or array tasks that were taken out of the queue."""
    trouble: str | None = None
    """Why tasks were left in the queue; they find nothing to do when they start."""

    def describe(self) -> str:
        """One line."""
        return (
            f"{len(self.waiting)} waiting runs cancelled, {len(self.running)} runs asked to save "
            f"and stop, {len(self.jobs)} Slurm tasks taken out of the queue"
        )


def retry_runs(paths: SweepPaths, runs: Sequence[PlannedRun]) -> list[PlannedRun]:
    """Set failed and cancelled runs free, so that they run again; return those runs.

    A record is kept in the folder of its last attempt; checkpoints stay and are resumed from.
    """
    return [run for run in runs if _free(paths.run(run.run_id))]


def _free(here: RunPaths) -> bool:
    record = read_record(here.record)
    failed = record is not None and record.status in ("failed", "cancelled")
    if record is not None and record.role == "trial" and record.status == "cancelled":
        return False  # stopped early: its search has counted it
    cancelled = record is None and here.cancel.exists()
    if not failed and not cancelled:
        return False
    here.cancel.unlink(missing_ok=True)
    forgive_deaths(here)
    if failed:
        kept = here.attempt(here.n_attempts()) if here.n_attempts() else here.root
        with contextlib.suppress(FileNotFoundError):  # another retry was faster
            here.record.rename(kept / "record.failed.json")
    return True


def cancel_runs(paths: SweepPaths, run_ids: Sequence[str], view: SchedulerView) -> Cancelled:
    """Stop runs for good, until `isoloss retry`.

    Parameters
    ----------
    run_ids
        Runs to stop; those that have ended, or are cancelled already, are left alone.
    view
        What Slurm has of the sweep. Only tasks of our own submissions are ever cancelled, and of
        those only waiting ones whose runs are all over: a task at work ends by itself when its
        runs have.
    """
    about = json.dumps({"by": getpass.getuser(), "at": utc_now()}) + "\n"
    run_ids = [run_id for run_id in run_ids if not _is_over(paths.run(run_id))]
    for run_id in run_ids:
        write_text_atomically(paths.run(run_id).cancel, about)
    # A worker that claims one of them after this look finds the file at its first step.
    now = fs_now(paths.root)
    running = [id_ for id_ in run_ids if look(paths.run(id_).attempts, now).taken]
    waiting = [run_id for run_id in run_ids if run_id not in set(running)]
    jobs = _idle_tasks(paths, view)
    trouble = _taken_out(jobs) if view.reachable else view.message
    return Cancelled(waiting, running, [] if trouble else jobs, trouble)


def _taken_out(jobs: Sequence[str]) -> str | None:
    """Cancel Slurm tasks; return why that was not possible."""
    from harness.slurm.client import cancel

    try:
        cancel(jobs)
    except IsolossError as error:
        return str(error)
    return None


def _idle_tasks(paths: SweepPaths, view: SchedulerView) -> list[str]:
    return [
        task.job_id
        for task in view.tasks
        if task.state == "PENDING"
        and all(_is_over(paths.run(run_id)) for run_id in view.runs_of[task.job_id])
    ]


def stop_early(here: RunPaths, reason: str) -> None:
    """Ask whoever trains a trial to give it up, and to record why.

    Parameters
    ----------
    reason
        One line for the record: what, when, why.
    """
    about = {"by": getpass.getuser(), "at": utc_now(), "stopped_early": reason}
    write_text_atomically(here.cancel, json.dumps(about) + "\n")


def read_early_stop(here: RunPaths) -> str | None:
    """Why a trial shall be given up; None where none is, or where a person cancelled it."""
    try:
        about = json.loads(here.cancel.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    why = about.get("stopped_early") if isinstance(about, dict) else None
    return why if isinstance(why, str) else None


def _is_over(here: RunPaths) -> bool:
    return here.record.exists() or here.cancel.exists()
