"""A search whose trials are Slurm jobs: its controller is killed, and it ends as declared."""

from __future__ import annotations

import subprocess
from pathlib import Path

from optuna.trial import FrozenTrial

from harness.lease import fs_now, look
from harness.paths import RunPaths
from harness.records import read_record
from harness.slurm.submissions import read_submissions
from harness.tuned import read_tuned
from tests.harness.search_fixtures import Bench, grid_text
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.sweeps import Sweep, kill, wait_for, worker_pid

CLUSTER = Settings(nodes=1, cpus=2)
N_TRIALS = 4
GRID = (
    grid_text("{train.lr: [1e-2, 2e-2, 4e-2, 8e-2]}", f"trials: {N_TRIALS}, parallel: 4")
    .replace("tokens: 5120", "tokens: 51200")
    .replace("mlflow:", "slurm: {time: 10, runs_per_job: 2}\nmlflow:")
)


def test_a_search_survives_its_controller_and_a_killed_worker(
    slurm: Cluster, tmp_path: Path
) -> None:
    bench = Bench(tmp_path, GRID)
    grid = tmp_path / "grid.yaml"
    grid.write_text(GRID)
    sweep = Sweep(tmp_path, "tiny")
    tune = sweep.command("tune", "--on", "slurm")
    tune[tune.index("tiny")] = str(grid)
    run = ["run" if word == "tune" else word for word in tune]
    refused = subprocess.run(run, capture_output=True, text=True)
    assert refused.returncode == 2
    assert f"isoloss tune {grid} --on slurm" in refused.stderr

    with subprocess.Popen(tune, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as controller:
        wait_for(lambda: any(bench.trials.runs.glob("*/attempts/*")))
        controller.kill()
    first = submitted(bench)
    assert sorted(first) == sorted(t.user_attrs["run_id"] for t in open_trials(bench))
    victim = wait_for(lambda: next(filter(None, map(worker_pid, folders(bench))), None))
    kill(victim)
    done = subprocess.run(tune, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (trials,) = bench.studies().values()
    assert [t.state.name for t in trials] == ["COMPLETE"] * N_TRIALS
    assert len({t.user_attrs["run_id"] for t in trials}) == N_TRIALS
    for t in trials:
        record = read_record(bench.trials.run(t.user_attrs["run_id"]).record)
        assert record is not None
        assert (record.status, record.loss_nats) == ("done", t.value)
    again = [run_id for run_id in submitted(bench) if submitted(bench).count(run_id) > 1]
    assert len(set(again)) <= 2, "only the killed job's runs are submitted again"
    assert read_tuned(bench.sweep.tuned) is not None
    terms = bench.trials.root / "search"
    assert not look(terms, fs_now(terms)).taken, "a finished search is still owned"


def submitted(bench: Bench) -> list[str]:
    """Runs of all submissions, repeated ones as often as they were submitted."""
    tasks = [task for made in read_submissions(bench.trials) for task in made.tasks]
    return [run_id for task in tasks for run_id in task]


def open_trials(bench: Bench) -> list[FrozenTrial]:
    (trials,) = bench.studies().values()
    return [t for t in trials if not t.state.is_finished()]


def folders(bench: Bench) -> list[RunPaths]:
    return [bench.trials.run(run_id) for run_id in submitted(bench)]
