"""The processes of one run as a worker starts them: they report, stop, fail and end with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed as dist

from harness.config import Execution
from harness.errors import (
    CheckpointError,
    DataError,
    IsolossError,
    LeaseLost,
    OutOfMemory,
)
from harness.job import Job, write_job
from harness.launch.rank_errors import RankFailed, RankKilled, first_error, report
from harness.launch.ranks import train_in_ranks
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, read_jsonl
from harness.stop import Stop, StopSignal
from harness.training import train
from tests.conftest import plan_run, run_folder

PAIR = Execution(devices=2, log_every=1, n_evals=1, n_diagnostics=0)
ROOT = Path(__file__).parents[2]


def job_of(sweep: SweepPaths, run: PlannedRun) -> Path:
    job = Job(sweep="test", sweep_dir=sweep.root, runs=[run], execution=PAIR)
    write_job(sweep.jobs / "job.json", job)
    return sweep.jobs / "job.json"


def launch(
    sweep: SweepPaths, run: PlannedRun, stop: Stop, attempt: int = 1, execution: Execution = PAIR
) -> RunRecord | None:
    paths = run_folder(sweep, run)
    paths.attempt(attempt).mkdir(parents=True)
    job_file = job_of(sweep, run)
    return train_in_ranks(run, "test", paths, execution, stop, attempt, job_file)


def losses(paths: RunPaths) -> list[float]:
    return [row["loss_nats"] for row in read_jsonl(paths.metrics)]


def children(pid: int) -> list[int]:
    """Processes that ``pid`` has started and that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] not in "ZX":
                found.append(int(stat.parent.name))
    return found


def ranks(pid: int) -> list[int]:
    """Ranks among the children of ``pid``."""
    lines = {child: Path(f"/proc/{child}/cmdline") for child in children(pid)}
    return [child for child, line in lines.items() if b"harness.launch.ranks" in line.read_bytes()]


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_launched_run_stops_on_request_goes_on_and_reports_its_record(
    sweep: SweepPaths,
) -> None:
    run = plan_run("block", train={"precision": "fp64"})
    paths = run_folder(sweep, run)
    assert launch(sweep, run, StopSignal(requested=True)) is None
    assert [path.name for path in paths.checkpoints.iterdir()] == ["step-00000001.ckpt"]
    record = launch(sweep, run, StopSignal(), attempt=2)
    assert record is not None
    assert record.status == "done"
    assert record.attempts == 2
    undisturbed = run_folder(SweepPaths(sweep.root / "undisturbed"), run)
    undisturbed.attempt(1).mkdir(parents=True)
    alone = PAIR.model_copy(update={"devices": 1})
    train(run, "test", undisturbed, alone, StopSignal(), 1)
    assert losses(paths) == pytest.approx(losses(undisturbed), rel=1e-9)
    assert ranks(os.getpid()) == []


def test_the_first_error_of_any_rank_surfaces_and_ends_the_others(sweep: SweepPaths) -> None:
    run = plan_run("tests.harness.faulty_recipes:Failing")
    message = r"^ValueError: the third batch is cursed \(process 1 of 2\)$"
    with pytest.raises(RankFailed, match=message):
        launch(sweep, run, StopSignal())
    paths = run_folder(sweep, run)
    assert len(losses(paths)) == 2
    assert "ValueError: the third batch is cursed" in (paths.attempt(1) / "log").read_text()
    assert ranks(os.getpid()) == []


class KillsOneRank(StopSignal):
    """Kills one of the ranks when first asked."""

    def __bool__(self) -> bool:
        found = ranks(os.getpid())
        if len(found) == 2 and not self.requested:
            self.requested = True
            os.kill(found[0], signal.SIGKILL)
        return False


def test_a_killed_rank_is_told_from_one_that_raised(sweep: SweepPaths) -> None:
    with pytest.raises(RankKilled, match=r"process \d of 2 was ended by SIGKILL"):
        launch(sweep, plan_run(), KillsOneRank())
    assert ranks(os.getpid()) == []


def test_a_lost_lease_ends_the_ranks(sweep: SweepPaths) -> None:
    with pytest.raises(LeaseLost, match="another process owns the run now"):
        launch(sweep, plan_run(), StopSignal(lost=True))
    assert ranks(os.getpid()) == []


def test_an_uneven_share_is_refused_before_anything_starts(sweep: SweepPaths) -> None:
    three = PAIR.model_copy(update={"devices": 3})
    with pytest.raises(IsolossError, match="do not divide over 3 processes"):
        launch(sweep, plan_run(), StopSignal(), execution=three)


OWNER = """
import sys
from pathlib import Path
from harness.job import read_job
from harness.launch.ranks import train_in_ranks
from harness.paths import SweepPaths
from harness.stop import StopSignal
job_file = Path(sys.argv[1])
job = read_job(job_file)
run = job.runs[0]
paths = SweepPaths(job.sweep_dir).run(run.run_id)
train_in_ranks(run, job.sweep, paths, job.execution, StopSignal(), 1, job_file)
"""


def test_ranks_end_with_an_owner_that_was_killed(sweep: SweepPaths) -> None:
    run = plan_run()
    run_folder(sweep, run).attempt(1).mkdir(parents=True)
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(job_of(sweep, run))], cwd=ROOT)
    started: list[int] = []
    try:
        wait_until(lambda: len(ranks(owner.pid)) == 2)
        started = ranks(owner.pid)
    finally:
        owner.kill()
        owner.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started), seconds=20)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OutOfMemory("too much", 4), OutOfMemory("too much", 4)),
        (
            OSError(28, "No space left on device", "/a/b"),
            OSError(28, "No space left on device", "/a/b"),
        ),
        (CheckpointError("foreign"), CheckpointError("foreign")),
        (DataError("changed"), DataError("changed")),
        (LeaseLost("taken"), LeaseLost("taken")),
        (KeyError("x"), RankFailed("KeyError: 'x' (process 1 of 2)")),
    ],
)
def test_errors_keep_their_type_on_the_way_to_the_owner(
    error: Exception, expected: Exception
) -> None:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    report(store, 0, RuntimeError("Connection closed by peer [127.0.0.1]:1234"))
    report(store, 1, error)
    found = first_error(store, 2)
    assert type(found) is type(expected)
    assert str(found) == str(expected)
    assert vars(found) == vars(expected)


def test_broken_connections_alone_mean_that_a_rank_was_killed() -> None:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    assert first_error(store, 2) is None
    report(store, 0, RuntimeError("gloo/transport/tcp/pair.cc:553 Connection closed by peer"))
    assert isinstance(first_error(store, 2), RankKilled)
