"""`isoloss new-recipe`: what it writes passes at once, is clean, and is all there or not at all."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.errors import IsolossError
from harness.scaffold import MAX_NAME, write_in_checkout, write_package

ROOT = Path(__file__).resolve().parents[2]
LONGEST = ("abcdefghi_" * 5)[: MAX_NAME - 1] + "z"
TERM = "self.weights[t] * output"
LOOP_TERM = "weight * output"
LOOP_TEST = "test_it_computes_its_equation"


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def python(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """As little as makes a folder a checkout."""
    for file in ("recipes/base.py", "tests/recipes/contract.py"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("Not A Name", "use snake_case of at most 40 letters and digits, such as my_residual"),
        ("MyResidual", "use snake_case"),
        ("_hidden", "use snake_case"),
        ("two__bars", "use snake_case"),
        ("élan", "use snake_case"),
        ("../evil", "use snake_case"),
        (LONGEST + "z", "use snake_case"),
        ("", "use snake_case"),
        ("lambda", "it is a word of Python or YAML"),
        ("null", "it is a word of Python or YAML"),
        ("residual", "its class Residual would hide a name that recipes import"),
        ("standard", "the recipe 'standard' exists already"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused_and_nothing_written(
    name: str, reason: str, checkout: Path
) -> None:
    before = files_in(checkout)
    for write in (lambda: write_in_checkout(name, checkout), lambda: write_package(name, checkout)):
        with pytest.raises(IsolossError, match=re.escape(reason)):
            write()
    assert files_in(checkout) == before


@pytest.mark.parametrize("taken", ["recipes/mine.py", "tests/recipes/test_mine.py"])
def test_a_file_that_exists_is_kept_and_its_pair_not_written(taken: str, checkout: Path) -> None:
    (checkout / taken).write_text("mine\n")
    before = files_in(checkout)
    with pytest.raises(IsolossError, match=f"{taken} exists already; nothing was written"):
        write_in_checkout("mine", checkout)
    assert files_in(checkout) == before
    assert (checkout / taken).read_text() == "mine\n"


@pytest.mark.parametrize("taken", ["pyproject.toml", "isoloss_mine.py", "tests/test_mine.py"])
def test_a_package_writes_over_nothing(taken: str, tmp_path: Path) -> None:
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).touch()
    before = files_in(tmp_path)
    with pytest.raises(IsolossError, match=f"{taken} exists already"):
        write_package("mine", tmp_path)
    assert files_in(tmp_path) == before


def test_what_was_written_before_a_failure_is_taken_away_again(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "tests").touch()  # a file where a folder must be
    with pytest.raises(IsolossError, match="nothing was written"):
        write_package("mine", package)
    assert files_in(package) == {"tests"}
    with pytest.raises(IsolossError, match="nothing was written"):
        write_package("mine", package / "tests" / "deeper")


def test_outside_a_checkout_it_says_where_to_run(tmp_path: Path) -> None:
    with pytest.raises(IsolossError, match=r"root of a checkout of isoloss, or give --package DIR"):
        write_in_checkout("mine", tmp_path)
    assert files_in(tmp_path) == set()


@pytest.mark.parametrize("name", ["a1", LONGEST])
def test_what_it_writes_is_in_the_style_of_the_project(name: str, checkout: Path) -> None:
    written = [*write_in_checkout(name, checkout).files]
    written += [p for p in write_package(name, checkout / "package").files if p.suffix == ".py"]
    for command in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        config = ["--config", ROOT / "pyproject.toml"]
        done = python("ruff", *command, *config, *written, cwd=checkout)
        assert done.returncode == 0, done.stdout


@pytest.fixture
def copy_of_the_checkout(tmp_path: Path) -> Path:
    """What of the checkout a recipe's author works with; the harness stays where it is."""
    folder = tmp_path / "checkout"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "recipes", folder / "recipes", ignore=ignored)
    shutil.copytree(ROOT / "tests" / "recipes", folder / "tests" / "recipes", ignore=ignored)
    for file in ("pyproject.toml", "tests/__init__.py", "tests/test_readme.py"):
        shutil.copy(ROOT / file, folder / file)
    return folder


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_a_new_recipe_passes_at_once_and_its_loop_notices_a_changed_equation(
    copy_of_the_checkout: Path,
) -> None:
    folder = copy_of_the_checkout
    done = python("harness.cli", "new-recipe", "kept", cwd=folder)
    assert done.returncode == 0, done.stderr
    for name in ("edited", "wrong"):
        write_in_checkout(name, folder)
        replace(folder / "recipes" / f"{name}.py", f"state + {TERM}", f"state - {TERM}")
    test = folder / "tests" / "recipes" / "test_edited.py"
    replace(test, f"stream + {LOOP_TERM}", f"stream - {LOOP_TERM}")
    loops = [f"tests/recipes/test_{name}.py::{LOOP_TEST}" for name in ("edited", "wrong")]
    suites = ["tests/recipes/test_kept.py", *loops]
    done = python("pytest", "-q", "-p", "no:cacheprovider", *suites, cwd=folder)
    failed = re.findall(r"FAILED tests/recipes/(\S+)", done.stdout)
    assert failed == [f"test_wrong.py::{LOOP_TEST}"], done.stdout[-3000:]
    n_passed = int(re.findall(r"(\d+) passed", done.stdout)[0])
    assert n_passed > 20, "the contract suite ran, too"


def test_the_row_that_it_prints_is_the_one_that_the_readme_needs(
    copy_of_the_checkout: Path,
) -> None:
    folder = copy_of_the_checkout
    rows = [f"| `{path.stem}` | reads | paper |" for path in (folder / "recipes").glob("*.py")]
    steps = write_in_checkout("mine", folder).next_steps
    rows += [line.strip() for step in steps for line in step.splitlines() if line.endswith("|")]
    assert sum("`mine`" in row for row in rows) == 1
    (folder / "README.md").write_text("\n".join(rows))
    asks = ("tests/test_readme.py", "-k", "every_recipe_has_a_row")
    done = python("pytest", "-q", "-p", "no:cacheprovider", *asks, cwd=folder)
    assert done.returncode == 0, done.stdout
