"""Family-wise intervals: all arms of a comparison covered at once, 95 times in 100.

Arms that share sizes share noise (each is held against the same baseline), so their errors are
correlated and Bonferroni would be wasteful. The distribution of the largest standardised error is
drawn with common multipliers over sizes; its quantile says at which single level each arm's own
interval is to be made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.special import ndtr

from analysis.cells import PairPoint
from analysis.compare.fieller import Paired, fieller, paired_moments
from analysis.compare.types import MIN_SIZES
from analysis.compare.wild import influences
from analysis.estimates import Interval
from analysis.fit.quantiles import t_quantile
from analysis.laws import Floats

DRAWS = 4000
METHOD = "paired Fieller at the family-wise level of max-t from common multipliers"


def simultaneous(
    pairs_by_arm: Mapping[str, Sequence[PairPoint]],
    level: float = 0.95,
    *,
    draws: int = DRAWS,
    seed: int = 0,
) -> dict[str, Interval]:
    """Intervals of all arms that cover together.

    To first order the error of ``ln rho`` of an arm is ``sum_i g_i u_i`` with one standard normal
    multiplier ``g_i`` per size, common to the arms, and ``u_i = delta_i / (n s) - m k_i / s^2``
    (gap and slope influences of the size). The quantile of ``max |T|`` is turned into the two-sided
    level that a single normal T would need, and each arm's Fieller interval is made at that level
    with its own n - 1 degrees of freedom. Normal multipliers, not Webb's: a bounded weight summed
    over three sizes cannot reach the tail that several arms need.

    Parameters
    ----------
    pairs_by_arm
        The paired sizes of every arm.
    level
        Probability with which all intervals cover.
    draws, seed
        Of the multipliers.
    """
    moments = {arm: paired_moments(pairs) for arm, pairs in pairs_by_arm.items()}
    errors = [
        _errors(pairs_by_arm[arm], found)
        for arm, found in moments.items()
        if not isinstance(found, str) and len(pairs_by_arm[arm]) >= MIN_SIZES
    ]
    single = _single_level(errors, level, draws, seed)
    return {
        arm: fieller(
            found,
            len(pairs_by_arm[arm]),
            t=t_quantile(single, max(1, len(pairs_by_arm[arm]) - 1)),
            level=level,
            method=METHOD,
        )
        for arm, found in moments.items()
    }


def _errors(pairs: Sequence[PairPoint], paired: Paired) -> dict[str, float]:
    """Standardised influence of each size on ``ln rho``."""
    gap, slope = influences(pairs, paired)
    raw = gap / paired.slope - paired.mean * slope / paired.slope**2
    norm = float(np.sqrt(raw @ raw)) or 1.0
    return {pair.size: float(value) / norm for pair, value in zip(pairs, raw, strict=True)}


def _single_level(
    errors: Sequence[Mapping[str, float]], level: float, draws: int, seed: int
) -> float:
    """Two-sided level of one arm's interval at which all of them cover with ``level``."""
    if len(errors) < 2:
        return level
    sizes = list(dict.fromkeys(size for own in errors for size in own))
    loadings: Floats = np.array([[own.get(size, 0.0) for own in errors] for size in sizes])
    multipliers = np.random.default_rng(seed).standard_normal((draws, len(sizes)))
    largest = np.abs(multipliers @ loadings).max(axis=1)
    return max(level, float(2 * ndtr(np.quantile(largest, level)) - 1))
