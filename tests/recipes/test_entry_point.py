"""A variant of somebody else: built as a package, installed, found by its entry point, trained."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.paths import SweepPaths
from harness.records import read_manifest, read_record
from harness.scaffold import write_package

GRID = """
sweep: theirs
base:
  residual: standard
  model: {n_layers: 2, d_model: 16, head_dim: 8}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 1024}, batch_tokens: 128, eval_tokens: 512}
axes: {residual: [theirs, {name: theirs, initial_weight: 0.5}]}
execution: {n_evals: 1, n_diagnostics: 1}
mlflow: {mode: "off"}
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("theirs")
    write_package("theirs", folder)
    return folder


@pytest.fixture(scope="module")
def environment(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment with the package installed for real, and without its sources in sight."""
    site = tmp_path_factory.mktemp("site")
    offline = ["--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    call("-m", "pip", "install", "-q", *offline, "--target", site, package, cwd=package)
    assert (site / "isoloss_theirs.py").is_file()
    return {**os.environ, "PYTHONPATH": str(site)}


def call(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    arguments = [sys.executable, *map(str, command)]
    done = subprocess.run(arguments, cwd=cwd, env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


COMMANDS = """
import sys
from harness.cli import app
app(["recipes", "theirs"], standalone_mode=False)
app(["plan", sys.argv[1]], standalone_mode=False)
"""


@pytest.mark.slow
def test_a_grid_trains_it_like_a_recipe_of_ours(
    environment: dict[str, str], tmp_path: Path
) -> None:
    grid = tmp_path / "grid.yaml"
    grid.write_text(GRID)
    shown = call("-c", COMMANDS, grid, cwd=tmp_path, env=environment)
    assert "equation: u_t = R_t, R_{t+1} = R_t + w_t y_t" in shown
    assert "initial_weight" in shown
    assert "2 runs: 2 new" in shown
    call("-m", "harness.cli", "run", grid, "--workers", "1", cwd=tmp_path, env=environment)
    sweep = SweepPaths(tmp_path / "results" / "theirs")
    records = [read_record(sweep.run(run.run_id).record) for run in read_manifest(sweep).runs]
    assert [record and record.status for record in records] == ["done", "done"]


@pytest.mark.slow
def test_its_own_tests_pass_and_run_our_contract_suite_on_it(
    package: Path, environment: dict[str, str]
) -> None:
    told = call(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", package, cwd=package, env=environment
    )
    assert "2 passed" in told
