"""All probes of a sweep: what each arm reaches, how it differs, what of that is due to tuning.

Pure; takes the frame of ``collect``.
"""

from __future__ import annotations

import itertools

import pandas as pd

from analysis.collect import of_the_sweep, usable
from analysis.probes.differences import compare_at_depths, compare_over_depths, judged
from analysis.probes.read import by_level, cells_of, has_tasks, settings_of
from analysis.probes.tuning import tuning_shares
from analysis.probes.types import CONTROLS, Comparison, Probe, Probes


def probes_of(runs: pd.DataFrame, baseline: str, *, level: float = 0.95) -> Probes | None:
    """Compare the arms of every task of a sweep with the baseline.

    Parameters
    ----------
    runs
        All runs of the sweep, those at the baseline's values too.
    baseline
        Arm compared with.
    level
        Confidence level.

    Returns
    -------
    Probes
        None where no run is of a task.
    """
    if not has_tasks(runs):
        return None
    items = [_probe(label, rows, baseline, level) for label, rows in settings_of(runs)]
    return Probes(
        baseline=baseline,
        level=level,
        items=tuple(sorted(items, key=lambda probe: probe.is_control)),
    )


def _probe(label: str, rows: pd.DataFrame, baseline: str, level: float) -> Probe:
    main = of_the_sweep(rows)
    names = dict.fromkeys(str(arm) for arm in main["arm"])
    arms = tuple(sorted(names, key=lambda arm: arm != baseline))
    used = usable(main)
    levels = {level for text in used["accuracy_by_difficulty"] for level in by_level(text)}
    chance = used["chance"].dropna()
    graded = used["graded_by"].dropna()
    task = str(main["task"].iloc[0])
    pooled, at_depths = _compared(used, arms, baseline, level)
    return Probe(
        label=label,
        task=task,
        graded_by=str(graded.iloc[0]) if len(graded) else "difficulty",
        chance=float(chance.iloc[0]) if len(chance) else None,
        baseline=baseline,
        arms=arms,
        depths=tuple(sorted(int(depth) for depth in main["n_layers"].unique())),
        levels=tuple(sorted(levels)),
        cells=cells_of(main, arms),
        # A control is passed or not: near 100% any spread of nothing is significant.
        pooled=() if task in CONTROLS else pooled,
        by_depth=() if task in CONTROLS else at_depths,
        tuning=() if task in CONTROLS else tuning_shares(rows, baseline, level),
    )


def _compared(
    used: pd.DataFrame, arms: tuple[str, ...], baseline: str, level: float
) -> tuple[tuple[Comparison, ...], tuple[Comparison, ...]]:
    """Over depths, and at each depth; p-values are adjusted over the arms in both."""
    by_arm = {arm: used[used["arm"] == arm] for arm in arms}
    base = by_arm.pop(baseline, used.iloc[:0])
    over = [compare_over_depths(base, own, arm, level) for arm, own in by_arm.items()]
    pooled = judged(over, level)
    single = [c for arm, own in by_arm.items() for c in compare_at_depths(base, own, arm, level)]
    single.sort(key=lambda comparison: comparison.depths)
    by_depth = itertools.groupby(single, key=lambda comparison: comparison.depths)
    return pooled, tuple(c for _, own in by_depth for c in judged(own, level))
