"""Holds what a grid wants against what exists, and hands the difference to workers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.config import Execution
from harness.job import Job
from harness.launch.local import Outcome, run_local
from harness.paths import SweepPaths
from harness.records import Manifest, PlannedRun
from harness.slurm.types import Place
from harness.snapshot import take_snapshot
from harness.status import RunState, run_folders, sweep_states
from harness.trunks import flops_in_turn, in_chains


@dataclass(frozen=True)
class Difference:
    """What `run` is about to do, and what it leaves alone."""

    new: list[RunState]
    resumable: list[RunState]
    queued: list[RunState]
    """Submitted to Slurm; what merely waits in another `isoloss run` on a machine may be shared."""
    running: list[RunState]
    done: list[RunState]
    diverged: list[RunState]
    failed: list[RunState]
    """Left alone until `isoloss retry`."""
    cancelled: list[RunState]
    """Likewise."""
    unwanted: list[str]
    """Ids on disk that the grid no longer asks for; their files are never deleted."""
    states: list[RunState] = field(default_factory=list)
    """All runs of the grid, in its order."""
    unwanted_alive: list[str] = field(default_factory=list)
    """Those of them that are running or queued; cancelled only by `--prune`."""

    @property
    def todo(self) -> list[RunState]:
        """Runs to start: resumable ones first, then new ones, the cheapest of every arm ahead and
        the rest from the most expensive down. Runs of one trunk stay together, the shortest first,
        at the place of their training together.
        """
        fresh = sorted(self.new, key=lambda state: state.run.cost.flops)
        proven = {state.run.arm for state in (*self.done, *self.diverged, *self.resumable)}
        ahead: dict[str, RunState] = {}
        for state in fresh:
            if state.run.arm not in proven:
                ahead.setdefault(state.run.arm, state)
        first = {state.run.run_id for state in ahead.values()}
        rest = {s.run.run_id: s for s in reversed(fresh) if s.run.run_id not in first}
        chains = in_chains(state.run for state in rest.values())
        chains.sort(key=flops_in_turn, reverse=True)
        ordered = [rest[run.run_id] for chain in chains for run in chain]
        return [*self.resumable, *ahead.values(), *ordered]

    @property
    def proven_arms(self) -> set[str]:
        """Arms of which a run has trained to its end."""
        return {state.run.arm for state in (*self.done, *self.diverged)}

    @property
    def edited(self) -> list[str]:
        """Names of recipes that were edited since their finished runs were trained."""
        ended = [*self.done, *self.diverged]
        changed = [s.run for s in ended if s.recipe_sha256 != s.run.recipe_sha256]
        return sorted({run.config["residual"]["name"] for run in changed})

    def notices(self) -> list[str]:
        """What the reader must know before trusting finished runs."""
        return [
            f"recipe '{name}' was edited after runs of this sweep were trained; they are kept. If "
            "its mathematics changed, raise `revision` in its file, and they train again."
            for name in self.edited
        ]

    def describe(self) -> str:
        """One line: how many runs are in which part."""
        alive = len(self.unwanted_alive)
        kept = f"kept; {alive} at work or queued, --prune cancels them" if alive else "kept"
        parts = [
            (len(self.new), "new"),
            (len(self.resumable), "to resume"),
            (len(self.queued), "queued"),
            (len(self.running), "running"),
            (len(self.done), "done"),
            (len(self.diverged), "diverged"),
            (len(self.failed), "failed (isoloss retry starts them again)"),
            (len(self.cancelled), "cancelled (isoloss retry starts them again)"),
            (len(self.unwanted), f"no longer in the grid ({kept})"),
        ]
        return ", ".join(f"{count} {what}" for count, what in parts if count) or "no runs"


def difference(
    paths: SweepPaths, manifest: Manifest, places: Mapping[str, Place] | None = None
) -> Difference:
    """Compare a manifest with the run folders, and with what the scheduler has.

    Parameters
    ----------
    places
        Where the scheduler has runs, by run id; runs of older grids included.
    """
    places = places or {}
    states = sweep_states(paths, manifest, places)
    wanted = {state.run.run_id for state in states}
    stray = [run_id for run_id in run_folders(paths) if run_id not in wanted]

    def having(*statuses: str) -> list[RunState]:
        return [state for state in states if state.status in statuses]

    # A live `isoloss run` may hold waiting runs, but leases keep two from doing one twice.
    waiting = [s for s in having("planned", "queued") if s.place is None]
    return Difference(
        new=[state for state in waiting if not state.resumable],
        resumable=[state for state in waiting if state.resumable],
        queued=[state for state in having("queued") if state.place is not None],
        running=having("running"),
        done=having("done"),
        diverged=having("diverged"),
        failed=having("failed"),
        cancelled=having("cancelled"),
        unwanted=stray,
        states=states,
        unwanted_alive=[run_id for run_id in stray if _is_alive(paths, run_id, places)],
    )


def _is_alive(paths: SweepPaths, run_id: str, places: Mapping[str, Place]) -> bool:
    from harness.lease import fs_now, look

    run = paths.run(run_id)
    if run.record.exists() or run.cancel.exists():
        return False
    return run_id in places or look(run.attempts, fs_now(paths.root)).taken


def prepare(paths: SweepPaths, runs: list[PlannedRun]) -> Path:
    """Build what runs need once, before any worker starts: corpora, and a snapshot of the code.

    Returns
    -------
    Path
        The snapshot.
    """
    from harness.corpora import open_corpus

    sources = (run.config["data"] for run in runs)
    for corpus in sorted({data["corpus"] for data in sources if "corpus" in data}):
        open_corpus(corpus)
    return take_snapshot(paths, sorted({run.config["residual"]["name"] for run in runs}))


def execute(
    paths: SweepPaths,
    sweep: str,
    runs: list[PlannedRun],
    execution: Execution,
    *,
    workers: int,
    mlflow: bool,
    on_poll: Callable[[], None],
) -> Outcome:
    """Execute runs with local workers, MLflow's mirror beside them when asked for."""
    job = Job(sweep=sweep, sweep_dir=paths.root, runs=runs, execution=execution)
    code = prepare(paths, runs)
    mirror = mirror_command(paths) if mlflow else None
    return run_local(paths, job, workers=workers, code=code, mirror=mirror, on_poll=on_poll)


def default_workers(execution: Execution) -> int:
    """Runs at a time: one per GPU, or per core where there is none; several devices count as one
    run.
    """
    import torch

    devices = torch.cuda.device_count() or os.cpu_count() or 1
    return max(1, devices // execution.devices)


def mirror_command(paths: SweepPaths, python: str = sys.executable) -> list[str]:
    """Migrate the MLflow store and return the command that keeps it up to date.

    Parameters
    ----------
    python
        Interpreter that will run it.
    """
    from harness.tracking import create_store

    create_store(paths)
    folder = [str(paths.root), "--results", str(paths.root.parent)]
    return [python, "-m", "harness.cli", "sync", *folder, "--follow"]
