"""What was handed to Slurm, as files: one folder per job array, written before it is submitted.

A submission whose answer was lost has a name but no job id; its unique name finds it in the queue.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from harness.errors import DataError
from harness.paths import SweepPaths
from harness.records import write_text_atomically


class Submission(BaseModel):
    """One job array."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    token: str
    """Unique; the end of the job's name."""
    name: str
    """Job name, ``<sweep>.<token>``."""
    job_id: str | None = None
    """Id of the array; None before Slurm has answered."""
    user: str
    """Who submitted it; the queue is asked for the jobs of all who did."""
    created_at: float
    """Seconds since the epoch, on the file system's clock."""
    tasks: list[list[str]]
    """Run ids by array task."""


@dataclass(frozen=True)
class SubmissionPaths:
    """Files of one submission: ``results/<sweep>/slurm/<token>/``."""

    root: Path

    @property
    def script(self) -> Path:
        """The sbatch script."""
        return self.root / "script.sh"

    @property
    def job(self) -> Path:
        """What its workers are to do."""
        return self.root / "job.json"

    @property
    def about(self) -> Path:
        """The submission itself."""
        return self.root / "submission.json"

    @property
    def out(self) -> Path:
        """What tasks print, ``<array>_<task>.log``."""
        return self.root / "out"


def new_token() -> str:
    """A name that no other submission has."""
    return f"i{secrets.token_hex(4)[:7]}"


def submission_paths(paths: SweepPaths, token: str) -> SubmissionPaths:
    """Files of the submission ``token``."""
    return SubmissionPaths(paths.slurm / token)


def write_submission(paths: SweepPaths, submission: Submission) -> None:
    """Write a submission down, atomically."""
    about = submission_paths(paths, submission.token).about
    write_text_atomically(about, submission.model_dump_json() + "\n")


def read_submissions(paths: SweepPaths) -> list[Submission]:
    """All submissions of a sweep, oldest first.

    Raises
    ------
    DataError
        A file is damaged.
    """
    found = []
    for name in os.listdir(paths.slurm) if paths.slurm.is_dir() else ():
        about = submission_paths(paths, name).about
        try:
            found.append(Submission.model_validate_json(about.read_text(encoding="utf-8")))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except ValidationError as error:
            raise DataError(
                f"{about}: not a submission. Move its folder away; jobs of it that still run "
                "are told apart by their runs' leases."
            ) from error
    return sorted(found, key=lambda submission: submission.created_at)
