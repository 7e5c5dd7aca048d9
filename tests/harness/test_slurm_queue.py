"""Reading squeue's answer, and what its reasons mean for a job's future."""

from __future__ import annotations

import pytest

from harness.slurm.queue import expand_ids, is_ended, parse_queue
from harness.slurm.reasons import waiting
from harness.slurm.types import QueueTask, SchedulerUnreachable


def row(
    ids: str, state: str = "PENDING", name: str = "sweep.i0123abc", reason: str = "None"
) -> str:
    """A line as squeue 22.05 prints it: every column padded, the name last."""
    fields = (f"{ids:40}", f"{state:20}", f"{'0':11}", f"{'2':6}", f"{'main':64}", f"{'n1':64}")
    return "|".join((*fields, f"{reason:100}", f"{name:200}|"))


def test_a_row_is_read_into_a_task() -> None:
    (found,) = parse_queue(row("1234_7", "RUNNING") + "\n")
    assert found.task == QueueTask(
        job_id="1234_7",
        array_job="1234",
        index=7,
        name="sweep.i0123abc",
        state="RUNNING",
        reason="None",
        partition="main",
        nodes="n1",
        restarts=2,
    )
    assert found.wait_status == 0


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ("12", ["12"]),
        ("12_3", ["12_3"]),
        ("12_[3]", ["12_3"]),
        ("12_[0-2]", ["12_0", "12_1", "12_2"]),
        ("12_[0-1,4,7-8%5]", ["12_0", "12_1", "12_4", "12_7", "12_8"]),
        ("12_[0-6:3%2]", ["12_0", "12_3", "12_6"]),
        ("12+1", ["12+1"]),
    ],
)
def test_tasks_that_slurm_lumps_together_are_told_apart(ids: str, expected: list[str]) -> None:
    assert expand_ids(ids) == expected
    assert [found.task.job_id for found in parse_queue(row(ids))] == expected


def test_ten_thousand_tasks_are_read_however_they_are_printed() -> None:
    lumped = parse_queue(row("12_[0-9999%256]", reason="JobArrayTaskLimit"))
    apart = parse_queue(
        "\n".join(row(f"12_{k}", reason="JobArrayTaskLimit") for k in range(10_000))
    )
    assert lumped == apart
    assert [found.task.index for found in apart] == list(range(10_000))


def test_any_job_name_is_read() -> None:
    names = ["a|b", "a b", "ä.i1234567", "x" * 150]
    found = parse_queue("\n".join(row(str(i), name=name) for i, name in enumerate(names)))
    assert [one.task.name for one in found] == names


@pytest.mark.parametrize(
    "text", ["slurm_load_jobs error", "12 main sweep root R 0:01 1 n1", "12|RUNNING|main"]
)
def test_an_answer_in_another_form_is_no_empty_queue(text: str) -> None:
    with pytest.raises(SchedulerUnreachable, match="not asked for"):
        parse_queue(text)


def test_an_empty_answer_is_an_empty_queue() -> None:
    assert parse_queue("\n") == []


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SPECIAL_EXIT", "SIGNALING", "NEW_ONE"])
def test_states_that_are_not_known_to_be_over_count_as_alive(state: str) -> None:
    assert not is_ended(state)


@pytest.mark.parametrize(
    "reason",
    [
        *("Priority", "Resources", "None", "", "Dependency", "BeginTime", "JobArrayTaskLimit"),
        *(
            "QOSMaxGRESPerUser",
            "QOSMaxCpuPerUserLimit",
            "QOSMaxJobsPerUserLimit",
            "QOSGrpNodeLimit",
        ),
        *("AssocGrpCpuLimit", "AssocGrpCPUMinutesLimit", "AssocGrpGRES", "AssocMaxJobsLimit"),
        *("AssociationJobLimit", "AssociationResourceLimit", "QOSJobLimit", "MaxGRESPerAccount"),
        *("PartitionDown", "PartitionInactive", "Licenses", "Reservation", "NodeDown", "Cleaning"),
        "ReqNodeNotAvail, UnavailableNodes:node[1-2]",
        "(Nodes required for job are DOWN, DRAINED or reserved for jobs in higher partitions)",
        "SomethingOfNextYear",
    ],
)
def test_reasons_that_pass_are_not_called_final(reason: str) -> None:
    found = waiting(reason)
    assert not found.never
    assert reason.strip("()") in found.text


@pytest.mark.parametrize(
    "reason",
    [
        *("PartitionTimeLimit", "PartitionNodeLimit", "PartitionConfig", "BadConstraints"),
        *("DependencyNeverSatisfied", "QOSMaxCpuPerJobLimit", "QOSMaxWallDurationPerJobLimit"),
        *("AssocMaxCpuPerJobLimit", "AssocMaxWallDurationPerJobLimit", "QOSMaxGRESMinutesPerJob"),
        *("MaxMemPerLimit", "QOSMinGRES", "InvalidAccount", "InvalidQOS", "AccountNotAllowed"),
        *("QOSNotAllowed", "DeadLine"),
    ],
)
def test_reasons_that_never_pass_say_what_to_do(reason: str) -> None:
    found = waiting(f"({reason})")
    assert found.never
    assert found.text.startswith("will never start as it is: ")
    assert f"({reason}): " in found.text
    assert "run again" in found.text or "slurm block" in found.text


@pytest.mark.parametrize(
    "reason",
    [
        *("JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "launch failed requeued held"),
        "job requeued in held state",
    ],
)
def test_held_jobs_are_to_be_released(reason: str) -> None:
    found = waiting(reason)
    assert found.never
    assert "release" in found.text
