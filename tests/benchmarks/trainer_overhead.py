"""What the Trainer with logging and diagnostics costs over a bare loop: a ratio of step times.

``python -m tests.benchmarks.trainer_overhead`` trains the largest size of the quickstart both
ways, in turn, and prints the median of the paired ratios. Both ways take the same steps on the
same batches. The Trainer's side is the whole of ``train``: logging, diagnostics, checkpoints, the
record, and a validation of no more than the eight sequences that diagnostics look at; the MLflow
mirror is a process of its own that follows its runs meanwhile.
"""

from __future__ import annotations

import argparse
import copy
import signal
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from harness.config import RunConfig
from harness.corpora import open_corpus
from harness.data import TokenBatches
from harness.grid import load_grid
from harness.model import Transformer
from harness.module import token_loss
from harness.optimiser import build_optimizer, clip_gradients, set_lr
from harness.paths import SweepPaths
from harness.plan import plan, to_manifest
from harness.records import PlannedRun, write_manifest
from harness.schedule import lr_fraction
from harness.stop import StopSignal
from harness.sweep import mirror_command
from harness.training import DIAGNOSTIC_SEQUENCES, train

QUICKSTART = Path("recipes/grids/quickstart.yaml")


def largest(recipe: str) -> PlannedRun:
    """The run of a recipe at the quickstart's largest size."""
    runs = [run for run in plan(load_grid(QUICKSTART)).runs if run.arm.startswith(recipe)]
    return max(runs, key=lambda run: run.cost.flops)


def bare_loop(run: PlannedRun) -> float:
    """Train in the plainest loop; return its wall time in seconds."""
    config = RunConfig.model_validate(run.config)
    model = Transformer(config.model, config.residual, run.vocab_size, config.seed)
    optimizer = build_optimizer(model, config.train)
    batches = TokenBatches(
        open_corpus(config.data.corpus),
        seq_len=config.data.seq_len,
        batch_tokens=config.train.batch_tokens,
        seed=config.seed,
    )
    begin = time.perf_counter()
    for step in range(run.cost.steps):
        set_lr(optimizer, config.train.lr * lr_fraction(config.train, step, run.cost.steps))
        optimizer.zero_grad()
        token_loss(model, torch.from_numpy(batches.batch(step))).backward()
        clip_gradients(model, config.train.grad_clip)
        optimizer.step()
    return time.perf_counter() - begin


def through_trainer(run: PlannedRun, sweep: SweepPaths, number: int) -> float:
    """Train through the Trainer; return the wall time of all of it, in seconds."""
    config = copy.deepcopy(run.config)
    config["train"]["eval_tokens"] = DIAGNOSTIC_SEQUENCES * config["data"]["seq_len"]
    twin = run.model_copy(update={"run_id": f"{number:012x}", "config": config})
    grid = load_grid(QUICKSTART)
    manifest = to_manifest(grid, plan(grid)).model_copy(update={"runs": [twin]})
    write_manifest(sweep, manifest)
    paths = sweep.run(twin.run_id)
    paths.root.mkdir(parents=True)
    execution = grid.execution.model_copy(update={"n_evals": 1})
    begin = time.perf_counter()
    paths.attempt(1).mkdir(parents=True)
    record = train(twin, grid.sweep, paths, execution, StopSignal())
    assert record is not None
    return time.perf_counter() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="standard")
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    run, ratios = largest(options.recipe), []
    bare_loop(run)
    with tempfile.TemporaryDirectory() as folder:
        sweep = SweepPaths(Path(folder) / "results" / "quickstart")
        through_trainer(run, sweep, 0)
        mirror = subprocess.Popen(["nice", "-n", "19", *mirror_command(sweep)])
        for pair in range(1, options.pairs + 1):
            bare, trainer = bare_loop(run), through_trainer(run, sweep, pair)
            ratios.append(trainer / bare)
            print(f"bare {bare:.2f} s, Trainer {trainer:.2f} s, ratio {ratios[-1]:.3f}", flush=True)
        mirror.send_signal(signal.SIGTERM)
        mirror.wait()
    low, high = min(ratios), max(ratios)
    print(f"median ratio {statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
