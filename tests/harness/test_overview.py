"""What is said of a sweep as a whole: the fair loss, time left, what runs wait for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from harness.common_step import CommonStep, CurveReader, common_step
from harness.overview import Overview, Surroundings, overview
from harness.paths import SweepPaths
from harness.records import PlannedRun, read_manifest
from harness.slurm.types import Place
from harness.status import RunState, sweep_states
from tests.harness.sweep_folders import (
    STEP_TIME_S,
    begin,
    finish,
    interrupt,
    log_steps,
    loss_at,
    planned_run,
    write_sweep,
)

AROUND = Surroundings(sweep="depth", at=0.0, lease_s=60.0)


def compared(sweep: SweepPaths) -> CommonStep | None:
    return common_step(sweep_states(sweep, read_manifest(sweep)), CurveReader(sweep))


def seen(states: Sequence[RunState], around: Surroundings = AROUND) -> Overview:
    return overview(states, None, around)


RUNS = {
    (arm, n_layers, seed): planned_run(arm, seed, n_layers=n_layers)
    for arm in ("standard", "full")
    for n_layers in (4, 8)
    for seed in (0, 1)
}


class TestCommonStep:
    """Two arms, two sizes, two seeds, of which little has begun."""

    @pytest.fixture
    def sweep(self, tmp_path: Path) -> SweepPaths:
        return write_sweep(tmp_path, list(RUNS.values()))

    def test_nothing_is_compared_before_two_arms_were_validated(self, sweep: SweepPaths) -> None:
        assert compared(sweep) is None
        interrupt(sweep, RUNS["standard", 4, 0], 40)
        interrupt(sweep, RUNS["full", 4, 0], 10)  # its first validation is at step 15
        assert compared(sweep) is None

    def test_arms_are_compared_at_the_last_step_that_both_have_reached(
        self, sweep: SweepPaths
    ) -> None:
        ahead, behind = RUNS["standard", 4, 0], RUNS["full", 4, 0]
        finish(sweep, ahead)
        interrupt(sweep, behind, 40)
        found = compared(sweep)
        assert found is not None
        assert (found.steps, found.share, found.n_runs) == ((30, 30), 0.5, 1)
        assert found.losses == {"standard": loss_at(ahead, 30), "full": loss_at(behind, 30)}
        assert "n_layers=4" in found.size

    def test_only_seeds_that_all_arms_have_are_averaged(self, sweep: SweepPaths) -> None:
        for arm, seed in (("standard", 0), ("standard", 1), ("full", 1)):
            finish(sweep, RUNS[arm, 4, seed])
        found = compared(sweep)
        assert found is not None
        assert found.n_runs == 1
        assert found.losses["standard"] == loss_at(RUNS["standard", 4, 1], 60)

    def test_seeds_are_averaged_per_arm(self, sweep: SweepPaths) -> None:
        for run in RUNS.values():
            finish(sweep, run)
        found = compared(sweep)
        assert found is not None
        assert "n_layers=8" in found.size
        both = [loss_at(RUNS["full", 8, seed], 60) for seed in (0, 1)]
        assert found.losses["full"] == pytest.approx(sum(both) / 2)

    def test_a_larger_size_is_left_out_while_an_arm_is_missing_there(
        self, sweep: SweepPaths
    ) -> None:
        finish(sweep, RUNS["standard", 8, 0])
        for arm in ("standard", "full"):
            interrupt(sweep, RUNS[arm, 4, 0], 20)
        found = compared(sweep)
        assert found is not None
        assert ("n_layers=4" in found.size, found.steps) == (True, (15, 15))

    def test_a_run_that_diverged_neither_counts_nor_blocks(self, sweep: SweepPaths) -> None:
        finish(sweep, RUNS["standard", 4, 0], "diverged")
        for arm in ("standard", "full"):
            finish(sweep, RUNS[arm, 4, 1])
        found = compared(sweep)
        assert found is not None
        assert (found.share, found.n_runs) == (1.0, 1)

    def test_the_newest_attempt_counts_where_a_step_was_trained_twice(
        self, sweep: SweepPaths
    ) -> None:
        run = RUNS["full", 4, 0]
        finish(sweep, RUNS["standard", 4, 0])
        interrupt(sweep, run, 20)
        metrics = sweep.run(run.run_id).metrics
        old = f'"loss_nats": {loss_at(run, 15)}'
        text = metrics.read_text(encoding="utf-8").replace(old, '"loss_nats": 9.0')
        metrics.write_text(text, encoding="utf-8")
        log_steps(sweep, run, 16, first=10, attempt=2)
        found = compared(sweep)
        assert found is not None
        assert found.losses["full"] == loss_at(run, 15)


def test_arms_whose_budgets_give_them_different_steps_are_compared_at_one_share(
    tmp_path: Path,
) -> None:
    runs = [planned_run("standard", steps=61), planned_run("full", steps=57)]
    sweep = write_sweep(tmp_path, runs)
    for run in runs:
        interrupt(sweep, run, 50)
    found = compared(sweep)
    assert found is not None
    assert found.steps == (43, 46)  # three quarters, rounded up
    assert found.losses == {"standard": loss_at(runs[0], 46), "full": loss_at(runs[1], 43)}


def test_a_curve_is_read_on_where_it_was_left(tmp_path: Path) -> None:
    run = planned_run()
    sweep = write_sweep(tmp_path, [run])
    curves, metrics = CurveReader(sweep), sweep.run(run.run_id).metrics
    assert curves(RunState(run, "running")) == {}
    log_steps(sweep, run, 20)
    with metrics.open("a", encoding="utf-8") as stream:
        stream.write('{"kind": "val", "step": 30, "loss_nats": 2.')
    assert list(curves(RunState(run, "running"))) == [15]
    with metrics.open("a", encoding="utf-8") as stream:
        stream.write('5, "attempt": 1}\n')
    assert curves(RunState(run, "running")) == {15: loss_at(run, 15), 30: 2.5}


@pytest.fixture
def working(tmp_path: Path) -> Iterator[list[RunState]]:
    """One run half way at work, one done, two that wait: of 60 steps each."""
    runs = [planned_run(seed=seed) for seed in range(4)]
    sweep = write_sweep(tmp_path, runs)
    finish(sweep, runs[0])
    lease = begin(sweep, runs[1], 30)
    yield sweep_states(sweep, read_manifest(sweep))
    lease.end("interrupted")


def test_time_left_is_the_work_left_over_the_runs_at_work(working: list[RunState]) -> None:
    view = seen(working)
    assert view.total.run_seconds_left == pytest.approx((30 + 60 + 60) * STEP_TIME_S)
    assert view.seconds_left == pytest.approx((30 + 60 + 60) * STEP_TIME_S)
    assert view.total.tokens_per_s == 1024 / STEP_TIME_S
    assert (view.total.tokens, view.total.share) == (90 * 1024, 90 / 240)


def test_the_longest_run_at_work_bounds_the_time_left() -> None:
    runs = [planned_run(seed=0), planned_run(seed=1, steps=600)]
    states = [RunState(run, "running", step=50, step_time_s=1.0) for run in runs]
    assert seen(states).seconds_left == 550.0


def test_time_left_is_unknown_before_anything_was_measured() -> None:
    view = seen([RunState(planned_run(), "planned"), RunState(planned_run(seed=1), "running")])
    assert view.total.run_seconds_left is None
    assert view.seconds_left is None


def test_another_cell_is_estimated_by_its_flops() -> None:
    small, large = planned_run(n_layers=4), planned_run(n_layers=8)
    states = [RunState(small, "running", step=0, step_time_s=1.0), RunState(large, "planned")]
    assert seen(states).total.run_seconds_left == pytest.approx(60 + 120)


def queued(seed: int, text: str, *, never: bool = False) -> RunState:
    place = Place(f"7_{seed}", "pending", text, never)
    return RunState(planned_run(seed=seed), "queued", place=place)


def test_what_runs_wait_for_is_grouped_and_counted() -> None:
    states = [
        *(queued(seed, "waits for a free slot (Resources)") for seed in range(3)),
        queued(3, "waits behind jobs of higher priority (Priority)"),
        queued(4, "you run all you may (QOSMaxJobsPerUserLimit)"),
        RunState(planned_run(seed=5), "queued"),
    ]
    assert seen(states).waits == (
        "3 runs wait for a free slot (Resources)",
        "1 run waits behind jobs of higher priority (Priority)",
        "1 run: you run all you may (QOSMaxJobsPerUserLimit)",
        "1 run waits for a free worker of `isoloss run`",
    )


def test_runs_that_never_start_are_told_apart_with_what_to_do() -> None:
    text = "will never start as it is: asks for too much (BadConstraints): lower it"
    view = seen([queued(0, text, never=True), queued(1, text, never=True), queued(2, "waits")])
    assert view.never == ("2 runs: asks for too much (BadConstraints): lower it (job 7_0)",)
    assert view.waits == ("1 run: waits",)


def test_silent_runs_are_named_and_many_are_counted() -> None:
    states = [
        RunState(planned_run(seed=seed), "running", holder="node3, job 1_2", silent_s=45.4)
        for seed in range(7)
    ]
    told = seen(states).silent
    assert told[0] == (
        f"run {planned_run().run_id}: no sign of life for 45 s from node3, job 1_2; "
        "taken for dead after 60 s"
    )
    assert (len(told), told[-1]) == (6, "2 more runs give no sign of life")


def failed(seed: int, error: str) -> RunState:
    return RunState(planned_run(seed=seed), "failed", reason=f"failed: {error}")


def test_failures_are_grouped_by_signature_the_most_frequent_first() -> None:
    errors = ["A: 1", "B: 1", "B: 2", "C: 1", "D: 1"]
    assert seen([failed(i, error) for i, error in enumerate(errors)]).failures == (
        *("2 failed: B: #", "1 failed: A: #", "1 failed: C: #", "1 more kinds of failures"),
    )


def test_only_arms_with_runs_that_wait_are_said_to_be_held() -> None:
    around = replace(AROUND, held_arms={"standard": "run 1 failed", "full": "run 2 failed"})
    states = [RunState(planned_run(), "planned"), RunState(planned_run("full"), "failed")]
    assert seen(states, around).held == ("run 1 failed",)
    broken = replace(around, breaker="3 runs failed alike")
    assert seen(states, broken).held == ("3 runs failed alike",)
    assert seen(states[1:], broken).held == ()


def with_statuses(*statuses: str) -> list[RunState]:
    runs: list[PlannedRun] = [planned_run(seed=seed) for seed in range(len(statuses))]
    return [RunState(run, status) for run, status in zip(runs, statuses, strict=True)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("statuses", "command"),
    [
        (("done", "running"), "isoloss status depth --results r --watch"),
        (("done", "planned"), "isoloss run g.yaml --results r"),
        (("done", "planned", "failed"), "isoloss failures depth --results r"),
        (("done", "diverged"), "isoloss report depth --results r"),
        (("cancelled",), "isoloss retry depth --results r"),
        (("failed", "queued"), "isoloss status depth --results r --watch"),
    ],
)
def test_the_next_command_fits_the_state(statuses: tuple[str, ...], command: str) -> None:
    around = replace(AROUND, grid="g.yaml", options=("--results r",))
    assert seen(with_statuses(*statuses), around).next_command == command


def test_runs_that_are_held_or_whose_jobs_ended_are_looked_at_before_they_are_run() -> None:
    states = with_statuses("done", "planned", "planned")
    ended = seen(states, replace(AROUND, n_unbegun=2))
    assert ended.next_command == "isoloss failures depth"
    assert ended.failures == (
        "2 runs: their jobs ended before they began, see isoloss failures depth",
    )
    held = replace(AROUND, held_arms={"standard": "run 1 failed"})
    assert seen(states, held).next_command == "isoloss failures depth"


def test_a_watch_is_not_told_to_watch() -> None:
    around = replace(AROUND, watching=True)
    assert seen(with_statuses("running", "planned"), around).next_command is None


def test_a_sweep_has_ended_when_nothing_happens_by_itself() -> None:
    assert seen(with_statuses("done", "failed", "cancelled", "diverged")).ended
    for status in ("running", "queued", "planned"):
        assert not seen(with_statuses("done", status)).ended
