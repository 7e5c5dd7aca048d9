"""Two people and one results folder: with and without the right to write in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

GRID = """
sweep: shared
base:
  residual: standard
  model: {n_layers: 2, d_model: 32, head_dim: 16}
  data: {corpus: sotu, seq_len: 32}
  train: {budget: {tokens: 2560}, batch_tokens: 256, eval_tokens: 1024}
seeds: [0, 1]
mlflow: {mode: off}
"""


# Without its capabilities, root is a user like any other to whom a file may belong or not.
ORDINARY = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--"]


class Folder:
    """A folder with a grid and results."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "grid.yaml").write_text(GRID)

    def belongs_to_somebody_else(self) -> None:
        self.root.chmod(0o755)
        subprocess.run(["chown", "-R", "nobody:nogroup", str(self.root)], check=True)

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*ORDINARY, sys.executable, "-m", "harness.cli", *arguments]
        return subprocess.run(
            [*command, "--results", "results"],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=self.root,
        )


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs the right to give files to another user")
    return Folder(tmp_path)


@pytest.mark.slow
def test_another_user_may_look_is_told_what_cannot_be_written_and_goes_on_where_it_can(
    folder: Folder,
) -> None:
    assert folder.call("run", "grid.yaml", "--limit", "1").returncode == 1
    folder.belongs_to_somebody_else()
    looked = folder.call("status", "shared")
    assert looked.returncode == 0, looked.stderr
    assert "1 done" in looked.stdout
    refused = folder.call("run", "grid.yaml")
    assert refused.returncode == 2
    assert "Permission denied" in refused.stderr
    assert "results" in refused.stderr
    assert "Traceback" not in refused.stderr
    subprocess.run(["chmod", "-R", "a+rwX", str(folder.root)], check=True)
    done = folder.call("run", "grid.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 new, 1 done" in done.stdout
