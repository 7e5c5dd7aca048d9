"""Expansion of grids: counts of every rule, identity of repeats, notices, overrides."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.blame import Failure, blame
from harness.config import Execution
from harness.grid import Grid, load_grid
from tests.harness.grid_texts import BASE, DATA, describe, load

ROOT = Path(__file__).parent.parent.parent


def _arms(grid: Grid) -> dict[str, int]:
    arms: dict[str, int] = {}
    for run in grid.runs:
        arms[run.arm] = arms.get(run.arm, 0) + 1
    return arms


def _counts(grid: Grid) -> dict[str, tuple[int, int]]:
    return {rule.rule: (rule.matched, rule.runs) for rule in grid.rules}


def test_a_grid_without_rules_is_one_run_of_seed_zero(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE)
    (run,) = grid.runs
    assert (run.arm, run.config.seed, run.config.train.lr) == ("standard", 0, 1e-2)
    assert (grid.sweep, grid.baseline, grid.execution) == ("example", "standard", Execution())
    assert grid.notices == ()


def test_the_contracts_example_has_the_runs_counted_by_hand() -> None:
    grid = load_grid(DATA / "grids" / "depth_ladder.yaml", describe=describe)
    # 6 recipes x 3 shapes; block x 3 sizes (+6); full at 12 layers out (-1); one included (+1);
    # all of it for 2 seeds.
    assert len(grid.runs) == 2 * (6 * 3 + 3 * 2 - 1 + 1)
    assert _counts(grid) == {
        "axes.residual": (6, 36),
        "zip[0]": (3, 36),
        "when[0]": (6, 18),
        "exclude[0]": (2, 0),
        "include[0]": (2, 2),
    }
    assert [rule.line for rule in grid.rules] == [10, 12, 14, 15, 16]
    assert _arms(grid) == {
        "standard": 8,
        "full": 4,
        "block(block_size=2)": 6,
        "block(block_size=4)": 6,
        "block(block_size=8)": 6,
        "delta": 6,
        "low_rank": 6,
        "multi_stream": 6,
    }


def test_the_shipped_quickstart_loads_with_the_embedded_text() -> None:
    grid = load_grid(ROOT / "recipes" / "grids" / "quickstart.yaml")
    wanted = {"standard", "full", "block", "delta", "low_rank", "multi_stream"}
    assert {run.config.residual.name for run in grid.runs} == wanted
    assert len({run.run_id for run in grid.runs}) == len(grid.runs)
    assert grid.notices == ()


_AXES = {
    "train.lr": ["1e-3", "0.002", "3e-3", "4.0e-3"],
    "train.beta1": ["0.8", "0.85", "0.9"],
    "model.qk_norm": ["false", "true"],
    "residual": ["standard", "full", "{name: block, block_size: 2}"],
    "train.budget": ["{tokens: 100000}", "{flops: 1e12}", "{tokens_per_param: 2}"],
}
_ZIP = {"model.n_layers": ["2", "3", "5"], "model.d_model": ["32", "96", "160"]}


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.fixed_dictionaries({name: st.integers(0, len(v)) for name, v in _AXES.items()}),
    rows=st.integers(0, 3),
    n_seeds=st.integers(1, 3),
)
def test_the_number_of_runs_is_the_product_and_ids_are_unique(
    tmp_path_factory: pytest.TempPathFactory, sizes: dict[str, int], rows: int, n_seeds: int
) -> None:
    text = BASE + f"seeds: {list(range(n_seeds))}\n"
    axes = {name: n for name, n in sizes.items() if n}
    if axes:
        text += "axes:\n" + "".join(
            f"  {name}: [{', '.join(_AXES[name][:n])}]\n" for name, n in axes.items()
        )
    if rows:
        columns = (f"{name}: [{', '.join(values[:rows])}]" for name, values in _ZIP.items())
        text += f"zip: [{{{', '.join(columns)}}}]\n"
    grid = load(tmp_path_factory.mktemp("grid"), text)
    assert len(grid.runs) == math.prod(axes.values()) * max(rows, 1) * n_seeds
    assert len({run.run_id for run in grid.runs}) == len(grid.runs)
    assert len({(run.cell, run.config.seed) for run in grid.runs}) == len(grid.runs)
    assert grid.n_repeats == 0


@pytest.mark.parametrize("mode", ["direct", "sync", "off"])
def test_the_mirror_has_three_modes(tmp_path: Path, mode: str) -> None:
    assert load(tmp_path, f"{BASE}mlflow: {{mode: {mode}}}\n").mlflow.mode == mode


def test_zip_columns_advance_together_and_groups_multiply(tmp_path: Path) -> None:
    text = BASE + (
        "zip:\n  - {model.n_layers: [2, 4], model.d_model: [32, 64]}\n"
        "  - {train.lr: [1e-3, 2e-3, 3e-3], train.beta1: [0.7, 0.8, 0.9]}\n"
    )
    runs = load(tmp_path, text).runs
    shapes = [(r.config.model.n_layers, r.config.model.d_model) for r in runs]
    assert shapes == [(2, 32)] * 3 + [(4, 64)] * 3
    assert [(r.config.train.lr, r.config.train.beta1) for r in runs[:3]] == [
        (1e-3, 0.7),
        (2e-3, 0.8),
        (3e-3, 0.9),
    ]


def test_when_adds_axes_to_matching_runs_only_and_later_rules_see_earlier_ones(
    tmp_path: Path,
) -> None:
    text = BASE + (
        "axes: {residual: [standard, block, low_rank]}\n"
        "when:\n"
        "  - {if: {residual: [block, low_rank]}, axes: {residual.block_size: [2, 4]}}\n"
        "  - {if: {residual.block_size: 4}, axes: {train.lr: [1e-3, 2e-3]}}\n"
    )
    grid = load(tmp_path, text)
    assert _counts(grid) == {"axes.residual": (3, 3), "when[0]": (2, 4), "when[1]": (2, 4)}
    assert _arms(grid) == {
        "standard": 1,
        "block(block_size=2)": 1,
        "block(block_size=4)": 2,
        "low_rank(block_size=2)": 1,
        "low_rank(block_size=4)": 2,
    }


def test_conditions_see_defaults_budgets_and_options(tmp_path: Path) -> None:
    axes = (
        "axes:\n  train.budget: [{flops: 1e12}, {tokens: 100000}]\n"
        "  model.qk_norm: [false, true]\n  residual: [standard, {name: block, block_size: 2}]\n"
    )
    for condition, n_removed in [
        ("{model.qk_norm: true}", 4),
        ("{model: {tied_head: false}, residual: full}", 0),
        ("{model.tied_head: false, residual: block}", 4),
        ("{train.budget.flops: 1e12}", 4),
        ("{train.budget.tokens: 100000, model: {qk_norm: false}}", 2),
        ("{residual: block}", 4),
        ("{residual: {name: block, block_size: 2}}", 4),
        ("{residual: {name: block, block_size: 4}}", 0),
        ("{residual.block_size: [2, 4]}", 4),
        ("{residual: [block, standard], train.budget.flops: [1e12, 2e12]}", 4),
    ]:
        grid = load(tmp_path, BASE + axes + f"exclude: [{condition}]\n")
        assert _counts(grid)["exclude[0]"] == (n_removed, 0), condition
        assert len(grid.runs) == 8 - n_removed


def test_exclude_can_take_single_seeds(tmp_path: Path) -> None:
    text = BASE + "axes: {residual: [standard, full]}\nseeds: [0, 1, 2]\n"
    grid = load(tmp_path, text + "exclude: [{residual: full, seed: [1, 2]}]\n")
    assert _arms(grid) == {"standard": 3, "full": 1}
    assert _counts(grid)["exclude[0]"] == (2, 0)


def test_include_is_a_diff_from_base_with_all_seeds(tmp_path: Path) -> None:
    text = BASE + (
        "axes: {train.lr: [1e-3, 2e-3]}\nseeds: [0, 1]\n"
        "include: [{residual: full, model: {n_layers: 9}, train.budget.tokens: 100000}]\n"
    )
    grid = load(tmp_path, text)
    added = grid.runs[-1].config
    assert len(grid.runs) == 6
    assert (added.residual.name, added.model.n_layers, added.model.d_model) == ("full", 9, 64)
    assert (added.train.budget.tokens, added.train.budget.flops) == (100000, None)
    assert added.train.lr == 1e-2


def test_a_run_asked_for_twice_is_one_run_and_is_reported(tmp_path: Path) -> None:
    text = BASE + "axes: {train.lr: [1e-3, 0.001]}\ninclude: [{train.lr: 0.001}, {train.lr: 1}]\n"
    grid = load(tmp_path, text)
    assert len(grid.runs) == 2
    assert grid.n_repeats == 2
    file = tmp_path / "grid.yaml"
    assert grid.notices == (
        f"{file}:6: axes: 1 of its runs are already in the grid and count once.",
        f"{file}:7: include[0]: 1 of its runs are already in the grid and count once.",
    )


def test_a_rule_that_matches_nothing_is_a_notice_with_its_line(tmp_path: Path) -> None:
    text = BASE + (
        "when:\n  - {if: {residual: full}, axes: {train.lr: [1, 2]}}\n"
        "exclude:\n  - {model.n_layers: 5}\n"
    )
    grid = load(tmp_path, text)
    assert [notice.split("grid.yaml:")[1][:15] for notice in grid.notices] == [
        "7: when[0]: mat",
        "9: exclude[0]: ",
    ]


def test_a_later_recipe_drops_the_options_of_the_earlier_one(tmp_path: Path) -> None:
    base = BASE.replace("standard", "{name: block, block_size: 2}")
    grid = load(tmp_path, base + "axes: {residual: [block, full]}\n", ["train.lr=1e-3"])
    assert _arms(grid) == {"block": 1, "full": 1}


def test_overrides_change_base_and_the_sections_beside_it(tmp_path: Path) -> None:
    overrides = [
        "train.lr=5e-3",
        "train.budget.tokens=200000",
        "residual={name: block, block_size: 2}",
        "execution.threads=2",
        "seeds=[3, 4]",
        "sweep=other",
    ]
    grid = load(tmp_path, BASE, overrides)
    config = grid.runs[0].config
    assert (config.train.lr, config.train.budget.tokens) == (5e-3, 200000)
    assert config.train.budget.flops is None
    assert grid.runs[0].arm == "block(block_size=2)"
    assert grid.execution.threads == 2
    assert [run.config.seed for run in grid.runs] == [3, 4]
    assert (grid.sweep, grid.overrides) == ("other", tuple(overrides))
    assert grid.text == BASE


def test_an_option_can_be_overridden_alone(tmp_path: Path) -> None:
    base = BASE.replace("standard", "{name: block, block_size: 2}")
    assert load(tmp_path, base, ["residual.block_size=4"]).runs[0].arm == "block(block_size=4)"


def test_the_baseline_is_found_by_label_by_recipe_or_by_mapping(tmp_path: Path) -> None:
    axes = "axes: {residual: [full, {name: block, block_size: 2}]}\nanalysis: {baseline: "
    arm = "block(block_size=2)"
    for wanted in ("block", "'block(block_size=2)'", "{name: block, block_size: 2}"):
        assert load(tmp_path, f"{BASE}{axes}{wanted}}}\n").baseline == arm


def test_without_baseline_and_standard_the_first_arm_is_taken_and_said(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "axes: {residual: [full, delta]}\n")
    assert grid.baseline == "full"
    assert "arms are compared with 'full'" in grid.notices[0]


def test_the_setting_without_a_valid_use_is_blamed_and_the_last_written_otherwise() -> None:
    head, wide, deep = ("base", "h"), ("axes", "d", 0), ("axes", "d", 1)
    failures = [
        Failure(f"head against {name}", {"h": head, "d": loc}, ("h", "d"))
        for name, loc in (("wide", wide), ("deep", deep))
    ]
    assert list(blame(failures, set())) == [(head, "head against wide (And 1 more like it.)")]
    assert list(blame(failures[1:], {head})) == [(deep, "head against deep")]
    assert list(blame(failures[1:], {head, deep})) == [(deep, "head against deep")]


def test_loading_a_grid_imports_neither_lightning_nor_mlflow() -> None:
    program = (
        "import sys; from harness.grid import load_grid; from harness.plan import plan\n"
        "from pathlib import Path\n"
        "plan(load_grid(Path('recipes/grids/quickstart.yaml')))\n"
        "print(sorted({'lightning', 'mlflow', 'pandas'} & set(sys.modules)))\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert out.stdout == "[]\n"
