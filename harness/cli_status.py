"""Commands that look at a sweep and change nothing: status, logs, show, diff, failures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.cli_common import RESULTS, AsJson, Results, SweepArgument, elsewhere, find_sweep
from harness.errors import IsolossError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

    from harness.paths import RunPaths, SweepPaths
    from harness.records import PlannedRun
    from harness.run_facts import RunFacts
    from harness.status import RunState

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="Run id, or its first digits.")]
EITHER = "Run id, or its first digits; SWEEP:ID for one of another sweep."
RunA = Annotated[str, typer.Argument(metavar="A", help=EITHER)]
RunB = Annotated[str, typer.Argument(metavar="B", help=EITHER)]
LOG_PAUSE_S = 0.5
"""Pause between two looks at a log that is followed."""
NO_OUTPUT = "no warnings and no errors"
"""What an empty log means: training says nothing else."""


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the command line."""
    for command in (status, logs, show, diff, failures):
        app.command()(command)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False) if sys.stdout.isatty() else Console(width=160, highlight=False)


def _print(parts: Iterable[RenderableType]) -> None:
    console = _console()
    for part in parts:
        console.print(part)


def status(
    grid: SweepArgument,
    runs: Annotated[bool, typer.Option("--runs", help="List every run, not only arms.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Refresh until all runs have ended, or Ctrl-C.")
    ] = False,
    results: Results = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Show where a sweep stands: from its files, and Slurm's queue if it was submitted.

    With --watch the exit code is 0 when all runs are done and 1 when some are not. The same facts
    are written to status.html beside the sweep.

    Example: isoloss status quickstart --watch
    """
    from harness.sweep_view import SweepView

    if watch and as_json:
        raise IsolossError("--watch and --json: choose one; --json looks once")
    known = grid if Path(grid).is_file() else None
    options = tuple(elsewhere(results))
    view = SweepView(find_sweep(grid, results), grid=known, options=options, watching=watch)
    if as_json:
        from harness.show import status_json

        print(json.dumps(status_json(view.states()), indent=2))
        return
    if watch:
        from harness.watch import watch as keep_watching

        raise typer.Exit(keep_watching(view, _console(), every_run=runs))
    from harness.show import overview_parts, run_lines
    from harness.status_page import PageWriter

    states = view.states()
    seen = view.overview(states)
    PageWriter(view.paths).write(seen, states)
    if runs:
        print("\n".join(run_lines(states)), end="\n\n")
    console = _console()
    for part in overview_parts(seen, console.width):
        console.print(part)


def logs(
    grid: SweepArgument,
    run_id: RunArgument,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="Number of the attempt; default: the newest.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until the run has ended, or Ctrl-C.")
    ] = False,
    results: Results = RESULTS,
) -> None:
    """Print the log of a run's newest attempt; of a job that never began it, Slurm's output.

    Example: isoloss logs quickstart 3f2a --follow
    """
    paths, run = _find(grid, run_id, results)
    log = _log(paths, run, attempt)
    here = paths.run(run.run_id)
    print(f"# {log}", flush=True)
    if follow:
        _follow(paths, here, log, newest=attempt is None)
    else:
        print(log.read_text(encoding="utf-8", errors="replace").rstrip("\n") or NO_OUTPUT)
    if here.metrics.exists():
        print(f"# losses by step: {here.metrics}")


def _find(grid: str, run_id: str, results: Path) -> tuple[SweepPaths, PlannedRun]:
    from harness.records import read_manifest
    from harness.status import find_run

    paths = find_sweep(grid, results)
    return paths, find_run(paths, read_manifest(paths), run_id)


def _log(paths: SweepPaths, run: PlannedRun, attempt: int | None) -> Path:
    """The log that was asked for.

    Raises
    ------
    IsolossError
        There is none.
    """
    here = paths.run(run.run_id)
    n_attempts = here.n_attempts()
    if attempt is not None and attempt > n_attempts:
        raise IsolossError(f"run {run.run_id} has {n_attempts} attempts, not {attempt}")
    log = here.attempt(attempt or n_attempts) / "log"
    if log.exists():
        return log
    if attempt is None and (outputs := _slurm_outputs(paths, run)):
        return outputs[-1]
    if n_attempts:
        raise IsolossError(f"{log}: no such file; the attempt ended or died before its first line")
    raise IsolossError(f"run {run.run_id} has not begun: no log yet")


def _slurm_outputs(paths: SweepPaths, run: PlannedRun) -> list[Path]:
    """What Slurm tasks that were to take the run have printed, oldest first."""
    if not paths.slurm.is_dir():
        return []
    from harness.slurm.submissions import read_submissions, submission_paths

    return [
        output
        for submission in read_submissions(paths)
        for index, runs in enumerate(submission.tasks)
        if run.run_id in runs
        for output in submission_paths(paths, submission.token).out.glob(f"*_{index}.log")
    ]


def _follow(paths: SweepPaths, here: RunPaths, log: Path, *, newest: bool) -> None:
    """Print what a log holds and what is added to it, until the run has ended.

    Parameters
    ----------
    newest
        Whether to go over to the log of the next attempt when one begins; else it ends the log.
    """
    over = False
    while not over:
        log, over = _print_log(paths, here, log, newest=newest)
        if not over:
            print(f"# {log}", flush=True)


def _print_log(paths: SweepPaths, here: RunPaths, log: Path, *, newest: bool) -> tuple[Path, bool]:
    """Follow one log to its end; return the log to follow next, and whether there is none."""
    with log.open(encoding="utf-8", errors="replace") as stream:
        while True:
            over = _is_over(paths, here)
            next_log = here.attempt(here.n_attempts()) / "log"
            moved = next_log != log and next_log.exists()
            text = stream.read()
            sys.stdout.write(text)
            sys.stdout.flush()
            if text:
                continue
            if moved and newest:
                return next_log, False
            if moved or over:
                return log, True
            time.sleep(LOG_PAUSE_S)


def _is_over(paths: SweepPaths, here: RunPaths) -> bool:
    """Whether a run has a record, or was cancelled and nobody works on it."""
    if here.record.exists():
        return True
    if not here.cancel.exists():
        return False
    from harness.lease import fs_now, look
    from harness.records import read_manifest
    from harness.status import lease_seconds

    lease_s = lease_seconds(read_manifest(paths))
    return not look(here.attempts, fs_now(paths.root), lease_s=lease_s).taken


def _facts(
    paths: SweepPaths, run: PlannedRun, *, ask_scheduler: bool = False
) -> tuple[RunFacts, RunState, float]:
    from harness.lease import fs_now
    from harness.records import read_manifest
    from harness.run_facts import run_facts
    from harness.status import StateReader, lease_seconds
    from harness.sweep_view import Scheduler

    lease_s, now = lease_seconds(read_manifest(paths)), fs_now(paths.root)
    places = Scheduler(paths).ask().places if ask_scheduler else {}
    (state,) = StateReader(paths, [run], lease_s).look(places)
    return run_facts(paths, run, now, lease_s), state, now


def show(
    grid: SweepArgument, run_id: RunArgument, results: Results = RESULTS, as_json: AsJson = False
) -> None:
    """Show one run in full: configuration, cost, attempts, losses, checkpoints, record, files.

    Example: isoloss show quickstart 3f2a
    """
    from harness.run_page import run_json, run_parts

    facts, state, now = _facts(*_find(grid, run_id, results), ask_scheduler=True)
    if as_json:
        print(json.dumps(run_json(facts, state), indent=2))
        return
    _print(run_parts(facts, state, now))


def diff(
    grid: SweepArgument,
    a: RunA,
    b: RunB,
    results: Results = RESULTS,
    as_json: AsJson = False,
) -> None:
    """Show what differs between two runs, and their losses at the steps both validated.

    Example: isoloss diff quickstart 3f2a 91bc
    """
    from harness.compare_runs import diff_json, diff_parts

    left, right = (_facts(*_elsewhere_too(grid, name, results))[0] for name in (a, b))
    if as_json:
        print(json.dumps(diff_json(left, right), indent=2))
        return
    _print(diff_parts(left, right))


def _elsewhere_too(grid: str, name: str, results: Path) -> tuple[SweepPaths, PlannedRun]:
    sweep, colon, run_id = name.rpartition(":")
    return _find(sweep if colon else grid, run_id, results)


def failures(grid: SweepArgument, results: Results = RESULTS, as_json: AsJson = False) -> None:
    """Show what failed, died or never began, grouped by what is alike, and what to do.

    Example: isoloss failures quickstart
    """
    from harness.failure_groups import failure_groups, group_parts, groups_json
    from harness.lease import fs_now
    from harness.records import read_manifest
    from harness.status import lease_seconds, sweep_states
    from harness.sweep_view import Scheduler

    paths = find_sweep(grid, results)
    manifest = read_manifest(paths)
    scheduler = Scheduler(paths)
    answer = scheduler.ask()
    if not answer.answered:
        print(f"note: {answer.note}", file=sys.stderr)
    states, now = sweep_states(paths, manifest, answer.places), fs_now(paths.root)
    unbegun = scheduler.unbegun(states)
    groups = failure_groups(paths, states, now, lease_seconds(manifest), _words_of, unbegun)
    if as_json:
        print(json.dumps(groups_json(groups), indent=2))
    elif not groups:
        print(f"{manifest.sweep}: nothing failed, nothing died")
    else:
        retry = " ".join(["isoloss retry", manifest.sweep, *elsewhere(results)])
        _print(group_parts(groups, retry))


def _words_of(jobs: Sequence[str]) -> Mapping[str, str]:
    """Slurm's states of jobs that have ended; empty where Slurm is away."""
    from harness.slurm.client import available, outcomes

    if not available():
        return {}
    try:
        return {job: told.state for job, told in outcomes(jobs).items() if told.ended}
    except IsolossError as error:
        print(f"note: {error}", file=sys.stderr)
        return {}
