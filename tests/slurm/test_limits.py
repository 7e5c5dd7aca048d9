"""The queue and the limits of a real cluster; what is called impossible is impossible to Slurm."""

from __future__ import annotations

import pytest

from harness.slurm.client import outcomes
from harness.slurm.limits import NodeKind, check_options, cluster_limits
from harness.slurm.options import Slurm
from harness.slurm.reasons import waiting
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Settings
from tests.slurm.queued import queue, release

CLUSTER = Settings(
    nodes=2,
    cpus=4,
    memory_mb=3000,
    gpus=2,
    max_array_size=101,
    kill_wait_s=7,
    extra="""\
PartitionName=short Nodes=node1 MaxTime=1-02:03:00 State=UP
PartitionName=shut Nodes=ALL State=DOWN
PartitionName=cheap Nodes=ALL MaxNodes=1 PreemptMode=CANCEL State=UP
MaxJobCount=500""",
)


def test_limits_are_what_the_configuration_says(slurm: Cluster) -> None:
    limits = cluster_limits()
    assert limits.version == slurm.run("sinfo", "--version").stdout.split()[1]
    assert (limits.max_array_size, limits.max_job_count) == (101, 500)
    assert (limits.kill_wait_s, limits.min_job_age_s) == (7, 300)
    assert (limits.preempt_type, limits.preempt_mode) == ("preempt/partition_prio", "REQUEUE")
    assert limits.requeue_default
    assert not limits.accounting
    assert limits.default_partition == "main"
    partitions = limits.partitions
    assert set(partitions) == {"main", "urgent", "short", "shut", "cheap"}
    assert partitions["main"].kinds == (NodeKind(2, cpus=4, mem_mb=3000, gres={"gpu": 2}),)
    assert partitions["short"].kinds == (NodeKind(1, cpus=4, mem_mb=3000, gres={"gpu": 2}),)
    assert partitions["main"].max_time_min is None
    assert partitions["short"].max_time_min == 26 * 60 + 3
    assert [p.name for p in partitions.values() if p.state != "UP"] == ["shut"]
    assert (partitions["cheap"].preempt_mode, partitions["cheap"].max_nodes) == ("CANCEL", 1)


def block(**options: object) -> Slurm:
    return Slurm.model_validate({"time": 5, **options})


REFUSED = [
    ({"partition": "nope"}, 1, ["-pnope"], "there is no 'nope' here. Choose one of cheap, main"),
    ({"cpus_per_task": 5}, 1, ["-c5"], "1 nodes with 5 CPUs each are asked for"),
    ({"mem": "3G"}, 1, ["--mem=3G"], "3072 MiB"),
    ({"mem_per_cpu": "1G", "cpus_per_task": 3}, 1, ["--mem-per-cpu=1G", "-c3"], "3072 MiB"),
    ({"gres": "gpu:3"}, 1, ["--gres=gpu:3"], "gpu x 3"),
    ({"gpus_per_node": 3}, 1, ["--gpus-per-node=3"], "gpu x 3"),
    ({"gpus_per_node": "a100:1"}, 1, ["--gpus-per-node=a100:1"], "gpu:a100 x 1"),
]
NEVER = [
    ({"partition": "short", "time": "2-0"}, 1, ["-pshort", "-t2-0"], "limit of 1563 min"),
    ({}, 3, ["-N3"], "3 nodes are asked for, but a job may have 2"),
    ({"partition": "cheap"}, 2, ["-pcheap", "-N2"], "2 nodes are asked for, but a job may have 1"),
    ({"partition": "shut"}, 1, ["-pshut"], "it is DOWN"),
]
FITTING = [
    ({}, 1, []),
    ({"time": "1-2:3"}, 2, ["-t1-2:3", "-N2"]),
    ({"partition": "shut,main"}, 1, ["-pshut,main"]),
    (
        {"mem": "3000", "cpus_per_task": 4, "gres": "gpu:2"},
        2,
        ["-N2", "--mem=3000", "-c4", "--gres=gpu:2"],
    ),
    ({"gpus_per_node": 2, "mem_per_gpu": "1G"}, 1, ["--gpus-per-node=2", "--mem-per-gpu=1G"]),
]


@pytest.mark.parametrize(("options", "nodes", "arguments", "problem"), REFUSED)
def test_what_slurm_refuses_is_found_before(
    slurm: Cluster, options: dict[str, object], nodes: int, arguments: list[str], problem: str
) -> None:
    assert problem in " ".join(check_options(cluster_limits(), block(**options), nodes))
    assert slurm.run("sbatch", *arguments, "--wrap", "true", check=False).returncode != 0


@pytest.mark.parametrize(("options", "nodes", "arguments", "problem"), NEVER)
def test_what_slurm_accepts_and_never_starts_is_found_before(
    slurm: Cluster, options: dict[str, object], nodes: int, arguments: list[str], problem: str
) -> None:
    found = check_options(cluster_limits(), block(**options), nodes)
    assert len(found) == 1
    assert problem in found[0]
    slurm.sbatch("--wrap", "true", *arguments)
    slurm.wait_for(lambda: all(task.reason not in ("None", "Priority") for task in queue()))
    (task,) = queue()
    assert task.state == "PENDING"
    # A partition that is down may be opened again; the others never change by themselves.
    assert waiting(task.reason).never == (options.get("partition") != "shut")


@pytest.mark.parametrize(("options", "nodes", "arguments"), FITTING)
def test_what_fits_is_let_pass_and_starts(
    slurm: Cluster, options: dict[str, object], nodes: int, arguments: list[str]
) -> None:
    assert check_options(cluster_limits(), block(**options), nodes) == []
    job = slurm.sbatch("--wrap", "sleep 60", *arguments)
    assert slurm.wait_state(job, "RUNNING") == "RUNNING"


def test_processes_and_threads_count_towards_a_node(slurm: Cluster) -> None:
    limits = cluster_limits()
    assert check_options(limits, block(), devices=2, threads=2) == []
    assert "6 CPUs" in check_options(limits, block(), devices=2, threads=3)[0]
    assert "gpu x 3" in check_options(limits, block(gpus_per_task=1), devices=3)[0]


def test_a_warning_must_leave_time_to_save(slurm: Cluster) -> None:
    limits = cluster_limits()
    assert check_options(limits, block(signal_lead_s=8)) == []
    assert "KillWait (7 s)" in check_options(limits, block(signal_lead_s=7))[0]


def test_requeue_is_refused_where_preemption_cancels(slurm: Cluster) -> None:
    limits = cluster_limits()
    assert check_options(limits, block(on_preempt="requeue")) == []
    assert check_options(limits, block(partition="cheap", on_preempt="auto")) == []
    (problem,) = check_options(limits, block(partition="cheap", on_preempt="requeue"))
    assert "Set it to auto or resubmit" in problem


def test_the_queue_tells_tasks_apart_and_why_each_waits(slurm: Cluster) -> None:
    array = slurm.sbatch("--job-name=a.b|c.i0000001", "--array=0-9%2", "--wrap", "sleep 60")
    held = slurm.sbatch("--job-name=other", "--hold", "--wrap", "true")
    slurm.wait_for(lambda: [t.state for t in queue("a.")].count("RUNNING") == 2)
    slurm.wait_for(lambda: {t.reason for t in queue("a.")} == {"None", "JobArrayTaskLimit"})
    tasks = {task.job_id: task for task in queue("a.")}
    assert set(tasks) == {f"{array}_{k}" for k in range(10)}
    assert {task.name for task in tasks.values()} == {"a.b|c.i0000001"}
    running = [task for task in tasks.values() if task.state == "RUNNING"]
    assert {task.nodes for task in running} <= {"node1", "node2"}
    waits = waiting(tasks[f"{array}_9"].reason)
    assert (waits.never, "array_parallelism" in waits.text) == (False, True)
    (other,) = queue("other")
    assert (other.job_id, other.index, waiting(other.reason).never) == (held, None, True)
    release(slurm, [held])
    slurm.wait_state(held, "COMPLETED")
    assert queue("other") == []


def test_a_dependency_that_failed_never_lets_a_job_start(slurm: Cluster) -> None:
    failed = slurm.sbatch("--wrap", "false")
    waits = slurm.sbatch(f"--dependency=afterok:{failed}", "--wrap", "true")
    slurm.wait_state(failed, "FAILED")
    slurm.wait_for(lambda: waiting(next(t.reason for t in queue() if t.job_id == waits)).never)
    assert "a job that it depends on failed" in waiting(slurm.job(waits)["Reason"]).text


def test_without_accounting_outcomes_come_from_the_controller(slurm: Cluster) -> None:
    job = slurm.sbatch("--wrap", "exit 4")
    slurm.wait_state(job, "FAILED")
    found = outcomes([job, "999999"])
    assert list(found) == [job]
    assert (found[job].state, found[job].exit_code, found[job].ended) == ("FAILED", 4, True)
