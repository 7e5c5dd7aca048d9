"""How long the Slurm jobs of a grid take, and where their time limit does not fit. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.grid import Grid
from harness.rates import job_s, suggested_minutes
from harness.records import PlannedRun
from harness.slurm.options import by_resources
from harness.trunks import in_chains, packed


@dataclass(frozen=True)
class JobTime:
    """Time that the jobs of runs with equal resources need under Slurm."""

    runs: int
    jobs: int
    runs_per_job: int
    at_once: int
    longest_s: float
    """Estimate for the job of the longest runs, its start not included."""
    time_s: int | None
    """Time limit asked for."""
    max_requeues: int
    suggested_minutes: int
    """Time limit that leaves room."""


def job_times(
    grid: Grid, runs: Sequence[PlannedRun], device_s: Sequence[float | None]
) -> tuple[JobTime, ...]:
    """Estimate the jobs of a grid with a ``slurm`` block, by resources; none while a time is
    unknown.

    Parameters
    ----------
    runs
        The runs of the grid.
    device_s
        Device seconds of each of them.
    """
    if grid.slurm is None:
        return ()
    processes = grid.execution.devices * grid.execution.nodes
    jobs = []
    for options, indices in by_resources(grid.slurm, [run.config for run in grid.runs]):
        seconds = {runs[i].run_id: s / processes for i in indices if (s := device_s[i]) is not None}
        if len(seconds) == len(indices):
            tasks = packed([runs[i] for i in indices], options.runs_per_job)
            longest = max(
                sum(seconds[run.run_id] for run in chain)
                for task in tasks
                for chain in in_chains(task)
            )
            packing = max(len(in_chains(task)) for task in tasks), options.workers
            jobs.append(
                JobTime(
                    runs=len(indices),
                    jobs=len(tasks),
                    runs_per_job=max(map(len, tasks)),
                    at_once=options.workers,
                    longest_s=job_s(longest, *packing),
                    time_s=options.time_s,
                    max_requeues=options.max_requeues,
                    suggested_minutes=suggested_minutes(longest, *packing),
                )
            )
    return tuple(jobs)


def time_notices(grid: Grid, job: JobTime) -> list[str]:
    """Say where a time limit does not fit the estimate."""
    if job.time_s is None:
        return []
    limit, needed = f"{job.time_s / 60:.0f} min", f"about {job.longest_s / 60:.3g} min"
    advice = f"Suggested: time: {job.suggested_minutes}."
    requeues = math.ceil(job.longest_s / job.time_s) - 1
    times = f"{requeues} requeue{'s' if requeues > 1 else ''}"
    if requeues > job.max_requeues:
        times += f", more than max_requeues {job.max_requeues}"
    if requeues > 0:
        text = f"the longest job needs {needed} of {limit}: {times}. {advice}"
    elif 5 * 60 * job.suggested_minutes < job.time_s:
        text = f"the longest job needs {needed} of {limit}; less time may start sooner. {advice}"
    else:
        return []
    return [grid.document.problem(("slurm", "time"), text)]
