"""Equal failures: what counts as equal, when the breaker opens, which arms are held."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import Execution
from harness.failure_groups import deepest_own_frame, failure_groups
from harness.failures import (
    EQUAL_FAILURES,
    MAX_SIGNATURE,
    FailureLog,
    equal_failures,
    held_arms,
    hold_reason,
    open_breaker,
    record_failure,
    signature,
)
from harness.paths import SweepPaths
from harness.records import PlannedRun, read_manifest
from harness.slurm.types import Place
from harness.slurm.unbegun import unbegun_runs
from harness.status import sweep_states
from tests.harness.sweep_folders import (
    finish,
    held_elsewhere,
    interrupt,
    planned_run,
    submit,
    write_sweep,
)

OOM = "OutOfMemory: tried to allocate {} MiB on node3"
RUNS = [planned_run(arm, seed) for arm in ("standard", "full") for seed in range(4)]
STANDARD, FULL = RUNS[:4], RUNS[4:]


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    return write_sweep(tmp_path / "results", RUNS)


def fail(sweep: SweepPaths, run: PlannedRun, error: str) -> None:
    finish(sweep, run, "failed", error)
    record_failure(sweep, run, error, 1)


def set_free(sweep: SweepPaths, run: PlannedRun) -> None:
    here = sweep.run(run.run_id)
    here.record.rename(here.attempt(here.n_attempts()) / "record.json")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("RuntimeError: CUDA error at 0x7f01", "RuntimeError: CUDA error at 0x8a22ff"),
        ("ValueError: run 3f2a9cde0012 is bad", "ValueError: run 91bc00aa7711 is bad"),
        ("OSError: [Errno 28] No space: '/data/a/x'", "OSError: [Errno 28] No space: '/scratch/y'"),
        ("KeyError: results/depth/runs/ab", "KeyError: results/width/runs/cd"),
        ("RuntimeError: got [3, 4, 5]", "RuntimeError: got [12, 7]"),
        ("failed: ValueError: loss 1e-05", "ValueError:  loss   -2.5"),
        ("E: 1f0c8b1e-1111-4222-8333-123456789abc", "E: 00000000-aaaa-4bbb-8ccc-000000000000"),
    ],
)
def test_errors_that_differ_in_numbers_paths_and_ids_are_equal(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("RuntimeError: expected float32", "RuntimeError: expected float64"),
        ("ValueError: bad", "TypeError: bad"),
        ("KeyError: 'lr'", "KeyError: 'beta1'"),
        ("RuntimeError: layer_a diverged", "RuntimeError: layer_b diverged"),
    ],
)
def test_errors_that_differ_in_words_are_not(one: str, other: str) -> None:
    assert signature(one) != signature(other)


@given(st.text(max_size=400))
def test_a_signature_is_one_bounded_line_whatever_the_error(error: str) -> None:
    made = signature(error)
    assert len(made) <= MAX_SIGNATURE
    assert made == " ".join(made.split())


def test_nothing_is_held_while_nothing_fails(sweep: SweepPaths) -> None:
    assert hold_reason(sweep, RUNS[0], 1) is None
    assert equal_failures(sweep) == {}


def test_the_breaker_opens_at_so_many_equal_failures_of_different_runs(sweep: SweepPaths) -> None:
    for number, run in enumerate(STANDARD[:2]):
        fail(sweep, run, OOM.format(number))
    record_failure(sweep, STANDARD[1], OOM.format(9), 2)  # the same run once more
    assert open_breaker(sweep, 3) is None
    fail(sweep, FULL[0], OOM.format(77))
    told = open_breaker(sweep, 3)
    assert told is not None
    assert told.startswith("3 runs failed alike (OutOfMemory:")
    assert "isoloss retry depth" in told
    assert hold_reason(sweep, FULL[3], 3) == told


def test_different_failures_do_not_open_it(sweep: SweepPaths) -> None:
    for run, error in zip(STANDARD, ("A: x", "B: x", "C: x", "D: x"), strict=True):
        fail(sweep, run, error)
    assert open_breaker(sweep, 2) is None
    assert sorted(equal_failures(sweep)) == ["A: x", "B: x", "C: x", "D: x"]


def test_the_most_frequent_failure_comes_first(sweep: SweepPaths) -> None:
    fail(sweep, STANDARD[0], "A: x")
    for run in FULL[:2]:
        fail(sweep, run, "B: x")
    assert equal_failures(sweep) == {
        "B: x": [run.run_id for run in FULL[:2]],
        "A: x": [STANDARD[0].run_id],
    }


def test_retry_closes_the_breaker_and_frees_the_arm(sweep: SweepPaths) -> None:
    for run in STANDARD[:2]:
        fail(sweep, run, "A: x")
    assert hold_reason(sweep, STANDARD[2], 2)
    for run in STANDARD[:2]:
        set_free(sweep, run)
    assert hold_reason(sweep, STANDARD[2], 2) is None


def test_a_run_that_failed_once_and_then_finished_is_no_failure(sweep: SweepPaths) -> None:
    fail(sweep, STANDARD[0], "A: x")
    set_free(sweep, STANDARD[0])
    finish(sweep, STANDARD[0])
    assert equal_failures(sweep) == {}
    assert held_arms(sweep) == {}


def test_an_arm_without_a_result_is_held_after_its_first_failure(sweep: SweepPaths) -> None:
    fail(sweep, STANDARD[0], "A: x")
    told = hold_reason(sweep, STANDARD[1], 3)
    assert told is not None
    assert STANDARD[0].run_id in told
    assert hold_reason(sweep, FULL[0], 3) is None


@pytest.mark.parametrize("status", ["done", "diverged"])
def test_an_arm_with_a_result_goes_on(sweep: SweepPaths, status: str) -> None:
    finish(sweep, STANDARD[1], status)  # type: ignore[arg-type]
    fail(sweep, STANDARD[0], "A: x")
    assert hold_reason(sweep, STANDARD[2], 3) is None


def test_another_arms_result_does_not_free_it(sweep: SweepPaths) -> None:
    finish(sweep, FULL[1])
    fail(sweep, STANDARD[0], "A: x")
    assert hold_reason(sweep, STANDARD[2], 3)


def test_a_result_frees_its_arm_although_the_records_were_looked_through_just_before(
    sweep: SweepPaths,
) -> None:
    fail(sweep, STANDARD[0], OOM)
    assert hold_reason(sweep, STANDARD[1], 9), "this looked through the records"
    finish(sweep, FULL[0])
    fail(sweep, FULL[1], OOM)
    assert hold_reason(sweep, FULL[2], 9) is None


def test_a_torn_line_loses_only_itself(sweep: SweepPaths) -> None:
    fail(sweep, STANDARD[0], "A: x")
    with sweep.failures.open("ab") as stream:
        stream.write(b'{"run_id": "torn')
    fail(sweep, STANDARD[1], "A: x")
    assert equal_failures(sweep) == {"A: x": [run.run_id for run in STANDARD[:2]]}


def test_an_unchanged_log_is_not_read_again(sweep: SweepPaths) -> None:
    fail(sweep, STANDARD[0], "A: x")
    log = FailureLog(sweep)
    assert log.rows() is log.rows()
    fail(sweep, STANDARD[1], "A: x")
    assert len(log.rows()) == 2


def test_the_default_limit_is_that_of_the_configuration() -> None:
    assert Execution().equal_failures == EQUAL_FAILURES


TRACEBACK = """epoch 1
Traceback (most recent call last):
  File "/old/harness/worker.py", line 1, in earlier
ValueError: earlier
Traceback (most recent call last):
  File "/home/u/isoloss/harness/worker.py", line 208, in _train
    record = train(run)
  File "/home/u/.venv/lib/python3.11/site-packages/lightning/trainer.py", line 5, in fit
    call()
  File "/home/u/results/x/code/abc/recipes/full.py", line 77, in read
    raise ValueError
  File "/home/u/.venv/lib/python3.11/site-packages/torch/nn/module.py", line 9, in forward
ValueError: no
"""


def test_the_frame_is_the_deepest_of_our_code_in_the_last_traceback() -> None:
    assert deepest_own_frame(TRACEBACK) == "recipes/full.py:77 in read"
    assert deepest_own_frame("no traceback") is None
    theirs = (
        'Traceback (most recent call last):\n  File "/home/me/mine/variant.py", line 3, in go\n'
    )
    assert deepest_own_frame(theirs) == "mine/variant.py:3 in go"


def groups_of(
    sweep: SweepPaths,
    words: Mapping[str, str] | None = None,
    places: Mapping[str, Place] | None = None,
) -> list[tuple[str, int]]:
    def words_of(jobs: Sequence[str]) -> Mapping[str, str]:
        return {job: word for job, word in (words or {}).items() if job in jobs}

    states = sweep_states(sweep, read_manifest(sweep), places or {})
    groups = failure_groups(sweep, states, time.time(), 60.0, words_of, unbegun_runs(sweep, states))
    return [(group.cases[0].signature, len(group.run_ids)) for group in groups]


def test_failures_are_grouped_by_error_and_frame(sweep: SweepPaths) -> None:
    for number, run in enumerate(STANDARD[:3]):
        fail(sweep, run, f"ValueError: shape {number}")
    log = sweep.run(STANDARD[2].run_id).attempt(1) / "log"
    log.write_text(TRACEBACK, encoding="utf-8")
    fail(sweep, FULL[0], "KeyError: 'lr'")
    assert sorted(groups_of(sweep)) == [
        ("KeyError: 'lr'", 1),
        ("ValueError: shape #", 1),
        ("ValueError: shape #", 2),
    ]


def test_attempts_that_died_without_a_word_are_told_with_slurms_word(sweep: SweepPaths) -> None:
    held_elsewhere(sweep.run(STANDARD[0].run_id), age_s=500, job="7_1")
    held_elsewhere(sweep.run(STANDARD[1].run_id), age_s=500, job="7_2")
    held_elsewhere(sweep.run(STANDARD[2].run_id), age_s=1, job="7_3")  # alive
    interrupt(sweep, STANDARD[3], 5)
    finish(sweep, FULL[0])
    assert groups_of(sweep) == [("died without a word", 2)]
    assert groups_of(sweep, {"7_1": "OUT_OF_MEMORY", "7_3": "FAILED"}) == [
        ("died without a word (Slurm: OUT_OF_MEMORY, the node ran out of memory)", 1),
        ("died without a word", 1),
    ]


def test_a_death_before_a_good_end_is_told_too(sweep: SweepPaths) -> None:
    held_elsewhere(sweep.run(STANDARD[0].run_id), age_s=500)
    finish(sweep, STANDARD[0])
    assert groups_of(sweep) == [("died without a word", 1)]


SETUP = "script.sh: line {}: module: command not found\n"
NEVER = "job ended before the run began: "


def test_jobs_that_ended_before_their_runs_began_are_grouped_by_their_last_line(
    sweep: SweepPaths,
) -> None:
    ids = [run.run_id for run in STANDARD]
    out = submit(sweep, "i0000001", [ids[:2], [ids[2]], [ids[3]]], "77")
    said = "isoloss: 2026-11-30T01:00:00 task 77_1: worker ended with exit code 1\n"
    (out / "77_0.log").write_text(SETUP.format(20), encoding="utf-8")
    (out / "77_1.log").write_text(SETUP.format(31) + said, encoding="utf-8")
    assert groups_of(sweep) == [(f"{NEVER}script.sh: line #: module: command not found", 3)]
    waits = {ids[2]: Place("77_1", "pending", "waits", never=False)}
    assert [count for _, count in groups_of(sweep, places=waits)] == [2]
    (out / "77_2.log").touch()
    assert (f"{NEVER}printed nothing", 1) in groups_of(sweep)


def test_only_the_newest_job_of_a_run_counts(sweep: SweepPaths) -> None:
    ids = [run.run_id for run in STANDARD]
    out = submit(sweep, "i0000001", [ids], "77")
    (out / "77_0.log").write_text(SETUP.format(20), encoding="utf-8")
    submit(sweep, "i0000002", [[ids[0]]], "78")  # has not written anything
    assert [count for _, count in groups_of(sweep)] == [3]


def test_a_job_that_began_another_run_did_not_fail_in_its_setup(sweep: SweepPaths) -> None:
    first, second = (run.run_id for run in STANDARD[:2])
    out = submit(sweep, "i0000001", [[first, second]], "77")
    (out / "77_0.log").write_text("stopped\n", encoding="utf-8")
    held_elsewhere(sweep.run(first), age_s=500, job="77_0")
    assert groups_of(sweep) == [("died without a word", 1)]
