"""One sweep in the hands of `isoloss run`: what exists, what is missing, who is to do it."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from harness.errors import IsolossError
from harness.paths import SweepPaths
from harness.slurm.types import SchedulerUnreachable

if TYPE_CHECKING:
    from rich.console import Console

    from harness.grid import Grid
    from harness.records import Manifest, PlannedRun
    from harness.slurm.submit import Submitted
    from harness.slurm.view import SchedulerView
    from harness.status import RunState
    from harness.sweep import Difference

VAIN_TRIES = 3
"""Submissions of `run --follow` that may end without the run having begun."""
FOLLOW_S = 30.0
"""Pause between two looks of `run --follow`; it grows while nothing changes."""
LONGEST_FOLLOW_S = 300.0
"""Longest such pause."""
TURN_S = 1.0
"""Pause of one who waits for another to have submitted."""


class SweepInHand:
    """One sweep in the hands of `isoloss run`."""

    def __init__(self, console: Console, paths: SweepPaths, manifest: Manifest, grid: Grid) -> None:
        self.console, self.paths, self.manifest, self.grid = console, paths, manifest, grid
        self._said = ""
        self._known: list[RunState] | None = None
        """States at the last look, as long as nothing was started or cancelled since."""
        self.held = False
        """Whether equal failures keep runs from being started."""
        self._vain: Counter[str] = Counter()
        self._attempts: dict[str, int] = {}
        """Attempts of every submitted run when it was submitted."""

    def say(self, line: str) -> None:
        """Print one line as it is."""
        self.console.print(line, markup=False, highlight=False)

    def look(self) -> SchedulerView:
        """What Slurm has of this sweep; empty where nothing was ever submitted."""
        from harness.slurm.view import SchedulerView, look_at_slurm

        submitted = self.paths.slurm.is_dir()
        return look_at_slurm(self.paths, sure=True) if submitted else SchedulerView()

    def states(self) -> list[RunState]:
        """Where every run stands: as last seen where that still holds, else by a new look."""
        from harness.status import sweep_states

        if self._known is None:
            self._known = sweep_states(self.paths, self.manifest, self.look().places)
        return self._known

    def compare(self) -> tuple[Difference, SchedulerView]:
        """Hold the grid against what exists; say the difference when it has changed."""
        from harness.sweep import difference

        view = self.look()
        change = difference(self.paths, self.manifest, view.places)
        self._known = change.states
        if change.describe() != self._said:
            self._said = change.describe()
            self.say(f"{self.manifest.sweep}: {self._said}")
        return change, view

    def reconcile(self, prune: bool) -> tuple[Difference, SchedulerView]:
        """Say what the grid wants and what exists; then write the grid down as wanted."""
        from harness.records import write_manifest

        change, view = self.compare()
        for notice in change.notices():
            self.say(f"note: {notice}")
        if view.message:
            self.say(f"note: {view.message}")
        write_manifest(self.paths, self.manifest)
        if prune and change.unwanted_alive:
            self._prune(change.unwanted_alive, view)
        return change, view

    def _prune(self, run_ids: list[str], view: SchedulerView) -> None:
        from harness.control import cancel_runs

        done = cancel_runs(self.paths, run_ids, view)
        self._known = None
        self.say(f"pruned: {done.describe()}")

    def startable(self, change: Difference, limit: int | None) -> list[PlannedRun]:
        """Runs to start, without those that equal failures hold back; say which and why."""
        from harness.failures import hold_reason

        alike = self.grid.execution.equal_failures
        reasons = {s.run.run_id: hold_reason(self.paths, s.run, alike) for s in change.todo}
        self.held = any(reasons.values())
        for reason in sorted({reason for reason in reasons.values() if reason}):
            self.say(f"held back: {reason}")
        return [s.run for s in change.todo if not reasons[s.run.run_id]][:limit]

    def run_here(self, workers: int | None, limit: int | None, prune: bool) -> None:
        """Execute what is missing on this machine."""
        from harness.console import SweepProgress
        from harness.sweep import default_workers, execute

        change, _ = self.reconcile(prune)
        todo = self.startable(change, limit)
        if not todo:
            return
        self._known = None
        mirrored = self._mirrored()
        with SweepProgress(self.console, self.paths, todo) as progress:
            outcome = execute(
                self.paths,
                self.manifest.sweep,
                todo,
                self.grid.execution,
                workers=workers or default_workers(self.grid.execution),
                mlflow=mirrored,
                on_poll=progress.poll,
            )
        for trouble in outcome.troubles:
            self.console.print(trouble, markup=False, highlight=False, style="bold")
        if not outcome.undisturbed:
            self.say("Stopped; every unfinished run is saved. The same command goes on from there.")

    def _mirrored(self) -> bool:
        """Whether MLflow is written beside the workers."""
        from harness.tracking import mirror_mode

        mode, notice = mirror_mode(self.paths, self.grid.mlflow.mode)
        if notice:
            self.say(f"note: {notice}")
        return mode == "direct"

    def run_on_slurm(self, limit: int | None, prune: bool, *, dry: bool) -> bool:
        """Submit what is missing; return whether Slurm took all that it was given.

        Raises
        ------
        IsolossError
            Nothing was submitted: the block does not fit the cluster, or Slurm refuses or does not
            answer.
        """
        with self._turn():
            change, view = self.reconcile(prune)
            if not view.reachable:
                raise IsolossError(f"nothing was submitted: {view.message}")
            done = self._submit(self.startable(change, limit), change, view, dry)
        return done is None or done.refused is None

    def follow(self) -> bool:
        """Top up waves and submit again what got lost, until all runs have ended or nothing more
        can be done; return whether Slurm took all that it was given.

        A controller that does not answer for a while is waited for.
        """
        pause_s, away = FOLLOW_S, False
        while self._is_ours():
            before = self._said
            try:
                with self._turn():
                    if not self._top_up():
                        return True
                away = False
            except SchedulerUnreachable as error:
                if not away:
                    self.say(f"{error} Waiting for it; what was submitted goes on.")
                away = True
            pause_s = FOLLOW_S if self._said != before else min(1.5 * pause_s, LONGEST_FOLLOW_S)
            time.sleep(pause_s)
        self.say("The grid was edited and run again meanwhile: that command has the sweep now.")
        return True

    def _top_up(self) -> bool:
        """Submit what can be; return whether anything is left to wait for."""
        change, view = self.compare()
        if not view.reachable:
            raise SchedulerUnreachable(view.message or "Slurm does not answer.")
        todo = self._not_in_vain(self.startable(change, None))
        done = self._submit(todo, change, view, dry=False)
        if done is not None and done.refused is not None:
            return False
        return bool(change.queued or change.running or (done and (done.arrays or done.left)))

    def _is_ours(self) -> bool:
        """Whether the sweep is still the one that this command wrote down."""
        from harness.records import read_manifest

        return read_manifest(self.paths).created_at == self.manifest.created_at

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """One at a time looks and submits; a second waits, and then sees what the first did."""
        from harness.lease import acquire, forget_old

        terms = self.paths.slurm / "turns"
        lease = acquire(terms)
        if lease is None:
            self.say("Another `isoloss run` is submitting this sweep; waiting for it.")
        while lease is None:
            time.sleep(TURN_S)
            lease = acquire(terms)
        try:
            yield
        finally:
            lease.end("submitted")
            forget_old(terms)

    def _not_in_vain(self, runs: list[PlannedRun]) -> list[PlannedRun]:
        """Leave out runs whose jobs ended again and again before they began: a setup that fails."""
        for run in runs:
            if run.run_id in self._attempts:
                begun = self.paths.run(run.run_id).n_attempts() > self._attempts[run.run_id]
                self._vain[run.run_id] = 0 if begun else self._vain[run.run_id] + 1
        vain = {run.run_id for run in runs if self._vain[run.run_id] >= VAIN_TRIES}
        if vain:
            self.say(
                f"{len(vain)} runs were submitted {VAIN_TRIES} times and never began; not again. "
                f"Look at isoloss logs {self.manifest.sweep} {min(vain)}"
            )
        return [run for run in runs if run.run_id not in vain]

    def _submit(
        self, todo: list[PlannedRun], change: Difference, view: SchedulerView, dry: bool
    ) -> Submitted | None:
        from harness.slurm.limits import cluster_limits
        from harness.slurm.submit import Submitter, arrays_of, canaries_of
        from harness.sweep import mirror_command, prepare

        slurm = self.grid.slurm
        if not todo or slurm is None:
            return None
        canaries = canaries_of(todo, change.proven_arms) if slurm.canary else []
        arrays = arrays_of(todo, canaries, slurm, cluster_limits().max_array_size)
        submitter = Submitter(
            self.paths,
            self.manifest.sweep,
            self.grid.execution,
            code=prepare(self.paths, todo),
            mirror=mirror_command(self.paths, slurm.interpreter) if self._mirrored() else None,
            say=self.say,
        )
        room = None if slurm.max_queued is None else slurm.max_queued - len(view.tasks)
        done = submitter.submit(arrays, room, dry=dry)
        self._known = None
        for array in done.arrays:
            for run_id in (run_id for task in array.tasks for run_id in task):
                self._attempts[run_id] = self.paths.run(run_id).n_attempts()
        self._tell(done)
        return done

    def _tell(self, done: Submitted) -> None:
        if done.full:
            self.say(f"Slurm takes no more for now: {done.full}")
        if done.refused:
            self.say(f"Slurm refused the rest: {done.refused}")
        if done.left:
            self.say(f"{done.left} runs wait for room in the queue")
