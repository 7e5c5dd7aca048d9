"""How busy `isoloss run` keeps the cores with training, and how long Hydra takes for the same runs.

``python -m tests.benchmarks.utilisation [--runs 40] [--tokens 204800] [--skip-hydra]``. Ours:
`isoloss run --workers 2`, from the start of Python to the end of the command. Hydra's: multirun
with the basic launcher, a process each, the same configurations and training function
(:mod:`tests.benchmarks.hydra_train`). Neither writes MLflow, unless ``--mlflow direct`` asks ours.

Of a run these times count, by its ``metrics.jsonl``. In the loop: from the start of the first
optimiser step to the end of the last validation, so steps, batches, validations, diagnostics and
checkpoints. In steps: the mean times of optimiser steps, times their number. The share is that sum
over all runs, by two cores times the wall time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness.grid import load_grid
from harness.job import Job, write_job
from harness.paths import SweepPaths, sweep_paths
from harness.plan import plan, to_manifest
from harness.records import read_jsonl, read_manifest, read_record

WORKERS = 2
GRID = """
sweep: busy
base:
  residual: standard
  model: {{n_layers: 2, d_model: 32, head_dim: 16}}
  data: {{corpus: sotu, seq_len: 64}}
  train: {{budget: {{tokens: {tokens}}}, batch_tokens: 1024, eval_tokens: 16384}}
seeds: {seeds}
mlflow: {{mode: {mlflow}}}
"""


@dataclass(frozen=True)
class Spent:
    """Seconds of all runs of a sweep."""

    n_runs: int
    wall_s: float
    """Of the command that trained them."""
    loop_s: float
    """In the training loop."""
    steps_s: float
    """In optimiser steps."""

    def line(self, name: str, cores: int) -> str:
        """One row of the table."""
        shares = (100 * part / (cores * self.wall_s) for part in (self.loop_s, self.steps_s))
        loop, steps = (f"{share:6.1f}%" for share in shares)
        run_s = self.loop_s / self.n_runs
        return f"{name:22} {self.n_runs:5} {self.wall_s:8.1f} {run_s:9.2f} {loop:>9} {steps:>9}"


def spent(paths: SweepPaths, wall_s: float) -> Spent:
    """Add up what the runs of a sweep spent.

    Raises
    ------
    SystemExit
        A run is not done.
    """
    loop_s = steps_s = 0.0
    runs = read_manifest(paths).runs
    for run in runs:
        here = paths.run(run.run_id)
        record = read_record(here.record)
        if record is None or record.status != "done":
            raise SystemExit(f"{here.root}: not done")
        rows = read_jsonl(here.metrics)
        trained = [row for row in rows if row["kind"] == "train" and row["step_time_s"]]
        first = trained[0]
        loop_s += max(row["elapsed_s"] for row in rows) - first["elapsed_s"]
        loop_s += first["step"] * first["step_time_s"]
        before = 0
        for row in trained:
            steps_s += (row["step"] - before) * row["step_time_s"]
            before = row["step"]
    return Spent(len(runs), wall_s, loop_s, steps_s)


def losses(paths: SweepPaths) -> dict[str, float | None]:
    """Final losses of a sweep, by run id."""
    records = [read_record(paths.run(run.run_id).record) for run in read_manifest(paths).runs]
    return {record.run_id: record.loss_nats for record in records if record is not None}


def timed(command: list[str], log: Path) -> float:
    """Wall time of a command, in seconds.

    Raises
    ------
    SystemExit
        It failed.
    """
    begin = time.perf_counter()
    env = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    with log.open("wb") as stream:
        done = subprocess.run(command, stdout=stream, stderr=stream, env=env)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}:\n{log.read_text(encoding='utf-8')[-3000:]}")
    return time.perf_counter() - begin


def ours(folder: Path, grid: Path) -> Spent:
    """Train the runs of a grid with `isoloss run`."""
    results = folder / "isoloss"
    command = [sys.executable, "-m", "harness.cli", "run", str(grid), "--results", str(results)]
    wall_s = timed([*command, "--workers", str(WORKERS)], folder / "isoloss.log")
    return spent(sweep_paths(results, "busy"), wall_s)


def hydras(folder: Path, grid: Path) -> Spent:
    """Train the same runs with Hydra's multirun."""
    loaded = load_grid(grid, ())
    manifest = to_manifest(loaded, plan(loaded))
    paths = sweep_paths(folder / "hydra", "busy")
    paths.root.mkdir(parents=True)
    paths.manifest.write_text(manifest.model_dump_json(), encoding="utf-8")
    job_file = folder / "job.json"
    write_job(
        job_file,
        Job(sweep="busy", sweep_dir=paths.root, runs=manifest.runs, execution=loaded.execution),
    )
    numbers = ",".join(map(str, range(len(manifest.runs))))
    command = [sys.executable, "-m", "tests.benchmarks.hydra_train", "--multirun"]
    command += [f"run={numbers}", f"job={job_file}", f"hydra.sweep.dir={folder / 'multirun'}"]
    return spent(paths, timed(command, folder / "hydra.log"))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=266240, help="of one run")
    parser.add_argument("--mlflow", choices=("off", "direct"), default="off")
    parser.add_argument("--skip-hydra", action="store_true")
    options = parser.parse_args()
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"{load}, others at work included", flush=True)
    print(f"{'':22} {'runs':>5} {'wall s':>8} {'s a run':>9} {'in loop':>9} {'in steps':>9}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        grid = folder / "grid.yaml"
        seeds = list(range(options.runs))
        text = GRID.format(tokens=options.tokens, seeds=seeds, mlflow=options.mlflow)
        grid.write_text(text, encoding="utf-8")
        first = ours(folder, grid)
        print(first.line(f"isoloss, mlflow {options.mlflow}", WORKERS), flush=True)
        if not options.skip_hydra:
            second = hydras(folder, grid)
            print(second.line("Hydra, basic launcher", WORKERS))
            both = [losses(sweep_paths(folder / who, "busy")) for who in ("isoloss", "hydra")]
            print(f"losses equal to the last bit: {both[0] == both[1]}")
            print(f"Hydra / isoloss: {second.wall_s / first.wall_s:.2f}")


if __name__ == "__main__":
    main()
