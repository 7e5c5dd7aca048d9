"""The MLflow mirror in a PostgreSQL database that it opens itself, without a server before it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mlflow import MlflowClient

from harness import mirror
from harness.errors import IsolossError
from harness.mirror import Mirror
from harness.mirror_database import installed_revision
from harness.paths import sweep_paths
from harness.tracking import create_store, patient, shown_uri
from tests.harness.tracking_servers import (
    PATIENCE_S,
    Postgres,
    free_port,
    postgres_driver,
    wait_for,
)
from tests.harness.tracking_sweep import (
    STEPS,
    begin_attempt_here,
    end_run,
    finished_run,
    planned_run,
    write_steps,
    write_sweep,
)
from tests.harness.tracking_truth import assert_mirrored, runs_of

if TYPE_CHECKING:
    from sqlalchemy import Engine

    from tests.harness.tracking_fixtures import Built

pytest_plugins = ("tests.harness.tracking_fixtures",)
RUNS = [planned_run(0), planned_run(1)]


def engine(uri: str) -> Engine:
    from sqlalchemy import create_engine

    return create_engine(uri)


def revision(uri: str) -> str:
    with engine(uri).connect() as connection:
        return str(connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar())


def test_two_processes_that_create_the_tables_at_once_leave_a_store_that_works(
    built_postgres: Built, postgres_uri: str
) -> None:
    assert built_postgres.exit_codes == [0, 0], "failed, or imported mlflow"
    assert len(set(built_postgres.outputs)) == 1
    assert built_postgres.outputs[0].startswith("postgresql+psycopg2://")
    assert revision(postgres_uri) == installed_revision()
    assert MlflowClient(postgres_uri).search_experiments()[0].name == "Default"


def test_a_database_that_crashes_while_a_sweep_is_mirrored_ends_up_complete(
    postgres: Postgres,
    postgres_uri: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(mirror, "LONGEST_PAUSE_S", 1.0)
    sweep = write_sweep(tmp_path / "results", RUNS)
    paths = sweep.run(RUNS[0].run_id)
    begin_attempt_here(paths)
    write_steps(paths, 0, STEPS // 2)
    client, stop = MlflowClient(postgres_uri), threading.Event()
    follower = threading.Thread(target=Mirror(sweep, postgres_uri).follow, args=(stop.is_set, 0.2))
    follower.start()
    try:
        wait_for(lambda: runs_of(client, "depth"))
        postgres.stop()
        write_steps(paths, STEPS // 2, STEPS)
        end_run(RUNS[0], paths)
        finished_run(sweep, RUNS[1])
        wait_for(lambda: "does not answer" in caplog.text)
    finally:
        postgres.start()
        stop.set()
        follower.join(PATIENCE_S)
    assert not follower.is_alive()
    assert_mirrored(client, sweep, RUNS, tmp_path)
    assert Mirror(sweep, postgres_uri).sync().n_points == 0


def test_a_database_of_another_mlflow_is_refused_and_left_as_it_is(
    postgres_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(postgres_uri).begin() as connection:
        connection.exec_driver_sql("UPDATE alembic_version SET version_num = 'abc123'")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres_uri)
    with pytest.raises(IsolossError, match=r"its schema \(abc123\) is not that of the installed"):
        create_store(sweep_paths(tmp_path, "depth"))
    sweep = write_sweep(tmp_path, RUNS)
    (problem,) = Mirror(sweep, postgres_uri).sync().problems
    assert "mlflow db upgrade" in problem
    assert revision(postgres_uri) == "abc123"


def test_a_database_that_is_away_stops_nothing_and_its_password_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    postgres_driver()
    uri = f"postgresql+psycopg2://me:secret@127.0.0.1:{free_port()}/db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    sweep = write_sweep(tmp_path, RUNS)
    assert create_store(sweep) == uri
    result = Mirror(sweep, uri).sync()
    assert not result.reached
    (problem,) = result.problems
    assert problem.startswith(f"MLflow at {shown_uri(uri)} does not answer (")
    assert "secret" not in problem
    assert "\n" not in problem


def test_a_driver_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+pg8000://me:secret@host/db")
    with pytest.raises(IsolossError, match="no module named 'pg8000'") as caught:
        create_store(sweep_paths(tmp_path, "depth"))
    assert "secret" not in str(caught.value)


def test_connections_end_when_the_other_side_falls_silent(postgres_uri: str) -> None:
    with engine(patient(postgres_uri)).connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, postgres_driver().extensions.connection)
        told = driver.get_dsn_parameters()
    assert (told["keepalives_idle"], told["tcp_user_timeout"]) == ("30", "60000")


def test_limits_of_the_uri_itself_are_kept() -> None:
    given = "postgresql+psycopg2://host/db?connect_timeout=3"
    assert patient(given).startswith(f"{given}&keepalives_idle=30&")
    assert patient(given).count("connect_timeout") == 1


@pytest.mark.parametrize(
    "uri", ["http://host:5000", "sqlite:////a/b.db", "mysql+pymysql://host/db"]
)
def test_other_stores_are_addressed_as_they_are(uri: str) -> None:
    assert patient(uri) == uri


def test_a_bare_postgresql_uri_names_the_driver_that_is_installed() -> None:
    postgres_driver()
    assert patient("postgresql://host/db").startswith("postgresql+psycopg")
