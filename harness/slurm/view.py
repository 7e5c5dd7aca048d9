"""Where the scheduler has each run of a sweep: submissions held against the queue.

Only what Slurm says of our own submissions counts, and only for runs whose files say nothing
better: a record or a live lease always wins. Not seen is not dead: a run counts as lost only after
its submission has grown old enough to show, and, where something is to be done about it, after two
looks that agree.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from harness.errors import IsolossError
from harness.lease import fs_now
from harness.paths import SweepPaths
from harness.slurm.call import PATIENCE, NoCluster, Patience
from harness.slurm.queue import is_ended, queue_rows, waiting
from harness.slurm.submissions import (
    Submission,
    read_submissions,
    submission_paths,
    write_submission,
)
from harness.slurm.types import NoSlurmHere, Place, QueueTask

GRACE_S = 30.0
"""A submission younger than this may not show in the queue yet."""
LOOK_GAP_S = 2.0
"""Pause before the second look at what the first did not find."""


@dataclass(frozen=True)
class SchedulerView:
    """What Slurm knows of a sweep."""

    places: dict[str, Place] = field(default_factory=dict)
    """By run id; runs that it does not have are absent."""
    reachable: bool = True
    message: str | None = None
    """Why nothing is known: the scheduler does not answer, or there is none on this machine."""
    tasks: tuple[QueueTask, ...] = ()
    """The tasks of this sweep that are in the queue."""
    runs_of: dict[str, list[str]] = field(default_factory=dict)
    """Run ids by job id of those tasks."""


def look_at_slurm(
    paths: SweepPaths,
    *,
    sure: bool = False,
    patience: Patience = PATIENCE,
) -> SchedulerView:
    """Find the runs of a sweep in Slurm's queue.

    Parameters
    ----------
    sure
        Look a second time when runs are missing, before they are called lost.
    patience
        How long to wait for the controller.

    Returns
    -------
    SchedulerView
        Empty and reachable when the sweep was never submitted.
    """
    submissions = read_submissions(paths)
    if not submissions:
        return SchedulerView()
    now = fs_now(paths.root)
    try:
        tasks = _known_tasks(submissions, patience)
        if sure and _unseen(submissions, tasks, paths):
            time.sleep(LOOK_GAP_S)
            tasks = _joined(tasks, _known_tasks(submissions, patience))
    except (NoSlurmHere, NoCluster) as error:
        known = "Jobs of this sweep that still run elsewhere are known by their leases alone."
        return SchedulerView(message=f"{error} {known}")
    except IsolossError as error:
        # Without an answer every submitted run may still be there.
        places = {k: v for s in submissions for k, v in _unseen_places(s).items()}
        why = f"{error} Runs that were submitted are left alone."
        return SchedulerView(places, reachable=False, message=why)
    submissions = [_adopted(paths, submission, tasks) for submission in submissions]
    ours = {submission.name: submission for submission in submissions}
    present = tuple(t for t in tasks if t.name in ours and not is_ended(t.state))
    return SchedulerView(
        _places(paths, submissions, tasks, now),
        tasks=present,
        runs_of={task.job_id: _runs_of(ours[task.name], task) for task in present},
    )


def _known_tasks(submissions: list[Submission], patience: Patience) -> list[QueueTask]:
    """Tasks of all who submitted, ended ones too as long as Slurm remembers them."""
    rows = queue_rows(users=_submitters(submissions), ended=True, patience=patience)
    return [row.task for row in rows]


def _submitters(submissions: list[Submission]) -> list[str] | None:
    """Users who submitted; None when that is only the calling one."""
    users = {submission.user for submission in submissions}
    return None if users == {getpass.getuser()} else sorted(users)


def _unseen(submissions: list[Submission], tasks: list[QueueTask], paths: SweepPaths) -> bool:
    """Whether a submitted run without a record is in no task of the queue."""
    named = _by_name(tasks)
    seen = {run_id for s in submissions for t in named[s.name] for run_id in _runs_of(s, t)}
    submitted = {run_id for s in submissions for runs in s.tasks for run_id in runs}
    return any(not paths.run(run_id).record.exists() for run_id in submitted - seen)


def _joined(first: list[QueueTask], second: list[QueueTask]) -> list[QueueTask]:
    """Tasks that either look saw, the later word standing."""
    return list({task.job_id: task for task in (*first, *second)}.values())


def _adopted(paths: SweepPaths, submission: Submission, tasks: list[QueueTask]) -> Submission:
    """Give a submission whose answer was lost the id under which the queue has it."""
    found = [task.array_job for task in tasks if task.name == submission.name]
    if submission.job_id is not None or not found:
        return submission
    known = submission.model_copy(update={"job_id": found[0]})
    with contextlib.suppress(OSError):  # one who only looks may lack the right to write
        write_submission(paths, known)
    return known


def _by_name(tasks: Iterable[QueueTask]) -> defaultdict[str, list[QueueTask]]:
    named: defaultdict[str, list[QueueTask]] = defaultdict(list)
    for task in tasks:
        named[task.name].append(task)
    return named


def _runs_of(submission: Submission, task: QueueTask) -> list[str]:
    index = task.index or 0
    return submission.tasks[index] if index < len(submission.tasks) else []


def _places(
    paths: SweepPaths, submissions: list[Submission], tasks: list[QueueTask], now: float
) -> dict[str, Place]:
    """Places of all runs; of several submissions of one run, one that the queue has wins."""
    places: dict[str, Place] = {}
    named = _by_name(tasks)
    for submission in submissions:
        # Once Slurm shows any of an array's tasks, those that it does not show are over.
        if not named[submission.name] and now - submission.created_at < GRACE_S:
            places |= _unseen_places(submission, submission_paths(paths, submission.token).out)
    for submission in submissions:
        for task in named[submission.name]:
            if not is_ended(task.state):
                places |= dict.fromkeys(_runs_of(submission, task), _place(task))
    return places


def _unseen_places(submission: Submission, out: Path | None = None) -> dict[str, Place]:
    """Places of the runs of a submission that the queue does not show (yet).

    A task that has written into ``out`` has begun, and as it is gone from the queue, ended.
    """
    job = submission.job_id or submission.name
    return {
        run_id: Place(f"{job}_{index}", "unseen", "submitted, but not seen in the queue")
        for index, runs in enumerate(submission.tasks)
        for run_id in runs
        if out is None or not (out / f"{job}_{index}.log").exists()
    }


_waiting = functools.lru_cache(maxsize=1000)(waiting)
"""Thousands of tasks wait for a few reasons."""


def _place(task: QueueTask) -> Place:
    if task.state == "PENDING":
        why = _waiting(task.reason)
        return Place(task.job_id, "pending", why.text, why.never)
    on = f" on {task.nodes}" if task.nodes else ""
    return Place(task.job_id, "active", f"in an allocation{on} ({task.state})")
