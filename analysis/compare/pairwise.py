"""Arms among themselves: which of them the sweep tells apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from analysis.cells import FLOPS, Currency, pair_points
from analysis.compare.fieller import iso_loss_ratio, p_value
from analysis.compare.holm import holm
from analysis.compare.matching import MatchTable, match_table
from analysis.compare.shown import judged_width
from analysis.estimates import Interval


@dataclass(frozen=True, kw_only=True)
class PairwiseTest:
    """Two arms compared by their paired losses."""

    first: str
    second: str
    ratio: Interval
    """Compute the first needs for the second's loss: above 1, ``second`` is cheaper."""
    loss_difference: float
    """Second minus first, mean over sizes, nats."""
    p_value: float | None
    p_holm: float | None
    """Adjusted for all pairs that were tested."""
    n_sizes: int


def pairwise_arms(
    used: pd.DataFrame,
    currency: Currency = FLOPS,
    *,
    asymptote: float = 0.0,
    level: float = 0.95,
) -> tuple[PairwiseTest, ...]:
    """Test every pair of arms by a t-test on the paired differences of ln(L - E).

    Unequal compute within a pair is corrected with the pooled slope, as for the multipliers.

    Parameters
    ----------
    used
        Usable runs of the arms to compare.
    currency
        What compute is counted in.
    asymptote
        Pinned E, nats.
    level
        Confidence level of the ratios.
    """
    arms = [str(arm) for arm in dict.fromkeys(used["arm"])]
    table = match_table(used, currency)
    found = [
        _test(table, first, second, asymptote, level) for first, second in combinations(arms, 2)
    ]
    tested = [i for i, test in enumerate(found) if test.p_value is not None]
    adjusted = dict(zip(tested, holm([found[i].p_value or 0.0 for i in tested]), strict=True))
    return tuple(replace(test, p_holm=adjusted.get(i)) for i, test in enumerate(found))


def pairwise_sentence(tests: Sequence[PairwiseTest], level: float = 0.95) -> str:
    """Say which arms the data tell apart; empty where nothing was tested."""
    tested = [test for test in tests if test.p_holm is not None]
    if not tested:
        return ""
    apart = [test for test in tested if (test.p_holm or 0.0) < 1 - level]
    n = len(tested)
    pairs = "the pair" if n == 1 else f"{n} pairs"
    if not apart:
        smallest = min(test.p_holm or 0.0 for test in tested)
        return (
            "The variants do not separate from each other: no pair differs after Holm's "
            f"correction over {pairs} (smallest adjusted p {smallest:.2g})."
        )
    listed = "; ".join(_named(test) for test in sorted(apart, key=lambda test: test.p_holm or 0.0))
    rest = "" if len(apart) == n else f" The other {n - len(apart)} of {n} pairs do not separate."
    return f"After Holm's correction over {pairs}, these variants differ: {listed}.{rest}"


def _test(
    table: MatchTable, first: str, second: str, asymptote: float, level: float
) -> PairwiseTest:
    pairs = pair_points(table.match(second, first), asymptote)
    gaps = [pair.loss_arm - pair.loss_base for pair in pairs]
    return PairwiseTest(
        first=first,
        second=second,
        ratio=judged_width(iso_loss_ratio(pairs, level)),
        loss_difference=float(np.mean(gaps)) if gaps else float("nan"),
        p_value=p_value(pairs),
        p_holm=None,
        n_sizes=len(pairs),
    )


def _named(test: PairwiseTest) -> str:
    better, worse = test.second, test.first
    if (test.ratio.estimate or 1.0) < 1:
        better, worse = worse, better
    return f"{better} below {worse} (adjusted p {test.p_holm:.2g})"
