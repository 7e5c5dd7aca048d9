"""Whose turn it is to mirror a sweep: one process at a time, and none that ends leaves a gap."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from harness import mirror
from harness.lease import KEPT_TERMS, Lease, acquire, terms_of
from harness.mirror import Mirror
from harness.mirror_pass import Pusher
from harness.paths import SweepPaths
from tests.harness.tracking_servers import PATIENCE_S, wait_for
from tests.harness.tracking_sweep import begin_attempt_here as begin_here
from tests.harness.tracking_sweep import (
    end_run,
    finished_run,
    planned_run,
    uri,
    write_steps,
    write_sweep,
)
from tests.harness.tracking_truth import assert_mirrored, runs_of

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(number) for number in range(3)]
WAITER = """
import json, signal, sys
from pathlib import Path
from harness.mirror import Mirror
from harness.paths import SweepPaths

asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
print("waits", flush=True)
Mirror(SweepPaths(Path(sys.argv[1])), sys.argv[2]).follow(lambda: bool(asked), 0.2, wait_s=0.2)
heavy = [name for name in ("mlflow", "sqlalchemy", "matplotlib", "torch") if name in sys.modules]
print(json.dumps(heavy), flush=True)
"""


@pytest.fixture
def sweep(mlflow_store: SweepPaths) -> SweepPaths:
    return write_sweep(mlflow_store.root.parent, RUNS)


@pytest.fixture
def client(sweep: SweepPaths) -> MlflowClient:
    return MlflowClient(tracking_uri=uri(sweep))


def held(sweep: SweepPaths) -> Lease:
    """The lease, as another mirror has it."""
    lease = acquire(sweep.mirror_terms)
    assert lease is not None
    return lease


def stopped_at_once(sweep: SweepPaths, **options: Any) -> None:
    Mirror(sweep, uri(sweep)).follow(lambda: True, 0.1, **options)


def test_a_sweep_has_one_mirror_at_a_time(sweep: SweepPaths, client: MlflowClient) -> None:
    finished_run(sweep, RUNS[0])
    other = held(sweep)
    result = Mirror(sweep, uri(sweep)).sync()
    stopped_at_once(sweep)
    assert (result.problems, result.reached) == (
        ("another mirror is at work on this sweep",),
        False,
    )
    assert runs_of(client, "depth") == {}
    other.end("ended")
    assert Mirror(sweep, uri(sweep)).sync().n_final == 1


def test_a_mirror_that_waits_imports_neither_mlflow_nor_figures(sweep: SweepPaths) -> None:
    other = held(sweep)
    process = subprocess.Popen(
        [sys.executable, "-c", WAITER, str(sweep.root), uri(sweep)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        process.send_signal(signal.SIGTERM)
        assert json.loads(process.communicate(timeout=PATIENCE_S)[0]) == []
    finally:
        process.kill()
        process.wait()
        other.end("ended")


def test_a_mirror_that_waits_takes_the_place_of_one_that_was_killed(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    for run in RUNS:
        finished_run(sweep, run)
    hold = "import sys, time, pathlib, harness.lease as l; l.acquire(pathlib.Path(sys.argv[1]));"
    hold += "print(flush=True); time.sleep(600)"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(sweep.mirror_terms)], stdout=subprocess.PIPE
    )
    stop = threading.Event()
    waiter = threading.Thread(
        target=Mirror(sweep, uri(sweep)).follow, args=(stop.is_set, 0.1), kwargs={"wait_s": 0.1}
    )
    try:
        assert holder.stdout is not None
        holder.stdout.readline()
        waiter.start()
        waiter.join(1.0)
        assert runs_of(client, "depth") == {}
        holder.kill()
        holder.wait()
        wait_for(lambda: len(runs_of(client, "depth")) == len(RUNS))
    finally:
        holder.kill()
        holder.wait()
        stop.set()
        waiter.join(PATIENCE_S)
    assert_mirrored(client, sweep, RUNS, tmp_path)


def test_a_mirror_that_lost_its_lease_sends_nothing_more(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in RUNS:
        finished_run(sweep, run)
    log_batch, sent = MlflowClient.log_batch, []

    def replaced_after(self: MlflowClient, *args: Any, **kwargs: Any) -> None:
        log_batch(self, *args, **kwargs)
        sent.append(args)
        (sweep.mirror_terms / "2").mkdir()

    monkeypatch.setattr(MlflowClient, "log_batch", replaced_after)
    for name in ("set_terminated", "set_tag", "log_artifacts", "create_run", "delete_run"):
        real = getattr(MlflowClient, name)

        def only_before(self: MlflowClient, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            assert not sent, "a request after the lease was lost"
            return real(self, *args, **kwargs)

        monkeypatch.setattr(MlflowClient, name, only_before)
    result = Mirror(sweep, uri(sweep)).sync()
    assert result.problems == ("another mirror has taken over",)
    assert len(sent) == 1
    assert not (sweep.mirror_terms / "1" / "end.json").exists()


def test_a_follower_that_lost_its_lease_waits_for_its_next_turn(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    finished_run(sweep, RUNS[0])
    stop = threading.Event()
    follower = threading.Thread(
        target=Mirror(sweep, uri(sweep)).follow, args=(stop.is_set, 0.1), kwargs={"wait_s": 0.1}
    )
    follower.start()
    try:
        wait_for(lambda: runs_of(client, "depth"))
        (sweep.mirror_terms / "2").mkdir()  # nobody beats in it, but it is fresh
        follower.join(0.5)
        finished_run(sweep, RUNS[1])
        follower.join(0.5)
        assert len(runs_of(client, "depth")) == 1
        (sweep.mirror_terms / "2" / "end.json").write_text("{}", encoding="utf-8")
        wait_for(lambda: len(runs_of(client, "depth")) == 2)
    finally:
        stop.set()
        follower.join(PATIENCE_S)
    assert_mirrored(client, sweep, RUNS[:2], tmp_path)


def test_of_two_mirrors_that_end_at_once_one_sees_what_came_after_its_last_pass(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(sweep, RUNS[0])
    run, passes = Pusher.run, []

    def run_then_another_ends(self: Pusher, *args: Any, **kwargs: Any) -> Any:
        result = run(self, *args, **kwargs)
        passes.append(result)
        if len(passes) == 1:
            finished_run(sweep, RUNS[1])
            stopped_at_once(sweep)
        return result

    monkeypatch.setattr(Pusher, "run", run_then_another_ends)
    stopped_at_once(sweep)
    assert [result.n_final for result in passes] == [1, 2]
    assert_mirrored(client, sweep, RUNS[:2], tmp_path)


def test_terms_of_former_mirrors_are_cleared_away(sweep: SweepPaths) -> None:
    for _ in range(KEPT_TERMS + 3):
        stopped_at_once(sweep)
    numbers = terms_of(sweep.mirror_terms)
    assert numbers == list(range(numbers[-1] - KEPT_TERMS + 1, numbers[-1] + 1))
    assert numbers[-1] == KEPT_TERMS + 3


def test_a_mirror_that_nobody_interrupted_remembers_what_mlflow_shows(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(sweep, RUNS[0])
    search, searches = MlflowClient.search_runs, []

    def counted(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        searches.append(args)
        return search(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "search_runs", counted)
    follower = Mirror(sweep, uri(sweep))
    follower.sync()
    follower.sync()
    assert len(searches) == 1
    Mirror(sweep, uri(sweep)).sync()
    follower.sync()
    assert len(searches) == 3


def test_following_outlives_a_folder_that_cannot_be_written_and_a_lost_manifest(
    sweep: SweepPaths,
    client: MlflowClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mirror, "LAST_PAUSE_S", 0.1)
    finished_run(sweep, RUNS[0])
    aside = sweep.manifest.rename(sweep.root / "aside")
    stopped_at_once(sweep)
    assert "no such sweep" in caplog.text
    assert "bring it up to date with: isoloss sync" in caplog.text
    logs = sweep.logs.rename(sweep.root / "logs-aside")
    sweep.logs.touch()
    stopped_at_once(sweep)
    assert f"{sweep.mirror_terms}: cannot be written" in caplog.text
    sweep.logs.unlink()
    logs.rename(sweep.logs)
    aside.rename(sweep.manifest)
    stopped_at_once(sweep)
    assert_mirrored(client, sweep, RUNS[:1], tmp_path)


def test_a_last_pass_ends_when_its_time_is_over(
    sweep: SweepPaths, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    for run in RUNS:
        finished_run(sweep, run)
    stopped_at_once(sweep, patience_s=0.0)
    assert "stopped before every run was mirrored" in caplog.text
    assert "bring it up to date with: isoloss sync" in caplog.text
    assert runs_of(client, "depth") == {}


def test_a_stop_during_the_wait_is_heard_at_once(sweep: SweepPaths) -> None:
    other = held(sweep)
    stop = threading.Event()
    waiter = threading.Thread(target=Mirror(sweep, uri(sweep)).follow, args=(stop.is_set,))
    waiter.start()
    stop.set()
    waiter.join(mirror.WAIT_S / 2)
    assert not waiter.is_alive()
    other.end("ended")


@pytest.mark.parametrize("n_runs", [4, 40])
def test_a_pass_asks_the_store_only_for_what_has_changed(
    mlflow_store: SweepPaths, n_runs: int
) -> None:
    runs = [planned_run(number, steps=15) for number in range(n_runs)]
    sweep = write_sweep(mlflow_store.root.parent, runs)
    sweep.mirror_terms.mkdir(parents=True)
    for run in runs[: n_runs // 2]:
        finished_run(sweep, run)
    running = sweep.run(runs[-1].run_id)
    begin_here(running)
    requests: list[int] = []
    pusher = Pusher(sweep, uri(sweep), None, lambda: requests.append(1))
    pusher.run(lambda: False)
    requests.clear()
    assert pusher.run(lambda: False).n_points == 0
    assert len(requests) == 0
    write_steps(running, 0, 1)
    assert pusher.run(lambda: False).n_points > 0
    assert len(requests) == 1
    end_run(runs[-1], running, "failed", reason="failed: so", error="so")
    pusher.run(lambda: False)
    assert len(requests) == 1 + 4  # points, status, artifacts, and the mark that it is complete
