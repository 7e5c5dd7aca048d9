"""One tidy row per run: the manifest joined with the records on disk.

Every run of the grid appears, finished or not, and so does every record that the grid no longer
asks for; ``excluded_because`` says why a run enters no fit and is null for a usable one. Reads
files, computes nothing. Nulls stay null.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Collection, Sequence
from typing import Any

import pandas as pd

from harness.errors import DataError
from harness.paths import RunPaths, SweepPaths
from harness.records import (
    PlannedRun,
    RunRecord,
    read_jsonl,
    read_manifest,
    read_record,
)

_TEXT = "object"
_INT = "Int64"
_FLOAT = "float64"

COLUMNS: dict[str, str] = {
    "run_id": _TEXT,
    "sweep": _TEXT,
    "arm": _TEXT,
    "cell": _TEXT,
    "size": _TEXT,
    "status": _TEXT,
    "excluded_because": _TEXT,
    "in_grid": "bool",
    "residual": _TEXT,
    "residual_options": _TEXT,
    "recipe_revision": _INT,
    "n_layers": _INT,
    "d_model": _INT,
    "heads_per_layer": _FLOAT,
    "width_per_layer": _FLOAT,
    "block_size": _INT,
    "seq_len": _INT,
    "vocab_size": _INT,
    "corpus": _TEXT,
    "corpus_sha256": _TEXT,
    "task": _TEXT,
    "task_options": _TEXT,
    "graded_by": _TEXT,
    "chance": _FLOAT,
    "seed": _INT,
    "lr": _FLOAT,
    "optimizer": _TEXT,
    "schedule": _TEXT,
    "precision": _TEXT,
    "batch_tokens": _INT,
    "budget_kind": _TEXT,
    "budget_value": _FLOAT,
    "steps": _INT,
    "tokens": _INT,
    "n_params": _INT,
    "n_params_non_embedding": _INT,
    "n_params_residual": _INT,
    "flops": _FLOAT,
    "flops_residual": _FLOAT,
    "flops_without_residual": _FLOAT,
    "flops_6nd": _FLOAT,
    "train_s": _FLOAT,
    "loss_nats": _FLOAT,
    "bits_per_byte": _FLOAT,
    "accuracy": _FLOAT,
    "accuracy_by_difficulty": _TEXT,
    "accuracy_by_position": _TEXT,
    "solved_difficulty": _INT,
    "steps_to_90": _INT,
    "steps_to_90_by_difficulty": _TEXT,
    "eval_tokens": _INT,
    "loss_curve": _TEXT,
    "tokens_per_s": _FLOAT,
    "step_time_s": _FLOAT,
    "mfu": _FLOAT,
    "peak_flops_per_s": _FLOAT,
    "wall_s": _FLOAT,
    "peak_bytes": _INT,
    "attempts": _INT,
    "last_step": _INT,
    "error": _TEXT,
    "started_at": _TEXT,
    "finished_at": _TEXT,
    "code_version": _TEXT,
    "library_versions": _TEXT,
    "hardware": _TEXT,
    "pair_key": _TEXT,
    "size_key": _TEXT,
    "role": _TEXT,
    "tuned": _TEXT,
    "trunk": _TEXT,
    "branched_at": _INT,
}
"""Columns of ``runs.parquet`` and their types; ``train_s`` is steps x step_time_s. Those of depth
probes, from ``task`` on, are null for text."""

_PROBED = ("accuracy_by_difficulty", "accuracy_by_position", "steps_to_90_by_difficulty")

_NO_EVIDENCE = {
    "equal_rate": "trained at the baseline's values, for the comparison of both only",
    "trial": "a trial of a search",
}
"""Why finished runs of these roles enter no fit."""


def collect(paths: SweepPaths) -> pd.DataFrame:
    """Join the manifest of a sweep with the records on disk.

    Returns
    -------
    DataFrame
        One row per run, columns :data:`COLUMNS`: the runs of the grid in its order, then records
        that the grid no longer asks for.

    Raises
    ------
    DataError
        The sweep was never run. A damaged record is no error: its row says so.
    """
    manifest = read_manifest(paths)
    searched = {path for planned in manifest.runs for path in planned.tuned}
    rows = [
        _grid_row(planned, manifest.sweep, searched, paths.run(planned.run_id))
        for planned in manifest.runs
    ]
    rows += _stray_rows(paths, {planned.run_id for planned in manifest.runs})
    for row, label in zip(rows, _size_labels(rows), strict=True):
        row["size"] = label
    return _frame(rows)


def usable(runs: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that enter fits: those without ``excluded_because``."""
    return runs[runs["excluded_because"].isna()]


def of_the_sweep(runs: pd.DataFrame) -> pd.DataFrame:
    """Keep the rows that the grid is about: neither trials nor arms at the baseline's values."""
    if "role" not in runs:
        return runs
    return runs[~runs["role"].isin(list(_NO_EVIDENCE))]


def write_table(runs: pd.DataFrame, paths: SweepPaths) -> None:
    """Write ``runs.parquet`` atomically."""
    buffer = io.BytesIO()
    runs.to_parquet(buffer, index=False)
    paths.table.parent.mkdir(parents=True, exist_ok=True)
    scratch = paths.table.with_name(f".{paths.table.name}.{os.getpid()}")
    scratch.write_bytes(buffer.getvalue())
    scratch.replace(paths.table)


def read_loss_curve(run: RunPaths) -> pd.DataFrame:
    """Read the training and validation losses of one run, ordered by step; empty if none."""
    rows = [row for row in read_jsonl(run.metrics) if row.get("kind") in ("train", "val")]
    columns = ("kind", "step", "tokens", "flops", "loss_nats", "bits_per_byte", "lr", "grad_norm")
    return pd.DataFrame(
        [{name: row.get(name) for name in columns} for row in rows], columns=columns
    )


def read_diagnostics(run: RunPaths) -> list[dict[str, Any]]:
    """Read the diagnostics rows of one run, ordered by step; empty if none were taken."""
    return [row for row in read_jsonl(run.diagnostics) if row.get("kind") == "diagnostics"]


def _grid_row(
    planned: PlannedRun, sweep: str, searched: Collection[str], run: RunPaths
) -> dict[str, Any]:
    row = _planned_fields(planned, sweep, searched)
    try:
        record = read_record(run.record)
    except DataError as error:
        row |= {"status": "failed", "excluded_because": f"unreadable record: {error}"}
        return row
    if record is None:
        begun = run.n_attempts()
        row |= {"status": "running" if begun else "planned", "attempts": begun}
        row["excluded_because"] = "not finished" if begun else "not started"
        if run.cancel.exists():
            row |= {"status": "cancelled", "excluded_because": "cancelled"}
        return row
    # The grid's own labels stand: a record may have been written under an older grid.
    labels = {name: row[name] for name in ("arm", "cell", "sweep", "role", "tuned", "corpus")}
    row |= _record_fields(record) | labels
    row["excluded_because"] = row["excluded_because"] or _NO_EVIDENCE.get(planned.role)
    return row


def _planned_fields(planned: PlannedRun, sweep: str, searched: Collection[str]) -> dict[str, Any]:
    config, cost = planned.config, planned.cost
    model, data, train = config["model"], config["data"], config["train"]
    residual = config["residual"]
    options = residual.get("options") or {}
    kind, value = _budget(train["budget"])
    row: dict[str, Any] = {
        "run_id": planned.run_id,
        "sweep": sweep,
        "arm": planned.arm,
        "cell": planned.cell,
        "in_grid": True,
        "residual": residual["name"],
        "residual_options": _canonical(options),
        "recipe_revision": planned.recipe_revision,
        "block_size": options.get("block_size"),
        "corpus": _corpus(data),
        "task": data.get("task"),
        "task_options": _canonical(data.get("options") or {}) if data.get("task") else None,
        "corpus_sha256": planned.corpus_sha256,
        "vocab_size": planned.vocab_size,
        "seed": config.get("seed", 0),
        "budget_kind": kind,
        "budget_value": value,
        "pair_key": _pair_key(planned, searched),
        "size_key": _canonical({"model": model, "data": data, "budget": train["budget"]}),
        "role": planned.role,
        "tuned": _canonical(planned.tuned) if planned.tuned else None,
        "trunk": planned.trunk,
    }
    row |= {name: model[name] for name in ("n_layers", "d_model")} | {"seq_len": data["seq_len"]}
    row |= planned.ratios
    copied = ("lr", "optimizer", "schedule", "precision", "batch_tokens")
    row |= {name: train[name] for name in copied}
    priced = (
        *("n_params", "n_params_non_embedding", "n_params_residual", "steps", "tokens"),
        *("flops", "flops_residual", "flops_6nd"),
    )
    return row | {name: getattr(cost, name) for name in priced}


def _record_fields(record: RunRecord) -> dict[str, Any]:
    row = {name: value for name, value in record if name in COLUMNS}
    for name in ("residual_options", "library_versions", "hardware"):
        row[name] = _canonical(row[name])
    for name in _PROBED:
        row[name] = _canonical(row[name]) if row[name] else None
    row["task_options"] = _canonical(record.task_options) if record.task else None
    row["tuned"] = _canonical(record.tuned) if record.tuned else None
    if record.step_time_s is not None:
        row["train_s"] = record.steps * record.step_time_s
    row["excluded_because"] = _exclusion(record)
    return row


def _exclusion(record: RunRecord) -> str | None:
    if record.status == "diverged":
        return record.excluded_because or f"diverged after step {record.last_step}"
    if record.status == "failed":
        return record.excluded_because or f"failed: {record.error or 'no error recorded'}"
    if record.status != "done":
        return record.excluded_because or record.status
    if record.loss_nats is None or not math.isfinite(record.loss_nats):
        return record.excluded_because or "no final validation loss"
    if record.task and record.accuracy is None:
        return record.excluded_because or "no final accuracy"
    return record.excluded_because


def _stray_rows(paths: SweepPaths, known: set[str]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for path in sorted(paths.runs.glob("*/record.json")):
        run_id = path.parent.name
        if run_id in known:
            continue
        row: dict[str, Any] = {"run_id": run_id, "status": "failed"}
        try:
            record = read_record(path)
        except DataError:
            record = None
        if record is not None:
            row = _record_fields(record)
        rows.append(row | {"in_grid": False, "excluded_because": "no longer in the grid"})
    return rows


def _frame(rows: Sequence[dict[str, Any]]) -> pd.DataFrame:
    for row in rows:
        if row.get("flops") is not None and row.get("flops_residual") is not None:
            row["flops_without_residual"] = row["flops"] - row["flops_residual"]
    frame = pd.DataFrame([{name: row.get(name) for name in COLUMNS} for row in rows])
    return frame.reindex(columns=list(COLUMNS)).astype(COLUMNS)


def _pair_key(planned: PlannedRun, searched: Collection[str]) -> str:
    """All that two runs must share to be compared: everything but recipe, seed and tuned values.

    What one run's search chose is left out of every run's key: the baseline holds a value there,
    too, whether it was searched for it or not.
    """
    rest = {k: v for k, v in planned.config.items() if k not in ("residual", "seed")}
    for path in searched:
        section, _, name = path.partition(".")
        if section in rest:
            rest[section] = {k: v for k, v in rest[section].items() if k != name}
    return _canonical(rest | {"corpus_sha256": planned.corpus_sha256})


def _corpus(data: dict[str, Any]) -> str:
    """The corpus, or the task with its options: ``s3_words(length=16)``."""
    if not data.get("task"):
        return str(data["corpus"])
    options = (data.get("options") or {}).items()
    listed = ", ".join(f"{key}={value}" for key, value in sorted(options))
    return f"{data['task']}({listed})" if listed else str(data["task"])


def _budget(budget: dict[str, Any]) -> tuple[str, float]:
    kind = next(name for name, value in budget.items() if value is not None)
    return kind, float(budget[kind])


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _size_labels(rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Shortest labels that tell the sizes apart: shape, then budget and context where they vary."""
    graded = [row for row in rows if row.get("size_key")]
    budgets: dict[object, set[object]] = {}
    for row in graded:
        budgets.setdefault(_shape(row), set()).add((row["budget_kind"], row["budget_value"]))
    with_budget = any(len(found) > 1 for found in budgets.values())
    with_context = len({row["seq_len"] for row in graded if not row["task"]}) > 1
    with_task = len({row["corpus"] for row in graded if row["task"]}) > 1
    by_key: dict[str, str] = {}
    for row in graded:
        parts = [f"{row['n_layers']}x{row['d_model']}"]
        parts += [str(row["corpus"])] * bool(with_task and row["task"])
        parts += [f"ctx {row['seq_len']}"] * bool(with_context and not row["task"])
        parts += [_budget_text(row["budget_kind"], row["budget_value"])] * with_budget
        label, key = " ".join(parts), str(row["size_key"])
        if key not in by_key:
            # Sizes may differ in what no label shows (head_dim, d_ff, close budgets).
            namesakes = sum(other.split(" #")[0] == label for other in by_key.values())
            by_key[key] = f"{label} #{namesakes + 1}" if namesakes else label
    return [by_key.get(row.get("size_key") or "") for row in rows]


def _shape(row: dict[str, Any]) -> tuple[object, ...]:
    return (row["n_layers"], row["d_model"], row["seq_len"])


def _budget_text(kind: str, value: float) -> str:
    unit = {"flops": "FLOPs", "tokens": "tokens", "tokens_per_param": "tokens/param"}[kind]
    return f"{compact(value)} {unit}"


def compact(value: float) -> str:
    """Three significant digits without a padded exponent: ``1e12``, ``4.1e5``, ``20``."""
    mantissa, mark, exponent = f"{value:.3g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa
