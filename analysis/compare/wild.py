"""The multiplier's interval by a wild bootstrap of the paired sizes: a check on Fieller's.

The residuals of both arms at one size are multiplied by one random weight, so what the arms share
stays shared; Webb's six-point weights keep the number of distinct samples large at few sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import ndtri

from analysis.cells import PairPoint
from analysis.compare.fieller import Paired, columns, exp, paired_moments
from analysis.compare.types import MIN_SIZES
from analysis.estimates import Interval, undefined
from analysis.fit.quantiles import t_quantile
from analysis.laws import Floats

WEBB = np.array([-np.sqrt(1.5), -1.0, -np.sqrt(0.5), np.sqrt(0.5), 1.0, np.sqrt(1.5)])
"""Webb (2023), six points of equal probability: mean 0, variance 1."""
REPLICATES = 2000


def wild_bootstrap(
    pairs: Sequence[PairPoint],
    *,
    replicates: int = REPLICATES,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of the multiplier from resampled residuals.

    With residuals ``r`` of the shared-slope lines and one weight ``w_i`` per size,
    ``y* = fit + w r``, the estimate ``ln rho* = m*/s* + d`` is recomputed. Residuals are scaled by
    ``sqrt(n / (n - 1))`` and the quantiles of ``ln rho* - ln rho`` by ``t(n - 1) / z``, because n
    sizes give too short a tail.

    Parameters
    ----------
    pairs
        One per size.
    replicates, seed
        Of the bootstrap.
    level
        Confidence level.

    Returns
    -------
    Interval
        Of rho; without ends below three sizes or where most samples have no slope.
    """
    method = f"wild paired bootstrap, Webb weights, {replicates} replicates, seed {seed}"
    paired, n = paired_moments(pairs), len(pairs)
    if isinstance(paired, str):
        return undefined(paired, method=method, level=level)
    found = Interval(estimate=exp(paired.log_ratio), method=method, level=level)
    if n < MIN_SIZES:
        return replace(found, reason=f"no interval from {n} sizes: at least {MIN_SIZES} needed")
    weights = np.random.default_rng(seed).choice(WEBB, (replicates, n))
    gap, slope = influences(pairs, paired)
    scale = np.sqrt(n / (n - 1))
    slopes = paired.slope + scale * (weights @ slope)
    if (slopes <= 0).mean() > (1 - level) / 2:
        return replace(found, reason="unbounded: the slope of loss in compute is too uncertain")
    drawn = (paired.mean + scale * (weights @ gap)) / slopes
    centre = paired.mean / paired.slope
    stretch = t_quantile(level, n - 1) / float(ndtri(0.5 + level / 2))
    low, high = np.quantile(drawn[slopes > 0] - centre, [(1 - level) / 2, (1 + level) / 2])
    # Reflected: a sample above the estimate speaks for a truth below it.
    ends = (paired.log_ratio - stretch * high, paired.log_ratio - stretch * low)
    return replace(found, low=exp(float(ends[0])), high=exp(float(ends[1])))


def influences(pairs: Sequence[PairPoint], paired: Paired) -> tuple[Floats, Floats]:
    """How far a unit weight at each size moves the mean gap and the pooled slope, both ``[n]``."""
    x_base, x_arm, y_base, y_arm = columns(pairs)
    centred = [x - x.mean() for x in (x_base, x_arm)]
    residuals = [
        y - y.mean() + paired.slope * x for x, y in zip(centred, (y_base, y_arm), strict=True)
    ]
    s_xx = float(sum(x @ x for x in centred))
    slope = -sum(x * r for x, r in zip(centred, residuals, strict=True)) / s_xx
    return (residuals[0] - residuals[1]) / len(pairs), np.asarray(slope)
