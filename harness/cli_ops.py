"""Commands that act on a sweep that exists: retry, cancel, sync."""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness.cli_common import RESULTS, Results, SweepArgument, elsewhere, find_sweep
from harness.errors import IsolossError
from harness.paths import RunPaths, SweepPaths
from harness.records import Manifest, PlannedRun, read_manifest
from harness.status import find_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from harness.mirror import Mirror

RunIds = Annotated[
    list[str] | None, typer.Argument(metavar="[RUN]...", help="Run ids, or their first digits.")
]


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    for command in (retry, cancel, sync):
        app.command()(command)


def _chosen(paths: SweepPaths, manifest: Manifest, prefixes: list[str] | None) -> list[PlannedRun]:
    if not prefixes:
        return manifest.runs
    return [find_run(paths, manifest, prefix) for prefix in prefixes]


def retry(grid: SweepArgument, runs: RunIds = None, results: Results = RESULTS) -> None:
    """Set failed and cancelled runs free, so that the next `isoloss run` takes them up again.

    Example: isoloss retry quickstart && isoloss run recipes/grids/quickstart.yaml
    """
    from harness.control import retry_runs

    paths = find_sweep(grid, results)
    manifest = read_manifest(paths)
    freed = retry_runs(paths, _chosen(paths, manifest, runs))
    for run in freed:
        print(f"{run.run_id} {run.cell}")
    if freed:
        print(f"runs set free: {len(freed)}")
        print(" ".join(["Next: isoloss run GRID (the sweep's grid file)", *elsewhere(results)]))
    else:
        print("no failed or cancelled run among them")


def cancel(
    grid: SweepArgument,
    runs: RunIds = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every run of the sweep that has not ended.")
    ] = False,
    results: Results = RESULTS,
) -> None:
    """Stop runs for good, local or on Slurm; nothing but this sweep's own jobs is touched.

    Runs at work save at their next step. `isoloss retry` sets cancelled runs free again.

    Example: isoloss cancel quickstart 3f2a
    """
    from harness.control import cancel_runs
    from harness.slurm.view import SchedulerView, look_at_slurm

    paths = find_sweep(grid, results)
    manifest = read_manifest(paths)
    if bool(runs) == every:
        raise IsolossError("cancel: name the runs to stop, or give --all")
    view = look_at_slurm(paths) if paths.slurm.is_dir() else SchedulerView()
    done = cancel_runs(paths, [run.run_id for run in _chosen(paths, manifest, runs)], view)
    print(done.describe())
    print(f"Next: isoloss status {' '.join([manifest.sweep, *elsewhere(results)])}")
    if done.trouble:
        print(f"tasks were left in the queue: {done.trouble}", file=sys.stderr)
        raise typer.Exit(1)


def sync(
    grid: SweepArgument,
    results: Results = RESULTS,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on until SIGTERM, or until the parent process is gone."),
    ] = False,
) -> None:
    """Bring MLflow up to date with the sweep's files; doubles nothing.

    Example: isoloss sync quickstart
    """
    asked: list[int] = []
    if follow:  # first of all: the imports below take seconds, and a stop may come during them
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    from harness.mirror import Mirror
    from harness.tracking import create_store, tracking_uri

    paths = find_sweep(grid, results)
    read_manifest(paths)
    # One of several mirrors waits; what only the one at work needs is loaded when it begins.
    mirror = Mirror(paths, tracking_uri(paths) if follow else create_store(paths), _figures)
    if not follow:
        _sync_once(mirror)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parent = os.getppid()
    mirror.follow(lambda: bool(asked) or os.getppid() != parent)


def _figures(paths: RunPaths) -> dict[str, Figure]:
    from analysis.figures.depth import run_figures

    return run_figures(paths)


def _sync_once(mirror: Mirror) -> NoReturn:
    done = mirror.sync()
    for problem in done.problems:
        print(problem, file=sys.stderr)
    print(f"{done.n_runs} runs in MLflow, {done.n_final} complete; {done.n_points} points sent now")
    raise typer.Exit(1 if done.problems else 0)
