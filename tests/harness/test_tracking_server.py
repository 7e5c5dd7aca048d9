"""The MLflow mirror against a real ``mlflow server`` that is down, comes up, and is restarted."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from harness import mirror
from harness.mirror import Mirror
from harness.paths import SweepPaths
from tests.harness.tracking_sweep import (
    STEPS,
    begin_attempt_here,
    end_run,
    finished_run,
    loss,
    planned_run,
    write_steps,
    write_sweep,
)

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(0), planned_run(1)]
PATIENCE_S = 120.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def server(mlflow_store: SweepPaths, port: int) -> Iterator[None]:
    """A tracking server over the local store; its whole process group ends with the block."""
    folder = mlflow_store.root.parent
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--port", str(port), "--backend-store-uri", f"sqlite:///{mlflow_store.mlflow_db}"]
    command += ["--artifacts-destination", str(folder / "server-artifacts")]
    with (folder / "server.log").open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={
                **os.environ,
                "MLFLOW_DISABLE_TELEMETRY": "true",
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            },
        )
    try:
        wait_for(lambda: healthy(port))
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def only_run(client: MlflowClient, run_id: str) -> Run | None:
    """The one MLflow run of ours; None when it is not there yet."""
    experiment = client.get_experiment_by_name("depth")
    if experiment is None:
        return None
    found = client.search_runs([experiment.experiment_id], f"tags.`isoloss.run_id` = '{run_id}'")
    assert len(found) <= 1
    return found[0] if found else None


@pytest.fixture
def _quick_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setattr(mirror, "LONGEST_PAUSE_S", 1.0)


@pytest.mark.usefixtures("_quick_to_fail")
def test_following_outlives_a_server_that_is_down_and_completes_when_it_is_back(
    mlflow_store: SweepPaths, caplog: pytest.LogCaptureFixture
) -> None:
    sweep = write_sweep(mlflow_store.root.parent, RUNS)
    paths, port = sweep.run(RUNS[0].run_id), free_port()
    uri = f"http://127.0.0.1:{port}"
    begin_attempt_here(paths)
    write_steps(paths, 0, 20)
    stop = threading.Event()
    follower = threading.Thread(target=Mirror(sweep, uri).follow, args=(stop.is_set, 0.2))
    follower.start()
    try:
        wait_for(lambda: f"MLflow at {uri} does not answer" in caplog.text)
        client = MlflowClient(uri)
        with server(mlflow_store, port):
            wait_for(lambda: only_run(client, RUNS[0].run_id) is not None)
            write_steps(paths, 20, STEPS)
            end_run(RUNS[0], paths)
            finished_run(sweep, RUNS[1])
            stop.set()
            follower.join(PATIENCE_S)
            assert not follower.is_alive()
            assert_complete(client)
            result = Mirror(sweep, uri).sync()
            assert (result.n_points, result.n_final, result.problems) == (0, 2, ())
            assert_complete(client)
    finally:
        stop.set()
        follower.join(PATIENCE_S)


def assert_complete(client: MlflowClient) -> None:
    for planned in RUNS:
        run = only_run(client, planned.run_id)
        assert run is not None
        assert run.info.status == "FINISHED"
        losses = client.get_metric_history(run.info.run_id, "train/loss_nats")
        points = sorted((m.step, m.value) for m in losses)
        assert points == [(s, loss(s)) for s in range(1, STEPS + 1)]
        for key in run.data.metrics:
            steps = Counter(m.step for m in client.get_metric_history(run.info.run_id, key))
            assert set(steps.values()) == {1}, key
        names = {file.path for file in client.list_artifacts(run.info.run_id)}
        assert names == {"config.yaml", "record.json"}


@pytest.mark.usefixtures("_quick_to_fail")
def test_a_pass_without_a_server_returns_the_trouble_in_one_line(mlflow_store: SweepPaths) -> None:
    sweep = write_sweep(mlflow_store.root.parent, RUNS)
    for run in RUNS:
        finished_run(sweep, run)
    uri = f"http://127.0.0.1:{free_port()}"
    result = Mirror(sweep, uri).sync()
    assert (result.n_runs, result.n_points, result.n_final, result.reached) == (0, 0, 0, False)
    (problem,) = result.problems
    assert problem.startswith(f"MLflow at {uri} does not answer (")
    assert "\n" not in problem
