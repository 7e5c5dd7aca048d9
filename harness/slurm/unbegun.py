"""Runs whose Slurm job ended before they began: a setup line failed, a node lacks the code.

Such a run has no attempt, so the job's output is all that tells why. Nothing is concluded while the
scheduler does not answer: then every submitted run still has a place.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.holder import read_holder
from harness.lease import HOLDER
from harness.paths import SweepPaths
from harness.slurm.submissions import Submission, read_submissions, submission_paths
from harness.status import RunState
from harness.tails import last_lines

SILENT = "printed nothing"
SAID = "isoloss: "
"""Start of the lines that a job's script adds, such as the worker's exit code; why is above."""


@dataclass(frozen=True)
class Unbegun:
    """A run that its newest job never began."""

    state: RunState
    job: str
    """Array task, ``1234_7``."""
    log: Path
    """What the job printed."""


def unbegun_runs(paths: SweepPaths, states: Sequence[RunState]) -> list[Unbegun]:
    """Runs whose newest job has ended without beginning any run.

    Parameters
    ----------
    states
        All runs, with the places that the scheduler gave them.

    Raises
    ------
    DataError
        A submission is damaged.
    """
    waiting = {
        state.run.run_id: state
        for state in states
        if state.status == "planned" and state.attempts == 0 and state.place is None
    }
    if not waiting or not paths.slurm.is_dir():
        return []
    begun = [state.run.run_id for state in states if state.attempts]
    newest: dict[str, tuple[Submission, int]] = {}
    for submission in read_submissions(paths):
        for index, runs in enumerate(submission.tasks):
            newest |= dict.fromkeys((run for run in runs if run in waiting), (submission, index))
    outputs = _Outputs(paths)
    found = []
    for run_id, (submission, index) in newest.items():
        log = outputs.of(submission, index)
        if log is not None and not _began_another(paths, submission.tasks[index], begun, log.stem):
            found.append(Unbegun(waiting[run_id], log.stem, log))
    return found


class _Outputs:
    """What tasks have printed, each submission's folder listed once."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self._names: dict[str, dict[str, str]] = {}

    def of(self, submission: Submission, index: int) -> Path | None:
        """Output of one task; None when it has not written any."""
        out = submission_paths(self.paths, submission.token).out
        if submission.token not in self._names:
            names = sorted(os.listdir(out)) if out.is_dir() else []
            by_task = {name.removesuffix(".log").rpartition("_")[2]: name for name in names}
            self._names[submission.token] = by_task
        name = self._names[submission.token].get(str(index))
        return out / name if name else None


def _began_another(paths: SweepPaths, runs: Sequence[str], begun: Sequence[str], job: str) -> bool:
    """Whether a task has begun a run of its slice: what ended it was not its setup."""
    for run_id in set(runs).intersection(begun):
        here = paths.run(run_id)
        for number in range(here.n_attempts(), 0, -1):
            holder = read_holder(here.attempt(number) / HOLDER)
            if holder is not None and holder.job == job:
                return True
    return False


def last_words(log: Path) -> str:
    """Last line of a job's output, passing over what its script adds."""
    lines = last_lines(log)
    told = [line for line in lines if not line.startswith(SAID)] or lines
    return told[-1] if told else SILENT
