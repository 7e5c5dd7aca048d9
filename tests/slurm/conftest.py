"""One real cluster for each test module that wants one, and no job of it left between tests.

A module says what its cluster looks like by ``CLUSTER = Settings(...)``. Where Slurm is absent its
tests are skipped, with what to do; with ``ISOLOSS_REQUIRE_SLURM=1``, as in CI, they fail instead.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.install import HOW, missing

Wrap = Callable[[str, str], None]


@pytest.fixture(scope="session")
def slurm_installed() -> None:
    """Skip, or fail where Slurm is required."""
    absent = missing()
    if not absent:
        return
    reason = f"needs a Slurm to test against ({', '.join(absent)} missing): {HOW}"
    if os.environ.get("ISOLOSS_REQUIRE_SLURM") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="module")
def slurm(request: pytest.FixtureRequest, slurm_installed: None) -> Iterator[Cluster]:
    """The module's cluster; this process and its children are its clients."""
    settings = getattr(request.module, "CLUSTER", Settings())
    with Cluster(settings) as cluster, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("SLURM_", "SBATCH_"))]:
            patch.delenv(name)
        for name, value in cluster.environment.items():
            patch.setenv(name, value)
        yield cluster


@pytest.fixture(autouse=True)
def _no_jobs_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "slurm" in request.fixturenames:
        request.getfixturevalue("slurm").clear()


@pytest.fixture
def wrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrap:
    """Put a shell script before one of Slurm's commands; ``$REAL`` is the real one, ``$N`` how
    often it was called before.
    """

    def write(command: str, script: str) -> None:
        folder = tmp_path / "wrappers"
        folder.mkdir(exist_ok=True)
        calls, wrapper = folder / f"{command}.calls", folder / command
        counting = f"N=$(wc -l < {calls})\necho >> {calls}\nREAL={shutil.which(command)}\n"
        calls.touch()
        wrapper.write_text(f"#!/bin/sh\n{counting}{script}\n")
        wrapper.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    return write
