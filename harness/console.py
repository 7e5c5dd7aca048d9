"""What the command line shows: tables, numbers with units, and the progress of a sweep."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.errors import DataError
from harness.lease import LEASE_S
from harness.paths import SweepPaths
from harness.records import PlannedRun
from harness.status import RunState, StateReader, counts

REFRESH_S = 1.0
"""Least seconds between two looks at the run folders."""
REST_PER_LOOK = 20.0
"""A look at thousands of runs takes time that workers need: so many times as long is rested."""
PLAIN_REPORT_S = 30.0
"""Seconds between two progress lines where the output is not a terminal."""
_PREFIXES = (
    *((1e24, "Y"), (1e21, "Z"), (1e18, "E"), (1e15, "P")),
    *((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")),
)


def human(value: float | None) -> str:
    """Three significant digits with an SI prefix: ``1.23M``; ``-`` for what is not known."""
    if value is None:
        return "-"
    for size, prefix in _PREFIXES:
        if abs(value) >= size:
            return f"{value / size:.3g}{prefix}"
    return f"{value:.3g}"


def duration(seconds: float | None) -> str:
    """Seconds as ``45 s``, ``12 min`` or ``3.4 h``; ``-`` for what is not known."""
    if seconds is None:
        return "-"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def when(unix: float | None) -> str:
    """Local date and time; ``-`` for what is not known."""
    return "-" if unix is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix))


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> Table:
    """A plain table whose first ``left`` columns are text and whose others are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, header in enumerate(headers):
        made.add_column(
            header,
            justify="left" if index < left else "right",
            overflow="fold" if index < left else "ellipsis",
        )
    for row in rows:
        made.add_row(*row)
    return made


def loss_text(state: RunState) -> str:
    """Loss with its unit, or a dash."""
    return "-" if state.loss_nats is None else f"{state.loss_nats:.4f} nats"


class SweepProgress:
    """Shows the progress of the runs of one `isoloss run`.

    On a terminal: a bar for the sweep and one for every run under way. Elsewhere: a line when a
    run ends and one every half minute.

    Parameters
    ----------
    lease_s
        Seconds of silence after which an owner is taken for dead.
    """

    def __init__(
        self,
        console: Console,
        paths: SweepPaths,
        runs: Sequence[PlannedRun],
        lease_s: float = LEASE_S,
    ) -> None:
        self.console = console
        self.reader = StateReader(paths, runs, lease_s)
        self.told: set[str] = set()
        self.open = {run.run_id for run in runs}
        self.n_runs = len(runs)
        self.total_flops = sum(run.cost.flops for run in runs) or 1.0
        self.ended_flops = 0.0
        self.began = self.last_look = self.last_report = time.monotonic()
        self.rest_s = REFRESH_S
        self.tasks: dict[str, TaskID] = {}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> SweepProgress:
        self.bars.start()
        self.overall = self.bars.add_task(f"{self.n_runs} runs", total=1.0, note="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.look()
        self.bars.stop()

    def poll(self) -> None:
        """Look at the run folders if the last look is old enough."""
        if time.monotonic() - self.last_look >= self.rest_s:
            self.look()

    def look(self) -> None:
        """Read the open runs, report those that ended, and update the bars.

        What cannot be read is told once: the runs go on without being looked at.
        """
        self.last_look = time.monotonic()
        try:
            self._show(self.reader.look())
        except (OSError, DataError) as error:
            self._tell_once(f"progress cannot be read: {error}")
        self.rest_s = max(REFRESH_S, REST_PER_LOOK * (time.monotonic() - self.last_look))

    def _tell_once(self, message: str) -> None:
        if message not in self.told:
            self.told.add(message)
            self.console.print(message, markup=False, highlight=False)

    def _show(self, states: Sequence[RunState]) -> None:
        for state in states:
            if state.ended and state.run.run_id in self.open:
                self._report_end(state)
        self.reader.runs = [state.run for state in states if not state.ended]
        under_way = [state for state in states if state.status == "running"]
        self._update(under_way)

    def _report_end(self, state: RunState) -> None:
        self.open.remove(state.run.run_id)
        self.ended_flops += state.run.cost.flops
        number = self.n_runs - len(self.open)
        line = f"[{number}/{self.n_runs}] {state.run.cell} seed {state.run.config['seed']}"
        self.console.print(
            f"{line}: {state.reason or f'done {loss_text(state)}'}", markup=False, highlight=False
        )
        if state.run.run_id in self.tasks:
            self.bars.remove_task(self.tasks.pop(state.run.run_id))

    def _update(self, under_way: list[RunState]) -> None:
        share = self.ended_flops + sum(state.flops for state in under_way)
        left = self._seconds_left(share / self.total_flops)
        note = f"{self.n_runs - len(self.open)} ended, {duration(left)} left"
        self.bars.update(self.overall, completed=share / self.total_flops, note=note)
        for state in under_way:
            self._update_run(state)
        if not self.console.is_terminal and self.last_look - self.last_report >= PLAIN_REPORT_S:
            self.last_report = self.last_look
            self.console.print(f"{100 * share / self.total_flops:.0f}% of the FLOPs, {note}")

    def _update_run(self, state: RunState) -> None:
        key = state.run.run_id
        if key not in self.tasks:
            self.tasks[key] = self.bars.add_task(f"  {state.run.cell}", total=1.0, note="")
        share = state.step / state.run.cost.steps
        self.bars.update(self.tasks[key], completed=share, note=loss_text(state))

    def _seconds_left(self, share: float) -> float | None:
        elapsed = time.monotonic() - self.began
        return elapsed * (1 - share) / share if share > 0.01 else None


def status_line(states: Sequence[RunState]) -> str:
    """Counts by status in one line."""
    return ", ".join(f"{count} {status}" for status, count in counts(states).items())
