"""A sweep of 24 runs on a real cluster, and everything that clusters do to sweeps meanwhile."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.paths import RunPaths
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.conftest import Wrap
from tests.slurm.sweeps import (
    Sweep,
    assert_same_results,
    frozen_midway,
    job_of,
    kill,
    queued_names,
    wait_for,
    worker_pid,
    write_sweep,
)

CLUSTER = Settings(
    cpus=2,
    max_array_size=5,
    kill_wait_s=5,
    extra="PartitionName=second Nodes=ALL MaxTime=60 PriorityTier=1 State=UP",
)
GRID = """
sweep: faults
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 102400}, batch_tokens: 256, eval_tokens: 1024}
axes: {residual: [standard, {name: block, block_size: 2}]}
seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
execution: {checkpoint_every_s: 0.3, n_evals: 2, n_diagnostics: 1, log_every: 5}
mlflow: {mode: off}
slurm:
  time: 30
  partition: main
  array_parallelism: 1
  runs_per_job: 2
  signal_lead_s: 60
  overrides: [{if: {residual: block}, partition: second, runs_per_job: 6, runs_at_once: 2}]
"""
Fault = Callable[[Sweep, Cluster, list[RunPaths]], None]


@pytest.mark.timeout(900)
def test_a_sweep_survives_all_that_a_cluster_does_to_it(
    slurm: Cluster, wrap: Wrap, tmp_path: Path
) -> None:
    sweep = write_sweep(tmp_path / "slurm", "faults", GRID)
    local = write_sweep(tmp_path / "local", "faults", GRID)
    submit_through_a_bad_line(sweep, wrap)
    for fault in (
        requeued_by_hand,
        warned_of_the_time_limit,
        killed_without_a_word,
        cancelled_by_its_owner,
        preempted,
        node_lost,
        controller_restarted,
    ):
        fault(sweep, slurm, standard_runs(sweep))
        assert_status_is_true(sweep, slurm)
    finish(sweep, slurm)
    done = local.call("run", "--workers", "2")
    assert done.returncode == 0, done.stdout
    assert_same_results(sweep, local)
    assert_two_partitions_and_small_arrays(sweep)


def standard_runs(sweep: Sweep) -> list[RunPaths]:
    records = sweep.told()
    return [run for run in sweep.runs() if records[run.run_id]["arm"] == "standard"]


def submit_through_a_bad_line(sweep: Sweep, wrap: Wrap) -> None:
    """The submission fails twice: once before the controller has heard of the job, once after."""
    wrap(
        "sbatch",
        'case "$N" in\n'
        "0) echo 'sbatch: error: Unable to contact slurm controller' >&2; exit 1;;\n"
        '1) "$REAL" "$@"; echo "sbatch: error: Socket timed out on send/recv operation" >&2; '
        "exit 1;;\n"
        'esac\nexec "$REAL" "$@"',
    )
    sweep.submit()
    again = sweep.submit()
    assert "24 queued" in again.stdout or "running" in again.stdout
    assert "new" not in again.stdout


def requeued_by_hand(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    run, pid = frozen_midway(runs)
    attempt = run.n_attempts()
    slurm.run("scontrol", "requeue", job_of(run))
    kill(pid, signal.SIGCONT)
    wait_for(lambda: run.n_attempts() > attempt)


def warned_of_the_time_limit(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    run, pid = frozen_midway(runs)
    job, attempt = job_of(run), run.n_attempts()
    raw = slurm.run("scontrol", "-o", "show", "job", job).stdout.split()[0].partition("=")[2]
    slurm.run("scontrol", "update", f"JobId={raw}", "EndTime=now+45")
    time.sleep(31)  # the controller looks at limits each 30 s
    kill(pid, signal.SIGCONT)
    wait_for(lambda: run.n_attempts() > attempt)
    end = json.loads((run.attempt(attempt) / "end.json").read_text())
    assert end["how"] == "interrupted"
    assert int(slurm.job(raw)["Restarts"]) >= 1


def killed_without_a_word(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    run, pid = frozen_midway(runs)
    job = job_of(run)
    kill(pid)
    wait_for(lambda: job not in queued_names(slurm))
    assert sweep.told()[run.run_id]["resumable"]


def cancelled_by_its_owner(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    run, pid = frozen_midway(runs)
    job = job_of(run)
    slurm.run("scancel", job)
    kill(pid, signal.SIGCONT)
    wait_for(lambda: job not in queued_names(slurm))
    assert sweep.told()[run.run_id]["resumable"]


def preempted(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    sweep.call("run", "--on", "slurm")
    run, pid = frozen_midway(runs)
    node, attempt = slurm.job(job_of(run))["NodeList"], run.n_attempts()
    slurm.sbatch("-p", "urgent", "-w", node, "--exclusive", "--wrap", "sleep 1")
    kill(pid, signal.SIGCONT)
    wait_for(lambda: run.n_attempts() > attempt)


def node_lost(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    run, _ = frozen_midway(runs)
    node = slurm.job(job_of(run))["NodeList"]
    slurm.node_kill(node, noticed=True)
    wait_for(lambda: worker_pid(run) is None)
    assert_status_is_true(sweep, slurm)
    slurm.node_up(node)


def controller_restarted(sweep: Sweep, slurm: Cluster, runs: list[RunPaths]) -> None:
    slurm.stop_slurmctld()
    told = sweep.call("status", "--json")
    assert told.returncode in (0, 1), told.stderr
    refused = sweep.call("run", "--on", "slurm")
    assert refused.returncode == 2
    assert "Slurm" in refused.stderr
    slurm.start_slurmctld()


def finish(sweep: Sweep, slurm: Cluster) -> None:
    """Do what a user does: the same command, until nothing is left."""
    for _ in range(6):
        again = sweep.call("run", "--on", "slurm")
        assert again.returncode in (0, 1), again.stderr
        slurm.wait_empty(patience_s=200)
        assert_status_is_true(sweep, slurm)
        if len(sweep.records()) == 24:
            return
    pytest.fail(f"unfinished: {sweep.call('status').stdout}")


def assert_status_is_true(sweep: Sweep, slurm: Cluster) -> None:
    """What `status` says of each run held at its moment, by files, processes and the queue."""
    before = truth(sweep, slurm)
    told = {run_id: row["status"] for run_id, row in sweep.told().items()}
    after = truth(sweep, slurm)
    steady = {run_id for run_id in told if before[run_id] == after[run_id]}
    wrong = {i: (told[i], before[i]) for i in steady if told[i] != before[i]}
    assert not wrong, wrong


def truth(sweep: Sweep, slurm: Cluster) -> dict[str, str]:
    listed = queued_names(slurm)
    queued: set[str] = set()
    for about in sweep.paths.slurm.glob("*/submission.json"):
        submission = json.loads(about.read_text())
        for index, runs in enumerate(submission["tasks"]):
            if f"{submission['job_id']}_{index}" in listed:
                queued.update(runs)
    return {run.run_id: _truth_of(run, run.run_id in queued) for run in sweep.runs()}


def _truth_of(run: RunPaths, queued: bool) -> str:
    if run.record.exists():
        return str(json.loads(run.record.read_text())["status"])
    if worker_pid(run) is not None:
        return "running"
    return "queued" if queued else "planned"


def assert_two_partitions_and_small_arrays(sweep: Sweep) -> None:
    scripts = [path.read_text() for path in sweep.paths.slurm.glob("*/script.sh")]
    assert any("--partition=main" in text for text in scripts)
    assert any("--partition=second" in text for text in scripts)
    tasks = [
        json.loads(p.read_text())["tasks"] for p in sweep.paths.slurm.glob("*/submission.json")
    ]
    assert max(len(array) for array in tasks) <= 5
    assert max(len(runs) for array in tasks for runs in array) == 6
