"""Trials on Slurm: every batch of new ones as job arrays, what got lost again; the search stays.

The run folders are looked at all the time, the queue only to submit and now and then.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from harness.errors import IsolossError
from harness.in_hand import SweepInHand
from harness.paths import SweepPaths
from harness.records import Manifest, PlannedRun, read_manifest
from harness.slurm.types import SchedulerUnreachable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.grid import Grid
    from harness.status import RunState

REST_S = 1.0
"""Pause between two looks at trials."""
QUEUE_S = 20.0
"""Pause between two looks at the queue while no trial is new."""
OPEN_PER_CELL = 3
"""Trials of a cell at a time by default: those that a bracket begins with."""


class SlurmTrials(SweepInHand):
    """Submits open trials through the same limits, waves and notes as any sweep.

    Parameters
    ----------
    paths
        Folder of the trials.
    manifest
        Its manifest as it is now.
    grid
        Where the ``slurm`` block stands.
    """

    rest_s = REST_S

    def __init__(self, console: Console, paths: SweepPaths, manifest: Manifest, grid: Grid) -> None:
        assert grid.slurm is not None
        at_once = grid.slurm.model_copy(update={"canary": False})  # one failed trial holds its arm
        super().__init__(console, paths, manifest, dataclasses.replace(grid, slurm=at_once))
        self.troubles: list[str] = []
        self._sent: set[str] = set()
        self._looked_at = 0.0
        self._away = False

    def __enter__(self) -> SlurmTrials:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave what was submitted to itself."""

    def tend(self, runs: Sequence[PlannedRun]) -> None:
        """Submit open trials that Slurm does not have.

        Raises
        ------
        IsolossError
            Slurm refuses them, or they end again and again before they begin.
        """
        fresh = any(run.run_id not in self._sent for run in runs)
        if not runs or not (fresh or time.monotonic() - self._looked_at > QUEUE_S):
            return
        try:
            with self._turn():
                self._send(runs)
            self._away = False
        except SchedulerUnreachable as error:
            if not self._away:
                self.say(f"{error} Waiting for it; what was submitted goes on.")
            self._away = True
        self._looked_at = time.monotonic()

    def _send(self, runs: Sequence[PlannedRun]) -> None:
        from harness.sweep import difference

        view = self.look()
        if not view.reachable:
            raise SchedulerUnreachable(view.message or "Slurm does not answer.")
        self.manifest = read_manifest(self.paths)
        change = difference(self.paths, self.manifest, view.places)
        wanted = {run.run_id for run in runs}
        idle = [s.run for s in (*change.todo, *_given_up(change.cancelled))]
        todo = [run for run in idle if run.run_id in wanted]
        able = self._not_in_vain(todo)
        if todo and not able:
            raise IsolossError("trials end before they begin; unfinished ones are saved")
        done = self._submit(able, change, view, dry=False)
        if done is not None and done.refused is not None:
            raise IsolossError(f"Slurm refused trials: {done.refused}")
        self._sent.update(wanted if done is None or not done.left else ())


def _given_up(states: Sequence[RunState]) -> list[RunState]:
    """Trials that shall be stopped early and that nobody has: a worker writes down why."""
    return [state for state in states if state.place is None]
