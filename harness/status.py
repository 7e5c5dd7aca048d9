"""Live state of a sweep, read from its files alone: no torch, no scheduler, no MLflow."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.claim import is_claimed
from harness.paths import RunPaths, SweepPaths
from harness.records import Manifest, PlannedRun, RunRecord, Status, read_record

STATUS_ORDER: tuple[Status, ...] = (
    *("done", "running", "queued", "planned"),
    *("diverged", "failed", "cancelled"),
)
TAIL_BYTES = 4096
"""How much of a metrics file is read to find its last row."""


@dataclass(frozen=True)
class RunState:
    """Where one run stands."""

    run: PlannedRun
    status: Status
    step: int
    """Last step that was logged."""
    loss_nats: float | None
    """Final validation loss of a finished run, else the last training loss."""
    step_time_s: float | None
    attempts: int
    reason: str | None
    recipe_sha256: str | None = None
    """Source of the recipe that a finished run was trained with."""

    @property
    def resumable(self) -> bool:
        """Stopped after it had begun: the next ``isoloss run`` goes on from its checkpoint."""
        return self.status in ("planned", "queued") and self.attempts > 0

    @property
    def seconds_left(self) -> float | None:
        """Time that the remaining steps take at the last measured pace; None when unknown."""
        if self.step_time_s is None:
            return None
        return (self.run.cost.steps - self.step) * self.step_time_s


def run_state(run: PlannedRun, paths: RunPaths, *, controlled: bool) -> RunState:
    """Derive the state of one run from its folder.

    Parameters
    ----------
    controlled
        Whether a live ``isoloss run`` has the sweep in hand, which makes waiting runs ``queued``.
    """
    record = read_record(paths.record)
    if record is not None:
        return _ended(run, record)
    row = last_row(paths.metrics) or {}
    still = waiting(run, controlled=controlled)
    return dataclasses.replace(
        still,
        status="running" if is_claimed(paths.lock) else still.status,
        step=int(row.get("step", 0)),
        loss_nats=row.get("loss_nats"),
        step_time_s=row.get("step_time_s"),
        attempts=paths.n_attempts(),
    )


def waiting(run: PlannedRun, *, controlled: bool) -> RunState:
    """State of a run that has not begun."""
    return RunState(run, "queued" if controlled else "planned", 0, None, None, 0, None)


def _ended(run: PlannedRun, record: RunRecord) -> RunState:
    return RunState(
        run=run,
        status=record.status,
        step=record.last_step,
        loss_nats=record.loss_nats,
        step_time_s=record.step_time_s,
        attempts=record.attempts,
        reason=record.excluded_because,
        recipe_sha256=record.recipe_sha256,
    )


def last_row(path: Path) -> dict[str, Any] | None:
    """Read the last training row of a metrics file from its tail; None when there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - TAIL_BYTES))
            lines = stream.read().decode("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(row, dict) and row.get("kind") == "train":
            return row
    return None


def sweep_states(paths: SweepPaths, manifest: Manifest) -> list[RunState]:
    """State of every run of a sweep, in the manifest's order."""
    controlled = is_claimed(paths.controller)
    begun = set(run_folders(paths))
    return [
        run_state(run, paths.run(run.run_id), controlled=controlled)
        if run.run_id in begun
        else waiting(run, controlled=controlled)
        for run in manifest.runs
    ]


def run_folders(paths: SweepPaths) -> list[str]:
    """Names of the run folders that exist: one look at the disk for a whole sweep."""
    return sorted(os.listdir(paths.runs)) if paths.runs.is_dir() else []


def counts(states: list[RunState]) -> dict[str, int]:
    """How many runs are in each status that occurs, finished ones first."""
    tally = Counter(state.status for state in states)
    return {status: tally[status] for status in STATUS_ORDER if tally[status]}


def by_arm(states: list[RunState]) -> dict[str, list[RunState]]:
    """States grouped by arm, in order of appearance."""
    groups: dict[str, list[RunState]] = {}
    for state in states:
        groups.setdefault(state.run.arm, []).append(state)
    return groups
