"""Iso-loss compute multiplier of each arm against the baseline, with a paired interval.

``rho = C_baseline(L) / C_arm(L)``: above 1, the arm reaches the same loss with less compute. The
estimate and its Fieller interval treat the sizes as the independent observations and remove what
arms share at a size (data order, shape, schedule) by pairing. Beside it stands a value read off the
measured baseline curve, undefined outside the measured range. Pure; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from analysis.cells import (
    CellPoint,
    Currency,
    MatchedSize,
    PairPoint,
    cell_points,
    match_sizes,
    n_levels,
    pair_points,
)
from analysis.estimates import Interval, undefined
from analysis.fit import PROFILE_SHARES, pooled_slope
from analysis.laws import Floats, crossings, log_multiplier

Verdict = Literal["baseline", "better", "worse", "no difference found", "undefined"]
METHOD = "paired Fieller, n - 1 dof"
MIN_SIZES = 3
"""Sizes below which the interval is not given."""


@dataclass(frozen=True)
class SizeRatio:
    """The multiplier at one size."""

    size: str
    compute: float
    """The arm's compute there, geometric mean over seeds."""
    from_law: float | None
    """exp((y_b - y_v) / s + ln(C_b / C_v)) with the pooled slope s."""
    measured: float | None
    """Baseline compute interpolated log-log at the arm's loss, over the arm's compute."""
    undefined_because: str | None
    loss_difference: float
    """Arm minus baseline, nats, at the budgets as run."""
    n_seeds: int


@dataclass(frozen=True)
class Multiplier:
    """Iso-loss compute multiplier of one arm in one currency."""

    arm: str
    baseline: str
    currency: str
    asymptote: float
    ratio: Interval
    """rho and its interval."""
    slope: float | None
    """Pooled exponent of the two arms over the paired sizes."""
    slope_difference: Interval
    """Exponent of the arm minus the baseline's: positive when the gain grows with compute."""
    p_value: float | None
    """Two-sided, for rho = 1."""
    p_holm: float | None
    """Adjusted for the number of arms compared in this currency."""
    verdict: Verdict
    n_sizes: int
    domain: tuple[float, float] | None
    """Smallest and largest compute of the arm that were compared."""
    by_size: tuple[SizeRatio, ...]
    by_asymptote: tuple[tuple[float, float | None], ...]
    """rho when E is pinned elsewhere: (E in nats, rho)."""
    notes: tuple[str, ...]

    @property
    def extrapolated_at(self) -> tuple[str, ...]:
        """Sizes where the arm's loss lies outside what the baseline was measured at."""
        return tuple(at.size for at in self.by_size if at.undefined_because == OUTSIDE)


OUTSIDE = "outside measured baseline range"


@dataclass(frozen=True)
class _Paired:
    """Moments of the paired points; x = ln C, y = ln(L - E)."""

    slope: float
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
        return float(self.differences.var(ddof=1)) / len(self.differences)


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
    paired = _paired(pairs)
    if isinstance(paired, str):
        return undefined(paired, method=METHOD, level=level)
    m, s, n = paired.mean, paired.slope, len(pairs)
    rho = _exp(log_multiplier(m, s, paired.shift))
    without = Interval(estimate=rho, method=METHOD, level=level)
    if n < MIN_SIZES:
        return replace(without, reason=f"no interval from {n} sizes: at least {MIN_SIZES} needed")
    t2 = float(stats.t.ppf(0.5 + level / 2, n - 1)) ** 2
    lead = s * s - t2 * paired.slope_variance
    if lead <= 0:
        return replace(without, reason="unbounded: the slope of loss in compute is too uncertain")
    root = math.sqrt(max(0.0, (m * s) ** 2 - lead * (m * m - t2 * paired.mean_variance)))
    low, high = (_exp(paired.shift + (m * s + sign * root) / lead) for sign in (-1, 1))
    return replace(without, low=low, high=high)


def p_value(pairs: Sequence[PairPoint]) -> float | None:
    """Two-sided p of ``rho = 1``, the test whose inversion is :func:`iso_loss_ratio`'s interval."""
    paired = _paired(pairs)
    if isinstance(paired, str) or len(pairs) < MIN_SIZES:
        return None
    gap = paired.mean + paired.slope * paired.shift
    variance = paired.mean_variance + paired.shift**2 * paired.slope_variance
    if variance == 0:
        return 1.0 if gap == 0 else 0.0
    return float(2 * stats.t.sf(abs(gap) / math.sqrt(variance), len(pairs) - 1))


def slope_difference(pairs: Sequence[PairPoint], level: float = 0.95) -> Interval:
    """Exponent of the arm minus the baseline's, from the trend of the paired differences.

    Least squares of ``z_i`` on ``ln C_b``; t interval with n - 2 degrees of freedom.
    """
    method = "paired least squares, n - 2 dof"
    paired, n = _paired(pairs), len(pairs)
    if isinstance(paired, str):
        return undefined(paired, method=method, level=level)
    if n < MIN_SIZES:
        return undefined(f"{n} sizes: at least {MIN_SIZES} needed", method=method, level=level)
    x = np.array([pair.log_compute_base for pair in pairs])
    x = x - x.mean()
    z = paired.differences - paired.differences.mean()
    slope = float((x @ z) / (x @ x))
    residual = z - slope * x
    error = math.sqrt(float(residual @ residual) / (n - 2) / float(x @ x))
    half = float(stats.t.ppf(0.5 + level / 2, n - 2)) * error
    return Interval(estimate=slope, low=slope - half, high=slope + half, level=level, method=method)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for multiplicity (Holm 1979): family-wise error without assumptions."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
        adjusted[i] = running
    return adjusted


def measured_ratio(
    pair: PairPoint, baseline_curve: Sequence[CellPoint]
) -> tuple[float | None, str | None]:
    """Multiplier at one size without a law: the measured baseline, joined by straight lines.

    Returns
    -------
    tuple
        ``(rho, None)``, or ``(None, why)`` outside the measured range or where the curve crosses
        the loss more than once.
    """
    curve = sorted(_lowest_per_level(baseline_curve), key=lambda point: point.compute)
    losses = [point.loss for point in curve]
    if not losses or not min(losses) <= pair.loss_arm <= max(losses):
        return None, OUTSIDE
    at = crossings(
        pair.loss_arm, np.log([point.compute for point in curve]), np.log(np.array(losses))
    )
    if len(at) != 1:
        return None, "baseline curve is not monotone at this loss"
    return math.exp(at[0] - pair.log_compute_arm), None


def compare_arms(
    used: pd.DataFrame,
    baseline: str,
    currency: Currency,
    *,
    asymptote: float = 0.0,
    level: float = 0.95,
) -> tuple[Multiplier, ...]:
    """Compare every other arm with the baseline in one currency.

    A verdict of better or worse needs an interval that excludes 1 and a Holm-adjusted p below
    1 - level; otherwise no difference was found.

    Parameters
    ----------
    used
        Usable runs (:func:`analysis.collect.usable`).
    baseline
        Arm compared with.
    currency
        What compute is counted in.
    asymptote
        Pinned E, nats.
    level
        Confidence level.
    """
    curve = [p for p in cell_points(used, currency) if p.arm == baseline]
    arms = [arm for arm in dict.fromkeys(used["arm"]) if arm != baseline]
    found = [_multiplier(used, arm, baseline, currency, asymptote, level, curve) for arm in arms]
    tested = [i for i, m in enumerate(found) if m.p_value is not None]
    adjusted = dict(zip(tested, holm([found[i].p_value or 0.0 for i in tested]), strict=True))
    return tuple(_with_verdict(m, adjusted.get(i), level) for i, m in enumerate(found))


def _multiplier(
    used: pd.DataFrame,
    arm: str,
    baseline: str,
    currency: Currency,
    asymptote: float,
    level: float,
    curve: Sequence[CellPoint],
) -> Multiplier:
    matched = match_sizes(used, arm, baseline, currency)
    pairs = pair_points(matched, asymptote)
    paired = _paired(pairs)
    logs = [pair.log_compute_arm for pair in pairs]
    return Multiplier(
        arm=arm,
        baseline=baseline,
        currency=currency.name,
        asymptote=asymptote,
        ratio=iso_loss_ratio(pairs, level),
        slope=None if isinstance(paired, str) else paired.slope,
        slope_difference=slope_difference(pairs, level),
        p_value=p_value(pairs),
        p_holm=None,
        verdict="undefined",
        n_sizes=len(pairs),
        domain=(math.exp(min(logs)), math.exp(max(logs))) if logs else None,
        by_size=tuple(_size_ratio(pair, paired, curve) for pair in pairs),
        by_asymptote=_by_asymptote(matched, float(used["loss_nats"].min())),
        notes=(),
    )


def _by_asymptote(
    matched: Sequence[MatchedSize], lowest: float
) -> tuple[tuple[float, float | None], ...]:
    pinned = [share * lowest for share in PROFILE_SHARES]
    return tuple((e, iso_loss_ratio(pair_points(matched, e)).estimate) for e in pinned)


def _size_ratio(pair: PairPoint, paired: _Paired | str, curve: Sequence[CellPoint]) -> SizeRatio:
    measured, why = measured_ratio(pair, curve)
    from_law = None
    if not isinstance(paired, str):
        gap = pair.log_excess_base - pair.log_excess_arm
        from_law = _exp(
            log_multiplier(gap, paired.slope, pair.log_compute_base - pair.log_compute_arm)
        )
    return SizeRatio(
        size=pair.size,
        compute=math.exp(pair.log_compute_arm),
        from_law=from_law,
        measured=measured,
        undefined_because=why,
        loss_difference=pair.loss_arm - pair.loss_base,
        n_seeds=pair.n_seeds,
    )


def _with_verdict(found: Multiplier, p_holm: float | None, level: float) -> Multiplier:
    notes: list[str] = []
    trend = found.slope_difference
    if trend.excludes(0.0):
        notes.append("exponents differ: the multiplier changes with compute, read it by size")
    if found.extrapolated_at:
        notes.append(f"extrapolates the baseline at {', '.join(found.extrapolated_at)}")
    verdict: Verdict = "undefined"
    if p_holm is not None and found.ratio.estimate is not None:
        sure = p_holm < 1 - level and found.ratio.excludes(1.0)
        direction: Verdict = "better" if found.ratio.estimate > 1 else "worse"
        verdict = direction if sure else "no difference found"
    return replace(found, p_holm=p_holm, verdict=verdict, notes=tuple(notes))


def _paired(pairs: Sequence[PairPoint]) -> _Paired | str:
    """Moments of the pairs, or why there are none."""
    x_base = np.array([pair.log_compute_base for pair in pairs])
    x_arm = np.array([pair.log_compute_arm for pair in pairs])
    if not pairs:
        return "no size where arm and baseline ran with the same seed and settings"
    if n_levels(x_base) < 2:
        return "one compute level: the slope of loss in compute is unknown"
    y_base = np.array([pair.log_excess_base for pair in pairs])
    y_arm = np.array([pair.log_excess_arm for pair in pairs])
    slope, variance = pooled_slope([(x_base, y_base), (x_arm, y_arm)])
    if slope <= 0:
        return "loss does not fall with compute over the paired sizes"
    gap = x_base - x_arm
    return _Paired(slope, variance, (y_base - y_arm) + slope * gap, float(gap.mean()))


def _lowest_per_level(curve: Sequence[CellPoint]) -> list[CellPoint]:
    """Keep the lowest loss of each compute level."""
    kept: list[CellPoint] = []
    for point in sorted(curve, key=lambda point: point.compute):
        if kept and n_levels(np.log([kept[-1].compute, point.compute])) == 1:
            kept[-1] = min(kept[-1], point, key=lambda p: p.loss)
        else:
            kept.append(point)
    return kept


def _exp(value: float) -> float:
    """exp, infinite where a float overflows."""
    return math.exp(value) if value < 700 else math.inf
