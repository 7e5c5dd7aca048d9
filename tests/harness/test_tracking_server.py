"""The MLflow mirror against real ``mlflow server``s, over sqlite and over PostgreSQL.

They are down, killed, restarted, slow, and lose answers. Whatever they do, the mirror goes on, and
in the end MLflow shows what the files tell: every run once, every step once.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mlflow import MlflowClient

from harness import mirror, mirror_store
from harness.lease import acquire
from harness.mirror import Mirror, SyncResult
from harness.mirror_pass import Pusher
from harness.paths import SweepPaths
from harness.records import PlannedRun, append_jsonl
from tests.harness.tracking_servers import (
    PATIENCE_S,
    BadConnection,
    TrackingServer,
    free_port,
    wait_for,
)
from tests.harness.tracking_sweep import (
    STEPS,
    begin_attempt,
    begin_attempt_here,
    end_run,
    finished_run,
    planned_run,
    train_row,
    write_steps,
    write_sweep,
)
from tests.harness.tracking_truth import assert_mirrored, runs_of, shown_points

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(number) for number in range(3)]
FOLLOW = (
    "import sys; from pathlib import Path; from harness.mirror import Mirror; "
    "from harness.paths import SweepPaths; "
    "Mirror(SweepPaths(Path(sys.argv[1])), sys.argv[2]).follow(lambda: False, 0.2)"
)
ON_SQLITE = pytest.mark.parametrize("tracking_server", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("tracking_server", ["postgresql"], indirect=True)
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "LONGEST_PAUSE_S", 1.0)
    monkeypatch.setattr(mirror, "LAST_PAUSE_S", 0.1)
    monkeypatch.setattr(mirror_store, "BATCH", 200)


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    """A sweep of finished runs under a name that no other test uses: servers are shared."""
    paths = write_sweep(tmp_path / "results", RUNS, f"sweep{next(_numbers)}")
    for run in RUNS:
        finished_run(paths, run)
    return paths


@pytest.fixture
def client(tracking_server: TrackingServer) -> MlflowClient:
    tracking_server.start()
    return MlflowClient(tracking_server.uri)


@contextmanager
def following(sweep: SweepPaths, uri: str) -> Iterator[Callable[[], None]]:
    """A mirror at work in a thread; yields what stops it and waits for its end."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def follow() -> None:
        try:
            Mirror(sweep, uri).follow(stop.is_set, 0.2)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=follow)
    thread.start()

    def finish() -> None:
        stop.set()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert not errors

    try:
        yield finish
    finally:
        finish()


def test_a_server_that_is_down_killed_in_a_pass_and_restarted_ends_up_complete(
    tracking_server: TrackingServer,
    sweep: SweepPaths,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    late = sweep.run(RUNS[0].run_id)
    trouble = f"MLflow at {tracking_server.uri} does not answer"
    client = MlflowClient(tracking_server.uri)
    with following(sweep, tracking_server.uri) as finish:
        wait_for(lambda: trouble in caplog.text)
        tracking_server.start()
        wait_for(lambda: runs_of(client, sweep.root.name))
        tracking_server.kill()
        caplog.clear()
        late.record.unlink()
        end_run(RUNS[0], late, "failed", reason="failed: at the end", error="at the end")
        wait_for(lambda: trouble in caplog.text)
        tracking_server.start()
        finish()
    assert_mirrored(client, sweep, RUNS, tmp_path)
    again = Mirror(sweep, tracking_server.uri).sync()
    assert (again.n_points, again.n_final, again.problems) == (0, len(RUNS), ())


def test_a_sweep_with_runs_in_every_state_is_shown_as_its_files_tell(
    tracking_server: TrackingServer, client: MlflowClient, tmp_path: Path
) -> None:
    states = ("done", "resumed", "diverged", "failed", "cancelled", "killed", "running", "planned")
    by_state = {state: planned_run(number) for number, state in enumerate(states)}
    runs = list(by_state.values())
    long = {**runs[0].config, "data": {**runs[0].config["data"], "corpus": "c" * 600}}
    by_state["done"] = runs[0] = runs[0].model_copy(update={"config": long})
    sweep = write_sweep(tmp_path / "results", runs, f"sweep{next(_numbers)}")
    follower = Mirror(sweep, tracking_server.uri)
    write_every_state(sweep, by_state, follower)
    result = follower.sync()
    assert (result.n_runs, result.n_final, result.problems) == (7, 5, ())
    assert_mirrored(client, sweep, runs[:-1], tmp_path)
    shown = runs_of(client, sweep.root.name)
    assert shown[by_state["killed"].run_id].info.status == "KILLED"
    assert shown[by_state["running"].run_id].info.status == "RUNNING"
    done = shown[by_state["done"].run_id]
    assert "data.corpus" not in done.data.params
    assert len(shown[by_state["failed"].run_id].data.tags["isoloss.error"]) == 1000


def write_every_state(sweep: SweepPaths, runs: dict[str, PlannedRun], follower: Mirror) -> None:
    paths = {state: sweep.run(run.run_id) for state, run in runs.items()}
    for state in set(runs) - {"planned", "running"}:
        begin_attempt(paths[state])
        write_steps(paths[state], 0, STEPS // 2)
    begin_attempt_here(paths["running"])
    follower.sync()
    append_jsonl(paths["diverged"].metrics, train_row(31, loss_nats=math.nan, grad_norm=math.inf))
    begin_attempt(paths["resumed"], 2)
    write_steps(paths["resumed"], STEPS // 3, STEPS, 2)
    write_steps(paths["done"], STEPS // 2, STEPS)
    for state in ("done", "resumed"):
        end_run(runs[state], paths[state])
    error = "no\x00 room " + "x" * 2000
    for state, text in (("diverged", None), ("failed", error), ("cancelled", None)):
        end_run(runs[state], paths[state], state, reason=f"{state}: so", error=text)


@ON_POSTGRES  # which refuses what sqlite would take twice
def test_lost_answers_double_nothing_whatever_was_asked(
    tracking_server: TrackingServer, client: MlflowClient, sweep: SweepPaths, tmp_path: Path
) -> None:
    def treatment(number: int, path: str) -> str:
        return "lose" if number in (0, 3, 7) else "pass"

    with BadConnection(tracking_server.port, treatment) as connection:
        bad, results = Mirror(sweep, connection.uri), [SyncResult(0, 0, 0)]
        while results[-1].n_final < len(RUNS):
            results.append(bad.sync())
        assert any("does not answer" in problem for r in results for problem in r.problems)
        lost = {path.rpartition("/")[2] for path in connection.seen}
        assert lost >= {"log-batch", "create", "search", "update", "set-tag", "record.json"}
    result = Mirror(sweep, tracking_server.uri).sync()
    assert (result.n_final, result.problems) == (len(RUNS), ())
    assert_mirrored(client, sweep, RUNS, tmp_path)


@ON_POSTGRES  # which refuses what sqlite would take twice
def test_requests_that_arrive_after_they_were_given_up_double_nothing(
    tracking_server: TrackingServer,
    client: MlflowClient,
    sweep: SweepPaths,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    paths = sweep.run(RUNS[0].run_id)
    paths.record.unlink()
    arrived: list[str] = []

    def treatment(number: int, path: str) -> float | str:
        held = path.endswith(("runs/create", "runs/log-batch")) and number % 3 == 0 and number < 6
        arrived.append(path)
        return 2.5 if held else "pass"

    with (
        BadConnection(tracking_server.port, treatment) as connection,
        following(sweep, connection.uri) as finish,
    ):
        wait_for(lambda: len(arrived) > 20)
        end_run(RUNS[0], paths)
        finish()
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_TIMEOUT")
    result = Mirror(sweep, tracking_server.uri).sync()
    assert (result.n_final, result.problems) == (len(RUNS), ())
    assert_mirrored(client, sweep, RUNS, tmp_path)


@ON_POSTGRES
def test_two_mirrors_that_both_think_it_is_their_turn_leave_every_step_once(
    tracking_server: TrackingServer, client: MlflowClient, sweep: SweepPaths, tmp_path: Path
) -> None:
    sweep.mirror_terms.mkdir(parents=True)
    both = [Pusher(sweep, tracking_server.uri, None, lambda: None) for _ in range(2)]
    threads = [threading.Thread(target=pusher.run, args=(lambda: False,)) for pusher in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert Mirror(sweep, tracking_server.uri).sync().n_final == len(RUNS)
    assert_mirrored(client, sweep, RUNS, tmp_path)


@ON_SQLITE
def test_a_mirror_killed_in_a_pass_is_completed_by_the_one_that_waited(
    tracking_server: TrackingServer, client: MlflowClient, sweep: SweepPaths, tmp_path: Path
) -> None:
    command = [sys.executable, "-c", FOLLOW, str(sweep.root), tracking_server.uri]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, env=environment)
    try:
        wait_for(lambda: runs_of(client, sweep.root.name))
        assert acquire(sweep.mirror_terms) is None
    finally:
        process.kill()
        process.wait()
    with following(sweep, tracking_server.uri) as finish:
        finish()
    assert_mirrored(client, sweep, RUNS, tmp_path)


@ON_POSTGRES
def test_an_experiment_deleted_on_the_server_comes_back_and_is_completed(
    tracking_server: TrackingServer, client: MlflowClient, sweep: SweepPaths, tmp_path: Path
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    record = paths.record.read_bytes()
    paths.record.unlink()
    Mirror(sweep, tracking_server.uri).sync()
    experiment = client.get_experiment_by_name(sweep.root.name)
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    paths.record.write_bytes(record)
    assert Mirror(sweep, tracking_server.uri).sync().problems == ()
    assert_mirrored(client, sweep, RUNS, tmp_path)


@ON_POSTGRES
def test_a_run_that_the_server_refuses_keeps_no_other_from_it(
    tracking_server: TrackingServer, client: MlflowClient, sweep: SweepPaths
) -> None:
    mirrored = Mirror(sweep, tracking_server.uri)
    (refused, *others) = RUNS
    begin = sweep.run(refused.run_id)
    append_jsonl(begin.metrics, train_row(2**70))
    result = mirrored.sync()
    assert (len(result.problems), result.n_final, result.reached) == (1, len(others), True)
    assert result.problems[0].startswith(refused.run_id)
    shown = runs_of(client, sweep.root.name)
    for run in others:
        assert len(shown_points(client, shown[run.run_id])["train/loss_nats"]) == STEPS


def test_a_pass_without_a_server_returns_the_trouble_in_one_line(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, RUNS)
    uri = f"http://127.0.0.1:{free_port()}"
    result = Mirror(sweep, uri).sync()
    assert (result.n_runs, result.n_points, result.n_final, result.reached) == (0, 0, 0, False)
    (problem,) = result.problems
    assert problem.startswith(f"MLflow at {uri} does not answer (")
    assert "\n" not in problem
