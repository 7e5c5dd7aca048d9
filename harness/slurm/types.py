"""What the parts of the Slurm executor hand to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.errors import IsolossError


class SchedulerUnreachable(IsolossError):
    """The controller does not answer; nothing can be concluded about any job."""


class NoSlurmHere(IsolossError):
    """No client of a cluster: Slurm's commands are absent here, or no cluster is named.

    Unlike silence of a controller, which may hide live jobs for a while, waiting does not help.
    """


@dataclass(frozen=True)
class QueueTask:
    """One job, or one task of a job array, as squeue shows it."""

    job_id: str
    """``1234``, or ``1234_7`` for a task of an array."""
    array_job: str
    """``1234`` in both cases."""
    index: int | None
    """Task of the array; None for a plain job."""
    name: str
    """Job name; ours are ``<sweep>.<token>``."""
    state: str
    """Slurm's long state: PENDING, RUNNING, COMPLETING, CONFIGURING, …"""
    reason: str
    """Slurm's word for why it waits or how it ended."""
    partition: str
    nodes: str
    """Nodes that it runs on; empty while it waits."""
    restarts: int
    """How often it was requeued."""


@dataclass(frozen=True)
class Place:
    """Where the scheduler has one run."""

    job_id: str
    """``1234_7``."""
    state: Literal["pending", "active", "unseen"]
    """unseen: submitted, but not in the queue, and too young to be called lost."""
    text: str
    """In words, with Slurm's own: ``waits for a free slot (Resources)``."""
    never: bool = False
    """Whether it will never start as it is."""
