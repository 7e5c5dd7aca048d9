"""`isoloss run --on slurm --follow`: waves without the user, and an end where nothing begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import Sweep, write_sweep

CLUSTER = Settings(nodes=1, cpus=4)
GRID = """
sweep: small
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 2560}, batch_tokens: 256, eval_tokens: 1024}
seeds: SEEDS
execution: {n_evals: 1, n_diagnostics: 0, log_every: 5}
mlflow: {mode: off}
slurm: {time: 5, canary: false, SLURM}
"""
QUICK = "import harness.cli, harness.in_hand as it; it.FOLLOW_S = 1.0; harness.cli.main()"
"""The command line, with shorter pauses between two looks."""


def followed(sweep: Sweep) -> subprocess.CompletedProcess[str]:
    arguments = sweep.command("run", "--on", "slurm", "--follow")[3:]
    command = [sys.executable, "-c", QUICK, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


def sweep_of(folder: Path, seeds: str, slurm: str) -> Sweep:
    return write_sweep(folder, "small", GRID.replace("SEEDS", seeds).replace("SLURM", slurm))


def test_follow_gives_up_on_jobs_that_never_begin(slurm: Cluster, tmp_path: Path) -> None:
    broken = sweep_of(tmp_path, "[0]", "setup: [echo no such module, exit 3]")
    done = followed(broken)
    assert done.returncode == 1
    assert "submitted 3 times and never began" in done.stdout
    assert "no such module" in broken.call("logs", broken.runs()[0].run_id).stdout


def test_follow_tops_up_waves_until_nothing_is_left(slurm: Cluster, tmp_path: Path) -> None:
    waves = sweep_of(tmp_path, "[0, 1]", "max_queued: 1")
    done = followed(waves)
    assert done.returncode == 0, done.stdout
    assert len(waves.records()) == 2
