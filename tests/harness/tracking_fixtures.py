"""Fixtures of the MLflow tests: a store built once, copied for each test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.paths import SweepPaths, sweep_paths

CREATE_STORE = (
    "import sys; from pathlib import Path; from harness.paths import sweep_paths; "
    "from harness.tracking import create_store; "
    "print(create_store(sweep_paths(Path(sys.argv[1]), 'depth'))); "
    "sys.exit('mlflow' in sys.modules)"
)
"""Fails when creating the store imports MLflow into the process."""


@dataclass(frozen=True)
class Built:
    """A store, and how the two processes fared that created it at once."""

    database: Path
    exit_codes: list[int]
    outputs: list[str]


@pytest.fixture(scope="session")
def built_store(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """A store built once for all tests, as its building takes seconds."""
    results = tmp_path_factory.mktemp("store")
    environment = {k: v for k, v in os.environ.items() if k != "MLFLOW_TRACKING_URI"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", CREATE_STORE, str(results)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in both]
    return Built(results / "mlflow.db", [process.returncode for process in both], outputs)


@pytest.fixture
def mlflow_store(built_store: Built, tmp_path: Path) -> SweepPaths:
    """Paths of a sweep in a results folder of its own that has an empty store."""
    paths = sweep_paths(tmp_path / "results", "depth")
    paths.root.mkdir(parents=True)
    shutil.copy(built_store.database, paths.mlflow_db)
    return paths
