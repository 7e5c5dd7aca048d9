"""Builds sweep folders as the harness writes them, for the tests of the MLflow mirror."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from pathlib import Path
from typing import Any

from harness.config import RunConfig
from harness.holder import holder_text, this_process
from harness.lease import HEARTBEAT, HOLDER
from harness.paths import RunPaths, SweepPaths, sweep_paths
from harness.recording import build_record
from harness.records import (
    Manifest,
    PlannedRun,
    RunCost,
    RunRecord,
    append_jsonl,
    write_manifest,
    write_record,
)

BATCH_TOKENS = 1024
STEPS = 60
STARTED = tuple(f"2026-11-29T{hour}:00:00+00:00" for hour in (10, 11, 12))
STARTED_MS = (1795946400000, 1795950000000)
CODE_VERSION = "0.1.0+gabc.dirty.code123"
DEAD_PID = 2**22 + 1
"""Above the largest process id that Linux gives out."""


def planned_run(number: int = 0, arm: str = "full", steps: int = STEPS) -> PlannedRun:
    config = RunConfig.model_validate(
        {
            "residual": {"name": "block", "options": {"block_size": 4}},
            "model": {"n_layers": 4, "d_model": 64},
            "data": {"seq_len": 128},
            "train": {"budget": {"flops": 1e12}, "batch_tokens": BATCH_TOKENS, "lr": 3e-3},
            "seed": number,
        }
    )
    tokens = steps * BATCH_TOKENS
    cost = RunCost(
        n_params=1000,
        n_params_non_embedding=900,
        n_params_residual=10,
        flops_per_token=6000,
        flops_per_token_residual=60,
        steps=steps,
        tokens=tokens,
        flops=6000.0 * tokens,
        flops_residual=60.0 * tokens,
        flops_6nd=5400.0 * tokens,
        state_bytes=10**6,
    )
    return PlannedRun(
        run_id=f"{number:012x}",
        arm=arm,
        cell=f"{arm} 4x64 1e12 FLOPs",
        config=config.model_dump(),
        recipe_revision=1,
        corpus_sha256="0" * 64,
        vocab_size=256,
        cost=cost,
    )


def write_sweep(results: Path, runs: list[PlannedRun], sweep: str = "depth") -> SweepPaths:
    paths = sweep_paths(results, sweep)
    manifest = Manifest(
        schema_version=1,
        sweep=sweep,
        grid_text="sweep: depth\n",
        created_at=STARTED[0],
        baseline="full",
        runs=runs,
    )
    write_manifest(paths, manifest)
    return paths


def begin_attempt(paths: RunPaths, number: int = 1, pid: int = DEAD_PID, **holder: Any) -> None:
    """Write the folder of an attempt, by default one whose process is gone."""
    folder = paths.attempt(number)
    folder.mkdir(parents=True)
    about = {"attempt": number, "started_at": STARTED[number - 1], "code_version": CODE_VERSION}
    (folder / "attempt.json").write_text(json.dumps(about), encoding="utf-8")
    told = dataclasses.replace(this_process(), pid=pid, **holder)
    (folder / HOLDER).write_text(holder_text(told), encoding="utf-8")
    beat(paths, number)
    if not paths.config.exists():
        paths.config.write_text(f"run_id: {paths.run_id}\n", encoding="utf-8")


def beat(paths: RunPaths, number: int, age_s: float = -3600.0) -> None:
    """Set the time of an attempt's heartbeat; by default one that no test outlasts."""
    (paths.attempt(number) / HEARTBEAT).touch()
    when = time.time() - age_s
    os.utime(paths.attempt(number) / HEARTBEAT, (when, when))


def begin_attempt_here(paths: RunPaths, number: int = 1) -> None:
    begin_attempt(paths, number, os.getpid())


def loss(step: int) -> float:
    return 2.0 + 3.0 / math.sqrt(step)


def train_row(step: int, attempt: int = 1, first: int = 0, **changes: Any) -> dict[str, Any]:
    tokens = step * BATCH_TOKENS
    row = {
        "kind": "train",
        "step": step,
        "tokens": tokens,
        "flops": 6000.0 * tokens,
        "loss_nats": loss(step),
        "lr": 1e-3,
        "grad_norm": 0.5,
        "step_time_s": 0.25,
        "elapsed_s": 0.25 * (step - first),
        "attempt": attempt,
    }
    return row | changes


def write_steps(paths: RunPaths, first: int, last: int, attempt: int = 1) -> None:
    """Log steps ``first + 1`` .. ``last``: a training row each, validation at multiples of 15."""
    for step in range(first + 1, last + 1):
        row = train_row(step, attempt, first)
        append_jsonl(paths.metrics, row)
        if step % 15 == 0:
            val = {k: v for k, v in row.items() if k not in ("lr", "grad_norm", "step_time_s")}
            val |= {"kind": "val", "loss_nats": loss(step) + 0.1, "bits_per_byte": loss(step) / 2}
            append_jsonl(paths.metrics, val)
        if step % 20 == 0:
            append_jsonl(paths.diagnostics, diagnostics_row(step, attempt))


def diagnostics_row(step: int, attempt: int = 1) -> dict[str, Any]:
    return {
        "kind": "diagnostics",
        "step": step,
        "input_rms": [1.0] * 8,
        "state_rms": [1.0] * 7 + [3.0],
        "reads": [
            {"t": 0, "normalised_entropy": None, "newest_mass": 1.0},
            {"t": 1, "normalised_entropy": 0.4, "newest_mass": 0.7},
            {"t": 2, "normalised_entropy": 0.8, "newest_mass": 0.5},
        ],
        "collapsed_to_newest": 0.25,
        "collapsed_to_uniform": None,
        "attempt": attempt,
    }


def end_run(run: PlannedRun, paths: RunPaths, status: str = "done", **changes: Any) -> RunRecord:
    record = build_record(
        run,
        "depth",
        paths,
        status=status,  # type: ignore[arg-type]
        block_size=4,
        provenance={
            "code_version": CODE_VERSION,
            "library_versions": {"python": "3.11"},
            "hardware": {"device": "cpu"},
            "peak_bytes": 12345,
            "peak_flops_per_s": 1e11,
        },
        **changes,
    )
    write_record(paths.record, record)
    return record


def finished_run(sweep: SweepPaths, run: PlannedRun) -> RunPaths:
    """Write the folder of a run that trained undisturbed."""
    paths = sweep.run(run.run_id)
    begin_attempt(paths)
    write_steps(paths, 0, run.cost.steps)
    end_run(run, paths)
    return paths


def uri(sweep: SweepPaths) -> str:
    """Tracking URI of the store in a sweep's results folder."""
    return f"sqlite:///{sweep.mlflow_db}"
