"""`isoloss status --watch`: renewed in place on a terminal, plain blocks elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from harness.overview import Overview
from harness.show import overview_parts, run_lines
from harness.status import RunState
from harness.status_page import PageWriter
from harness.sweep_view import SweepView

REFRESH_S = 2.0
"""Seconds between two looks."""
PLAIN_EVERY_S = 30.0
"""Seconds between two blocks where the output is not a terminal."""

ROWS_BELOW = 16
"""Lines that the table's frame and the remarks need beside the runs."""


def watch(
    view: SweepView,
    console: Console,
    *,
    every_run: bool,
    refresh_s: float = REFRESH_S,
    plain_every_s: float = PLAIN_EVERY_S,
) -> int:
    """Show a sweep until all its runs have ended.

    Returns
    -------
    int
        Exit code: 0 when all runs are done, 1 when some failed, diverged or were cancelled.
    """
    page = PageWriter(view.paths)
    with _screen(console, plain_every_s) as screen:
        while True:
            began = time.monotonic()
            states = view.states()
            seen = view.overview(states)
            page.write(seen, states)
            screen.show(_block(seen, states, every_run, console), last=seen.ended)
            if seen.ended:
                return 0 if set(seen.total.counts) <= {"done"} else 1
            time.sleep(max(0.1, refresh_s - (time.monotonic() - began)))


def _block(
    seen: Overview, states: list[RunState], every_run: bool, console: Console
) -> RenderableType:
    """Everything that one look prints; on a terminal, as many runs as fit, those at work first."""
    parts = overview_parts(seen, console.width)
    if not every_run:
        return Group(*parts)
    room = len(states)
    if console.is_terminal:
        room = max(1, console.height - len(seen.arms) - ROWS_BELOW)
        states = sorted(states, key=lambda state: (state.status != "running", state.ended))
    shown = run_lines(states[:room])
    if room < len(states):
        shown.append(f"and {len(states) - room} more runs: isoloss status --runs lists them all")
    return Group(*(Text(line, no_wrap=True, overflow="crop") for line in shown), "", *parts)


class _Plain:
    """Prints a block now and then: for logs and pipes."""

    def __init__(self, console: Console, every_s: float) -> None:
        self.console, self.every_s = console, every_s
        self.printed_at = -every_s

    def show(self, block: RenderableType, *, last: bool) -> None:
        now = time.monotonic()
        if last or now - self.printed_at >= self.every_s:
            self.printed_at = now
            self.console.print(block)
            self.console.print()


class _Renewed:
    """Renews a block in place on a terminal."""

    def __init__(self, live: Live) -> None:
        self.live = live

    def show(self, block: RenderableType, *, last: bool) -> None:
        self.live.update(block, refresh=True)


@contextlib.contextmanager
def _screen(console: Console, every_s: float) -> Iterator[_Plain | _Renewed]:
    if not console.is_terminal:
        yield _Plain(console, every_s)
        return
    with Live(console=console, screen=False, auto_refresh=False) as live:
        yield _Renewed(live)
