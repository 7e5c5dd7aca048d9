"""The README keeps what it promises: its links, its grid, its commands, its length."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from recipes.base import available

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_relative_link_resolves() -> None:
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    for link in links:
        if not link.startswith("http"):
            assert (ROOT / link).exists(), link


def test_it_stays_under_250_lines() -> None:
    assert len(README.splitlines()) < 250


def test_its_grid_is_a_grid(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    grid = tmp_path / "my.yaml"
    grid.write_text(block, encoding="utf-8")
    command = [sys.executable, "-m", "harness.cli", "plan", str(grid), "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_every_command_it_names_exists() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "harness.cli", "--help"], capture_output=True, text=True, cwd=ROOT
    ).stdout
    named = set(re.findall(r"isoloss ([a-z][a-z-]+)", README)) - {"answers"}
    assert len(named) > 8
    assert all(command in shown for command in named), named


def test_every_recipe_has_a_row() -> None:
    ours = [name for name, cls in available().items() if cls.__module__.startswith("recipes.")]
    assert all(f"| `{name}` |" in README for name in ours)
