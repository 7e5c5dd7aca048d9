"""The MLflow mirror: one process per sweep that pushes what is new in the sweep's folder.

Training workers know nothing of it, so it can neither stop nor slow them. Deleting MLflow's store
loses nothing: the next pass fills a new one. Of the mirrors that follow a sweep, on whatever host,
one has the lease; the others wait without importing MLflow. A pass is ``harness.mirror_pass``.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import IsolossError, LeaseLost
from harness.holder import slurm_job
from harness.lease import Lease, acquire, forget_old
from harness.paths import RunPaths, SweepPaths
from harness.tracking import check_uri

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from harness.mirror_pass import Pusher

log = logging.getLogger("isoloss.mirror")

Figures = Callable[[RunPaths], "dict[str, Figure]"]

WAIT_S = 20.0
"""Pause between two tries to take the place of another mirror."""
LONGEST_PAUSE_S = 60.0
"""Longest pause between two tries while the store is away."""
LAST_PAUSE_S = 2.0
"""Pause between the tries to complete the mirror at the end of ``follow``."""
LAST_TRIES = 3
"""So many of them before it is left to ``isoloss sync``."""
LOCAL_PATIENCE_S, SLURM_PATIENCE_S = 100.0, 20.0
"""How long the end of ``follow`` may take; Slurm kills 30 s after it has asked to stop."""
GLANCE_S = 0.2
"""How often a pause looks whether to stop."""
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
    """False when the pass stopped early, mostly because the store was away."""
    n_refused: int = 0
    """Runs of which the store did not take something."""


class Mirror:
    """Keeps MLflow up to date with the folder of one sweep.

    Parameters
    ----------
    tracking_uri
        As returned by :func:`harness.tracking.tracking_uri`.
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
        self.paths, self.tracking_uri, self.figures = paths, tracking_uri, figures
        self._pusher: Pusher | None = None
        self._lease: Lease | None = None
        self._served = 0
        self._reported: tuple[str, ...] = ()

    def sync(self) -> SyncResult:
        """Push everything that is new, once; idempotent. Looks at every run that MLflow shows.

        Troubles of the store are returned as problems, never raised.

        Raises
        ------
        DataError
            The sweep has no manifest.
        OSError
            Its folder cannot be written.
        """
        if not self._take():
            return _nothing("another mirror is at work on this sweep")
        try:
            return self._at_work(trusting=False).run(lambda: False, last=True)
        except LeaseLost:
            return _nothing("another mirror has taken over")
        finally:
            self._give_up()

    def follow(
        self,
        should_stop: Callable[[], bool],
        interval_s: float = 5.0,
        *,
        wait_s: float = WAIT_S,
        patience_s: float | None = None,
    ) -> None:
        """Push what is new every ``interval_s`` until asked to stop, then once more.

        While the store is away, tries get rarer (up to one a minute) and nothing is lost. When
        another mirror follows the sweep already, this one waits to take its place. Runs that a
        mirror has completed are not looked at again: one that was deleted from MLflow by hand comes
        back with :meth:`sync`. Never raises for what can go wrong outside the code.

        Parameters
        ----------
        wait_s
            Pause between two tries to take the place of another mirror.
        patience_s
            How long completing the mirror may take after the stop; default: what Slurm grants, or
            the local pool.
        """
        if patience_s is None:
            patience_s = SLURM_PATIENCE_S if slurm_job() else LOCAL_PATIENCE_S
        stop = _Stop(should_stop, patience_s)
        while not stop():
            if self._tried_to_take():
                self._serve(stop, interval_s)
            else:
                _pause(wait_s, stop)
        self._complete(stop)

    def _serve(self, stop: _Stop, interval_s: float) -> None:
        """Push until asked to stop, or until the lease is lost."""
        pause_s = interval_s
        while not stop():
            result = self._pass(stop)
            if result is None:
                return
            smooth = result.reached and not result.n_refused
            pause_s = interval_s if smooth else min(2 * pause_s, LONGEST_PAUSE_S)
            _pause(pause_s, stop)

    def _complete(self, stop: _Stop) -> None:
        """Push once more, unless whoever has the lease will.

        Every mirror that ends leaves a fresh mark behind, and looks at it again after it gave its
        lease up. So of two that end at once, one sees that the other came too late for its pass.
        """
        self._leave_mark()
        while self._tried_to_take():
            mark, complete = self._read_mark(), self._last_passes(stop)
            self._give_up()
            if not complete:
                log.warning("MLflow is incomplete; bring it up to date with: isoloss sync GRID")
                return
            if mark == self._read_mark():
                return
        log.info("another mirror follows this sweep; it will complete it")

    def _last_passes(self, stop: _Stop) -> bool:
        for number in range(LAST_TRIES):
            if number:
                time.sleep(LAST_PAUSE_S)
            result = self._pass(stop, last=True)
            if result is None or (result.reached and not result.n_refused):
                return True
            if stop.is_late():
                break
        return False

    def _pass(self, stop: _Stop, *, last: bool = False) -> SyncResult | None:
        """One pass, reported; None when the lease was lost."""
        try:
            result = self._at_work(trusting=True).run(stop.is_late, last=last)
        except LeaseLost:
            log.info("another mirror has taken over")
            self._lease = None
            return None
        except (IsolossError, OSError) as error:
            result = _nothing(str(error))
        self._report(result)
        return result

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

    def _take(self) -> bool:
        """Take the lease, unless this mirror has it; return whether it has it now."""
        if self._lease is not None and not self._lease.lost:
            return True
        self._lease = acquire(self.paths.mirror_terms)
        if self._lease is None:
            return False
        if self._lease.number != self._served + 1:
            self._pusher = None
        self._served = self._lease.number
        forget_old(self.paths.mirror_terms)
        return True

    def _tried_to_take(self) -> bool:
        try:
            return self._take()
        except OSError as error:
            self._report(_nothing(f"{self.paths.mirror_terms}: cannot be written ({error})"))
            return False

    def _at_work(self, *, trusting: bool) -> Pusher:
        """What passes are made with; knows what MLflow shows while no other mirror was at work."""
        assert self._lease is not None
        check = self._lease.check
        if self._pusher is None or self._pusher.trusting is not trusting:
            from harness.mirror_pass import Pusher

            self._pusher = Pusher(
                self.paths, self.tracking_uri, self.figures, check, trusting=trusting
            )
        self._pusher.check = check
        return self._pusher

    def _give_up(self) -> None:
        lease, self._lease = self._lease, None
        try:
            if lease is not None:
                lease.end("ended")
        except OSError as error:
            log.warning("%s: cannot be written (%s)", self.paths.mirror_terms, error)

    def _leave_mark(self) -> None:
        try:
            self.paths.mirror_terms.mkdir(parents=True, exist_ok=True)
            (self.paths.mirror_terms / "asked").write_text(uuid.uuid4().hex, encoding="ascii")
        except OSError as error:
            log.warning("%s: cannot be written (%s)", self.paths.mirror_terms, error)

    def _read_mark(self) -> str:
        try:
            return (self.paths.mirror_terms / "asked").read_text(encoding="ascii")
        except OSError:
            return ""


class _Stop:
    """Knows whether a stop was asked for, and how long ago."""

    def __init__(self, asked: Callable[[], bool], patience_s: float) -> None:
        self._asked, self._patience_s = asked, patience_s
        self._since: float | None = None

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        if self._since is None and self._asked():
            self._since = time.monotonic()
        return self._since is not None

    def is_late(self) -> bool:
        """Whether the patience after it has run out."""
        return self() and time.monotonic() - (self._since or 0.0) > self._patience_s


def _nothing(problem: str) -> SyncResult:
    return SyncResult(0, 0, 0, (problem,), reached=False)


def _pause(seconds: float, should_stop: Callable[[], bool]) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not should_stop():
        time.sleep(min(GLANCE_S, seconds))
