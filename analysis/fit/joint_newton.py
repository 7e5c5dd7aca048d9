"""Damped Newton steps on many parameter vectors at once, within bounds.

Each step solves ``(H + damping G) s = -gradient``: H the exact Hessian, G the positive semidefinite
matrix of iteratively reweighted least squares. Much damping gives a scaled reweighted step, which
always descends; none gives Newton's, which ends at rounding. Every vector keeps its own damping.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fit.huber import Terms
from analysis.fit.joint_problem import Problem
from analysis.laws import Floats

TOLERANCE = 1e-11
"""Gradient norm over the objective at which a vector is left alone."""
MAX_STEPS = 300
_MOST_DAMPING = 1e9
_RIDGE = 1e-13
_LONGEST_STEP = 1.0


@dataclass
class Minima:
    """Where R searches ended."""

    x: Floats
    """``[R, p]``."""
    value: Floats
    """Objective, ``[R]``."""
    gradient: Floats
    """Norm of the projected gradient over the objective, ``[R]``."""


def minimise(
    problem: Problem,
    start: Floats,
    *,
    counts: Floats | None = None,
    fixed: NDArray[np.bool_] | None = None,
    damping: float = 1.0,
    tolerance: float = TOLERANCE,
    most_steps: int = MAX_STEPS,
) -> Minima:
    """Descend from every start to a minimum.

    Parameters
    ----------
    problem
        What is minimised.
    start
        ``[R, p]``; moved into the bounds first.
    counts
        ``[R, n]`` how often each point counts: a bootstrap replicate per row.
    fixed
        ``[p]`` coordinates that stay at their start.
    damping
        The first, in units of G: 1 for a cold start, small beside a known minimum.
    tolerance
        Gradient norm over the objective at which a search ends.
    most_steps
        Steps after which it ends wherever it is.
    """
    lower, upper = problem.bounds()
    x = (
        np.clip(start, lower, upper)
        if fixed is None
        else np.where(fixed, start, np.clip(start, lower, upper))
    )
    at = problem.terms(x, counts)
    held = np.zeros(x.shape[1], bool) if fixed is None else fixed
    done = Minima(x, at.value, np.full(len(x), np.inf))
    rows = np.arange(len(x))
    lam = np.full(len(x), damping)
    for _ in range(most_steps):
        blocked = _blocked(x, at.gradient, lower, upper) | held
        gradient = np.where(blocked, 0.0, at.gradient)
        size = np.linalg.norm(gradient, axis=1) / np.maximum(at.value, problem.floor)
        done.x[rows], done.value[rows], done.gradient[rows] = x, at.value, size
        going = (size > tolerance) & (lam < _MOST_DAMPING)
        if not going.any():
            break
        if not going.all():
            rows, x, lam, at = rows[going], x[going], lam[going], _take(at, going)
            gradient, blocked, size = gradient[going], blocked[going], size[going]
        step = _bounded_step(at, gradient, blocked, lam, (lower - x, upper - x))
        trial = np.where(held, x, np.clip(x + step, lower, upper))
        there = problem.terms(trial, None if counts is None else counts[rows])
        better = _improves(at, there, gradient, blocked, problem.rounding(at.value))
        lam = np.where(better, np.where(lam > 1e-7, 0.3 * lam, 0.0), np.maximum(4 * lam, 1e-2))
        x = np.where(better[:, None], trial, x)
        at = _merge(better, there, at)
    return done


def _blocked(x: Floats, gradient: Floats, lower: Floats, upper: Floats) -> NDArray[np.bool_]:
    """Coordinates at a bound that descent would push further out."""
    blocked: NDArray[np.bool_] = ((x <= lower) & (gradient > 0)) | ((x >= upper) & (gradient < 0))
    return blocked


def _bounded_step(
    at: Terms,
    gradient: Floats,
    blocked: NDArray[np.bool_],
    lam: Floats,
    room: tuple[Floats, Floats],
) -> Floats:
    """Newton step within the room to either bound.

    A step cut off at a bound need not descend, for the other coordinates counted on the rest of it:
    where one crosses, it goes to its bound and the others are solved for again.
    """
    matrix = at.hessian + lam[:, None, None] * at.gauss
    unit = np.sqrt(np.maximum(np.einsum("rii->ri", at.gauss), 1e-300))
    step = _solve(matrix, gradient, blocked, unit)
    crossing = ~blocked & ((step < room[0]) | (step > room[1]))
    if crossing.any():
        cut = np.where(crossing, np.clip(step, *room), 0.0)
        shifted = gradient + np.einsum("rij,rj->ri", matrix, cut)
        step = np.where(crossing, cut, _solve(matrix, shifted, blocked | crossing, unit))
    return step


def _solve(matrix: Floats, gradient: Floats, blocked: NDArray[np.bool_], unit: Floats) -> Floats:
    """Step of the coordinates not blocked, in units of each one's own curvature."""
    free = ~blocked
    scaled = matrix / (unit[:, :, None] * unit[:, None, :])
    scaled = np.where(free[:, :, None] & free[:, None, :], scaled, 0.0)
    diagonal = np.arange(gradient.shape[1])
    scaled[:, diagonal, diagonal] += _RIDGE + blocked
    rhs = np.where(blocked, 0.0, -gradient / unit)
    try:
        step = np.linalg.solve(scaled, rhs[:, :, None])[:, :, 0]
    except np.linalg.LinAlgError:
        scaled[:, diagonal, diagonal] += 1e-6
        step = np.linalg.solve(scaled, rhs[:, :, None])[:, :, 0]
    return np.asarray(np.clip(step / unit, -_LONGEST_STEP, _LONGEST_STEP))


def _improves(
    at: Terms, there: Terms, gradient: Floats, blocked: NDArray[np.bool_], rounding: Floats
) -> NDArray[np.bool_]:
    """Lower objective, or, where rounding hides that, a smaller gradient."""
    change = there.value - at.value
    smaller = np.linalg.norm(np.where(blocked, 0.0, there.gradient), axis=1) < np.linalg.norm(
        gradient, axis=1
    )
    better: NDArray[np.bool_] = (change < -rounding) | ((change <= rounding) & smaller)
    return better


def _take(at: Terms, rows: NDArray[np.bool_]) -> Terms:
    return Terms(at.value[rows], at.gradient[rows], at.hessian[rows], at.gauss[rows])


def _merge(better: NDArray[np.bool_], there: Terms, at: Terms) -> Terms:
    return Terms(
        np.where(better, there.value, at.value),
        np.where(better[:, None], there.gradient, at.gradient),
        np.where(better[:, None, None], there.hessian, at.hessian),
        np.where(better[:, None, None], there.gauss, at.gauss),
    )
