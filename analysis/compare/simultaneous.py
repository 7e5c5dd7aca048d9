"""Family-wise intervals: all arms of a comparison covered at once, 95 times in 100.

The arms' errors are correlated (each is held against the same baseline), but their correlation
cannot be learnt from the handful of sizes there is: intervals that drew it from the residuals left
a family out 7 to 11 times in 100 at 3 to 5 sizes and 6 arms. Sidak's level needs no correlation and
errs on the safe side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from analysis.cells import PairPoint
from analysis.compare.fieller import fieller, paired_moments
from analysis.compare.types import MIN_SIZES
from analysis.estimates import Interval
from analysis.fit.quantiles import t_quantile

METHOD = "paired Fieller at Sidak's level over arms"


def simultaneous(
    pairs_by_arm: Mapping[str, Sequence[PairPoint]], level: float = 0.95
) -> dict[str, Interval]:
    """Intervals of all arms that cover together.

    Each of k arms with an interval is given its Fieller interval at ``level^(1/k)`` (Sidak 1967),
    with its own n - 1 degrees of freedom.

    Parameters
    ----------
    pairs_by_arm
        The paired sizes of every arm.
    level
        Probability with which all intervals cover.
    """
    moments = {arm: paired_moments(pairs) for arm, pairs in pairs_by_arm.items()}
    counted = [
        arm
        for arm, found in moments.items()
        if not isinstance(found, str) and len(pairs_by_arm[arm]) >= MIN_SIZES
    ]
    single = level ** (1 / max(1, len(counted)))
    intervals = {}
    for arm, found in moments.items():
        n = len(pairs_by_arm[arm])
        t = t_quantile(single, max(1, n - 1))
        intervals[arm] = fieller(found, n, t=t, level=level, method=METHOD)
    return intervals
