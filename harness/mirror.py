"""The MLflow mirror: one process that pushes what is new in a sweep's folder.

Training workers know nothing of it, so it can neither stop nor slow them. Deleting MLflow's store
loses nothing: the next pass fills a new one. What is shown of a run is decided in
``harness.mirror_view``; how it gets into MLflow, in ``harness.mirror_store``.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.claim import claim
from harness.errors import DataError
from harness.mirror_store import ShownRun, Store
from harness.mirror_view import RUN_ID_TAG, RunView, file_sha, is_running, view_run
from harness.mlflow_api import STORE_ERRORS, is_outage, silence
from harness.paths import RunPaths, SweepPaths
from harness.records import Manifest, PlannedRun, read_manifest
from harness.tracking import check_uri

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("isoloss.mirror")

Figures = Callable[[RunPaths], "dict[str, Figure]"]
Stamp = tuple[object, ...]
"""What tells whether a file or a run's folder has changed since it was last looked at."""

LONGEST_PAUSE_S = 60.0
"""Longest pause between two tries while the store is away."""
LAST_TRIES = 3
"""Tries to complete the mirror at the end of ``follow`` before it is left to ``isoloss sync``."""
LAST_PAUSE_S = 2.0
"""Pause between them."""
GLANCE_S = 0.2
"""How often a pause looks whether to stop."""
MESSAGE_CHARS = 200
"""How much of MLflow's own message is passed on."""
REPORTED = 3
"""Problems written out; more are counted."""


@dataclass(frozen=True)
class SyncResult:
    """What one pass did."""

    n_runs: int
    """Runs of the manifest that MLflow shows now."""
    n_points: int
    """Metric points sent by this pass."""
    n_final: int
    """Runs that have ended and are mirrored completely."""
    problems: tuple[str, ...] = ()
    """What could not be mirrored, one line each; the next pass tries again."""
    reached: bool = True
    """False when the store was away: the pass stopped early."""


class Mirror:
    """Keeps MLflow up to date with the folder of one sweep.

    Parameters
    ----------
    tracking_uri
        As returned by :func:`harness.tracking.create_store`.
    figures
        Makes the figures of a run that has ended, by file name; None for no figures.

    Raises
    ------
    IsolossError
        The tracking URI is of a kind that cannot be used.
    """

    def __init__(
        self, paths: SweepPaths, tracking_uri: str, figures: Figures | None = None
    ) -> None:
        check_uri(tracking_uri)
        silence()
        self.paths, self.tracking_uri, self.figures = paths, tracking_uri, figures
        self.lock = paths.mirror_lock
        self._store: Store | None = None
        self._shown: dict[str, ShownRun] = {}
        self._stamps: dict[str, Stamp] = {}
        self._final: set[str] = set()
        self._manifest: tuple[Stamp, Manifest] | None = None
        self._reported: tuple[str, ...] = ()

    def sync(self) -> SyncResult:
        """Push everything that is new, once; idempotent.

        Troubles of the store are returned as problems, never raised.

        Raises
        ------
        DataError
            The sweep has no manifest.
        """
        with claim(self.lock) as owner:
            if owner:
                return self._pass()
        return SyncResult(0, 0, 0, ("another mirror is at work on this sweep",), reached=False)

    def follow(self, should_stop: Callable[[], bool], interval_s: float = 5.0) -> None:
        """Push what is new every ``interval_s`` until asked to stop, then once more.

        While the store is away, tries get rarer (up to one a minute) and nothing is lost. When
        another mirror follows the sweep already, this one waits to take its place.
        """
        while True:
            with claim(self.lock) as owner:
                if owner:
                    self._follow(should_stop, interval_s)
                    return
            if should_stop():
                log.info("another mirror follows this sweep; it will complete it")
                return
            _pause(interval_s, should_stop)

    def _follow(self, should_stop: Callable[[], bool], interval_s: float) -> None:
        pause_s = interval_s
        while not should_stop():
            result = self._pass()
            self._report(result)
            pause_s = interval_s if result.reached else min(2 * pause_s, LONGEST_PAUSE_S)
            _pause(pause_s, should_stop)
        for _ in range(LAST_TRIES):
            result = self._pass()
            self._report(result)
            if result.reached:
                return
            time.sleep(LAST_PAUSE_S)
        log.warning("MLflow is incomplete; bring it up to date with: isoloss sync GRID")

    def _report(self, result: SyncResult) -> None:
        """Log problems when they change, not every few seconds."""
        if result.problems == self._reported:
            return
        for problem in result.problems[:REPORTED]:
            log.warning("%s", problem)
        if len(result.problems) > REPORTED:
            log.warning("and %d more", len(result.problems) - REPORTED)
        if not result.problems:
            log.info("MLflow is up to date again: %d runs", result.n_runs)
        self._reported = result.problems

    def _pass(self) -> SyncResult:
        manifest = self._read_manifest()
        try:
            store = self._met(manifest)
        except STORE_ERRORS as error:
            return SyncResult(0, 0, 0, (self._describe(error),), reached=False)
        problems: list[str] = []
        n_points, reached = 0, True
        for run in manifest.runs:
            try:
                n_points += self._push(store, run, manifest.sweep, problems)
            except DataError as error:
                problems.append(f"{run.run_id}: {error}")
            except STORE_ERRORS as error:
                self._store = None
                problems.append(f"{run.run_id}: {self._describe(error)}")
                if is_outage(error):
                    reached = False
                    break
        wanted = {run.run_id for run in manifest.runs}
        n_runs, n_final = len(wanted & self._shown.keys()), len(wanted & self._final)
        return SyncResult(n_runs, n_points, n_final, tuple(problems), reached)

    def _read_manifest(self) -> Manifest:
        stamp = _stat(self.paths.manifest)
        if self._manifest is None or self._manifest[0] != stamp:
            self._manifest = (stamp, read_manifest(self.paths))
        return self._manifest[1]

    def _describe(self, error: Exception) -> str:
        """One line on an error of the store: what it refused, or that it does not answer."""
        text = " ".join(str(error).split()) or type(error).__name__
        what = "does not answer" if is_outage(error) else "refuses"
        return f"MLflow at {self.tracking_uri} {what} ({text[:MESSAGE_CHARS]})"

    def _met(self, manifest: Manifest) -> Store:
        """Learn what the store holds, unless that is known.

        After any error ``_store`` is None and all is asked anew: an answer may have been lost, or
        the store emptied or restored meanwhile.
        """
        if self._store is None:
            store = Store(self.tracking_uri, self.paths.mlflow_artifacts)
            self._shown = store.open(manifest.sweep)
            self._stamps, self._final = {}, set()
            wanted = {run.run_id for run in manifest.runs}
            store.close(self._shown.values(), lambda shown: self._is_stray(shown, wanted))
            self._store = store
        return self._store

    def _is_stray(self, shown: ShownRun, wanted: set[str]) -> bool:
        """Whether a run of this folder is no longer asked for, and nobody executes it."""
        paths = self.paths.run(shown.tags[RUN_ID_TAG])
        return paths.run_id not in wanted and paths.root.is_dir() and not is_running(paths)

    def _push(self, store: Store, run: PlannedRun, sweep: str, problems: list[str]) -> int:
        """Push what is new of one run; return the number of points sent."""
        paths = self.paths.run(run.run_id)
        stamp = _stamp(paths)
        if self._stamps.get(run.run_id) == stamp:
            return 0
        self._final.discard(run.run_id)
        shown = self._shown.get(run.run_id)
        record_sha = file_sha(paths.record)
        n_points = 0
        if shown is None or record_sha is None or shown.mirrored != record_sha:
            view = _view(run, sweep, paths)
            n_points = self._show(store, view, paths, problems) if view else 0
        if record_sha is not None:
            self._final.add(run.run_id)
        self._stamps[run.run_id] = stamp
        return n_points

    def _show(self, store: Store, view: RunView, paths: RunPaths, problems: list[str]) -> int:
        shown = self._shown.get(view.run_id)
        if shown is None:
            shown = self._shown[view.run_id] = store.create_run(view)
        store.revive(shown)
        n_points = store.send(shown, view)
        if view.record_sha is None:
            store.set_status(shown, view.status, view.ended_ms)
            return n_points
        with tempfile.TemporaryDirectory(prefix="isoloss-mirror-") as scratch:
            self._gather(paths, Path(scratch), problems)
            store.finish(shown, view, Path(scratch))
        return n_points

    def _gather(self, paths: RunPaths, folder: Path, problems: list[str]) -> None:
        """Collect the artifacts of a run that has ended: configuration, record, figures."""
        for file in (paths.config, paths.record):
            if file.exists():
                shutil.copy(file, folder)
        if self.figures is None:
            return
        (folder / "figures").mkdir()
        try:
            for name, figure in self.figures(paths).items():
                figure.savefig(folder / "figures" / f"{name}.png")
                figure.clear()
        except Exception as error:  # a figure that fails must not keep its run from MLflow
            problems.append(f"{paths.run_id}: no figures ({error})")


def _view(run: PlannedRun, sweep: str, paths: RunPaths) -> RunView | None:
    """Read a run's folder; whatever is wrong in it must not end the mirror of the others."""
    try:
        return view_run(run, sweep, paths)
    except Exception as error:
        raise DataError(f"cannot be read ({error})") from error


def _stamp(paths: RunPaths) -> Stamp:
    """Mark of a run's state; with a record, that is all that can still change."""
    record = _stat(paths.record)
    if record:
        return record
    return (*_stat(paths.metrics), *_stat(paths.diagnostics), paths.n_attempts(), is_running(paths))


def _stat(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _pause(seconds: float, should_stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not should_stop():
        time.sleep(min(GLANCE_S, seconds))
