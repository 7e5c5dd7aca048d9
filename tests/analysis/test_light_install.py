"""The base install in a clean environment: no torch, no MLflow, and `isoloss fit` works.

The environment holds the package as built and installed by pip, and of all else only what its base
dependencies declare, linked from the environment of the tests: nothing is downloaded twice.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGED = ("harness", "recipes", "analysis")
HEAVY = ("torch", "lightning", "mlflow", "optuna", "tokenizers")


def test_a_base_install_fits_a_table_without_torch(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for package in PACKAGED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, checkout / package, ignore=ignored)
    for file in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt"):
        shutil.copy(ROOT / file, checkout / file)
    environment = tmp_path / "env"
    run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    python = str(environment / "bin" / "python")
    (packages,) = environment.glob("lib/python3*/site-packages")
    quiet = ("--quiet", "--disable-pip-version-check", "--no-deps")
    run(sys.executable, "-m", "pip", *("--python", python), "install", *quiet, str(checkout))
    for name in base_requirements():
        link_into(packages, name)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    found = run(
        python,
        "-c",
        f"from importlib.util import find_spec; print([m for m in {HEAVY!r} if find_spec(m)])",
        cwd=elsewhere,
    )
    assert found.strip() == "[]"

    isoloss = str(environment / "bin" / "isoloss")
    table = ROOT / "tests" / "data" / "attnres_kimi2026" / "table2_losses.csv"
    text = run(isoloss, "fit", str(table), cwd=elsewhere)
    for interval in ("1.239 [1.187, 1.295]", "1.306 [1.237, 1.383]", "1.264 [1.220, 1.312]"):
        assert interval in text
    report = run(isoloss, "fit", str(table), "-o", "out", cwd=elsewhere)
    assert f"report: {elsewhere / 'out' / 'report.html'}" in report
    written = {path.name for path in (elsewhere / "out").iterdir()}
    assert written >= {"report.html", "runs.parquet", "fits.json", "laws.json", "tables", "figures"}
    assert json.loads((elsewhere / "out" / "laws.json").read_text())["n_used"] == 20

    store = subprocess.run(
        [isoloss, "fit", "mlflow:http://localhost:1#x"],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        env=clean(),
    )
    assert store.returncode == 2
    assert "pip install -e '.[mlflow]'" in store.stderr


def base_requirements() -> set[str]:
    """What pip would install for the base dependencies, markers heeded."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    found: set[str] = set()
    todo = [Requirement(text) for text in declared]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found.add(name)
        todo += [Requirement(text) for text in metadata.distribution(name).requires or ()]
    return found


def link_into(packages: Path, name: str) -> None:
    """Link the files of one installed distribution."""
    installed = metadata.distribution(name)
    for top in {file.parts[0] for file in installed.files or () if file.parts[0] != ".."}:
        if top != "__pycache__" and not (packages / top).exists():
            (packages / top).symlink_to(Path(str(installed.locate_file(top))))


def run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean())
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def clean() -> dict[str, str]:
    """The environment without what points at the checkout under test."""
    dropped = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if name not in dropped}
