"""The plan: prices, totals, hours only where they are known, limits, manifest."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.cost import run_cost
from harness.errors import GridError
from harness.grid import Grid, load_grid
from harness.plan import Plan, plan, to_manifest
from harness.rates import Pace, Sample, group_of
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


def paced(grid: Grid, step_s: float, arms: Sequence[str] = ("standard",), **changes: Any) -> Pace:
    """Measurements of the first run of some arms: ``step_s`` a step and 60 s beside the steps."""
    samples = []
    for arm in arms:
        run = next(run for run in plan(grid).runs if run.arm == arm)
        told: dict[str, Any] = {
            "group": group_of(run.arm, run.config, run.vocab_size),
            "device": "A",
            "threads": 1,
            "processes": 1,
            "step_s": step_s,
            "step_flops": run.cost.flops / run.cost.steps,
            "overhead_s": 60.0,
            "source": "runs of x",
        }
        samples.append(Sample(**{**told, **changes}))
    return Pace("A", tuple(samples))


TWO_ARMS = BASE + "axes: {residual: [standard, full]}\nseeds: [0, 1, 2]\n"


def test_hours_are_steps_times_their_measured_time_and_what_comes_beside(tmp_path: Path) -> None:
    grid = load(tmp_path, TWO_ARMS)
    made = plan(grid, paced(grid, 3.0, ["standard", "full"]))
    standard, full = (
        [run.cost.steps for run in made.runs if run.arm == arm] for arm in ("standard", "full")
    )
    assert made.arms[0].hours == pytest.approx((3.0 * sum(standard) + 3 * 60) / 3600)
    assert made.arms[1].hours == pytest.approx((3.0 * sum(full) + 3 * 60) / 3600)
    assert made.hours == pytest.approx((3.0 * sum(standard + full) + 6 * 60) / 3600)
    assert [(arm.evidence, arm.source) for arm in made.arms] == [("measured", "runs of x")] * 2
    assert made.device == "A"
    assert made.hours_of([made.runs[0].run_id]) == pytest.approx((3.0 * standard[0] + 60) / 3600)


def test_an_arm_is_known_as_well_as_its_run_known_worst(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "axes: {residual: [standard, full], model.n_layers: [4, 6]}\n")
    made = plan(grid, paced(grid, 3.0, ["standard"]))
    assert [arm.evidence for arm in made.arms] == ["scaled", "scaled"]
    assert made.arms[0].source == "this arm by FLOPs, runs of x"
    assert plan(grid, paced(grid, 3.0, device="B")).arms[0].evidence == "none"


def test_hours_are_device_hours_whatever_number_of_devices_shares_a_run(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "execution: {devices: 2}\n")
    steps = plan(grid).runs[0].cost.steps
    measured = plan(grid, paced(grid, 3.0, processes=2))  # two devices for 1.5 s a step
    assert measured.hours == pytest.approx((3.0 * steps + 60) / 3600)
    assert measured.arms[0].evidence == "measured"
    assert plan(grid, paced(grid, 3.0)).arms[0].evidence == "scaled"


def test_more_hours_than_the_limit_are_refused_at_its_line(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "limits: {gpu_hours: 0.1}\n")
    within = plan(grid, paced(grid, 0.01))
    assert within.hours is not None
    assert not [notice for notice in within.notices if "gpu_hours" in notice]
    with pytest.raises(GridError) as caught:
        plan(grid, paced(grid, 100.0))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:6: limits.gpu_hours: the grid needs about")


def slurm_plan(folder: Path, options: str, step_s: float) -> Plan:
    """Plan three runs of ``step_s`` x steps + 60 s each."""
    grid = load(folder, BASE + f"slurm: {{{options}}}\nseeds: [0, 1, 2]\n")
    return plan(grid, paced(grid, step_s))


def steps_of(folder: Path) -> int:
    return plan(load(folder, BASE)).runs[0].cost.steps


@pytest.mark.parametrize(
    ("options", "minutes", "words"),
    [
        ("time: 60", 90, "needs about 90 min of 60 min: 1 requeue. Suggested: time: 119."),
        ("time: 60, max_requeues: 1", 150, "150 min of 60 min: 2 requeues, more than max_requeues"),
        ("time: 60, runs_per_job: 3", 30, "needs about 90 min of 60 min: 1 requeue"),
        ("time: 600", 30, "of 600 min; less time may start sooner. Suggested: time: 41."),
    ],
    ids=["too short", "too few requeues", "packed", "far too long"],
)
def test_a_time_limit_that_does_not_fit_is_told_at_its_line(
    tmp_path: Path, options: str, minutes: int, words: str
) -> None:
    step_s = (60 * minutes - 60) / steps_of(tmp_path)
    (notice,) = slurm_plan(tmp_path, options, step_s).slurm_notices
    assert notice.startswith(f"{tmp_path / 'grid.yaml'}:6: slurm.time: the longest job needs about")
    assert words in notice


@pytest.mark.parametrize(
    ("options", "minutes"),
    [
        ("time: 60", 30),
        ("time: 90, runs_per_job: 3, runs_at_once: 2", 60),
        ("time: 100, runs_per_job: 100", 90),
    ],
    ids=["alone", "packed two at a time", "packed with room to spare"],
)
def test_a_time_limit_that_fits_is_no_notice(tmp_path: Path, options: str, minutes: int) -> None:
    made = slurm_plan(tmp_path, options, (30 * 60 - 60) / steps_of(tmp_path))
    assert made.slurm_notices == ()
    (job,) = made.jobs
    assert job.runs == 3
    assert job.longest_s == pytest.approx(60 * minutes)


def test_a_job_takes_the_wall_time_of_runs_that_several_devices_share(tmp_path: Path) -> None:
    grid = load(tmp_path, BASE + "slurm: {time: 60}\nexecution: {devices: 2}\n")
    made = plan(grid, paced(grid, 3.0, processes=2))
    assert made.device_s[0] is not None
    assert made.jobs[0].longest_s == pytest.approx(made.device_s[0] / 2)


def test_runs_with_other_resources_have_a_time_of_their_own(tmp_path: Path) -> None:
    override = "{if: {residual: full}, time: 600}"
    text = TWO_ARMS + f"slurm: {{time: 60, overrides: [{override}]}}\n"
    grid = load(tmp_path, text)
    made = plan(grid, paced(grid, 1.0, ["standard", "full"]))
    assert [(job.runs, job.time_s) for job in made.jobs] == [(3, 3600), (3, 36000)]
    assert plan(grid).jobs == ()


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
