"""How runs become job arrays: by resources, split by the limit on the index, canaries ahead."""

from __future__ import annotations

import pytest

from harness.records import PlannedRun
from harness.slurm.options import Slurm
from harness.slurm.submit import Array, arrays_of, canaries_of
from tests.conftest import PlanRun


@pytest.fixture
def runs(planned: PlanRun) -> list[PlannedRun]:
    """Two arms of two widths, three seeds each; the narrow ones are cheaper."""
    return [
        planned(arm, model={"d_model": d_model}, seed=seed)
        for arm in ("standard", "full")
        for d_model in (64, 32)
        for seed in range(3)
    ]


def options(**block: object) -> Slurm:
    return Slurm.model_validate({"time": 60, **block})


def ids(arrays: list[Array]) -> list[str]:
    return [run.run_id for array in arrays for run in array.runs]


def test_the_cheapest_run_of_every_unproven_arm_goes_ahead(runs: list[PlannedRun]) -> None:
    ahead = canaries_of(runs, proven=set())
    assert [run.arm for run in ahead] == ["standard", "full"]
    assert {run.config["model"]["d_model"] for run in ahead} == {32}
    assert [run.arm for run in canaries_of(runs, proven={"standard"})] == ["full"]
    assert canaries_of(runs, proven={"standard", "full"}) == []


def test_without_anything_to_wait_for_nothing_goes_ahead(runs: list[PlannedRun]) -> None:
    assert canaries_of([runs[0], runs[-1]], proven=set()) == []


def test_every_run_is_in_exactly_one_array_and_no_array_is_too_long(
    runs: list[PlannedRun],
) -> None:
    ahead = canaries_of(runs, proven=set())
    arrays = arrays_of(runs, ahead, options(), max_array_size=3)
    assert sorted(ids(arrays)) == sorted(run.run_id for run in runs)
    assert [(array.canary, len(array.runs)) for array in arrays] == [
        (True, 2),
        *[(False, 3)] * 3,
        (False, 1),
    ]


def test_the_limit_counts_tasks_not_runs(runs: list[PlannedRun]) -> None:
    arrays = arrays_of(runs, [], options(runs_per_job=4), max_array_size=2)
    assert [len(array.runs) for array in arrays] == [8, 4]


def test_runs_of_different_resources_never_share_an_array(runs: list[PlannedRun]) -> None:
    slurm = options(overrides=[{"if": {"model.d_model": 64}, "time": 120}])
    arrays = arrays_of(runs, [], slurm, max_array_size=100)
    assert {
        array.slurm.time: {run.config["model"]["d_model"] for run in array.runs} for array in arrays
    } == {"02:00:00": {64}, "01:00:00": {32}}
