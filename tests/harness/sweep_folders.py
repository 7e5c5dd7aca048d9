"""Builds sweep folders in every state a run can be in, for the tests of what looks at them."""

from __future__ import annotations

import getpass
import math
import os
import time
from pathlib import Path

from harness.config import RunConfig
from harness.holder import Holder, holder_text
from harness.lease import Lease, acquire
from harness.paths import RunPaths, SweepPaths, sweep_paths
from harness.recording import build_record
from harness.records import (
    Manifest,
    PlannedRun,
    RunCost,
    Status,
    append_jsonl,
    write_manifest,
    write_record,
)
from harness.slurm.submissions import Submission, submission_paths, write_submission

BATCH_TOKENS = 1024
STEP_TIME_S = 0.25
PROVENANCE = {
    "code_version": "0.1.0+gabc",
    "library_versions": {"python": "3.11", "torch": "2.13.0"},
    "hardware": {"device": "cpu", "threads": 1},
    "peak_bytes": 12345,
    "peak_flops_per_s": 1e11,
}


def planned_run(
    arm: str = "standard", seed: int = 0, *, n_layers: int = 4, steps: int = 60, lr: float = 3e-3
) -> PlannedRun:
    """A run that is told apart by its arguments; its id is made of them."""
    config = RunConfig.model_validate(
        {
            "residual": {"name": arm},
            "model": {"n_layers": n_layers, "d_model": 64},
            "data": {"seq_len": 128},
            "train": {"budget": {"flops": 1e12}, "batch_tokens": BATCH_TOKENS, "lr": lr},
            "seed": seed,
        }
    )
    tokens = steps * BATCH_TOKENS
    cost = RunCost(
        n_params=1000 * n_layers,
        n_params_non_embedding=900 * n_layers,
        n_params_residual=10,
        flops_per_token=6000 * n_layers,
        flops_per_token_residual=60,
        steps=steps,
        tokens=tokens,
        flops=6000.0 * n_layers * tokens,
        flops_residual=60.0 * tokens,
        flops_6nd=5400.0 * n_layers * tokens,
        state_bytes=10**6,
    )
    word = f"{sum(map(ord, arm)):04x}{n_layers:02x}{round(lr * 1e4):04x}{seed:02x}"
    return PlannedRun(
        run_id=word,
        arm=arm,
        cell=f"{arm}, n_layers={n_layers}, d_model=64, flops=1e+12, lr={lr:g}",
        config=config.model_dump(mode="json"),
        recipe_revision=1,
        recipe_sha256="5" * 64,
        corpus_sha256="0" * 64,
        vocab_size=256,
        cost=cost,
    )


def write_sweep(
    results: Path,
    runs: list[PlannedRun],
    *,
    grid_text: str = "sweep: depth\n",
    sweep: str = "depth",
) -> SweepPaths:
    """The folder of a sweep that was planned, and nothing else."""
    paths = sweep_paths(results, sweep)
    manifest = Manifest(
        schema_version=1,
        sweep=sweep,
        grid_text=grid_text,
        created_at="2026-11-29T10:00:00+00:00",
        baseline="standard",
        runs=runs,
    )
    write_manifest(paths, manifest)
    return paths


def loss_at(run: PlannedRun, step: int) -> float:
    """Made-up validation loss, different for every run."""
    return 2.0 + 3.0 / math.sqrt(step) + 0.01 * len(run.arm) + 0.001 * int(run.config["seed"])


def log_steps(
    paths: SweepPaths, run: PlannedRun, last: int, *, first: int = 0, attempt: int = 1
) -> None:
    """Log steps ``first + 1`` .. ``last``, validated at the quarters of the run."""
    here = paths.run(run.run_id)
    here.root.mkdir(parents=True, exist_ok=True)
    quarters = {math.ceil(run.cost.steps * k / 4) for k in range(1, 5)}
    for step in range(first + 1, last + 1):
        shared = {
            "step": step,
            "tokens": step * BATCH_TOKENS,
            "elapsed_s": STEP_TIME_S * (step - first),
            "attempt": attempt,
        }
        train = {"loss_nats": loss_at(run, step) - 0.1, "step_time_s": STEP_TIME_S}
        append_jsonl(here.metrics, {"kind": "train", **shared, **train})
        if step in quarters:
            value = {"loss_nats": loss_at(run, step), "bits_per_byte": loss_at(run, step) / 2}
            append_jsonl(here.metrics, {"kind": "val", **shared, **value})


def begin(paths: SweepPaths, run: PlannedRun, last: int = 0) -> Lease:
    """Take a run and log its steps up to ``last``; the lease lives until it is ended."""
    lease = acquire(paths.run(run.run_id).attempts)
    assert lease is not None
    (lease.folder / "log").touch()
    log_steps(paths, run, last, attempt=lease.number)
    return lease


def interrupt(paths: SweepPaths, run: PlannedRun, last: int) -> None:
    """Leave a run as a stop request does: begun, ended in order, without a record."""
    begin(paths, run, last).end("interrupted")


def finish(
    paths: SweepPaths, run: PlannedRun, status: Status = "done", error: str | None = None
) -> None:
    """Train a run to its end, whatever that is."""
    last = run.cost.steps if status == "done" else run.cost.steps // 2
    lease = begin(paths, run, last)
    record_end(paths, run, status, error)
    lease.end(status)


def record_end(
    paths: SweepPaths, run: PlannedRun, status: Status, error: str | None = None
) -> None:
    """Write the record of a run."""
    here = paths.run(run.run_id)
    reason = None if status == "done" else f"{status}: {error or 'in a test'}"
    record = build_record(
        run,
        paths.root.name,
        here,
        status=status,
        block_size=None,
        provenance=dict(PROVENANCE),
        reason=reason,
        error=error,
    )
    assert write_record(here.record, record)


def held_elsewhere(
    here: RunPaths, age_s: float, *, host: str = "node3", job: str | None = "123_4"
) -> None:
    """Make the next attempt one of another host, whose last sign of life is ``age_s`` old."""
    folder = here.attempt(here.n_attempts() + 1)
    folder.mkdir(parents=True)
    holder = Holder(host=host, pid=17, pid_started="1", boot_id="b", pid_namespace="n", job=job)
    (folder / "holder.json").write_text(holder_text(holder), encoding="utf-8")
    (folder / "heartbeat").touch()
    then = time.time() - age_s
    os.utime(folder / "heartbeat", (then, then))


def submit(paths: SweepPaths, token: str, tasks: list[list[str]], job_id: str) -> Path:
    """Write a submission down, as if Slurm had taken it; return the folder of its output."""
    submission = Submission(
        token=token,
        name=f"{paths.root.name}.{token}",
        job_id=job_id,
        user=getpass.getuser(),
        created_at=time.time(),
        tasks=tasks,
    )
    write_submission(paths, submission)
    out = submission_paths(paths, token).out
    out.mkdir()
    return out
