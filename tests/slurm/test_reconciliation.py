"""What `isoloss run` starts, leaves alone and takes back, on a real cluster."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.harness.checkouts import copy_packages
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.conftest import Wrap
from tests.slurm.sweeps import Sweep, midway, queued_names, wait_for, write_sweep

CLUSTER = Settings(
    nodes=1,
    cpus=4,
    extra="PartitionName=short Nodes=ALL MaxTime=5 PriorityTier=1 State=UP",
)
GRID = """
sweep: small
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: TOKENS}, batch_tokens: 256, eval_tokens: 1024}
seeds: SEEDS
execution: {checkpoint_every_s: 0.3, n_evals: 1, n_diagnostics: 0, log_every: 5}
mlflow: {mode: off}
slurm: {time: 5, canary: false, SLURM}
"""


def sweep_of(
    folder: Path, *, tokens: int = 25600, seeds: str = "[0, 1, 2, 3]", slurm: str = ""
) -> Sweep:
    text = GRID.replace("TOKENS", str(tokens)).replace("SEEDS", seeds).replace("SLURM", slurm)
    return write_sweep(folder, "small", text)


def test_a_second_submission_submits_nothing_and_cancel_takes_only_our_tasks(
    slurm: Cluster, tmp_path: Path
) -> None:
    foreign = slurm.sbatch("--hold", "--job-name=small.other", "--wrap", "sleep 1")
    sweep = sweep_of(tmp_path, slurm="extra: {hold: ''}")
    sweep.submit()
    again = sweep.submit()
    assert "4 queued" in again.stdout
    assert len(slurm.run("squeue", "-h", "-r").stdout.splitlines()) == 5
    told = sweep.told()
    assert {row["status"] for row in told.values()} == {"queued"}
    assert all(row["scheduler"]["text"] for row in told.values())
    one = next(iter(told))
    done = sweep.call("cancel", one)
    assert "1 waiting runs cancelled" in done.stdout
    assert "1 Slurm tasks taken out" in done.stdout
    assert sweep.statuses() == {"cancelled": 1, "queued": 3}
    sweep.call("cancel", "--all")
    left = slurm.run("squeue", "-h", "-r", "-o", "%i").stdout.split()
    assert left == [foreign]
    assert "runs set free: 1" in sweep.call("retry", one).stdout
    assert sweep.statuses() == {"cancelled": 3, "planned": 1}


def test_an_edited_grid_cancels_nothing_without_prune(slurm: Cluster, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, slurm="extra: {hold: ''}")
    sweep.submit()
    sweep_of(tmp_path, seeds="[0, 1, 7]", slurm="extra: {hold: ''}")
    kept = sweep.submit()
    assert "1 new, 2 queued, 2 no longer in the grid (kept; 2 at work" in kept.stdout
    assert len(slurm.run("squeue", "-h", "-r").stdout.splitlines()) == 5
    pruned = sweep.submit("--prune")
    assert "2 waiting runs cancelled" in pruned.stdout
    assert len(slurm.run("squeue", "-h", "-r").stdout.splitlines()) == 3


def test_waves_fill_the_queue_to_its_limit_and_no_further(slurm: Cluster, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, seeds="[0, 1, 2, 3, 4]", slurm="max_queued: 2, extra: {hold: ''}")
    first = sweep.call("run", "--on", "slurm")
    assert first.returncode == 1, "runs are left for later waves"
    assert sweep.statuses() == {"planned": 3, "queued": 2}
    sweep.call("run", "--on", "slurm")
    assert sweep.statuses() == {"planned": 3, "queued": 2}
    waiting = slurm.run("squeue", "-h", "-r", "-o", "%i").stdout.split()
    slurm.run("scancel", waiting[0])
    time.sleep(1)
    sweep.call("run", "--on", "slurm")
    assert len(slurm.run("squeue", "-h", "-r").stdout.splitlines()) == 2


def test_what_can_never_start_is_refused_before_and_told_after_submission(
    slurm: Cluster, tmp_path: Path
) -> None:
    refused = sweep_of(tmp_path / "before", slurm="partition: short").call(
        "run", "--on", "slurm", "--set", "slurm.time=10"
    )
    assert refused.returncode == 2
    assert "short" in refused.stderr
    assert not slurm.run("squeue", "-h").stdout
    slurm.run("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=test")
    sweep = sweep_of(tmp_path / "after", slurm="partition: short")
    sweep.submit()
    slurm.run("scontrol", "update", "PartitionName=short", "MaxTime=1")
    slurm.run("scontrol", "update", "NodeName=node1", "State=RESUME")
    rows = wait_for(lambda: [r for r in sweep.told().values() if r["scheduler"]["never"]], 60)
    assert len(rows) == 4
    assert "PartitionTimeLimit" in rows[0]["scheduler"]["text"]
    assert "never" in sweep.call("status").stdout
    slurm.run("scontrol", "update", "PartitionName=short", "MaxTime=5")


def test_a_refused_submission_says_why_and_leaves_nothing_behind(
    slurm: Cluster, wrap: Wrap, tmp_path: Path
) -> None:
    wrap("sbatch", "echo 'sbatch: error: invalid account or partition' >&2; exit 1")
    sweep = sweep_of(tmp_path)
    refused = sweep.call("run", "--on", "slurm")
    assert refused.returncode == 2
    assert "invalid account" in refused.stderr
    assert sweep.statuses() == {"planned": 4}


def test_local_and_slurm_at_once_do_nothing_twice(slurm: Cluster, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, seeds="[0, 1, 2]")
    local = sweep.command("run", "--workers", "1")
    submission = sweep.command("run", "--on", "slurm", "--limit", "2")
    with (
        subprocess.Popen(submission, stdout=subprocess.PIPE) as first,
        subprocess.Popen(local, stdout=subprocess.PIPE) as second,
    ):
        first.communicate(timeout=200)
        second.communicate(timeout=200)
    slurm.wait_empty(patience_s=120)
    records = sweep.records()
    assert len(records) == 3
    assert all(record.status == "done" and record.attempts == 1 for record in records.values())


def test_code_edited_while_jobs_wait_does_not_change_them(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = copy_packages(tmp_path / "checkout")
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    sweep = sweep_of(tmp_path / "sweep", seeds="[0]", slurm="extra: {hold: ''}")
    sweep.submit()
    (run,) = sweep.runs()
    with (checkout / "recipes/standard.py").open("a") as recipe:
        recipe.write("raise RuntimeError('half an edit')\n")
    edited = [sys.executable, "-c", "import recipes.standard"]
    assert "half an edit" in subprocess.run(edited, capture_output=True, text=True).stderr
    (task,) = queued_names(slurm)
    slurm.run("scontrol", "release", task)
    wait_for(run.record.exists)
    assert sweep.records()[run.run_id].status == "done", sweep.records()[run.run_id].error
    about = json.loads((run.attempt(1) / "attempt.json").read_text())
    (snapshot,) = sweep.paths.code.iterdir()
    assert about["code"]["snapshot"] == snapshot.name
    assert about["slurm_job"]


def test_two_submissions_at_once_submit_no_run_twice(slurm: Cluster, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, slurm="max_queued: 2, extra: {hold: ''}")
    command = sweep.command("run", "--on", "slurm")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as second,
    ):
        told = [process.communicate(timeout=200)[0].decode() for process in (first, second)]
    assert len(queued_names(slurm)) == 2, told
    submissions = [
        json.loads(file.read_text()) for file in sweep.paths.slurm.glob("*/submission.json")
    ]
    handed_over = [run for made in submissions for runs in made["tasks"] for run in runs]
    assert len(handed_over) == len(set(handed_over)) == 2, told


def test_a_cancelled_run_at_work_saves_before_it_stops(slurm: Cluster, tmp_path: Path) -> None:
    sweep = sweep_of(tmp_path, tokens=256 * 100_000, seeds="[0]")
    sweep.submit()
    run = midway(sweep.runs() if sweep.paths.manifest.exists() else [])
    assert "1 runs asked to save and stop" in sweep.call("cancel", "--all").stdout
    wait_for(lambda: not slurm.run("squeue", "-h").stdout.strip())
    assert sweep.statuses() == {"cancelled": 1}
    assert list(run.checkpoints.glob("step-*.ckpt"))


def test_plan_says_whether_the_block_fits_and_a_dry_run_only_writes_scripts(
    slurm: Cluster, tmp_path: Path
) -> None:
    sweep = sweep_of(tmp_path, slurm="partition: short")
    fits = sweep.call("plan").stdout
    assert "The slurm: block fits this cluster." in fits
    assert f"isoloss run {sweep.grid} --on slurm" in " ".join(fits.split())
    long = sweep.call("plan", "--set", "slurm.time=10")
    assert long.returncode == 0
    assert "partition short" in " ".join(long.stdout.split())
    dry = sweep.call("run", "--on", "slurm", "--dry-run")
    assert dry.returncode == 0, dry.stdout + dry.stderr
    assert len(list(sweep.paths.slurm.glob("*/script.sh"))) == 1
    assert not slurm.run("squeue", "-h").stdout
    assert sweep.statuses() == {"planned": 4}
