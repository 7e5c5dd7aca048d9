"""Tables and JSON of the commands `status` and `recipes`; takes data, returns what to print."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from harness.console import duration, human, table
from harness.overview import ArmRow, Overview
from harness.records import Status
from harness.status import STATUS_ORDER, RunState

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from harness import token_folder
    from recipes.base import Shape


def overview_parts(view: Overview, width: int) -> list[RenderableType]:
    """What `isoloss status` prints: the header, a row per arm, and what to know and do.

    Parameters
    ----------
    width
        Characters of a line; where they do not suffice for all columns, there are two tables.
    """
    return [_header(view), *_arm_tables(view, width), *_remarks(view)]


def _header(view: Overview) -> Text:
    line = Text(view.sweep, style="bold")
    line.append(f"  {time.strftime('%H:%M:%S', time.localtime(view.at))}", style="not bold")
    if view.scheduler:
        line.append(f"  {view.scheduler}", style="not bold")
    return line


Column = tuple[str, Callable[[ArmRow], str]]


def _arm_tables(view: Overview, width: int) -> Iterator[RenderableType]:
    """One row per arm, and one for all."""
    rows = [*view.arms, view.total] if len(view.arms) > 1 else list(view.arms)
    arm: Column = ("arm", lambda row: row.arm)
    counted, measured = _counted(view), _measured(view)
    wide = [arm, *counted, *measured]
    needed = sum(max(len(name), *(len(tell(row)) for row in rows)) + 2 for name, tell in wide)
    for columns in [wide] if needed <= width else [[arm, *counted], [arm, *measured]]:
        yield ""
        yield table([name for name, _ in columns], [[tell(r) for _, tell in columns] for r in rows])


def _counted(view: Overview) -> list[Column]:
    """Runs by status; what does not occur is left out."""
    always: tuple[Status, ...] = ("done", "running", "planned")
    return [
        (status, _counter(status))
        for status in STATUS_ORDER
        if status in always or status in view.total.counts
    ]


def _counter(status: Status) -> Callable[[ArmRow], str]:
    return lambda row: str(row.counts.get(status, 0))


def _measured(view: Overview) -> list[Column]:
    shown: list[Column] = [
        ("tokens", lambda row: f"{human(row.tokens)} of {human(row.tokens_total)}"),
        ("FLOPs", lambda row: f"{100 * row.share:.0f}%"),
    ]
    if view.common:
        shown.append(("loss", lambda row: _nats(row.loss_nats)))
    if view.total.tokens_per_s:
        shown.append(("tokens/s", lambda row: human(row.tokens_per_s)))
    if view.total.run_seconds_left:
        shown.append(("run time left", lambda row: duration(row.run_seconds_left or None)))
    if view.total.retries:
        shown.append(("retries", lambda row: str(row.retries)))
    return shown


def _nats(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.4f}"


def _remarks(view: Overview) -> Iterator[Text]:
    """Lines under the table, the most urgent ones marked."""
    if view.common:
        yield Text(f"loss: validation, nats, {view.common.describe()}", style="dim")
    yield Text(f"\n{tally_line(view)}")
    if view.shared:
        yield Text(view.shared, style="dim")
    for line in view.never:
        yield Text(f"WILL NOT START  {line}", style="bold red")
    for line in view.held:
        yield Text(f"HELD BACK  {line}", style="bold red")
    for line in view.silent:
        yield Text(f"SILENT  {line}", style="bold yellow")
    for line in view.waits:
        yield Text(line)
    for line in view.failures:
        yield Text(line, style="red")
    if view.next_command:
        yield Text(f"Next: {view.next_command}")


def tally_line(view: Overview) -> str:
    """Counts by status, and how long the rest will take."""
    total = view.total
    line = ", ".join(f"{count} {status}" for status, count in total.counts.items())
    if view.seconds_left is not None:
        line += f"; about {duration(view.seconds_left)} left with {view.n_at_work} at work"
    elif not view.ended and total.run_seconds_left:
        line += f"; {duration(total.run_seconds_left)} of run time left, nothing at work"
    return line or "no runs"


def run_lines(states: Sequence[RunState]) -> list[str]:
    """The lines of `isoloss status --runs`: a header, and one per run."""
    headers = ("run", "status", "seed", "step", "loss", "attempts", "left", "cell", "where or why")
    rows = [headers, *map(_run_row, states)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = (str.ljust, str.ljust, *[str.rjust] * 5, str.ljust, str.ljust)
    return [
        "  ".join(put(text, n) for put, text, n in zip(aligned, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _run_row(state: RunState) -> tuple[str, ...]:
    return (
        state.run.run_id,
        "resumable" if state.resumable else state.status,
        str(state.run.config["seed"]),
        f"{state.step}/{state.run.cost.steps}",
        _nats(state.loss_nats),
        str(state.attempts),
        duration(state.seconds_left) if state.status == "running" else "-",
        state.run.cell,
        whereabouts(state),
    )


def whereabouts(state: RunState) -> str:
    """Who is at work on a run, what it waits for, or why it ended as it did."""
    if state.holder:
        quiet = f", silent for {state.silent_s:.0f} s" if state.silent_s is not None else ""
        return state.holder + quiet
    if state.place and not state.ended:
        return f"job {state.place.job_id}: {state.place.text}"
    return state.reason or ""


def status_json(states: Sequence[RunState]) -> list[dict[str, Any]]:
    """A list of runs with their state."""
    return [
        {
            "run_id": state.run.run_id,
            "arm": state.run.arm,
            "cell": state.run.cell,
            "seed": state.run.config["seed"],
            "status": state.status,
            "resumable": state.resumable,
            "step": state.step,
            "steps": state.run.cost.steps,
            "tokens": state.tokens,
            "tokens_total": state.run.cost.tokens,
            "loss_nats": state.loss_nats,
            "tokens_per_s": state.tokens_per_s,
            "seconds_left": state.seconds_left if state.status == "running" else None,
            "attempts": state.attempts,
            "holder": state.holder,
            "silent_s": state.silent_s,
            "scheduler": dataclasses.asdict(state.place) if state.place else None,
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
    facts = (
        f"equation: {cls.equation}\nsource:   {cls.source}\n"
        "transfer of rates (model.parametrisation):\n"
        + cls.transfer_note.replace(" Depth: ", "\nDepth: ")
    )
    options = [
        (option, repr(info.get_default()), meaning(info))
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


def meaning(info: FieldInfo) -> str:
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
