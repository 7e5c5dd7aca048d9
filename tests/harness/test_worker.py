"""One worker and its runs: duplicates, lost leases, cancelled runs, scarce memory, broken disks."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.attempts import LIVES, read_attempt
from harness.config import Execution
from harness.job import Job, write_job
from harness.lease import HEARTBEAT, HOLDER, read_end
from harness.paths import RunPaths, SweepPaths
from harness.records import PlannedRun, RunRecord, read_jsonl, read_record
from harness.stop import StopSignal
from harness.worker import Worker
from tests.conftest import PlanRun

LONG = {"budget": {"tokens": 2000 * 256}}
ENDLESS = {"budget": {"tokens": 100_000 * 256}}
EXECUTION = Execution(checkpoint_every_s=0.3, n_evals=1, n_diagnostics=0, log_every=5)


class Bench:
    """A job in a sweep folder of its own, and a worker on it in this process."""

    def __init__(
        self, sweep: SweepPaths, runs: list[PlannedRun], execution: Execution = EXECUTION
    ) -> None:
        self.sweep = sweep
        self.job_file = sweep.jobs / "job.json"
        self.job = Job(sweep="test-sweep", sweep_dir=sweep.root, runs=runs, execution=execution)
        write_job(self.job_file, self.job)
        self.runs = [sweep.run(run.run_id) for run in runs]

    def work(self, stop: StopSignal | None = None) -> int:
        return Worker(self.job, self.job_file, self.job.runs, stop or StopSignal()).work()

    def work_while(self, condition: Callable[[], object], act: Callable[[], object]) -> int:
        """Work, and let ``act`` happen as soon as ``condition`` holds."""
        then = threading.Thread(target=lambda: (wait_for(condition), act()))
        then.start()
        code = self.work()
        then.join()
        return code


@pytest.fixture
def bench(sweep: SweepPaths) -> Callable[..., Bench]:
    return lambda *runs: Bench(sweep, list(runs))


def wait_for(condition: Callable[[], object], seconds: float = 90.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def record_of(run: RunPaths) -> RunRecord:
    record = read_record(run.record)
    assert record is not None
    return record


def has_checkpoint(run: RunPaths) -> bool:
    return any(run.checkpoints.glob("step-*.ckpt"))


def elsewhere(run: RunPaths, number: int) -> None:
    """A live attempt of a process on another host."""
    folder = run.attempt(number)
    folder.mkdir(parents=True)
    (folder / HOLDER).write_text(json.dumps({"host": "node7", "pid": 1}))
    (folder / HEARTBEAT).touch()


def content(run: RunPaths) -> dict[str, bytes]:
    """Every file that training writes."""
    folders = (run.root, run.checkpoints)
    files = [path for folder in folders for path in folder.iterdir() if path.is_file()]
    return {path.name: path.read_bytes() for path in files}


def test_a_duplicate_leaves_the_run_to_its_owner_and_ends_cleanly(
    bench: Callable[..., Bench], planned: PlanRun, capsys: pytest.CaptureFixture[str]
) -> None:
    table = bench(planned())
    elsewhere(table.runs[0], 1)
    assert table.work() == 0
    assert "in the hands of node7" in capsys.readouterr().out
    assert table.runs[0].n_attempts() == 1


def test_a_lost_lease_stops_training_at_the_next_step_and_writes_nothing_more(
    bench: Callable[..., Bench], planned: PlanRun
) -> None:
    table = bench(planned(train=ENDLESS))
    run = table.runs[0]
    seen: list[dict[str, bytes]] = []

    def taken_over() -> None:
        elsewhere(run, 2)
        time.sleep(0.5)  # many steps long
        seen.append(content(run))

    assert table.work_while(lambda: has_checkpoint(run), taken_over) == 0
    assert content(run) == seen[0]
    assert not run.record.exists()
    assert read_end(run.attempt(1)) is None


def test_a_cancelled_run_saves_and_stops_and_no_worker_takes_it_again(
    bench: Callable[..., Bench], planned: PlanRun
) -> None:
    table = bench(planned(train=ENDLESS))
    run = table.runs[0]
    assert table.work_while(run.metrics.exists, lambda: run.cancel.write_text("{}")) == 0
    assert (read_end(run.attempt(1)) or {})["how"] == "cancelled"
    assert has_checkpoint(run)
    assert not run.record.exists()
    assert table.work() == 0
    assert run.n_attempts() == 1


def test_an_owner_that_fell_silent_is_waited_for_and_then_replaced(
    sweep: SweepPaths, planned: PlanRun, capsys: pytest.CaptureFixture[str]
) -> None:
    table = Bench(sweep, [planned()], EXECUTION.model_copy(update={"lease_s": 3.0}))
    elsewhere(table.runs[0], 1)
    then = time.time() - 1.5
    os.utime(table.runs[0].attempt(1) / HEARTBEAT, (then, then))
    assert table.work() == 0
    assert "no sign of life from node7" in capsys.readouterr().out
    assert record_of(table.runs[0]).attempts == 2


@pytest.mark.slow
def test_out_of_memory_halves_the_micro_batch_and_keeps_the_global_batch(
    bench: Callable[..., Bench], planned: PlanRun
) -> None:
    big = {"batch_tokens": 65536, "budget": {"tokens": 65536}, "eval_tokens": 1024}
    run = planned(train=big, model={"n_layers": 2, "d_model": 64})
    table = bench(run)
    command = [sys.executable, "-m", "harness.worker", str(table.job_file)]
    limited = ["prlimit", f"--as={address_space_for_half()}", *command]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    record = record_of(table.runs[0])
    assert (done.returncode, record.status) == (0, "done"), done.stdout
    assert record.microbatch_seqs is not None
    assert record.microbatch_seqs < 65536 // 32
    assert record.steps == 1
    ends = [read_end(table.runs[0].attempt(n)) or {} for n in range(1, record.attempts)]
    assert {end["how"] for end in ends} == {"out_of_memory"}


def address_space_for_half() -> int:
    """Address space of a worker after its imports, and some hundred MB for the model."""
    script = "import harness.worker; print(open('/proc/self/statm').read().split()[0])"
    pages = int(
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout
    )
    return pages * os.sysconf("SC_PAGE_SIZE") + 350_000_000


def test_a_run_whose_attempts_die_again_and_again_is_given_up(
    bench: Callable[..., Bench], planned: PlanRun
) -> None:
    table = bench(planned())
    run = table.runs[0]
    for number in range(1, LIVES + 1):
        folder = run.attempt(number)
        folder.mkdir(parents=True)
        (folder / HOLDER).write_text(json.dumps({"host": "node7", "pid": 1}))
        (folder / "attempt.json").write_text(json.dumps({"attempt": number, "first_step": 0}))
        os.utime(folder, (1, 1))
    assert table.work() == 0
    record = record_of(run)
    assert record.status == "failed"
    assert f"{LIVES} attempts in a row died without a word" in str(record.error)


def test_deaths_with_progress_between_them_are_forgiven(
    bench: Callable[..., Bench], planned: PlanRun
) -> None:
    table = bench(planned())
    run = table.runs[0]
    for number in range(1, LIVES + 2):
        folder = run.attempt(number)
        folder.mkdir(parents=True)
        first_step = 0 if number < LIVES else 5
        about = {"attempt": number, "first_step": first_step}
        (folder / "attempt.json").write_text(json.dumps(about))
        os.utime(folder, (1, 1))
    table.work()
    assert record_of(run).status == "done"
    assert read_attempt(run, LIVES + 2)["attempt"] == LIVES + 2


def test_the_first_failure_of_an_arm_holds_back_its_other_runs_until_retry(
    bench: Callable[..., Bench], planned: PlanRun, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [planned(seed=seed).model_copy(update={"corpus_sha256": "0" * 64}) for seed in range(3)]
    table = bench(*runs)
    assert table.work() == 0
    assert record_of(table.runs[0]).status == "failed"
    assert not any(run.record.exists() for run in table.runs[1:])
    assert "held back" in capsys.readouterr().out


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A results folder on a disk of its own of eight megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as stream:
        while True:
            stream.write(b"x" * 4096)


def test_a_full_disk_ends_the_worker_with_a_message_and_loses_nothing(
    small_disk: Path, planned: PlanRun, capsys: pytest.CaptureFixture[str]
) -> None:
    execution = EXECUTION.model_copy(update={"lease_s": 3.0})
    table = Bench(SweepPaths(small_disk / "results" / "full"), [planned(train=LONG)], execution)
    run = table.runs[0]
    assert table.work_while(lambda: has_checkpoint(run), lambda: fill(small_disk)) == 74
    assert "No space left on device" in capsys.readouterr().out
    assert not run.record.exists()
    (small_disk / "filler").unlink()
    time.sleep(1.0)  # this process lives on, so its lease has to run out
    assert table.work() == 0
    rows = [row["step"] for row in read_jsonl(run.metrics) if row["kind"] == "train"]
    assert rows == list(range(5, 2001, 5))
    assert record_of(run).status == "done"


def test_a_read_only_results_folder_is_refused_with_its_name(
    small_disk: Path, tmp_path: Path
) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    grid = Path("recipes/grids/quickstart.yaml").resolve()
    command = [sys.executable, "-m", "harness.cli", "run", str(grid), "--results", str(small_disk)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Read-only file system" in done.stderr
    assert str(small_disk) in done.stderr
    assert "Traceback" not in done.stderr
