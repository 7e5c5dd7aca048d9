"""What one mirror leaves behind for the next, so that taking over costs what has changed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mlflow import MlflowClient

from harness.mirror import Mirror
from harness.mirror_memory import recall, remember
from harness.mirror_pass import Pusher
from harness.paths import SweepPaths
from tests.harness.tracking_sweep import begin_attempt, end_run, finished_run, planned_run, uri
from tests.harness.tracking_sweep import write_sweep as write_sweep_of
from tests.harness.tracking_truth import assert_mirrored, runs_of

if TYPE_CHECKING:
    from tests.harness.tracking_fixtures import Built

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(number) for number in range(4)]
MEMORY = "mirrored.json"


@pytest.fixture
def sweep(mlflow_store: SweepPaths) -> SweepPaths:
    """A sweep of which two runs have ended and are mirrored."""
    paths = write_sweep_of(mlflow_store.root.parent, RUNS)
    for run in RUNS[:2]:
        finished_run(paths, run)
    follow(paths)
    return paths


@pytest.fixture
def client(mlflow_store: SweepPaths) -> MlflowClient:
    return MlflowClient(tracking_uri=uri(mlflow_store))


@pytest.fixture
def conditions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Conditions of all searches for runs; empty ones ask for every run of the sweep."""
    search, asked = MlflowClient.search_runs, []

    def recorded(self: MlflowClient, *args: Any, **kwargs: Any) -> Any:
        asked.extend(args[1:])
        return search(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "search_runs", recorded)
    return asked


def follow(sweep: SweepPaths) -> None:
    """A mirror that follows the sweep and is stopped at once."""
    Mirror(sweep, uri(sweep)).follow(lambda: True)


def test_a_successor_asks_for_nothing_that_is_complete(
    sweep: SweepPaths, client: MlflowClient, conditions: list[str], tmp_path: Path
) -> None:
    finished_run(sweep, RUNS[2])
    follow(sweep)
    assert conditions == [
        "attributes.status = 'RUNNING'",
        f"tags.`isoloss.run_id` = '{RUNS[2].run_id}'",
    ]
    assert_mirrored(client, sweep, RUNS[:3], tmp_path)


def test_a_record_made_anew_is_not_taken_for_the_one_remembered(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    paths = sweep.run(RUNS[0].run_id)
    paths.record.unlink()
    begin_attempt(paths, 2)
    end_run(RUNS[0], paths)
    follow(sweep)
    assert_mirrored(client, sweep, RUNS[:2], tmp_path)


def test_a_store_made_anew_is_filled_whatever_is_remembered_of_the_old_one(
    sweep: SweepPaths, built_store: Built, tmp_path: Path
) -> None:
    assert (sweep.mirror_terms / MEMORY).exists()
    fresh = sweep.mlflow_db.with_name("other.db")
    shutil.copy(built_store.database, fresh)
    other = f"sqlite:///{fresh}"
    Mirror(sweep, other).follow(lambda: True)
    assert_mirrored(MlflowClient(other), sweep, RUNS[:2], tmp_path)


def test_a_store_deleted_under_a_mirror_at_work_is_built_and_filled_again(
    sweep: SweepPaths, client: MlflowClient, tmp_path: Path
) -> None:
    pusher = Pusher(sweep, uri(sweep), None, lambda: None, trusting=True)
    assert pusher.run(lambda: False).n_final == 2
    sweep.mlflow_db.unlink()
    assert pusher.run(lambda: False).problems == ()
    fresh = f"sqlite:///{sweep.root.parent}/./mlflow.db"  # a client that has not seen the old file
    assert_mirrored(MlflowClient(fresh), sweep, RUNS[:2], tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"store": 1, "mirrored": []}'])
def test_without_a_readable_memory_every_run_is_asked_for(
    sweep: SweepPaths, conditions: list[str], text: str
) -> None:
    (sweep.mirror_terms / MEMORY).write_text(text, encoding="utf-8")
    follow(sweep)
    assert conditions == [""]


def test_a_run_deleted_by_hand_comes_back_when_all_are_looked_at(
    sweep: SweepPaths, client: MlflowClient, conditions: list[str], tmp_path: Path
) -> None:
    client.delete_run(runs_of(client, "depth")[RUNS[0].run_id].info.run_id)
    follow(sweep)
    assert set(runs_of(client, "depth")) == {RUNS[1].run_id}
    Mirror(sweep, uri(sweep)).sync()
    assert_mirrored(client, sweep, RUNS[:2], tmp_path)


def test_a_memory_is_of_one_store(tmp_path: Path) -> None:
    store = ("http://host", "7", 1795946400000)
    remember(tmp_path, store, {"a": "b"})
    assert recall(tmp_path, store) == {"a": "b"}
    assert recall(tmp_path, ("http://host", "7", 1795946400001)) is None
    assert recall(tmp_path / "nowhere", store) is None
