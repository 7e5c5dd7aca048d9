"""Slurm's queue: what it holds of ours, from one squeue call, and what the states mean."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.slurm.call import PATIENCE, Patience, ask
from harness.slurm.reasons import waiting
from harness.slurm.types import QueueTask, SchedulerUnreachable

__all__ = [
    "QueueRow",
    "expand_ids",
    "is_ended",
    "parse_queue",
    "queue_rows",
    "waiting",
]

# Name and width of each column; squeue cuts what is wider. The name comes last, as it may hold
# anything.
_FIELDS = (
    *(("JobArrayID", 200), ("State", 20), ("exit_code", 11), ("RestartCnt", 6)),
    *(("Partition", 64), ("NodeList", 64), ("Reason", 100), ("Name", 200)),
)
FORMAT = ",".join(f"{name}:{width}|" for name, width in _FIELDS)
"""squeue's ``--Format``."""

ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
    }
)
"""States out of which no job comes back by itself. Any other, known or not, counts as alive."""

_TASKS = re.compile(r"(\d+)_\[([\d,\-:]+)(?:%\d+)?\]")


@dataclass(frozen=True)
class QueueRow:
    """A task, and how it ended if it did."""

    task: QueueTask
    wait_status: int
    """Exit status as wait(2) gives it; 0 while it lives."""


def is_ended(state: str) -> bool:
    """Whether a job in this state is over; unknown states are not."""
    return state in ENDED


def queue_rows(
    *,
    users: Sequence[str] | None = None,
    ended: bool = False,
    name: str | None = None,
    patience: Patience = PATIENCE,
) -> list[QueueRow]:
    """Rows of the queue, with those that ended within the controller's memory if ``ended``.

    Parameters
    ----------
    users
        Whose jobs; default: this user's.
    name
        Of the jobs that are wanted; default: all.

    Raises
    ------
    SchedulerUnreachable
        squeue fails or hangs: nothing can be concluded about any job.
    """
    # The number, as a container may not know the user's name.
    whose = ",".join(users) if users else str(os.getuid())
    options = [f"--user={whose}", "--noheader", "--array", "--all", f"--Format={FORMAT}"]
    options += ["--states=all"] if ended else []
    options += [f"--name={name}"] if name else []
    return parse_queue(ask("squeue", *options, timeout_s=patience.query_s))


def parse_queue(text: str) -> list[QueueRow]:
    """Rows of squeue's answer in :data:`FORMAT`; tasks that it lumps together are told apart.

    Raises
    ------
    SchedulerUnreachable
        A line is not in that format: an unknown job must not pass for an absent one.
    """
    return [row for line in text.splitlines() if line.strip() for row in _rows_of(line)]


def _rows_of(line: str) -> Iterator[QueueRow]:
    fields = [field.strip() for field in line.split("|", len(_FIELDS) - 1)]
    if len(fields) < len(_FIELDS) or not fields[0][:1].isdigit():
        raise SchedulerUnreachable(
            f"squeue prints what it was not asked for: '{line.strip()[:80]}'. "
            f"isoloss asks with --Format={FORMAT}, which Slurm has from 20.11 on."
        )
    ids, state, status, restarts, partition, nodes, reason, name = fields
    name = name.removesuffix("|").rstrip()
    for array_job, index in _expanded(ids):
        job_id = array_job if index is None else f"{array_job}_{index}"
        task = QueueTask(
            job_id=job_id,
            array_job=array_job,
            index=index,
            name=name,
            state=state,
            reason=reason,
            partition=partition,
            nodes=nodes,
            restarts=_number(restarts),
        )
        yield QueueRow(task, _number(status))


def expand_ids(ids: str) -> list[str]:
    """Job ids of ``12``, ``12_3`` or ``12_[0-4,7%2]``: one for each task."""
    return [job if index is None else f"{job}_{index}" for job, index in _expanded(ids)]


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _expanded(ids: str) -> Iterator[tuple[str, int | None]]:
    """Array job and task of ``12``, ``12_3`` or ``12_[0-4,7,10-20:2%2]``."""
    lumped = _TASKS.fullmatch(ids) if "[" in ids else None
    if lumped is None:
        array_job, _, index = ids.partition("_")
        yield array_job, int(index) if index.isdigit() else None
        return
    for part in lumped[2].split(","):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        for task in range(int(first), int(last or first) + 1, int(step or 1)):
            yield lumped[1], task
