"""The multiplier where nothing can be paired: each arm's own runs, its deviations its own.

Up to twice as wide as a paired interval where arms share sizes, because what they have in common
at a size counts as noise. Used only where no seed and setting is common to both.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.cells import PairPoint, n_levels
from analysis.compare.fieller import exp
from analysis.compare.matching import SizeRuns
from analysis.compare.types import MIN_SIZES
from analysis.estimates import Interval, undefined
from analysis.fit.quantiles import t_quantile, t_tail
from analysis.fit.shared import pooled_slope
from analysis.laws import log_excess, log_multiplier

METHOD = "unpaired delta method, N - 3 dof"


def unpaired_ratio(
    base: Sequence[SizeRuns],
    arm: Sequence[SizeRuns],
    *,
    asymptote: float = 0.0,
    level: float = 0.95,
) -> tuple[Interval, float | None]:
    """Multiplier from each arm's own points, and the two-sided p of rho = 1.

    ``ln rho = m / s + d`` with ``m = ybar_b - ybar_v``, ``d = xbar_b - xbar_v``, the pooled slope s
    and the residual variance ``sigma^2 = RSS / (N - 3)`` of N points on two parallel lines. By the
    delta method its variance is ``v_m / s^2 + m^2 v_s / s^4`` with
    ``v_m = sigma^2 (1/n_b + 1/n_v)`` and ``v_s = sigma^2 / S_xx``; t with N - 3 degrees of freedom.

    Parameters
    ----------
    base, arm
        One entry per size of each; they need not be the same sizes.
    asymptote
        Pinned E, nats.
    level
        Confidence level.
    """
    x = [np.array([size.log_compute for size in own]) for own in (base, arm)]
    y = [
        np.array([log_excess(size.losses, asymptote).mean() for size in own]) for own in (base, arm)
    ]
    fewest = min(len(base), len(arm))
    if fewest < MIN_SIZES:
        why = f"{fewest} sizes of an arm: at least {MIN_SIZES} needed"
        return undefined(why, method=METHOD, level=level), None
    if min(n_levels(own) for own in x) < 2:
        why = "one compute level: the slope of loss in compute is unknown"
        return undefined(why, method=METHOD, level=level), None
    slope, slope_variance = pooled_slope(list(zip(x, y, strict=True)))
    if slope <= 0:
        why = "loss does not fall with compute"
        return undefined(why, method=METHOD, level=level), None
    s_xx = float(sum(((own - own.mean()) ** 2).sum() for own in x))
    mean_variance = slope_variance * s_xx * (1 / len(base) + 1 / len(arm))
    mean, shift = float(y[0].mean() - y[1].mean()), float(x[0].mean() - x[1].mean())
    log_ratio = log_multiplier(mean, slope, shift)
    error = math.sqrt(mean_variance / slope**2 + (mean / slope**2) ** 2 * slope_variance)
    dof = len(base) + len(arm) - 3
    half = t_quantile(level, dof) * error
    found = Interval(estimate=exp(log_ratio), method=METHOD, level=level)
    p = t_tail(log_ratio / error, dof) if error else None
    return replace(found, low=exp(log_ratio - half), high=exp(log_ratio + half)), p


def size_pairs(
    base: Sequence[SizeRuns], arm: Sequence[SizeRuns], asymptote: float = 0.0
) -> tuple[PairPoint, ...]:
    """Means of both arms at the sizes that both ran: for reading by size, not for an interval."""
    other = {size.size: size for size in arm}
    return tuple(
        PairPoint(
            size=one.size,
            log_compute_base=one.log_compute,
            log_compute_arm=two.log_compute,
            log_excess_base=float(log_excess(one.losses, asymptote).mean()),
            log_excess_arm=float(log_excess(two.losses, asymptote).mean()),
            loss_base=float(one.losses.mean()),
            loss_arm=float(two.losses.mean()),
            n_seeds=min(len(one.losses), len(two.losses)),
        )
        for one in base
        if (two := other.get(one.size)) is not None
    )
