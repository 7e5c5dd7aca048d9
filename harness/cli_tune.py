"""The command `tune`: searches the values that a grid's `tune:` block asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness import cli_tools as tools
from harness.cli_common import RESULTS, Results, elsewhere
from harness.cli_run import (
    GridArgument,
    Overrides,
    Profile,
    check_cluster,
    load_plan,
    with_options,
)
from harness.errors import IsolossError
from harness.paths import SweepPaths, sweep_paths

if TYPE_CHECKING:
    from rich.console import Console

    from harness.grid import Grid
    from harness.tuning.controller import Search, Trials


def tune(
    grid: GridArgument,
    on: Annotated[
        Literal["local", "slurm"],
        typer.Option("--on", help="local: here. slurm: as job arrays; the command stays."),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="local: trials at a time; default: a GPU, or core, each."
        ),
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            "--trials", min=1, help="Finished trials per arm and size, in all; as tune.trials."
        ),
    ] = None,
    profile: Profile = None,
    results: Results = RESULTS,
    overrides: Overrides = None,
) -> None:
    """Search each arm's own values at each size, as the grid's tune: block says.

    Trials are runs of a sweep of their own, NAME-tuning; the values go to tuned.yaml, from where
    plan, run and report take them. The number of trials is absolute: the same command again goes on
    from where it was, or does nothing. Ctrl-C saves every trial at its next step.

    Example: isoloss tune recipes/grids/isoloss_ladder.yaml --workers 2

    Example: isoloss tune grid.yaml --on slurm --trials 20
    """
    if on == "slurm" and workers is not None:
        raise IsolossError("tune: --workers is for this machine. On Slurm set tune.parallel.")
    chosen = [*(overrides or ()), *([f"tune.trials={trials}"] if trials else ())]
    loaded, _ = load_plan(grid, chosen, results, profile)
    if loaded.tune is None:
        raise IsolossError(
            f"{grid}: has no tune: block. Add one, such as "
            "tune: {search: {train.lr: {factor: 2}}}, or start its runs: isoloss run"
        )
    paths, console = sweep_paths(results, loaded.sweep), tools.console()
    done = tune_sweep(loaded, paths, console, on=on, workers=workers)
    target = with_options(grid, overrides, profile, slurm=on == "slurm")
    again = f"tune {target} --trials {trials}" if trials else f"tune {target}"
    following = " ".join([f"isoloss {f'run {target}' if done else again}", *elsewhere(results)])
    console.print(f"Next: {following}", markup=False, highlight=False)
    raise typer.Exit(0 if done else 1)


def tune_sweep(
    grid: Grid,
    paths: SweepPaths,
    console: Console,
    *,
    on: Literal["local", "slurm"],
    workers: int | None,
) -> bool:
    """Search the values of a sweep; return whether all of its cells have some now.

    Raises
    ------
    IsolossError
        Another process tunes it, the journal is damaged, or trials cannot be executed.
    """
    from harness.tuning.controller import Search, search_lease
    from harness.tuning.show import notes_of, tuned_table

    if on == "slurm":
        check_cluster(grid)
    with search_lease(paths.tuning) as lease:
        search = Search(grid, paths, console, lease)
        if not _searched(search, console, on, workers):
            return False
        tuned = search.conclude()
    if tuned is None:
        return False
    console.print(tuned_table(tuned))
    for note in notes_of(tuned):
        console.print(f"note: {note}", markup=False, highlight=False)
    console.print(f"tuned: {paths.tuned}", markup=False, highlight=False)
    return True


def _searched(
    search: Search, console: Console, on: Literal["local", "slurm"], workers: int | None
) -> bool:
    """Work through the search; return whether it was left undisturbed."""
    from harness.errors import LeaseLost

    at_once = workers or _default_workers(search.grid, on)
    parallel = search.tune.parallel or at_once
    if not search.take_up(parallel):
        return True
    trials: Trials | None = None
    try:
        trials = _trials(search, console, on, min(at_once, parallel))
        search.run(trials)
    except KeyboardInterrupt:
        console.print("Stopped; every unfinished trial is saved, what Slurm has goes on by itself.")
        return False
    except LeaseLost:
        console.print("Another process has taken this search over; this one has stopped.")
        return False
    except IsolossError as error:
        console.print(str(error), markup=False, highlight=False)
        return False
    finally:
        for trouble in trials.troubles if trials else ():
            console.print(trouble, markup=False, highlight=False, style="bold")
    return True


def _default_workers(grid: Grid, on: Literal["local", "slurm"]) -> int:
    if on == "slurm":
        from harness.tuning.cells import cells_of
        from harness.tuning.on_slurm import OPEN_PER_CELL

        return OPEN_PER_CELL * max(1, sum(cell.searched for cell in cells_of(grid)))
    from harness.sweep import default_workers

    return default_workers(grid.execution)


def _trials(search: Search, console: Console, on: str, workers: int) -> Trials:
    """What executes trials, here or on Slurm."""
    from harness.sweep import mirror_command, prepare
    from harness.tracking import mirror_mode

    if on == "slurm":
        from harness.tuning.on_slurm import SlurmTrials

        return SlurmTrials(console, search.paths, search.book.manifest(), search.grid)
    from harness.tuning.local import LocalTrials

    mode, notice = mirror_mode(search.paths, search.grid.mlflow.mode)
    if notice:
        console.print(f"note: {notice}", markup=False, highlight=False)
    code = prepare(search.paths, list(search.stands_for.values()))
    mirror = mirror_command(search.paths) if mode == "direct" else None
    return LocalTrials(search.paths, search.grid.execution, workers, code, mirror)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(tune)
