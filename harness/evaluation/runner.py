"""Which results are missing, and how they come about: one model at a time, one file at a time.

Whatever ends this, files of finished measurements stay; the next call does the rest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.errors import IsolossError
from harness.evaluation.base import Entry
from harness.evaluation.store import Stored, join_record, stored_result, write_result
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, read_record
from harness.trunks import states

Checkpoints = Literal["last", "all"] | tuple[int, ...]
"""Of each run: that of its last step, all that were kept, or those of given steps."""


@dataclass(frozen=True)
class Subject:
    """One checkpoint of one run, and what is asked of it."""

    run: PlannedRun
    paths: RunPaths
    step: int
    missing: tuple[Entry, ...]
    """What has no result yet."""
    stored: tuple[Stored, ...]
    """What has one."""


@dataclass(frozen=True)
class Unevaluated:
    """A run, or one checkpoint of it, that could not be evaluated."""

    run: PlannedRun
    reason: str


@dataclass(frozen=True)
class Measured:
    """One measurement that has just been completed."""

    run: PlannedRun
    entry: Entry
    result: Stored
    seconds: float


def parse_checkpoints(text: str) -> Checkpoints:
    """Read ``last``, ``all``, or steps with commas.

    Raises
    ------
    IsolossError
        It is none of these.
    """
    named: dict[str, Checkpoints] = {"last": "last", "all": "all"}
    if text in named:
        return named[text]
    if re.fullmatch(r"\d+(,\d+)*", text):
        return tuple(sorted({int(step) for step in text.split(",")}))
    raise IsolossError(f"--checkpoints: expected last, all, or steps such as 100,200; got '{text}'")


def survey(
    sweep: SweepPaths,
    runs: Sequence[PlannedRun],
    entries: Sequence[Entry],
    checkpoints: Checkpoints,
    *,
    force: bool = False,
) -> tuple[list[Subject], list[Unevaluated]]:
    """Look what there is and what is missing; measures nothing.

    Parameters
    ----------
    force
        Measure again what has a result.

    Returns
    -------
    list of Subject
        One for each checkpoint, complete ones too.
    list of Unevaluated
        Runs, or checkpoints of them, that cannot be evaluated, with the reason.
    """
    subjects: list[Subject] = []
    refused: list[Unevaluated] = []
    for run in runs:
        paths = sweep.run(run.run_id)
        try:
            record = _evaluable(run, paths)
        except IsolossError as error:
            refused.append(Unevaluated(run, str(error)))
            continue
        kept = {step for step, _ in states(paths.checkpoints)}
        for step in _steps(record, kept, checkpoints):
            found = [None if force else stored_result(paths, step, entry) for entry in entries]
            missing = tuple(e for e, result in zip(entries, found, strict=True) if result is None)
            if missing and step not in kept:
                refused.append(Unevaluated(run, _no_checkpoint(step, kept)))
                continue
            subjects.append(Subject(run, paths, step, missing, tuple(r for r in found if r)))
    return subjects, refused


def evaluate(subject: Subject) -> Iterator[Measured]:
    """Measure what is missing of one checkpoint; each result is on disk when it is yielded.

    The record is joined at the end, after a failure or Ctrl-C too.

    Raises
    ------
    IsolossError
        The checkpoint cannot be used, or a measurement cannot be made of this model.
    """
    from harness.loading import load_model

    paths, step = subject.paths, subject.step
    try:
        model = load_model(paths, subject.run, step)
        for entry in subject.missing:
            began = time.perf_counter()
            result = write_result(paths, step, entry, entry.measure(model))
            yield Measured(subject.run, entry, result, time.perf_counter() - began)
    finally:
        join_record(paths)


def evaluate_all(
    subjects: Sequence[Subject], report: Callable[[Measured], None]
) -> tuple[list[Subject], list[Unevaluated]]:
    """Measure all that is missing, and go on with the next checkpoint where one fails.

    Parameters
    ----------
    report
        Called after each measurement.

    Returns
    -------
    list of Subject
        The same checkpoints with all that is stored of them now.
    list of Unevaluated
        Those where something could not be measured.
    """
    from recipes.base import RecipeError

    done: list[Subject] = []
    failed: list[Unevaluated] = []
    for subject in subjects:
        fresh: list[Stored] = []
        try:
            if subject.missing:
                for measured in evaluate(subject):
                    report(measured)
                    fresh.append(measured.result)
            else:  # a kill may have come between a file and the record
                join_record(subject.paths)
        except (IsolossError, RecipeError, OSError) as error:
            failed.append(Unevaluated(subject.run, str(error)))
        left = subject.missing[len(fresh) :]
        stored = (*subject.stored, *fresh)
        done.append(Subject(subject.run, subject.paths, subject.step, left, stored))
    return done, failed


def _evaluable(run: PlannedRun, paths: RunPaths) -> RunRecord:
    """Record of a run that has a trained language model.

    Raises
    ------
    IsolossError
        It has none.
    """
    data = run.config["data"]
    if data.get("task"):
        raise IsolossError(f"trained on the task {data['task']}, not on text")
    record = read_record(paths.record)
    if record is None:
        raise IsolossError("not finished" if paths.n_attempts() else "not started")
    if record.status != "done":
        raise IsolossError(record.excluded_because or record.status)
    return record


def _steps(record: RunRecord, kept: set[int], checkpoints: Checkpoints) -> Sequence[int]:
    if checkpoints == "last":
        return [record.last_step]
    if checkpoints == "all":
        return sorted(kept) or [record.last_step]
    return checkpoints


def _no_checkpoint(step: int, kept: set[int]) -> str:
    there = f"there are: {', '.join(map(str, sorted(kept)))}" if kept else "none was kept"
    return f"no checkpoint of step {step}; {there}"
