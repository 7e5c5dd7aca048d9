"""The rules of the house, checked on the source: imports point one way, files and functions stay
small.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("harness", "recipes", "analysis")
ALLOWED = {
    "recipes": {"recipes"},
    "harness": {"harness", "recipes"},
    "analysis": {"analysis", "harness"},
}
ANALYSIS_MAY_USE = {
    *("harness.records", "harness.paths", "harness.cost", "harness.errors", "harness.tuned")
}
TRAINING_LIBRARIES = {"torch", "lightning", "mlflow", "optuna"}
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 80


def sources(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def ours(module: str) -> bool:
    return module.split(".")[0] in PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_point_one_way(package: str) -> None:
    for path in sources(package):
        allowed = set(ALLOWED[package])
        if path.parent == ROOT / "harness" and path.stem.startswith("cli"):
            allowed.add("analysis")
        found = {module.split(".")[0] for module in imports(path) if ours(module)}
        assert found <= allowed, f"{path.relative_to(ROOT)} imports {sorted(found - allowed)}"


def test_analysis_uses_only_what_runs_leave_behind() -> None:
    for path in sources("analysis"):
        used = [m for m in imports(path) if m.startswith("harness.")]
        for module in used:
            assert ".".join(module.split(".")[:2]) in ANALYSIS_MAY_USE, f"{path}: {module}"
        assert not TRAINING_LIBRARIES & {m.split(".")[0] for m in imports(path)}, path


def test_recipes_know_torch_and_pydantic_only() -> None:
    standard = set(sys.stdlib_module_names)
    for path in sources("recipes"):
        used = {module.split(".")[0] for module in imports(path)} - standard
        assert used <= {"torch", "pydantic", "recipes"}, path


def test_the_backbone_knows_no_recipe_by_name() -> None:
    names = {path.stem for path in sources("recipes")} - {"__init__", "base"}
    for file in ("model.py", "layers.py", "training.py", "module.py", "cost.py"):
        text = (ROOT / "harness" / file).read_text(encoding="utf-8")
        strings = {
            node.value
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not names & strings, f"{file} names {names & strings}"


@pytest.mark.parametrize("package", [*PACKAGES, "tests"])
def test_files_and_functions_stay_small(package: str) -> None:
    for path in sources(package):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) <= MAX_FILE_LINES, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
                length = node.end_lineno - node.lineno + 1
                assert length <= MAX_FUNCTION_LINES, f"{path}: {node.name} has {length} lines"


@pytest.mark.parametrize(
    "statement",
    ["import harness.cli", "import analysis.page.report", "import harness.status, harness.yaml12"],
)
def test_light_commands_load_no_training_library(statement: str) -> None:
    check = f"{statement}; import sys; print(sorted({TRAINING_LIBRARIES!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
