"""Chosen values: out of the results of trials, into the runs of a grid, and in its plan."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from analysis.collect import collect
from harness.errors import GridError
from harness.grid import Grid
from harness.identity import run_id
from harness.paths import SweepPaths
from harness.plan import plan, to_manifest
from harness.plan_show import plan_tables
from harness.records import write_manifest
from harness.sweep import Difference
from harness.tuned import read_tuned, write_tuned
from harness.tuning.apply import EQUAL_RATE, apply_tuned, conclude, missing
from harness.tuning.bracket import Result
from harness.tuning.cells import Cell, cells_of
from tests.harness.grid_texts import load
from tests.harness.test_plan import paced
from tests.harness.tuning_grids import GRID, RATE, TWO, best_rates, searched


def test_the_best_trial_of_every_cell_is_chosen(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + TWO)
    tuned = searched(grid, best_rates(standard=0.02, full=0.04, delta=0.005))
    values = {cell.arm: cell.values for cell in tuned.cells}
    assert values["standard"] == {"train.lr": 0.02}
    assert values["full"] == {"train.lr": 0.04, "train.residual_lr_scale": 0.3}
    assert values["delta"] == {"train.lr": 0.005, "train.residual_lr_scale": 0.3}
    for cell in tuned.cells:
        assert cell.by == "search"
        assert all(cell.interior.values())
        assert cell.notes == ()
        assert cell.loss_nats == pytest.approx(3)
    write_tuned(tmp_path / "tuned.yaml", tuned)
    assert read_tuned(tmp_path / "tuned.yaml") == tuned


def test_a_best_value_at_the_end_is_said_in_words(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    cell = searched(grid, lambda cell, values: -float(values["train.lr"])).cells[0]
    assert cell.interior == {"train.lr": False}
    assert cell.notes[0].startswith("train.lr: the best value, 2.56, is at the upper end")
    assert "a better value may lie beyond" in cell.notes[0]


def test_equal_losses_are_decided_alike_in_any_order(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    assert grid.tune is not None
    cells = cells_of(grid)
    flat = [Result({"train.lr": rate}, 3.0) for rate in (0.01, 0.02, 0.04)]
    chosen = []
    for order in (flat, flat[::-1]):
        results = dict.fromkeys((cell.key for cell in cells), order)
        tuned = conclude(cells, results, grid.tune, sweep="small", optuna="5")
        chosen.append([cell.values for cell in tuned.cells])
    assert chosen[0] == chosen[1]


def test_diverged_trials_are_never_chosen_and_are_counted(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    tuned = searched(
        grid, lambda cell, v: math.nan if v["train.lr"] > 0.03 else 1 / float(v["train.lr"])
    )
    assert tuned.cells[0].values == {"train.lr": 0.02}
    assert tuned.cells[0].notes == ("1 of 3 trials diverged or were stopped early",)


def test_a_cell_without_a_finite_loss_is_named(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)

    def loss(cell: Cell, values: Mapping[str, Any]) -> float:
        return math.inf if cell.arm == "full" else float(values["train.lr"])

    with pytest.raises(GridError) as caught:
        searched(grid, loss)
    labels = [cell.cell for cell in cells_of(grid) if cell.arm == "full"]
    assert len(caught.value.problems) == len(labels) == 3
    assert all(
        label in problem and "every trial diverged; there is nothing to conclude" in problem
        for label, problem in zip(labels, caught.value.problems, strict=True)
    )


def test_running_trials_do_not_count(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    assert grid.tune is not None
    running = {cell.key: [Result({"train.lr": 0.02}, None)] for cell in cells_of(grid)}
    with pytest.raises(GridError, match="no trial has finished"):
        conclude(cells_of(grid), running, grid.tune, sweep="small", optuna="5")


@pytest.mark.parametrize("over", ["flops", "n_params"])
def test_large_sizes_get_their_values_by_the_law_of_their_arm(tmp_path: Path, over: str) -> None:
    block = f"tune: {{search: {{train.lr: {{factor: 2}}}}, sizes: 2, transfer: {over}}}\n"
    grid = load(tmp_path, GRID + block)

    def x(cell: Cell) -> float:
        return float(cell.cost.flops if over == "flops" else cell.cost.n_params)

    def law(cell: Cell) -> float:
        first = {"standard": 0.02, "full": 0.03, "delta": 0.01}[cell.arm]
        return float(first * (x(cell) / {"flops": 1e12, "n_params": 2.5e5}[over]) ** -0.25)

    def loss(cell: Cell, values: Mapping[str, Any]) -> float:
        return math.log(values["train.lr"] / law(cell)) ** 2

    tuned = searched(grid, loss)
    for cell in cells_of(grid):
        row = tuned.cell(cell.key)
        assert row is not None
        assert row.by == ("search" if cell.searched else "transfer")
        if not cell.searched:
            smaller = max(x(c) for c in cells_of(grid) if c.searched and c.arm == cell.arm)
            assert row.values["train.lr"] == pytest.approx(law(cell), rel=0.005)
            assert f"extrapolated to {x(cell) / smaller:.3g}x the" in row.notes[0]
    for fitted in tuned.transfer:
        assert fitted.exponent == pytest.approx(-0.25, abs=1e-6)
        assert fitted.notes == ("2 sizes: the exponent has no interval",)
        assert fitted.exponent_interval is None


def test_what_was_not_searched_by_ratios_is_taken_from_the_largest_size(tmp_path: Path) -> None:
    block = "tune: {search: {train.weight_decay: [0.0, 0.1]}, sizes: 2, transfer: flops}\n"
    grid = load(tmp_path, GRID + block)

    def loss(cell: Cell, values: Mapping[str, Any]) -> float:
        small = cell.template.config.train.budget.value == 1e12
        return float(values["train.weight_decay"] != (0.1 if small else 0.0))

    tuned = searched(grid, loss)
    carried = [row for row in tuned.cells if row.by == "transfer"]
    assert [row.values for row in carried] == [{"train.weight_decay": 0.0}] * 3
    assert carried[0].notes == ("train.weight_decay: as at the largest searched size",)
    assert tuned.transfer == ()


def test_runs_take_their_cells_values_and_keep_their_labels(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE.replace("}}, ", "}}, equal_rate: false, "))
    rates = {"standard": 0.02, "full": 0.04, "delta": 0.005}
    tuned = apply_tuned(grid, searched(grid, best_rates(**rates)))
    assert len(tuned.runs) == len(grid.runs)
    for before, after in zip(grid.runs, tuned.runs, strict=True):
        rate = rates[before.arm]
        assert (after.arm, after.cell, after.role) == (before.arm, before.cell, "main")
        assert after.config.seed == before.config.seed
        assert after.config.train.lr == rate
        assert after.tuned == {"train.lr": rate}
        assert (after.run_id == before.run_id) == (rate == before.config.train.lr)
        assert after.run_id == run_id(
            after.config, after.residual.recipe.revision, after.corpus.sha256
        )
    assert tuned.tuned is not None
    assert cells_of(tuned) == cells_of(grid)
    assert [run.tuned for run in plan(tuned).runs] == [run.tuned for run in tuned.runs]


READ = """\
tune:
  search:
    residual.recency_init: [0.0, 1.0, 3.0]
    residual.query_init_std: [0.0, 0.02]
"""
BEST_RECENCY = {4: 0.0, 6: 1.0, 8: 3.0}
"""By layers."""


def off_the_best_read(cell: Cell, values: Mapping[str, Any]) -> float:
    wanted = BEST_RECENCY[cell.template.config.model.n_layers]
    recency = values.get("residual.recency_init", wanted)
    return 3 + abs(recency - wanted) + float(values.get("residual.query_init_std", 0.0))


def test_an_arm_whose_read_is_tuned_stays_one_arm_and_one_pairing(tmp_path: Path) -> None:
    arms = "[standard, full, {name: block, block_size: 2, recency_init: 1.0}]"
    grid = load(tmp_path, GRID.replace("[standard, full, delta]", arms) + READ)
    tuned = apply_tuned(grid, searched(grid, off_the_best_read))
    paths = SweepPaths(tmp_path / "small")
    write_manifest(paths, to_manifest(tuned, plan(tuned)))
    rows = collect(paths)
    assert set(rows["arm"]) == {"standard", "full", "block(block_size=2)"}
    assert rows.groupby("size")["pair_key"].nunique().tolist() == [1, 1, 1]
    for row in rows[rows["arm"] != "standard"].itertuples():
        options = json.loads(str(row.residual_options))
        assert options.get("recency_init", 0.0) == BEST_RECENCY[row.n_layers]


def test_the_seeds_of_a_cell_share_their_sections(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + TWO)
    tuned = apply_tuned(grid, searched(grid, best_rates(standard=0.02, full=0.04, delta=0.005)))
    assert len({id(run.config.train) for run in tuned.runs}) == 3 * 4


def test_arms_run_at_the_baselines_values_where_theirs_differ(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + TWO)
    tuned = apply_tuned(grid, searched(grid, best_rates(standard=0.02, full=0.04, delta=0.02)))
    extra = [run for run in tuned.runs if run.role == "equal_rate"]
    assert len(tuned.runs) == 18 + len(extra)
    assert {run.arm for run in extra} == {"full"}
    assert len(extra) == 6
    main = {(run.arm, run.cell, run.config.seed): run for run in tuned.runs if run.role == "main"}
    for run in extra:
        own = main[run.arm, run.cell.removesuffix(EQUAL_RATE), run.config.seed]
        assert run.cell == own.cell + ", at the baseline's values"
        assert run.config.train.lr == 0.02
        assert own.config.train.lr == 0.04
        # The baseline has no parameters that this rate could be of: the arm keeps its own.
        assert run.config.train.residual_lr_scale == own.config.train.residual_lr_scale == 0.3
        assert run.tuned == {"train.lr": 0.02, "train.residual_lr_scale": 0.3}
    assert len({run.run_id for run in tuned.runs}) == len(tuned.runs)


def test_a_cell_without_values_is_named_with_the_command_that_finds_them(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    tuned = searched(grid, best_rates(standard=0.02, full=0.04, delta=0.005))
    assert missing(grid, tuned) == ()
    wider = load(tmp_path, GRID.replace("full, delta", "full, rezero, delta") + RATE)
    labels = missing(wider, tuned)
    assert [label.split(",")[0] for label in labels] == ["rezero"] * 3
    with pytest.raises(GridError) as caught:
        apply_tuned(wider, tuned)
    (problem,) = caught.value.problems
    assert problem.startswith(
        f"{tmp_path / 'grid.yaml'}:12: tune: no values were chosen for rezero"
    )
    assert f"isoloss tune {tmp_path / 'grid.yaml'}" in problem


def test_runs_at_the_baselines_values_count_towards_the_limit(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE + "limits: {runs: 20}\n")
    tuned = searched(grid, best_rates(standard=0.02, full=0.04, delta=0.005))
    with pytest.raises(GridError, match="there are 30, more than 20") as caught:
        apply_tuned(grid, tuned)
    assert ":13: limits.runs: " in caught.value.problems[0]


def _printed(grid: Grid) -> str:
    nothing = Difference([], [], [], [], [], [], [], [], [])
    parts = plan_tables(plan(grid), nothing)
    return "\n".join(part for part in parts if isinstance(part, str))


def test_plan_prices_the_search_before_it_and_tells_the_values_after_it(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE.replace("}}, ", "}}, trials: 5, sizes: 2, transfer: flops, "))
    price = plan(grid).tuning
    assert price is not None
    small = [cell for cell in cells_of(grid) if cell.searched]
    assert (price.cells, price.transferred, price.trials, price.tuned) == (6, 3, 30, False)
    assert price.flops == pytest.approx(sum(5 * cell.cost.flops for cell in small))
    assert price.hours is None
    assert (price.equal_rate_runs, price.values) == (12, {})
    text = _printed(grid)
    assert "Not tuned yet" in text
    assert "at most 30 trials in 6 cells" in text
    assert "3 more get their values by a law" in text
    assert "Up to 12 runs at the baseline's values follow" in text
    tuned = apply_tuned(grid, searched(grid, best_rates(standard=0.02, full=0.04, delta=0.005)))
    price = plan(tuned).tuning
    assert price is not None
    assert (price.tuned, price.equal_rate_runs) == (True, 0)
    assert price.values["delta"] == {"train.lr": "0.005"}
    assert list(price.values) == ["standard", "full", "delta"]
    assert "Tuned in 6 cells" in (text := _printed(tuned))
    assert "  delta: train.lr 0.005" in text


def test_hours_of_the_search_count_towards_the_limit_until_it_is_done(tmp_path: Path) -> None:
    grid = load(tmp_path, GRID + RATE)
    pace = paced(grid, 1.0, ["standard", "full", "delta"])
    price, hours = plan(grid, pace).tuning, plan(grid, pace).hours
    assert price is not None
    assert price.hours is not None
    assert hours is not None
    # Nine trials of every cell, whose runs are two.
    assert price.hours == pytest.approx(hours * 9 / 2)
    limited = load(tmp_path, GRID + RATE + f"limits: {{gpu_hours: {2 * hours}}}\n")
    with pytest.raises(GridError, match="device hours, more than"):
        plan(limited, pace)
    rates = best_rates(standard=0.02, full=0.02, delta=0.02)
    assert plan(apply_tuned(limited, searched(limited, rates)), pace).hours == hours
