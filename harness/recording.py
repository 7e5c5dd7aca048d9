"""From a planned run and its metric files to its record: pure, but for reading those files."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from harness.config import SCHEMA_VERSION, DataConfig, RunConfig
from harness.errors import DataError
from harness.paths import RunPaths
from harness.probing import probe_fields
from harness.records import PlannedRun, RunRecord, Status, parsed_lines, read_jsonl
from harness.tasks import build_task


def utc_now() -> str:
    """Current time, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def build_record(
    run: PlannedRun,
    sweep: str,
    paths: RunPaths,
    *,
    status: Status,
    block_size: int | None,
    provenance: dict[str, Any],
    reason: str | None = None,
    error: str | None = None,
) -> RunRecord:
    """Assemble the record of a run that has ended.

    Parameters
    ----------
    block_size
        Sublayers per depth block, for recipes that have one.
    provenance
        ``code_version``, ``library_versions``, ``hardware``, ``peak_bytes``, ``peak_flops_per_s``.
    reason
        Why the run enters no fit; required unless the status is ``done``.
    error
        The exception of a failed run, in one line.

    Raises
    ------
    DataError
        The run is ``done`` but its final validation is not in the metrics file.
    """
    config = RunConfig.model_validate(run.config)
    rows = read_jsonl(paths.metrics)
    return RunRecord(
        schema_version=SCHEMA_VERSION,
        run_id=run.run_id,
        sweep=sweep,
        arm=run.arm,
        cell=run.cell,
        status=status,
        excluded_because=reason,
        block_size=block_size,
        recipe_revision=run.recipe_revision,
        recipe_sha256=run.recipe_sha256,
        vocab_size=run.vocab_size,
        corpus_sha256=run.corpus_sha256,
        attempts=paths.n_attempts(),
        error=error,
        role=run.role,
        tuned=run.tuned,
        finished_at=utc_now(),
        **_science(config),
        **run.cost.model_dump(
            exclude={"state_bytes", "flops_per_token", "flops_per_token_residual"}
        ),
        **_measured(config, run, paths, rows, status),
        **_speed(config, run, rows, provenance["peak_flops_per_s"]),
        **provenance,
    )


def _science(config: RunConfig) -> dict[str, Any]:
    train = config.train
    return {
        "residual": config.residual.name,
        "residual_options": config.residual.options,
        "n_layers": config.model.n_layers,
        "d_model": config.model.d_model,
        "seq_len": config.data.seq_len,
        "corpus": config.data.label,
        **_task(config.data),
        "seed": config.seed,
        "lr": train.lr,
        "optimizer": train.optimizer,
        "schedule": train.schedule,
        "precision": train.precision,
        "batch_tokens": train.batch_tokens,
        "budget_kind": train.budget.kind,
        "budget_value": train.budget.value,
    }


def _task(data: DataConfig) -> dict[str, Any]:
    if data.task is None:
        return {}
    info = build_task(data.task, data.options).info
    return {
        "task": data.task,
        "task_options": data.options,
        "graded_by": info.graded_by,
        "chance": info.chance,
    }


def _measured(
    config: RunConfig,
    run: PlannedRun,
    paths: RunPaths,
    rows: list[dict[str, Any]],
    status: Status,
) -> dict[str, Any]:
    """Loss at the last step; null unless the run reached it."""
    validations = [r for r in rows if r["kind"] == "val"]
    final = [r for r in validations if r["step"] == run.cost.steps]
    finished = status == "done"
    if finished and not final:
        raise DataError(
            f"{paths.metrics}: the validation of the last step is missing. "
            f"Delete {paths.root} to train this run again."
        )
    return {
        "loss_nats": final[-1]["loss_nats"] if finished else None,
        "bits_per_byte": final[-1]["bits_per_byte"] if finished else None,
        "eval_tokens": config.train.eval_tokens if finished else None,
        "last_step": max((int(r["step"]) for r in rows), default=0),
        "wall_s": _wall_s(parsed_lines(paths.metrics)),
        **(probe_fields(validations) if finished and config.data.task else {}),
    }


def _wall_s(lines: Iterable[dict[str, Any]]) -> float | None:
    """Sum over attempts of the time from their start to their last row, repeated steps included."""
    last: dict[int, float] = {}
    for row in lines:
        attempt = int(row["attempt"])
        last[attempt] = max(last.get(attempt, 0.0), float(row["elapsed_s"]))
    return sum(last.values()) if last else None


def _speed(
    config: RunConfig, run: PlannedRun, rows: list[dict[str, Any]], peak: float | None
) -> dict[str, Any]:
    windows = [r["step_time_s"] for r in rows if r["kind"] == "train" and r["step_time_s"]]
    if not windows:
        return {"step_time_s": None, "tokens_per_s": None, "mfu": None}
    step_time_s = statistics.median(windows)
    tokens_per_s = config.train.batch_tokens / step_time_s
    mfu = tokens_per_s * run.cost.flops_per_token / peak if peak else None
    return {"step_time_s": step_time_s, "tokens_per_s": tokens_per_s, "mfu": mfu}
