"""Power laws of several arms with one shared exponent.

``ln(L - E) = a_arm - alpha ln C`` by least squares on one point per arm and size, E pinned. E and
alpha trade off against each other on any affordable range of compute, so E is a sensitivity axis
(:attr:`FitResult.profile`), never a finding. Closed form: no starts, no optimiser to trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from analysis.cells import CellPoint, Currency, n_levels
from analysis.estimates import Exclusion, FitRefused, Interval, data_sha256
from analysis.laws import Floats, log_excess, loss_at
from harness.cost import FLOP_CONVENTION

Names = NDArray[np.str_]

MIN_LEVELS = 3
"""Distinct compute levels below which no law is fitted: two always lie on a line."""
PROFILE_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Pinned E of the profile, as shares of the lowest loss."""
_METHOD = "shared-exponent least squares on ln(L - E), E pinned, seeds averaged"


@dataclass(frozen=True)
class ProfilePoint:
    """The fit at one pinned E."""

    asymptote: float
    exponent: float
    rms_nats: float


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A fitted law with its doubts."""

    law: str = "ln(L - E) = a_arm - alpha ln C"
    currency: str
    flop_convention: str = FLOP_CONVENTION
    method: str = _METHOD
    asymptote: float
    """Pinned E, nats."""
    exponent: Interval
    """alpha, with a t interval on size means (n_sizes - 2 dof)."""
    log_coefficients: dict[str, float]
    """a of each arm."""
    domain: tuple[float, float]
    """Smallest and largest compute fitted."""
    n_points: int
    n_levels: int
    rms_nats: float
    """Root mean square residual in loss."""
    profile: tuple[ProfilePoint, ...]
    """Sensitivity to the pinned E."""
    at_bound: tuple[str, ...] = ()
    """Parameters whose best value lies at the edge of what was tried."""
    unmoved: tuple[str, ...] = ()
    """Parameters an optimiser left at their start; a closed form leaves none."""
    notes: tuple[str, ...] = ()
    exclusions: tuple[Exclusion, ...] = ()
    data_sha256: str

    def loss(self, arm: str, compute: Floats) -> Floats:
        """Loss that the law gives an arm at ``compute``, nats."""
        return loss_at(compute, self.log_coefficients[arm], _value(self.exponent), self.asymptote)


@dataclass(frozen=True)
class _Line:
    """Least squares with one intercept per arm and one slope."""

    alpha: float
    intercepts: dict[str, float]
    centred: Floats
    residuals: Floats


def fit_shared(
    points: Sequence[CellPoint],
    currency: Currency,
    *,
    asymptote: float = 0.0,
    exclusions: Sequence[Exclusion] = (),
    level: float = 0.95,
) -> FitResult:
    """Fit one exponent and a coefficient per arm.

    Parameters
    ----------
    points
        One per arm and size (:func:`analysis.cells.cell_points`).
    currency
        What ``points.compute`` counts.
    asymptote
        Pinned E in nats; must lie below every loss.
    exclusions
        Runs left out, carried into the result.
    level
        Confidence level of the exponent's interval.

    Raises
    ------
    FitRefused
        Fewer than three compute levels, no arm with three, or a loss at or below E.
    """
    _check(points)
    arms = np.array([point.arm for point in points])
    x = np.log([point.compute for point in points])
    loss = np.array([point.loss for point in points])
    line = _fit_line(arms, x, log_excess(loss, asymptote))
    profile = tuple(_profile_point(arms, x, loss, share) for share in PROFILE_SHARES)
    at_bound, notes = _doubts(profile, line, points)
    return FitResult(
        currency=currency.name,
        asymptote=asymptote,
        exponent=_exponent_interval(points, line, level),
        log_coefficients=line.intercepts,
        domain=(float(np.exp(x.min())), float(np.exp(x.max()))),
        n_points=len(points),
        n_levels=n_levels(x),
        rms_nats=_rms_nats(arms, x, loss, line, asymptote),
        profile=profile,
        at_bound=at_bound,
        notes=notes,
        exclusions=tuple(exclusions),
        data_sha256=data_sha256((p.arm, p.size, p.compute, p.loss) for p in points),
    )


def pooled_slope(arms: Sequence[tuple[Floats, Floats]]) -> tuple[float, float]:
    """Common slope of several lines, each with its own intercept, and its variance.

    Parameters
    ----------
    arms
        ``(x, y)`` of each line, x = ln C, y = ln(L - E), both ``[n]``.

    Returns
    -------
    tuple
        ``s = -sum (x - xbar)(y - ybar) / S_xx`` (positive when loss falls) and
        ``v_s = RSS / ((N - k - 1) S_xx)`` for N points on k lines.
    """
    centred = [(x - x.mean(), y - y.mean()) for x, y in arms]
    s_xx = float(sum((x * x).sum() for x, _ in centred))
    slope = -float(sum((x * y).sum() for x, y in centred)) / s_xx
    rss = float(sum(((y + slope * x) ** 2).sum() for x, y in centred))
    dof = sum(len(x) for x, _ in arms) - len(arms) - 1
    return slope, rss / dof / s_xx


def _check(points: Sequence[CellPoint]) -> None:
    levels = n_levels(np.log([point.compute for point in points]))
    if levels < MIN_LEVELS:
        raise FitRefused(
            f"a power law needs at least {MIN_LEVELS} distinct compute levels, got {levels}; "
            "finish more of the sweep, or add budgets to the grid"
        )
    counts = {arm: sum(p.arm == arm for p in points) for arm in {p.arm for p in points}}
    if max(counts.values()) < MIN_LEVELS:
        raise FitRefused(
            f"a shared exponent needs one arm with {MIN_LEVELS} sizes, "
            f"got at most {max(counts.values())}"
        )


def _fit_line(arms: Names, x: Floats, y: Floats) -> _Line:
    names = list(dict.fromkeys(str(arm) for arm in arms))
    centre_x, centre_y = np.empty_like(x), np.empty_like(y)
    for name in names:
        at = arms == name
        centre_x[at], centre_y[at] = x[at].mean(), y[at].mean()
    dx, dy = x - centre_x, y - centre_y
    alpha = -float((dx * dy).sum() / (dx * dx).sum())
    intercepts = {n: float((y + alpha * x)[arms == n].mean()) for n in names}
    return _Line(alpha, intercepts, dx, dy + alpha * dx)


def _rms_nats(arms: Names, x: Floats, loss: Floats, line: _Line, asymptote: float) -> float:
    a = np.array([line.intercepts[str(arm)] for arm in arms])
    fitted = asymptote + np.exp(a - line.alpha * x)
    return float(np.sqrt(np.mean((loss - fitted) ** 2)))


def _profile_point(arms: Names, x: Floats, loss: Floats, share: float) -> ProfilePoint:
    asymptote = share * float(loss.min())
    line = _fit_line(arms, x, log_excess(loss, asymptote))
    return ProfilePoint(asymptote, line.alpha, _rms_nats(arms, x, loss, line, asymptote))


def _exponent_interval(points: Sequence[CellPoint], line: _Line, level: float) -> Interval:
    """Student interval on the means over arms at each size.

    Arms trained at one size share its deviation from the law, so the sizes, not the points, are
    the independent observations.
    """
    method = "t interval on size means"
    sizes = [point.size for point in points]
    groups = [np.array([s == name for s in sizes]) for name in dict.fromkeys(sizes)]
    if len(groups) < MIN_LEVELS:
        return Interval(
            estimate=line.alpha, method=method, level=level, reason="fewer than 3 sizes"
        )
    x = np.array([line.centred[at].mean() for at in groups])
    r = np.array([line.residuals[at].mean() for at in groups])
    dof = len(groups) - 2
    half = float(stats.t.ppf(0.5 + level / 2, dof) * np.sqrt((r @ r) / dof / (x @ x)))
    return Interval(
        estimate=line.alpha,
        low=line.alpha - half,
        high=line.alpha + half,
        level=level,
        method=method,
    )


def _doubts(
    profile: Sequence[ProfilePoint], line: _Line, points: Sequence[CellPoint]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    errors = [point.rms_nats for point in profile]
    best = errors.index(min(errors))
    at_bound = ("E",) if best in (0, len(profile) - 1) else ()
    notes = []
    if at_bound:
        notes.append("E is not identified: its profile has no interior minimum")
    if line.alpha <= 0:
        notes.append("loss does not fall with compute in these data")
    if any(point.n_settings > 1 for point in points):
        notes.append("cells that differ in settings other than size were averaged")
    return at_bound, tuple(notes)


def _value(interval: Interval) -> float:
    if interval.estimate is None:
        raise FitRefused(interval.reason or "the exponent is undefined")
    return interval.estimate
