"""A job: runs handed to workers, as a file that says all they need."""

from __future__ import annotations

import collections
import io
import textwrap
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from ruamel.yaml import YAML

from harness.config import Execution
from harness.errors import DataError
from harness.paths import SweepPaths
from harness.records import PlannedRun, write_text_atomically

WRITERS = 16
"""Files of runs that are written at once."""


class Job(BaseModel):
    """What workers are to do; complete in itself, so that editing the grid does not change it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: str
    """Name of the sweep."""
    sweep_dir: Path
    """Folder of the sweep."""
    runs: list[PlannedRun]
    """The runs, in the order to claim them."""
    task_sizes: list[int] = Field(default_factory=list)
    """How many runs each array task works through; none: one each. A worker without a task number
    takes all."""
    execution: Execution
    """How to execute them."""
    more_to_come: bool = False
    """Whether runs may still be added: workers that have none left read the file again."""

    def task(self, number: int | None) -> list[PlannedRun]:
        """Runs of array task ``number`` (from 0), or all."""
        if number is None:
            return self.runs
        if not self.task_sizes:
            return self.runs[number : number + 1]
        first = sum(self.task_sizes[:number])
        return self.runs[first : first + self.task_sizes[number]]

    @property
    def n_tasks(self) -> int:
        """Array tasks that the job has."""
        return len(self.task_sizes or self.runs)


def write_job(path: Path, job: Job) -> None:
    """Write a job file atomically."""
    write_text_atomically(path, job.model_dump_json(indent=2) + "\n")


def read_job(path: Path) -> Job:
    """Read a job file.

    Raises
    ------
    DataError
        No such file.
    """
    try:
        return Job.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such job file; `isoloss run` writes them") from error


def write_run_configs(paths: SweepPaths, runs: list[PlannedRun]) -> None:
    """Write ``config.yaml`` of every run that has none yet."""
    spelled: dict[str, str] = {}

    def write(run: PlannedRun) -> None:
        target = paths.run(run.run_id).config
        if not target.exists():
            about = {"run_id": run.run_id, "cell": run.cell, **run.config}
            write_text_atomically(target, _block(about, spelled))

    # In threads, as each waits for the disk or the file server.
    with ThreadPoolExecutor(WRITERS) as writers:
        collections.deque(writers.map(write, runs), maxlen=0)


def _block(mapping: Mapping[str, Any], spelled: dict[str, str]) -> str:
    """A mapping as YAML in block style, keys sorted.

    Parameters
    ----------
    spelled
        Entries spelled before. Runs of a sweep share most of theirs, and the emitter is slow.
    """
    return "".join(_entry(key, mapping[key], spelled) for key in sorted(mapping))


def _entry(key: str, value: Any, spelled: dict[str, str]) -> str:
    about = f"{key}: {value!r}"
    if about not in spelled:
        if isinstance(value, dict) and value:
            spelled[about] = f"{key}:\n{textwrap.indent(_block(value, spelled), '  ')}"
        else:
            spelled[about] = _emitted(key, value)
    return spelled[about]


def _emitted(key: str, value: Any) -> str:
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = 10_000  # a folded line would not be indented with the rest
    text = io.StringIO()
    yaml.dump({key: value}, text)
    return text.getvalue()
