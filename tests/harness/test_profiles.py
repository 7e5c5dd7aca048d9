"""Profiles of a grid: what lies over what, which sweep it is, and every mistake with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness.cli import app
from harness.cli_common import find_sweep
from harness.cli_run import with_options
from harness.errors import GridError
from harness.grid import Grid, load_grid
from harness.plan import plan, to_manifest
from harness.status import execution_value
from tests.harness.grid_texts import describe

TEXT = """\
sweep: example
base:
  residual: {name: block, block_size: 4}
  model: {n_layers: 4, d_model: 64, d_ff: 96}
  train: {budget: {flops: 1e13}, lr: 1e-2}
axes: {train.beta1: [0.8, 0.9]}
execution: {n_evals: 2}
profiles:
  tiny:
    base: {model: {n_layers: 2}}
  cluster:
    base:
      residual: full
      model: {d_model: 128, d_ff: null}
      train: {budget: {tokens: 1000000}}
    axes: {train.beta1: [0.85]}
    execution: {lease_s: 60}
  named: {sweep: other, axes: null}
"""


def load(folder: Path, *profiles: str, text: str = TEXT, file: Path | None = None) -> Grid:
    path = folder / "grid.yaml"
    path.write_text(text, encoding="utf-8")
    return load_grid(path, (), file, profiles=profiles, describe=describe)


def test_the_first_profile_is_the_default_and_keeps_the_sweeps_name(tmp_path: Path) -> None:
    grid = load(tmp_path)
    assert (grid.profile, grid.sweep, len(grid.runs)) == ("tiny", "example", 2)
    assert {run.config.model.n_layers for run in grid.runs} == {2}
    assert {run.config.model.d_ff for run in grid.runs} == {96}
    assert load(tmp_path, "tiny").runs == grid.runs


def test_mappings_merge_lists_replace_and_null_takes_away(tmp_path: Path) -> None:
    grid = load(tmp_path, "cluster")
    (run,) = grid.runs
    assert (grid.profile, grid.sweep) == ("cluster", "example-cluster")
    model, train = run.config.model, run.config.train
    assert (model.n_layers, model.d_model, model.d_ff) == (4, 128, None)
    assert (train.lr, train.beta1) == (1e-2, 0.85)
    assert (grid.execution.n_evals, grid.execution.lease_s) == (2, 60.0)


def test_a_budget_and_a_recipe_are_replaced_whole(tmp_path: Path) -> None:
    (run,) = load(tmp_path, "cluster").runs
    assert (run.arm, run.config.train.budget.kind) == ("full", "tokens")


def test_a_profile_may_name_its_sweep(tmp_path: Path) -> None:
    grid = load(tmp_path, "named")
    assert (grid.sweep, len(grid.runs)) == ("other", 1)


def test_an_alias_of_a_merged_mapping_stays_as_it_was(tmp_path: Path) -> None:
    text = (
        "sweep: example\nbase: &one\n  residual: standard\n  model: &small {n_layers: 4, "
        "d_model: 64}\n  train: {budget: {flops: 1e13}}\ninclude: [{model: *small}]\n"
        "profiles: {deep: {base: {model: {n_layers: 6}}}}\n"
    )
    assert {run.config.model.n_layers for run in load(tmp_path, text=text).runs} == {4, 6}


def test_a_grid_without_profiles_has_none(tmp_path: Path) -> None:
    assert load(tmp_path, text=TEXT[: TEXT.index("profiles:")]).profile is None


def test_the_manifest_keeps_the_file_and_says_which_profile(tmp_path: Path) -> None:
    grid = load(tmp_path, "cluster")
    manifest = to_manifest(grid, plan(grid))
    assert (manifest.grid_text, manifest.profile) == (TEXT, "cluster")
    assert execution_value(manifest, "lease_s", 1.0) == 60
    default = load(tmp_path)
    assert execution_value(to_manifest(default, plan(default)), "lease_s", 1.0) == 1.0


def test_a_profile_and_a_file_go_together(tmp_path: Path) -> None:
    slurm = tmp_path / "site.yaml"
    slurm.write_text("slurm: {time: 60, account: a}\n", encoding="utf-8")
    grid = load(tmp_path, str(slurm), "cluster")
    assert grid.slurm is not None
    assert (grid.slurm.account, grid.sweep) == ("a", "example-cluster")
    usual = tmp_path / "usual.yaml"
    usual.write_text("slurm: {time: 60, account: b}\n", encoding="utf-8")
    for given, account in ((("cluster",), "b"), ((str(slurm),), "a")):
        used = load(tmp_path, *given, file=usual).slurm
        assert used is not None
        assert used.account == account


@pytest.mark.parametrize(
    ("given", "fragment"),
    [
        (("clustr",), "has the profiles tiny, cluster, named; did you mean 'cluster'?"),
        (("zzz",), "Name one of them, or a file."),
        (("tiny", "cluster"), "takes one profile of the grid, got tiny and cluster"),
        (("a.yaml", "b.yaml"), "takes one file, got a.yaml and b.yaml"),
        (("absent.yaml",), "absent.yaml: no such profile"),
    ],
)
def test_a_wrong_profile_is_told_with_what_there_is(
    tmp_path: Path, given: tuple[str, ...], fragment: str
) -> None:
    with pytest.raises(GridError) as caught:
        load(tmp_path, *given)
    (problem,) = caught.value.problems
    assert fragment in problem


def test_a_name_for_a_grid_without_profiles_is_told(tmp_path: Path) -> None:
    with pytest.raises(GridError, match="has no profiles"):
        load(tmp_path, "tiny", text=TEXT[: TEXT.index("profiles:")])


BARE = TEXT[: TEXT.index("profiles:")]
ONE_MISTAKE: dict[str, tuple[str, int, str, str]] = {
    "a list": ("profiles: [tiny]\n", 8, "profiles", "must be a mapping of names"),
    "empty": ("profiles:\n", 8, "profiles", "is empty"),
    "no mapping": ("profiles: {tiny: 3}\n", 8, "profiles.tiny", "must be a mapping of a"),
    "unfit name": ("profiles: {a/b: {}}\n", 8, "profiles.a/b", "Rename it"),
    "nested": ("profiles: {a: {profiles: {}}}\n", 8, "profiles.a.profiles", "do not nest"),
    "unknown key": (
        "profiles:\n  a: {}\n  b: {bse: {}}\n", 10, "profiles.b.bse", "did you mean 'base'?"
    ),
    "nothing to take": (
        "profiles:\n  a:\n    base: {train: {beta2: null}}\n",
        10, "profiles.a.base.train.beta2", "null takes nothing away",
    ),
    "mistake in a value": (
        "profiles:\n  a:\n    base:\n      train: {lr: fast}\n", 11, "base.train.lr", "be a number"
    ),
    "mistake in a list": (
        "profiles:\n  a:\n    axes:\n      train.beta1:\n        - 0.9\n        - x\n",
        13, "axes.train.beta1[1]", "must be a number",
    ),
    "mistake under it": (
        "profiles:\n  a: {}\nseeds: 3\n", 10, "seeds", "must be a list of integers"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_MISTAKE)
def test_one_mistake_gives_one_message_with_its_place(name: str, tmp_path: Path) -> None:
    block, line, path, fragment = ONE_MISTAKE[name]
    with pytest.raises(GridError) as caught:
        load(tmp_path, text=BARE + block)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:{line}: {path}: ")
    assert fragment in problem


def test_commands_find_the_sweep_of_the_first_profile_by_file_and_others_by_name(
    tmp_path: Path,
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(TEXT, encoding="utf-8")
    assert find_sweep(str(path), tmp_path).root == tmp_path / "example"
    assert find_sweep("example-cluster", tmp_path).root == tmp_path / "example-cluster"
    named = TEXT.replace("  tiny:\n", "  tiny:\n    sweep: small\n")
    path.write_text(named, encoding="utf-8")
    assert find_sweep(str(path), tmp_path).root == tmp_path / "small"
    assert load(tmp_path, text=named).sweep == "small"
    assert load(tmp_path, "cluster", text=named).sweep == "example-cluster"


def test_plan_takes_profiles_and_its_next_command_gives_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "grid.yaml"
    path.write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    shown = CliRunner().invoke(app, ["plan", "grid.yaml", "--profile", "cluster"])
    assert shown.exit_code == 0, shown.output
    assert "Next: isoloss run grid.yaml --profile cluster" in shown.output
    refused = CliRunner().invoke(app, ["plan", "grid.yaml", "--profile", "cluter"])
    assert isinstance(refused.exception, GridError)
    both = with_options("grid.yaml", ["train.lr=1"], ["cluster", "a.yaml"], slurm=True)
    assert both == "grid.yaml --on slurm --profile cluster --profile a.yaml --set train.lr=1"
