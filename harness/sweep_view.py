"""Reads what `isoloss status` shows: files at every look, the scheduler now and then."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.common_step import CurveReader, common_step
from harness.failures import EQUAL_FAILURES, held_arms, open_breaker
from harness.overview import Overview, Surroundings, overview
from harness.paths import SweepPaths
from harness.records import Manifest, read_manifest
from harness.slurm.types import Place
from harness.slurm.unbegun import Unbegun, unbegun_runs
from harness.status import RunState, StateReader, execution_value, lease_seconds
from harness.status_cache import StatKey, stat_key

ASK_EVERY_S = 10.0
"""Seconds between two questions to the scheduler's controller."""
ASK_AGAIN_S = 30.0
"""Seconds until a controller that did not answer is asked again."""
ANSWER_WITHIN_S = 3.0
"""Longest time that a look waits for the controller; files tell most."""


@dataclass(frozen=True)
class SchedulerAnswer:
    """What the scheduler has of a sweep."""

    places: Mapping[str, Place] = field(default_factory=dict)
    note: str | None = None
    """What to say of the answer; None for a sweep that was never submitted."""
    answered: bool = True


class Scheduler:
    """Asks Slurm about a sweep, seldom; not at all where nothing was submitted."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self._answer = SchedulerAnswer()
        self._asked_at: float | None = None

    def ask(self) -> SchedulerAnswer:
        """Return the last answer, or a new one when it is old enough."""
        now = time.monotonic()
        rest_s = ASK_EVERY_S if self._answer.answered else ASK_AGAIN_S
        old = self._asked_at is None or now - self._asked_at >= rest_s
        if old and self.paths.slurm.is_dir():
            self._answer = self._ask()
            self._asked_at = time.monotonic()
        return self._answer

    def _ask(self) -> SchedulerAnswer:
        from harness.slurm.call import Patience
        from harness.slurm.view import look_at_slurm

        seen = look_at_slurm(self.paths, patience=Patience(query_s=ANSWER_WITHIN_S))
        if seen.reachable and seen.message is None:
            return SchedulerAnswer(seen.places, "Slurm answers")
        what = "no Slurm on this machine" if seen.reachable else "Slurm does not answer"
        note = f"{what}: states from files alone ({seen.message})"
        return SchedulerAnswer(seen.places, note, answered=False)

    def unbegun(self, states: Sequence[RunState]) -> list[Unbegun]:
        """Runs whose job ended before they began; none are known while Slurm does not answer.

        Raises
        ------
        DataError
            A submission is damaged.
        """
        return unbegun_runs(self.paths, states) if self.ask().answered else []


class SweepView:
    """One sweep as it is looked at.

    Parameters
    ----------
    paths
        The sweep.
    grid
        Its grid file, where it is known.
    options
        What a next command needs to find the results.
    watching
        Whether more looks follow.

    Raises
    ------
    DataError
        There is no such sweep.
    """

    def __init__(
        self,
        paths: SweepPaths,
        *,
        grid: str | None = None,
        options: tuple[str, ...] = (),
        watching: bool = False,
    ) -> None:
        self.paths, self.grid, self.options, self.watching = paths, grid, options, watching
        self.scheduler = Scheduler(paths)
        self.curves = CurveReader(paths)
        self._manifest_key: StatKey | None = None
        self._load()

    def _load(self) -> None:
        """Read the manifest if it was written since: the grid may have been edited and run."""
        key = stat_key(self.paths.manifest)
        if key is not None and key == self._manifest_key:
            return
        manifest = _read(self.paths)
        self._manifest_key = key
        self.lease_s = lease_seconds(manifest)
        self.equal_failures = int(execution_value(manifest, "equal_failures", EQUAL_FAILURES))
        self.sweep = manifest.sweep
        self.reader = StateReader(self.paths, manifest.runs, self.lease_s)

    def states(self) -> list[RunState]:
        """State of every run.

        Raises
        ------
        DataError
            A record is damaged.
        """
        self._load()
        return self.reader.look(self.scheduler.ask().places)

    def overview(self, states: list[RunState]) -> Overview:
        """Summarise what :meth:`states` found."""
        around = Surroundings(
            sweep=self.sweep,
            at=time.time(),
            lease_s=self.lease_s,
            breaker=open_breaker(self.paths, self.equal_failures),
            held_arms=held_arms(self.paths),
            n_unbegun=len(self.scheduler.unbegun(states)),
            scheduler=self.scheduler.ask().note,
            grid=self.grid,
            options=self.options,
            watching=self.watching,
        )
        return overview(states, common_step(states, self.curves), around)


def _read(paths: SweepPaths) -> Manifest:
    """Read the manifest, and keep the collector from walking its many small objects ever after."""
    gc.disable()
    try:
        return read_manifest(paths)
    finally:
        gc.freeze()
        gc.enable()
