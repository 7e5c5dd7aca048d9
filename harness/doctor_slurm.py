"""What `isoloss doctor` says of Slurm: reachable, its limits, and what follows from them."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import IsolossError
from harness.filesystem import filesystem_of
from harness.findings import Finding
from harness.slurm.call import NoCluster, Patience, ask
from harness.slurm.client import available
from harness.slurm.limits import Limits, Partition, cluster_limits, describe
from harness.slurm.types import SchedulerUnreachable

OLDEST = (20, 11)
"""The first Slurm whose squeue prints what :mod:`harness.slurm.queue` asks for."""
PATIENCE = Patience(query_s=10.0)
PREEMPTED = {
    "REQUEUE": "preempted jobs go back into the queue and resume",
    "CANCEL": "preempted jobs are cancelled: the next isoloss run submits and resumes them",
    "SUSPEND": "preempted jobs are suspended and go on later",
    "GANG": "jobs take turns",
}


def examine_slurm(results: Path) -> list[Finding]:
    """Check the cluster that this machine is a client of; a machine without one is no failure."""
    if not available():
        return [Finding("ok", "slurm", "not here: runs stay on this machine")]
    try:
        limits = cluster_limits(patience=PATIENCE)
    except NoCluster as error:
        return [Finding("note", "slurm", f"{error} Here, runs stay on this machine.")]
    except IsolossError as error:
        advice = "Ask `scontrol ping`; if it is down, tell the administrators."
        return [Finding("FAIL", "slurm", f"{error}. {advice}")]
    return [
        _cluster(limits),
        _accounting(limits),
        _preemption(limits),
        *(_partition(partition) for partition in limits.partitions.values()),
        *_shared(limits, results),
    ]


def _cluster(limits: Limits) -> Finding:
    number = tuple(int(part) for part in re.findall(r"\d+", limits.version)[:2])
    if number < OLDEST:
        text = f"{limits.version} is older than {OLDEST[0]}.{OLDEST[1]:02d}: use --on local"
        return Finding("FAIL", "slurm", text)
    return Finding(
        "ok",
        "slurm",
        f"{limits.version}; arrays of up to {limits.max_array_size:,} tasks (MaxArraySize; larger "
        f"sweeps are split), {limits.max_job_count:,} jobs in all, {limits.kill_wait_s} s between "
        "SIGTERM and SIGKILL",
    )


def _accounting(limits: Limits) -> Finding:
    memory = f"how a job ended is known for {limits.min_job_age_s} s (MinJobAge)"
    if not limits.accounting:
        text = f"off: {memory}; isoloss goes by its own files, so nothing is to be done"
        return Finding("ok", "slurm accounting", text)
    try:
        ask("sacct", "--starttime=now", "--noheader", "--allocations", timeout_s=PATIENCE.query_s)
    except SchedulerUnreachable as error:
        return Finding("note", "slurm accounting", f"on, but away ({error}): {memory}")
    return Finding("ok", "slurm accounting", "on")


def _preemption(limits: Limits) -> Finding:
    if limits.preempt_type == "preempt/none":
        return Finding("ok", "slurm preemption", "off")
    modes = limits.preempt_mode.split(",")
    meaning = "; ".join(PREEMPTED[mode] for mode in modes if mode in PREEMPTED)
    text = f"PreemptMode={limits.preempt_mode}: {meaning or 'jobs keep their nodes'}"
    return Finding("ok", "slurm preemption", text)


def _partition(partition: Partition) -> Finding:
    limit = partition.max_time_min
    time = "no time limit" if limit is None else f"at most {limit} min a job (slurm.time)"
    kinds = "; ".join(describe(kind) for kind in partition.kinds) or "no nodes"
    what = f"partition {partition.name}{' (default)' if partition.default else ''}"
    if partition.state != "UP":
        text = f"{partition.state}: what is submitted there waits. Use another for now"
        return Finding("note", what, text)
    return Finding("ok", what, f"{kinds}; {time}")


def _shared(limits: Limits, results: Path) -> list[Finding]:
    """A word on results that nodes may not see."""
    place = filesystem_of(results)
    most = max((partition.nodes for partition in limits.partitions.values()), default=0)
    if place.is_network or most < 2:
        return []
    text = (
        f"{results.resolve()} lies on {place.type}, which looks local to this machine, and the "
        "cluster has several nodes. Unless all of them have it mounted, use a shared folder "
        "(--results)."
    )
    return [Finding("note", "slurm results", text)]
