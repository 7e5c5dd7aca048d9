"""Everything that the files of one run say: its attempts, losses, checkpoints and record.

Read only, without torch; what a kill left torn or unwritten is told as unknown.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.attempts import read_attempt
from harness.holder import read_holder
from harness.lease import HEARTBEAT, HOLDER, Look, look, read_end, terms_of
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, parsed_lines, read_jsonl, read_record

DIED = "died without a word"
UNTOLD = "untold"
"""How an attempt ended that an older version of isoloss made."""


@dataclass(frozen=True)
class AttemptFacts:
    """One try at a run."""

    number: int
    who: str
    """Host and process, or job."""
    job: str | None
    """Slurm job."""
    began: float | None
    """Unix time; None where it is not known."""
    last_seen: float | None
    """Unix time of its end, or of its last sign of life."""
    how: str
    """``at work``, how it ended, or that it died without a word."""
    last_step: int | None
    """Last step that it logged."""
    about: dict[str, Any]
    """``attempt.json``: code, libraries, hardware, environment."""
    log: Path

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        if self.began is None or self.last_seen is None:
            return None
        return max(0.0, self.last_seen - self.began)


@dataclass(frozen=True)
class Checkpoint:
    """One file of training state."""

    path: Path
    step: int
    n_bytes: int
    saved_at: float
    """Unix time."""


@dataclass(frozen=True)
class RunFacts:
    """One run in full."""

    run: PlannedRun
    paths: RunPaths
    attempts: tuple[AttemptFacts, ...]
    losses: dict[int, tuple[float, float | None]]
    """By step: validation loss in nats, bits per byte."""
    checkpoints: tuple[Checkpoint, ...]
    record: RunRecord | None

    @property
    def provenance(self) -> dict[str, Any]:
        """Code version, libraries and hardware: the record's, else the newest attempt's."""
        if self.record is not None:
            return self.record.model_dump(include={"code_version", "library_versions", "hardware"})
        return self.attempts[-1].about if self.attempts else {}


def run_facts(paths: SweepPaths, run: PlannedRun, now: float, lease_s: float) -> RunFacts:
    """Read the folder of a run.

    Parameters
    ----------
    now
        The file system's time.
    lease_s
        Seconds of silence after which an owner is taken for dead.

    Raises
    ------
    DataError
        The record is damaged.
    """
    here = paths.run(run.run_id)
    record = read_record(here.record)
    validations = [row for row in read_jsonl(here.metrics) if row.get("kind") == "val"]
    return RunFacts(
        run=run,
        paths=here,
        attempts=tuple(read_attempts(here, now, lease_s, ended=record is not None)),
        losses={
            int(row["step"]): (float(row["loss_nats"]), row.get("bits_per_byte"))
            for row in validations
        },
        checkpoints=tuple(_checkpoints(here)),
        record=record,
    )


def read_attempts(here: RunPaths, now: float, lease_s: float, *, ended: bool) -> list[AttemptFacts]:
    """All tries at a run, oldest first.

    Parameters
    ----------
    ended
        Whether the run has a record: then its newest attempt did not die.
    """
    numbers = terms_of(here.attempts)
    newest = look(here.attempts, now, lease_s=lease_s)
    steps = _steps_by_attempt(here)
    found = []
    for number in numbers:
        seen = newest if number == numbers[-1] else None
        found.append(_attempt(here, number, seen, now, steps.get(number), ended=ended))
    return found


def dead_attempts(here: RunPaths, now: float, lease_s: float) -> list[AttemptFacts]:
    """Tries at a run that died without a word, oldest first."""
    numbers, ended = terms_of(here.attempts), here.record.exists()
    if all(read_end(here.attempt(number)) is not None for number in numbers):
        return []
    newest = look(here.attempts, now, lease_s=lease_s)
    tries = [
        _attempt(here, n, newest if n == numbers[-1] else None, now, None, ended=ended)
        for n in numbers
    ]
    return [attempt for attempt in tries if attempt.how == DIED]


def _attempt(
    here: RunPaths,
    number: int,
    newest: Look | None,
    now: float,
    last_step: int | None,
    *,
    ended: bool,
) -> AttemptFacts:
    folder = here.attempt(number)
    holder, end = read_holder(folder / HOLDER), read_end(folder)
    about = read_attempt(here, number)
    began = _unix(about.get("started_at")) or _modified(folder / HOLDER)
    last_seen = _modified(folder / HEARTBEAT)
    if end is not None:
        how, last_seen = str(end.get("how", "ended")), end.get("ended_at", last_seen)
    elif newest is not None and newest.taken:
        how = "at work" if newest.liveness == "live" else f"silent for {newest.age_s:.0f} s"
        last_seen = now
    elif holder is None:
        how = UNTOLD
    else:
        how = "ended with the run" if newest is not None and ended else DIED
    process = f"{about['host']}, process {about['pid']}" if "host" in about else "unknown"
    return AttemptFacts(
        number=number,
        who=holder.describe() if holder else process,
        job=holder.job if holder else None,
        began=began,
        last_seen=last_seen,
        how=how,
        last_step=last_step,
        about=about,
        log=folder / "log",
    )


def _steps_by_attempt(here: RunPaths) -> dict[int, int]:
    steps: dict[int, int] = {}
    for row in parsed_lines(here.metrics):
        number = int(row.get("attempt", 1))
        steps[number] = max(steps.get(number, 0), int(row["step"]))
    return steps


def _checkpoints(here: RunPaths) -> list[Checkpoint]:
    found = []
    for path in sorted(here.checkpoints.glob("step-*.ckpt"), reverse=True):
        step = re.search(r"\d+", path.name)
        with contextlib.suppress(OSError):  # it may be replaced by a newer one right now
            about = path.stat()
            number = int(step[0]) if step else 0
            found.append(Checkpoint(path, number, about.st_size, about.st_mtime))
    return found


def _unix(iso: Any) -> float | None:
    try:
        return datetime.fromisoformat(iso).timestamp()
    except (TypeError, ValueError):
        return None


def _modified(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None
