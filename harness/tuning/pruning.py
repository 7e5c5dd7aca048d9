"""Early stopping of hopeless trials, by Optuna's pruners: within one cell, so at equal budgets.

Only trials are ever stopped: runs that enter a fit train to their end. Needs two validations at
least (``execution.n_evals``). Successive halving with few trials trains the first ones in full and
cuts the later ones hard; that is why ``min_trials`` end before any is stopped, and why the default
is none.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from harness.paths import RunPaths
from harness.records import read_jsonl
from harness.tuning.config import Stop
from harness.tuning.study import CellStudy
from harness.tuning.trials import Open

if TYPE_CHECKING:
    from optuna.pruners import BasePruner

REDUCTION = 3
"""Successive halving keeps the best of so many at each rung."""


def pruner_of(stop: Stop) -> BasePruner | None:
    """Optuna's pruner for a ``stop`` block; steps are numbers of validations, from 1."""
    from optuna.pruners import MedianPruner, SuccessiveHalvingPruner

    first = stop.warmup_evals + 1
    if stop.pruner == "median":
        return MedianPruner(n_startup_trials=stop.min_trials, n_warmup_steps=first)
    if stop.pruner == "asha":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=REDUCTION)
    return None


def validations(here: RunPaths) -> dict[int, tuple[int, float]]:
    """Step and loss (nats/token) of every validation of a run so far, by its number from 1."""
    rows = [row for row in read_jsonl(here.metrics) if row["kind"] == "val"]
    return {i: (int(r["step"]), float(r["loss_nats"])) for i, r in enumerate(rows, start=1)}


def hopeless(study: CellStudy, pruner: BasePruner, flight: Open, here: RunPaths) -> str | None:
    """Look at a trial's validations; say why it is to be stopped, None when it may go on.

    Parameters
    ----------
    here
        Files of its run.
    """
    seen = validations(here)
    reported = study.trials()[flight.number].intermediate_values
    fresh = {i: loss for i, (_, loss) in seen.items() if i not in reported}
    if not fresh:
        return None
    for index, loss in sorted(fresh.items()):
        study.report(flight.number, {index: loss})
        stop = pruner.prune(study.study, study.trials()[flight.number])
        step = seen[index][0]
        finished = step >= flight.run.cost.steps
        if stop and not finished and _ended(study) >= study.tune.stop.min_trials:
            others = _others(study, flight, index)
            return _reason(study.tune.stop, flight, step, loss, others) if others else None
    return None


def _ended(study: CellStudy) -> int:
    return sum(t.state.name == "COMPLETE" for t in study.trials())


def _others(study: CellStudy, flight: Open, index: int) -> list[float]:
    """What other trials had reached at the same validation."""
    asha = study.tune.stop.pruner == "asha"
    return [
        t.intermediate_values[index]
        for t in study.trials()
        if t.number != flight.number
        and index in t.intermediate_values
        and (asha or t.state.name == "COMPLETE")
    ]


def _reason(stop: Stop, flight: Open, step: int, loss: float, others: list[float]) -> str:
    where = f"stopped early at step {step} of {flight.run.cost.steps}: loss {loss:.4f}"
    if stop.pruner == "median":
        median, n = statistics.median(others), len(others)
        return f"{where} above the median {median:.4f} of {n} trials"
    n = len(others) + 1
    kept = max(n // REDUCTION, 1)
    bound = sorted([*others, loss])[kept - 1]
    return f"{where} not among the best {kept} of {n} trials ({bound:.4f})"
