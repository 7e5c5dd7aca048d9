"""Tables and JSON of the command `plan`; takes data, returns what to print."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table

from harness.console import duration, human, table
from harness.cost import FLOP_CONVENTION

if TYPE_CHECKING:
    from harness.grid import Grid
    from harness.job_times import JobTime
    from harness.plan import Plan
    from harness.sweep import Difference
    from harness.tuning.price import TuningPrice

SHOWN_RUNS = 20
"""Runs that `plan` lists; --json has them all."""


def plan_tables(plan: Plan, change: Difference) -> list[RenderableType]:
    """Everything `isoloss plan` prints."""
    notices = [*plan.notices, *plan.slurm_notices, *change.notices()]
    shown: list[RenderableType] = [f"note: {notice}" for notice in notices]
    shown += [_run_table(plan), "", _arm_table(plan), ""]
    shown.append(f"{len(plan.runs)} runs: {change.describe()}")
    shown.append(f"{human(plan.flops)} FLOPs in all; {_time(plan, change)}. {FLOP_CONVENTION}")
    shown += _shared(plan)
    shown += _tuning_text(plan.tuning) if plan.tuning else []
    shown += [_job_text(job) for job in plan.jobs]
    return shown


def _shared(plan: Plan) -> list[str]:
    """What shared trunks save; FLOPs of the tables count every run as if it trained alone."""
    saved = plan.sharing
    if saved is None:
        return []
    spent = f"{human(saved.flops)} of {human(saved.flops_alone)}"
    steps = f"{saved.steps} of {saved.steps_alone} steps"
    return [f"{saved.describe()} ({spent}; {steps})."]


def _time(plan: Plan, change: Difference) -> str:
    """Device time of the whole grid, and of what is left of it."""
    if plan.hours is None:
        return "time unknown until a step is measured, by `isoloss bench` or by a run"
    left = plan.hours_of(state.run.run_id for state in change.todo)
    return f"{_hours(plan.hours)} of one {plan.device}, {_hours(left)} to do"


def _tuning_text(tuning: TuningPrice) -> list[str]:
    """What the search costs, or what it chose."""
    laws = f"; {tuning.transferred} more get their values by a law" if tuning.transferred else ""
    if not tuning.tuned:
        n, flops = tuning.equal_rate_runs, human(tuning.equal_rate_flops)
        more = f" Up to {n} runs at the baseline's values follow, {flops} FLOPs." if n else ""
        time = "time unknown" if tuning.hours is None else _hours(tuning.hours)
        return [
            f"Not tuned yet: the runs above have the grid's values. Tuning comes first: at most "
            f"{tuning.trials} trials in {tuning.cells} cells, {human(tuning.flops)} FLOPs, "
            f"{time}{laws}.{more}"
        ]
    fields = {
        arm: "; ".join(f"{path} {text}" for path, text in values.items())
        for arm, values in tuning.values.items()
    }
    return [f"Tuned in {tuning.cells} cells{laws}. Values by size, the cheapest first:"] + [
        f"  {arm}: {text or 'nothing is searched'}" for arm, text in fields.items()
    ]


def _job_text(job: JobTime) -> str:
    packed = f"up to {job.runs_per_job} runs each, {job.at_once} at a time, "
    limit = "no time limit given" if job.time_s is None else f"limit {duration(job.time_s)}"
    return (
        f"Slurm: {job.jobs} jobs, "
        f"{packed if job.runs_per_job > 1 else ''}the longest about {duration(job.longest_s)}, "
        f"{limit}, suggested time: {job.suggested_minutes}"
    )


def _run_table(plan: Plan) -> Table:
    headers = (
        "run",
        "cell",
        "seed",
        "params",
        "tokens",
        "steps",
        "FLOPs",
        "variant's own",
        "memory",
    )
    rows: list[tuple[str, ...]] = [
        (
            run.run_id,
            run.cell,
            str(run.config["seed"]),
            human(run.cost.n_params),
            human(run.cost.tokens),
            str(run.cost.steps),
            human(run.cost.flops),
            f"{100 * run.cost.flops_residual / run.cost.flops:.2f}%",
            human(run.cost.state_bytes) + "B",
        )
        for run in plan.runs[:SHOWN_RUNS]
    ]
    left_out = len(plan.runs) - len(rows)
    if left_out:
        rows.append(("…", f"{left_out} more, see --json", *[""] * 7))
    return table(headers, rows, left=2)


def _arm_table(plan: Plan) -> Table:
    headers = ("arm", "runs", "tokens", "FLOPs", "variant's own", "device time", "known by")
    rows = [
        (
            arm.arm,
            str(arm.runs),
            human(arm.tokens),
            human(arm.flops),
            f"{100 * arm.flops_residual / arm.flops:.2f}%",
            _hours(arm.hours),
            "-" if arm.evidence == "none" else f"{arm.evidence}: {arm.source}",
        )
        for arm in plan.arms
    ]
    return table(headers, rows)


def _hours(hours: float | None) -> str:
    return duration(None if hours is None else 3600 * hours)


def plan_json(grid: Grid, plan: Plan, change: Difference) -> dict[str, Any]:
    """Everything `isoloss plan --json` prints."""
    return {
        "sweep": grid.sweep,
        "flop_convention": FLOP_CONVENTION,
        "flops": plan.flops,
        "sharing": dataclasses.asdict(plan.sharing) if plan.sharing else None,
        "device": plan.device,
        "device_hours": plan.hours,
        "device_hours_left": plan.hours_of(state.run.run_id for state in change.todo),
        "arms": [dataclasses.asdict(arm) for arm in plan.arms],
        "jobs": [dataclasses.asdict(job) for job in plan.jobs],
        "tuning": dataclasses.asdict(plan.tuning) if plan.tuning else None,
        "notices": [*plan.notices, *plan.slurm_notices],
        "todo": [state.run.run_id for state in change.todo],
        "done": [state.run.run_id for state in change.done],
        "runs": [run.model_dump(mode="json") for run in plan.runs],
    }
