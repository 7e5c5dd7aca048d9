"""What waits or runs on a test cluster, and how a held job is let go."""

from __future__ import annotations

from collections.abc import Sequence

from harness.slurm.call import PATIENCE, Patience
from harness.slurm.queue import is_ended, queue_rows
from harness.slurm.types import QueueTask
from tests.slurm.cluster import Cluster


def queue(prefix: str = "", *, patience: Patience = PATIENCE) -> list[QueueTask]:
    """Tasks of this user that have not ended, whose job names begin with ``prefix``."""
    tasks = [row.task for row in queue_rows(patience=patience)]
    return [task for task in tasks if task.name.startswith(prefix) and not is_ended(task.state)]


def release(slurm: Cluster, job_ids: Sequence[str]) -> None:
    """Release held jobs and array tasks."""
    slurm.run("scontrol", "release", ",".join(job_ids))
