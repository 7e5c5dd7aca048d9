"""What a Slurm cluster allows, and whether a ``slurm:`` block fits in.

sbatch accepts jobs that can never start (a time limit above the partition's, more nodes than there
are); they wait for ever. So a block is checked against what the controller says of itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.slurm.call import PATIENCE, Patience, ask

if TYPE_CHECKING:
    from harness.slurm.options import Resources

UNLIMITED = ("UNLIMITED", "INFINITE", "NONE", "(null)", "N/A", "n/a", "")


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one partition that are alike."""

    count: int
    cpus: int
    mem_mb: int
    gres: Mapping[str, int]
    """Per node: ``{"gpu": 4, "gpu:a100": 4}``."""


@dataclass(frozen=True)
class Partition:
    """One partition."""

    name: str
    default: bool
    state: str
    """UP, DOWN, DRAIN or INACTIVE."""
    max_time_min: int | None
    """None: no limit."""
    max_nodes: int | None
    """Per job; None: all of them."""
    preempt_mode: str
    """OFF, REQUEUE, CANCEL, SUSPEND, …: what becomes of its jobs when others preempt them."""
    kinds: tuple[NodeKind, ...]

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return sum(kind.count for kind in self.kinds)

    @property
    def gpus_per_node(self) -> int:
        """Most GPUs on one node."""
        return max((kind.gres.get("gpu", 0) for kind in self.kinds), default=0)


@dataclass(frozen=True)
class Limits:
    """What the cluster allows."""

    version: str
    max_array_size: int
    """Limit on the index: the last task allowed is one less."""
    max_job_count: int
    """Jobs that the controller holds, everybody's; each array task is one."""
    kill_wait_s: int
    """Between SIGTERM and SIGKILL."""
    min_job_age_s: int
    """How long the controller remembers a job that ended."""
    preempt_type: str
    """``preempt/none``: no job preempts another."""
    preempt_mode: str
    requeue_default: bool
    """Whether jobs may be requeued that do not say so (JobRequeue)."""
    accounting: bool
    partitions: Mapping[str, Partition]

    @property
    def default_partition(self) -> str | None:
        """Where jobs go that name none."""
        return next((p.name for p in self.partitions.values() if p.default), None)


@dataclass(frozen=True)
class Demand:
    """What one job asks for."""

    nodes: int
    cpus: int
    """Per node."""
    mem_mb: int
    """Per node; 0 where nothing is asked for."""
    gres: Mapping[str, int]
    """Per node."""
    time_min: int | None

    def fits(self, kind: NodeKind) -> bool:
        """Whether a node of this kind has all that is asked of one."""
        enough = self.cpus <= kind.cpus and self.mem_mb <= kind.mem_mb
        return enough and all(kind.gres.get(name, 0) >= n for name, n in self.gres.items())

    def __str__(self) -> str:
        parts = [f"{self.cpus} CPUs"]
        parts += [f"{self.mem_mb} MiB"] if self.mem_mb else []
        return ", ".join(parts + [f"{name} x {n}" for name, n in sorted(self.gres.items())])


def demand(options: Resources, nodes: int = 1, devices: int = 1, threads: int = 1) -> Demand:
    """What jobs with these options ask of each node.

    Parameters
    ----------
    nodes, devices, threads
        The ``execution:`` block's: nodes of a run, its processes on a node, threads of each.
    """
    gpus = options.n_gpus(devices)
    cpus = devices * (options.cpus(threads) or 0) or gpus * (options.cpus_per_gpu or 0)
    gres = parse_gres(options.gres or "")
    for count, times in ((options.gpus_per_node, 1), (options.gpus_per_task, devices)):
        if count:
            gres |= {name: times * n for name, n in parse_gres(f"gpu:{count}").items()}
    mem = mebibytes(options.mem) + cpus * mebibytes(options.mem_per_cpu)
    return Demand(
        nodes=nodes,
        cpus=max(1, cpus),
        mem_mb=mem + gpus * mebibytes(options.mem_per_gpu),
        gres=gres,
        time_min=None if options.time_s is None else options.time_s // 60,
    )


def cluster_limits(*, patience: Patience = PATIENCE) -> Limits:
    """Ask the cluster what it allows.

    Raises
    ------
    SchedulerUnreachable
        The controller does not answer.
    IsolossError
        Slurm's commands are not installed.
    """
    config = parse_config(ask("scontrol", "show", "config", timeout_s=patience.query_s))
    partitions = ask("scontrol", "-a", "-o", "show", "partition", timeout_s=patience.query_s)
    # One line for each partition and kind of node, however many nodes there are.
    kinds = ask("sinfo", "-h", "-a", "-e", "-o", "%R|%D|%c|%m|%G", timeout_s=patience.query_s)
    return Limits(
        version=config.get("SLURM_VERSION", "unknown"),
        max_array_size=_leading_int(config.get("MaxArraySize"), 1001),
        max_job_count=_leading_int(config.get("MaxJobCount"), 10000),
        kill_wait_s=_leading_int(config.get("KillWait"), 30),
        min_job_age_s=_leading_int(config.get("MinJobAge"), 300),
        preempt_type=config.get("PreemptType", "preempt/none"),
        preempt_mode=config.get("PreemptMode", "OFF"),
        requeue_default=config.get("JobRequeue", "1") != "0",
        accounting=not config.get("AccountingStorageType", "").endswith(("none", "(null)")),
        partitions=parse_partitions(partitions, parse_kinds(kinds)),
    )


def parse_config(text: str) -> dict[str, str]:
    """Settings of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_partitions(text: str, kinds: Mapping[str, tuple[NodeKind, ...]]) -> dict[str, Partition]:
    """Partitions of ``scontrol -o show partition``, with the nodes that sinfo names."""
    found = {}
    for line in text.splitlines():
        fields = dict(item.split("=", 1) for item in line.split() if "=" in item)
        if "PartitionName" not in fields:
            continue
        name, max_nodes = fields["PartitionName"], fields.get("MaxNodes", "")
        found[name] = Partition(
            name=name,
            default=fields.get("Default") == "YES",
            state=fields.get("State", "UP"),
            max_time_min=minutes(fields.get("MaxTime", "UNLIMITED")),
            max_nodes=None if max_nodes in UNLIMITED else int(max_nodes),
            preempt_mode=fields.get("PreemptMode", "OFF"),
            kinds=kinds.get(name, ()),
        )
    return found


def parse_kinds(text: str) -> dict[str, tuple[NodeKind, ...]]:
    """Kinds of nodes by partition, from sinfo's ``%R|%D|%c|%m|%G``."""
    found: dict[str, tuple[NodeKind, ...]] = {}
    for line in text.splitlines():
        name, count, cpus, mem_mb, gres = line.strip().split("|", 4)
        kind = NodeKind(
            _leading_int(count, 0), _leading_int(cpus, 0), _leading_int(mem_mb, 0), parse_gres(gres)
        )
        found[name] = (*found.get(name, ()), kind)
    return found


def parse_gres(text: str) -> dict[str, int]:
    """Counts of ``gpu:a100:4(S:0-1),shard:8``, with and without the type."""
    counts: dict[str, int] = {}
    for item in re.sub(r"\([^)]*\)", "", text).split(","):
        parts = item.strip().removeprefix("gres/").replace("=", ":").split(":")
        if parts[0] in UNLIMITED:
            continue
        count = _leading_int(parts.pop(), 1) if parts[-1][:1].isdigit() and len(parts) > 1 else 1
        for name in {parts[0], ":".join(parts)}:
            counts[name] = counts.get(name, 0) + count
    return counts


def minutes(text: str) -> int | None:
    """Minutes of ``D-HH:MM:SS``, ``HH:MM:SS`` or ``UNLIMITED`` as Slurm prints them."""
    if text in UNLIMITED:
        return None
    days, _, clock = text.rpartition("-")
    hours, minute, second = ([0, 0, 0] + [int(part) for part in clock.split(":")])[-3:]
    return int(days or 0) * 1440 + hours * 60 + minute + (second > 0)


def mebibytes(text: str | None) -> int:
    """MiB of ``32G``, ``500`` or ``1T``, as sbatch reads them; 0 for None."""
    found = re.fullmatch(r"(\d+)([KMGT]?)", text or "0", re.IGNORECASE)
    factor = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}
    return int(int(found[1]) * factor[found[2].upper()]) if found else 0


def check_options(
    limits: Limits, options: Resources, nodes: int = 1, devices: int = 1, threads: int = 1
) -> list[str]:
    """Find what would keep jobs with these options from ever starting, or from saving in time.

    Of several partitions one that fits is enough.

    Parameters
    ----------
    nodes, devices, threads
        The ``execution:`` block's: nodes of a run, its processes on a node, threads of each.

    Returns
    -------
    list of str
        One problem each, with what to do; none if the block fits.
    """
    problems = _timing(limits, options)
    named = options.partition or limits.default_partition
    choice = f"Choose one of {', '.join(sorted(limits.partitions))}."
    if named is None:
        return [*problems, f"slurm.partition: the cluster has no default. {choice}"]
    names = [name.strip() for name in named.split(",")]
    for name in names:
        if name not in limits.partitions:
            return [*problems, f"slurm.partition: there is no '{name}' here. {choice}"]
    asked = demand(options, nodes=nodes, devices=devices, threads=threads)
    found = [_misfits(limits, limits.partitions[name], asked, options) for name in names]
    first = [f"partition {names[0]}: {text}" for text in found[0]]
    return problems + (first if all(found) else [])


def _timing(limits: Limits, options: Resources) -> list[str]:
    lead_s, time_s = options.signal_lead_s, options.time_s
    problems = []
    if lead_s <= limits.kill_wait_s:
        problems.append(
            f"slurm.signal_lead_s: {lead_s} is no more than the cluster's KillWait "
            f"({limits.kill_wait_s} s); a run could not save in time. Raise it: 120 is usual."
        )
    if time_s is not None and lead_s >= time_s:
        problems.append(
            f"slurm.signal_lead_s: {lead_s} is not below slurm.time ({time_s} s); runs would be "
            "stopped as soon as they start. Raise slurm.time or lower slurm.signal_lead_s."
        )
    return problems


def _misfits(limits: Limits, partition: Partition, asked: Demand, options: Resources) -> list[str]:
    """Why one partition never runs such a job."""
    checks = (
        _state(partition),
        _time(partition, asked),
        _preemption(limits, partition, options),
        _nodes(partition, asked),
    )
    return [problem for problem in checks if problem]


def _state(partition: Partition) -> str | None:
    if partition.state == "UP":
        return None
    return (
        f"it is {partition.state}: jobs wait until the administrators open it. "
        "Set slurm.partition to another."
    )


def _time(partition: Partition, asked: Demand) -> str | None:
    most = partition.max_time_min
    if asked.time_min is None or most is None or asked.time_min <= most:
        return None
    return (
        f"slurm.time of {asked.time_min} min is above its limit of {most} min; Slurm would accept "
        f"the jobs and never start them. Set it to {most} or less: a run goes on in its next job."
    )


def _preemption(limits: Limits, partition: Partition, options: Resources) -> str | None:
    cancels = "CANCEL" in (partition.preempt_mode, limits.preempt_mode.split(",")[-1])
    preempts = limits.preempt_type != "preempt/none" and partition.preempt_mode != "OFF"
    if options.on_preempt != "requeue" or not (preempts and cancels):
        return None
    return (
        "slurm.on_preempt is requeue, but here a preempted job is cancelled (PreemptMode=CANCEL). "
        "Set it to auto or resubmit."
    )


def _nodes(partition: Partition, asked: Demand) -> str | None:
    """Whether enough nodes have all that is asked of each."""
    offered = "; ".join(describe(kind) for kind in partition.kinds) or "no nodes"
    most = min(partition.nodes, partition.max_nodes or partition.nodes)
    if asked.nodes > most:
        return f"{asked.nodes} nodes are asked for, but a job may have {most} (execution.nodes)."
    fitting = sum(kind.count for kind in partition.kinds if asked.fits(kind))
    if fitting >= asked.nodes:
        return None
    return (
        f"{asked.nodes} nodes with {asked} each are asked for, but {fitting} have that; there are "
        f"{offered}. Lower cpus_per_task, mem, gres or gpus_per_node, or set slurm.partition to "
        "another."
    )


def describe(kind: NodeKind) -> str:
    """Nodes of one kind in words: ``2 nodes of 16 CPUs, 8000 MiB, gpu x 2``."""
    gres = "".join(f", {name} x {n}" for name, n in sorted(kind.gres.items()))
    return f"{kind.count} nodes of {kind.cpus} CPUs, {kind.mem_mb} MiB{gres}"


def _leading_int(text: str | None, default: int) -> int:
    found = re.match(r"\d+", text or "")
    return int(found[0]) if found else default
