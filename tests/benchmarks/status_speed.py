"""Time and memory of `isoloss status` on a sweep of 10,000 runs, whole processes.

``python -m tests.benchmarks.status_speed`` writes the run folders (records, metrics, attempts, as
workers leave them), then measures: the first look, the next one (ended runs are cached), JSON, and
one refresh of a watch.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.grid import load_grid
from harness.holder import holder_text, this_process
from harness.lease import fs_now
from harness.paths import RunPaths, SweepPaths, sweep_paths
from harness.plan import plan, to_manifest
from harness.records import PlannedRun, RunRecord, write_manifest
from harness.status_page import page
from harness.sweep_view import SweepView
from tests.benchmarks.plan_speed import GRID
from tests.harness.sweep_folders import PROVENANCE

N_RUNNING, N_RESTING, N_PLANNED = 400, 300, 1300
WATCHMAN = """
import resource, subprocess, sys, time
began = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.perf_counter() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""
"""Measures a command from a process that is small itself."""
N_ROWS = 40
"""Rows of every metrics file."""


def write_runs(results: Path) -> SweepPaths:
    """Write a sweep of 10,000 runs: 8,000 done, some running, some at rest, some planned."""
    grid_file = results / "grid.yaml"
    grid_file.write_text(GRID, encoding="utf-8")
    grid = load_grid(grid_file, ())
    paths = sweep_paths(results, grid.sweep)
    manifest = to_manifest(grid, plan(grid))
    write_manifest(paths, manifest)
    pristine = len(manifest.runs) - N_PLANNED
    resting = pristine - N_RESTING
    for i, run in enumerate(sorted(manifest.runs, key=lambda run: run.config["seed"])):
        here = paths.run(run.run_id)
        here.root.mkdir(parents=True)
        here.config.write_text(f"run_id: {run.run_id}\n", encoding="utf-8")
        if i < pristine:
            share = 1.0 if i < resting - N_RUNNING else 0.5
            _write_attempt(here, run, share, ended=not resting - N_RUNNING <= i < resting)
        if i < resting - N_RUNNING:
            here.record.write_text(_record(run, paths).model_dump_json(indent=2), encoding="utf-8")
    return paths


def _write_attempt(here: RunPaths, run: PlannedRun, share: float, *, ended: bool) -> None:
    folder = here.attempt(1)
    folder.mkdir(parents=True)
    (folder / "holder.json").write_text(holder_text(this_process()), encoding="utf-8")
    (folder / "heartbeat").touch()
    (folder / "log").touch()
    if ended:
        (folder / "end.json").write_text('{"how": "interrupted"}\n', encoding="utf-8")
    steps = [max(1, round(run.cost.steps * share * k / N_ROWS)) for k in range(1, N_ROWS + 1)]
    here.metrics.write_text("".join(_row(k, step) for k, step in enumerate(steps, 1)))


def _row(k: int, step: int) -> str:
    kind = "val" if k % 10 == 0 else "train"
    return (
        f'{{"kind": "{kind}", "step": {step}, "tokens": {8192 * step}, "flops": 1e12, "loss_nats": '
        f'{2 + 1 / k}, "lr": 0.001, "grad_norm": 0.5, "step_time_s": 0.25, "elapsed_s": {k}.5, '
        '"attempt": 1}\n'
    )


def _record(run: PlannedRun, paths: SweepPaths) -> RunRecord:
    config, train = run.config, run.config["train"]
    cost = run.cost.model_dump(
        exclude={"state_bytes", "flops_per_token", "flops_per_token_residual"}
    )
    return RunRecord(
        schema_version=1,
        run_id=run.run_id,
        sweep=paths.root.name,
        arm=run.arm,
        cell=run.cell,
        status="done",
        residual=config["residual"]["name"],
        residual_options=config["residual"]["options"],
        recipe_revision=run.recipe_revision,
        recipe_sha256=run.recipe_sha256,
        n_layers=config["model"]["n_layers"],
        d_model=config["model"]["d_model"],
        seq_len=config["data"]["seq_len"],
        vocab_size=run.vocab_size,
        corpus=config["data"]["corpus"],
        corpus_sha256=run.corpus_sha256,
        seed=config["seed"],
        **{name: train[name] for name in ("lr", "optimizer", "schedule", "precision")},
        batch_tokens=train["batch_tokens"],
        budget_kind="flops",
        budget_value=train["budget"]["flops"],
        **cost,
        loss_nats=2.5,
        bits_per_byte=1.8,
        eval_tokens=131072,
        tokens_per_s=32768.0,
        step_time_s=0.25,
        wall_s=100.0,
        attempts=1,
        last_step=run.cost.steps,
        finished_at="2026-11-29T12:00:00+00:00",
        **PROVENANCE,
    )


def measure(command: Sequence[str]) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and peak megabytes of one process."""
    done = subprocess.run(
        [sys.executable, "-c", WATCHMAN, *command], check=True, capture_output=True, text=True
    )
    wall, cpu, megabytes = map(float, done.stdout.split())
    return wall, cpu, megabytes


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as folder:
        paths = write_runs(Path(folder))
        isoloss = [sys.executable, "-m", "harness.cli", "status", str(paths.root)]
        tell("first look", [measure(isoloss)])
        tell("next look", [measure(isoloss) for _ in range(5)])
        paths.status_cache.unlink()
        tell("without cache", [_without_cache(paths, isoloss) for _ in range(3)])
        tell("--json", [measure([*isoloss, "--json"]) for _ in range(3)])
        tell("--runs", [measure([*isoloss, "--runs"])])
        _refresh(paths)


def _without_cache(paths: SweepPaths, command: Sequence[str]) -> tuple[float, float, float]:
    paths.status_cache.unlink(missing_ok=True)
    _beat(paths)
    return measure(command)


def _beat(paths: SweepPaths) -> None:
    """Keep the running runs alive: this process is their owner."""
    fs_now(paths.root)
    for beat in paths.runs.glob("*/attempts/1/heartbeat"):
        if not (beat.parent / "end.json").exists():
            os.utime(beat)


def _refresh(paths: SweepPaths) -> None:
    view = SweepView(paths, watching=True)
    times = []
    for _ in range(6):
        _beat(paths)
        begin = time.perf_counter()
        states = view.states()
        page(view.overview(states), states)
        times.append(time.perf_counter() - begin)
    print(f"watch refresh  {statistics.median(times[1:]):.2f} s")


def tell(name: str, found: list[tuple[float, float, float]]) -> None:
    """Print median times and the highest memory."""
    wall, cpu = (statistics.median(one[i] for one in found) for i in (0, 1))
    print(f"{name:14} {wall:.2f} s, {cpu:.2f} s of CPU, {max(one[2] for one in found):.0f} MB")


if __name__ == "__main__":
    main()
