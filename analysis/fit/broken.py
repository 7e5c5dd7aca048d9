"""Power law with one smooth break, and whether the data need it.

``L = E + A x^-alpha (1 + (x/C_b)^(1/w))^(-change w)`` (Caballero et al. 2022, arXiv 2210.14891,
equation 1). For given break, width and E the logarithm of the excess is linear in the rest, so a
grid over these gives the starts, and every minimum near the best is polished and reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.cells import n_levels
from analysis.estimates import Exclusion, Interval, TooFewData
from analysis.fit.broken_solve import BrokenData, Minimum, broken_data, search
from analysis.fit.power import Objective, PowerFit, Variable, fit_power
from analysis.fit.quantiles import aicc, f_tail, t_quantile
from analysis.law_fit import COMPETITOR_MARGIN, Certificate, Competitor, LawFit
from analysis.laws import Floats, broken_power_loss

MIN_LEVELS = 7
SIGNIFICANCE = 0.05


@dataclass(frozen=True, kw_only=True)
class BrokenFit(LawFit):
    """A fitted broken power law beside the unbroken one; parameters E, A, alpha, change, C_b, w.

    The slope is alpha well below ``C_b`` and ``alpha + change`` well above; w is the width of the
    break in ln x.
    """

    variable: Variable
    unbroken: PowerFit
    f: float
    """F of the three further unknowns."""
    p: float
    """Optimistic: without a break its place and width mean nothing, so F is not quite F."""
    aicc_broken: float
    aicc_unbroken: float
    supported: bool
    """p below 5% and the lower AICc."""
    text: str

    def predict(self, x: Floats | float) -> Floats:
        """Loss at ``x``, nats."""
        return broken_power_loss(
            x,
            asymptote=self.value("E"),
            a=math.log(self.value("A")),
            alpha=self.value("alpha"),
            change=self.value("change"),
            log_break=math.log(self.value("C_b")),
            width=self.value("w"),
        )


def fit_broken_power(
    x: Sequence[float] | Floats,
    loss_nats: Sequence[float] | Floats,
    *,
    variable: Variable = "C",
    asymptote: float | Literal["free"] = 0.0,
    weights: Sequence[float] | Floats | None = None,
    level: float = 0.95,
    exclusions: Sequence[Exclusion] = (),
    flop_convention: str | None = None,
) -> BrokenFit:
    """Fit a power law with one smooth break, and test it against the unbroken law.

    Parameters
    ----------
    x, loss_nats
        ``[n]`` compute, parameters or tokens, and loss in nats.
    asymptote
        E in nats when pinned (least squares on ln(L - E)), or ``"free"`` (least squares on L).
    weights
        ``[n]`` multiply the squared residuals: 1 / sd^2 of what they measure.
    level
        Confidence level.

    Raises
    ------
    TooFewData
        Fewer than seven distinct levels of x.
    BadValue, NoMinimum
        As :func:`analysis.fit.power.fit_power`.
    """
    levels = n_levels(np.log(np.asarray(x, np.float64)))
    if levels < MIN_LEVELS:
        raise TooFewData(
            f"a broken power law needs at least {MIN_LEVELS} distinct levels, got {levels}; "
            "fit the unbroken law, or add sizes"
        )
    free = isinstance(asymptote, str)
    objective: Objective = "mse" if free else "log_excess"
    unbroken = fit_power(
        x,
        loss_nats,
        variable=variable,
        asymptote=asymptote,
        weights=weights,
        objective=objective,
        level=level,
    )
    data = broken_data(x, loss_nats, weights, None if isinstance(asymptote, str) else asymptote)
    minima, best_node = search(data)
    return _result(data, minima, best_node, unbroken, level, exclusions, flop_convention)


def _result(
    data: BrokenData,
    minima: Sequence[Minimum],
    best_node: float,
    unbroken: PowerFit,
    level: float,
    exclusions: Sequence[Exclusion],
    flop_convention: str | None,
) -> BrokenFit:
    best, n = minima[0], len(data.x)
    unknowns = data.n_unknowns
    rss_before = unbroken.certificate.objective
    f = (rss_before - best.objective) / 3 / (best.objective / (n - unknowns))
    p = f_tail(max(f, 0.0), 3, n - unknowns)
    broken, plain = aicc(best.objective, n, unknowns), aicc(rss_before, n, unknowns - 3)
    supported = p < SIGNIFICANCE and broken < plain
    intervals, covariance = _uncertainty(data, best, level)
    at_bound = data.at_bound(best.theta)
    text = _text(supported, f, p, n - unknowns, broken - plain)
    return BrokenFit(
        law="L = E + A x^-alpha (1 + (x/C_b)^(1/w))^(-change w)".replace("x", unbroken.variable),
        method=_method(data, level),
        parameters=intervals,
        covariance=covariance,
        certificate=_certificate(data, minima, best_node, at_bound),
        domain=unbroken.domain,
        n_points=n,
        n_levels=n_levels(data.x),
        rms_nats=math.sqrt(float(np.mean((data.loss - data.predict(best.theta)) ** 2))),
        flop_convention=flop_convention,
        notes=_notes(text, supported, at_bound),
        exclusions=tuple(exclusions),
        data_sha256=unbroken.data_sha256,
        variable=unbroken.variable,
        unbroken=unbroken,
        f=f,
        p=p,
        aicc_broken=broken,
        aicc_unbroken=plain,
        supported=supported,
        text=text,
    )


def _uncertainty(
    data: BrokenData, best: Minimum, level: float
) -> tuple[dict[str, Interval], tuple[tuple[float, ...], ...]]:
    """T intervals, those of A, C_b and w in logs; what lies at a bound is taken as known."""
    n, p = best.jacobian.shape
    held = data.held(best.theta)
    jacobian = best.jacobian[:, ~held]
    variance = best.objective / (n - p)
    local = np.zeros((p, p))
    local[np.ix_(~held, ~held)] = np.linalg.pinv(jacobian.T @ jacobian) * variance
    to_units, values = data.units(best.theta)
    logs = to_units @ local @ to_units.T
    names = ("E", "A", "alpha", "change", "C_b", "w")
    in_logs = np.array([False, True, False, False, True, True])
    half = t_quantile(level, n - p) * np.sqrt(np.maximum(np.diag(logs), 0.0))
    found = {}
    for i, name in enumerate(names):
        value = float(values[i])
        reach = float(half[i])
        ends = (value - reach, value + reach)
        if in_logs[i]:
            ends = (value * _exp(-reach), value * _exp(reach))
        known = reach == 0.0
        why = "pinned" if name == "E" and not data.free else "at its bound"
        found[name] = Interval(
            estimate=value,
            low=None if known else ends[0],
            high=None if known else ends[1],
            level=level,
            method="t interval from the covariance",
            reason=why if known else None,
        )
    scale = np.where(in_logs, values, 1.0)
    covariance = logs * np.outer(scale, scale)
    return found, tuple(tuple(float(v) for v in row) for row in covariance)


def _certificate(
    data: BrokenData, minima: Sequence[Minimum], best_node: float, at_bound: tuple[str, ...]
) -> Certificate:
    best = minima[0]
    same = best.objective * (1 + 1e-6) + data.rounding
    agreeing = [m for m in minima if m.objective <= same]
    distinct: list[Minimum] = []
    for other in minima[len(agreeing) :]:
        new = all(other.objective > kept.objective * (1 + 1e-6) for kept in distinct)
        if other.objective <= best.objective * (1 + COMPETITOR_MARGIN) and new:
            distinct.append(other)
    names = ("E", "A", "alpha", "change", "C_b", "w")
    competitors = tuple(
        Competitor(
            parameters=dict(zip(names, data.units(m.theta)[1].tolist(), strict=True)),
            objective=m.objective,
        )
        for m in distinct
    )
    return Certificate(
        objective=best.objective,
        gradient=data.gradient(best),
        best_profile=best_node,
        n_starts=len(minima),
        n_agreeing=len(agreeing),
        at_bound=at_bound,
        competitors=competitors,
    )


def _notes(text: str, supported: bool, at_bound: tuple[str, ...]) -> tuple[str, ...]:
    notes = [] if supported else [f"break_not_supported: {text}"]
    if "w" in at_bound:
        notes.append("width_not_identified: the best width lies at the edge of what was allowed")
    if "C_b" in at_bound:
        notes.append("break_at_edge: fewer than two sizes lie beyond the best break")
    if "E" in at_bound:
        notes.append("e_not_identified: the best E lies at the edge of what was allowed")
    return tuple(notes)


def _text(supported: bool, f: float, p: float, dof: int, gain: float) -> str:
    verdict = "the data need the break" if supported else "the unbroken law suffices"
    criterion = (
        "too few points for AICc" if math.isinf(gain) else f"AICc broken minus unbroken {gain:+.1f}"
    )
    return f"{verdict} (F(3, {dof}) = {f:.3g}, p = {p:.2g}; {criterion})"


def _method(data: BrokenData, level: float) -> str:
    on = "L, E >= 0 sought" if data.free else "ln(L - E), E pinned"
    return (
        f"least squares on {on}; break and width scanned, the rest linear, minima polished; "
        f"{100 * level:g}% t intervals (A, C_b and w in logs)"
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
