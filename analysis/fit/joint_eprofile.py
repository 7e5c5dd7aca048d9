"""How well data know E: the best law at every pinned E, and the interval that follows.

E trades off against the exponents, so its curve is far from a parabola and a standard error says
little. All pinned values are fitted in one batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from analysis.estimates import Interval
from analysis.fit.joint_newton import Minima, minimise
from analysis.fit.joint_problem import Problem
from analysis.fit.joint_profile import EXPONENTS, FEW_POINTS, pinned_starts
from analysis.laws import Floats

METHOD = "profile of E, F test on the objective"
_NODES = 11
_HIGHEST = 0.98
"""Largest pinned E, as a share of the lowest loss."""
_TOLERANCE = 1e-4
_EXACT = 1e-6
_FAR = 6.0
_STEPS = 12
_STEPS_AGAIN = 25
_REFINED = 5
_START_NODES = 16


@dataclass(frozen=True)
class EProfilePoint:
    """The best fit at one pinned E."""

    asymptote: float
    objective: float
    alpha: float
    beta: float


@dataclass(frozen=True, eq=False)
class EProfile:
    """Best fits at pinned E, in order of E."""

    points: tuple[EProfilePoint, ...]
    interval: Interval
    lowest: Floats
    """``[p]`` coordinates of the lowest of them."""
    lowest_value: float


def profile_e(
    problem: Problem, best: Floats, value: float, *, dof: float, level: float
) -> EProfile:
    """Profile the objective over E.

    The interval holds every E with ``dof (F(E) / F - 1) <= t^2``, t with ``dof`` degrees of
    freedom: exact for normal residuals and least squares, close for the Huber loss.

    Parameters
    ----------
    problem
        What was minimised.
    best, value
        ``[p]`` the minimum and the objective there.
    dof
        Independent points minus unknowns.
    level
        Confidence level.
    """
    scale = problem.scale
    base = max(value, _EXACT * problem.floor)
    t2 = float(stdtrit(dof, 0.5 + level / 2)) ** 2
    highest = base * (1 + t2 / dof)
    pinned = _pinned(problem, best, 2 * base / dof)
    at_best = int(np.searchsorted(pinned, best[0] * scale))
    found = _begin(problem, pinned, best, value, at_best)
    found = _walk(problem, found, at_best, base + _FAR * (highest - base))
    found = _refine(problem, found, at_best, highest)
    order = np.argsort(found.x[:, 0])
    order = order[np.isfinite(found.value[order])]
    x, values = found.x[order], found.value[order]
    lowest = int(np.argmin(values))
    return EProfile(
        tuple(map(_point, problem.parameters(x), values)),
        _interval(x[:, 0] * scale, values, float(best[0] * scale), (base, highest), level),
        x[lowest],
        float(values[lowest]),
    )


def _point(parameters: Floats, value: float) -> EProfilePoint:
    return EProfilePoint(
        float(parameters[0]), float(value), float(parameters[-2]), float(parameters[-1])
    )


def _pinned(problem: Problem, best: Floats, variance: float) -> Floats:
    """Values of E to visit, nats: a coarse range, and within three standard errors of the best."""
    gauss = problem.terms(best[None]).gauss[0]
    unit = np.sqrt(np.maximum(np.diag(gauss), 1e-300))
    inverse = np.linalg.pinv(gauss / np.outer(unit, unit))
    error = np.sqrt(variance * abs(inverse[0, 0])) / unit[0]
    near = best[0] + error * np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0])
    shares = np.append(np.linspace(0.0, _HIGHEST, _NODES), near[(near > 0) & (near < _HIGHEST)])
    return np.unique(np.append(shares, best[0]) * problem.scale)


def _begin(problem: Problem, pinned: Floats, best: Floats, value: float, at_best: int) -> Minima:
    """The best law at its own E; elsewhere nothing, or, of few points, fits from least squares."""
    if problem.n_points < FEW_POINTS:
        starts = pinned_starts(problem, np.linspace(*EXPONENTS, _START_NODES), pinned)
        found = _fit(problem, starts, _STEPS)
    else:
        x = np.repeat(best[None], len(pinned), axis=0)
        x[:, 0] = pinned / problem.scale
        found = Minima(x, np.full(len(x), np.inf), np.zeros(len(x)))
    found.x[at_best], found.value[at_best] = best, value
    return found


def _fit(problem: Problem, starts: Floats, steps: int) -> Minima:
    fixed = np.zeros(starts.shape[1], bool)
    fixed[0] = True
    return minimise(problem, starts, fixed=fixed, tolerance=_TOLERANCE, most_steps=steps)


def _walk(problem: Problem, found: Minima, at_best: int, far: float) -> Minima:
    """Follow the best law outwards from its E to either side, until the objective is ``far``.

    The valley is narrow and bent where E is far from its best: each step starts on the tangent of
    the one before.
    """
    k = len(found.x)
    for step in range(1, k):
        pairs = [(at_best - step, at_best - step + 1), (at_best + step, at_best + step - 1)]
        pairs = [(i, j) for i, j in pairs if 0 <= i < k and found.value[j] <= far]
        if not pairs:
            break
        rows, inner = [i for i, _ in pairs], found.x[[j for _, j in pairs]]
        again = _fit(problem, _along_tangent(problem, inner, found.x[rows, 0]), _STEPS_AGAIN)
        for i, value, x in zip(rows, again.value, again.x, strict=True):
            if value < found.value[i]:
                found.value[i], found.x[i] = value, x
    return found


def _along_tangent(problem: Problem, x: Floats, pinned: Floats) -> Floats:
    """Where minima ``x`` ``[R, p]`` move to first order when E changes to ``pinned`` ``[R]``."""
    gauss = problem.terms(x).gauss
    ridge = 1e-12 * np.einsum("rii->ri", gauss)[:, 1:, None] * np.eye(x.shape[1] - 1)
    moved = np.linalg.solve(gauss[:, 1:, 1:] + ridge, gauss[:, 1:, :1])[:, :, 0]
    change = (pinned - x[:, 0])[:, None]
    start = x.copy()
    start[:, 0] = pinned
    start[:, 1:] -= np.clip(moved * change, -1.0, 1.0)
    return start


def _refine(problem: Problem, found: Minima, at_best: int, highest: float) -> Minima:
    """Add points where the profile first crosses ``highest`` on either side of the best E."""
    starts = []
    for step in (-1, 1):
        i = at_best
        while 0 <= i < len(found.value) and found.value[i] <= highest:
            i += step
        if 0 <= i < len(found.value):
            ends = found.x[i - step, 0], found.x[i, 0]
            pinned = np.linspace(*ends, _REFINED + 2)[1:-1]
            inner = np.repeat(found.x[i - step][None], _REFINED, axis=0)
            starts.append(_along_tangent(problem, inner, pinned))
    if not starts:
        return found
    more_found = _fit(problem, np.concatenate(starts), _STEPS_AGAIN)
    return Minima(
        np.concatenate([found.x, more_found.x]),
        np.concatenate([found.value, more_found.value]),
        np.concatenate([found.gradient, more_found.gradient]),
    )


def _interval(
    pinned: Floats, values: Floats, best: float, span: tuple[float, float], level: float
) -> Interval:
    """Outermost crossings of the profile; its root is nearly straight in E."""
    base, highest = span
    root = np.sqrt(np.maximum(values / base - 1, 0.0))
    limit = np.sqrt(highest / base - 1)
    inside = np.flatnonzero(root <= limit)
    first, last = int(inside[0]), int(inside[-1])
    low = 0.0 if first == 0 else _crossing(pinned, root, first - 1, first, limit)
    high = None if last == len(pinned) - 1 else _crossing(pinned, root, last, last + 1, limit)
    reason = None if high is not None else "no E below the lowest loss is too large for these data"
    return Interval(
        estimate=best,
        low=low if high is not None else None,
        high=high,
        level=level,
        method=METHOD,
        reason=reason,
    )


def _crossing(pinned: Floats, root: Floats, i: int, j: int, limit: float) -> float:
    share = (limit - root[i]) / (root[j] - root[i])
    return float(pinned[i] + share * (pinned[j] - pinned[i]))
