"""What a grid would run and cost: pure, from a :class:`~harness.grid.Grid` to tables.

Starts nothing and reads no results. Hours are stated only where measured step times are given.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from harness.config import SCHEMA_VERSION, Execution
from harness.cost import run_cost
from harness.errors import GridError
from harness.expand import RuleCount
from harness.grid import Grid, collector_paused
from harness.iso_flops import check_met
from harness.job_times import JobTime, job_times, time_notices
from harness.rates import Evidence, Pace, Rate
from harness.records import Manifest, PlannedRun, RunCost
from harness.resolve import GridRun
from harness.trunks import Sharing, overlong_warmup, own_steps, sharing, with_trunks
from harness.tuning.cells import cells_of
from harness.tuning.price import TuningPrice, tuning_price
from recipes.base import ResidualCost, source_sha256

TRUST: tuple[Evidence, ...] = ("none", "scaled", "measured")
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
    """Device hours; None while no step time is known."""
    evidence: Evidence
    """How they are known, of the run known worst."""
    source: str
    """From where, in words."""


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
    device: str | None
    """Name of the device that the hours are of."""
    device_s: tuple[float | None, ...]
    """Device seconds of every run, without what another of its trunk trains; None where no step
    time is known."""
    sharing: Sharing | None = None
    """What runs of several budgets save by training their common part once."""
    jobs: tuple[JobTime, ...] = ()
    """Per group of equal resources, where the grid has a ``slurm`` block and times are known."""
    slurm_notices: tuple[str, ...] = ()
    """Time limits that do not fit; of no concern to a run on this machine."""
    tuning: TuningPrice | None = None
    """The search of a grid with a ``tune`` block; beside ``runs``, whose totals leave it out."""

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
        """Device hours of all runs; None while a step time is not known."""
        return _hours(self.device_s)

    def hours_of(self, run_ids: Iterable[str]) -> float | None:
        """Device hours of some runs, from their start; None while a step time is not known."""
        wanted = set(run_ids)
        pairs = zip(self.runs, self.device_s, strict=True)
        return _hours([seconds for run, seconds in pairs if run.run_id in wanted])


def plan(grid: Grid, pace: Pace | None = None) -> Plan:
    """Price every run of a grid.

    Parameters
    ----------
    grid
        The grid.
    pace
        Measured step times, as ``harness.pace.read_pace`` finds them. None leaves the hours
        unknown.

    Raises
    ------
    GridError
        A budget is smaller than half an optimiser step, or ``limits.gpu_hours`` would be exceeded.
    """
    costs = _Costs()
    with collector_paused():
        runs = tuple(costs.planned(run) for run in grid.runs)
        if grid.execution.share_trunks:
            runs = with_trunks([run.config for run in grid.runs], runs)
        rates = _rates(runs, pace or Pace(None), grid.execution)
        tuning = _tuning(grid, runs, costs, pace or Pace(None))
    check_met(grid.document, zip(grid.runs, (run.cost for run in runs), strict=True))
    _refuse_tiny_budgets(grid, runs)
    own = own_steps(runs)
    device_s = tuple(r.device_s(own[run.run_id]) for r, run in zip(rates, runs, strict=True))
    jobs = job_times(grid, runs, device_s)
    notices = (
        *grid.notices,
        *_weak_design(grid, runs),
        *_check_hours(grid, _hours(device_s), tuning),
    )
    return Plan(
        sweep=grid.sweep,
        baseline=grid.baseline,
        runs=runs,
        arms=_totals(runs, rates, device_s),
        sharing=sharing(runs),
        rules=grid.rules,
        notices=notices,
        device=pace.device if pace else None,
        device_s=device_s,
        jobs=jobs,
        slurm_notices=tuple(text for job in jobs for text in time_notices(grid, job)),
        tuning=tuning,
    )


def _tuning(
    grid: Grid, runs: Sequence[PlannedRun], costs: _Costs, pace: Pace
) -> TuningPrice | None:
    """Price the search of a grid, if it has one."""
    if grid.tune is None:
        return None
    cells = cells_of(grid)
    trials = [costs.planned(cell.template) for cell in cells]
    rates = _rates(trials, pace, grid.execution)
    seconds = [rate.device_s(run.cost.steps) for rate, run in zip(rates, trials, strict=True)]
    others = [run.cost.flops for run in runs if run.arm != grid.baseline]
    return tuning_price(grid.tune, cells, seconds, grid.tuned, others)


def _check_hours(grid: Grid, hours: float | None, tuning: TuningPrice | None) -> list[str]:
    limit = grid.limits.gpu_hours
    if tuning is not None and not tuning.tuned and hours is not None:
        hours = None if tuning.hours is None else hours + tuning.hours
    if limit is None:
        return []
    loc = ("limits", "gpu_hours")
    if hours is None:
        rule = "not checked: no step time is known. Measure some with `isoloss bench`, or let a "
        return [grid.document.problem(loc, f"{rule}run of this sweep end.")]
    if hours > limit:
        rule = f"the grid needs about {hours:.3g} device hours, more than {limit:g}"
        raise GridError([grid.document.problem(loc, f"{rule}. Raise the limit.")])
    return []


def _hours(device_s: Sequence[float | None]) -> float | None:
    known = [seconds for seconds in device_s if seconds is not None]
    return sum(known) / 3600 if len(known) == len(device_s) else None


def _rates(runs: Sequence[PlannedRun], pace: Pace, execution: Execution) -> list[Rate]:
    """Rate of every run; runs that share their sections are looked up once."""
    processes = execution.devices * execution.nodes
    known: dict[tuple[Any, ...], Rate] = {}
    rates = []
    for run in runs:
        sections = (run.config[name] for name in ("model", "data", "train"))
        key = (run.arm, run.vocab_size, *map(id, sections))
        if key not in known:
            known[key] = pace.rate(run, execution.threads, processes)
        rates.append(known[key])
    return rates


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
        profile=grid.profile,
        created_at=created_at or datetime.now(UTC).isoformat(timespec="seconds"),
        baseline=grid.baseline,
        unigram_entropy_nats={
            run.config.data.label: run.corpus.unigram_entropy_nats for run in grid.runs
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
            role=run.role,
            tuned=dict(run.tuned),
            ratios=dict(run.ratios),
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


def _totals(
    runs: Sequence[PlannedRun], rates: Sequence[Rate], device_s: Sequence[float | None]
) -> tuple[ArmTotals, ...]:
    by_arm: dict[str, list[tuple[RunCost, Rate, float | None]]] = {}
    for run, rate, seconds in zip(runs, rates, device_s, strict=True):
        by_arm.setdefault(run.arm, []).append((run.cost, rate, seconds))
    return tuple(_arm_totals(arm, members) for arm, members in by_arm.items())


def _arm_totals(arm: str, members: list[tuple[RunCost, Rate, float | None]]) -> ArmTotals:
    costs = [cost for cost, _, _ in members]
    worst = min((rate for _, rate, _ in members), key=lambda rate: TRUST.index(rate.evidence))
    return ArmTotals(
        arm=arm,
        runs=len(costs),
        n_params_min=min(cost.n_params for cost in costs),
        n_params_max=max(cost.n_params for cost in costs),
        n_params_residual_max=max(cost.n_params_residual for cost in costs),
        tokens=sum(cost.tokens for cost in costs),
        flops=sum(cost.flops for cost in costs),
        flops_residual=sum(cost.flops_residual for cost in costs),
        state_bytes_max=max(cost.state_bytes for cost in costs),
        hours=_hours([seconds for _, _, seconds in members]),
        evidence=worst.evidence,
        source=worst.source,
    )


def _weak_design(grid: Grid, runs: tuple[PlannedRun, ...]) -> list[str]:
    """Say before it is paid for what the analysis will not be able to do with the runs."""
    pairs = list(zip(grid.runs, runs, strict=True))
    probes = [(run, planned) for run, planned in pairs if run.config.data.task]
    texts = [(run, planned) for run, planned in pairs if not run.config.data.task]
    return [
        f"{grid.file}: {notice}" for notice in (*_weak_probes(probes), *_weak_texts(texts, grid))
    ]


def _weak_probes(probes: Sequence[tuple[GridRun, PlannedRun]]) -> Iterator[str]:
    arms, seeds = {run.arm for run, _ in probes}, {run.config.seed for run, _ in probes}
    if len(arms) > 1 and len(seeds) < 2:
        yield "a difference has no interval and no verdict with one seed. Give seeds: [0, 1, 2]."
    for run, planned in probes:
        over = run.config.data.options.get("curriculum_steps") or 0
        if over > planned.cost.steps:
            yield (
                f"curriculum_steps {over} exceed the {planned.cost.steps} steps of {run.cell}: it "
                "never trains at full difficulty, where it is validated."
            )
            return


def _weak_texts(texts: Sequence[tuple[GridRun, PlannedRun]], grid: Grid) -> Iterator[str]:
    own = [run.config for run, _ in texts if run.arm == grid.baseline]
    levels = {
        (c.model.n_layers, c.model.d_model, c.train.budget.kind, c.train.budget.value) for c in own
    }
    if len({run.arm for run, _ in texts}) > 1 and len(levels) < MIN_LEVELS:
        yield (
            f"a multiplier has no interval and no verdict below {MIN_LEVELS} sizes or budgets per "
            f"arm; {grid.baseline} has {len(levels)}."
        )
    epochs = max(
        (planned.cost.tokens / (run.corpus.n_train_tokens or math.inf) for run, planned in texts),
        default=0.0,
    )
    if epochs > MANY_EPOCHS:
        yield (
            f"the longest run reads its corpus {epochs:.1f} times; its loss measures memory of the "
            "text as well."
        )


def _refuse_tiny_budgets(grid: Grid, runs: tuple[PlannedRun, ...]) -> None:
    """Refuse budgets that one step would overrun twofold: their cells would not be iso-budget; and
    those that have no room for their warm-up.
    """
    problems: dict[str, None] = {}
    for run, planned in zip(grid.runs, runs, strict=True):
        budget, cost = run.config.train.budget, planned.cost
        overlong = overlong_warmup(run.config.train, cost.steps)
        if overlong:
            text = f"train.warmup_tokens: {overlong}. Lower it, or raise the budget."
            problems[grid.document.problem(run.budget_at, text)] = None
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
