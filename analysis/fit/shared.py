"""Power laws of several arms with one shared exponent.

``ln(L - E) = a_arm - alpha ln C`` by least squares on one point per arm and size. E and alpha trade
off against each other on any affordable range of compute, so E is pinned and a sensitivity axis
(:attr:`SharedFit.profile`); ``"profile"`` seeks it, and gives it an interval. Closed form, or a
search over the exponent alone: no starts, no optimiser to trust.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.cells import CellPoint, Currency, n_levels
from analysis.estimates import Exclusion, FitRefused, Interval, TooFewData, data_sha256
from analysis.fit.profile import PROFILE_SHARES, ProfilePoint
from analysis.fit.quantiles import t_quantile
from analysis.fit.shared_solve import Line, Table, fit_line, law_from_profile, size_covariance
from analysis.law_fit import LawFit
from analysis.laws import Floats, log_excess, loss_at
from harness.cost import FLOP_CONVENTION

MIN_LEVELS = 3
"""Distinct compute levels below which no law is fitted: two always lie on a line."""
MIN_LEVELS_FREE = 4
_INTERVALS = "t intervals, sizes as the independent observations"


@dataclass(frozen=True, kw_only=True)
class SharedFit(LawFit):
    """A power law per arm with one exponent; parameters E, alpha and ``a[arm]``."""

    currency: str
    asymptote: float
    """E, nats: pinned, or the best of its profile."""
    exponent: Interval
    """alpha, with an interval that counts sizes, not points: t, or profile where E was sought."""
    log_coefficients: dict[str, float]
    """a of each arm."""
    profile: tuple[ProfilePoint, ...]
    """Sensitivity to the pinned E."""
    e_interval: Interval | None = None
    """Profile interval of E; None when E is pinned."""
    n_sizes: int

    @property
    def at_bound(self) -> tuple[str, ...]:
        """Parameters whose best value lies at the edge of what was tried."""
        return self.certificate.at_bound

    @property
    def unmoved(self) -> tuple[str, ...]:
        """Parameters an optimiser left at their start; a closed form leaves none."""
        return self.certificate.unmoved

    @property
    def dof(self) -> int:
        """Degrees of freedom of every interval: sizes less slope, level and, if sought, E."""
        return self.n_sizes - (2 if self.e_interval is None else 3)

    def loss(self, arm: str, compute: Floats) -> Floats:
        """Loss that the law gives an arm at ``compute``, nats."""
        alpha = self.value("alpha")
        return loss_at(compute, self.log_coefficients[arm], alpha, self.asymptote)

    def band(
        self, arm: str, compute: Floats | float, level: float | None = None
    ) -> tuple[Floats, Floats]:
        """Pointwise confidence band of an arm's fitted loss, nats.

        Of the law, not of a new run. Sizes are the independent observations, because arms trained
        at one size share its deviation: ``n_sizes - 2`` degrees of freedom, 3 fewer than the sizes
        where E was sought. Symmetric in ``ln(L - E)`` under a pinned E, in L otherwise.

        Parameters
        ----------
        arm
            One of ``log_coefficients``.
        compute
            ``[m]`` in the currency.
        level
            Confidence level; that of the fit unless given.

        Returns
        -------
        tuple
            ``(low, high)``, each ``[m]``; NaN where no interval exists.
        """
        x = np.log(np.atleast_1d(np.asarray(compute, np.float64)))
        fitted = self.loss(arm, np.exp(x))
        if self.covariance is None:
            return np.full_like(fitted, np.nan), np.full_like(fitted, np.nan)
        excess = fitted - self.asymptote
        names = list(self.parameters)
        gradient = np.zeros((len(x), len(names)))
        gradient[:, 0], gradient[:, 1] = 1 / excess, -x
        gradient[:, names.index(f"a[{arm}]")] = 1
        variance = np.einsum("mi,ij,mj->m", gradient, np.array(self.covariance), gradient)
        t = t_quantile(self.exponent.level if level is None else level, self.dof)
        half = t * np.sqrt(np.maximum(variance, 0.0))
        if self.e_interval is None:
            return self.asymptote + excess * np.exp(-half), self.asymptote + excess * np.exp(half)
        return fitted - excess * half, fitted + excess * half


def fit_shared(
    points: Sequence[CellPoint],
    currency: Currency,
    *,
    asymptote: float | Literal["profile"] = 0.0,
    exclusions: Sequence[Exclusion] = (),
    level: float = 0.95,
) -> SharedFit:
    """Fit one exponent and a coefficient per arm.

    Parameters
    ----------
    points
        One per arm and size (:func:`analysis.cells.cell_points`).
    currency
        What ``points.compute`` counts.
    asymptote
        Pinned E in nats, below every loss: least squares on ln(L - E). ``"profile"``: E >= 0 is
        sought by least squares on L, with a profile interval.
    exclusions
        Runs left out, carried into the result.
    level
        Confidence level of the intervals.

    Raises
    ------
    TooFewData
        Fewer than three compute levels (four sizes when E is sought), no arm with three.
    NoMinimum
        E is sought and loss does not fall with compute.
    FitRefused
        A loss at or below E.
    """
    _check(points, sought=asymptote == "profile")
    table = Table.of(points)
    profile = tuple(_profile_point(table, share) for share in PROFILE_SHARES)
    if isinstance(asymptote, str):
        line = law_from_profile(table, level)
    else:
        line = fit_line(table, log_excess(table.loss, asymptote), asymptote)
    intervals, covariance = _uncertainty(table, line, level)
    at_bound, notes = _doubts(profile, line, points, _of_asymptote(table, line, level))
    return SharedFit(
        law="ln(L - E) = a_arm - alpha ln C",
        method=_method(sought=line.e_interval is not None),
        parameters=intervals,
        covariance=covariance,
        certificate=line.certificate(at_bound),
        domain={"C": (float(np.exp(table.x.min())), float(np.exp(table.x.max())))},
        n_points=len(points),
        n_levels=n_levels(table.x),
        rms_nats=line.rms_nats(table),
        flop_convention=FLOP_CONVENTION,
        notes=notes,
        exclusions=tuple(exclusions),
        data_sha256=data_sha256((p.arm, p.size, p.compute, p.loss) for p in points),
        currency=currency.name,
        asymptote=line.asymptote,
        exponent=intervals["alpha"],
        log_coefficients=dict(zip(table.arms, line.intercepts.tolist(), strict=True)),
        profile=profile,
        e_interval=line.e_interval,
        n_sizes=table.n_sizes,
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


def _check(points: Sequence[CellPoint], *, sought: bool) -> None:
    levels = n_levels(np.log([point.compute for point in points]))
    if levels < MIN_LEVELS:
        raise TooFewData(
            f"a power law needs at least {MIN_LEVELS} distinct compute levels, got {levels}; "
            "finish more of the sweep, or add budgets to the grid"
        )
    counts = {arm: sum(p.arm == arm for p in points) for arm in {p.arm for p in points}}
    if max(counts.values()) < MIN_LEVELS:
        raise TooFewData(
            f"a shared exponent needs one arm with {MIN_LEVELS} sizes, "
            f"got at most {max(counts.values())}"
        )
    sizes = len({point.size for point in points})
    if sought and min(sizes, levels) < MIN_LEVELS_FREE:
        raise TooFewData(
            f"seeking E needs at least {MIN_LEVELS_FREE} sizes at distinct compute, "
            f"got {min(sizes, levels)}; pin E, or add sizes"
        )


def _profile_point(table: Table, share: float) -> ProfilePoint:
    asymptote = share * float(table.loss.min())
    line = fit_line(table, log_excess(table.loss, asymptote), asymptote)
    return ProfilePoint(asymptote, line.alpha, line.rms_nats(table))


def _uncertainty(
    table: Table, line: Line, level: float
) -> tuple[dict[str, Interval], tuple[tuple[float, ...], ...] | None]:
    """Intervals by symbol and covariance in the order E, alpha, ``a[arm]``."""
    names = ["E", "alpha", *(f"a[{arm}]" for arm in table.arms)]
    values = [line.asymptote, line.alpha, *line.intercepts.tolist()]
    dof = table.n_sizes - (2 if line.e_interval is None else 3)
    if dof < 1:
        why = f"fewer than {MIN_LEVELS} sizes"
        bare = {
            name: Interval(estimate=value, level=level, method=_INTERVALS, reason=why)
            for name, value in zip(names, values, strict=True)
        }
        return bare | _profiled(line, level), None
    covariance = size_covariance(table, line, dof)
    half = t_quantile(level, dof) * np.sqrt(np.diag(covariance))
    found = {
        name: Interval(
            estimate=value,
            low=float(value - reach),
            high=float(value + reach),
            level=level,
            method=_INTERVALS,
        )
        for name, value, reach in zip(names, values, half, strict=True)
    }
    rows = tuple(tuple(float(v) for v in row) for row in covariance)
    return found | _profiled(line, level), rows


def _profiled(line: Line, level: float) -> dict[str, Interval]:
    """E and, where E was sought, alpha."""
    pinned = Interval(estimate=line.asymptote, level=level, method="pinned", reason="pinned")
    found = {"E": line.e_interval or pinned}
    return found | ({"alpha": line.alpha_interval} if line.alpha_interval else {})


def _of_asymptote(table: Table, line: Line, level: float) -> tuple[str, ...]:
    """What the profile interval of E says of a law, whether E was sought or pinned."""
    if line.e_interval is not None or min(table.n_sizes, n_levels(table.x)) < MIN_LEVELS_FREE:
        return line.notes
    with suppress(FitRefused):
        return law_from_profile(table, level).notes
    return line.notes


def _doubts(
    profile: Sequence[ProfilePoint],
    line: Line,
    points: Sequence[CellPoint],
    of_asymptote: Sequence[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    errors = [point.rms_nats for point in profile]
    best = errors.index(min(errors))
    at_bound = ("E",) if best in (0, len(profile) - 1) else ()
    notes = list(line.notes)
    if at_bound and not notes:
        notes.append("e_not_identified: its profile has no interior minimum")
    notes = notes or list(of_asymptote)
    if line.alpha <= 0:
        notes.append("loss_does_not_fall: the fitted exponent is not positive")
    if any(point.n_settings > 1 for point in points):
        notes.append(
            "settings_averaged: cells that differ in settings other than size were averaged"
        )
    return at_bound, tuple(notes)


def _method(*, sought: bool) -> str:
    if sought:
        how = "shared-exponent least squares on L, E >= 0 sought, exponent scanned and bisected"
    else:
        how = "shared-exponent least squares on ln(L - E), E pinned"
    profiled = "; E and alpha by profile (F)" if sought else ""
    return f"{how}, seeds averaged; {_INTERVALS}{profiled}"


__all__ = ["PROFILE_SHARES", "ProfilePoint", "SharedFit", "fit_shared", "pooled_slope"]
