"""Tables and JSON of the commands `plan`, `status` and `recipes`; takes data, returns what to
print.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.console import duration, human, loss_text, status_line, table
from harness.cost import FLOP_CONVENTION
from harness.status import RunState, by_arm

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from harness import token_folder
    from harness.grid import Grid
    from harness.plan import Plan
    from harness.sweep import Difference
    from recipes.base import Shape

SHOWN_RUNS = 20
"""Runs that `plan` lists; --json has them all."""


def plan_tables(plan: Plan, change: Difference) -> list[RenderableType]:
    """Everything `isoloss plan` prints."""
    notices = [*plan.notices, *change.notices()]
    shown: list[RenderableType] = [f"note: {notice}" for notice in notices]
    shown += [_run_table(plan), "", _arm_table(plan), ""]
    spent = f"{_hours(plan.hours)} of one worker at this sweep's measured pace"
    time = spent if plan.hours is not None else "time unknown until a run has been measured"
    shown.append(f"{len(plan.runs)} runs: {change.describe()}")
    shown.append(f"{human(plan.flops)} FLOPs in all; {time}. {FLOP_CONVENTION}")
    return shown


def _run_table(plan: Plan) -> Table:
    headers = (
        "run",
        "cell",
        "seed",
        "params",
        "tokens",
        "steps",
        "FLOPs",
        "variant's own",
        "memory",
    )
    rows: list[tuple[str, ...]] = [
        (
            run.run_id,
            run.cell,
            str(run.config["seed"]),
            human(run.cost.n_params),
            human(run.cost.tokens),
            str(run.cost.steps),
            human(run.cost.flops),
            f"{100 * run.cost.flops_residual / run.cost.flops:.2f}%",
            human(run.cost.state_bytes) + "B",
        )
        for run in plan.runs[:SHOWN_RUNS]
    ]
    left_out = len(plan.runs) - len(rows)
    if left_out:
        rows.append(("…", f"{left_out} more, see --json", *[""] * 7))
    return table(headers, rows, left=2)


def _arm_table(plan: Plan) -> Table:
    headers = ("arm", "runs", "tokens", "FLOPs", "variant's own", "time of one worker")
    rows = [
        (
            arm.arm,
            str(arm.runs),
            human(arm.tokens),
            human(arm.flops),
            f"{100 * arm.flops_residual / arm.flops:.2f}%",
            _hours(arm.hours),
        )
        for arm in plan.arms
    ]
    return table(headers, rows)


def _hours(hours: float | None) -> str:
    return duration(None if hours is None else 3600 * hours)


def plan_json(grid: Grid, plan: Plan, change: Difference) -> dict[str, Any]:
    """Everything `isoloss plan --json` prints."""
    return {
        "sweep": grid.sweep,
        "flop_convention": FLOP_CONVENTION,
        "flops": plan.flops,
        "hours_of_one_worker": plan.hours,
        "notices": list(plan.notices),
        "todo": [state.run.run_id for state in change.todo],
        "done": [state.run.run_id for state in change.done],
        "runs": [run.model_dump(mode="json") for run in plan.runs],
    }


def status_table(states: list[RunState], every_run: bool) -> Table:
    """The table of `isoloss status`: a row per arm, or per run."""
    made = _status_runs(states) if every_run else _status_arms(states)
    made.caption, made.caption_justify = status_line(states), "left"
    return made


def _status_arms(states: list[RunState]) -> Table:
    headers = ("arm", "done", "running", "waiting", "diverged", "failed", "progress", "left")
    rows = []
    for arm, members in by_arm(states).items():
        tally = {
            name: sum(s.status == name for s in members)
            for name in ("done", "running", "diverged", "failed")
        }
        waiting = sum(state.status in ("planned", "queued") for state in members)
        flops = sum(state.run.cost.flops for state in members)
        spent = sum(state.run.cost.flops * state.step / state.run.cost.steps for state in members)
        left = [
            s.seconds_left for s in members if s.status == "running" and s.seconds_left is not None
        ]
        rows.append(
            (
                arm,
                str(tally["done"]),
                str(tally["running"]),
                str(waiting),
                str(tally["diverged"]),
                str(tally["failed"]),
                f"{100 * spent / flops:.0f}%",
                duration(max(left)) if left else "-",
            )
        )
    return table(headers, rows)


def _status_runs(states: list[RunState]) -> Table:
    headers = ("run", "cell", "status", "seed", "step", "loss", "attempts", "left")
    rows = [
        (
            state.run.run_id,
            state.run.cell,
            "resumable" if state.resumable else state.status,
            str(state.run.config["seed"]),
            f"{state.step}/{state.run.cost.steps}",
            loss_text(state),
            str(state.attempts),
            duration(state.seconds_left) if state.status == "running" else "-",
        )
        for state in states
    ]
    return table(headers, rows, left=3)


def status_json(states: list[RunState]) -> list[dict[str, Any]]:
    """A list of runs with their state."""
    return [
        {
            "run_id": state.run.run_id,
            "arm": state.run.arm,
            "cell": state.run.cell,
            "status": state.status,
            "resumable": state.resumable,
            "step": state.step,
            "steps": state.run.cost.steps,
            "loss_nats": state.loss_nats,
            "seconds_left": state.seconds_left if state.status == "running" else None,
            "attempts": state.attempts,
            "excluded_because": state.reason,
        }
        for state in states
    ]


def recipe_table(n_layers: int, d_model: int) -> list[RenderableType]:
    """The table of `isoloss recipes`."""
    from recipes.base import Shape, available

    shape = Shape(n_layers=n_layers, d_model=d_model)
    rows = [(name, cls.equation, *_prices(name, shape)) for name, cls in available().items()]
    headers = ("recipe", "equation", "params", "forward FLOPs/token", "moved/token")
    note = (
        f"Cost at default options, n_layers {n_layers}, d_model {d_model}; d is d_model elements; "
        "- where the default options do not fit the shape."
    )
    return [table(headers, rows, left=2), note]


def _prices(name: str, shape: Shape) -> tuple[str, str, str]:
    from recipes.base import RecipeError, get, parse_options

    try:
        cost = get(name).cost(shape, parse_options(name, {}, shape))
    except RecipeError:
        return ("-", "-", "-")
    moved = f"{cost.elements_moved_per_token / shape.d_model:.0f} d"
    return (human(cost.params), human(cost.flops_per_token), moved)


def recipe_page(name: str, n_layers: int, d_model: int) -> list[RenderableType]:
    """One recipe in full: docstring of its file, options with defaults, cost.

    Raises
    ------
    IsolossError
        No such recipe, or its default options do not fit the shape.
    """
    import inspect

    from harness.errors import IsolossError
    from recipes.base import RecipeError, Shape, get, parse_options

    shape = Shape(n_layers=n_layers, d_model=d_model)
    try:
        cls = get(name)
        cost = cls.cost(shape, parse_options(name, {}, shape))
    except RecipeError as error:
        raise IsolossError(str(error)) from error
    module = inspect.getmodule(cls)
    about = ((inspect.getdoc(module) if module else None) or "").replace("``", "")
    facts = f"equation: {cls.equation}\nsource:   {cls.source}"
    options = [
        (option, repr(info.get_default()), _meaning(info))
        for option, info in cls.Options.model_fields.items()
    ]
    price = (
        f"At n_layers {n_layers}, d_model {d_model}: {human(cost.params)} parameters, "
        f"{human(cost.flops_per_token)} forward FLOPs, "
        f"{human(cost.elements_moved_per_token)} elements moved and "
        f"{human(cost.state_elements_per_token)} kept, per token."
    )
    choices = [table(("option", "default", "meaning"), options, left=3)] if options else []
    return [about, "", facts, "", *choices, "", price]


def _meaning(info: FieldInfo) -> str:
    """Describe an option, naming its values where the description leaves one out."""
    told = info.description or ""
    values = get_args(info.annotation) if get_origin(info.annotation) is Literal else ()
    if all(value in told for value in values):
        return told
    return f"{' | '.join(values)}. {told}"


class PrepareProgress:
    """Progress of `isoloss prepare`: documents and bytes read so far."""

    def __init__(self, console: Console) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> PrepareProgress:
        self.bars.start()
        self.task = self.bars.add_task("reading", total=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bars.stop()

    def update(self, done: token_folder.Progress) -> None:
        """Show how far a phase is."""
        self.bars.update(
            self.task,
            completed=done.bytes,
            total=done.total_bytes,
            description=f"{done.phase}: {done.documents:,} documents, {human(done.bytes)}B",
        )
