"""The paired estimate of an iso-loss multiplier and its Fieller interval.

The sizes are the independent observations; what arms share at a size (data order, shape, schedule)
is removed by pairing. Seed noise needs no term of its own: the mean over seeds at a size scatters
by it, and the variances here are taken over sizes. Pure; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.cells import PairPoint, n_levels
from analysis.compare.types import MIN_SIZES
from analysis.estimates import Interval, undefined
from analysis.fit.quantiles import t_quantile, t_tail
from analysis.fit.shared import pooled_slope
from analysis.laws import Floats, log_multiplier

METHOD = "paired Fieller, n - 1 dof"
BY_SIZE = "paired Fieller, n - 1 dof, variance of the slope over size means"


@dataclass(frozen=True, kw_only=True)
class Paired:
    """Moments of the paired points; x = ln C, y = ln(L - E)."""

    slope: float
    """Pooled over both arms, positive when loss falls."""
    slope_variance: float
    differences: Floats
    """``z = (y_b - y_v) + s (x_b - x_v)``: the vertical gap once unequal compute is corrected."""
    shift: float
    """``mean(x_b - x_v)``."""

    @property
    def mean(self) -> float:
        """Mean of ``y_b - y_v``."""
        return float(self.differences.mean()) - self.slope * self.shift

    @property
    def mean_variance(self) -> float:
        """Variance of :attr:`mean` with the slope known; NaN for one size."""
        return float(self.differences.var(ddof=1)) / len(self.differences)

    @property
    def log_ratio(self) -> float:
        """``ln rho``."""
        return log_multiplier(self.mean, self.slope, self.shift)


def paired_moments(pairs: Sequence[PairPoint]) -> Paired | str:
    """Moments of the pairs, or why there are none."""
    if not pairs:
        return "no size where arm and baseline ran with the same seed and settings"
    x_base, x_arm, y_base, y_arm = columns(pairs)
    if n_levels(x_base) < 2:
        return "one compute level: the slope of loss in compute is unknown"
    slope, variance = pooled_slope([(x_base, y_base), (x_arm, y_arm)])
    if slope <= 0:
        return "loss does not fall with compute over the paired sizes"
    gap = x_base - x_arm
    return Paired(
        slope=slope,
        slope_variance=variance,
        differences=(y_base - y_arm) + slope * gap,
        shift=float(gap.mean()),
    )


def columns(pairs: Sequence[PairPoint]) -> tuple[Floats, Floats, Floats, Floats]:
    """``x_base, x_arm, y_base, y_arm``, each ``[n]``; x = ln C, y = ln(L - E)."""
    table = np.array(
        [
            (p.log_compute_base, p.log_compute_arm, p.log_excess_base, p.log_excess_arm)
            for p in pairs
        ]
    )
    return table[:, 0], table[:, 1], table[:, 2], table[:, 3]


def iso_loss_ratio(pairs: Sequence[PairPoint], level: float = 0.95) -> Interval:
    """Multiplier of an arm from points paired by size.

    With ``y = ln(L - E)``, ``x = ln C``, pooled slope ``s`` (variance ``v_s``) and
    ``z_i = (y_b - y_v)_i + s (x_b - x_v)_i``, the estimate is
    ``ln rho = m / s + d`` with ``m = mean(y_b - y_v)`` and ``d = mean(x_b - x_v)``. Under the value
    ``ln rho = d + x`` the statistic ``m - s x`` has mean 0 and variance ``v_m + x^2 v_s``
    (``v_m = var(z) / n``; slope and mean difference are uncorrelated because each arm is centred),
    so the interval ends at the roots of Fieller's
    ``(s^2 - t^2 v_s) x^2 - 2 m s x + (m^2 - t^2 v_m) = 0``, t with n - 1 degrees of freedom.

    Parameters
    ----------
    pairs
        One per size.
    level
        Confidence level.

    Returns
    -------
    Interval
        Of rho. Without a point value below two compute levels or where loss does not fall with
        compute; without ends below three sizes or when ``s^2 <= t^2 v_s``; ``reason`` says which.
    """
    return fieller(paired_moments(pairs), len(pairs), t=None, level=level, method=METHOD)


def iso_loss_ratio_by_size(pairs: Sequence[PairPoint], level: float = 0.95) -> Interval:
    """The same with the variance of the slope taken over the size means of both arms.

    The pooled ``v_s`` of :func:`iso_loss_ratio` counts the arms' residuals as independent; where
    the deviation that arms share at a size is many times their own, the slope is less certain
    than that, and only this interval covers as it should.
    """
    paired = paired_moments(pairs)
    if not isinstance(paired, str) and len(pairs) >= MIN_SIZES:
        paired = replace(paired, slope_variance=slope_variance_by_size(pairs, paired.slope))
    return fieller(paired, len(pairs), t=None, level=level, method=BY_SIZE)


def slope_variance_by_size(pairs: Sequence[PairPoint], slope: float) -> float:
    """Variance of the pooled slope from the means of both arms at each size, n - 2 dof."""
    x_base, x_arm, y_base, y_arm = columns(pairs)
    x, y = (x_base + x_arm) / 2, (y_base + y_arm) / 2
    dx = x - x.mean()
    residual = y - y.mean() + slope * dx
    return float(residual @ residual) / (len(x) - 2) / float(dx @ dx)


def fieller(
    paired: Paired | str, n_sizes: int, *, t: float | None, level: float, method: str
) -> Interval:
    """Roots of Fieller's equation with ``t`` standard errors, Student's where None."""
    if isinstance(paired, str):
        return undefined(paired, method=method, level=level)
    m, s = paired.mean, paired.slope
    without = Interval(estimate=exp(paired.log_ratio), method=method, level=level)
    if n_sizes < MIN_SIZES:
        return replace(without, reason=f"no interval from {n_sizes} sizes: at least 3 needed")
    ends = fieller_ends(
        m,
        s,
        paired.mean_variance,
        paired.slope_variance,
        t_quantile(level, n_sizes - 1) if t is None else t,
    )
    if ends is None:
        return replace(without, reason="unbounded: the slope of loss in compute is too uncertain")
    low, high = (exp(paired.shift + end) for end in ends)
    return replace(without, low=low, high=high)


def fieller_ends(
    mean: float, slope: float, mean_variance: float, slope_variance: float, t: float
) -> tuple[float, float] | None:
    """Ends of the interval of ``mean / slope``; None where it is unbounded.

    Roots x of ``(s^2 - t^2 v_s) x^2 - 2 m s x + (m^2 - t^2 v_m) = 0`` (Fieller 1954), the two
    estimates uncorrelated.
    """
    lead = slope * slope - t * t * slope_variance
    if lead <= 0:
        return None
    inside = (mean * slope) ** 2 - lead * (mean * mean - t * t * mean_variance)
    root = math.sqrt(max(0.0, inside))
    return (mean * slope - root) / lead, (mean * slope + root) / lead


def p_value(pairs: Sequence[PairPoint]) -> float | None:
    """Two-sided p of ``rho = 1``, the test whose inversion is :func:`iso_loss_ratio`'s interval."""
    paired = paired_moments(pairs)
    if isinstance(paired, str) or len(pairs) < MIN_SIZES:
        return None
    gap = paired.mean + paired.slope * paired.shift
    variance = paired.mean_variance + paired.shift**2 * paired.slope_variance
    if variance == 0:
        return 1.0 if gap == 0 else 0.0
    return t_tail(gap / math.sqrt(variance), len(pairs) - 1)


def slope_difference(pairs: Sequence[PairPoint], level: float = 0.95) -> Interval:
    """Exponent of the arm minus the baseline's, from the trend of the paired differences.

    Least squares of ``z_i`` on ``ln C_b``; t interval with n - 2 degrees of freedom.
    """
    method = "paired least squares, n - 2 dof"
    paired, n = paired_moments(pairs), len(pairs)
    if isinstance(paired, str):
        return undefined(paired, method=method, level=level)
    if n < MIN_SIZES:
        return undefined(f"{n} sizes: at least {MIN_SIZES} needed", method=method, level=level)
    x = columns(pairs)[0]
    x = x - x.mean()
    z = paired.differences - paired.differences.mean()
    slope = float((x @ z) / (x @ x))
    residual = z - slope * x
    error = math.sqrt(float(residual @ residual) / (n - 2) / float(x @ x))
    half = t_quantile(level, n - 2) * error
    return Interval(estimate=slope, low=slope - half, high=slope + half, level=level, method=method)


def exp(value: float) -> float:
    """exp, infinite where a float overflows."""
    return math.exp(value) if value < 700 else math.inf
