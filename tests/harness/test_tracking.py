"""The MLflow mirror against a real local store: complete, free of doubles, hard to disturb."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from matplotlib.figure import Figure
from mlflow import MlflowClient
from mlflow.entities import Run, ViewType

from harness.mirror import Mirror, SyncResult
from harness.paths import SweepPaths
from harness.records import append_jsonl
from tests.harness.tracking_sweep import (
    STEPS,
    begin_attempt,
    begin_attempt_here,
    end_run,
    finished_run,
    loss,
    planned_run,
    train_row,
    uri,
    write_steps,
    write_sweep,
)

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(0), planned_run(1), planned_run(2, "standard")]


@pytest.fixture
def sweep(mlflow_store: SweepPaths) -> SweepPaths:
    return write_sweep(mlflow_store.root.parent, RUNS)


@pytest.fixture
def client(mlflow_store: SweepPaths) -> MlflowClient:
    return MlflowClient(tracking_uri=uri(mlflow_store))


def sync(sweep: SweepPaths) -> SyncResult:
    """One pass of a new mirror, which knows nothing of earlier ones."""
    return Mirror(sweep, uri(sweep)).sync()


def shown(client: MlflowClient, view: int = ViewType.ACTIVE_ONLY) -> dict[str, Run]:
    """MLflow runs by our id; fails when one id has two runs."""
    experiment = client.get_experiment_by_name("depth")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id], run_view_type=view)
    by_id = {run.data.tags["isoloss.run_id"]: run for run in runs}
    assert len(by_id) == len(runs)
    return by_id


def history(client: MlflowClient, run: Run, key: str) -> list[tuple[int, float]]:
    """Points of one metric by step; the store returns them in no particular order."""
    return sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, key))


def assert_no_doubles(client: MlflowClient) -> None:
    for run in shown(client).values():
        for key in run.data.metrics:
            steps = Counter(step for step, _ in history(client, run, key))
            assert max(steps.values()) == 1, (key, steps.most_common(1))


def test_two_passes_show_every_run_once_with_every_step_once(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    for planned in RUNS:
        finished_run(sweep, planned)
    first, second = sync(sweep), sync(sweep)
    assert (first.n_runs, first.n_final, first.problems) == (3, 3, ())
    assert (second.n_runs, second.n_points, second.n_final, second.problems) == (3, 0, 3, ())
    runs = shown(client)
    assert set(runs) == {run.run_id for run in RUNS}
    assert_no_doubles(client)
    truth = [(step, loss(step)) for step in range(1, STEPS + 1)]
    for run in runs.values():
        assert history(client, run, "train/loss_nats") == truth
        assert run.info.status == "FINISHED"


def test_an_experiment_is_a_sweep_with_flat_named_tagged_runs(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    for planned in RUNS:
        finished_run(sweep, planned)
    sync(sweep)
    experiment = client.get_experiment_by_name("depth")
    assert experiment is not None
    assert experiment.artifact_location == (sweep.mlflow_artifacts / "depth").as_uri()
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    query = "tags.`isoloss.arm` = 'standard' and params.`model.n_layers` = '4'"
    (run,) = client.search_runs([experiment.experiment_id], query)
    assert run.info.run_name == "standard 4x64 1e12 FLOPs seed=2"
    assert run.data.tags["isoloss.run_id"] == RUNS[2].run_id
    assert "mlflow.parentRunId" not in run.data.tags
    assert run.data.params["train.lr"] == "0.003"
    assert run.data.metrics["record/flops"] == RUNS[2].cost.flops


def test_artifacts_hold_configuration_record_and_figures_in_the_results_folder(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    paths = finished_run(sweep, RUNS[0])
    calls: list[str] = []

    def figures(run: Any) -> dict[str, Figure]:
        calls.append(run.run_id)
        return {"curve": Figure()}

    mirror = Mirror(sweep, uri(sweep), figures)
    mirror.sync()
    mirror.sync()
    Mirror(sweep, uri(sweep), figures).sync()
    assert calls == [RUNS[0].run_id]
    mlflow_id = shown(client)[RUNS[0].run_id].info.run_id
    folder = sweep.mlflow_artifacts / "depth" / mlflow_id / "artifacts"
    assert (folder / "record.json").read_bytes() == paths.record.read_bytes()
    assert (folder / "config.yaml").read_bytes() == paths.config.read_bytes()
    assert (folder / "figures" / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_that_fails_is_a_problem_and_the_run_is_complete(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    finished_run(sweep, RUNS[0])

    def figures(run: Any) -> dict[str, Figure]:
        raise ValueError("no diagnostics")

    result = Mirror(sweep, uri(sweep), figures).sync()
    assert result.problems == (f"{RUNS[0].run_id}: no figures (no diagnostics)",)
    assert result.n_final == 1
    assert shown(client)[RUNS[0].run_id].info.status == "FINISHED"


def test_a_running_run_grows_and_ends_in_one_mlflow_run(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    mirror = Mirror(sweep, uri(sweep))
    assert mirror.sync().n_runs == 0
    begin_attempt_here(paths)
    write_steps(paths, 0, 20)
    mirror.sync()
    assert shown(client)[RUNS[0].run_id].info.status == "RUNNING"
    assert len(history(client, shown(client)[RUNS[0].run_id], "train/loss_nats")) == 20
    assert mirror.sync().n_points == 0
    write_steps(paths, 20, STEPS)
    end_run(RUNS[0], paths)
    assert mirror.sync().n_final == 1
    run = shown(client)[RUNS[0].run_id]
    assert run.info.status == "FINISHED"
    assert len(history(client, run, "train/loss_nats")) == STEPS
    assert_no_doubles(client)


@pytest.mark.parametrize("new_mirror", [False, True])
def test_a_resumed_run_keeps_its_mlflow_run_and_doubles_no_step(
    sweep: SweepPaths, client: MlflowClient, new_mirror: bool
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    mirror = Mirror(sweep, uri(sweep))
    begin_attempt(paths)
    write_steps(paths, 0, 40)
    mirror.sync()
    assert shown(client)[RUNS[0].run_id].info.status == "KILLED"
    begin_attempt_here(paths, 2)
    write_steps(paths, 30, 50, 2)
    if new_mirror:
        mirror = Mirror(sweep, uri(sweep))
    mirror.sync()
    assert shown(client)[RUNS[0].run_id].info.status == "RUNNING"
    write_steps(paths, 50, STEPS, 2)
    end_run(RUNS[0], paths)
    mirror.sync()
    run = shown(client)[RUNS[0].run_id]
    assert run.info.status == "FINISHED"
    assert run.data.tags["isoloss.attempt"] == "2"
    assert history(client, run, "train/loss_nats") == [(s, loss(s)) for s in range(1, STEPS + 1)]
    assert_no_doubles(client)


def test_nan_and_infinity_never_reach_the_store(sweep: SweepPaths, client: MlflowClient) -> None:
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt(paths)
    write_steps(paths, 0, 10)
    for step, bad in ((11, math.nan), (12, math.inf), (13, -math.inf)):
        append_jsonl(paths.metrics, train_row(step, loss_nats=bad, grad_norm=bad))
    end_run(RUNS[0], paths, "diverged", reason="diverged: training loss nan not finite at step 13")
    sync(sweep)
    run = shown(client)[RUNS[0].run_id]
    assert history(client, run, "train/loss_nats") == [(s, loss(s)) for s in range(1, 11)]
    assert "record/loss_nats" not in run.data.metrics
    assert run.data.tags["isoloss.status"] == "diverged"
    assert run.info.status == "FINISHED"
    assert all(math.isfinite(value) for value in run.data.metrics.values())


def test_a_failed_run_done_again_loses_its_error(sweep: SweepPaths, client: MlflowClient) -> None:
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt(paths)
    write_steps(paths, 0, 30)
    end_run(RUNS[0], paths, "failed", reason="failed: out of memory", error="out of memory")
    mirror = Mirror(sweep, uri(sweep))
    mirror.sync()
    run = shown(client)[RUNS[0].run_id]
    assert (run.info.status, run.data.tags["isoloss.error"]) == ("FAILED", "out of memory")
    paths.record.unlink()
    begin_attempt_here(paths, 2)
    mirror.sync()
    assert shown(client)[RUNS[0].run_id].info.status == "RUNNING"
    write_steps(paths, 20, STEPS, 2)
    end_run(RUNS[0], paths)
    mirror.sync()
    run = shown(client)[RUNS[0].run_id]
    assert run.info.status == "FINISHED"
    assert "isoloss.error" not in run.data.tags
    assert_no_doubles(client)


def test_an_experiment_deleted_by_hand_comes_back_with_its_runs(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt_here(paths)
    write_steps(paths, 0, 20)
    mirror = Mirror(sweep, uri(sweep))
    mirror.sync()
    experiment = client.get_experiment_by_name("depth")
    assert experiment is not None
    client.delete_experiment(experiment.experiment_id)
    write_steps(paths, 20, STEPS)
    end_run(RUNS[0], paths)
    assert len(mirror.sync().problems) == 1
    assert mirror.sync().problems == ()
    run = shown(client)[RUNS[0].run_id]
    assert len(history(client, run, "train/loss_nats")) == STEPS
    assert_no_doubles(client)


def test_a_run_deleted_by_hand_comes_back(sweep: SweepPaths, client: MlflowClient) -> None:
    finished_run(sweep, RUNS[0])
    sync(sweep)
    client.delete_run(shown(client)[RUNS[0].run_id].info.run_id)
    assert shown(client) == {}
    sync(sweep)
    assert set(shown(client, ViewType.ALL)) == set(shown(client)) == {RUNS[0].run_id}
    assert_no_doubles(client)


def test_an_experiment_created_by_another_process_meanwhile_is_used(
    sweep: SweepPaths, client: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished_run(sweep, RUNS[0])
    theirs = client.create_experiment("depth", sweep.mlflow_artifacts.as_uri())
    answers: Iterator[Callable[..., Any]] = iter([lambda *_: None])
    real = MlflowClient.get_experiment_by_name
    monkeypatch.setattr(MlflowClient, "get_experiment_by_name", lambda *a: next(answers, real)(*a))
    assert sync(sweep).problems == ()
    assert client.search_runs([theirs])[0].data.tags["isoloss.run_id"] == RUNS[0].run_id


def test_one_damaged_record_does_not_keep_the_others_from_mlflow(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    finished_run(sweep, RUNS[0]).record.write_text("{", encoding="utf-8")
    finished_run(sweep, RUNS[1])
    mirror = Mirror(sweep, uri(sweep))
    for _ in range(2):
        result = mirror.sync()
        assert len(result.problems) == 1
        assert "record.json: not a run record" in result.problems[0]
        assert result.reached
    assert set(shown(client)) == {RUNS[1].run_id}


def test_a_stopped_run_that_the_grid_no_longer_wants_is_not_left_running(
    sweep: SweepPaths, client: MlflowClient
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt_here(paths)
    write_steps(paths, 0, 20)
    mirror = Mirror(sweep, uri(sweep))
    write_sweep(sweep.root.parent, RUNS)
    mirror.sync()
    write_sweep(sweep.root.parent, RUNS[1:])
    mirror.sync()
    assert shown(client)[RUNS[0].run_id].info.status == "RUNNING"
    begin_attempt(paths, 2)
    mirror.sync()
    assert shown(client)[RUNS[0].run_id].info.status == "KILLED"


def test_the_mirror_says_nothing_on_the_console(
    sweep: SweepPaths, capfd: pytest.CaptureFixture[str]
) -> None:
    finished_run(sweep, RUNS[0])
    sync(sweep)
    assert capfd.readouterr() == ("", "")
