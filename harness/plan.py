"""What a grid would run and cost: pure, from a :class:`~harness.grid.Grid` to tables.

Starts nothing and reads no results. Hours are stated only where a measured throughput is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.config import SCHEMA_VERSION
from harness.cost import run_cost
from harness.errors import GridError
from harness.expand import RuleCount
from harness.grid import Grid, collector_paused
from harness.records import Manifest, PlannedRun, RunCost
from harness.resolve import GridRun
from recipes.base import ResidualCost, source_sha256

MIN_LEVELS = 3
"""Sizes or budgets below which no interval can be given (``analysis.fit``)."""
MANY_EPOCHS = 4.0
"""Repetitions up to which tokens count as new (Muennighoff et al. 2023, arXiv 2305.16264)."""


@dataclass(frozen=True)
class ArmTotals:
    """Size and price of all runs of one arm."""

    arm: str
    runs: int
    n_params_min: int
    n_params_max: int
    n_params_residual_max: int
    """Parameters of the recipe in its largest run."""
    tokens: int
    flops: float
    """Training FLOPs, the recipe's own included."""
    flops_residual: float
    """The recipe's own share of them."""
    state_bytes_max: int
    """Estimated peak memory of its largest run."""
    hours: float | None
    """Device hours; null while no throughput is known."""


@dataclass(frozen=True)
class Plan:
    """The runs of a grid with their costs."""

    sweep: str
    baseline: str
    runs: tuple[PlannedRun, ...]
    arms: tuple[ArmTotals, ...]
    """Totals by arm, in the order of the grid."""
    rules: tuple[RuleCount, ...]
    notices: tuple[str, ...]
    flops_per_s: float | None
    """Measured training throughput behind the hours."""

    @property
    def tokens(self) -> int:
        """Training tokens of all runs."""
        return sum(arm.tokens for arm in self.arms)

    @property
    def flops(self) -> float:
        """Training FLOPs of all runs."""
        return sum(arm.flops for arm in self.arms)

    @property
    def hours(self) -> float | None:
        """Device hours of all runs; None while no throughput is known."""
        return None if self.flops_per_s is None else self.flops / self.flops_per_s / 3600


def plan(grid: Grid, flops_per_s: float | None = None) -> Plan:
    """Price every run of a grid.

    Parameters
    ----------
    grid
        The grid.
    flops_per_s
        Training FLOPs per second of one worker, measured on runs of this sweep. None leaves the
        hours unknown.

    Raises
    ------
    GridError
        A budget is smaller than half an optimiser step, or ``limits.gpu_hours`` would be exceeded.
    """
    costs = _Costs()
    with collector_paused():
        runs = tuple(costs.planned(run) for run in grid.runs)
    _refuse_tiny_budgets(grid, runs)
    arms = _totals(runs, flops_per_s)
    notices = [*grid.notices, *_weak_design(grid, runs)]
    limit = grid.limits.gpu_hours
    made = Plan(grid.sweep, grid.baseline, runs, arms, grid.rules, tuple(notices), flops_per_s)
    if limit is not None and made.hours is not None and made.hours > limit:
        rule = f"the grid needs about {made.hours:.3g} device hours, more than {limit:g}"
        raise GridError(
            [grid.document.problem(("limits", "gpu_hours"), f"{rule}. Raise the limit.")]
        )
    if limit is not None and made.hours is None:
        rule = "not checked: no throughput is known before a run of this sweep has ended."
        notices.append(grid.document.problem(("limits", "gpu_hours"), rule))
    return Plan(grid.sweep, grid.baseline, runs, arms, grid.rules, tuple(notices), flops_per_s)


def to_manifest(grid: Grid, made: Plan, created_at: str | None = None) -> Manifest:
    """Write a plan down as the manifest of its sweep.

    Parameters
    ----------
    grid
        Where the text and the overrides come from.
    made
        Its plan.
    created_at
        UTC time, ISO 8601; default: now.
    """
    return Manifest(
        schema_version=SCHEMA_VERSION,
        sweep=grid.sweep,
        grid_text=grid.text,
        overrides=list(grid.overrides),
        created_at=created_at or datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=grid.baseline,
        unigram_entropy_nats={
            run.config.data.corpus: run.corpus.unigram_entropy_nats for run in grid.runs
        },
        runs=list(made.runs),
    )


class _Costs:
    """Prices runs; what the runs of a grid share is computed once."""

    def __init__(self) -> None:
        self._costs: dict[tuple[int, ...], RunCost] = {}
        self._recipes: dict[int, ResidualCost] = {}
        self._dumps: dict[int, Any] = {}

    def planned(self, run: GridRun) -> PlannedRun:
        """Return the manifest entry of a run."""
        config = run.config
        parts = (config.residual, config.model, config.data, config.train)
        sections = ("residual", "model", "data", "train")
        dumped: dict[str, Any] = dict(zip(sections, map(self._dump, parts), strict=True))
        dumped["seed"] = config.seed
        return PlannedRun(
            run_id=run.run_id,
            arm=run.arm,
            cell=run.cell,
            config=dumped,
            recipe_revision=run.residual.recipe.revision,
            recipe_sha256=source_sha256(run.residual.recipe),
            corpus_sha256=run.corpus.sha256,
            vocab_size=run.corpus.vocab_size,
            cost=self._cost(run, tuple(map(id, parts))),
        )

    def _dump(self, section: Any) -> Any:
        if id(section) not in self._dumps:
            self._dumps[id(section)] = section.model_dump(mode="json")
        return self._dumps[id(section)]

    def _cost(self, run: GridRun, key: tuple[int, ...]) -> RunCost:
        if key not in self._costs:
            self._costs[key] = run_cost(run.config, self._recipe(run), run.corpus.vocab_size)
        return self._costs[key]

    def _recipe(self, run: GridRun) -> ResidualCost:
        residual = run.residual
        if id(residual) not in self._recipes:
            self._recipes[id(residual)] = residual.recipe.cost(residual.shape, residual.options)
        return self._recipes[id(residual)]


def _totals(runs: tuple[PlannedRun, ...], flops_per_s: float | None) -> tuple[ArmTotals, ...]:
    by_arm: dict[str, list[RunCost]] = {}
    for run in runs:
        by_arm.setdefault(run.arm, []).append(run.cost)
    return tuple(_arm_totals(arm, costs, flops_per_s) for arm, costs in by_arm.items())


def _arm_totals(arm: str, costs: list[RunCost], flops_per_s: float | None) -> ArmTotals:
    flops = sum(cost.flops for cost in costs)
    return ArmTotals(
        arm=arm,
        runs=len(costs),
        n_params_min=min(cost.n_params for cost in costs),
        n_params_max=max(cost.n_params for cost in costs),
        n_params_residual_max=max(cost.n_params_residual for cost in costs),
        tokens=sum(cost.tokens for cost in costs),
        flops=flops,
        flops_residual=sum(cost.flops_residual for cost in costs),
        state_bytes_max=max(cost.state_bytes for cost in costs),
        hours=None if flops_per_s is None else flops / flops_per_s / 3600,
    )


def _weak_design(grid: Grid, runs: tuple[PlannedRun, ...]) -> list[str]:
    """Say before it is paid for what the analysis will not be able to do with the runs."""
    notices = []
    own = [run.config for run in grid.runs if run.arm == grid.baseline]
    levels = {
        (c.model.n_layers, c.model.d_model, c.train.budget.kind, c.train.budget.value) for c in own
    }
    if len({run.arm for run in grid.runs}) > 1 and len(levels) < MIN_LEVELS:
        notices.append(
            f"{grid.file}: a multiplier has no interval and no verdict below {MIN_LEVELS} sizes or "
            f"budgets per arm; {grid.baseline} has {len(levels)}."
        )
    epochs = max(
        planned.cost.tokens / run.corpus.n_train_tokens
        for run, planned in zip(grid.runs, runs, strict=True)
    )
    if epochs > MANY_EPOCHS:
        notices.append(
            f"{grid.file}: the longest run reads its corpus {epochs:.1f} times; its loss measures "
            "memory of the text as well."
        )
    return notices


def _refuse_tiny_budgets(grid: Grid, runs: tuple[PlannedRun, ...]) -> None:
    """Refuse budgets that one step would overrun twofold: their cells would not be iso-budget."""
    problems: dict[str, None] = {}
    for run, planned in zip(grid.runs, runs, strict=True):
        budget, cost = run.config.train.budget, planned.cost
        if cost.steps > 1:
            continue
        one_step = {
            "flops": cost.flops,
            "tokens": float(cost.tokens),
            "tokens_per_param": cost.tokens / cost.n_params,
        }[budget.kind]
        if budget.value < one_step / 2:
            rule = f"{budget.kind} {budget.value:g} is less than half an optimiser step"
            advice = "Raise it, or lower train.batch_tokens"
            problems[
                grid.document.problem(run.budget_at, f"{rule} ({one_step:.3g}). {advice}.")
            ] = None
    if problems:
        raise GridError(list(problems))
