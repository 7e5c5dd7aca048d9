"""Depth probes: generated tasks that a grid names as ``data.task``, one file here per task.

A module ``harness/tasks/NAME.py`` whose class is marked ``@task("NAME", revision=1)`` adds the task
NAME; no other file changes. Never imports torch.
"""

from harness.tasks.base import (
    IGNORED,
    Examples,
    Task,
    TaskInfo,
    TaskOptions,
    available,
    build_task,
    get,
    task,
)
from harness.tasks.draws import Draws

__all__ = [
    "IGNORED",
    "Draws",
    "Examples",
    "Task",
    "TaskInfo",
    "TaskOptions",
    "available",
    "build_task",
    "get",
    "task",
]
