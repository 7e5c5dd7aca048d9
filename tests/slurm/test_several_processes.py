"""Runs of several processes in a real allocation of two nodes, through srun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import Sweep, losses, wait_for, write_sweep

CLUSTER = Settings(nodes=2, cpus=2)
N_STEPS = 24
GRID = f"""
sweep: several
base:
  residual: standard
  model: {{n_layers: 2, d_model: 32, head_dim: 16}}
  data: {{corpus: sotu, seq_len: 32}}
  train:
    budget: {{tokens: {256 * N_STEPS}}}
    batch_tokens: 256
    eval_tokens: 1024
    precision: fp32
execution: {{n_evals: 2, n_diagnostics: 0, log_every: 1, PROCESSES}}
mlflow: {{mode: off}}
slurm: {{time: 5}}
"""


def sweep_of(folder: Path, processes: str) -> Sweep:
    return write_sweep(folder, "several", GRID.replace("PROCESSES", processes))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """The same run in one process, without Slurm."""
    sweep = sweep_of(tmp_path_factory.mktemp("alone"), "devices: 1")
    done = sweep.call("run", "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return sweep


def test_a_run_over_two_nodes_learns_the_same_in_one_task(
    slurm: Cluster, alone: Sweep, tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path, "nodes: 2, devices: 1")
    sweep.submit()
    (run,) = sweep.runs()
    wait_for(run.record.exists)
    record = sweep.records()[run.run_id]
    assert record.status == "done", record.error
    assert record.attempts == 1
    script = next(sweep.paths.slurm.glob("*/script.sh")).read_text()
    assert {"--nodes=2", "--ntasks=2"} <= {
        line.removeprefix("#SBATCH ") for line in script.splitlines()
    }
    (expected,) = alone.records().values()
    assert record.loss_nats == pytest.approx(expected.loss_nats, rel=1e-5)
    rows, expected_rows = losses(run), losses(alone.runs()[0])
    assert [row[:2] for row in rows] == [row[:2] for row in expected_rows]
    assert [row[2] for row in rows] == pytest.approx([row[2] for row in expected_rows], rel=1e-5)
