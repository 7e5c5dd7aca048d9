"""The command `run`: holds the grid against what exists, says the difference, and acts on it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from harness import cli_tools as tools
from harness.cli_common import RESULTS, Results, elsewhere
from harness.errors import IsolossError
from harness.paths import SweepPaths, sweep_paths

if TYPE_CHECKING:
    from harness.grid import Grid
    from harness.in_hand import SweepInHand
    from harness.plan import Plan

GridArgument = Annotated[str, typer.Argument(metavar="GRID", help="A grid file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one value of `base`; may be repeated."),
]
Profile = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME|FILE",
        help="One of the grid's own profiles (default: its first), or a YAML file with a slurm: "
        "block that the grid's own adds to (default: $ISOLOSS_PROFILE); may be repeated.",
    ),
]


def load_plan(
    grid: str, overrides: list[str] | None, results: Path, profile: list[str] | None
) -> tuple[Grid, Plan]:
    """Read a grid, with the values that were tuned for it, and price its runs."""
    from harness.grid import load_grid
    from harness.launch.ranks import sequences_per_rank
    from harness.pace import read_pace
    from harness.plan import plan as make_plan
    from harness.provenance import device_name

    loaded = load_grid(
        Path(grid), tuple(overrides or ()), _default_profile(), profiles=tuple(profile or ())
    )
    loaded = _at_tuned_values(loaded, sweep_paths(results, loaded.sweep))
    for run in loaded.runs if loaded.execution.devices * loaded.execution.nodes > 1 else ():
        sequences_per_rank(run.config, loaded.execution)  # or every run would fail by itself
    # Runs bound for Slurm meet other devices than this machine's: the one that was measured most.
    device = None if loaded.slurm else device_name()
    return loaded, make_plan(loaded, read_pace(sweep_paths(results, loaded.sweep), device))


def _at_tuned_values(grid: Grid, paths: SweepPaths) -> Grid:
    """The grid at its tuned values; as it is while some are missing: `run` tunes first then."""
    from harness.tuned import read_tuned
    from harness.tuning.apply import apply_tuned, missing

    tuned = read_tuned(paths.tuned) if grid.tune else None
    return grid if tuned is None or missing(grid, tuned) else apply_tuned(grid, tuned)


def _default_profile() -> Path | None:
    named = os.environ.get("ISOLOSS_PROFILE")
    return Path(named) if named else None


def run(
    grid: GridArgument,
    on: Annotated[
        Literal["local", "slurm"],
        typer.Option("--on", help="local: here, now. slurm: submit job arrays and return."),
    ] = "local",
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, help="local: runs at a time; default: a GPU, or core, each."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Start at most this many runs.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="slurm: stay, submit the next wave, resubmit what got lost."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="slurm: write the sbatch scripts, submit nothing.")
    ] = False,
    prune: Annotated[
        bool, typer.Option("--prune", help="Cancel runs at work that the grid no longer asks for.")
    ] = False,
    profile: Profile = None,
    results: Results = RESULTS,
    overrides: Overrides = None,
) -> None:
    """Start what is missing, resume what stopped, skip what is done.

    The difference between grid and results is printed first. Ctrl-C saves every local run at its
    next step; the same command goes on from there. Runs on Slurm go on by themselves. A grid with
    a tune: block is tuned first, here; for Slurm, isoloss tune comes before.

    Example: isoloss run recipes/grids/quickstart.yaml --workers 2

    Example: isoloss run grid.yaml --on slurm --profile cluster.yaml
    """
    from harness.in_hand import SweepInHand
    from harness.plan import to_manifest

    _check_flags(on, workers, limit, follow=follow, dry=dry_run)
    loaded, planned = load_plan(grid, overrides, results, profile)
    console = tools.console()
    if loaded.tune is not None and loaded.tuned is None:
        _tune_first(
            loaded, with_options(grid, overrides, profile, slurm=True), results, on, workers
        )
        loaded, planned = load_plan(grid, overrides, results, profile)
    for notice in (*planned.notices, *(planned.slurm_notices if on == "slurm" else ())):
        console.print(f"note: {notice}", markup=False, highlight=False)
    paths = sweep_paths(results, loaded.sweep)
    sweep = SweepInHand(console, paths, to_manifest(loaded, planned), loaded)
    taken = True
    if on == "local":
        sweep.run_here(workers, limit, prune)
    else:
        taken = _on_slurm(sweep, limit, prune, follow=follow, dry=dry_run)
    again = with_options(grid, overrides, profile, slurm=on == "slurm")
    code = _finish(sweep, again, elsewhere(results), submitted=on == "slurm")
    raise typer.Exit(0 if dry_run else code if taken else 1)


def _tune_first(grid: Grid, target: str, results: Path, on: str, workers: int | None) -> None:
    """Search what has no tuned values yet, before any run is started.

    Raises
    ------
    IsolossError
        Runs are to go to Slurm: a search stays at work, which `run --on slurm` does not.
    """
    from harness.cli_tune import tune_sweep

    if on == "slurm":
        command = " ".join([f"isoloss tune {target}", *elsewhere(results)])
        raise IsolossError(f"{grid.file}: its values are not tuned yet. Tune first: {command}")
    paths, console = sweep_paths(results, grid.sweep), tools.console()
    console.print("Values first: the grid has a tune: block and no tuned values for it yet.")
    if not tune_sweep(grid, paths, console, on="local", workers=workers):
        raise typer.Exit(1)


def with_options(
    grid: str, overrides: list[str] | None, profile: list[str] | None, *, slurm: bool
) -> str:
    """A grid with the options that make it the same runs again, as a next command takes them."""
    options = (
        *(("--on slurm",) if slurm else ()),
        *(f"--profile {name}" for name in profile or ()),
        *(f"--set {override}" for override in overrides or ()),
    )
    return " ".join([grid, *options])


def _check_flags(
    on: str, workers: int | None, limit: int | None, *, follow: bool, dry: bool
) -> None:
    """Refuse flags that would be ignored."""
    if on == "local" and (follow or dry):
        flag = "--follow" if follow else "--dry-run"
        raise IsolossError(f"run: {flag} is for --on slurm. `isoloss plan` shows what would start.")
    if on == "slurm" and workers is not None:
        raise IsolossError(
            "run: --workers is for this machine. On Slurm set slurm.runs_per_job and runs_at_once."
        )
    if follow and limit is not None:
        raise IsolossError("run: --follow submits all runs. Leave --limit out, or --follow.")


def _on_slurm(
    sweep: SweepInHand, limit: int | None, prune: bool, *, follow: bool, dry: bool
) -> bool:
    """Submit, and stay when asked to; return whether Slurm took all that it was given."""
    check_cluster(sweep.grid)
    try:
        taken = sweep.run_on_slurm(limit, prune, dry=dry)
        return sweep.follow() if taken and follow and not dry else taken
    except KeyboardInterrupt:
        sweep.say("Stopped looking. What was submitted goes on by itself.")
        return True


def check_cluster(grid: Grid) -> None:
    """Refuse a grid that this cluster would let wait for ever.

    Raises
    ------
    IsolossError
        No Slurm here, no ``slurm:`` block, or options beyond a limit of the cluster.
    """
    from harness.slurm.client import available

    if grid.slurm is None:
        raise IsolossError(
            f"{grid.file}: --on slurm needs a slurm: block, in the grid or in a file given with "
            "--profile; the least is slurm: {time: 60}, in minutes"
        )
    if not available():
        raise IsolossError("--on slurm: sbatch is not on the PATH. Run this where it is.")
    problems = cluster_problems(grid)
    if problems:
        raise IsolossError("\n".join(problems))


def cluster_problems(grid: Grid) -> list[str]:
    """What in the ``slurm:`` block this cluster cannot give, one line each.

    Raises
    ------
    GridError
        A run has no time limit.
    SchedulerUnreachable
        The controller does not answer.
    """
    from harness.slurm.block import groups_to_submit
    from harness.slurm.limits import check_options, cluster_limits

    assert grid.slurm is not None
    limits, execution = cluster_limits(), grid.execution
    groups = groups_to_submit(grid.document, grid.slurm, [run.config for run in grid.runs])
    processes = (execution.nodes, execution.devices, execution.threads)
    found = [line for options, _ in groups for line in check_options(limits, options, *processes)]
    return [f"{grid.file}: {line}" for line in dict.fromkeys(found)]


def _finish(sweep: SweepInHand, grid: str, options: list[str], *, submitted: bool) -> int:
    """Say where the sweep stands and what to do next; return the exit code that says so."""
    from harness.console import status_line
    from harness.overview import next_command

    states = sweep.states()
    tally = {state.status for state in states}
    name = " ".join([sweep.manifest.sweep, *options])
    for state in states:
        if state.status in ("failed", "diverged"):
            run_id = state.run.run_id
            sweep.say(
                f"{run_id} {state.run.cell}: {state.reason}; see isoloss logs {name} {run_id}"
            )
    sweep.say(f"{sweep.manifest.sweep}: {status_line(states)}")
    following = next_command(
        states, sweep.manifest.sweep, grid, tuple(options), look_first=sweep.held
    )
    sweep.say(f"Next: {following}")
    handed_over = submitted and tally <= {"done", "queued", "running"}
    return 0 if tally == {"done"} or handed_over else 1
