"""Ownership by numbered terms: one owner at a time, whatever happens to the one before."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.errors import LeaseLost
from harness.holder import Holder, holder_text, is_gone, this_process
from harness.lease import HEARTBEAT, HOLDER, acquire, fs_now, look, read_end

HOLD = (
    "import sys, time; from pathlib import Path; from harness.lease import acquire; "
    "lease = acquire(Path(sys.argv[1]), lease_s=float(sys.argv[2])); "
    "print(lease.number if lease else 0, flush=True); "
    "[time.sleep(0.05) for _ in iter(lambda: bool(lease) and not lease.lost, False)]; "
    "print('lost', flush=True)"
)


@pytest.fixture
def terms(tmp_path: Path) -> Path:
    return tmp_path / "attempts"


class Owner:
    """Another process that takes the next term and keeps it until it is lost."""

    def __init__(self, terms: Path, lease_s: float = 60.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, str(terms), str(lease_s)],
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def owners() -> Iterator[list[Owner]]:
    made: list[Owner] = []
    yield made
    for owner in made:
        owner.process.kill()
        owner.process.communicate()


def elsewhere(terms: Path, number: int, silent_s: float, **changes: object) -> None:
    """A term of a process on another host, last heard so long ago."""
    folder = terms / str(number)
    folder.mkdir(parents=True)
    holder = dataclasses.replace(this_process(), host="node7", boot_id="other", **changes)  # type: ignore[arg-type]
    (folder / HOLDER).write_text(holder_text(holder))
    (folder / HEARTBEAT).touch()
    then = time.time() - silent_s
    os.utime(folder / HEARTBEAT, (then, then))


def test_of_many_that_try_at_once_one_gets_the_term(terms: Path, owners: list[Owner]) -> None:
    owners += [Owner(terms) for _ in range(8)]
    assert sorted(owner.says() for owner in owners) == ["0"] * 7 + ["1"]


def test_the_next_term_begins_after_the_last_has_ended(terms: Path) -> None:
    first = acquire(terms)
    assert first is not None
    assert acquire(terms) is None
    first.end("done", step=7)
    assert look(terms, fs_now(terms)).liveness == "free"
    assert (read_end(terms / "1") or {})["step"] == 7
    second = acquire(terms)
    assert second is not None
    assert second.number == 2
    second.end("done")


def test_a_killed_owner_on_this_host_is_replaced_at_once(terms: Path, owners: list[Owner]) -> None:
    owners.append(Owner(terms))
    assert owners[0].says() == "1"
    assert look(terms, fs_now(terms)).liveness == "live"
    owners[0].process.send_signal(signal.SIGKILL)
    time.sleep(0.1)  # not reaped yet: a zombie is no owner
    assert look(terms, fs_now(terms)).liveness == "dead"
    lease = acquire(terms)
    assert lease is not None
    assert lease.number == 2
    lease.end("done")


def test_a_frozen_owner_is_replaced_after_its_lease_and_finds_out_when_it_thaws(
    terms: Path, owners: list[Owner]
) -> None:
    owners.append(Owner(terms, lease_s=1.0))
    assert owners[0].says() == "1"
    owners[0].process.send_signal(signal.SIGSTOP)
    assert acquire(terms, lease_s=1.0) is None
    time.sleep(1.3)
    lease = acquire(terms, lease_s=60.0)
    assert lease is None, "a longer lease has not run out"
    lease = acquire(terms, lease_s=1.0)
    assert lease is not None
    owners[0].process.send_signal(signal.SIGCONT)
    assert owners[0].says() == "lost"
    lease.end("done")


def test_an_owner_elsewhere_is_silent_first_and_dead_after_its_lease(terms: Path) -> None:
    for number, (silent_s, liveness) in enumerate(
        [(1.0, "live"), (30.0, "silent"), (61.0, "dead")], start=1
    ):
        elsewhere(terms, number, silent_s)
        assert look(terms, fs_now(terms), lease_s=60.0).liveness == liveness
    lease = acquire(terms, lease_s=60.0)
    assert lease is not None
    assert lease.number == 4
    lease.end("done")


def test_a_clock_that_is_an_hour_off_replaces_nobody(
    terms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(terms, 1, silent_s=1.0)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600)
    assert look(terms, fs_now(terms)).liveness == "live"
    assert acquire(terms) is None


def test_a_requeued_job_takes_its_own_place_at_once(
    terms: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere(terms, 1, silent_s=1.0, job="12_3", restart=0)
    for name, value in {"ARRAY_JOB_ID": "12", "ARRAY_TASK_ID": "3", "RESTART_COUNT": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert acquire(terms) is None, "a duplicate of the same start is no successor"
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "4")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert acquire(terms) is None, "another task is no successor"
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    lease = acquire(terms)
    assert lease is not None
    lease.end("done")


def test_a_replaced_owner_is_told_and_ends_nothing(terms: Path) -> None:
    lease = acquire(terms)
    assert lease is not None
    lease.check()
    elsewhere(terms, 2, silent_s=0.0)
    with pytest.raises(LeaseLost, match="taken over"):
        lease.check()
    lease.end("done")
    assert read_end(terms / "1") is None


def test_an_owner_that_cannot_be_heard_for_a_whole_lease_counts_itself_out(terms: Path) -> None:
    lease = acquire(terms, lease_s=1.0)
    assert lease is not None
    (lease.folder / HEARTBEAT).unlink()
    time.sleep(1.3)
    assert lease.lost
    lease.end("done")


def test_processes_are_told_apart_by_start_boot_and_namespace() -> None:
    me = this_process()
    assert not is_gone(me)
    assert is_gone(dataclasses.replace(me, pid_started="1")), "the pid was reused"
    assert is_gone(dataclasses.replace(me, boot_id="before the reboot"))
    assert not is_gone(dataclasses.replace(me, pid=2**22 + 1, pid_namespace="pid:[7]"))
    assert not is_gone(Holder(host="node7", pid=1))
    assert is_gone(dataclasses.replace(me, pid=2**22 + 1))
