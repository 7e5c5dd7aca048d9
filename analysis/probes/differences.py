"""Arms against the baseline on one probe, paired by depth and seed.

The replicate is the seed: validation sequences of one run are no replicates of training. Pure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from scipy.special import stdtr, stdtrit

from analysis.compare.holm import holm
from analysis.estimates import Interval
from analysis.probes.types import Comparison, Difference

METHOD = "Student t over paired seeds"
ONE_SEED = "one paired seed: no interval"
NO_PAIR = "no depth, settings and seed in common with the baseline"
NO_SPREAD = "the same difference in every seed: no spread to judge it by"
_SLOT = ["n_layers", "pair_key", "seed"]
_MEASURES = ("accuracy", "solved_difficulty")
_SEARCHED_DEPTHS = 12
"""Depths up to which every subset is tried: 4095 of them."""


def paired_t(each: Sequence[float], level: float = 0.95) -> tuple[Interval, float | None]:
    """Mean of paired differences with its interval, and p of its being 0.

    ``mean +- t sd / sqrt(n)`` with n - 1 degrees of freedom. No ends and no p below two seeds, nor
    where all differences are one number: levels are whole, so that happens, and a spread of 0 over
    a few seeds is not one of 0.

    Parameters
    ----------
    each
        One difference per seed.
    level
        Confidence level.
    """
    values = np.asarray(each, dtype=np.float64)
    n = len(values)
    if not n:
        return Interval(estimate=None, level=level, method=METHOD, reason=NO_PAIR), None
    mean = float(values.mean())
    if n < 2 or np.ptp(values) <= 1e-12:
        reason = ONE_SEED if n < 2 else NO_SPREAD
        return Interval(estimate=mean, level=level, method=METHOD, reason=reason), None
    error = float(values.std(ddof=1)) / math.sqrt(n)
    half = float(stdtrit(n - 1, 0.5 + level / 2)) * error
    found = Interval(estimate=mean, low=mean - half, high=mean + half, level=level, method=METHOD)
    return found, 2 * float(stdtr(n - 1, -abs(mean) / error))


def compare_at_depths(
    base: pd.DataFrame, own: pd.DataFrame, arm: str, level: float = 0.95
) -> tuple[Comparison, ...]:
    """One arm against another at each depth that both ran."""
    both = _paired(base, own)
    return tuple(
        _comparison(both[both["n_layers"] == depth], arm, level)
        for depth in sorted(both["n_layers"].unique())
    )


def compare_over_depths(
    base: pd.DataFrame, own: pd.DataFrame, arm: str, level: float = 0.95
) -> Comparison:
    """One arm against another over depths: each seed is averaged first.

    Only depths and seeds that form a complete table are averaged, so that every seed stands for
    the same depths; of such tables the largest, of equal ones that of more depths.
    """
    return _comparison(_complete(_paired(base, own)), arm, level)


def judged(comparisons: Iterable[Comparison], level: float = 0.95) -> tuple[Comparison, ...]:
    """Adjust p-values over the arms and give verdicts, in each measure by itself."""
    found = list(comparisons)
    for measure in ("accuracy", "solved"):
        differences = [getattr(comparison, measure) for comparison in found]
        tested = [i for i, d in enumerate(differences) if d.p_value is not None]
        adjusted = holm([differences[i].p_value for i in tested])
        for i, p_holm in zip(tested, adjusted, strict=True):
            verdict = _verdict(differences[i], p_holm, level)
            changed = replace(differences[i], p_holm=p_holm, verdict=verdict)
            found[i] = replace(found[i], **{measure: changed})
    return tuple(found)


def _verdict(difference: Difference, p_holm: float, level: float) -> str:
    if not difference.interval.excludes(0.0) or p_holm >= 1 - level:
        return "no difference found"
    return "better" if (difference.interval.estimate or 0.0) > 0 else "worse"


def _paired(base: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Differences of the usable runs that share depth, settings and seed."""
    columns = [*_SLOT, *_MEASURES]
    both = own[columns].merge(base[columns], on=_SLOT, suffixes=("", "_base"))
    for measure in _MEASURES:
        both[measure] = both[measure].astype(float) - both[f"{measure}_base"].astype(float)
    return both[columns]


def _complete(both: pd.DataFrame) -> pd.DataFrame:
    """The largest set of depths and seeds with a pair at each; of equal ones that of more depths.

    Beyond :data:`_SEARCHED_DEPTHS` depths it is the largest whose seeds are those of one depth.
    """
    seeds_at = {int(depth): set(rows["seed"]) for depth, rows in both.groupby("n_layers")}
    depths, seeds = max(
        _tables(seeds_at),
        key=lambda table: (len(table[0]) * len(table[1]), len(table[0])),
        default=((), set()),
    )
    return both[both["seed"].isin(seeds) & both["n_layers"].isin(depths)]


def _tables(seeds_at: Mapping[int, set[int]]) -> Iterator[tuple[tuple[int, ...], set[int]]]:
    """Complete tables of depths and seeds."""
    if len(seeds_at) > _SEARCHED_DEPTHS:
        for seeds in seeds_at.values():
            yield tuple(depth for depth, others in seeds_at.items() if seeds <= others), seeds
        return
    for n in range(1, len(seeds_at) + 1):
        for depths in itertools.combinations(seeds_at, n):
            yield depths, set.intersection(*(seeds_at[depth] for depth in depths))


def _comparison(both: pd.DataFrame, arm: str, level: float) -> Comparison:
    by_seed = both.groupby("seed")[list(_MEASURES)].mean()
    accuracy, solved = (_difference(by_seed[measure].dropna(), level) for measure in _MEASURES)
    return Comparison(
        arm=arm,
        depths=tuple(int(depth) for depth in sorted(both["n_layers"].unique())),
        seeds=tuple(int(seed) for seed in by_seed.index),
        accuracy=accuracy,
        solved=solved,
    )


def _difference(each: pd.Series, level: float) -> Difference:
    interval, p = paired_t([float(value) for value in each], level)
    same = interval.reason == NO_SPREAD and interval.estimate == 0
    return Difference(
        interval=interval,
        each=tuple(float(value) for value in each),
        p_value=p,
        verdict="no difference found" if same else "no verdict",
    )
