"""A job: runs handed to workers, as a file that says all they need."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from harness.config import Execution
from harness.errors import DataError
from harness.records import PlannedRun, write_text_atomically


class Job(BaseModel):
    """What a worker is to do; complete in itself, so that editing the grid does not change it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sweep: str
    """Name of the sweep."""
    sweep_dir: Path
    """Folder of the sweep."""
    runs: list[PlannedRun]
    """The runs, in the order to claim them."""
    execution: Execution
    """How to execute them."""


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
