"""What a run is said to be: files first, the scheduler second, and a cache that never lies."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.config import Execution
from harness.errors import DataError, IsolossError
from harness.lease import LEASE_S, acquire
from harness.paths import SweepPaths
from harness.records import PlannedRun, read_manifest
from harness.slurm.types import Place
from harness.status import (
    RunState,
    StateReader,
    find_run,
    last_row,
    lease_seconds,
    sweep_states,
)
from harness.status_cache import WORTH_SAVING
from tests.harness.sweep_folders import (
    STEP_TIME_S,
    begin,
    finish,
    held_elsewhere,
    interrupt,
    log_steps,
    loss_at,
    planned_run,
    write_sweep,
)

RUN = planned_run()
WAITING = Place("9_3", "pending", "waits for a free slot (Resources)")


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    return write_sweep(tmp_path / "results", [RUN])


def state_of(sweep: SweepPaths, places: dict[str, Place] | None = None) -> RunState:
    (state,) = sweep_states(sweep, read_manifest(sweep), places or {})
    return state


def test_a_run_without_a_folder_is_planned(sweep: SweepPaths) -> None:
    state = state_of(sweep)
    assert (state.status, state.step, state.attempts, state.resumable) == ("planned", 0, 0, False)


def test_a_run_with_nothing_but_its_configuration_is_planned(sweep: SweepPaths) -> None:
    here = sweep.run(RUN.run_id)
    here.root.mkdir(parents=True)
    here.config.write_text("run_id: x\n", encoding="utf-8")
    assert state_of(sweep).status == "planned"


def test_a_live_lease_makes_it_running_with_its_holder_step_and_pace(sweep: SweepPaths) -> None:
    lease = begin(sweep, RUN, 20)
    try:
        state = state_of(sweep)
    finally:
        lease.end("interrupted")
    assert state.status == "running"
    assert state.holder is not None
    assert str(os.getpid()) in state.holder
    assert state.silent_s is None
    assert (state.step, state.attempts) == (20, 1)
    assert state.tokens == 20 * 1024
    assert state.tokens_per_s == 1024 / STEP_TIME_S
    assert state.seconds_left == 40 * STEP_TIME_S


def test_a_late_heartbeat_from_another_host_is_told_with_its_age(sweep: SweepPaths) -> None:
    held_elsewhere(sweep.run(RUN.run_id), age_s=40)
    state = state_of(sweep)
    assert state.status == "running"
    assert state.holder == "node3, job 123_4"
    assert state.silent_s == pytest.approx(40, abs=5)


def test_a_lease_of_silence_makes_it_resumable(sweep: SweepPaths) -> None:
    held_elsewhere(sweep.run(RUN.run_id), age_s=LEASE_S + 10)
    log_steps(sweep, RUN, 30)
    state = state_of(sweep)
    assert (state.status, state.resumable, state.step) == ("planned", True, 30)
    assert state.holder is None


def test_the_grid_says_how_long_silence_may_last(tmp_path: Path) -> None:
    text = "sweep: depth\nexecution: {lease_s: 600}\n"
    sweep = write_sweep(tmp_path, [RUN], grid_text=text)
    held_elsewhere(sweep.run(RUN.run_id), age_s=LEASE_S + 10)
    assert state_of(sweep).status == "running"
    overridden = read_manifest(sweep).model_copy(update={"overrides": ["execution.lease_s=30"]})
    assert lease_seconds(overridden) == 30.0


def test_the_default_of_the_lease_is_that_of_the_configuration(sweep: SweepPaths) -> None:
    assert lease_seconds(read_manifest(sweep)) == Execution().lease_s


@pytest.mark.parametrize("status", ["done", "diverged", "failed", "cancelled"])
def test_a_record_is_the_last_word(sweep: SweepPaths, status: str) -> None:
    finish(sweep, RUN, status)  # type: ignore[arg-type]
    held_elsewhere(sweep.run(RUN.run_id), age_s=1)
    state = state_of(sweep, {RUN.run_id: WAITING})
    assert state.status == status
    assert state.ended
    assert state.loss_nats == (loss_at(RUN, 60) if status == "done" else None)


def test_a_living_controller_makes_waiting_runs_queued(sweep: SweepPaths) -> None:
    lease = acquire(sweep.controllers / "node1-17")
    assert lease is not None
    assert state_of(sweep).status == "queued"
    lease.end("done")
    assert state_of(sweep).status == "planned"


def test_only_the_runs_that_a_controller_has_in_hand_are_queued(tmp_path: Path) -> None:
    runs = [planned_run(seed=seed) for seed in range(3)]
    sweep = write_sweep(tmp_path, runs)
    told = sweep.controller_runs("node1-17")
    told.parent.mkdir(parents=True)
    told.write_text(f"{runs[1].run_id}\n", encoding="utf-8")
    lease = acquire(told.parent)
    assert lease is not None
    states = sweep_states(sweep, read_manifest(sweep))
    assert [state.status for state in states] == ["planned", "queued", "planned"]
    lease.end("done")
    assert {s.status for s in sweep_states(sweep, read_manifest(sweep))} == {"planned"}


def test_a_place_in_the_queue_makes_it_queued_and_says_why_it_waits(sweep: SweepPaths) -> None:
    interrupt(sweep, RUN, 10)
    state = state_of(sweep, {RUN.run_id: WAITING})
    assert (state.status, state.resumable, state.place) == ("queued", True, WAITING)


def test_files_outweigh_the_queue(sweep: SweepPaths) -> None:
    lease = begin(sweep, RUN)
    state = state_of(sweep, {RUN.run_id: WAITING})
    lease.end("interrupted")
    assert (state.status, state.place) == ("running", WAITING)


def test_a_cancelled_run_is_cancelled_once_nobody_works_on_it(sweep: SweepPaths) -> None:
    lease = begin(sweep, RUN)
    sweep.run(RUN.run_id).cancel.touch()
    assert state_of(sweep).status == "running"
    lease.end("cancelled")
    assert state_of(sweep).status == "cancelled"


def test_looking_takes_nothing_and_leaves_nothing_in_the_run(sweep: SweepPaths) -> None:
    interrupt(sweep, RUN, 10)
    folder = sweep.run(RUN.run_id).root
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    state_of(sweep)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    lease = acquire(sweep.run(RUN.run_id).attempts)
    assert lease is not None
    lease.end("interrupted")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "done"}', '{"status": "well"}'])
def test_a_damaged_record_is_named(sweep: SweepPaths, text: str) -> None:
    finish(sweep, RUN)
    record = sweep.run(RUN.run_id).record
    record.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=str(record)):
        state_of(sweep)


def test_a_torn_last_row_is_passed_over(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    rows = [{"kind": "train", "step": 4}, {"kind": "val", "step": 5}]
    metrics.write_text("\n".join(map(json.dumps, rows)) + '\n{"kind": "train", "st', "utf-8")
    assert last_row(metrics) == rows[0]
    assert last_row(tmp_path / "absent") is None


def test_runs_are_found_by_the_start_of_their_id(tmp_path: Path) -> None:
    runs = [planned_run(seed=0), planned_run(seed=1)]
    sweep = write_sweep(tmp_path, runs)
    manifest = read_manifest(sweep)
    assert find_run(sweep, manifest, runs[1].run_id) == runs[1]
    with pytest.raises(IsolossError, match="2 runs match"):
        find_run(sweep, manifest, runs[0].run_id[:4])
    with pytest.raises(IsolossError, match="no run matches"):
        find_run(sweep, manifest, "zz")


class TestCache:
    """Enough runs that the cache is written: all ended, the first of them the one to watch."""

    @pytest.fixture(scope="class")
    def runs(self) -> list[PlannedRun]:
        return [planned_run(seed=seed, steps=4) for seed in range(WORTH_SAVING)]

    @pytest.fixture
    def ended(self, tmp_path: Path, runs: list[PlannedRun]) -> SweepPaths:
        sweep = write_sweep(tmp_path, runs)
        finish(sweep, runs[0])
        template = sweep.run(runs[0].run_id).record.read_text(encoding="utf-8")
        for run in runs[1:]:
            here = sweep.run(run.run_id)
            here.root.mkdir()
            text = template.replace(runs[0].run_id, run.run_id)
            here.record.write_text(text, encoding="utf-8")
        assert self.statuses(sweep) == {"done"}
        assert sweep.status_cache.exists()
        return sweep

    def statuses(self, sweep: SweepPaths) -> set[str]:
        return {state.status for state in sweep_states(sweep, read_manifest(sweep))}

    def test_an_unchanged_record_is_not_read_again(
        self, ended: SweepPaths, runs: list[PlannedRun]
    ) -> None:
        record = ended.run(runs[0].run_id).record
        about = record.stat()
        with record.open("r+", encoding="utf-8") as stream:  # same file, size and time
            stream.write("#" * about.st_size)
        os.utime(record, ns=(about.st_atime_ns, about.st_mtime_ns))
        assert self.statuses(ended) == {"done"}

    def test_a_record_that_was_set_aside_counts_no_more(
        self, ended: SweepPaths, runs: list[PlannedRun]
    ) -> None:
        here = ended.run(runs[0].run_id)
        here.record.rename(here.attempt(1) / "record.json")
        state = sweep_states(ended, read_manifest(ended))[0]
        assert (state.status, state.resumable) == ("planned", True)

    def test_a_record_that_was_replaced_is_read_again(
        self, ended: SweepPaths, runs: list[PlannedRun]
    ) -> None:
        record = ended.run(runs[0].run_id).record
        about = record.stat()
        text = record.read_text(encoding="utf-8").replace('"status": "done"', '"status": "failed"')
        new = record.with_name("new")
        new.write_text(text, encoding="utf-8")
        os.utime(new, ns=(about.st_atime_ns, about.st_mtime_ns))
        new.replace(record)
        assert sweep_states(ended, read_manifest(ended))[0].status == "failed"

    @pytest.mark.parametrize(
        "text", ["", "[]", '{"version": 0}', '{"version": 1, "runs": {"a": [1]}}', "\x00"]
    )
    def test_a_damaged_cache_is_ignored(self, ended: SweepPaths, text: str) -> None:
        ended.status_cache.write_text(text, encoding="utf-8")
        assert self.statuses(ended) == {"done"}

    def test_a_cache_that_cannot_be_written_is_done_without(self, ended: SweepPaths) -> None:
        ended.status_cache.unlink()
        ended.status_cache.mkdir()
        assert self.statuses(ended) == {"done"}


def test_a_run_at_rest_is_seen_to_begin_again(tmp_path: Path) -> None:
    sweep = write_sweep(tmp_path, [RUN])
    interrupt(sweep, RUN, 10)
    attempts = sweep.run(RUN.run_id).attempts
    os.utime(attempts, (1.0, 1.0))  # long ago, so that its state may be remembered
    reader = StateReader(sweep, [RUN])
    assert [state.status for state in reader.look()] == ["planned"]
    lease = begin(sweep, RUN, 20)
    assert [(s.status, s.attempts) for s in reader.look()] == [("running", 2)]
    lease.end("interrupted")
    assert [(s.status, s.step) for s in reader.look()] == [("planned", 20)]


def test_a_run_that_rests_since_a_moment_is_not_taken_for_granted(sweep: SweepPaths) -> None:
    interrupt(sweep, RUN, 10)
    reader, attempts = StateReader(sweep, [RUN]), sweep.run(RUN.run_id).attempts
    assert reader.look()[0].status == "planned"
    before = attempts.stat()
    lease = begin(sweep, RUN, 20)
    os.utime(attempts, ns=(before.st_atime_ns, before.st_mtime_ns))  # a clock of coarse ticks
    assert reader.look()[0].status == "running"
    lease.end("interrupted")


def test_a_reader_sees_every_change_between_two_looks(sweep: SweepPaths) -> None:
    reader = StateReader(sweep, [RUN])
    seen = [reader.look()[0]]
    lease = begin(sweep, RUN, 10)
    seen.append(reader.look()[0])
    log_steps(sweep, RUN, 20, first=10)
    seen.append(reader.look()[0])
    lease.end("interrupted")
    seen.append(reader.look()[0])
    finish(sweep, RUN)
    seen.append(reader.look()[0])
    told = [(state.status, state.step) for state in seen]
    assert told == [
        *(("planned", 0), ("running", 10), ("running", 20), ("planned", 20), ("done", 60)),
    ]
