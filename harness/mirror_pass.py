"""One pass of the MLflow mirror over a sweep's folder: what is new since the last one is pushed.

Imports MLflow, so ``harness.mirror`` imports this only once it is its turn. What is shown of a run
is decided in ``harness.mirror_view``; how it gets into MLflow, in ``harness.mirror_store``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import DataError, IsolossError, LeaseLost
from harness.lease import fs_now
from harness.mirror import SyncResult
from harness.mirror_memory import Identity, recall, remember
from harness.mirror_store import ShownRun, Store
from harness.mirror_view import RUN_ID_TAG, RunView, file_sha, is_running, view_run
from harness.mlflow_api import is_outage, silence
from harness.paths import RunPaths, SweepPaths
from harness.records import Manifest, PlannedRun, read_manifest
from harness.tracking import ensure_store, shown_uri, sqlite_path

if TYPE_CHECKING:
    from harness.mirror import Figures

Stamp = tuple[object, ...]
"""What tells whether a file or a run's folder has changed since it was last looked at."""
MESSAGE_CHARS = 200
"""How much of MLflow's own message is passed on."""


SAVE_S = 60.0
"""Least time between two writings of the memory, but for the last."""


class Pusher:
    """Remembers between passes what MLflow shows, so that a pass costs what has changed.

    Parameters
    ----------
    check
        Raises ``LeaseLost`` when this process may no longer write.
    trusting
        Believe former mirrors which runs are complete, instead of asking MLflow for every run.
    """

    def __init__(
        self,
        paths: SweepPaths,
        tracking_uri: str,
        figures: Figures | None,
        check: Callable[[], None],
        *,
        trusting: bool = False,
    ) -> None:
        silence()
        self.paths, self.tracking_uri, self.figures = paths, tracking_uri, figures
        self.check, self.trusting = check, trusting
        self._store: Store | None = None
        self._file: int | None = None
        self._identity: Identity | None = None
        self._shown: dict[str, ShownRun] = {}
        self._shown_is_all = False
        self._mirrored: dict[str, str] = {}
        self._stamps: dict[str, Stamp] = {}
        self._doubted: set[str] = set()
        self._manifest: tuple[Stamp, Manifest] | None = None
        self._now = 0.0
        self._saved = (0.0, 0)

    def run(self, give_up: Callable[[], bool], *, last: bool = False) -> SyncResult:
        """Push everything that is new, once. Troubles of the store are returned, not raised.

        Parameters
        ----------
        give_up
            Asked between two runs: ends the pass early.
        last
            Nothing comes after this pass: runs that went wrong before are looked at again.

        Raises
        ------
        LeaseLost
            Another mirror has taken over.
        DataError
            The sweep has no manifest, or it cannot be read.
        """
        manifest = self._read_manifest()
        self._now = fs_now(self.paths.mirror_terms)
        try:
            store = self._met(manifest)
            if last:
                self._look_again(store)
        except LeaseLost:
            raise
        except Exception as error:  # whatever a server answers must not end the mirror
            self._store = None
            return SyncResult(0, 0, 0, (self._describe(error),), reached=False)
        result = self._push_all(store, manifest, give_up)
        self._save(at_once=last)
        return result

    def _push_all(
        self, store: Store, manifest: Manifest, give_up: Callable[[], bool]
    ) -> SyncResult:
        problems: list[str] = []
        n_points, n_refused, reached = 0, 0, True
        for run in manifest.runs:
            if give_up():
                problems.append("stopped before every run was mirrored")
                reached = False
                break
            try:
                n_points += self._push(store, run, manifest.sweep, problems)
            except LeaseLost:
                raise
            except DataError as error:
                problems.append(f"{run.run_id}: {error}")
            except Exception as error:  # it must not keep the other runs from MLflow
                n_refused += 1
                self._doubt(run)
                problems.append(f"{run.run_id}: {self._describe(error)}")
                if is_outage(error) and not store.answers():
                    reached = False
                    break
        wanted = {run.run_id for run in manifest.runs}
        complete = wanted & self._mirrored.keys()
        n_runs = len(complete | (wanted & self._shown.keys()))
        return SyncResult(n_runs, n_points, len(complete), tuple(problems), reached, n_refused)

    def _doubt(self, run: PlannedRun) -> None:
        """Have all asked anew: an answer may have been lost, or the store emptied or restored."""
        self._store = None
        self._doubted.add(run.run_id)

    def _look_again(self, store: Store) -> None:
        """Find runs that a request which was given up has made twice after all."""
        for run_id in sorted(self._doubted):
            shown = store.find(run_id)
            if shown is not None:
                self._shown[run_id] = shown
            self._stamps.pop(run_id, None)
        self._doubted.clear()

    def _read_manifest(self) -> Manifest:
        stamp = _stat(self.paths.manifest)
        if self._manifest is None or self._manifest[0] != stamp:
            self._manifest = (stamp, read_manifest(self.paths))
        return self._manifest[1]

    def _describe(self, error: Exception) -> str:
        """One line on an error: what the store refused, or that it does not answer."""
        if isinstance(error, IsolossError):
            return str(error)
        text = " ".join(str(error).split()) or type(error).__name__
        what = "does not answer" if is_outage(error) else "refuses"
        return f"MLflow at {shown_uri(self.tracking_uri)} {what} ({text[:MESSAGE_CHARS]})"

    def _met(self, manifest: Manifest) -> Store:
        """Learn what the store holds, unless that is known."""
        if self._store is None or self._file != _inode(self.tracking_uri):
            self._store = None
            ensure_store(self.tracking_uri, self.paths.root.parent)
            self._file = _inode(self.tracking_uri)
            store = Store(self.tracking_uri, self.paths.mlflow_artifacts, lambda: self.check())
            self._learn(store, store.open(manifest.sweep))
            self._store = store
        wanted = {run.run_id for run in manifest.runs}
        others = [shown for run_id, shown in self._shown.items() if run_id not in wanted]
        self._store.close(others, self._is_stray)
        return self._store

    def _learn(self, store: Store, identity: Identity) -> None:
        known = None
        if self.trusting:
            same = identity == self._identity
            known = self._mirrored if same else recall(self.paths.mirror_terms, identity)
        self._identity, self._stamps = identity, {}
        self._shown_is_all = known is None
        self._shown = store.all_runs() if known is None else store.running()
        if known is None:
            known = {i: shown.mirrored for i, shown in self._shown.items() if shown.mirrored}
        self._mirrored = known

    def _save(self, *, at_once: bool) -> None:
        """Leave behind what is known, but not every few seconds."""
        when, n_known = self._saved
        due = at_once or time.monotonic() - when > SAVE_S
        if self._identity is None or not due or n_known == len(self._mirrored):
            return
        self.check()
        with contextlib.suppress(OSError):
            remember(self.paths.mirror_terms, self._identity, self._mirrored)
            self._saved = (time.monotonic(), len(self._mirrored))

    def _is_stray(self, shown: ShownRun) -> bool:
        """Whether a run of this folder that is no longer asked for is executed by nobody."""
        paths = self.paths.run(shown.tags[RUN_ID_TAG])
        return paths.root.is_dir() and not is_running(paths, self._now)

    def _push(self, store: Store, run: PlannedRun, sweep: str, problems: list[str]) -> int:
        """Push what is new of one run; return the number of points sent."""
        paths = self.paths.run(run.run_id)
        stamp = _stamp(paths, self._now)
        if self._stamps.get(run.run_id) == stamp:
            return 0
        record_sha = file_sha(paths.record)
        n_points = 0
        if record_sha is None or self._mirrored.get(run.run_id) != record_sha:
            self._mirrored.pop(run.run_id, None)
            view = self._view(run, sweep, paths)
            n_points = self._show(store, view, paths, problems) if view else 0
        self._stamps[run.run_id] = stamp
        return n_points

    def _view(self, run: PlannedRun, sweep: str, paths: RunPaths) -> RunView | None:
        """Read a run's folder; whatever is wrong in it must not end the mirror of the others."""
        try:
            return view_run(run, sweep, paths, self._now)
        except Exception as error:
            raise DataError(f"cannot be read ({error})") from error

    def _show(self, store: Store, view: RunView, paths: RunPaths, problems: list[str]) -> int:
        shown = self._found(store, view) or store.create_run(view)
        self._shown[view.run_id] = shown
        store.revive(shown)
        n_points = store.send(shown, view)
        if view.record_sha is None:
            store.set_status(shown, view.status, view.ended_ms)
            return n_points
        if not store.is_faithful(shown, view):
            store.delete(shown)
            shown = self._shown[view.run_id] = store.create_run(view)
            n_points += store.send(shown, view)
        with tempfile.TemporaryDirectory(prefix="isoloss-mirror-") as scratch:
            self._gather(paths, Path(scratch), problems)
            store.finish(shown, view, Path(scratch))
        self._mirrored[view.run_id] = view.record_sha
        return n_points

    def _found(self, store: Store, view: RunView) -> ShownRun | None:
        """What MLflow shows of a run; asked for only where it is not known."""
        known = self._shown.get(view.run_id)
        return known if known or self._shown_is_all else store.find(view.run_id)

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


def _inode(tracking_uri: str) -> int | None:
    """Which file a local store is, as a path may be given to a new one; None for other stores."""
    database = sqlite_path(tracking_uri)
    if database is None or not database.exists():
        return None
    return database.stat().st_ino


def _stamp(paths: RunPaths, now: float) -> Stamp:
    """Mark of a run's state; with a record, that is all that can still change."""
    record = _stat(paths.record)
    if record:
        return record
    number = paths.n_attempts()
    if not number:
        return ()
    begun = _stat(paths.attempt(number) / "attempt.json")
    files = (*_stat(paths.metrics), *_stat(paths.diagnostics))
    return (number, *begun, *files, is_running(paths, now))


def _stat(path: Path) -> Stamp:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return (found.st_mtime_ns, found.st_size, found.st_ino)
    return ()
