"""The search of a sweep: keeps trials in flight over all arms and sizes, and writes what it found.

One process holds the lease, asks and tells; workers know nothing of it. The order of writing makes
a kill harmless at any moment: a trial with its run's id into the journal, the run into the manifest
of the trials, then to the workers; and back, the run's record before the trial is told.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from harness.control import read_early_stop, stop_early
from harness.errors import GridError, IsolossError
from harness.failures import hold_reason
from harness.grid import Grid
from harness.lease import Lease, acquire, forget_old, fs_now, look
from harness.paths import RunPaths, SweepPaths
from harness.plan import plan, to_manifest
from harness.records import (
    Manifest,
    PlannedRun,
    RunRecord,
    read_manifest,
    read_record,
    write_manifest,
)
from harness.resolve import GridRun
from harness.tuned import Tuned, write_tuned
from harness.tuning.apply import conclude
from harness.tuning.cells import cells_of
from harness.tuning.journal import open_journal
from harness.tuning.pruning import hopeless, pruner_of, validations
from harness.tuning.show import SearchProgress, values_text
from harness.tuning.study import CellStudy
from harness.tuning.trials import Open, give_up_strays

if TYPE_CHECKING:
    from optuna.pruners import BasePruner
    from rich.console import Console


class Trials(Protocol):
    """What executes trials."""

    rest_s: float
    """Pause between two looks at them."""

    def __enter__(self) -> Trials: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def troubles(self) -> Sequence[str]:
        """What went wrong outside the runs, one line each."""

    def tend(self, runs: Sequence[PlannedRun]) -> None:
        """See to it that the open trials are executed; raises IsolossError when they cannot be."""


@contextlib.contextmanager
def search_lease(paths: SweepPaths) -> Iterator[Lease]:
    """Own the search of a sweep.

    Parameters
    ----------
    paths
        Folder of the trials.

    Raises
    ------
    IsolossError
        Another process does: who, and how to watch it.
    """
    terms = paths.root / "search"
    lease = acquire(terms)
    if lease is None:
        holder = look(terms, fs_now(terms)).holder
        who = holder.describe() if holder else "another process"
        raise IsolossError(
            f"{paths.root}: {who} is at work on this search; nothing was started. Watch it: "
            f"isoloss status {paths.root} --watch, or optuna-dashboard {paths.journal}"
        )
    try:
        yield lease
    finally:
        lease.end("left")
        forget_old(terms)


class TrialBook:
    """The manifest of the trials: every run that was ever handed out, before it is.

    Parameters
    ----------
    paths
        Folder of the trials.
    """

    def __init__(self, grid: Grid, paths: SweepPaths) -> None:
        self.paths = paths
        self.grid = dataclasses.replace(
            grid, sweep=paths.root.name, tune=None, tuned=None, untuned=(), notices=()
        )
        first = dataclasses.replace(self.grid, runs=grid.runs[:1])
        self._blank = to_manifest(self.grid, plan(first))
        old = read_manifest(paths).runs if paths.manifest.exists() else []
        self.runs = {run.run_id: run for run in old}

    def planned(self, run: GridRun) -> PlannedRun:
        """Price a run."""
        return plan(dataclasses.replace(self.grid, runs=(run,))).runs[0]

    def add(self, runs: Sequence[PlannedRun]) -> None:
        """Write runs down that are not yet."""
        fresh = {run.run_id: run for run in runs if run.run_id not in self.runs}
        if fresh or not self.paths.manifest.exists():
            self.runs |= fresh
            write_manifest(self.paths, self.manifest())

    def manifest(self) -> Manifest:
        """What is written."""
        return self._blank.model_copy(update={"runs": list(self.runs.values())})


@dataclasses.dataclass
class Flight:
    """A trial under way."""

    study: CellStudy
    open: Open
    seen_bytes: int = 0
    """Size of its metrics file at the last look."""


class Search:
    """The search over all cells of a grid.

    Parameters
    ----------
    sweep
        Folder of the sweep whose values are searched.
    lease
        Ownership of the search.

    Raises
    ------
    IsolossError
        The journal is damaged, or the method cannot search these fields.
    """

    def __init__(self, grid: Grid, sweep: SweepPaths, console: Console, lease: Lease) -> None:
        assert grid.tune is not None
        self.grid, self.sweep, self.paths, self.lease = grid, sweep, sweep.tuning, lease
        self.tune = grid.tune
        self.book = TrialBook(grid, self.paths)
        self.cells = cells_of(grid)
        storage, mended = open_journal(self.paths.journal)
        self.studies = [
            CellStudy(c, self.tune, storage, grid.sweep, self.book.planned, self._blocked)
            for c in self.cells
            if c.searched
        ]
        self.stands_for = {s: self.book.planned(s.cell.template) for s in self.studies}
        self.progress = SearchProgress(console, self.studies)
        self.flights: list[Flight] = []
        if mended:
            self.progress.say(f"note: {mended}")
        give_up_strays(storage, {study.study_id for study in self.studies})
        self.pruner = self._pruner()

    def _pruner(self) -> BasePruner | None:
        pruner = pruner_of(self.tune.stop)
        if pruner is not None and self.grid.execution.n_evals < 2:
            self.progress.say(
                "note: tune.stop stops no trial: it needs execution.n_evals of at least 2"
            )
            return None
        if self.tune.stop.pruner == "asha":
            self.progress.say(
                "note: asha trains the first trials in full and stops later ones early; with few "
                "trials that is luck"
            )
        return pruner

    def take_up(self, parallel: int) -> bool:
        """Settle what an earlier process left and ask for trials; return whether any is open."""
        self.parallel = parallel
        self.flights = [Flight(s, o) for s in self.studies for o in s.settle(self.book.runs)]
        self.book.add([flight.open.run for flight in self.flights])
        self._launch()
        self._turn_around()
        return bool(self.flights)

    def run(self, trials: Trials) -> None:
        """Work until no trial is open.

        Raises
        ------
        LeaseLost
            Another process has the search now.
        IsolossError
            Trials can no longer be executed.
        """
        with trials, self.progress:
            while self.flights:
                trials.tend([flight.open.run for flight in self.flights])
                self.progress.poll(len(self.flights))
                time.sleep(trials.rest_s)
                self.lease.check()
                self._turn_around()
                if self.pruner is not None:
                    self._stop_hopeless(self.pruner)

    def conclude(self) -> Tuned | None:
        """Write the chosen values down; None, and why, while a cell has none."""
        for study in self.studies:
            if not study.complete:
                self.progress.say(f"{study.cell.cell}: not tuned: {study.ended or 'trials left'}")
        if not all(study.complete for study in self.studies):
            return None
        import optuna

        results = {study.cell.key: study.results() for study in self.studies}
        sweep, version = self.grid.sweep, optuna.__version__
        try:
            tuned = conclude(self.cells, results, self.tune, sweep=sweep, optuna=version)
        except GridError as error:
            self.progress.say(str(error))
            return None
        self.lease.check()
        write_tuned(self.sweep.tuned, tuned)
        return tuned

    def _blocked(self, run_id: str) -> str | None:
        """Why a run will not be executed by itself: it failed, or a person cancelled it."""
        here = self.paths.run(run_id)
        record = read_record(here.record)
        if record is not None and record.status == "failed":
            return f"{record.excluded_because}; then: isoloss retry {self.paths.root.name}"
        if record is None and here.cancel.exists() and read_early_stop(here) is None:
            return f"was cancelled; free it: isoloss retry {self.paths.root.name}"
        return None

    def _turn_around(self) -> None:
        """Tell what has ended and ask for more; runs of an earlier search have ended already."""
        while self._land():
            self._launch()

    def _land(self) -> bool:
        """Tell the trials whose runs have ended; return whether any did."""
        open_ = [flight for flight in self.flights if not self._has_landed(flight)]
        landed, self.flights = len(open_) < len(self.flights), open_
        return landed

    def _has_landed(self, flight: Flight) -> bool:
        here = self.paths.run(flight.open.run.run_id)
        record = read_record(here.record)
        if record is not None:
            self._tell(flight, record, here)
            return True
        return self._is_left(flight, here)

    def _tell(self, flight: Flight, record: RunRecord, here: RunPaths) -> None:
        study, number = flight.study, flight.open.number
        why = record.excluded_because or record.status
        study.report(number, {i: loss for i, (_, loss) in validations(here).items()})
        if record.status == "done" and record.loss_nats is not None:
            study.done(number, record.loss_nats)
        elif record.status == "diverged":
            study.diverged(number, why)
        elif record.status == "cancelled":
            study.pruned(number, why)
        else:
            study.fail(number, why)
        loss = f"{record.loss_nats:.4f} nats" if record.loss_nats is not None else why
        self._say(flight, loss)

    def _say(self, flight: Flight, what: str) -> None:
        study, values = flight.study, values_text(flight.open.values)
        count = f"[{study.n_finished}/{study.tune.trials}]"
        self.progress.say(f"{count} {study.cell.cell}: {values}: {what}")

    def _is_left(self, flight: Flight, here: RunPaths) -> bool:
        """Whether an open trial's run is not waited for: it was cancelled, or is held back."""
        run = flight.open.run
        cancelled = here.cancel.exists() and read_early_stop(here) is None
        held = hold_reason(self.paths, run, self.grid.execution.equal_failures)
        if not (cancelled or held) or look(here.attempts, fs_now(self.paths.root)).taken:
            return False
        if cancelled:
            flight.study.fail(flight.open.number, "its run was cancelled")
            flight.study.stop(f"its trial {run.run_id} {self._blocked(run.run_id)}")
        else:  # stays open: it is waited for again once the cause is mended
            flight.study.stop(f"held back: {held}")
        return True

    def _launch(self) -> None:
        """Ask until enough trials are open, of the cells with fewest open ones first."""
        fresh: list[PlannedRun] = []
        while len(self.flights) < self.parallel:
            flight = next((f for f in map(self._ask, self._by_need()) if f is not None), None)
            if flight is None:
                break
            self.flights.append(flight)
            fresh.append(flight.open.run)
        self.book.add(fresh)

    def _by_need(self) -> list[CellStudy]:
        open_ = [flight.study for flight in self.flights]
        going = [study for study in self.studies if study.ended is None]
        return sorted(going, key=open_.count)

    def _ask(self, study: CellStudy) -> Flight | None:
        run = self.stands_for[study]
        held = hold_reason(self.paths, run, self.grid.execution.equal_failures)
        if held:
            study.stop(f"held back: {held}")
            return None
        found = study.next()
        return None if found is None else Flight(study, found)

    def _stop_hopeless(self, pruner: BasePruner) -> None:
        for flight in self.flights:
            here = self.paths.run(flight.open.run.run_id)
            size = here.metrics.stat().st_size if here.metrics.exists() else 0
            if size == flight.seen_bytes or here.cancel.exists():
                continue
            flight.seen_bytes = size
            why = hopeless(flight.study, pruner, flight.open, here)
            if why is not None:
                stop_early(here, why)
