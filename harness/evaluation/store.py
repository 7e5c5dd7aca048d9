"""Results of evaluations on disk, one file each, and how they join the run's record.

``evaluations/step-<N>/<name>.json`` is written atomically when its measurement is complete, and is
the truth; the record repeats it for those who read records. No torch.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.errors import MissingExtraError
from harness.evaluation.base import Entry, Metrics
from harness.paths import RunPaths
from harness.records import read_record, write_text_atomically

FORMAT = 1
_ODD = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Stored:
    """One result."""

    name: str
    """Of its entry."""
    step: int
    """Optimiser steps of the checkpoint."""
    identity: dict[str, Any]
    metrics: Metrics
    """NaN where the file has null."""


def result_file(paths: RunPaths, step: int, name: str) -> Path:
    """Where the result of one entry on one checkpoint stands."""
    return paths.evaluations / f"step-{step}" / f"{_ODD.sub('.', name)}.json"


def read_result(path: Path) -> Stored | None:
    """Read one result; None where there is none that can be read: it is measured again."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        metrics = {
            str(key): math.nan if value is None else float(value)
            for key, value in found["metrics"].items()
        }
        return Stored(str(found["name"]), int(found["step"]), dict(found["identity"]), metrics)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def stored_result(paths: RunPaths, step: int, entry: Entry) -> Stored | None:
    """Result of an entry on a checkpoint; None unless it was measured as it is asked for now."""
    found = read_result(result_file(paths, step, entry.name))
    wanted = (entry.name, _as_json(entry.identity))  # two names may have one file
    return found if found and (found.name, found.identity) == wanted else None


def write_result(paths: RunPaths, step: int, entry: Entry, metrics: Metrics) -> Stored:
    """Write one result atomically; NaN and infinity become null."""
    stored = Stored(entry.name, step, _as_json(entry.identity), metrics)
    fields = {
        "format": FORMAT,
        "name": stored.name,
        "run_id": paths.run_id,
        "step": step,
        "identity": stored.identity,
        "metrics": {k: v if math.isfinite(v) else None for k, v in metrics.items()},
    }
    text = json.dumps(fields, indent=2, allow_nan=False) + "\n"
    write_text_atomically(result_file(paths, step, entry.name), text)
    return stored


def all_results(paths: RunPaths) -> list[Stored]:
    """All results of a run, by step and name."""
    read = (read_result(path) for path in paths.evaluations.glob("step-*/*.json"))
    return sorted((r for r in read if r), key=lambda result: (result.step, result.name))


def join_record(paths: RunPaths) -> None:
    """Rebuild ``evaluations`` of a run's record from its files; nothing where it has no record.

    NaN and infinity are left out: a record with them could not be read again.
    """
    with _alone(paths):
        record = read_record(paths.record)
        if record is None:
            return
        joined: dict[str, dict[str, Metrics]] = {}
        for result in all_results(paths):
            finite = {k: v for k, v in result.metrics.items() if math.isfinite(v)}
            joined.setdefault(f"step-{result.step}", {})[result.name] = finite
        if joined != record.evaluations:
            record = record.model_copy(update={"evaluations": joined})
            write_text_atomically(paths.record, record.model_dump_json(indent=2) + "\n")


@contextlib.contextmanager
def _alone(paths: RunPaths) -> Iterator[None]:
    """Keep other processes out, so that none puts back a record without another's results."""
    try:
        from filelock import FileLock
    except ImportError as error:
        raise MissingExtraError("eval", "train", "filelock") from error
    with FileLock(paths.evaluations.with_name(".evaluations.lock")):
        yield


def _as_json(identity: dict[str, Any]) -> dict[str, Any]:
    """An identity as it comes back from a file."""
    restored: dict[str, Any] = json.loads(json.dumps(identity))
    return restored
