"""Solutions of the one-variable power law: estimate, neighbourhood, intervals, certificate.

Free E by variable projection (:mod:`analysis.fit.power_solve`), pinned E in ``ln(L - E)`` by a
straight line. Pure numbers; the public face is :mod:`analysis.fit.power`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from analysis.cells import n_levels
from analysis.estimates import Interval, NoMinimum
from analysis.fit.power_solve import (
    ALPHA_RANGE,
    Candidates,
    PowerData,
    accepted_ranges,
    coefficient_range,
    solve,
    solve_each,
)
from analysis.fit.profile import ProfilePoint
from analysis.fit.quantiles import f_quantile, t_quantile
from analysis.law_fit import COMPETITOR_MARGIN, Certificate, Competitor
from analysis.laws import Floats

MIN_LEVELS_FREE = 4
PROFILE_STEPS = 41
"""Pinned E at which the profile is computed, from zero to 98% of the lowest loss."""
ROUNDING = 1e-8
"""Residuals below this share of the losses are rounding: no gradient is read from them."""
_FIXED_POINT_STEPS = 20


@dataclass(frozen=True)
class Solution:
    """A law in centred units with what is known of its neighbourhood."""

    asymptote: float
    log_coefficient: float
    """ln A at the centre of ln x."""
    alpha: float
    objective: float
    jacobian: Floats
    """``[n, p]`` of the weighted residuals in (E if free, ln A at centre, alpha)."""
    residual: Floats
    """``[n]`` weighted."""
    free: bool
    competitors: tuple[Competitor, ...] = ()
    n_starts: int = 1
    best_scan: float | None = None


def log_line(data: PowerData, asymptote: float) -> Solution:
    """Closed form: weighted least squares of ln(L - E) on ln x."""
    excess = data.loss - asymptote
    y, root = np.log(excess), np.sqrt(data.weights)
    design = np.stack([np.ones_like(y), -data.z], axis=1) * root[:, None]
    (log_a, alpha), *_ = np.linalg.lstsq(design, y * root, rcond=None)
    residual = y * root - design @ np.array([log_a, alpha])
    return Solution(
        asymptote,
        float(log_a),
        float(alpha),
        float(residual @ residual),
        design,
        residual,
        free=False,
    )


def least_squares(
    data: PowerData, pinned: float | None, relative: bool
) -> tuple[PowerData, Solution]:
    """Solve in L, or in ln L by the fixed point of its linearisation.

    With ``P`` the law's own loss, ``P (1 + ln(L / P))`` weighted by ``w / P^2`` has the residuals
    and the gradient of the objective in ln L; solving it again until P stands still is exact.
    """
    working = data
    found = _minima(data, pinned)
    for _ in range(_FIXED_POINT_STEPS if relative else 0):
        before = found[0].alpha[0]
        excess = found[0].coefficient[0, 0] * np.exp(-found[0].alpha[0] * data.z)
        law = found[0].asymptote[0] + excess
        loss = law * (1 + np.log(data.loss / law))
        working = replace(data, loss=loss, weights=data.weights / law**2)
        found = _minima(working, pinned)
        if abs(found[0].alpha[0] / before - 1) < 1e-9:
            break
    return working, _best(working, *found, free=pinned is None)


def _minima(data: PowerData, pinned: float | None) -> tuple[Candidates, Candidates]:
    minima, scan = solve(data, pinned)
    if minima.coefficient[0, 0] <= 0:
        raise NoMinimum("loss does not fall with x in these data: no power law with A > 0 fits")
    return minima, scan


def _best(data: PowerData, minima: Candidates, scan: Candidates, *, free: bool) -> Solution:
    best = _at(data, minima, 0, free=free)
    objective = best.objective
    others = [
        i
        for i in range(1, len(minima.alpha))
        if minima.objective[i] <= objective * (1 + COMPETITOR_MARGIN)
        and abs(math.log(minima.alpha[i] / best.alpha)) > 1e-6
    ]
    competitors = tuple(
        Competitor(
            parameters={
                "E": float(minima.asymptote[i]),
                "A": float(minima.coefficient[i, 0] * np.exp(minima.alpha[i] * data.centre)),
                "alpha": float(minima.alpha[i]),
            },
            objective=float(minima.objective[i]),
        )
        for i in others
    )
    return Solution(
        best.asymptote,
        best.log_coefficient,
        best.alpha,
        objective,
        best.jacobian,
        best.residual,
        best.free,
        competitors,
        len(minima.alpha),
        max(float(scan.objective.min()), rounding_floor(data)),
    )


def rounding_floor(data: PowerData) -> float:
    """Objective below which residuals are rounding of the losses."""
    return 1e-24 * float(data.weights @ data.loss**2)


def _at(data: PowerData, found: Candidates, i: int, *, free: bool) -> Solution:
    e, a, alpha = (float(v[i]) for v in (found.asymptote, found.coefficient[:, 0], found.alpha))
    root = np.sqrt(data.weights)
    excess = a * np.exp(-alpha * data.z)
    columns = [excess, -excess * data.z]
    if free:
        columns = [np.ones_like(excess), *columns]
    jacobian = np.stack(columns, axis=1) * root[:, None]
    residual = (data.loss - e - excess) * root
    return Solution(e, math.log(a), alpha, float(found.objective[i]), jacobian, residual, free)


def _fitted(data: PowerData, solution: Solution) -> Floats:
    excess = np.exp(solution.log_coefficient - solution.alpha * data.z)
    return np.asarray(solution.asymptote + excess, np.float64)


def rms_nats(data: PowerData, solution: Solution) -> float:
    """Root mean square residual in loss, unweighted."""
    return math.sqrt(float(np.mean((data.loss - _fitted(data, solution)) ** 2)))


def _log_a(data: PowerData, solution: Solution) -> float:
    return solution.log_coefficient + solution.alpha * data.centre


def uncertainty(
    data: PowerData, solution: Solution, level: float
) -> tuple[dict[str, Interval], tuple[tuple[float, ...], ...] | None]:
    """Linearised t intervals, that of A on ln A, and the covariance of (E, A, alpha)."""
    a = math.exp(_log_a(data, solution))
    values = {"E": solution.asymptote, "A": a, "alpha": solution.alpha}
    method = "t interval from the covariance"
    dof = data.n - solution.jacobian.shape[1]
    if dof < 1:
        why = "as many unknowns as points"
        bare = {
            name: Interval(estimate=at, level=level, method=method, reason=why)
            for name, at in values.items()
        }
        return bare | _pinned(solution, level), None
    normal = solution.jacobian.T @ solution.jacobian
    local = (
        np.linalg.pinv(normal, hermitian=True) * float(solution.residual @ solution.residual) / dof
    )
    full = np.zeros((3, 3))
    start = 0 if solution.free else 1
    full[start:, start:] = local
    to_units = np.array([[1, 0, 0], [0, 1, data.centre], [0, 0, 1]])
    in_logs = to_units @ full @ to_units.T
    scale = np.array([1.0, a, 1.0])
    covariance = in_logs * np.outer(scale, scale)
    t = t_quantile(level, dof)
    half = t * np.sqrt(np.diag(in_logs))
    ends = {
        "E": (max(0.0, solution.asymptote - half[0]), solution.asymptote + half[0]),
        "A": (_exp(math.log(a) - half[1]), _exp(math.log(a) + half[1])),
        "alpha": (solution.alpha - half[2], solution.alpha + half[2]),
    }
    found = {
        name: Interval(
            estimate=at,
            low=float(ends[name][0]),
            high=float(ends[name][1]),
            level=level,
            method=method,
        )
        for name, at in values.items()
    }
    rows = tuple(tuple(float(v) for v in row) for row in covariance)
    return found | _pinned(solution, level), rows


def _pinned(solution: Solution, level: float) -> dict[str, Interval]:
    if solution.free:
        return {}
    return {
        "E": Interval(estimate=solution.asymptote, level=level, method="pinned", reason="pinned")
    }


def _threshold(data: PowerData, objective: float, level: float) -> float:
    """Objective up to which a law with one parameter held is not rejected by its F-test."""
    dof = data.n - 3
    return objective * (1 + f_quantile(level, 1, dof) / dof) + data.n * 1e-30


def profile_interval(data: PowerData, solution: Solution, level: float) -> Interval | None:
    """Profile interval of E, sought even where it is pinned; None where there is no freedom."""
    if n_levels(data.z) < MIN_LEVELS_FREE or data.n < 4:
        return None
    e, alpha, objective = solution.asymptote, solution.alpha, solution.objective
    if not solution.free:
        minima, _ = solve(data)
        if minima.coefficient[0, 0] <= 0:
            return None
        e, alpha, objective = (
            float(values[0]) for values in (minima.asymptote, minima.alpha, minima.objective)
        )
    low, high = accepted_ranges(data, alpha, _threshold(data, objective, level)).asymptote
    return Interval(
        estimate=e, low=low, high=high, level=level, method="profile interval, F(1, n - 3)"
    )


def profile_intervals(data: PowerData, solution: Solution, level: float) -> dict[str, Interval]:
    """Profile intervals of A and alpha."""
    method = "profile interval, F(1, n - 3)"
    threshold = _threshold(data, solution.objective, level)
    ranges = accepted_ranges(data, solution.alpha, threshold)
    low, high = (_exp(end) for end in coefficient_range(data, ranges.alpha, threshold))
    a = math.exp(_log_a(data, solution))
    return {
        "A": Interval(estimate=a, low=low, high=high, level=level, method=method),
        "alpha": Interval(
            estimate=solution.alpha,
            low=ranges.alpha[0],
            high=ranges.alpha[1],
            level=level,
            method=method,
        ),
    }


def e_profile(data: PowerData, loss: Floats) -> tuple[ProfilePoint, ...]:
    """Best exponent and rms residual at each pinned E from zero to 98% of the lowest loss."""
    pinned = np.linspace(0.0, 0.98 * float(loss.min()), PROFILE_STEPS)
    found = solve_each(data, pinned)
    fitted = pinned[:, None] + found.coefficient * np.exp(-found.alpha[:, None] * data.z)
    rms = np.sqrt(np.mean((loss - fitted) ** 2, axis=1))
    return tuple(
        ProfilePoint(float(e), float(alpha), float(r))
        for e, alpha, r in zip(pinned, found.alpha, rms, strict=True)
    )


def bounds_hit(solution: Solution) -> tuple[str, ...]:
    """Parameters at the edge of what was allowed."""
    found = []
    if solution.free and solution.asymptote <= 0:
        found.append("E")
    if solution.best_scan is not None and not (
        ALPHA_RANGE[0] * 1.001 < solution.alpha < ALPHA_RANGE[1] / 1.001
    ):
        found.append("alpha")
    return tuple(found)


def certificate(solution: Solution, at_bound: tuple[str, ...]) -> Certificate:
    """The gradient is the largest cosine between the residuals and a column of the Jacobian."""
    names = (["E"] if solution.free else []) + ["A", "alpha"]
    kept = [i for i, name in enumerate(names) if name not in at_bound]
    jacobian = solution.jacobian[:, kept]
    floor = ROUNDING * float(np.linalg.norm(solution.jacobian[:, 0]))
    size = max(float(np.linalg.norm(solution.residual)), floor)
    cosines = np.abs(jacobian.T @ solution.residual) / np.linalg.norm(jacobian, axis=0) / size
    return Certificate(
        objective=solution.objective,
        gradient=float(cosines.max(initial=0.0)),
        best_profile=solution.best_scan,
        n_starts=solution.n_starts,
        n_agreeing=1,
        at_bound=at_bound,
        competitors=solution.competitors,
    )


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
