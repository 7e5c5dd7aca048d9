"""Tuning against the plain alternatives: trials to a good rate, and wall-clock of equal trials.

    python tests/benchmarks/tuning.py [--d-model 64] [--steps 256] [--timed 12]

Trains one small cell at every quarter octave of the learning rate over two decades. On those real
losses it counts the trials that each search needs to come within 0.005 nats of the best of them:
every proposal is moved to the nearest rate that was trained. Random searches are repeated 200
times, the bracket begins at every rate within a decade. Then it times equal trials: `isoloss tune`
with two warm workers, and Optuna's `study.optimize` with one process per trial, two at a time.
Writes into a temporary folder only.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import optuna

from harness.config import Execution
from harness.grid import load_grid
from harness.job import Job, write_job, write_run_configs
from harness.paths import SweepPaths
from harness.plan import plan
from harness.records import read_record
from harness.tuning.bracket import Result, next_points
from harness.tuning.space import Geometric
from harness.tuning.study import STARTUP_TRIALS

LOWEST, N_RATES, PER_OCTAVE = 1e-3, 27, 4
NEAR_NATS = 0.005
REPETITIONS = 200
WORKERS = 2
EXECUTION = "execution: {checkpoint_every_s: 60, n_evals: 1, n_diagnostics: 0}"
GRID = f"""
sweep: tuning-bench
base:
  residual: standard
  model: {{n_layers: 2, d_model: D_MODEL, head_dim: 32}}
  data: {{corpus: sotu, seq_len: 64}}
  train: {{budget: {{tokens: TOKENS}}, batch_tokens: 1024, eval_tokens: 32768, lr: 1e-2}}
MORE
{EXECUTION}
mlflow: {{mode: off}}
"""
BATCH_TOKENS = 1024
Losses = dict[float, float]


def grid_text(options: argparse.Namespace, more: str) -> str:
    """The grid of one cell, with the runs that ``more`` asks for."""
    cell = GRID.replace("D_MODEL", str(options.d_model))
    return cell.replace("TOKENS", str(options.steps * BATCH_TOKENS)).replace("MORE", more)


def isoloss(*arguments: object) -> float:
    """Call the command line; return its wall time in seconds."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "harness.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - began


def rates() -> list[float]:
    """The dense sweep's rates, three digits each."""
    return [float(f"{LOWEST * 2 ** (k / PER_OCTAVE):.3g}") for k in range(N_RATES)]


def dense_sweep(folder: Path, options: argparse.Namespace) -> Losses:
    """Train every rate; return the final validation losses, nats/token."""
    grid = folder / "dense.yaml"
    grid.write_text(grid_text(options, f"axes: {{train.lr: {rates()}}}\nseeds: [1000]"))
    isoloss("run", grid, "--results", folder / "dense", "--workers", WORKERS)
    paths = SweepPaths(folder / "dense" / "tuning-bench")
    records = [read_record(file) for file in sorted(paths.runs.glob("*/record.json"))]
    return {
        r.lr: r.loss_nats if r.loss_nats is not None else math.inf for r in records if r is not None
    }


def nearest(losses: Losses, rate: float) -> float:
    """The trained rate that is nearest in its log."""
    return min(losses, key=lambda own: abs(math.log(own / rate)))


def of_bracket(losses: Losses, start: float, refine: int) -> int | None:
    """Trials of a bracket until one is near the best; None where it ends before."""
    bounds = {"least": min(losses), "most": max(losses)}
    dimension = {"lr": Geometric(start, 2.0, **bounds, refine=refine)}
    best, results = min(losses.values()), list[Result]()
    while points := next_points(dimension, results):
        for point in points:
            loss = losses[nearest(losses, point["lr"])]
            results.append(Result(point, loss))
            if loss <= best + NEAR_NATS:
                return len(results)
    return None


def of_sampler(losses: Losses, sampler: optuna.samplers.BaseSampler, *, anew: bool) -> int:
    """Trials of a sampler until one is near the best.

    Parameters
    ----------
    anew
        Ask again instead of training what was trained before, as isoloss does.
    """
    best, seen = min(losses.values()), set[float]()
    space = {"lr": optuna.distributions.FloatDistribution(min(losses), max(losses), log=True)}
    study, n_trials = optuna.create_study(sampler=sampler), 0
    while True:
        trial = study.ask(space)
        rate = nearest(losses, trial.params["lr"])
        if anew and rate in seen:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        seen.add(rate)
        n_trials += 1
        study.tell(trial, losses[rate])
        if losses[rate] <= best + NEAR_NATS:
            return n_trials


def quartiles(counts: Sequence[int | None]) -> str:
    """Median and quartiles; searches that end too early count as infinitely long."""
    known = sorted(math.inf if count is None else float(count) for count in counts)
    low, median, high = (known[round(q * (len(known) - 1))] for q in (0.25, 0.5, 0.75))
    missed = sum(math.isinf(count) for count in known)
    return f"{median:4.0f} {low:9.0f} {high:9.0f} {missed:7d} of {len(known)}"


def repeated(search: Callable[[int], int]) -> str:
    """Quartiles over seeds."""
    return quartiles([search(seed) for seed in range(REPETITIONS)])


def count_trials(losses: Losses) -> None:
    """Print the trials that each search needs."""
    best = min(losses, key=losses.__getitem__)
    middle = math.sqrt(min(losses) * max(losses))
    starts = [rate for rate in losses if abs(math.log10(rate / middle)) <= 0.5]
    samplers = optuna.samplers

    def tpe(seed: int) -> optuna.samplers.BaseSampler:
        return samplers.TPESampler(seed=seed, n_startup_trials=STARTUP_TRIALS)

    rows = {
        f"isoloss bracket, refine: {refine}": quartiles(
            [of_bracket(losses, start, refine) for start in starts]
        )
        for refine in (0, 1, 2)
    } | {
        "isoloss tpe": repeated(lambda s: of_sampler(losses, tpe(s), anew=True)),
        "isoloss random": repeated(
            lambda s: of_sampler(losses, samplers.RandomSampler(seed=s), anew=True)
        ),
        "Optuna optimize (TPE)": repeated(
            lambda s: of_sampler(losses, samplers.TPESampler(seed=s), anew=False)
        ),
        "random search": repeated(
            lambda s: of_sampler(losses, samplers.RandomSampler(seed=s), anew=False)
        ),
    }
    near = sum(loss <= losses[best] + NEAR_NATS for loss in losses.values())
    print(
        f"dense sweep: {len(losses)} rates from {min(losses):g} to {max(losses):g}; best ", end=""
    )
    print(f"{best:g} at {losses[best]:.4f} nats; {near} rates within {NEAR_NATS} nats")
    print(f"{'trials until within that':32s} median  1st quart.  3rd  missed")
    for name, row in rows.items():
        print(f"{name:32s} {row}", flush=True)


def timed_rates(losses: Losses, n_timed: int) -> list[float]:
    """Evenly spread rates that do not diverge, so that all trials cost the same."""
    finite = sorted(rate for rate, loss in losses.items() if math.isfinite(loss))
    return [finite[round(k * (len(finite) - 1) / (n_timed - 1))] for k in range(n_timed)]


def time_isoloss(folder: Path, options: argparse.Namespace, chosen: Sequence[float]) -> float:
    """Seconds of `isoloss tune` for given rates, with warm workers."""
    grid = folder / "tune.yaml"
    block = f"seeds: [0]\ntune: {{search: {{train.lr: {list(chosen)}}}, trials: {len(chosen)}}}"
    grid.write_text(grid_text(options, block))
    return isoloss("tune", grid, "--results", folder / "tuned", "--workers", WORKERS)


def time_optuna(folder: Path, options: argparse.Namespace, chosen: Sequence[float]) -> float:
    """Seconds of `study.optimize` over the same runs, one process per trial."""
    grid = folder / "plain.yaml"
    grid.write_text(grid_text(options, f"axes: {{train.lr: {list(chosen)}}}\nseeds: [1001]"))
    loaded, paths = load_grid(grid), SweepPaths(folder / "plain" / "tuning-bench")
    runs = {run.config["train"]["lr"]: run for run in plan(loaded).runs}
    paths.runs.mkdir(parents=True)
    write_run_configs(paths, list(runs.values()))

    def objective(trial: optuna.Trial) -> float:
        run = runs[trial.suggest_categorical("lr", list(chosen))]
        file = paths.jobs / f"{run.run_id}.json"
        execution: Execution = loaded.execution
        job = Job(sweep="tuning-bench", sweep_dir=paths.root, runs=[run], execution=execution)
        write_job(file, job)
        command = [sys.executable, "-m", "harness.worker", str(file)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        record = read_record(paths.run(run.run_id).record)
        assert record is not None
        return record.loss_nats if record.loss_nats is not None else math.inf

    study = optuna.create_study()
    for rate in chosen:
        study.enqueue_trial({"lr": rate})
    began = time.perf_counter()
    study.optimize(objective, n_trials=len(chosen), n_jobs=WORKERS)
    return time.perf_counter() - began


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--d-model", type=int, default=64)
    parser.add_argument("--steps", type=int, default=256)
    parser.add_argument("--timed", type=int, default=12, help="trials that are timed")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        losses = dense_sweep(folder, options)
        count_trials(losses)
        chosen = timed_rates(losses, options.timed)
        ours = time_isoloss(folder, options, chosen)
        theirs = time_optuna(folder, options, chosen)
    print(f"{len(chosen)} equal trials, {WORKERS} at a time, starts included:")
    print(f"isoloss tune {ours:.1f} s, optimize with a process per trial {theirs:.1f} s")


if __name__ == "__main__":
    main()
