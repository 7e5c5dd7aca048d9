"""Holds what a grid wants against what exists, and carries out the difference on this machine."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness.claim import claim
from harness.config import Execution
from harness.errors import IsolossError
from harness.job import Job
from harness.launch.local import Outcome, run_local
from harness.paths import SweepPaths
from harness.records import Manifest, PlannedRun, read_record
from harness.status import RunState, run_folders, sweep_states


@dataclass(frozen=True)
class Difference:
    """What `run` is about to do, and what it leaves alone."""

    new: list[RunState]
    resumable: list[RunState]
    running: list[RunState]
    """In the hands of another `isoloss run`."""
    done: list[RunState]
    diverged: list[RunState]
    failed: list[RunState]
    """Left alone until `isoloss retry`; cancelled runs too."""
    unwanted: list[str]
    """Ids on disk that the grid no longer asks for; never deleted."""

    @property
    def todo(self) -> list[RunState]:
        """Runs to execute: resumable ones first, then new ones from the most expensive down."""
        fresh = sorted(self.new, key=lambda state: -state.run.cost.flops)
        return [*self.resumable, *fresh]

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
        parts = [
            (len(self.new), "new"),
            (len(self.resumable), "to resume"),
            (len(self.running), "running elsewhere"),
            (len(self.done), "done"),
            (len(self.diverged), "diverged"),
            (len(self.failed), "failed (isoloss retry starts them again)"),
            (len(self.unwanted), "no longer in the grid (kept)"),
        ]
        return ", ".join(f"{count} {what}" for count, what in parts if count) or "no runs"


def difference(paths: SweepPaths, manifest: Manifest) -> Difference:
    """Compare a manifest with the run folders."""
    states = sweep_states(paths, manifest)
    wanted = {state.run.run_id for state in states}

    def having(*statuses: str) -> list[RunState]:
        return [state for state in states if state.status in statuses]

    waiting = having("planned", "queued")
    return Difference(
        new=[state for state in waiting if not state.resumable],
        resumable=[state for state in waiting if state.resumable],
        running=having("running"),
        done=having("done"),
        diverged=having("diverged"),
        failed=having("failed", "cancelled"),
        unwanted=[run_id for run_id in run_folders(paths) if run_id not in wanted],
    )


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
    """Build what the runs need once, then execute them with local workers.

    The corpora are built and the MLflow store is migrated before any worker starts.
    """
    from harness.corpora import open_corpus

    for corpus in sorted({run.config["data"]["corpus"] for run in runs}):
        open_corpus(corpus)
    job = Job(sweep=sweep, sweep_dir=paths.root, runs=runs, execution=execution)
    mirror = mirror_command(paths) if mlflow else None
    return run_local(paths, job, workers=workers, mirror=mirror, on_poll=on_poll)


def default_workers() -> int:
    """One worker per GPU, or one per core where there is none."""
    import torch

    return torch.cuda.device_count() or os.cpu_count() or 1


def mirror_command(paths: SweepPaths) -> list[str]:
    """Migrate the MLflow store and return the command that keeps it up to date."""
    from harness.tracking import create_store

    create_store(paths)
    folder = [str(paths.root), "--results", str(paths.root.parent)]
    return [sys.executable, "-m", "harness.cli", "sync", *folder, "--follow"]


def measured_flops_per_s(paths: SweepPaths) -> float | None:
    """Median training FLOPs per second of one worker over the finished runs; None before the
    first.
    """
    records = (read_record(file) for file in paths.runs.glob("*/record.json"))
    rates = [
        record.flops / (record.steps * record.step_time_s)
        for record in records
        if record is not None and record.status == "done" and record.step_time_s
    ]
    return statistics.median(rates) if rates else None


def reset_failed(paths: SweepPaths, manifest: Manifest) -> list[PlannedRun]:
    """Set the records of failed runs aside, so that they run again; return those runs.

    The old record stays in the folder of its last attempt.
    """
    reset = []
    for run in manifest.runs:
        here = paths.run(run.run_id)
        record = read_record(here.record)
        if record is None or record.status not in ("failed", "cancelled"):
            continue
        with claim(here.lock) as owner:
            if owner:
                here.record.rename(here.attempt(max(1, here.n_attempts())) / "record.json")
                reset.append(run)
    return reset


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


def attempt_log(paths: SweepPaths, run: PlannedRun) -> Path | None:
    """Path of the newest attempt's log; None when the run has not begun."""
    here = paths.run(run.run_id)
    number = here.n_attempts()
    return here.attempt(number) / "log" if number else None
