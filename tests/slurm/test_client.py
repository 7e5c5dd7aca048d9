"""Jobs against a real controller: submitted once, whatever happens to the answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import IsolossError
from harness.slurm.call import Patience
from harness.slurm.client import Outcome, QueueFull, cancel, outcomes, submit
from harness.slurm.types import SchedulerUnreachable
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.conftest import Wrap
from tests.slurm.queued import queue

CLUSTER = Settings(
    accounting=True,
    max_array_size=11,
    min_job_age_s=2,
    message_timeout_s=2,
    extra="AccountingStorageEnforce=limits,qos",
)
HASTY = Patience(query_s=5, submit_s=5, tries=4, first_pause_s=0.2, longest_pause_s=0.5)
LOST = 'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"'
Script = Callable[..., Path]


@pytest.fixture(scope="module")
def _may_submit(slurm: Cluster) -> None:
    """The account of this user, and a QOS that lets it queue two jobs."""
    user = slurm.site.user
    slurm.run("sacctmgr", "-i", "add", "qos", "two", "MaxSubmitJobsPerUser=2")
    slurm.run("sacctmgr", "-i", "add", "account", "lab")
    slurm.run("sacctmgr", "-i", "add", "user", user, "account=lab", "qos=normal,two")
    slurm.run("sacctmgr", "-i", "modify", "user", user, "set", "DefaultAccount=lab")


@pytest.fixture
def script(tmp_path: Path, slurm: Cluster, _may_submit: None) -> Script:
    """Writer of batch scripts."""

    def write(*options: str, body: str = "sleep 60") -> Path:
        path = tmp_path / "script.sh"
        lines = [f"#SBATCH {option}" for option in ("--output=/dev/null", *options)]
        path.write_text("\n".join(["#!/bin/bash", *lines, "", body, "#SBATCH --bogus", ""]))
        return path

    return write


def jobs_named(name: str) -> list[str]:
    return sorted({task.array_job for task in queue(name)})


def test_a_script_is_submitted_under_its_name(script: Script) -> None:
    job = submit(script("--array=0-2", "--hold"), name="sweep.i0000001")
    tasks = queue("sweep.")
    assert [task.job_id for task in tasks] == [f"{job}_{k}" for k in range(3)]
    assert {task.name for task in tasks} == {"sweep.i0000001"}
    assert {task.state for task in tasks} == {"PENDING"}


def test_options_of_the_script_win_over_the_users_environment(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SBATCH_PARTITION", "urgent")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SQUEUE_PARTITION", "none")
    submit(script("--partition=main # the slow one", "--hold"), name="sweep.i0000002")
    submit(script("--hold"), name="sweep.i0000003")
    assert {task.name[-1]: task.partition for task in queue("sweep.")} == {
        "2": "main",
        "3": "urgent",
    }


def test_an_answer_that_was_lost_is_found_in_the_queue(script: Script, wrap: Wrap) -> None:
    wrap("sbatch", f'"$REAL" "$@"; {LOST} >&2; exit 1')
    job = submit(script("--array=0-1", "--hold"), name="sweep.i0000004", patience=HASTY)
    assert jobs_named("sweep.i0000004") == [job]


def test_a_job_that_ended_before_its_answer_was_lost_is_not_run_again(
    script: Script, wrap: Wrap, tmp_path: Path
) -> None:
    wrap("sbatch", f'"$REAL" --wait "$@" >&2; {LOST} >&2; exit 1')
    body = f"echo ran >> {tmp_path}/ran"
    submit(script(body=body), name="sweep.i0000005", patience=HASTY)
    assert (tmp_path / "ran").read_text() == "ran\n"
    assert jobs_named("sweep.i0000005") == []


def test_a_submission_that_arrives_late_leaves_one_job(script: Script, wrap: Wrap) -> None:
    late = f'(sleep 1; "$REAL" "$@") >/dev/null 2>&1 & {LOST} >&2; exit 1'
    wrap("sbatch", f'if [ $N = 0 ]; then {late}; fi; sleep 2; exec "$REAL" "$@"')
    job = submit(script("--hold"), name="sweep.i0000006", patience=HASTY)
    assert jobs_named("sweep.i0000006") == [job]


def test_a_busy_controller_is_asked_again(script: Script, wrap: Wrap) -> None:
    wrap("sbatch", f'[ $N = 2 ] && exec "$REAL" "$@"; {LOST} >&2; exit 1')
    job = submit(script("--hold"), name="sweep.i0000007", patience=HASTY)
    assert jobs_named("sweep.i0000007") == [job]


def test_nothing_is_submitted_again_while_the_queue_cannot_be_asked(
    script: Script, wrap: Wrap, tmp_path: Path
) -> None:
    wrap("sbatch", f"{LOST} >&2; exit 1")
    wrap("squeue", 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1')
    with pytest.raises(SchedulerUnreachable, match="may have accepted it"):
        submit(script("--hold"), name="sweep.i0000008", patience=HASTY)
    assert len((tmp_path / "wrappers" / "sbatch.calls").read_text()) == 1


def test_a_job_accepted_by_a_controller_that_hung_is_not_doubled(
    script: Script, slurm: Cluster
) -> None:
    patience = Patience(query_s=1, submit_s=1, tries=9, first_pause_s=0.5, longest_pause_s=0.5)
    found: list[str] = []
    path = script("--hold")
    submitter = threading.Thread(
        target=lambda: found.append(submit(path, name="sweep.i0000009", patience=patience))
    )
    with slurm.hung_slurmctld():
        submitter.start()
        time.sleep(2)
    submitter.join(30)
    assert jobs_named("sweep.i0000009") == found


@pytest.mark.parametrize(
    ("option", "words", "remedy"),
    [
        ("--partition=nope", "Invalid partition name specified", "slurm.partition"),
        ("--array=0-11", "Invalid job array specification", "MaxArraySize"),
        ("--mem=99G", "Memory specification can not be satisfied", "slurm.mem"),
        ("--gres=tpu:1", r"Invalid generic resource \(gres\)", "slurm.gres"),
        ("--account=nope", "Invalid account", "slurm.account"),
        ("--qos=nope", "Invalid qos", "slurm.qos"),
        ("--constraint=nope", "Invalid feature", "slurm.constraint"),
        ("--oversubscribes=9", "unrecognized option", "slurm.extra"),
    ],
)
def test_a_refusal_carries_slurms_words_and_what_to_do(
    script: Script, option: str, words: str, remedy: str
) -> None:
    with pytest.raises(IsolossError, match=words) as refused:
        submit(script(option), name="sweep.i000000a")
    assert remedy in str(refused.value)
    assert not isinstance(refused.value, QueueFull | SchedulerUnreachable)
    assert queue() == []


def test_a_full_queue_is_told_from_a_refusal(script: Script) -> None:
    path = script("--qos=two", "--array=0-1", "--hold")
    submit(path, name="sweep.i000000b")
    with pytest.raises(QueueFull, match="max_queued"):
        submit(path, name="sweep.i000000c")
    assert jobs_named("sweep.i000000c") == []


def _questions(path: Path, patience: Patience) -> list[Callable[[], object]]:
    return [
        lambda: submit(path, name="sweep.i000000d", patience=patience),
        lambda: queue(patience=patience),
        lambda: cancel(["1_2"], patience=patience),
        lambda: outcomes(["1_2"], patience=patience),
    ]


def test_a_controller_that_hangs_is_given_up(script: Script, slurm: Cluster) -> None:
    patience = Patience(query_s=0.5, submit_s=0.5, tries=2, first_pause_s=0.1)
    with slurm.hung_slurmctld():
        for ask in _questions(script("--hold"), patience):
            with pytest.raises(SchedulerUnreachable, match=r"no answer within 0\.5 s"):
                ask()
        with pytest.raises(SchedulerUnreachable, match="Socket timed out"):
            queue()


def test_a_controller_that_is_away_is_given_up(script: Script, slurm: Cluster) -> None:
    slurm.stop_slurmctld()
    try:
        for ask in _questions(script(), Patience(query_s=1, submit_s=1, tries=1)):
            with pytest.raises(SchedulerUnreachable):
                ask()
    finally:
        slurm.start_slurmctld()
    assert queue() == []


def test_only_the_named_tasks_are_cancelled(script: Script, slurm: Cluster) -> None:
    kept = submit(script("--array=0-9%2"), name="sweep.i000000e")
    other = submit(script("--array=0-1", "--hold"), name="sweep.i000000f")
    slurm.wait_for(lambda: [t.state for t in queue("sweep.")].count("RUNNING") == 2)
    gone = [f"{kept}_{k}" for k in (0, 3, 4, 5, 9)]
    cancel([*gone, other, "999999", "999999_3", f"{kept}_99"])
    cancel(gone)
    cancel([])
    slurm.wait_for(lambda: len(queue("sweep.")) == 5)
    assert {task.job_id for task in queue("sweep.")} == {f"{kept}_{k}" for k in (1, 2, 6, 7, 8)}


ENDINGS = "case $SLURM_ARRAY_TASK_ID in 1) exit 3;; 2) kill -9 $$;; 3) sleep 60;; esac"


def test_outcomes_come_from_the_controller_and_then_from_accounting(
    script: Script, slurm: Cluster
) -> None:
    begin = time.time()
    job = submit(script("--array=0-3", body=ENDINGS), name="sweep.i0000011")
    ids = [f"{job}_{k}" for k in range(4)]
    slurm.wait_for(lambda: [t.index for t in queue("sweep.")] == [3])
    fresh = outcomes([*ids, "999999", f"{job}_99"], since=begin)
    assert fresh == {
        ids[0]: Outcome("COMPLETED", 0, None, "None"),
        ids[1]: Outcome("FAILED", 3, None, "NonZeroExitCode"),
        ids[2]: Outcome("FAILED", None, 9, "JobLaunchFailure"),
        ids[3]: Outcome("RUNNING", 0, None, "None"),
    }
    assert [fresh[job_id].ended for job_id in ids] == [True, True, True, False]
    cancel(ids)
    slurm.wait_for(lambda: slurm.run("squeue", "-h", "-t", "all").stdout == "", patience_s=60)
    slurm.wait_for(lambda: all(o.ended for o in outcomes(ids, since=begin).values()))
    later = outcomes([*ids, "999999"], since=begin)
    assert list(later) == ids
    assert [later[job_id].state for job_id in ids] == ["COMPLETED", "FAILED", "FAILED", "CANCELLED"]
    assert [(later[job_id].exit_code, later[job_id].signal) for job_id in ids[:3]] == [
        (0, None),
        (3, None),
        (None, 9),
    ]


def test_accounting_that_cannot_answer_is_no_error(script: Script, wrap: Wrap) -> None:
    wrap("sacct", 'echo "sacct: error: slurm_persist_conn_open: failed to connect" >&2; exit 1')
    job = submit(script("--hold"), name="sweep.i0000012")
    assert set(outcomes([job, "999999"])) == {job}
