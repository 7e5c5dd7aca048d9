"""The multiplier along compute, with its band; beyond the measured losses only if asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.cells import CellPoint, PairPoint
from analysis.compare.fieller import columns, exp, paired_moments, slope_variance_by_size
from analysis.compare.measured import overlap_range
from analysis.compare.shown import judged_width
from analysis.compare.types import MIN_SIZES, OUTSIDE
from analysis.estimates import FitRefused, Interval, TooFewData, undefined
from analysis.fit.quantiles import t_quantile
from analysis.fit.shared import PROFILE_SHARES
from analysis.laws import Floats

METHOD = "paired differences linear in ln C, pointwise Fieller, n - 2 dof"
N_BEYOND = 30
"""Points of an extrapolation."""
ENVELOPE = (
    "extrapolated: the envelope over pinned E; the data do not say which E holds, and no value "
    "inside the band is likelier than another. With a free E of each arm's own the extrapolated "
    "multiplier can be anything"
)


@dataclass(frozen=True, kw_only=True)
class CurveAt:
    """The multiplier at one compute of the arm."""

    compute: float
    ratio: Interval


@dataclass(frozen=True, kw_only=True)
class ExtrapolatedCurve:
    """What the multiplier may be beyond the measurements: an envelope over pinned E."""

    compute: tuple[float, ...]
    rho_low: tuple[float, ...]
    """Smallest estimate over the pinned E; NaN where none is defined."""
    rho_high: tuple[float, ...]
    low: tuple[float, ...]
    """Lowest end of the bands over the pinned E; 0 where a band is unbounded."""
    high: tuple[float, ...]
    """Highest end of the bands over the pinned E; infinite where a band is unbounded."""
    asymptotes: tuple[float, ...]
    """The pinned E, nats."""
    note: str


@dataclass(frozen=True, kw_only=True)
class MultiplierCurve:
    """rho(C) of one arm over the compute at which its losses are also the baseline's."""

    arm: str
    baseline: str
    method: str
    level: float
    compute: tuple[float, ...]
    """The arm's compute, log-spaced over ``overlap``."""
    rho: tuple[float, ...]
    low: tuple[float, ...]
    """Lower end of the pointwise band; NaN where it is unbounded."""
    high: tuple[float, ...]
    domain: tuple[float, float]
    """Smallest and largest compute of the arm that were paired."""
    overlap: tuple[float, float]
    """The part of it at losses that the baseline was measured at."""
    smallest: CurveAt
    middle: CurveAt
    """At the geometric middle of ``overlap``."""
    largest: CurveAt
    extrapolated: ExtrapolatedCurve | None
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Trend:
    """Two lines with slopes of their own: their vertical gap along ln C and their mean slope.

    ``x`` of a pair is the mean of both arms' ln C; ``g(x) = height + tilt (x - centre)`` is the
    gap ``y_b - y_v`` there.
    """

    centre: float
    height: float
    tilt: float
    """Exponent of the arm minus the baseline's."""
    slope: float
    """Mean exponent."""
    gap_variance: float
    """Residual variance of the gaps."""
    slope_variance: float
    n: int
    s_xx: float

    def at(self, x: float, level: float) -> Interval:
        """The multiplier at ``ln C = x`` of the arm; see :func:`multiplier_curve`."""
        u, lever = x - self.centre, self.tilt / 2 - self.slope
        gap = self.height + self.tilt * u
        if lever >= 0:
            why = "the baseline's loss does not fall with compute"
            return undefined(why, method=METHOD, level=level)
        found = Interval(estimate=exp(-gap / lever), method=METHOD, level=level)
        t2 = t_quantile(level, self.n - 2) ** 2
        v = t2 * self.gap_variance
        # (gap + lever r)^2 <= t^2 [v_gap (1/n + (u + r/2)^2 / S_xx) + r^2 v_s], in powers of r.
        square = lever**2 - v / (4 * self.s_xx) - t2 * self.slope_variance
        half_linear = gap * lever - v * u / (2 * self.s_xx)
        constant = gap**2 - v * (1 / self.n + u**2 / self.s_xx)
        if square <= 0:
            return replace(found, reason="unbounded: the slope of loss in compute is too uncertain")
        root = math.sqrt(max(0.0, half_linear**2 - square * constant))
        low, high = (exp((-half_linear + sign * root) / square) for sign in (-1, 1))
        return judged_width(replace(found, low=low, high=high))


def multiplier_curve(
    pairs: Sequence[PairPoint],
    baseline_curve: Sequence[CellPoint],
    *,
    arm: str = "",
    level: float = 0.95,
    n: int = 60,
    extrapolate_to: float | None = None,
    shares: Sequence[float] = PROFILE_SHARES,
) -> MultiplierCurve:
    """Follow the multiplier of an arm over its compute, where both arms measured the same losses.

    Each arm is a line in ``x = ln C`` with an exponent of its own, so their vertical gap
    ``g(x) = y_b - y_v`` is one too; it is fitted to the paired differences, corrected for unequal
    compute, at the pairs' mean ln C, by least squares. At equal loss the arms lie ``r = ln rho``
    apart, and where ``x`` is the middle between them ``g(x) = s r`` holds exactly, s the mean
    exponent. At compute C of the arm therefore ``g(ln C + r/2) = s r``, which is linear in r. The
    band holds the r that ``g(ln C + r/2) - s r = 0`` does not refute (Fieller), t with n - 2
    degrees of freedom; the variance of s is taken over size means, as arms share deviations there.

    Parameters
    ----------
    pairs
        One per size.
    baseline_curve
        Every size of the baseline.
    arm
        Name of the arm.
    level
        Confidence level of the band at one compute.
    n
        Points of the curve.
    extrapolate_to
        Compute up to which the envelope over pinned E is continued; None: not beyond the data.
    shares
        Pinned E of the envelope, as shares of the lowest loss.

    Raises
    ------
    TooFewData
        Fewer than three paired sizes.
    FitRefused
        Loss does not fall with compute, or no loss of the arm was measured for the baseline.
    """
    if len(pairs) < MIN_SIZES:
        raise TooFewData(f"a multiplier along compute needs {MIN_SIZES} sizes, got {len(pairs)}")
    trend = _trend(pairs)
    overlap = overlap_range(pairs, baseline_curve)
    if overlap is None:
        raise FitRefused(f"no common losses: every loss of the arm is {OUTSIDE}")
    start, stop = math.log(overlap[0]), math.log(overlap[1])
    x = np.linspace(start, stop, n)
    band = [trend.at(float(at), level) for at in x]
    logs = [pair.log_compute_arm for pair in pairs]
    smallest, middle, largest = (
        CurveAt(compute=math.exp(at), ratio=trend.at(at, level))
        for at in (start, (start + stop) / 2, stop)
    )
    beyond = None
    if extrapolate_to is not None and extrapolate_to > overlap[1]:
        beyond = _beyond(pairs, overlap[1], extrapolate_to, shares, level)
    return MultiplierCurve(
        arm=arm,
        baseline=baseline_curve[0].arm if baseline_curve else "",
        method=METHOD,
        level=level,
        compute=tuple(float(value) for value in np.exp(x)),
        rho=tuple(_number(at.estimate) for at in band),
        low=tuple(_number(at.low) for at in band),
        high=tuple(_number(at.high) for at in band),
        domain=(math.exp(min(logs)), math.exp(max(logs))),
        overlap=overlap,
        smallest=smallest,
        middle=middle,
        largest=largest,
        extrapolated=beyond,
        notes=() if beyond is None else (beyond.note,),
    )


def _trend(pairs: Sequence[PairPoint]) -> _Trend:
    paired = paired_moments(pairs)
    if isinstance(paired, str):
        raise FitRefused(paired)
    x_base, x_arm, _, _ = columns(pairs)
    x = (x_base + x_arm) / 2
    centre = float(x.mean())
    dx = x - centre
    s_xx = float(dx @ dx)
    gaps = paired.differences
    tilt = float(dx @ gaps) / s_xx
    residual = gaps - gaps.mean() - tilt * dx
    return _Trend(
        centre=centre,
        height=float(gaps.mean()),
        tilt=tilt,
        slope=paired.slope,
        gap_variance=float(residual @ residual) / (len(x) - 2),
        slope_variance=slope_variance_by_size(pairs, paired.slope),
        n=len(x),
        s_xx=s_xx,
    )


def _beyond(
    pairs: Sequence[PairPoint], start: float, stop: float, shares: Sequence[float], level: float
) -> ExtrapolatedCurve:
    """The curve continued under each pinned E, and the envelope of them all."""
    x = np.linspace(math.log(start), math.log(stop), N_BEYOND)
    lowest = min(min(pair.loss_base, pair.loss_arm) for pair in pairs)
    pinned = [share * lowest for share in shares]
    trends = [_trend([_over(pair, asymptote) for pair in pairs]) for asymptote in pinned]
    bands = [[trend.at(float(at), level) for at in x] for trend in trends]
    rho = np.array([[_number(at.estimate) for at in band] for band in bands])
    low = np.array([[0.0 if at.low is None else at.low for at in band] for band in bands])
    high = np.array([[math.inf if at.high is None else at.high for at in band] for band in bands])
    return ExtrapolatedCurve(
        compute=_floats(np.exp(x)),
        rho_low=_floats(np.fmin.reduce(rho, axis=0)),
        rho_high=_floats(np.fmax.reduce(rho, axis=0)),
        low=_floats(low.min(axis=0)),
        high=_floats(high.max(axis=0)),
        asymptotes=tuple(pinned),
        note=ENVELOPE,
    )


def _over(pair: PairPoint, asymptote: float) -> PairPoint:
    """The pair with E pinned elsewhere."""
    return replace(
        pair,
        log_excess_base=math.log(pair.loss_base - asymptote),
        log_excess_arm=math.log(pair.loss_arm - asymptote),
    )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _floats(values: Floats) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
