"""What `isoloss tune` shows: a line per trial, one bar on a terminal, and the table at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from harness.console import human, table

if TYPE_CHECKING:
    from rich.table import Table

    from harness.tuned import Tuned
    from harness.tuning.study import CellStudy

PLAIN_REPORT_S = 30.0
"""Seconds between two progress lines where the output is not a terminal."""


def values_text(values: Mapping[str, Any]) -> str:
    """Values by the last part of their path: ``lr=0.02, weight_decay=0.1``."""
    parts = (f"{path.rpartition('.')[2]}={_text(value)}" for path, value in values.items())
    return ", ".join(parts)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


class SearchProgress:
    """Shows how far a search is: a bar on a terminal, a line every half minute elsewhere."""

    def __init__(self, console: Console, studies: Sequence[CellStudy]) -> None:
        self.console, self.studies = console, studies
        self.most = sum(study.tune.trials for study in studies)
        self.last_report = time.monotonic()
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> SearchProgress:
        self.bars.start()
        self.task = self.bars.add_task("trials", total=self.most, note="")
        return self

    def __exit__(self, *about: object) -> None:
        self.bars.stop()

    def say(self, line: str) -> None:
        """Print one line as it is."""
        self.console.print(line, markup=False, highlight=False)

    def poll(self, n_open: int) -> None:
        """Show how many trials have ended; nothing where the last look is not old enough."""
        every_s = 1.0 if self.console.is_terminal else PLAIN_REPORT_S
        if time.monotonic() - self.last_report < every_s:
            return
        self.last_report = time.monotonic()
        n_finished = sum(study.n_finished for study in self.studies)
        most = sum(s.n_finished if s.ended is not None else s.tune.trials for s in self.studies)
        note = f"{n_finished} of at most {most} ended, {n_open} under way"
        self.bars.update(self.task, completed=n_finished, total=most, note=note)
        if not self.console.is_terminal:
            self.say(f"trials: {note}")


def tuned_table(tuned: Tuned) -> Table:
    """One row per arm and size: chosen values, loss, and whether worse ones lie on both sides."""
    rows = [
        (
            cell.cell,
            values_text(cell.values) or "nothing to tune",
            "-" if cell.loss_nats is None else f"{cell.loss_nats:.4f}",
            str(cell.trials),
            human(float(cell.n_params)),
            _sides(cell.interior) if cell.by == "search" else "by the law of its arm",
        )
        for cell in tuned.cells
    ]
    headers = (
        "arm and size",
        "values",
        "loss (nats)",
        "trials",
        "parameters",
        "both sides worse",
    )
    return table(headers, rows, left=2)


def _sides(interior: Mapping[str, bool]) -> str:
    open_ = [path.rpartition(".")[2] for path, inside in interior.items() if not inside]
    return "-" if not interior else f"no: {', '.join(open_)}" if open_ else "yes"


def notes_of(tuned: Tuned) -> list[str]:
    """What to know before trusting the values, one line each."""
    cells = [f"{cell.cell}: {note}" for cell in tuned.cells for note in cell.notes]
    laws = [f"{law.arm}, {law.path}: {note}" for law in tuned.transfer for note in law.notes]
    return [*cells, *laws]
