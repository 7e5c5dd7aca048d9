"""`isoloss failures`: what failed, grouped by what failed alike, and what to do about it.

Three kinds: runs whose record says ``failed``; attempts that died without a word (killed, lost
their node), for which the scheduler's word is asked where there is one; and runs whose job ended
before they began, for which its output speaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from harness.console import when
from harness.failures import signature
from harness.paths import SweepPaths
from harness.records import read_record
from harness.run_facts import dead_attempts
from harness.slurm.unbegun import Unbegun, last_words
from harness.status import RunState
from harness.tails import tail

OWN = ("harness", "recipes", "analysis")
"""Packages whose frames name a failure."""
SHOWN_RUNS = 6
"""Runs of a group that are named."""
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python3[.\d]*/|^<")
RESUMED = "the next isoloss run resumes them"
WORDS: Mapping[str, tuple[str, str]] = {
    "OUT_OF_MEMORY": ("the node ran out of memory", "raise slurm.mem, then run again"),
    "TIMEOUT": ("the time limit was reached", f"{RESUMED}; a longer slurm.time spares restarts"),
    "NODE_FAIL": ("the node failed", RESUMED),
    "BOOT_FAIL": ("the node did not boot", RESUMED),
    "PREEMPTED": ("other jobs took the node", RESUMED),
    "CANCELLED": ("the job was cancelled", RESUMED),
    "DEADLINE": ("the deadline came", RESUMED),
}
"""What Slurm's states mean for an attempt that died, and what to do."""
NEVER_BEGAN = "mend what the log says (slurm.setup, the environment), then isoloss run again"
"""What to do where jobs end before their runs begin."""


@dataclass(frozen=True)
class Case:
    """One failure or death."""

    run_id: str
    arm: str
    signature: str
    frame: str | None
    """Deepest frame of our own code, ``file.py:12 in name``."""
    at: float
    """Unix time."""
    log: Path
    advice: str


@dataclass(frozen=True)
class Group:
    """Cases that are alike."""

    cases: tuple[Case, ...]
    """Oldest first."""

    @property
    def run_ids(self) -> list[str]:
        """Runs concerned."""
        return list(dict.fromkeys(case.run_id for case in self.cases))

    @property
    def arms(self) -> list[str]:
        """Arms concerned."""
        return list(dict.fromkeys(case.arm for case in self.cases))


def failure_groups(
    paths: SweepPaths,
    states: Sequence[RunState],
    now: float,
    lease_s: float,
    words_of: Callable[[Sequence[str]], Mapping[str, str]],
    unbegun: Sequence[Unbegun] = (),
) -> list[Group]:
    """Group all failures of a sweep, largest group first.

    Parameters
    ----------
    states
        All its runs.
    now
        The file system's time.
    lease_s
        Seconds of silence after which an owner is taken for dead.
    words_of
        The scheduler's state of jobs by id; those that it does not know are left out.
    unbegun
        Runs whose job ended before they began.

    Raises
    ------
    DataError
        A record is damaged.
    """
    failed = [_failed(paths, state) for state in states if state.status == "failed"]
    died = list(_died(paths, states, now, lease_s, words_of))
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in sorted((*failed, *died, *map(_never_began, unbegun)), key=lambda case: case.at):
        where = re.sub(r":\d+ ", " ", case.frame or "")
        groups.setdefault((case.signature, where), []).append(case)
    return sorted((Group(tuple(cases)) for cases in groups.values()), key=lambda g: -len(g.cases))


def _failed(paths: SweepPaths, state: RunState) -> Case:
    here = paths.run(state.run.run_id)
    record = read_record(here.record)
    error = record.error if record else None
    at = record.finished_at if record else None
    log = here.attempt(max(1, here.n_attempts())) / "log"
    return Case(
        run_id=state.run.run_id,
        arm=state.run.arm,
        signature=signature(error or state.reason or "unknown"),
        frame=deepest_own_frame(_tail(log)),
        at=datetime.fromisoformat(at).timestamp() if at else 0.0,
        log=log,
        advice="mend the cause, then isoloss retry",
    )


def _died(
    paths: SweepPaths,
    states: Sequence[RunState],
    now: float,
    lease_s: float,
    words_of: Callable[[Sequence[str]], Mapping[str, str]],
) -> Iterator[Case]:
    found = [
        (state, death)
        for state in states
        if state.attempts
        for death in dead_attempts(paths.run(state.run.run_id), now, lease_s)
    ]
    jobs = sorted({death.job for _, death in found if death.job})
    words = words_of(jobs) if jobs else {}
    for state, death in found:
        word = words.get(death.job or "")
        meaning, advice = WORDS.get(word or "", ("", RESUMED))
        told = f" (Slurm: {word}{f', {meaning}' if meaning else ''})" if word else ""
        yield Case(
            run_id=state.run.run_id,
            arm=state.run.arm,
            signature=f"died without a word{told}",
            frame=None,
            at=death.last_seen or 0.0,
            log=death.log,
            advice=advice,
        )


def _never_began(found: Unbegun) -> Case:
    return Case(
        run_id=found.state.run.run_id,
        arm=found.state.run.arm,
        signature=f"job ended before the run began: {signature(last_words(found.log))}",
        frame=deepest_own_frame(_tail(found.log)),
        at=_modified(found.log),
        log=found.log,
        advice=NEVER_BEGAN,
    )


def _modified(log: Path) -> float:
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


def _tail(log: Path) -> str:
    try:
        return tail(log).decode("utf-8", errors="replace")
    except OSError:
        return ""


def deepest_own_frame(log: str) -> str | None:
    """Deepest frame of our own code in the last traceback of a log; None without one."""
    _, found, traceback = log.rpartition("Traceback (most recent call last):")
    frames = [frame.groups() for frame in _FRAME.finditer(traceback)] if found else []
    for file, line, name in reversed(frames):
        parts = Path(file).parts
        own = [i for i, part in enumerate(parts) if part in OWN]
        if own or not _LIBRARY.search(file):
            shown = "/".join(parts[own[-1] :]) if own else "/".join(parts[-2:])
            return f"{shown}:{line} in {name}"
    return None


def group_parts(groups: Iterable[Group], retry: str) -> Iterator[RenderableType]:
    """Everything `isoloss failures` prints.

    Parameters
    ----------
    retry
        Command that sets failed runs free.
    """
    any_failed = False
    for group in groups:
        newest = group.cases[-1]
        any_failed |= "retry" in newest.advice
        times = f"{len(group.cases)} times, " if len(group.cases) > len(group.run_ids) else ""
        count = f"{times}{len(group.run_ids)} run{'s' if len(group.run_ids) > 1 else ''}"
        yield Text(f"{count}: {newest.signature}", style="bold")
        if newest.frame:
            yield Text(f"  at     {newest.frame}")
        yield Text(f"  arms   {', '.join(group.arms)}")
        yield Text(f"  runs   {_named(group.run_ids)}")
        yield Text(f"  when   {_span(group.cases[0].at, newest.at)}")
        yield Text(f"  log    {newest.log}")
        yield Text(f"  do     {newest.advice}")
        yield Text("")
    if any_failed:
        yield Text(f"Next: {retry}")


def _named(run_ids: Sequence[str]) -> str:
    more = len(run_ids) - SHOWN_RUNS
    return ", ".join(run_ids[:SHOWN_RUNS]) + (f" and {more} more" if more > 0 else "")


def _span(first: float, last: float) -> str:
    return when(first) if when(first) == when(last) else f"{when(first)} to {when(last)}"


def groups_json(groups: Iterable[Group]) -> list[dict[str, Any]]:
    """Everything `isoloss failures --json` prints."""
    return [
        {
            "signature": group.cases[-1].signature,
            "frame": group.cases[-1].frame,
            "count": len(group.cases),
            "runs": group.run_ids,
            "arms": group.arms,
            "first": group.cases[0].at,
            "last": group.cases[-1].at,
            "log": str(group.cases[-1].log),
            "advice": group.cases[-1].advice,
        }
        for group in groups
    ]
