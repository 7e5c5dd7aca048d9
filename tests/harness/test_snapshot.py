"""The copy of the code that workers run: taken once, complete, and proof against edits."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.snapshot import import_environment, mixed_code
from tests.harness.checkouts import (
    PACKAGES,
    checkout,
    commit,
    copy_packages,
    git,
    python,
    write_theirs,
)

TAKE = """
import json, sys
from pathlib import Path
from harness.paths import SweepPaths
from harness.snapshot import import_environment, take_snapshot
made = take_snapshot(SweepPaths(Path({sweep!r})), {recipes!r})
print(json.dumps([str(made), import_environment(made)]))
"""
FACTS = "import json; from harness.snapshot import code_facts; print(json.dumps(code_facts()))"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return checkout(tmp_path / "checkout")


def take(
    repository: Path, *folders: Path, recipes: Sequence[str] = ("standard",)
) -> tuple[Path, dict[str, str]]:
    """Take a snapshot in a process that runs the checkout's code."""
    code = TAKE.format(sweep=str(repository.parent / "sweep"), recipes=list(recipes))
    made, environment = json.loads(python(code, repository, repository, *folders))
    return Path(made), environment


def about(snapshot: Path) -> dict[str, object]:
    told = json.loads((snapshot / "snapshot.json").read_text())
    assert isinstance(told, dict)
    return told


def append(path: Path, line: str) -> None:
    path.write_text(f"{path.read_text()}{line}\n")


LOOK = """
import importlib.util, json
import harness.errors, theirs.helper
origins = [importlib.util.find_spec(n).origin for n in ("harness", "recipes.standard", "analysis")]
print(json.dumps([hasattr(harness.errors, "EDITED"), theirs.helper.VALUE, *origins]))
"""


def test_editing_code_while_jobs_wait_changes_nothing_for_them(
    repository: Path, tmp_path: Path
) -> None:
    foreign = write_theirs(tmp_path / "foreign")
    snapshot, environment = take(repository, foreign, recipes=["standard", "theirs.recipe:Theirs"])
    append(repository / "harness" / "errors.py", "EDITED = True")
    (foreign / "theirs" / "helper.py").write_text("VALUE = 2\n")
    # The live checkout is the current directory, is on PYTHONPATH, and may be installed editable.
    edited, value, *origins = json.loads(python(LOOK, repository, env=environment))
    assert (edited, value) == (False, 1)
    assert origins == [
        str(snapshot / at)
        for at in ("harness/__init__.py", "recipes/standard.py", "analysis/__init__.py")
    ]
    live = json.loads(python(LOOK, repository, repository, foreign))
    assert live[:2] == [True, 2]


def test_what_the_submitting_process_imports_from_elsewhere_stays_importable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", "/usr/lib/python3"])
    given = {"PYTHONPATH": f"theirs:{os.pathsep}/opt/x", "HOME": "/"}
    made = import_environment(Path("/sweep/code/abc"), given)
    assert made == {
        "PYTHONPATH": os.pathsep.join(
            ["/sweep/code/abc", str(tmp_path / "theirs"), "/opt/x", str(tmp_path)]
        ),
        "PYTHONSAFEPATH": "1",
    }


def test_a_snapshot_holds_every_file_that_the_packages_hold(repository: Path) -> None:
    (repository / "harness" / "__pycache__").mkdir(exist_ok=True)
    (repository / "harness" / ".cli.py.swp").write_text("an editor's")
    snapshot, _ = take(repository)
    for package in PACKAGES:
        tracked = git(repository, "ls-files", package).splitlines()
        copied = [
            path.relative_to(snapshot).as_posix()
            for path in (snapshot / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
        assert sorted(copied) == sorted(tracked)
        for at in tracked:
            assert (snapshot / at).read_bytes() == (repository / at).read_bytes()
    assert any(at.endswith(".j2") for at in git(repository, "ls-files").splitlines())


def test_equal_code_is_one_folder_and_edited_code_another(repository: Path) -> None:
    first, _ = take(repository)
    assert take(repository)[0] == first
    append(repository / "recipes" / "standard.py", "# edited")
    second, _ = take(repository)
    assert second != first
    git(repository, "checkout", "-q", "--", ".")
    assert take(repository)[0] == first
    assert {path.name for path in first.parent.iterdir()} == {first.name, second.name}


def test_a_snapshot_that_somebody_altered_is_set_aside_and_replaced(repository: Path) -> None:
    first, _ = take(repository)
    (first / "harness" / "cli.py").chmod(0o644)
    append(first / "harness" / "cli.py", "# altered")
    again, _ = take(repository)
    assert again == first
    assert (first / "harness" / "cli.py").read_bytes() == (
        repository / "harness" / "cli.py"
    ).read_bytes()
    (aside,) = (path for path in first.parent.iterdir() if path != first)
    assert (aside / "harness" / "cli.py").read_text().endswith("# altered\n")


def test_several_snapshots_at_once_make_one_folder(repository: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from harness.paths import SweepPaths
from harness.snapshot import take_snapshot
paths = SweepPaths(Path("../sweep"))
with ThreadPoolExecutor(4) as pool:
    print(len(set(pool.map(lambda _: take_snapshot(paths, []), range(4)))))
"""
    assert python(code, repository, repository) == "1"
    assert len(list((repository.parent / "sweep" / "code").iterdir())) == 1


def test_a_full_disk_is_an_error_and_leaves_nothing_half_written(repository: Path) -> None:
    code = """
import resource
from pathlib import Path
from harness.paths import SweepPaths
from harness.snapshot import take_snapshot
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))  # larger files cannot be written
try:
    take_snapshot(SweepPaths(Path("../sweep")), [])
except OSError as error:
    print(error.strerror)
"""
    assert python(code, repository, repository) == os.strerror(27)
    assert list((repository.parent / "sweep" / "code").iterdir()) == []


def test_a_clean_checkout_is_named_by_its_commit(repository: Path) -> None:
    snapshot, _ = take(repository)
    head = git(repository, "rev-parse", "HEAD")
    told = about(snapshot)
    assert (told["commit"], told["branch"], told["dirty"]) == (head, "trunk", False)
    assert told["untracked"] == []
    assert str(told["code_version"]).split("+")[1].split(".")[0] == f"g{head[:12]}"
    assert not (snapshot / "dirty.diff").exists()
    git(repository, "checkout", "-q", "--detach")
    assert json.loads(python(FACTS, repository, repository))["branch"] is None


def test_the_diff_of_a_dirty_checkout_rebuilds_it_from_the_commit(
    repository: Path, tmp_path: Path
) -> None:
    for setting in ("diff.noprefix", "diff.mnemonicPrefix", "core.quotePath"):
        git(repository, "config", setting, "true")
    append(repository / "harness" / "errors.py", "EDITED = True")
    (repository / "harness" / "job.py").unlink()
    (repository / "recipes" / "näw.py").write_text("x = 1\n")
    (repository / "analysis" / "blob.bin").write_bytes(bytes(range(256)) * 9)
    (repository / "outside.txt").write_text("no package")
    before = git(repository, "status", "--porcelain")
    snapshot, _ = take(repository)
    assert git(repository, "status", "--porcelain") == before
    told = about(snapshot)
    assert told["dirty"] is True
    assert told["untracked"] == ["analysis/blob.bin", "recipes/näw.py"]
    git(tmp_path, "clone", "-q", str(repository), "clean")
    git(tmp_path / "clean", "apply", str(snapshot / "dirty.diff"))
    for package in PACKAGES:
        rebuilt, there = tmp_path / "clean" / package, repository / package
        names = {p.relative_to(there) for p in there.rglob("*") if "__pycache__" not in p.parts}
        assert {path.relative_to(rebuilt) for path in rebuilt.rglob("*")} == names
        for name in names:
            if (there / name).is_file():
                assert (rebuilt / name).read_bytes() == (there / name).read_bytes()


def test_code_in_a_snapshot_knows_itself_without_git_and_whatever_is_edited(
    repository: Path,
) -> None:
    snapshot, environment = take(repository)
    append(repository / "harness" / "errors.py", "EDITED = True")
    inside = json.loads(python(FACTS, repository, env={**environment, "PATH": ""}))
    assert inside == {
        "snapshot": snapshot.name,
        **{
            name: about(snapshot)[name]
            for name in ("code_version", "commit", "branch", "dirty", "code_sha")
        },
    }
    live = json.loads(python(FACTS, repository, repository))
    assert live["dirty"]
    assert live["code_sha"] != inside["code_sha"]


def test_the_code_hash_ignores_commits_and_analysis_and_nothing_else(repository: Path) -> None:
    def told() -> dict[str, object]:
        facts = json.loads(python(FACTS, repository, repository))
        assert isinstance(facts, dict)
        return facts

    before = told()
    append(repository / "analysis" / "laws.py", "# edited")
    commit(repository)
    assert told()["code_sha"] == before["code_sha"]
    assert told()["commit"] != before["commit"]
    append(repository / "recipes" / "standard.py", "# edited")
    assert told()["code_sha"] != before["code_sha"]


def test_a_repository_that_does_not_hold_the_code_is_not_its_version(
    repository: Path,
) -> None:
    site = repository / "results" / "site-packages"
    site.mkdir(parents=True)
    copy_packages(site)
    facts = json.loads(python(FACTS, site, site))
    assert (facts["commit"], facts["dirty"]) == (None, None)
    assert facts["code_version"].partition("+")[2] == f"code{facts['code_sha']}"


def test_a_recipe_package_of_somebody_else_is_copied_whole(
    repository: Path, tmp_path: Path
) -> None:
    foreign = write_theirs(tmp_path / "foreign")
    inside = foreign / "company" / "models"  # company is a namespace: nobody owns all of it
    shutil.copytree(foreign / "theirs", inside)
    other = foreign / "company" / "unrelated"
    other.mkdir()
    (other / "__init__.py").write_text("")
    shutil.copy(foreign / "theirs" / "recipe.py", foreign / "single.py")
    names = ["theirs.recipe:Theirs", "company.models.recipe:Theirs", "single:Theirs"]
    snapshot, _ = take(repository, foreign, recipes=names)
    parts = about(snapshot)["parts"]
    assert isinstance(parts, dict)
    assert sorted(parts) == ["analysis", "company.models", "harness", "recipes", "single", "theirs"]
    for at in ("theirs/table.json", "theirs/helper.py", "company/models/recipe.py", "single.py"):
        assert (snapshot / at).read_bytes() == (foreign / at).read_bytes()
    assert not (snapshot / "company" / "unrelated").exists()
    assert not (snapshot / "company" / "__init__.py").exists()


@dataclass(frozen=True)
class Trained:
    cell: str
    code_version: str | None
    status: str = "done"


OLD, NEW = "0.1.0+gabc.code000000000001", "0.1.0+gdef.code000000000002"


def test_seeds_of_one_cell_by_different_code_are_told_with_their_cell() -> None:
    (notice,) = mixed_code([Trained("full, a", OLD), Trained("full, a", NEW), Trained("b", OLD)])
    assert notice.startswith("seeds of 1 cell were trained by different code: ")
    assert f"full, a ({OLD}, {NEW})" in notice
    assert "b (" not in notice


def test_at_most_three_mixed_cells_are_named_and_the_rest_counted() -> None:
    records = [Trained(f"cell {i}", code) for code in (OLD, NEW) for i in range(10)]
    (notice,) = mixed_code(records)
    assert [f"cell {i} (" in notice for i in range(4)] == [True, True, True, False]
    assert "10 cells" in notice
    assert "and 7 more" in notice


@pytest.mark.parametrize(
    "second",
    [
        Trained("a", OLD.replace("gabc", "gdef.dirty")),
        Trained("a", NEW, status="failed"),
        Trained("a", None),
        Trained("other", NEW),
    ],
    ids=["equal code of another commit", "a failed run", "unknown code", "another cell"],
)
def test_no_mixture_is_told_where_there_is_none(second: Trained) -> None:
    assert mixed_code([Trained("a", OLD), second]) == []
