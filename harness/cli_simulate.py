"""The command `isoloss simulate`, and the forecast that `isoloss plan` prints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import cli_tools as tools
from harness.cli_common import RESULTS, Results, find_sweep
from harness.cli_run import GridArgument, Overrides, Profile, load_plan
from harness.errors import IsolossError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from analysis.simulate.forecast import Forecast
    from analysis.simulate.power import Tell
    from analysis.simulate.printed import Simulation
    from harness.plan import Plan

Effect = Annotated[float, typer.Option(help="Multiplier to be found.")]
Power = Annotated[float, typer.Option(help="Probability of finding it that is good enough.")]
Studies = Annotated[int, typer.Option(help="Times that the grid is played.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the noise.")]
Like = Annotated[
    str | None,
    typer.Option(
        metavar="SWEEP", help="Take alpha and noise from this sweep's runs; default: this grid's."
    ),
]
Alpha = Annotated[float | None, typer.Option(help="Exponent of compute; assumed: 0.1.")]
Asymptote = Annotated[
    float | None, typer.Option(help="True E in nats, which the analysis does not know; assumed: 0.")
]
Loss = Annotated[
    float | None, typer.Option(help="Loss at the middle of the ladder, nats; assumed: 3.")
]
SharedSd = Annotated[
    float | None,
    typer.Option(help="Relative sd that arms share at a size and seed; assumed: 0.003."),
]
SeedSd = Annotated[
    float | None, typer.Option(help="Relative sd of each run by itself; assumed: 0.003.")
]
Divergence = Annotated[float | None, typer.Option(help="Share of runs that diverge; assumed: 0.")]
Growth = Annotated[
    float | None, typer.Option(help="d ln multiplier / d ln compute; assumed: 0, a constant one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def simulate(
    grid: GridArgument,
    effect: Effect = 1.10,
    power: Power = 0.8,
    studies: Studies = 1000,
    seed: Seed = 0,
    like: Like = None,
    alpha: Alpha = None,
    asymptote: Asymptote = None,
    loss: Loss = None,
    shared_sd: SharedSd = None,
    seed_sd: SeedSd = None,
    divergence: Divergence = None,
    growth: Growth = None,
    results: Results = RESULTS,
    profile: Profile = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Play a grid in a synthetic world: how wide its intervals, what it can find, at what cost.

    Losses follow a known law with noise and go through the same comparison as real ones. Every
    design of 3 to 8 sizes and 1 to 5 seeds is tried; the cheapest that finds the effect is marked.

    Example: isoloss simulate recipes/grids/quickstart.yaml --effect 1.2 --seed-sd 0.002
    """
    from analysis.simulate.declared import declared
    from analysis.simulate.design import designs
    from analysis.simulate.power import Question, outlook
    from analysis.simulate.printed import Simulation, simulation_json
    from analysis.simulate.world import choose_world

    question = Question(effect=effect, power=power, studies=studies, seed=seed)
    given = {
        "alpha": alpha,
        "asymptote": asymptote,
        "loss": loss,
        "shared_sd": shared_sd,
        "seed_sd": seed_sd,
        "divergence": divergence,
        "growth": growth,
    }
    choose_world(given, {}, "")  # refuses what is given wrongly before anything is read
    loaded, planned = load_plan(grid, overrides, results, profile)
    learned, source = _learned(loaded.sweep if like is None else like, results, like is not None)
    world, sources = choose_world(given, learned, source)
    asked = declared(planned.runs, planned.baseline)
    with _progress() as tell:
        tried = designs(asked, world, question, tell=tell)
        arms = outlook(asked, world, question, tell=tell)
    found = Simulation(
        sweep=loaded.sweep,
        grid=asked,
        world=world,
        sources=sources,
        question=question,
        arms=arms,
        designs=tried,
    )
    if as_json:
        print(json.dumps(simulation_json(found), indent=2))
    else:
        _show(found)


def _learned(sweep: str, results: Path, required: bool) -> tuple[Mapping[str, float], str]:
    """What the runs of a sweep teach of the world; nothing where it has none and none are needed.

    Raises
    ------
    IsolossError
        They were asked for by name and teach nothing.
    """
    paths = find_sweep(sweep, results)
    if not required and not paths.manifest.exists():
        return {}, ""
    from analysis.collect import collect
    from analysis.estimates import FitRefused
    from analysis.simulate.measured import measured
    from harness.records import read_manifest

    baseline = read_manifest(paths).baseline
    try:
        return measured(collect(paths), baseline), f"measured in {paths.root.name}"
    except FitRefused as refusal:
        if required:
            raise IsolossError(f"--like {sweep}: {refusal}") from refusal
        return {}, ""


def _show(found: Simulation) -> None:
    from analysis.simulate import printed
    from harness.console import table

    parts = [
        printed.heading(found),
        "",
        table(("world", "", "source", "meaning"), printed.world_rows(found), left=4),
        "",
        table(printed.arm_headers(found.question), printed.arm_rows(found)),
        "",
        printed.HOW_READ,
        "",
        table(printed.DESIGN_HEADERS, printed.design_rows(found), left=0),
        "",
        *printed.verdict(found),
    ]
    screen = tools.console()
    for part in parts:
        screen.print(part, markup=False, highlight=False)


@contextlib.contextmanager
def _progress() -> Iterator[Tell]:
    """A bar on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    screen = Console(stderr=True)
    with Progress(console=screen, disable=not screen.is_terminal, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(label: str, share: float) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=1.0)
            bars.update(tasks[label], completed=share)

        yield tell


def plan_forecast(planned: Plan) -> Forecast | None:
    """What the grid can be expected to find; None where it compares no losses."""
    from analysis.estimates import TooFewData
    from analysis.simulate.declared import declared
    from analysis.simulate.forecast import forecast

    if any(run.config["data"].get("task") for run in planned.runs):
        return None
    try:
        return forecast(declared(planned.runs, planned.baseline))
    except TooFewData:
        return None


def forecast_lines(expected: Forecast | None) -> list[str]:
    """The forecast as `plan` prints it; nothing where there is none."""
    from analysis.simulate.forecast import forecast_lines as lines

    return [] if expected is None else lines(expected)


def forecast_json(expected: Forecast | None) -> dict[str, Any]:
    """The forecast as `plan --json` has it; null where there is none."""
    from dataclasses import asdict

    return {"forecast": None if expected is None else asdict(expected)}
