"""Mirrors that are killed or fail between two requests: what is left is mended, nothing doubled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from harness import mirror, mirror_store
from harness.evaluation.base import Entry
from harness.evaluation.store import join_record, write_result
from harness.mirror import Mirror, SyncResult
from harness.mirror_pass import Pusher
from harness.paths import RunPaths, SweepPaths
from tests.harness.tracking_sweep import (
    STEPS,
    begin_attempt,
    begin_attempt_here,
    end_run,
    finished_run,
    planned_run,
    uri,
    write_steps,
    write_sweep,
)
from tests.harness.tracking_truth import assert_mirrored, runs_of, shown_points

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(0)]


@pytest.fixture
def sweep(mlflow_store: SweepPaths) -> SweepPaths:
    return write_sweep(mlflow_store.root.parent, RUNS)


@pytest.fixture
def client(mlflow_store: SweepPaths) -> MlflowClient:
    return MlflowClient(tracking_uri=uri(mlflow_store))


def sync(sweep: SweepPaths) -> SyncResult:
    """One pass of a new mirror, which knows nothing of earlier ones."""
    return Mirror(sweep, uri(sweep)).sync()


def break_log_batch(
    patch: pytest.MonkeyPatch, nth: int, committed: bool, error: BaseException
) -> None:
    """Let the nth batch end in ``error``, before or after the store has taken it."""
    log_batch, calls = MlflowClient.log_batch, [0]

    def broken(self: MlflowClient, *args: Any, **kwargs: Any) -> None:
        calls[0] += 1
        if calls[0] != nth or committed:
            log_batch(self, *args, **kwargs)
        if calls[0] == nth:
            raise error

    patch.setattr(mirror_store, "BATCH", 50)
    patch.setattr(MlflowClient, "log_batch", broken)


@pytest.mark.parametrize("committed", [False, True])
@pytest.mark.parametrize("nth", [1, 4, 7])
def test_a_mirror_killed_between_batches_is_completed_by_the_next_without_doubles(
    sweep: SweepPaths,
    client: MlflowClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nth: int,
    committed: bool,
) -> None:
    finished_run(sweep, RUNS[0])
    with monkeypatch.context() as patch:
        break_log_batch(patch, nth, committed, SystemExit("killed"))
        with pytest.raises(SystemExit):
            sync(sweep)
    assert len(runs_of(client, "depth")) == 1
    assert sync(sweep).n_final == 1
    assert_mirrored(client, sweep, RUNS, tmp_path)


@pytest.mark.parametrize("committed", [False, True])
def test_a_store_that_fails_once_is_completed_by_the_same_mirror_without_doubles(
    sweep: SweepPaths,
    client: MlflowClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    committed: bool,
) -> None:
    finished_run(sweep, RUNS[0])
    follower = Mirror(sweep, uri(sweep))
    with monkeypatch.context() as patch:
        break_log_batch(patch, 4, committed, MlflowException("database is locked"))
        result = follower.sync()
        assert (result.n_final, len(result.problems), result.n_refused) == (0, 1, 1)
        assert "database is locked" in result.problems[0]
        monkeypatch.setattr(mirror, "LAST_PAUSE_S", 0.1)
        follower.follow(lambda: True)
    assert_mirrored(client, sweep, RUNS, tmp_path)


def test_a_run_that_was_created_twice_keeps_the_one_that_has_its_points(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt_here(paths)
    write_steps(paths, 0, 20)
    sync(sweep)
    first = runs_of(client, "depth")[RUNS[0].run_id]
    again = client.create_run(
        first.info.experiment_id, first.info.start_time - 1, {"isoloss.run_id": RUNS[0].run_id}
    )
    write_steps(paths, 20, STEPS)
    end_run(RUNS[0], paths)
    sync(sweep)
    assert_mirrored(client, sweep, RUNS, tmp_path)
    assert runs_of(client, "depth")[RUNS[0].run_id].info.run_id == first.info.run_id
    assert client.get_run(again.info.run_id).info.lifecycle_stage == "deleted"


def test_a_run_that_arrives_after_its_request_was_given_up_is_gone_when_the_mirror_ends(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(sweep, RUNS[0])
    sweep.mirror_terms.mkdir(parents=True)
    create, given_up = MlflowClient.create_run, []

    def held_back(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        if given_up:
            return create(self, *args, **kwargs)
        given_up.append((args, kwargs))
        raise MlflowException("timed out")

    monkeypatch.setattr(MlflowClient, "create_run", held_back)
    pusher = Pusher(sweep, uri(sweep), None, lambda: None, trusting=True)
    assert pusher.run(lambda: False).n_refused == 1
    assert pusher.run(lambda: False).n_final == 1
    ((args, kwargs),) = given_up
    create(client, *args, **kwargs)
    pusher.run(lambda: False, last=True)
    assert_mirrored(client, sweep, RUNS, tmp_path)


def test_a_step_that_is_there_twice_is_mended_when_the_run_ends(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt_here(paths)
    write_steps(paths, 0, 20)
    sync(sweep)
    late = runs_of(client, "depth")[RUNS[0].run_id].info.run_id
    client.log_metric(late, "train/loss_nats", 9.0, timestamp=1, step=5)
    write_steps(paths, 20, STEPS)
    end_run(RUNS[0], paths)
    assert sync(sweep).n_final == 1
    assert_mirrored(client, sweep, RUNS, tmp_path)


def test_a_record_made_anew_at_the_same_step_replaces_the_old_one(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    paths = finished_run(sweep, RUNS[0])
    follower = Mirror(sweep, uri(sweep))
    follower.sync()
    paths.record.unlink()
    begin_attempt(paths, 2)
    record = end_run(RUNS[0], paths)
    follower.sync()
    metrics = runs_of(client, "depth")[RUNS[0].run_id].data.metrics
    assert metrics["record/attempts"] == record.attempts == 2
    assert_mirrored(client, sweep, RUNS, tmp_path)


def test_params_are_sent_once(
    sweep: SweepPaths, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_batch, sent = MlflowClient.log_batch, []

    def recorded(self: MlflowClient, *args: Any, **kwargs: Any) -> None:
        sent.append(len(kwargs["params"]))
        log_batch(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", recorded)
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt_here(paths)
    follower = Mirror(sweep, uri(sweep))
    for step in range(3):
        write_steps(paths, step, step + 1)
        follower.sync()
    write_steps(paths, 3, 4)
    sync(sweep)
    assert sent[0] > 10
    assert sent[1:] == [0, 0, 0]


def evaluate(paths: RunPaths, step: int, value: float) -> None:
    entry = Entry(name="lm_eval:a task", measure=lambda model: {}, headline=())
    write_result(paths, step, entry, {"acc,none": value})
    join_record(paths)


@pytest.mark.parametrize("known", [False, True])
def test_evaluations_of_any_checkpoint_join_a_run_that_is_mirrored(
    sweep: SweepPaths, client: MlflowClient, known: bool
) -> None:
    paths = finished_run(sweep, RUNS[0])
    follower = Mirror(sweep, uri(sweep))
    for step, value, expected in (
        (STEPS, 0.5, {STEPS: 0.5}),
        (30, 0.25, {STEPS: 0.5, 30: 0.25}),  # an earlier step, after a later one
        (30, 0.75, {STEPS: 0.5, 30: 0.75}),  # measured again
    ):
        follower.sync() if known else sync(sweep)
        evaluate(paths, step, value)
        follower.sync() if known else sync(sweep)
        points = shown_points(client, runs_of(client, "depth")[RUNS[0].run_id])
        assert points["eval/lm_eval/a task/acc_none"] == expected
        assert points["record/loss_nats"].keys() == {STEPS}
