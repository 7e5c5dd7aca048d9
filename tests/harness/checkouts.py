"""Checkouts of the packages in repositories of their own, for the tests of snapshots."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("harness", "recipes", "analysis")
THEIRS = """
from recipes.base import Options, Residual, ResidualCost, Shape
from theirs.helper import VALUE


class Theirs(Residual):
    equation = "u = R"
    source = "nobody"

    @classmethod
    def cost(cls, shape: Shape, options: Options) -> ResidualCost:
        return ResidualCost(0, 0, VALUE, 0)
"""
"""A recipe of somebody else, in a package that also holds what it needs."""


def copy_packages(folder: Path) -> Path:
    """Copy the packages as they are here, without what Python derived from them."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def checkout(folder: Path) -> Path:
    """Commit such a copy to a repository of its own."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "trunk")
    copy_packages(folder)
    (folder / ".gitignore").write_text("__pycache__/\nresults/\n")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    git(folder, *who, "commit", "-q", "--no-verify", "-m", "state")


def git(folder: Path, *arguments: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    )
    return told.stdout.strip()


def write_theirs(folder: Path) -> Path:
    """Write the package of somebody else, to be imported from ``folder``."""
    package = folder / "theirs"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("VALUE = 1\n")
    (package / "recipe.py").write_text(THEIRS)
    (package / "table.json").write_text("{}")
    return folder


def python(code: str, cwd: Path, *folders: Path, env: Mapping[str, str] | None = None) -> str:
    """Run a program that imports from ``folders`` first, and return what it printed."""
    where = {"PYTHONPATH": os.pathsep.join(map(str, folders))} if folders else {}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **where, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
