"""The ``slurm:`` block of a grid as a typed object: what one job array asks of Slurm.

Names are sbatch's long options with underscores. Values are checked and brought into one form here,
so that equal demands are equal objects and every text fits on one line of a script. Where a grid
spells the block out, mistakes get their place in :mod:`harness.slurm.block`; what each run asks for
is decided in :func:`by_resources`. Limits: options that have no field here go under ``extra``, and
sbatch itself is their judge.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PositiveInt,
    WithJsonSchema,
    model_validator,
)

from harness.config import Execution, RunConfig, Strict
from harness.slurm.values import (
    extra_option,
    extra_value,
    gpu_count,
    gpus_of_gres,
    mail_events,
    memory,
    one_line,
    seconds_of,
    shell_line,
    time_limit,
    without_gpus,
)


class Conflict(ValueError):
    """Two options that cannot stand together; ``key`` is the one to name in the message."""

    def __init__(self, key: str, message: str) -> None:
        self.key = key
        super().__init__(message)


def _read(check: Callable[[Any], str], *types: str) -> tuple[BeforeValidator, WithJsonSchema]:
    return BeforeValidator(check), WithJsonSchema({"type": list(types)})


Text = Annotated[str, AfterValidator(one_line)]
Line = Annotated[str, AfterValidator(shell_line)]
Time = Annotated[str, *_read(time_limit, "string", "integer")]
Memory = Annotated[str, *_read(memory, "string", "integer")]
GpuCount = Annotated[str, *_read(gpu_count, "string", "integer")]
MailEvents = Annotated[str, *_read(mail_events, "string", "array")]
ExtraName = Annotated[str, AfterValidator(extra_option)]
ExtraValue = Annotated[str, *_read(extra_value, "string", "integer", "boolean")]


class Container(Strict):
    """The container in which workers run; ``sbatch`` and ``scontrol`` stay outside of it."""

    image: Text
    """Path or address of the image, as the runtime spells it."""
    mounts: list[Text] = Field(default_factory=list)
    """Folders to mount, as host[:inside[:options]]; the results folder is mounted anyway."""
    runtime: Literal["apptainer", "pyxis"] = "apptainer"
    """apptainer: the worker is started by `apptainer exec`. pyxis: by `srun --container-image`."""


class Resources(Strict):
    """What one job array asks of Slurm, and how its tasks run."""

    partition: Text | None = None
    """Partition, or several separated by commas."""
    account: Text | None = None
    """Account to charge."""
    qos: Text | None = None
    """Quality of service."""
    constraint: Text | None = None
    """Features that nodes must have."""
    exclude: Text | None = None
    """Nodes to stay away from, separated by commas."""
    nodelist: Text | None = None
    """Nodes to run on, separated by commas."""
    reservation: Text | None = None
    """Reservation to run in."""
    gres: Text | None = None
    """Generic resources of a node, such as gpu:a100:2 or nvme:1."""
    gpus_per_node: GpuCount | None = None
    """GPUs of a node, as 2 or a100:2."""
    gpus_per_task: GpuCount | None = None
    """GPUs of one process; execution.devices processes run on a node."""
    cpus_per_gpu: PositiveInt | None = None
    """CPUs for each GPU."""
    cpus_per_task: PositiveInt | None = None
    """CPUs of one process; default: execution.threads for every run at once."""
    mem: Memory | None = None
    """Memory of a node, as 16G; a bare number is in megabytes, 0 is all that the node has."""
    mem_per_gpu: Memory | None = None
    """Memory for each GPU."""
    mem_per_cpu: Memory | None = None
    """Memory for each CPU."""
    time: Time | None = None
    """Time limit of one task; required to submit. Minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    comment: Text | None = None
    """Free text that Slurm keeps with the job."""
    mail_type: MailEvents | None = None
    """Events to mail about, such as END,FAIL, or a list of them."""
    mail_user: Text | None = None
    """Whom to mail."""
    array_parallelism: PositiveInt = 256
    """Tasks of one array that may run at once."""
    runs_per_job: PositiveInt = 1
    """Runs that one task works through; packs small runs into one allocation."""
    runs_at_once: PositiveInt | None = None
    """Workers in one allocation. Default: 1, or runs_per_gpu for each GPU."""
    runs_per_gpu: PositiveInt = 1
    """Runs that share one GPU at a time."""
    signal: Literal["USR1", "USR2"] = "USR2"
    """Signal by which Slurm warns of the time limit."""
    signal_lead_s: int = Field(default=120, ge=1, le=65535)
    """Seconds before the time limit at which it warns; Slurm may be up to 60 s early."""
    max_requeues: int = Field(default=5, ge=0)
    """How often a task may put itself back in the queue after a warning."""
    on_preempt: Literal["auto", "requeue", "resubmit"] = "auto"
    """What a preemption means here. requeue: Slurm starts the task again. resubmit: the task is
    gone, and the next `isoloss run` submits its runs. auto: whichever of the two is seen."""
    setup: list[Line] = Field(default_factory=list)
    """Shell lines before the worker, such as `module load cuda`."""
    teardown: list[Line] = Field(default_factory=list)
    """Shell lines after it, whatever happened."""
    python: Text | None = None
    """Interpreter. Default: the one that submits, or `python` in a container."""
    srun_args: list[Text] = Field(default_factory=list)
    """Arguments for srun; given here, one process too is started by it."""
    container: Container | None = None
    """Container in which workers run."""
    extra: dict[ExtraName, ExtraValue] = Field(default_factory=dict)
    """Other long options of sbatch, verbatim: {gres-flags: enforce-binding, exclusive: true}."""

    @model_validator(mode="after")
    def _one_of_each(self) -> Resources:
        for names in EXCLUSIVE:
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise Conflict(given[-1], f"{' and '.join(given)} exclude each other. Keep one")
        counts = [n for n in ("gpus_per_node", "gpus_per_task") if getattr(self, n) is not None]
        if self.gres and gpus_of_gres(self.gres) and counts:
            raise Conflict("gres", f"gres and {counts[0]} both ask for GPUs. Keep one")
        return self

    @property
    def time_s(self) -> int | None:
        """Time limit in seconds, rounded up to whole minutes as Slurm does."""
        return None if self.time is None else 60 * math.ceil(seconds_of(self.time) / 60)

    def n_gpus(self, devices: int = 1) -> int:
        """GPUs asked for on each node, for ``devices`` processes on it."""
        if self.gpus_per_task is not None:
            return devices * _number(self.gpus_per_task)
        return _number(self.gpus_per_node or "0") or gpus_of_gres(self.gres or "")

    @property
    def workers(self) -> int:
        """Workers in one allocation after the defaults are applied."""
        if self.runs_at_once is not None:
            return self.runs_at_once
        return self.runs_per_gpu * self.n_gpus() if self.runs_per_gpu > 1 else 1

    def cpus(self, threads: int) -> int | None:
        """CPUs of one process whose runs have ``threads`` each; None where GPUs decide."""
        if self.cpus_per_gpu is not None:
            return None
        return self.cpus_per_task or threads * self.workers

    @property
    def interpreter(self) -> str:
        """Python that executes the workers."""
        return self.python or ("python" if self.container else sys.executable)


EXCLUSIVE = (
    ("mem", "mem_per_gpu", "mem_per_cpu"),
    ("gpus_per_node", "gpus_per_task"),
    ("cpus_per_task", "cpus_per_gpu"),
)
"""Options of which at most one may be given."""


class Override(Resources):
    """Options that only some runs have."""

    if_: dict[str, Any] = Field(alias="if")
    """Which runs, as in the grid's when: {model.d_model: 512, residual: block}."""

    @model_validator(mode="after")
    def _sets_something(self) -> Override:
        if not self.given():
            raise ValueError("sets no option. Add one beside if, such as time or mem")
        return self

    def given(self) -> dict[str, Any]:
        """Options that are spelled out."""
        return self.model_dump(exclude_unset=True, exclude={"if_"})


class Slurm(Resources):
    """How the runs of a sweep are submitted to Slurm."""

    max_queued: PositiveInt | None = None
    """Tasks of this sweep in the queue at once; the rest follow in waves. Default: no limit."""
    canary: bool = True
    """Let one run of every arm go first, and the others only when it works."""
    overrides: list[Override] = Field(default_factory=list)
    """Options of some runs only; where several match, the later one wins."""

    @model_validator(mode="after")
    def _fits_together(self) -> Slurm:
        _check_gpus(self)
        _check_packing(self)
        if self.time_s is not None and self.signal_lead_s >= self.time_s:
            rule = f"must be shorter than time ({self.time_s} s), got {self.signal_lead_s}"
            raise Conflict("signal_lead_s", f"{rule}. Lower it, or ask for more time")
        return self


def _check_gpus(options: Slurm) -> None:
    needy = ("cpus_per_gpu", "mem_per_gpu")
    named = [name for name in needy if getattr(options, name) is not None]
    named += ["runs_per_gpu"] if options.runs_per_gpu > 1 else []
    if named and not options.n_gpus():
        raise Conflict(named[0], f"{named[0]} needs GPUs. Add gpus_per_node: 1")


def _check_packing(options: Slurm) -> None:
    asked, workers = options.runs_per_gpu * options.n_gpus(), options.workers
    if options.runs_per_gpu > 1 and workers != asked:
        share = f"runs_per_gpu {options.runs_per_gpu} on {options.n_gpus()} GPU(s)"
        raise Conflict("runs_at_once", f"{share} is {asked}, got {workers}. Remove one of the two")
    if workers > options.runs_per_job:
        key = "runs_at_once" if options.runs_at_once is not None else "runs_per_gpu"
        rule = f"{workers} runs at once need runs_per_job of at least {workers}"
        raise Conflict(key, f"{rule}, got {options.runs_per_job}. Raise runs_per_job")


def check_execution(options: Slurm, execution: Execution) -> None:
    """Check that a run's processes fit into what is asked for.

    Raises
    ------
    Conflict
        Several workers where a run has several processes, or fewer GPUs than processes on a node.
    """
    devices, nodes, workers = execution.devices, execution.nodes, options.workers
    if devices * nodes > 1 and workers > 1:
        key = "runs_at_once" if options.runs_at_once is not None else "runs_per_gpu"
        rule = f"{workers} runs at once do not fit runs of {devices * nodes} processes"
        raise Conflict(key, f"{rule} (execution.nodes x devices). Set it to 1")
    n_gpus = options.n_gpus(devices)
    if 0 < n_gpus < devices:
        key = "gres" if options.gpus_per_node is None else "gpus_per_node"
        rule = f"execution.devices {devices} needs {devices} GPUs on a node, got {n_gpus}"
        raise Conflict(key, f"{rule}. Ask for {devices}")


def _number(count: str) -> int:
    return int(count.rpartition(":")[2])


def layered(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Lay options over others, such as a grid's over its profile's.

    A key that is given in ``upper`` wins, nothing (null) included; ``extra`` and ``container`` are
    joined key by key. What excludes a key of ``upper`` is dropped from ``lower``: memory per GPU in
    a grid replaces the profile's memory per node.
    """
    kept = dict(lower)
    given = {name for name, value in upper.items() if value is not None}
    for names in (*EXCLUSIVE, ("runs_at_once", "runs_per_gpu")):
        if given.intersection(names):
            kept = {name: value for name, value in kept.items() if name not in names}
    gres = kept.get("gres")
    if isinstance(gres, str) and given & {"gpus_per_node", "gpus_per_task"}:
        kept["gres"] = without_gpus(gres) or None
    if gpus_of_gres(str(upper.get("gres"))):
        kept = {name: value for name, value in kept.items() if not name.startswith("gpus_per_")}
    for name in ("extra", "container"):
        below, above = kept.get(name), upper.get(name)
        if isinstance(below, dict) and isinstance(above, dict):
            upper = {**upper, name: {**below, **above}}
    return {**kept, **upper}


def with_overrides(slurm: Slurm, chosen: Sequence[int]) -> Slurm:
    """Apply the overrides of those indices, in their order, and drop all of them.

    Raises
    ------
    pydantic.ValidationError
        What results contradicts itself.
    """
    options = slurm.model_dump(exclude={"overrides"})
    for i in chosen:
        options = layered(options, slurm.overrides[i].given())
    return Slurm.model_validate(options)


def matching(slurm: Slurm, configs: Sequence[RunConfig]) -> dict[tuple[int, ...], list[int]]:
    """Tell which overrides hold for which runs.

    Returns
    -------
    dict
        Indices of overrides that hold together, with the indices of the runs for which they do.
    """
    if not slurm.overrides:
        return {(): list(range(len(configs)))}
    from harness.slurm.matching import matches

    found: dict[tuple[int, ...], list[int]] = {}
    for i, chosen in enumerate(matches([o.if_ for o in slurm.overrides], configs)):
        found.setdefault(chosen, []).append(i)
    return found


def by_resources(slurm: Slurm, configs: Sequence[RunConfig]) -> list[tuple[Slurm, list[int]]]:
    """Group runs by what they ask of Slurm, since all tasks of an array have the same resources.

    Returns
    -------
    list
        Options without overrides, and the ascending indices into ``configs`` of the runs that have
        them. Groups stand in the order of their first run.
    """
    groups: dict[str, tuple[Slurm, list[int]]] = {}
    for chosen, indices in matching(slurm, configs).items():
        options = with_overrides(slurm, chosen)
        groups.setdefault(options.model_dump_json(), (options, []))[1].extend(indices)
    return [(options, sorted(indices)) for options, indices in groups.values() if indices]
