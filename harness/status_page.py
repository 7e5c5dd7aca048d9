"""The live view as a page: one static file beside the sweep, rewritten while somebody looks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.console import duration, human
from harness.overview import ArmRow, Overview
from harness.paths import SweepPaths
from harness.records import write_text_atomically
from harness.show import tally_line, whereabouts
from harness.status import STATUS_ORDER, RunState

WRITE_EVERY_S = 10.0
"""Seconds between two writes of one watch, and between two reloads in the browser."""
SHOWN_AT_WORK = 200
"""Runs at work that are listed."""
TEMPLATES = Path(__file__).parent / "templates"


class PageWriter:
    """Writes ``status.html``, seldom; silent where that is not allowed."""

    def __init__(self, paths: SweepPaths) -> None:
        self.paths = paths
        self._written_at = -math.inf

    def write(self, seen: Overview, states: Sequence[RunState]) -> None:
        """Write the page if the last one is old enough, or is the last one."""
        now = time.monotonic()
        if not seen.ended and now - self._written_at < WRITE_EVERY_S:
            return
        self._written_at = now
        with contextlib.suppress(OSError):
            write_text_atomically(self.paths.status_page, page(seen, states))


@dataclass(frozen=True)
class Segment:
    """A part of an arm's bar."""

    status: str
    count: int
    percent: float


def page(seen: Overview, states: Sequence[RunState]) -> str:
    """Render the page.

    Parameters
    ----------
    seen
        The sweep.
    states
        Its runs; those at work are listed.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"human": human, "duration": duration, "whereabouts": whereabouts}
    at_work = [state for state in states if state.status == "running"]
    return environment.get_template("status.html.j2").render(
        seen=seen,
        at=time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(seen.at)),
        tally=tally_line(seen),
        rows=[*seen.arms, seen.total] if len(seen.arms) > 1 else list(seen.arms),
        bar=bar,
        statuses=[status for status in STATUS_ORDER if status in seen.total.counts],
        at_work=at_work[:SHOWN_AT_WORK],
        n_more=max(0, len(at_work) - SHOWN_AT_WORK),
        reload_s=None if seen.ended else round(WRITE_EVERY_S),
    )


def bar(row: ArmRow) -> list[Segment]:
    """Parts of an arm's bar, in the order of their statuses; widths add up to 100%."""
    return [
        Segment(status, count, 100 * count / row.n_runs) for status, count in row.counts.items()
    ]
