"""Cells of a search and their trials, on small grids that nothing is trained of."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from harness.errors import GridError
from harness.identity import run_id
from harness.plan import plan
from harness.tuned import cell_key
from harness.tuning.apply import EQUAL_RATE, apply_tuned
from harness.tuning.cells import cells_of, trial
from harness.tuning.space import Choices, Geometric, Range, dimensions
from tests.harness.grid_texts import load
from tests.harness.tuning_grids import GRID, RATE, TWO, best_rates, searched


def test_a_cell_is_an_arm_at_a_size_and_has_the_cost_of_its_runs(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    cells = cells_of(grid)
    assert [cell.cell for cell in cells] == list(dict.fromkeys(run.cell for run in grid.runs))
    costs = {run.cell: run.cost for run in plan(grid).runs}
    assert all(cell.cost == costs[cell.cell] for cell in cells)
    assert len({cell.key for cell in cells}) == 9
    assert len({cell.size for cell in cells}) == 3
    assert all(cell.searched for cell in cells)


def test_keys_can_be_computed_from_what_a_manifest_holds(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + TWO)
    tuned = apply_tuned(grid, searched(grid, best_rates(standard=0.02, full=0.04, delta=0.01)))
    keys = {cell.cell: cell.key for cell in cells_of(grid)}
    assert grid.tune is not None
    for run in plan(tuned).runs:
        key = cell_key(run.config, grid.tune.search, run.corpus_sha256, run.recipe_revision)
        assert key == keys[run.cell.removesuffix(EQUAL_RATE)]


def test_only_the_cheapest_sizes_are_searched(tmp_path: Path) -> None:
    block = "tune: {search: {train.lr: {factor: 2}}, sizes: 2, transfer: flops}\n"
    cells = cells_of(load(tmp_path, GRID + block))
    budgets = {cell.template.config.train.budget.value: cell.searched for cell in cells}
    assert budgets == {9e12: False, 1e12: True, 3e12: True}


def test_fields_without_effect_on_an_arm_are_not_searched(tmp_path: Path) -> None:
    block = """\
tune:
  search:
    train.lr: {factor: 2}
    train.residual_lr_scale: {low: 0.03, high: 1.0, log: true}
    train.momentum: [0.9, 0.95]
    train.decay_frac: [0.2, 0.3]
    residual.block_size: [2, 4]
when:
  - {if: {residual: delta}, axes: {train.optimizer: [adamw], train.schedule: [cosine]}}
"""
    grid = load(tmp_path, GRID + block)
    assert grid.tune is not None
    found = {cell.arm: list(dimensions(grid.tune, cell)) for cell in cells_of(grid)}
    assert found["standard"] == ["train.lr", "train.momentum", "train.decay_frac"]
    assert found["full"] == [*grid.tune.search][:-1]
    assert found["delta"] == ["train.lr", "train.residual_lr_scale", "residual.block_size"]


def test_dimensions_start_at_the_values_of_the_run(tmp_path: Path) -> None:
    block = """\
tune:
  search:
    train.lr: {factor: 3}
    train.decay_frac: {low: 0.1, high: 0.5}
    train.weight_decay: [0.0, 0.1]
  refine: 0
  at_edge: AT_EDGE
  method: METHOD
"""
    text = GRID + block.replace("METHOD", "bracket").replace("AT_EDGE", "widen")
    grid = load(tmp_path, text)
    assert grid.tune is not None
    found = dimensions(grid.tune, cells_of(grid)[0])
    assert isinstance(found["train.lr"], Geometric)
    assert (found["train.lr"].start, found["train.lr"].factor) == (0.02, 3.0)
    assert found["train.decay_frac"] == Range(0.1, 0.5, False, 0.3, 0.0, 1.0)
    assert found["train.weight_decay"] == Choices((0.0, 0.1), 0.1)
    grid = load(tmp_path, GRID + block.replace("METHOD", "tpe").replace("AT_EDGE", "flag"))
    assert grid.tune is not None
    found = dimensions(grid.tune, cells_of(grid)[0])
    rate = found["train.lr"]
    assert isinstance(rate, Range)
    assert (rate.low, rate.high, rate.log) == (0.000741, 0.54, True)
    assert found["train.decay_frac"] == Range(0.1, 0.5, False, 0.3, 0.1, 0.5)


def test_a_trial_is_a_run_of_its_own_with_the_labels_of_its_cell(tmp_path: Path) -> None:
    cell = cells_of(load(tmp_path, GRID + RATE))[0]
    run = trial(cell, {"train.lr": 0.04}, 1000)
    assert (run.arm, run.cell, run.role) == (cell.arm, cell.cell, "trial")
    assert (run.config.train.lr, run.config.seed, run.tuned) == (0.04, 1000, {"train.lr": 0.04})
    assert run.config.train.budget == cell.template.config.train.budget
    identity = run_id(run.config, run.residual.recipe.revision, run.corpus.sha256)
    assert run.run_id == identity != cell.template.run_id
    assert trial(cell, {"train.lr": 0.04}, 1000).run_id == run.run_id
    assert trial(cell, {"train.lr": 0.05}, 1000).run_id != run.run_id


def test_a_trial_of_an_option_builds_the_recipe_anew_and_no_label_names_it(tmp_path: Path) -> None:
    text = GRID.replace("[standard, full, delta]", "[standard, {name: block, block_size: 4}]")
    grid = load(tmp_path, text + "tune: {search: {residual.block_size: [2, 4]}}\n")
    cell = next(cell for cell in cells_of(grid) if cell.arm != "standard")
    run = trial(cell, {"residual.block_size": 2}, 1000)
    assert run.arm == cell.arm == "block"
    assert run.cell == cell.cell
    assert "block_size" not in run.cell
    assert run.residual.options.model_dump()["block_size"] == 2
    assert run.config.residual.options == run.residual.config.options == {"block_size": 2}
    plain = load(tmp_path, text.replace("block_size: 4", "block_size: 2"))
    twins = [r.config.model_copy(update={"seed": 1000}) for r in plain.runs]
    assert run.config in twins


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"train.lr": -1.0}, "must be greater than 0"),
        ({"train.decay_frac": 1.0}, "warmup_frac + decay_frac must not exceed 1"),
    ],
)
def test_values_that_make_no_run_are_refused(
    tmp_path: Path, values: dict[str, Any], says: str
) -> None:
    cell = cells_of(load(tmp_path, GRID + RATE))[0]
    with pytest.raises(GridError, match=re.escape(cell.cell)) as caught:
        trial(cell, values, 1000)
    assert says in str(caught.value)


def test_options_that_are_not_searched_stay_in_the_label(tmp_path: Path) -> None:
    arm = "{name: block, block_size: 2, recency_init: 1.0}"
    text = GRID.replace("[standard, full, delta]", f"[standard, {arm}]")
    text += "tune: {search: {residual.recency_init: [0.0, 1.0]}}\n"
    text += f"analysis: {{baseline: {arm}}}\n"
    grid = load(tmp_path, text)
    assert {run.arm for run in grid.runs} == {"standard", "block(block_size=2)"}
    assert grid.baseline == "block(block_size=2)"


def test_a_searched_field_that_sizes_start_from_is_in_no_label(tmp_path: Path) -> None:
    text = GRID.replace("zip:\n  - ", "zip:\n  - train.lr: [1e-2, 2e-2, 3e-2]\n    ")
    assert "lr=" in load(tmp_path, text).runs[0].cell
    grid = load(tmp_path, text + RATE)
    assert not any("lr=" in run.cell for run in grid.runs)
    assert len(cells_of(grid)) == 9
