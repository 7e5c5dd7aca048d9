"""Shared trunks: same results as training alone to the last bit, fewer steps, any kill survived."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from harness import callbacks
from harness.checkpoints import newest_checkpoint, step_of
from harness.config import Execution
from harness.job import Job
from harness.lease import acquire
from harness.paths import RunPaths, SweepPaths
from harness.records import Manifest, PlannedRun, RunRecord, read_jsonl, read_record, write_manifest
from harness.stop import StopSignal
from harness.training import train
from harness.trunks import own_steps, run_ahead, sharing, states, with_trunks
from harness.worker import Worker
from tests.conftest import make_config, plan_run, run_folder
from tests.harness.test_training import StopAt, begin_attempt, losses, train_once

QUICK = Execution(n_evals=2, log_every=1, n_diagnostics=1)
STEPS = (10, 20, 40)
BRANCHES = (8, 15, 29)
"""By hand: the last 3, 6 and 12 steps decay, and the first of them is still at the peak."""


def chain(
    residual: str = "standard", steps: Sequence[int] = STEPS, **train: Any
) -> list[PlannedRun]:
    """Runs of several budgets that share a trunk, the shortest first."""
    settings = [
        {"budget": {"tokens": 256 * n}, "warmup_tokens": 512, "decay_frac": 0.3, **train}
        for n in steps
    ]
    configs = [make_config(residual, train=each) for each in settings]
    runs = [plan_run(residual, train=each) for each in settings]
    return list(with_trunks(configs, runs))


def wanted(sweep: SweepPaths, runs: Sequence[PlannedRun]) -> None:
    """Write down which runs a sweep has."""
    write_manifest(
        sweep,
        Manifest(
            schema_version=1,
            sweep="test",
            grid_text="",
            created_at="2026-01-01T00:00:00+00:00",
            baseline="standard",
            runs=list(runs),
        ),
    )


def work(sweep: SweepPaths, runs: Sequence[PlannedRun]) -> list[RunRecord]:
    """Train runs by one worker; their records."""
    job = Job(sweep="test", sweep_dir=sweep.root, runs=list(runs), execution=QUICK)
    assert Worker(job, Path("unused"), list(runs), StopSignal()).work() == 0
    return [record_of(sweep, run) for run in runs]


def record_of(sweep: SweepPaths, run: PlannedRun) -> RunRecord:
    record = read_record(sweep.run(run.run_id).record)
    assert record is not None
    return record


def alone(sweep: SweepPaths, runs: Sequence[PlannedRun]) -> SweepPaths:
    """The same runs, each trained by itself."""
    apart = SweepPaths(sweep.root.with_name("alone"))
    for run in runs:
        lone = run.model_copy(update={"trunk": None, "branch_step": None})
        train_once(lone, run_folder(apart, lone), QUICK)
    return apart


def final_state(sweep: SweepPaths, run: PlannedRun) -> dict[str, Any]:
    checkpoint = newest_checkpoint(sweep.run(run.run_id))
    assert checkpoint is not None
    assert step_of(checkpoint) == run.cost.steps
    state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
    return {name: state[name] for name in ("state_dict", "optimizer_states")}


def own_rows(paths: RunPaths) -> list[dict[str, Any]]:
    """Training steps that a run has taken itself."""
    rows = read_jsonl(paths.metrics)
    return [row for row in rows if row["kind"] == "train" and "trained_by" not in row]


def assert_equal(found: Any, expected: Any) -> None:
    """Equality to the last bit, through dictionaries and lists."""
    if isinstance(expected, torch.Tensor):
        assert torch.equal(found, expected)
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_equal(found[key], expected[key])
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("residual", "optimizer", "precision"),
    [("standard", "adamw", "fp32"), ("full", "muon", "fp64")],
)
def test_a_branch_ends_as_the_run_trained_alone_to_the_last_bit(
    sweep: SweepPaths, residual: str, optimizer: str, precision: str
) -> None:
    runs = chain(residual, optimizer=optimizer, precision=precision)
    assert tuple(run.branch_step for run in runs) == BRANCHES
    wanted(sweep, runs)
    apart = alone(sweep, runs)
    records = work(sweep, runs[::-1])[::-1]
    for run, record in zip(runs, records, strict=True):
        expected = record_of(apart, run)
        assert record.loss_nats == expected.loss_nats
        assert (record.steps, record.tokens, record.flops) == (
            expected.steps,
            expected.tokens,
            expected.flops,
        )
        assert_equal(final_state(sweep, run), final_state(apart, run))
        assert losses(sweep.run(run.run_id)) == losses(apart.run(run.run_id))
    assert [(record.branched_at, record.branched_from) for record in records] == [
        (None, None),
        (8, runs[0].run_id),
        (15, runs[1].run_id),
    ]
    taken = [len(own_rows(sweep.run(run.run_id))) for run in runs]
    assert taken == [10, 20 - 8, 40 - 15] == list(own_steps(runs).values())
    told = sharing(runs)
    assert told is not None
    assert (told.steps, told.steps_alone) == (sum(taken), 70)
    assert not sweep.trunk(runs[0].trunk or "").exists(), "no run needs the states any more"


def test_time_of_a_branch_is_its_own(sweep: SweepPaths) -> None:
    runs = chain(steps=(10, 20))
    wanted(sweep, runs)
    first, second = work(sweep, runs)
    assert first.wall_s is not None
    assert second.wall_s is not None
    rows = read_jsonl(sweep.run(runs[1].run_id).metrics)
    assert {row["elapsed_s"] for row in rows if "trained_by" in row} == {0.0}
    assert second.wall_s == max(row["elapsed_s"] for row in rows)
    assert second.attempts == 1


class KillAt(StopSignal):
    """Kills its process when asked for the n-th time, once a step."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def __bool__(self) -> bool:
        self.left -= 1
        if not self.left:
            kill_myself()
        return False


def kill_myself(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(run: PlannedRun, paths: RunPaths, after_looks: int, *, at_branch: bool = False) -> None:
    """Train in a process that is killed."""
    often = QUICK.model_copy(update={"checkpoint_every_s": 1e-9})
    attempt = begin_attempt(paths)
    pid = os.fork()
    if not pid:
        try:
            if at_branch:
                vars(callbacks)["leave_in_trunk"] = kill_myself
            train(run, "test", paths, often, KillAt(after_looks), attempt)
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


@pytest.mark.skipif(torch.cuda.is_available(), reason="forks, which CUDA does not survive")
def test_kills_in_the_trunk_at_the_branch_and_in_the_decay_change_nothing(
    sweep: SweepPaths,
) -> None:
    runs = chain("full", optimizer="muon")
    wanted(sweep, runs)
    apart = alone(sweep, runs)
    first, second, third = (run_folder(sweep, run) for run in runs)
    trunk = sweep.trunk(runs[0].trunk or "")
    killed(runs[0], first, 4)
    killed(runs[0], first, 1000, at_branch=True)
    assert not states(trunk), "it died before it could leave its state"
    train_once(runs[0], first, QUICK)
    assert [step for step, _ in states(trunk)] == [8]
    killed(runs[1], second, 4)
    killed(runs[1], second, 7)
    assert [step for step, _ in states(trunk)] == [15, 8]
    records = [train_once(runs[1], second, QUICK)]
    killed(runs[2], third, 20)
    records.append(train_once(runs[2], third, QUICK))
    for run, record in zip(runs[1:], records, strict=True):
        assert record is not None
        assert record.loss_nats == record_of(apart, run).loss_nats
        assert_equal(final_state(sweep, run), final_state(apart, run))
    assert [record.branched_at for record in records if record] == [8, 15]


@pytest.fixture(scope="module")
def two_trained(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep of three budgets, of which the longest is left to train."""
    runs, sweep = chain(), SweepPaths(tmp_path_factory.mktemp("two") / "sweep")
    sweep.runs.mkdir(parents=True)
    wanted(sweep, runs)
    for run in runs[:2]:
        train_once(run, run_folder(sweep, run), QUICK)
    return sweep


@pytest.fixture(scope="module")
def expected_nats(two_trained: SweepPaths) -> float:
    """Loss of the longest, trained alone."""
    loss_nats = record_of(alone(two_trained, chain()[2:]), chain()[2]).loss_nats
    assert loss_nats is not None
    return loss_nats


def cut(path: Path) -> None:
    whole = path.read_bytes()
    path.unlink()  # it shares its bytes with the run's own checkpoint
    path.write_bytes(whole[: len(whole) // 2])


def swap(path: Path) -> None:
    """Put the state of another training in the place."""
    state = torch.load(path, weights_only=True)
    path.unlink()
    torch.save(state | {"trunk": "of another"}, path)


@pytest.mark.parametrize("harm", [cut, swap, Path.unlink])
def test_a_damaged_or_lost_state_costs_steps_and_nothing_else(
    two_trained: SweepPaths,
    expected_nats: float,
    tmp_path: Path,
    harm: Callable[[Path], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs, sweep = chain(), SweepPaths(tmp_path / "sweep")
    shutil.copytree(two_trained.root, sweep.root)
    trunk = sweep.trunk(runs[0].trunk or "")
    newest, before = (path for _, path in states(trunk))
    harm(newest)
    paths = run_folder(sweep, runs[2])
    record = train_once(runs[2], paths, QUICK)
    assert record is not None
    assert record.loss_nats == expected_nats
    assert record.branched_at == 8
    told = capsys.readouterr().out
    assert f"goes on from step 8 of run {runs[0].run_id}" in told
    assert ("set aside" in told) == (harm is not Path.unlink)
    assert before.exists()


def test_a_longer_run_waits_for_who_trains_the_shorter_one_and_not_for_who_left_it(
    sweep: SweepPaths,
) -> None:
    runs = chain()
    wanted(sweep, runs)
    short, middle, long = runs
    assert run_ahead(sweep, short) is None
    assert run_ahead(sweep, long) == middle.run_id
    lease = acquire(run_folder(sweep, short).attempts)
    assert lease is not None
    job = Job(sweep="test", sweep_dir=sweep.root, runs=[middle], execution=QUICK)
    worker = Worker(job, Path("unused"), [middle], StopSignal())
    assert worker._try(middle) == "wait"
    lease.end("interrupted")
    assert worker._try(middle) == "settled", "nobody is at work: trained from the start"
    assert record_of(sweep, middle).branched_at is None
    assert run_ahead(sweep, long) is None, "it goes on from the middle one, short or not"
    (sweep.run(middle.run_id).record).unlink()
    sweep.run(short.run_id).cancel.touch()
    assert run_ahead(sweep, middle) is None


def test_a_shorter_run_that_failed_or_diverged_holds_nobody_up(sweep: SweepPaths) -> None:
    runs = chain(steps=(10, 20), lr=1e6, optimizer="adamw", grad_clip=0.0)
    wanted(sweep, runs)
    assert [record.status for record in work(sweep, runs)] == ["diverged", "diverged"]


def test_the_last_of_a_chain_and_a_lone_run_leave_no_state(sweep: SweepPaths) -> None:
    runs = chain(steps=(10, 20))
    wanted(sweep, runs)
    train_once(runs[1], run_folder(sweep, runs[1]), QUICK)
    assert not states(sweep.trunk(runs[1].trunk or ""))
    assert with_trunks([make_config()], [plan_run()])[0].trunk is None


def test_a_stopped_branch_goes_on_from_its_own_checkpoint(sweep: SweepPaths) -> None:
    runs = chain(steps=(10, 20))
    wanted(sweep, runs)
    train_once(runs[0], run_folder(sweep, runs[0]), QUICK)
    paths = run_folder(sweep, runs[1])
    assert train_once(runs[1], paths, QUICK, StopAt(5)) is None
    record = train_once(runs[1], paths, QUICK)
    assert record is not None
    assert (record.branched_at, record.attempts) == (8, 2)
    assert [row["step"] for row in own_rows(paths)] == list(range(9, 21))
