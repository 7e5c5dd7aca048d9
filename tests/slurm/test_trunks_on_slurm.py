"""A chain of budgets on a real cluster: one job, fewer steps, the losses of training alone."""

from __future__ import annotations

from pathlib import Path

from harness.config import Execution
from harness.paths import SweepPaths
from harness.records import read_jsonl, read_manifest
from tests.conftest import run_folder
from tests.harness.test_training import train_once
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import wait_for, write_sweep

CLUSTER = Settings(nodes=1, cpus=2)
GRID = """
sweep: budgets
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 2560}, batch_tokens: 256, eval_tokens: 1024, warmup_tokens: 512}
axes: {train.budget.tokens: [10240, 2560, 5120]}
execution: {n_evals: 1, n_diagnostics: 0, log_every: 1}
mlflow: {mode: off}
slurm: {time: 5, canary: false}
"""


def test_a_chain_is_one_task_and_trains_its_common_part_once(
    slurm: Cluster, tmp_path: Path
) -> None:
    sweep = write_sweep(tmp_path, "budgets", GRID)
    told = sweep.submit().stdout
    assert "1 tasks, 3 runs" in told, told
    wait_for(lambda: len(sweep.records()) == 3)
    steps = 0
    for run in read_manifest(sweep.paths).runs:
        paths = run_folder(SweepPaths(tmp_path / "alone"), run)
        lone = run.model_copy(update={"trunk": None, "branch_step": None})
        expected = train_once(lone, paths, Execution(n_evals=1, log_every=1, n_diagnostics=0))
        assert expected is not None
        record = sweep.records()[run.run_id]
        assert (record.status, record.loss_nats) == ("done", expected.loss_nats)
        rows = read_jsonl(sweep.paths.run(run.run_id).metrics)
        steps += sum(row["kind"] == "train" and "trained_by" not in row for row in rows)
    assert steps == 70 - 8 - 15, "steps of all, less what the second and the third did not repeat"
