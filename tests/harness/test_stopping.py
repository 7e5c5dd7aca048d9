"""What ends a run before its time: signals, a lost lease, a full disk, too little memory."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from harness.config import Execution
from harness.errors import LeaseLost, OutOfMemory
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, read_jsonl
from harness.stop import SIGNALS, Stop, StopSignal
from harness.training import train
from tests.conftest import plan_run, run_folder
from tests.harness.two_ranks import AskedAt

QUIET = Execution(n_evals=1, log_every=1, n_diagnostics=0)
EAGER = QUIET.model_copy(update={"checkpoint_every_s": 1e-9})


def train_first(
    run: PlannedRun,
    paths: RunPaths,
    stop: Stop,
    execution: Execution = QUIET,
    microbatch_seqs: int | None = None,
) -> RunRecord | None:
    paths.attempt(1).mkdir(parents=True)
    return train(run, "test", paths, execution, stop, 1, microbatch_seqs)


def steps(paths: RunPaths) -> list[int]:
    return [row["step"] for row in read_jsonl(paths.metrics) if row["kind"] == "train"]


def checkpoints(paths: RunPaths) -> list[str]:
    return sorted(path.name for path in paths.checkpoints.iterdir())


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Signalled(StopSignal):
    """Sends its own process a signal after some looks, one a step."""

    def __init__(self, number: int, steps: int) -> None:
        super().__init__()
        self.number, self.left = number, steps

    def __bool__(self) -> bool:
        assert all(signal.getsignal(number) == self._on_signal for number in SIGNALS)
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), self.number)
        return super().__bool__()


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("slurm", [False, True])
def test_a_signal_saves_at_the_next_step_boundary_under_slurm_too(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch, number: int, slurm: bool
) -> None:
    if slurm:  # what makes Lightning take over signals, ranks and checkpoints
        about = {"JOB_ID": "7", "JOB_NAME": "grid", "NTASKS": "2", "PROCID": "0", "LOCALID": "0"}
        for name, value in {**about, "NODEID": "0", "NTASKS_PER_NODE": "2"}.items():
            monkeypatch.setenv(f"SLURM_{name}", value)
    run, stop = plan_run(), Signalled(number, 3)
    paths = run_folder(sweep, run)
    stop.install()
    assert train_first(run, paths, stop) is None
    assert steps(paths) == [1, 2, 3]
    assert checkpoints(paths) == ["step-00000003.ckpt"]
    assert stop.signal == number
    assert all(signal.getsignal(number) == stop._on_signal for number in SIGNALS)


def test_the_signal_that_came_first_is_remembered() -> None:
    stop = StopSignal()
    stop.install()
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop
    assert stop.signal == signal.SIGUSR2


def test_a_checkpoint_of_lightnings_own_is_never_resumed_from(
    sweep: SweepPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_NTASKS", "1")
    run, other = plan_run(), plan_run(seed=1)
    foreign, paths = run_folder(sweep, other), run_folder(sweep, run)
    assert train_first(other, foreign, AskedAt(3, None)) is None
    stale = next(foreign.checkpoints.iterdir())
    stale.rename(paths.root / "hpc_ckpt_1.ckpt")
    assert train_first(run, paths, StopSignal()) is not None
    assert steps(paths) == list(range(1, 13))


class TakenOver:
    """Finds the run in other hands from a given moment on."""

    installed = False

    def __init__(self, moment: Callable[[TakenOver], bool]) -> None:
        self.moment = moment
        self.steps = self.looks = 0
        self.taken = False

    def __bool__(self) -> bool:
        self.steps, self.looks = self.steps + 1, 0
        return False

    @property
    def lost(self) -> bool:
        self.looks += 1
        self.taken = self.taken or self.moment(self)
        return self.taken


def train_until_taken(paths: RunPaths, stop: Stop, execution: Execution = EAGER) -> None:
    with pytest.raises(LeaseLost, match="attempt 1 has been replaced"):
        train_first(plan_run(), paths, stop, execution)
    assert not paths.record.exists()


def test_a_lost_lease_ends_training_at_the_next_step(sweep: SweepPaths) -> None:
    paths, stop = run_folder(sweep, plan_run()), TakenOver(lambda stop: stop.steps >= 4)
    train_until_taken(paths, stop, QUIET.model_copy(update={"log_every": 100}))
    assert stop.steps == 4
    assert not paths.metrics.exists()
    assert not paths.checkpoints.exists()


def test_a_lease_lost_before_a_row_is_written_keeps_it_from_the_file(sweep: SweepPaths) -> None:
    paths = run_folder(sweep, plan_run())
    train_until_taken(paths, TakenOver(lambda stop: stop.steps == 4 and stop.looks == 2))
    assert steps(paths) == [1, 2, 3]
    assert checkpoints(paths) == ["step-00000002.ckpt", "step-00000003.ckpt"]


def test_a_lease_lost_while_saving_keeps_the_checkpoint_from_its_name(sweep: SweepPaths) -> None:
    paths = run_folder(sweep, plan_run())
    scratch = paths.checkpoints / "step-00000004.1.partial"
    train_until_taken(paths, TakenOver(lambda stop: scratch.exists()))
    assert steps(paths) == [1, 2, 3, 4]
    assert checkpoints(paths) == ["step-00000002.ckpt", "step-00000003.ckpt"]


def test_a_lease_lost_at_the_very_end_leaves_no_record(sweep: SweepPaths) -> None:
    paths = run_folder(sweep, plan_run())
    last = paths.checkpoints / "step-00000012.ckpt"
    train_until_taken(paths, TakenOver(lambda stop: last.exists()))
    assert last.exists()


def test_a_full_disk_is_named_and_leaves_no_half_checkpoint(sweep: SweepPaths) -> None:
    run = plan_run()
    paths = run_folder(sweep, run)
    paths.checkpoints.mkdir()
    (paths.checkpoints / "step-00000012.1.partial").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device.*step-00000012"):
        train_first(run, paths, StopSignal())
    assert checkpoints(paths) == []
    assert not paths.record.exists()


def test_a_checkpoint_that_breaks_off_leaves_the_one_before(sweep: SweepPaths) -> None:
    run = plan_run()
    paths = run_folder(sweep, run)

    class Smaller(StopSignal):
        """Allows only small files once the first checkpoint is there."""

        def __bool__(self) -> bool:
            if paths.checkpoints.exists():
                hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
                resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
            return False

    with _file_size_limit(), pytest.raises(OSError, match=r"File too large: .*partial"):
        train_first(run, paths, Smaller(), EAGER)
    assert checkpoints(paths) == ["step-00000001.ckpt"]


@contextmanager
def _file_size_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_metrics_that_cannot_be_written_are_named(sweep: SweepPaths) -> None:
    run = plan_run()
    paths = run_folder(sweep, run)
    paths.metrics.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: .*metrics\.jsonl"):
        train_first(run, paths, StopSignal())


def test_running_out_of_memory_tells_the_micro_batch_and_half_of_it_goes_on(
    sweep: SweepPaths, tmp_path: Path
) -> None:
    run = plan_run("tests.harness.faulty_recipes:Hungry", train={"eval_tokens": 64})
    paths = run_folder(sweep, run)
    with pytest.raises(OutOfMemory, match="micro-batch of 4 sequences") as caught:
        train_first(run, paths, StopSignal(), QUIET.model_copy(update={"microbatch_seqs": 4}))
    assert caught.value.microbatch_seqs == 4
    assert caught.value.__context__ is None  # nothing keeps its frames, and so its tensors, alive
    second = run_folder(SweepPaths(tmp_path / "again"), run)
    record = train_first(run, second, StopSignal(), microbatch_seqs=2)
    assert record is not None
    assert record.microbatch_seqs == 2
    assert record.batch_tokens == 256
    whole = run_folder(SweepPaths(tmp_path / "whole"), plan_run(train={"eval_tokens": 64}))
    expected = train_first(plan_run(train={"eval_tokens": 64}), whole, StopSignal())
    assert expected is not None
    torch.testing.assert_close(record.loss_nats, expected.loss_nats, rtol=1e-5, atol=0)
