"""Where a run begins: at its start, at its own checkpoint, or where a shorter run branched off.

A branch gets the rows that the other run logged up to there, so that its files hold its whole loss
curve; they carry ``trained_by`` and attempt 0, and no time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.callbacks import Progress
from harness.checkpoints import leave_in_trunk, newest_checkpoint, newest_in_trunk, step_of
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, read_jsonl
from harness.trunks import is_wanted

NO_TIME = {"attempt": 0, "elapsed_s": 0.0, "step_time_s": None}
"""What rows say of steps that another run has trained: they count for no attempt and no time."""


def trunk_to_serve(run: PlannedRun, paths: RunPaths) -> Path | None:
    """Folder where ``run`` leaves its state at its branch; None where no other run needs it."""
    sweep = SweepPaths(paths.root.parent.parent)
    return sweep.trunk(run.trunk) if run.trunk and is_wanted(sweep, run) else None


def begin(run: PlannedRun, progress: Progress) -> Path | None:
    """Find the newest state from which ``run`` can go on: its own or, up to its branch step, its
    trunk's; None to train from the start.

    Raises
    ------
    CheckpointError
        The run's folder holds a checkpoint of another run.
    OSError
        Files cannot be read or written at the moment.
    """
    paths = progress.paths
    own = newest_checkpoint(paths)
    if run.trunk is None or run.branch_step is None:
        return own
    reached = step_of(own) if own else 0
    if own and progress.trunk and reached == run.branch_step:  # stopped before it could leave it
        leave_in_trunk(own, progress.trunk)
    folder = SweepPaths(paths.root.parent.parent).trunk(run.trunk)
    state = newest_in_trunk(folder, run.trunk, above=reached, at_most=run.branch_step)
    if state is None:
        return own
    print(f"goes on from step {state.step} of run {state.run_id}, trunk {run.trunk}")
    _take_over(progress, RunPaths(paths.root.with_name(state.run_id)), state.step)
    return state.path


def _take_over(progress: Progress, there: RunPaths, step: int) -> None:
    """Copy what another run logged up to a step, but for rows that this run has."""
    here = progress.paths
    for target, source in (
        (here.metrics, there.metrics),
        (here.diagnostics, there.diagnostics),
    ):
        known = {_key(row) for row in read_jsonl(target)}
        for row in read_jsonl(source):
            if row["step"] <= step and _key(row) not in known:
                untimed = {key: value for key, value in NO_TIME.items() if key in row}
                progress.append(target, {"trained_by": there.run_id} | row | untimed)


def _key(row: dict[str, Any]) -> tuple[str, int]:
    return str(row.get("kind")), int(row["step"])
