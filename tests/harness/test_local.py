"""Sweeps on this machine with real worker processes: kills, Ctrl-C, parallel runs, failures."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from harness.job import read_job, write_job
from harness.paths import RunPaths, SweepPaths
from harness.records import RunRecord, read_jsonl, read_manifest, read_record
from tests.command_line import isoloss

GRID = """
sweep: kills
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 81920}, batch_tokens: 256, eval_tokens: 1024}
axes: {residual: [standard, {name: block, block_size: 2}]}
seeds: [0, 1]
execution: {checkpoint_every_s: 0.2, n_evals: 2, n_diagnostics: 1, log_every: 5}
mlflow: {mode: MODE}
"""


def command_of(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "harness.cli", *map(str, arguments)]


def write_grid(folder: Path, text: str = GRID, mode: str = "off") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    grid = folder / "grid.yaml"
    grid.write_text(text.replace("MODE", mode))
    return grid


def sweep_in(folder: Path) -> SweepPaths:
    return SweepPaths(folder / "results" / "kills")


def run_paths(sweep: SweepPaths) -> list[RunPaths]:
    return [sweep.run(run.run_id) for run in read_manifest(sweep).runs]


def records(sweep: SweepPaths) -> dict[str, RunRecord]:
    found = {paths.run_id: read_record(paths.record) for paths in run_paths(sweep)}
    assert all(found.values()), "a run has no record"
    return {run_id: record for run_id, record in found.items() if record is not None}


def live_workers(sweep: SweepPaths) -> list[int]:
    """Process ids of training workers of this sweep, read from the system's table."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        if "harness.worker" in command and any(str(sweep.root) in part for part in command):
            pids.append(int(folder.name))
    return pids


def training_workers(sweep: SweepPaths) -> list[int]:
    """Those of them that have begun a run."""
    alive = set(live_workers(sweep))
    holders = sweep.root.glob("runs/*/attempts/*/holder.json")
    return sorted(alive & {json.loads(file.read_text())["pid"] for file in holders})


def losses(paths: RunPaths) -> list[tuple[int, float]]:
    rows = read_jsonl(paths.metrics)
    return [(row["step"], row["loss_nats"]) for row in rows if row["kind"] == "train"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """The sweep, run once without any disturbance."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = isoloss("run", write_grid(folder), "--results", folder / "results", "--workers", "2")
    assert done.returncode == 0, done.stderr + done.stdout
    return sweep_in(folder)


@pytest.mark.slow
def test_killed_workers_lose_nothing(undisturbed: SweepPaths, tmp_path: Path) -> None:
    grid, sweep = write_grid(tmp_path, mode="direct"), sweep_in(tmp_path)
    command = command_of("run", grid, "--results", tmp_path / "results", "--workers", "2")
    chance, kills = random.Random(7), 0
    while kills < 3:
        assert isoloss("retry", grid, "--results", tmp_path / "results").returncode in (0, 2)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as run:
            while kills < 3 and run.poll() is None:
                time.sleep(chance.uniform(0.1, 1.5))
                for pid in training_workers(sweep)[:1]:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
            run.communicate(timeout=200)
        if all(paths.record.exists() for paths in run_paths(sweep)):
            break
    assert kills == 3
    isoloss("retry", grid, "--results", tmp_path / "results")
    last = isoloss("run", grid, "--results", tmp_path / "results", "--workers", "2")
    assert last.returncode == 0, last.stdout + last.stderr
    assert_same_results(sweep, undisturbed)
    assert_mirrored_once(sweep)


def assert_mirrored_once(sweep: SweepPaths) -> None:
    """MLflow holds one finished run per run, every training step of it, and none twice."""
    with closing(sqlite3.connect(sweep.mlflow_db)) as store:
        runs = store.execute(
            "select t.value, r.run_uuid, r.status from runs r "
            "join tags t on t.run_uuid = r.run_uuid where t.key = 'isoloss.run_id'"
        ).fetchall()
        assert sorted(run_id for run_id, _, _ in runs) == sorted(records(sweep))
        for run_id, uuid, status in runs:
            assert status == "FINISHED"
            steps = store.execute(
                "select step from metrics where run_uuid = ? and key = 'train/loss_nats'", (uuid,)
            ).fetchall()
            expected = [step for step, _ in losses(sweep.run(run_id))]
            assert sorted(step for (step,) in steps) == expected


def assert_same_results(sweep: SweepPaths, undisturbed: SweepPaths) -> None:
    expected = records(undisturbed)
    for run_id, record in records(sweep).items():
        assert record.status == "done"
        assert record.loss_nats == expected[run_id].loss_nats
        assert losses(sweep.run(run_id)) == losses(undisturbed.run(run_id))


@pytest.mark.slow
def test_ctrl_c_leaves_everything_resumable(undisturbed: SweepPaths, tmp_path: Path) -> None:
    grid, sweep = write_grid(tmp_path), sweep_in(tmp_path)
    command = command_of("run", grid, "--results", tmp_path / "results", "--workers", "2")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        wait_for(lambda: any(sweep.root.glob("runs/*/metrics.jsonl")))
        run.send_signal(signal.SIGINT)
        output, _ = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "every unfinished run is saved" in output
    assert not live_workers(sweep)
    assert list(sweep.root.glob("runs/*/checkpoints/step-*.ckpt"))
    again = isoloss("run", grid, "--results", tmp_path / "results", "--workers", "2")
    assert "to resume" in again.stdout
    assert again.returncode == 0
    assert_same_results(sweep, undisturbed)


def wait_for(condition: object, seconds: float = 60.0) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


@pytest.mark.slow
def test_two_runs_in_parallel_do_nothing_twice(undisturbed: SweepPaths, tmp_path: Path) -> None:
    grid, sweep = write_grid(tmp_path), sweep_in(tmp_path)
    command = command_of("run", grid, "--results", tmp_path / "results", "--workers", "1")
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE) as first,
        subprocess.Popen(command, stdout=subprocess.PIPE) as second,
    ):
        first.communicate(timeout=200)
        second.communicate(timeout=200)
    assert all(record.attempts == 1 for record in records(sweep).values())
    assert_same_results(sweep, undisturbed)


@pytest.mark.slow
def test_relaunch_skips_finished_runs(undisturbed: SweepPaths) -> None:
    before = {paths.run_id: paths.record.stat().st_mtime_ns for paths in run_paths(undisturbed)}
    results = undisturbed.root.parent
    again = isoloss("run", results.parent / "grid.yaml", "--results", results)
    assert again.returncode == 0
    assert "4 done" in again.stdout
    after = {paths.run_id: paths.record.stat().st_mtime_ns for paths in run_paths(undisturbed)}
    assert after == before


@pytest.mark.slow
def test_status_tells_the_same_from_files_alone(undisturbed: SweepPaths) -> None:
    results = undisturbed.root.parent
    told = isoloss("status", "kills", "--results", results, "--json")
    states = json.loads(told.stdout)
    assert [state["status"] for state in states] == ["done"] * 4
    assert all(
        state["loss_nats"] == records(undisturbed)[state["run_id"]].loss_nats for state in states
    )


@pytest.mark.slow
def test_a_run_that_raises_is_failed_and_retry_runs_it_again(tmp_path: Path) -> None:
    text = GRID.replace("seeds: [0, 1]", "seeds: [0]").replace("tokens: 81920", "tokens: 2560")
    grid, sweep = write_grid(tmp_path, text), sweep_in(tmp_path)
    options = ("--results", tmp_path / "results", "--workers", "1")
    assert isoloss("run", grid, *options, "--limit", "1").returncode == 1
    victim = next(paths for paths in run_paths(sweep) if not paths.record.exists())
    victim.checkpoints.mkdir(parents=True)
    other = next(paths for paths in run_paths(sweep) if paths.record.exists())
    stolen = next(other.checkpoints.glob("*.ckpt"))
    (victim.checkpoints / stolen.name).write_bytes(stolen.read_bytes())
    failed = isoloss("run", grid, *options)
    assert failed.returncode == 1
    assert "CheckpointError" in failed.stdout
    assert "1 done, 1 failed" in failed.stdout
    log = isoloss("logs", grid, victim.run_id[:6], "--results", tmp_path / "results")
    assert "Traceback" in log.stdout
    unchanged = isoloss("run", grid, *options)
    assert "1 failed (isoloss retry" in unchanged.stdout
    (victim.checkpoints / stolen.name).unlink()
    assert isoloss("retry", grid, "--results", tmp_path / "results").returncode == 0
    assert isoloss("run", grid, *options).returncode == 0
    assert records(sweep)[victim.run_id].attempts == 2


@pytest.mark.slow
def test_a_worker_on_its_own_saves_and_exits_75_when_asked_to_stop(
    undisturbed: SweepPaths, tmp_path: Path
) -> None:
    job = read_job(next(undisturbed.jobs.glob("*.json")))
    sweep = sweep_in(tmp_path)
    write_job(tmp_path / "job.json", job.model_copy(update={"sweep_dir": sweep.root}))
    command = [sys.executable, "-m", "harness.worker", str(tmp_path / "job.json")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as worker:
        wait_for(lambda: any(sweep.root.glob("runs/*/metrics.jsonl")))
        worker.terminate()
        assert worker.wait(60) == 75
    assert list(sweep.root.glob("runs/*/checkpoints/step-*.ckpt"))


@pytest.mark.slow
def test_workers_that_cannot_start_are_reported_with_their_last_words(tmp_path: Path) -> None:
    (tmp_path / "broken" / "lightning").mkdir(parents=True)
    (tmp_path / "broken" / "lightning" / "__init__.py").write_text("raise OSError('no such disk')")
    done = subprocess.run(
        command_of("run", write_grid(tmp_path), "--results", tmp_path / "results"),
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "broken")},
    )
    assert done.returncode == 1
    told = " ".join(done.stdout.split())
    assert "3 workers ended without finishing a run: OSError: no such disk" in told
    assert "workers.log" in told
