"""The plan: prices, totals, hours only where they are known, limits, manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cost import run_cost
from harness.errors import GridError
from harness.grid import load_grid
from harness.plan import plan, to_manifest
from harness.records import Manifest
from tests.harness.grid_texts import BASE, DATA, describe, load

LADDER = DATA / "grids" / "depth_ladder.yaml"


def test_every_run_has_the_cost_of_its_own_configuration() -> None:
    grid = load_grid(LADDER, describe=describe)
    for run, planned in zip(grid.runs, plan(grid).runs, strict=True):
        price = run.residual.recipe.cost(run.residual.shape, run.residual.options)
        assert planned.cost == run_cost(run.config, price, run.corpus.vocab_size)
        assert planned.config == run.config.model_dump(mode="json")
        assert (planned.run_id, planned.arm, planned.cell) == (run.run_id, run.arm, run.cell)


def test_arms_sum_to_the_whole_in_the_order_of_the_grid() -> None:
    made = plan(load_grid(LADDER, describe=describe))
    assert [arm.arm for arm in made.arms][:3] == ["standard", "full", "block(block_size=2)"]
    assert sum(arm.runs for arm in made.arms) == len(made.runs)
    assert made.tokens == sum(run.cost.tokens for run in made.runs)
    assert made.flops == pytest.approx(sum(run.cost.flops for run in made.runs), rel=1e-12)
    full = [run.cost for run in made.runs if run.arm == "full"]
    (arm,) = (arm for arm in made.arms if arm.arm == "full")
    assert (arm.runs, arm.n_params_max) == (4, max(cost.n_params for cost in full))
    assert 0 < arm.flops_residual < arm.flops
    assert made.arms[0].flops_residual == 0


def test_hours_are_unknown_without_a_measured_throughput(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "limits: {gpu_hours: 1e-9}\n")
    made = plan(grid)
    assert made.hours is None
    assert made.arms[0].hours is None
    assert made.notices[0].startswith(f"{tmp_path / 'grid.yaml'}:6: limits.gpu_hours: not checked")


def test_hours_are_flops_over_throughput(tmp_path: Path) -> None:
    made = plan(load(tmp_path, BASE + "seeds: [0, 1, 2]\n"), flops_per_s=1e10)
    assert made.hours == pytest.approx(made.flops / 1e10 / 3600)
    assert made.hours == pytest.approx(3 * 1e13 / 1e10 / 3600, rel=0.05)


def test_more_hours_than_the_limit_are_refused_at_its_line(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "limits: {gpu_hours: 0.1}\n")
    assert plan(grid, flops_per_s=1e12).hours is not None
    with pytest.raises(GridError) as caught:
        plan(grid, flops_per_s=1e9)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:6: limits.gpu_hours: the grid needs about")


def test_a_budget_below_half_a_step_is_refused_at_its_line(tmp_path: Path) -> None:
    text = BASE + "axes: {train.budget.tokens: [100000, 4000], train.lr: [1e-3, 2e-3]}\n"
    with pytest.raises(GridError) as caught:
        plan(load(tmp_path, text))
    (problem,) = caught.value.problems
    assert ":6: axes.train.budget.tokens[1]: tokens 4000 is less than half" in problem


def test_a_manifest_holds_the_grid_verbatim_and_reads_back(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE, ["train.lr=1e-3"])
    manifest = to_manifest(grid, plan(grid), created_at="2026-01-01T00:00:00+00:00")
    again = Manifest.model_validate_json(manifest.model_dump_json())
    assert again == manifest
    assert (again.grid_text, again.overrides, again.baseline) == (
        BASE,
        ["train.lr=1e-3"],
        "standard",
    )
    assert json.loads(manifest.model_dump_json())["runs"][0]["config"]["train"]["lr"] == 1e-3
