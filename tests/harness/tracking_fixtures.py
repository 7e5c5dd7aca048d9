"""Fixtures of the MLflow tests: stores built once, copied for each test; servers over them."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.paths import SweepPaths, sweep_paths
from tests.harness.tracking_servers import (
    Postgres,
    TrackingServer,
    postgres_driver,
    private_postgres,
)

CREATE_STORE = (
    "import sys; from pathlib import Path; from harness.paths import sweep_paths; "
    "from harness.tracking import create_store; "
    "print(create_store(sweep_paths(Path(sys.argv[1]), 'depth'))); "
    "sys.exit('mlflow' in sys.modules)"
)
"""Fails when creating the store imports MLflow into the process."""
TEMPLATE = "built"
_numbers = itertools.count()


@dataclass(frozen=True)
class Built:
    """A store, and how the two processes fared that created it at once."""

    results: Path
    exit_codes: list[int]
    outputs: list[str]

    @property
    def database(self) -> Path:
        return self.results / "mlflow.db"


def create_at_once(results: Path, uri: str | None) -> Built:
    """Let two processes create a store that both find missing."""
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE_STORE, str(results)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment | ({"MLFLOW_TRACKING_URI": uri} if uri else {}),
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    return Built(results, [process.returncode for process in both], outputs)


@pytest.fixture(scope="session")
def built_store(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A local store built once for all tests, as its building takes seconds."""
    return create_at_once(tmp_path_factory.mktemp("store"), None)


@pytest.fixture
def mlflow_store(built_store: Built, tmp_path: Path) -> SweepPaths:
    """Paths of a sweep in a results folder of its own that has an empty store."""
    paths = sweep_paths(tmp_path / "results", "depth")
    paths.root.mkdir(parents=True)
    shutil.copy(built_store.database, paths.mlflow_db)
    return paths


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of our own; skips, or fails where it is required, when there is none."""
    with private_postgres() as database:
        yield database


@pytest.fixture(scope="session")
def built_postgres(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A database with MLflow's tables, from which others are copied."""
    postgres_driver()
    uri = postgres.new_database(TEMPLATE)
    return create_at_once(tmp_path_factory.mktemp("postgres"), uri)


@pytest.fixture
def postgres_uri(postgres: Postgres, built_postgres: Built) -> str:
    """An empty MLflow store in PostgreSQL."""
    return postgres.new_database(f"store{next(_numbers)}", TEMPLATE)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def tracking_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrackingServer]:
    """An ``mlflow server`` over either database, for all tests of a module; not yet started."""
    folder = tmp_path_factory.mktemp("server")
    if request.param == "postgresql":
        request.getfixturevalue("built_postgres")
        database: Postgres = request.getfixturevalue("postgres")
        store = database.new_database(f"server{next(_numbers)}", TEMPLATE)
    else:
        shutil.copy(request.getfixturevalue("built_store").database, folder / "mlflow.db")
        store = f"sqlite:///{folder / 'mlflow.db'}"
    server = TrackingServer(store, folder)
    try:
        yield server
    finally:
        server.kill()
