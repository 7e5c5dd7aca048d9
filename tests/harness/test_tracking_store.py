"""The local MLflow store: built once, by whoever comes first, and refused where it cannot work."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import mirror_database, tracking
from harness.errors import IsolossError, MissingExtraError
from harness.mirror_database import installed_revision
from harness.paths import SweepPaths, sweep_paths
from harness.tracking import create_store

if TYPE_CHECKING:
    from alembic.config import Config

    from tests.harness.tracking_fixtures import Built

pytest_plugins = ("tests.harness.tracking_fixtures",)


@pytest.fixture(autouse=True)
def _no_tracking_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def schema_revision(database: Path) -> str:
    with closing(sqlite3.connect(database)) as store:
        return str(store.execute("SELECT version_num FROM alembic_version").fetchone()[0])


def alembic_config(url: str) -> Config:
    """Where the installed MLflow keeps its migrations."""
    from alembic.config import Config
    from mlflow.store import db_migrations

    folder = Path(db_migrations.__path__[0])
    config = Config(str(folder / "alembic.ini"))
    config.set_main_option("script_location", str(folder))
    config.set_main_option("sqlalchemy.url", url)
    return config


def revisions() -> list[str]:
    """Schema revisions of the installed MLflow from the newest down, as alembic tells them."""
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory.from_config(alembic_config(""))
    return [script.revision for script in scripts.walk_revisions()]


def build_at(database: Path, revision: str) -> None:
    """Build a store as an older MLflow left it."""
    from alembic import command
    from mlflow.store.tracking.dbmodels.initial_models import Base
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{database}")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        config = alembic_config(f"sqlite:///{database}")
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
    engine.dispose()


def test_two_processes_that_create_the_store_at_once_leave_one_that_works(
    built_store: Built,
) -> None:
    assert built_store.exit_codes == [0, 0], "failed, or imported mlflow"
    assert built_store.outputs == [f"sqlite:///{built_store.database}\n"] * 2
    assert schema_revision(built_store.database) == revisions()[0]
    left = sorted(path.name for path in built_store.database.parent.iterdir())
    assert left == [".mlflow.db.build", "mlflow.db"]


def test_a_store_that_is_there_is_left_alone(
    mlflow_store: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = mlflow_store.mlflow_db.stat()
    monkeypatch.setattr(mirror_database, "_build", None)
    assert create_store(mlflow_store) == f"sqlite:///{mlflow_store.mlflow_db}"
    after = mlflow_store.mlflow_db.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_newest_schema_is_found_without_importing_mlflow() -> None:
    assert installed_revision() == revisions()[0]


def test_a_store_of_an_older_mlflow_is_migrated_with_what_it_holds(tmp_path: Path) -> None:
    paths = sweep_paths(tmp_path, "depth")
    build_at(paths.mlflow_db, revisions()[2])
    with closing(sqlite3.connect(paths.mlflow_db)) as old:
        old.execute("INSERT INTO experiments (experiment_id, name) VALUES (7, 'kept')")
        old.commit()
    create_store(paths)
    assert schema_revision(paths.mlflow_db) == revisions()[0]
    with closing(sqlite3.connect(paths.mlflow_db)) as store:
        names = store.execute("SELECT name FROM experiments WHERE experiment_id = 7").fetchall()
    assert names == [("kept",)]


def test_a_file_that_is_no_store_is_named_and_left_alone(tmp_path: Path) -> None:
    paths = sweep_paths(tmp_path, "depth")
    paths.mlflow_db.write_bytes(b"not a database" * 100)
    with pytest.raises(IsolossError, match=r"mlflow\.db: not an MLflow store \(.*\)\. Move"):
        create_store(paths)
    assert paths.mlflow_db.read_bytes() == b"not a database" * 100


@pytest.mark.parametrize("uri", ["file:./mlruns", "file:///tmp/mlruns", "./mlruns", "mlruns"])
def test_a_folder_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    with pytest.raises(IsolossError) as caught:
        create_store(sweep_paths(tmp_path, "depth"))
    assert str(caught.value) == (
        f"MLflow tracking URI '{uri}': a folder cannot be a store (MLflow dropped the file store "
        "in 3.13). Set MLFLOW_TRACKING_URI to a database (sqlite:////absolute/path/mlflow.db, "
        "postgresql://...) or a server (http://host:port), or unset it to use mlflow.db in the "
        "results folder."
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "uri", ["http://login1:5000", "https://mlflow.example.org", "databricks://profile"]
)
def test_the_environment_chooses_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert create_store(sweep_paths(tmp_path, "depth")) == uri
    assert not list(tmp_path.iterdir())


def test_a_relative_database_of_the_environment_becomes_absolute(
    mlflow_store: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mlflow_store.root.parent)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert create_store(mlflow_store) == f"sqlite:///{mlflow_store.mlflow_db}"


def test_without_mlflow_the_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install -e '.\[train\]'"):
        create_store(sweep_paths(tmp_path, "depth"))
