"""Live state of a sweep: files first, the scheduler's word second. No torch, no MLflow, no lock.

A record says how a run ended; a lease that is kept alive, that it runs; the scheduler or a living
`isoloss run` that has it in hand, that it is queued. Looking changes nothing.
"""

from __future__ import annotations

import functools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic_core import from_json

from harness.errors import IsolossError
from harness.lease import LEASE_S, fs_now, look
from harness.paths import SweepPaths
from harness.records import FINAL_STATUSES, Manifest, PlannedRun, Status, read_record
from harness.slurm.types import Place
from harness.status_cache import Known, StatKey, StatusCache, stat_key
from harness.tails import tail

STATUS_ORDER: tuple[Status, ...] = (
    *("done", "running", "queued", "planned"),
    *("diverged", "failed", "cancelled"),
)
TAIL_BYTES = 4096
"""How much of a metrics file is read to find its last row."""
SETTLED_S = 2.0
"""Age from which a folder's time stamp tells every later change apart."""
_SHOWN = (
    *("status", "last_step", "loss_nats", "step_time_s", "attempts"),
    *("excluded_because", "recipe_sha256"),
)
"""Fields of a record that fill a :class:`Known`, in its order."""
NOWHERE: Mapping[str, Place] = MappingProxyType({})
"""No run is in a scheduler's hands."""


@dataclass(frozen=True)
class RunState:
    """Where one run stands."""

    run: PlannedRun
    status: Status
    step: int = 0
    """Last step that was logged."""
    loss_nats: float | None = None
    """Final validation loss of a finished run, else the last training loss."""
    step_time_s: float | None = None
    attempts: int = 0
    reason: str | None = None
    """Why an ended run enters no fit."""
    recipe_sha256: str | None = None
    """Source of the recipe that a finished run was trained with."""
    holder: str | None = None
    """Who is at work on it: host and process, or job."""
    silent_s: float | None = None
    """Since the last sign of life of who is at work, when that is late."""
    place: Place | None = None
    """Where the scheduler has it."""

    @property
    def resumable(self) -> bool:
        """Stopped after it had begun: the next ``isoloss run`` goes on from its checkpoint."""
        return self.status in ("planned", "queued") and self.attempts > 0

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to it by itself."""
        return self.status in FINAL_STATUSES

    @property
    def tokens(self) -> int:
        """Training tokens seen."""
        return self.step * int(self.run.config["train"]["batch_tokens"])

    @property
    def flops(self) -> float:
        """Training FLOPs spent on the steps that count."""
        return self.run.cost.flops * self.step / self.run.cost.steps

    @property
    def tokens_per_s(self) -> float | None:
        """Training throughput at the last measured pace; None when unknown."""
        if not self.step_time_s:
            return None
        return float(self.run.config["train"]["batch_tokens"]) / self.step_time_s

    @property
    def seconds_left(self) -> float | None:
        """Time that the remaining steps take at the last measured pace; None when unknown."""
        if self.step_time_s is None:
            return None
        return (self.run.cost.steps - self.step) * self.step_time_s


class StateReader:
    """Looks at the runs of a sweep, again and again; what no longer moves is read once.

    Parameters
    ----------
    paths
        The sweep.
    runs
        Those of its runs to look at.
    lease_s
        Seconds of silence after which an owner is taken for dead.
    """

    def __init__(
        self, paths: SweepPaths, runs: Sequence[PlannedRun], lease_s: float = LEASE_S
    ) -> None:
        self.paths, self.runs, self.lease_s = paths, runs, lease_s
        self.cache = StatusCache(paths)
        self._runs = str(paths.runs)
        any_run = paths.run("-")
        # Thousands of texts are joined faster than paths are built.
        self._record, self._attempts, self._cancel = (
            f"/{path.relative_to(any_run.root)}"
            for path in (any_run.record, any_run.attempts, any_run.cancel)
        )

    def look(self, places: Mapping[str, Place] = NOWHERE) -> list[RunState]:
        """State of every run, in the given order.

        Parameters
        ----------
        places
            Where the scheduler has runs, by run id.

        Raises
        ------
        DataError
            A record is damaged.
        """
        glance = _Glance(self.paths, self.lease_s, places)
        begun = set(run_folders(self.paths))
        states = [
            self._begun(run, glance) if run.run_id in begun else glance.waiting(run)
            for run in self.runs
        ]
        self.cache.save()
        return states

    def _begun(self, run: PlannedRun, glance: _Glance) -> RunState:
        folder = f"{self._runs}/{run.run_id}"
        known = self._ended(run.run_id, folder)
        if known is not None:
            return glance.state(run, known)
        key = stat_key(folder + self._attempts)
        known = self.cache.get(run.run_id, key) if key else None
        if key is not None and known is None:
            return self._moving(run, folder, key, glance)
        return glance.waiting(run, known, cancelled=os.path.exists(folder + self._cancel))

    def _ended(self, run_id: str, folder: str) -> Known | None:
        key = stat_key(folder + self._record)
        if key is None:
            return None
        known = self.cache.get(run_id, key) or _read_ended(key, folder + self._record)
        if known is not None:
            self.cache.put(run_id, known)
        return known

    def _moving(self, run: PlannedRun, folder: str, key: StatKey, glance: _Glance) -> RunState:
        """Look closely at a run that has begun and not ended."""
        here = self.paths.run(run.run_id)
        seen = look(here.attempts, glance.now, lease_s=self.lease_s)
        row = last_row(here.metrics) or {}
        known = Known(
            key=key,
            status="running" if seen.taken else "planned",
            step=int(row.get("step", 0)),
            loss_nats=row.get("loss_nats"),
            step_time_s=row.get("step_time_s"),
            attempts=seen.number,
            reason=None,
            recipe_sha256=None,
        )
        if seen.taken:
            holder = seen.holder.describe() if seen.holder else "an unnamed process"
            silent_s = seen.age_s if seen.liveness == "silent" else None
            return glance.state(run, known, holder=holder, silent_s=silent_s)
        ended = self._ended(run.run_id, folder)
        if ended is not None:  # between the first look and this one
            return glance.state(run, ended)
        if seen.liveness == "free" and glance.now - key[0] / 1e9 > SETTLED_S:
            self.cache.put(run.run_id, known)
        return glance.waiting(run, known, cancelled=here.cancel.exists())


class _Glance:
    """One look: the time, whether anybody directs the sweep, and the scheduler's view."""

    def __init__(self, paths: SweepPaths, lease_s: float, places: Mapping[str, Place]) -> None:
        self.paths, self.lease_s, self.places = paths, lease_s, places

    @functools.cached_property
    def now(self) -> float:
        return fs_now(self.paths.root)

    @functools.cached_property
    def in_hand(self) -> frozenset[str] | None:
        """Runs that living ``isoloss run`` commands will take; None: all of the sweep."""
        if not self.paths.controllers.is_dir():
            return frozenset()
        found: set[str] = set()
        for folder in self.paths.controllers.iterdir():
            if not (folder.is_dir() and look(folder, self.now, lease_s=self.lease_s).taken):
                continue
            try:
                text = self.paths.controller_runs(folder.name).read_text(encoding="utf-8")
            except FileNotFoundError:
                return None
            found.update(text.split())
        return frozenset(found)

    def is_queued(self, run_id: str) -> bool:
        """Whether the scheduler or a living ``isoloss run`` has a run that waits."""
        return run_id in self.places or self.in_hand is None or run_id in self.in_hand

    def waiting(
        self, run: PlannedRun, known: Known | None = None, *, cancelled: bool = False
    ) -> RunState:
        """State of a run that nobody is at work on."""
        if cancelled:
            return self.state(run, known, "cancelled", reason="cancelled")
        return self.state(run, known, "queued" if self.is_queued(run.run_id) else "planned")

    def state(
        self,
        run: PlannedRun,
        known: Known | None,
        status: Status | None = None,
        *,
        reason: str | None = None,
        holder: str | None = None,
        silent_s: float | None = None,
    ) -> RunState:
        place = self.places.get(run.run_id)
        if known is None:
            return RunState(run, status or "planned", reason=reason, place=place)
        return RunState(
            run=run,
            status=status or known.status,
            step=known.step,
            loss_nats=known.loss_nats,
            step_time_s=known.step_time_s,
            attempts=known.attempts,
            reason=reason or known.reason,
            recipe_sha256=known.recipe_sha256,
            holder=holder,
            silent_s=silent_s,
            place=place,
        )


def _read_ended(key: StatKey, path: str) -> Known | None:
    """State that a record tells; None when it was taken away just now.

    Only what is shown is read; a record that lacks it is given to :func:`read_record`, which says
    what is wrong.

    Raises
    ------
    DataError
        The file is no record.
    """
    try:
        with open(path, "rb", buffering=0) as stream:
            about = from_json(stream.read())
        if about["status"] in FINAL_STATUSES:
            return Known(key, *(about[name] for name in _SHOWN))
        raise ValueError(about["status"])
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        record = read_record(Path(path))
        return Known(key, *(getattr(record, name) for name in _SHOWN)) if record else None


def sweep_states(
    paths: SweepPaths, manifest: Manifest, places: Mapping[str, Place] = NOWHERE
) -> list[RunState]:
    """State of every run of a sweep, in the manifest's order.

    Parameters
    ----------
    places
        Where the scheduler has runs, by run id.

    Raises
    ------
    DataError
        A record is damaged.
    """
    return StateReader(paths, manifest.runs, lease_seconds(manifest)).look(places)


def lease_seconds(manifest: Manifest) -> float:
    """Seconds of silence that the sweep's runs allow (``execution.lease_s``)."""
    return float(execution_value(manifest, "lease_s", LEASE_S))


def execution_value(manifest: Manifest, name: str, default: Any) -> Any:
    """Value of one ``execution`` setting of a sweep as it was last run.

    The grid's text is parsed only where it names the setting at all.
    """
    key = f"execution.{name}="
    for override in reversed(manifest.overrides):
        if override.startswith(key):
            from harness.yaml12 import scalar

            return scalar(override.removeprefix(key))
    if name not in manifest.grid_text:
        return default
    from harness.problems import Problems
    from harness.profiles import lay_profile
    from harness.yaml12 import parse_yaml

    grid = parse_yaml(manifest.grid_text, manifest.sweep)
    lay_profile(Problems(grid), manifest.profile)
    return (grid.value.get("execution") or {}).get(name, default)


def last_row(path: Path) -> dict[str, Any] | None:
    """Read the last training row of a metrics file from its tail; None when there is none."""
    try:
        lines = tail(path, TAIL_BYTES).splitlines()
    except FileNotFoundError:
        return None
    for line in reversed(lines):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and row.get("kind") == "train":
            return row
    return None


def run_folders(paths: SweepPaths) -> list[str]:
    """Names of the run folders that exist: one look at the disk for a whole sweep."""
    return sorted(os.listdir(paths.runs)) if paths.runs.is_dir() else []


def counts(states: Sequence[RunState]) -> dict[str, int]:
    """How many runs are in each status that occurs, finished ones first."""
    tally = Counter(state.status for state in states)
    return {status: tally[status] for status in STATUS_ORDER if tally[status]}


def by_arm(states: Sequence[RunState]) -> dict[str, list[RunState]]:
    """States grouped by arm, in order of appearance."""
    groups: dict[str, list[RunState]] = {}
    for state in states:
        groups.setdefault(state.run.arm, []).append(state)
    return groups


def find_run(paths: SweepPaths, manifest: Manifest, prefix: str) -> PlannedRun:
    """Find one run of a sweep by the beginning of its id.

    Raises
    ------
    IsolossError
        No run or several runs match.
    """
    matches = [run for run in manifest.runs if run.run_id.startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    found = f"{len(matches)} runs match" if matches else "no run matches"
    raise IsolossError(
        f"{paths.root.name}: {found} '{prefix}'. "
        f"`isoloss status {paths.root.name} --runs` lists them."
    )
