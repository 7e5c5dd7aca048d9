"""Hands runs to Slurm as job arrays and returns: grouped by resources, split, throttled, in waves.

Each array is written down before it is submitted, so that a lost answer or a kill between two steps
is found again by the job's name and nothing is submitted twice. Indices of an array always start at
0: Slurm's MaxArraySize bounds the index, not the count.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from harness.config import Execution, RunConfig
from harness.errors import IsolossError
from harness.job import Job, write_job, write_run_configs
from harness.lease import fs_now
from harness.paths import SweepPaths
from harness.records import PlannedRun, write_text_atomically
from harness.slurm.client import QueueFull
from harness.slurm.client import submit as sbatch
from harness.slurm.options import Slurm, by_resources
from harness.slurm.script import ScriptPlan, script_text
from harness.slurm.submissions import (
    Submission,
    new_token,
    submission_paths,
    write_submission,
)
from harness.slurm.types import SchedulerUnreachable
from harness.trunks import packed


@dataclass(frozen=True)
class Array:
    """Runs that become one job array."""

    slurm: Slurm
    """Resources of every task."""
    tasks: tuple[tuple[PlannedRun, ...], ...]
    """Runs of every task."""
    canary: bool = False
    """Whether the other arrays wait until it has ended."""

    @property
    def runs(self) -> tuple[PlannedRun, ...]:
        """All runs, in the order of the tasks."""
        return tuple(run for task in self.tasks for run in task)


@dataclass
class Submitted:
    """What one `isoloss run --on slurm` handed over."""

    arrays: list[Submission] = field(default_factory=list)
    left: int = 0
    """Runs that wait for room in the queue: the same command submits them later."""
    full: str | None = None
    """Slurm's words when it took no more."""
    refused: str | None = None
    """Slurm's words when it refused an array after it had taken others."""

    @property
    def n_runs(self) -> int:
        """Runs handed over."""
        return sum(len(runs) for array in self.arrays for runs in array.tasks)


def arrays_of(
    runs: Sequence[PlannedRun], canaries: Sequence[PlannedRun], slurm: Slurm, max_array_size: int
) -> list[Array]:
    """Group runs into job arrays, canaries first.

    Runs of one trunk are one task, the shortest first: one after the other they take little longer
    than the longest of them alone, and none waits for another while it holds an allocation.

    Parameters
    ----------
    runs
        All runs to submit, canaries among them.
    canaries
        Those that go ahead, one per arm.
    slurm
        The grid's block.
    max_array_size
        Slurm's limit: the largest index is one less.
    """
    ahead = {run.run_id for run in canaries}
    parts = (
        ([r for r in runs if r.run_id in ahead], True),
        ([r for r in runs if r.run_id not in ahead], False),
    )
    return [
        Array(options, tuple(tasks[first : first + max_array_size]), canary)
        for part, canary in parts
        for options, group in _by_resources(part, slurm)
        for tasks in [packed(group, 1 if canary else options.runs_per_job)]
        for first in range(0, len(tasks), max_array_size)
    ]


def _by_resources(
    runs: Sequence[PlannedRun], slurm: Slurm
) -> Iterator[tuple[Slurm, list[PlannedRun]]]:
    if runs and not slurm.overrides:  # thousands of configurations need not be read
        yield slurm, list(runs)
        return
    configs = [RunConfig.model_validate(run.config) for run in runs]
    for options, members in by_resources(slurm, configs):
        yield options, [runs[i] for i in members]


def canaries_of(runs: Sequence[PlannedRun], proven: set[str]) -> list[PlannedRun]:
    """The cheapest run of every arm that has not proven itself yet.

    None when that is all there is to do: nothing would wait for them.
    """
    cheapest: dict[str, PlannedRun] = {}
    for run in runs:
        if run.arm not in cheapest or run.cost.flops < cheapest[run.arm].cost.flops:
            cheapest[run.arm] = run
    ahead = [run for arm, run in cheapest.items() if arm not in proven]
    return ahead if len(ahead) < len(runs) else []


@dataclass(frozen=True)
class Submitter:
    """Writes and submits the arrays of one sweep.

    Parameters
    ----------
    code
        Snapshot that the jobs import.
    mirror
        Command of the MLflow mirror beside every worker; None for none.
    say
        Prints one line of progress.
    """

    paths: SweepPaths
    sweep: str
    execution: Execution
    code: Path | None
    mirror: list[str] | None
    say: Callable[[str], None]

    def submit(self, arrays: Sequence[Array], room: int | None, *, dry: bool = False) -> Submitted:
        """Submit arrays, at most ``room`` tasks of them.

        Parameters
        ----------
        room
            Tasks that may be queued now; None for any number.
        dry
            Write the scripts, submit nothing.

        Raises
        ------
        IsolossError
            Slurm refuses the first array, or does not answer. A later refusal is returned.
        """
        done, waits_for = Submitted(), list[str]()
        for array in arrays:
            part = self._fitting(array, room)
            done.left += len(array.runs) - len(part.runs)
            if not part.runs:
                continue
            try:
                submission = self._one(part, [] if array.canary else waits_for, dry=dry)
            except QueueFull as error:
                done.full, done.left = str(error), done.left + len(part.runs)
                room = 0
                continue
            except SchedulerUnreachable:
                raise
            except IsolossError as error:
                if not done.arrays:
                    raise
                done.refused = str(error)
                return done
            done.arrays.append(submission)
            room = None if room is None else room - len(submission.tasks)
            if array.canary and submission.job_id:
                waits_for.append(submission.job_id)
        return done

    def _fitting(self, array: Array, room: int | None) -> Array:
        if room is None:
            return array
        return Array(array.slurm, array.tasks[: max(0, room)], array.canary)

    def _one(self, array: Array, waits_for: list[str], *, dry: bool) -> Submission:
        """Write one array down, submit it, and note the answer."""
        token = new_token()
        job = self._job(array)
        submission = Submission(
            token=token,
            name=f"{self.sweep}.{token}",
            user=getpass.getuser(),
            created_at=fs_now(self.paths.root),
            tasks=[[run.run_id for run in job.task(k)] for k in range(job.n_tasks)],
        )
        here = submission_paths(self.paths, token)
        here.out.mkdir(parents=True)
        write_run_configs(self.paths, job.runs)
        write_job(here.job, job)
        write_text_atomically(here.script, script_text(self._plan(array, job, token, waits_for)))
        if dry:
            self.say(f"written, not submitted: {here.script}")
            return submission
        write_submission(self.paths, submission)
        try:
            job_id = sbatch(here.script, name=submission.name)
        except SchedulerUnreachable:  # it may have been accepted: its name will tell
            raise
        except IsolossError:
            here.about.unlink()
            raise
        submission = submission.model_copy(update={"job_id": job_id})
        write_submission(self.paths, submission)
        self.say(
            f"job {job_id}: {len(submission.tasks)} tasks, {len(job.runs)} runs"
            f"{' (one ahead per arm)' if array.canary else ''}, script {here.script}"
        )
        return submission

    def _job(self, array: Array) -> Job:
        return Job(
            sweep=self.sweep,
            sweep_dir=self.paths.root,
            runs=list(array.runs),
            task_sizes=[len(task) for task in array.tasks],
            execution=self.execution,
        )

    def _plan(self, array: Array, job: Job, token: str, waits_for: list[str]) -> ScriptPlan:
        here = submission_paths(self.paths, token)
        return ScriptPlan(
            sweep=self.sweep,
            token=token,
            job_file=here.job,
            sweep_dir=self.paths.root,
            code=self.code,
            out_dir=here.out,
            n_tasks=job.n_tasks,
            slurm=array.slurm,
            python=array.slurm.interpreter,
            threads=self.execution.threads,
            nodes=self.execution.nodes,
            devices=self.execution.devices,
            dependency=f"afterany:{':'.join(waits_for)}" if waits_for else None,
            mirror=self.mirror,
        )
