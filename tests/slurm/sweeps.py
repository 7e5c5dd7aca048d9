"""Sweeps on a test cluster: the command line as users call it, and the truth read beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.holder import is_gone, read_holder
from harness.lease import HOLDER, terms_of
from harness.paths import RunPaths, SweepPaths
from harness.records import RunRecord, read_jsonl, read_manifest, read_record
from tests.command_line import isoloss
from tests.slurm.cluster import Cluster

PATIENCE_S = 240.0


@dataclass
class Sweep:
    """One grid, its results, and the command line that works on it."""

    folder: Path
    name: str

    @property
    def grid(self) -> Path:
        """The grid file."""
        return self.folder / "grid.yaml"

    @property
    def paths(self) -> SweepPaths:
        """Files of the sweep."""
        return SweepPaths(self.folder / "results" / self.name)

    def command(self, verb: str, *arguments: str) -> list[str]:
        """Command line of one verb."""
        target = str(self.grid) if verb in ("run", "plan") else self.name
        words = [verb, target, *arguments, "--results", str(self.folder / "results")]
        return [sys.executable, "-m", "harness.cli", *words]

    def call(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command to its end."""
        return isoloss(*self.command(verb, *arguments)[3:], timeout_s=PATIENCE_S)

    def submit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`isoloss run --on slurm`, which must succeed."""
        done = self.call("run", "--on", "slurm", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def runs(self) -> list[RunPaths]:
        """Folders of all runs of the grid."""
        return [self.paths.run(run.run_id) for run in read_manifest(self.paths).runs]

    def records(self) -> dict[str, RunRecord]:
        """Records of the runs that have one."""
        found = {run.run_id: read_record(run.record) for run in self.runs()}
        return {run_id: record for run_id, record in found.items() if record is not None}

    def told(self) -> dict[str, dict[str, Any]]:
        """What `isoloss status` says, by run id."""
        done = self.call("status", "--json")
        answer = json.loads(done.stdout)
        rows = answer["runs"] if isinstance(answer, dict) else answer
        return {row["run_id"]: row for row in rows}

    def statuses(self) -> dict[str, int]:
        """How many runs `isoloss status` counts in each status."""
        tally: dict[str, int] = {}
        for row in self.told().values():
            tally[row["status"]] = tally.get(row["status"], 0) + 1
        return tally


def write_sweep(folder: Path, name: str, text: str) -> Sweep:
    """Write the grid of a sweep into a folder of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    sweep = Sweep(folder, name)
    sweep.grid.write_text(text)
    return sweep


def worker_pid(run: RunPaths) -> int | None:
    """Process that executes a run now; None when nobody does."""
    numbers = terms_of(run.attempts)
    if not numbers or run.record.exists():
        return None
    folder = run.attempt(numbers[-1])
    holder = read_holder(folder / HOLDER)
    ended = (folder / "end.json").exists() or holder is None or is_gone(holder)
    return None if ended or holder is None else holder.pid


def is_midway(run: RunPaths, step: int = 20) -> bool:
    """Whether a run trains now and has passed ``step``."""
    rows = read_jsonl(run.metrics)
    return worker_pid(run) is not None and bool(rows) and int(rows[-1]["step"]) >= step


def wait_for(condition: Callable[[], object], patience_s: float = PATIENCE_S) -> Any:
    """Wait until ``condition`` returns something true; return that."""
    deadline = time.monotonic() + patience_s
    while True:
        found = condition()
        if found:
            return found
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def midway(runs: list[RunPaths], step: int = 20) -> RunPaths:
    """Wait until one of the runs is midway; return it."""
    found: RunPaths = wait_for(lambda: next((r for r in runs if is_midway(r, step)), None))
    return found


def frozen_midway(runs: list[RunPaths]) -> tuple[RunPaths, int]:
    """Freeze the worker of a run that is midway, so that it still is when a fault strikes.

    Returns
    -------
    tuple
        The run, and the worker's process id.
    """
    while True:
        run = midway(runs)
        pid = worker_pid(run)
        if pid is not None:
            kill(pid, signal.SIGSTOP)
            if worker_pid(run) == pid:
                return run, pid
            kill(pid, signal.SIGCONT)


def job_of(run: RunPaths) -> str:
    """Slurm job that executes a run."""
    holder = read_holder(run.attempt(run.n_attempts()) / HOLDER)
    assert holder is not None
    assert holder.job is not None
    return holder.job


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process that may have ended by itself."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def queued_names(slurm: Cluster) -> list[str]:
    """Job ids of all tasks in the queue."""
    return slurm.run("squeue", "-h", "-r", "-o", "%i").stdout.split()


def losses(run: RunPaths) -> list[tuple[str, int, float]]:
    """Every loss of a run: kind, step, value."""
    return [(row["kind"], row["step"], row["loss_nats"]) for row in read_jsonl(run.metrics)]


def assert_same_results(sweep: Sweep, undisturbed: Sweep) -> None:
    """Every run is done exactly once, with the undisturbed sweep's losses to the last bit."""
    expected, records = undisturbed.records(), sweep.records()
    assert records.keys() == expected.keys()
    for run in sweep.runs():
        assert records[run.run_id].status == "done"
        assert records[run.run_id].loss_nats == expected[run.run_id].loss_nats
        assert losses(run) == losses(undisturbed.paths.run(run.run_id))
        assert not list(run.root.glob(".*")), "a torn file was left"
