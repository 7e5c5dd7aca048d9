"""What there is to say about a sweep, from the states of its runs: pure.

The terminal (:mod:`harness.show`) and the page (:mod:`harness.status_page`) show the same facts;
every command that says what to do next asks ``next_command(states, sweep, grid, options)``.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.common_step import CommonStep
from harness.failures import signature
from harness.status import RunState, by_arm, counts
from harness.trunks import sharing

SHOWN_SIGNATURES = 3
"""Kinds of failures that `status` names; `failures` has them all."""
SHOWN_SILENT = 5
"""Silent runs that are named."""
NO_WORKER_YET = "waits for a free worker of `isoloss run`"
WAITING = ("planned", "queued")
NEVER = "will never start as it is: "
"""Said once for all runs that will not."""


@dataclass(frozen=True)
class ArmRow:
    """Where one arm, or the whole sweep, stands."""

    arm: str
    counts: dict[str, int]
    """Runs by status; what does not occur is left out."""
    tokens: int
    """Seen so far."""
    tokens_total: int
    share: float
    """Of the arm's FLOPs."""
    loss_nats: float | None
    """At the common step."""
    tokens_per_s: float | None
    """Of its runs at work together; None when there is none."""
    run_seconds_left: float | None
    """Time that its runs still need, one after the other; None when it cannot be told."""
    retries: int
    """Attempts beyond the first."""

    @property
    def n_runs(self) -> int:
        """All its runs."""
        return sum(self.counts.values())


@dataclass(frozen=True)
class Overview:
    """One look at a sweep."""

    sweep: str
    at: float
    """Unix time of the look."""
    arms: tuple[ArmRow, ...]
    total: ArmRow
    common: CommonStep | None
    """Where the losses of the arms were taken."""
    seconds_left: float | None
    """Until the sweep has ended with the runs now at work; None when it cannot be told."""
    never: tuple[str, ...]
    """Runs that wait for what will never come, and what to do."""
    held: tuple[str, ...]
    """Runs that are not started because others failed."""
    silent: tuple[str, ...]
    """Runs whose owner gives no sign of life."""
    waits: tuple[str, ...]
    """What runs wait for, most first."""
    failures: tuple[str, ...]
    """Kinds of failures, most frequent first."""
    scheduler: str | None
    """What the scheduler's answer adds; None for a sweep that was never submitted."""
    next_command: str | None
    shared: str | None = None
    """What runs of several budgets save by training their common part once."""

    @property
    def n_at_work(self) -> int:
        """Runs at work."""
        return self.total.counts.get("running", 0)

    @property
    def ended(self) -> bool:
        """Whether nothing more happens by itself."""
        return not {"running", *WAITING} & set(self.total.counts)


@dataclass(frozen=True)
class Surroundings:
    """What an overview needs beside the states."""

    sweep: str
    at: float
    """Unix time."""
    lease_s: float
    """Seconds of silence after which an owner is taken for dead."""
    breaker: str | None = None
    """Why no run is started at all."""
    held_arms: Mapping[str, str] | None = None
    """Arms that are held, with the reason."""
    n_unbegun: int = 0
    """Runs whose job ended before they began."""
    scheduler: str | None = None
    grid: str | None = None
    """The grid file, where it is known."""
    options: tuple[str, ...] = ()
    """What a next command needs to find the results."""
    watching: bool = False


def overview(
    states: Sequence[RunState], common: CommonStep | None, around: Surroundings
) -> Overview:
    """Summarise a sweep.

    Parameters
    ----------
    states
        All its runs.
    common
        Losses at the common step.
    around
        What the states do not tell.
    """
    left = _estimator(states)
    losses = common.losses if common else {}
    arms = tuple(
        _row(arm, members, losses.get(arm), left) for arm, members in by_arm(states).items()
    )
    total = _row("all", states, None, left)
    queued = [state for state in states if state.status == "queued"]
    never = [s for s in queued if s.place and s.place.never]
    held = tuple(_held(states, around))
    saved = sharing(state.run for state in states)
    return Overview(
        sweep=around.sweep,
        at=around.at,
        arms=arms,
        total=total,
        common=common,
        seconds_left=_seconds_left(states, total, left),
        never=tuple(_never(never)),
        held=held,
        silent=tuple(_silent(states, around.lease_s)),
        waits=tuple(_waits(s for s in queued if not (s.place and s.place.never))),
        failures=(*_failures(states), *_unbegun(around)),
        scheduler=around.scheduler,
        next_command=_next(states, around, look_first=bool(held or around.n_unbegun)),
        shared=saved.describe() if saved else None,
    )


def _row(
    arm: str,
    members: Sequence[RunState],
    loss_nats: float | None,
    left: Callable[[RunState], float | None],
) -> ArmRow:
    rates = [s.tokens_per_s or 0.0 for s in members if s.status == "running"]
    needed = [left(state) for state in members if not state.ended]
    known = [seconds for seconds in needed if seconds is not None]
    return ArmRow(
        arm=arm,
        counts=counts(members),
        tokens=sum(state.tokens for state in members),
        tokens_total=sum(state.run.cost.tokens for state in members),
        share=sum(s.flops for s in members) / (sum(s.run.cost.flops for s in members) or 1.0),
        loss_nats=loss_nats,
        tokens_per_s=sum(rates) if rates else None,
        run_seconds_left=sum(known) if len(known) == len(needed) else None,
        retries=sum(max(0, state.attempts - 1) for state in members),
    )


def _estimator(states: Sequence[RunState]) -> Callable[[RunState], float | None]:
    """Time that a run still needs: at its own pace, its cell's, or that of all FLOPs so far."""
    by_cell: dict[str, list[float]] = {}
    rates = []
    for state in states:
        if state.step_time_s:
            by_cell.setdefault(state.run.cell, []).append(state.step_time_s)
            rates.append(state.run.cost.flops / state.run.cost.steps / state.step_time_s)
    step_times = {cell: statistics.median(times) for cell, times in by_cell.items()}
    flops_per_s = statistics.median(rates) if rates else None

    def left(state: RunState) -> float | None:
        if state.step_time_s:
            return state.seconds_left
        steps = state.run.cost.steps - state.step
        if state.run.cell in step_times:
            return steps * step_times[state.run.cell]
        cost = state.run.cost
        return None if flops_per_s is None else cost.flops * steps / cost.steps / flops_per_s

    return left


def _seconds_left(
    states: Sequence[RunState], total: ArmRow, left: Callable[[RunState], float | None]
) -> float | None:
    """Work left over the runs at work, but no less than the longest of those still needs."""
    at_work = [left(state) for state in states if state.status == "running"]
    if not at_work or total.run_seconds_left is None:
        return None
    return max([total.run_seconds_left / len(at_work), *(s for s in at_work if s is not None)])


def several(n: int, text: str) -> str:
    """``text`` said of n runs: ``waits for …`` becomes ``3 runs wait for …``."""
    subject = "1 run" if n == 1 else f"{n} runs"
    if text.startswith("waits "):
        return f"{subject} {text if n == 1 else text.replace('waits ', 'wait ', 1)}"
    return f"{subject}: {text}"


def _never(states: Iterable[RunState]) -> list[str]:
    jobs: dict[str, list[str]] = {}
    for state in states:
        if state.place:
            jobs.setdefault(state.place.text, []).append(state.place.job_id)
    return [
        f"{several(len(ids), text.removeprefix(NEVER))} (job {ids[0]})"
        for text, ids in jobs.items()
    ]


def _waits(states: Iterable[RunState]) -> list[str]:
    tally = Counter(s.place.text if s.place else NO_WORKER_YET for s in states)
    return [several(n, text) for text, n in tally.most_common()]


def _silent(states: Sequence[RunState], lease_s: float) -> list[str]:
    quiet = [state for state in states if state.silent_s is not None]
    lines = [
        f"run {state.run.run_id}: no sign of life for {state.silent_s:.0f} s from {state.holder}; "
        f"taken for dead after {lease_s:.0f} s"
        for state in quiet[:SHOWN_SILENT]
    ]
    more = len(quiet) - len(lines)
    return [*lines, f"{more} more runs give no sign of life"] if more else lines


def _held(states: Sequence[RunState], around: Surroundings) -> list[str]:
    waiting = {state.run.arm for state in states if state.status in WAITING}
    if around.breaker:
        return [around.breaker] if waiting else []
    return [reason for arm, reason in (around.held_arms or {}).items() if arm in waiting]


def _failures(states: Sequence[RunState]) -> list[str]:
    tally = Counter(signature(s.reason or "unknown") for s in states if s.status == "failed")
    lines = [f"{n} failed: {what}" for what, n in tally.most_common(SHOWN_SIGNATURES)]
    more = len(tally) - len(lines)
    return [*lines, f"{more} more kinds of failures"] if more else lines


def _unbegun(around: Surroundings) -> list[str]:
    if not around.n_unbegun:
        return []
    ended = "its job ended before it began"
    if around.n_unbegun > 1:
        ended = "their jobs ended before they began"
    see = " ".join(["isoloss failures", around.sweep, *around.options])
    return [f"{several(around.n_unbegun, ended)}, see {see}"]


def _next(states: Sequence[RunState], around: Surroundings, *, look_first: bool) -> str | None:
    if around.watching and any(state.status in ("running", "queued") for state in states):
        return None
    return next_command(states, around.sweep, around.grid, around.options, look_first=look_first)


def next_command(
    states: Sequence[RunState],
    sweep: str,
    grid: str | None = None,
    options: Sequence[str] = (),
    *,
    look_first: bool = False,
) -> str:
    """What to do about a sweep next.

    Parameters
    ----------
    states
        All its runs.
    grid
        The grid file, where it is known.
    options
        What the command needs to find the results.
    look_first
        Whether runs that wait would fail or be held: why is looked at before they are run.
    """
    tally = set(counts(states))
    name = " ".join([sweep, *options])
    if tally & {"running", "queued"}:
        return f"isoloss status {name} --watch"
    if "failed" in tally or (look_first and "planned" in tally):
        return f"isoloss failures {name}"
    if states and all(state.run.role == "trial" for state in states):
        file = grid or f"GRID (the grid file of {sweep.removesuffix('-tuning')})"
        return " ".join(["isoloss tune", file, *options])
    if "planned" in tally:
        return " ".join(["isoloss run", grid or "GRID (the sweep's grid file)", *options])
    return f"isoloss retry {name}" if tally == {"cancelled"} else f"isoloss report {name}"
