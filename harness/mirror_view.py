"""What MLflow is shown of one run: a pure view of the run's folder.

Names of metrics, params and tags live here. Everything is a function of the files, timestamps
included, so that pushing a point twice is pushing the same point. Knows nothing of MLflow itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from harness.holder import Holder, read_holder
from harness.lease import HOLDER, look
from harness.paths import RunPaths
from harness.records import PlannedRun, RunRecord, Status, read_jsonl, read_record

TAG = "isoloss."
SLURM_TAG = "slurm."
OUR_TAGS = (TAG, SLURM_TAG)
"""Prefixes of every tag of ours."""
RUN_ID_TAG = f"{TAG}run_id"
"""How a run is found again; MLflow's run names are not unique."""
MIRRORED_TAG = f"{TAG}mirrored"
"""Set last: hash of the record that is completely mirrored, artifacts included."""

MlflowStatus = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
MLFLOW_STATUS: dict[Status, MlflowStatus] = {
    "planned": "KILLED",
    "queued": "KILLED",
    "running": "RUNNING",
    "done": "FINISHED",
    "diverged": "FINISHED",
    "failed": "FAILED",
    "cancelled": "KILLED",
}
"""A run that stopped and can be resumed is KILLED until then; a diverged run is a result."""

ROW_METRICS = {
    ("train", "loss_nats"): "train/loss_nats",
    ("train", "lr"): "train/lr",
    ("train", "grad_norm"): "train/grad_norm",
    ("val", "loss_nats"): "val/loss_nats",
    ("val", "bits_per_byte"): "val/bits_per_byte",
    ("val", "accuracy"): "val/accuracy",
}
TOKENS_PER_S = "sys/tokens_per_s"
RECORD_METRICS = (
    "loss_nats",
    "bits_per_byte",
    "accuracy",
    "solved_difficulty",
    "steps_to_90",
    "n_params",
    "n_params_non_embedding",
    "n_params_residual",
    "steps",
    "tokens",
    "flops",
    "flops_residual",
    "flops_6nd",
    "tokens_per_s",
    "step_time_s",
    "mfu",
    "wall_s",
    "peak_bytes",
    "attempts",
)
"""Fields of ``record.json`` shown as ``record/<field>``."""
EVALUATION_METRICS = "eval/"
"""Evaluations are shown as ``eval/<name>/<metric>`` at the step of their checkpoint."""
NOT_IN_KEYS = re.compile(r"[^\w./ -]")
"""Characters that MLflow does not take in the name of a metric."""
MAX_PARAM_CHARS = 500
"""Longer values are left to the artifact config.yaml: servers cut them at differing lengths."""
MAX_NAME_CHARS = 250
"""Width of the column of run names in MLflow's databases."""
MAX_TAG_CHARS = 1000
"""Errors and reasons are cut here; the record keeps them whole."""


@dataclass(frozen=True)
class Point:
    """One value of one metric."""

    key: str
    value: float
    step: int
    """Optimiser step."""
    timestamp_ms: int
    """Unix time in milliseconds."""


@dataclass(frozen=True)
class RunView:
    """One run as MLflow shall show it."""

    run_id: str
    name: str
    """Arm, shape, budget and seed."""
    status: MlflowStatus
    started_ms: int
    ended_ms: int
    """When the last thing we know of happened."""
    params: dict[str, str]
    tags: dict[str, str]
    points: list[Point]
    """Ordered by step; at most one per key and step; finite values only."""
    record_sha: str | None
    """Hash of the record's bytes; None while the run has none."""


@dataclass(frozen=True)
class Attempt:
    """One try at a run, as its folder tells it."""

    number: int
    started_ms: int
    code_version: str
    holder: Holder | None
    """The process that makes or made it."""


def is_running(paths: RunPaths, now: float) -> bool:
    """Whether the run has no record yet and somebody may be at work on it.

    Parameters
    ----------
    now
        Time of the file system, from :func:`harness.lease.fs_now`.
    """
    return look(paths.attempts, now).taken and not paths.record.exists()


def read_attempt(paths: RunPaths, number: int) -> Attempt | None:
    """Read what an attempt says of itself; None when it does not (yet)."""
    folder = paths.attempt(number)
    try:
        about = json.loads((folder / "attempt.json").read_text(encoding="utf-8"))
        return Attempt(
            number=number,
            started_ms=_unix_ms(about["started_at"]),
            code_version=str(about.get("code_version", "unknown")),
            holder=read_holder(folder / HOLDER),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def file_sha(path: Path) -> str | None:
    """SHA-256 of a file's bytes, 16 hex digits; None when it is missing."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except FileNotFoundError:
        return None


def view_run(run: PlannedRun, sweep: str, paths: RunPaths, now: float) -> RunView | None:
    """Read one run's folder as MLflow shall show it; None for a run that never began.

    Parameters
    ----------
    now
        Time of the file system, from :func:`harness.lease.fs_now`.

    Raises
    ------
    DataError
        ``record.json`` is damaged.
    """
    record_sha = file_sha(paths.record)
    record = read_record(paths.record)
    attempts = [a for n in range(1, paths.n_attempts() + 1) if (a := read_attempt(paths, n))]
    if not attempts and record is None:
        return None
    status: Status = record.status if record else "running" if is_running(paths, now) else "planned"
    clock = _Clock(attempts, read_jsonl(paths.metrics))
    points = [*_row_points(run, clock), *_diagnostic_points(paths, clock)]
    ended_ms = _ended_ms(record, clock)
    if record:
        points += _record_points(record, ended_ms)
        points += _evaluation_points(record, ended_ms)
    return RunView(
        run_id=run.run_id,
        name=_clean(f"{run.cell} seed={run.config.get('seed', 0)}")[:MAX_NAME_CHARS],
        status=MLFLOW_STATUS[status],
        started_ms=attempts[0].started_ms if attempts else ended_ms,
        ended_ms=ended_ms,
        params=flat_params(run.config),
        tags=_tags(run, sweep, paths, record, attempts, status),
        points=_one_per_step(points),
        record_sha=record_sha,
    )


class _Clock:
    """Wall-clock times of rows, which carry only their attempt and the seconds since its start."""

    def __init__(self, attempts: list[Attempt], rows: list[dict[str, Any]]) -> None:
        self.rows = rows
        self.starts = {attempt.number: attempt.started_ms for attempt in attempts}
        self.first_ms = min(self.starts.values(), default=0)
        self.steps: dict[int, list[int]] = {}
        self.times: dict[int, list[int]] = {}
        for row in rows:
            number = int(row.get("attempt", 1))
            self.steps.setdefault(number, []).append(int(row["step"]))
            self.times.setdefault(number, []).append(self.at(row))

    def at(self, row: dict[str, Any]) -> int:
        """Time of a metrics row in Unix milliseconds."""
        start = self.starts.get(int(row.get("attempt", 1)), self.first_ms)
        return start + round(1000 * float(row.get("elapsed_s", 0.0)))

    def near(self, row: dict[str, Any]) -> int:
        """Time of a row without one: that of its attempt's last metrics row up to its step."""
        number = int(row.get("attempt", 1))
        before = bisect_right(self.steps.get(number, []), int(row["step"]))
        if not before:
            return self.starts.get(number, self.first_ms)
        return self.times[number][before - 1]

    @property
    def last_ms(self) -> int:
        """Time of the last thing that happened."""
        return max((t for times in self.times.values() for t in times), default=self.first_ms)


def _unix_ms(iso: str) -> int:
    return round(1000 * datetime.fromisoformat(iso).timestamp())


def _ended_ms(record: RunRecord | None, clock: _Clock) -> int:
    if record and record.finished_at:
        return _unix_ms(record.finished_at)
    return clock.last_ms


def _row_points(run: PlannedRun, clock: _Clock) -> Iterator[Point]:
    batch_tokens = run.config["train"]["batch_tokens"]
    for row in clock.rows:
        kind, step, when = str(row.get("kind")), int(row["step"]), clock.at(row)
        values = {name: row.get(field) for (k, field), name in ROW_METRICS.items() if k == kind}
        values |= {"tokens": row.get("tokens"), "flops": row.get("flops")}
        if row.get("step_time_s"):
            values[TOKENS_PER_S] = batch_tokens / row["step_time_s"]
        yield from _points(values, step, when)


def _diagnostic_points(paths: RunPaths, clock: _Clock) -> Iterator[Point]:
    """Scalars of the diagnostics rows; lists over sublayers are left to the figures."""
    for row in read_jsonl(paths.diagnostics):
        values = {k: v for k, v in row.items() if k not in ("kind", "step", "attempt", "reads")}
        if values.get("state_rms"):
            values["state_rms_final"] = values["state_rms"][-1]
        entropies = [
            read["normalised_entropy"]
            for read in row.get("reads") or []
            if read.get("normalised_entropy") is not None
        ]
        if entropies:
            values["mean_entropy"] = sum(entropies) / len(entropies)
        named = {f"diagnostics/{key}": value for key, value in values.items()}
        yield from _points(named, int(row["step"]), clock.near(row))


def _record_points(record: RunRecord, when: int) -> Iterator[Point]:
    values = {f"record/{field}": getattr(record, field) for field in RECORD_METRICS}
    return _points(values, record.last_step, when)


def _evaluation_points(record: RunRecord, when: int) -> Iterator[Point]:
    """Evaluations of all checkpoints; a colon in a name becomes a level of its own."""
    for checkpoint, evaluations in record.evaluations.items():
        for name, metrics in evaluations.items():
            level = f"{EVALUATION_METRICS}{name.replace(':', '/')}/"
            values = {NOT_IN_KEYS.sub("_", level + key): value for key, value in metrics.items()}
            yield from _points(values, int(checkpoint.removeprefix("step-")), when)


def _points(values: dict[str, Any], step: int, when: int) -> Iterator[Point]:
    """Points of the finite numbers only: MLflow stores NaN as 0 and infinity as 1.8e308."""
    for key, value in values.items():
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            yield Point(key, float(value), step, when)


def _one_per_step(points: list[Point]) -> list[Point]:
    """One point per key and step: the first, which stays it when later rows repeat the step."""
    unique: dict[tuple[str, int], Point] = {}
    for point in points:
        unique.setdefault((point.key, point.step), point)
    return sorted(unique.values(), key=lambda point: (point.step, point.key))


def flat_params(config: dict[str, Any]) -> dict[str, str]:
    """Scalar science fields under their dotted grid names; nulls, lists and long texts left out.

    ``residual.name`` is called ``residual`` and its options ``residual.<option>``, as in a grid;
    options of a task likewise ``data.<option>``.
    """
    found: dict[str, str] = {}
    for path, value in _leaves("", config):
        name = path.removesuffix(".name") if path == "residual.name" else path
        text = _clean(str(value))
        if len(text) <= MAX_PARAM_CHARS:
            found[name.replace(".options.", ".")] = text
    return found


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, str | int | float]]:
    if isinstance(value, dict):
        for key, child in value.items():
            yield from _leaves(f"{prefix}.{key}" if prefix else str(key), child)
    elif isinstance(value, (str, int, float)):
        yield prefix, value


def _tags(
    run: PlannedRun,
    sweep: str,
    paths: RunPaths,
    record: RunRecord | None,
    attempts: list[Attempt],
    status: Status,
) -> dict[str, str]:
    newest = attempts[-1] if attempts else None
    origin = record or newest
    code_version = origin.code_version if origin else None
    values: dict[str, object] = {
        "run_id": run.run_id,
        "sweep": sweep,
        "arm": run.arm,
        "cell": run.cell,
        "seed": run.config.get("seed", 0),
        "attempt": paths.n_attempts(),
        "status": status,
        "code_version": code_version,
        "config_sha": file_sha(paths.config),
        "excluded_because": record.excluded_because if record else None,
        "error": record.error if record else None,
    }
    named = {TAG + key: value for key, value in values.items()}
    named |= _code_tags(code_version) | _place_tags(newest.holder if newest else None)
    return {k: _clean(str(v))[:MAX_TAG_CHARS] for k, v in named.items() if v is not None}


def _code_tags(code_version: str | None) -> dict[str, object]:
    """Commit, whether the sources differed from it, and their hash, as far as the version tells.

    ``0.1.0+g373df6ac1234.dirty.code8f3a9b2c1d4e``, see ``harness.snapshot.code_version``.
    """
    parts = (code_version or "").partition("+")[2].split(".")
    commit = next((part[1:] for part in parts if part.startswith("g")), None)
    code = next((part[4:] for part in parts if part.startswith("code")), None)
    dirty = "dirty" in parts if commit else None
    return {f"{TAG}git_sha": commit, f"{TAG}git_dirty": dirty, f"{TAG}code_sha": code}


def _place_tags(holder: Holder | None) -> dict[str, object]:
    """Where the newest attempt runs or ran."""
    if holder is None:
        return {}
    job, _, task = (holder.job or "").partition("_")
    slurm = {f"{SLURM_TAG}job": job or None, f"{SLURM_TAG}task": task or None}
    return {f"{TAG}host": holder.host, **slurm}


def _clean(text: str) -> str:
    """Printable characters only: PostgreSQL refuses some of the others."""
    return "".join(char if char.isprintable() else " " for char in text)
