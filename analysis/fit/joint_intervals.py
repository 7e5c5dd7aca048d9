"""Covariance and intervals of a joint fit, from the objective or from bootstrap draws."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from analysis.estimates import Interval, TooFewData
from analysis.fit.huber import point_loss, predict, residuals
from analysis.fit.joint_points import JointPoints
from analysis.fit.joint_problem import Problem
from analysis.laws import Floats

SANDWICH = "sandwich covariance, t quantile (A and B in logs)"
_BANDWIDTH = 1.3
_WIDER = 1.5
_MAD_TO_SD = 1.4826


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Intervals by parameter, and the covariance they came from."""

    intervals: tuple[Interval, ...]
    covariance: Floats | None
    """``[parameters, parameters]`` in the units of the parameters."""

    @property
    def rows(self) -> tuple[tuple[float, ...], ...] | None:
        """The covariance as plain numbers."""
        if self.covariance is None:
            return None
        return tuple(tuple(map(float, row)) for row in self.covariance)


def residuals_at(problem: Problem, x: Floats) -> tuple[Floats, Floats]:
    """Residuals of the objective, and of L in nats, both ``[n]`` in the order of the data."""
    own, nats = np.empty(problem.n_points), np.empty(problem.n_points)
    for block, at, local in zip(problem.blocks, problem.indices, problem.maps, strict=True):
        predicted = predict((x @ local.T)[None], block)[0][0]
        own[at] = residuals(predicted, block, problem.objective)
        nats[at] = predicted - block.loss
    return own, nats


def n_independent(points: JointPoints) -> int:
    """Clusters, or points where none are named."""
    return len(points) if points.clusters is None else len(set(points.clusters))


def sandwich(problem: Problem, x: Floats, points: JointPoints, *, level: float) -> Uncertainty:
    """Sandwich covariance ``H^-1 (sum s s') H^-1`` with scores s summed over each cluster.

    H is the exact Hessian but for the Huber loss' second derivative, a spike of width delta at 0:
    that is averaged over a bandwidth of 1.3 robust sd n^-1/5 (Powell's kernel estimate), else few
    residuals would decide. Coordinates at a bound are held there.
    """
    jacobian = problem.slopes(x)
    residual, _ = residuals_at(problem, x)
    loss = point_loss(residual, problem.objective)
    weight = np.ones(len(points)) if points.weights is None else points.weights
    lower, upper = problem.bounds()
    free = (x > lower) & (x < upper)
    n, p = n_independent(points), int(free.sum())
    hessian = problem.terms(x[None]).hessian[0]
    hessian = hessian - (jacobian * (weight * loss.curvature)[:, None]).T @ jacobian
    bread = _bread(problem, residual, weight, jacobian, hessian, free)
    dof = n - p
    if bread is None or dof < 1:
        reason = "the curvature at the minimum is singular"
        estimates = problem.parameters(x)
        return Uncertainty(tuple(_bare(value, level, reason) for value in estimates.tolist()), None)
    scores = jacobian[:, free] * (weight * loss.slope)[:, None]
    clustered = _sum_by(scores, points.clusters)
    inner = bread @ (clustered.T @ clustered) @ bread * (n / dof)
    linear = problem.to_logs[:, free]
    return _from_logs(problem, x, linear @ inner @ linear.T, dof, level)


def from_draws(names: Sequence[str], estimates: Floats, draws: Floats, level: float) -> Uncertainty:
    """Percentile intervals and covariance of bootstrap draws ``[replicates, parameters]``.

    Raises
    ------
    TooFewData
        Fewer than half of the replicates could be fitted.
    """
    kept = draws[np.isfinite(draws).all(axis=1)]
    if 2 * len(kept) < len(draws):
        raise TooFewData(
            f"{len(draws) - len(kept)} of {len(draws)} bootstrap replicates held too few distinct "
            "points for the law: use replicates=0 for sandwich intervals, or add runs"
        )
    tails = 0.5 - level / 2, 0.5 + level / 2
    low, high = np.quantile(kept, tails, axis=0)
    method = f"percentile bootstrap, {len(kept)} replicates"
    intervals = tuple(
        Interval(
            estimate=float(estimates[k]),
            low=float(low[k]),
            high=float(high[k]),
            level=level,
            method=method,
        )
        for k in range(len(names))
    )
    return Uncertainty(intervals, np.cov(kept, rowvar=False))


def _bread(
    problem: Problem,
    residual: Floats,
    weight: Floats,
    jacobian: Floats,
    bend: Floats,
    free: NDArray[np.bool_],
) -> Floats | None:
    """Inverse of the smoothed Hessian; a wider bandwidth where it is not positive definite."""
    width = math.inf
    if problem.objective.logarithmic:
        sd = _MAD_TO_SD * float(np.median(np.abs(residual)))
        width = max(problem.objective.delta, _BANDWIDTH * sd * len(residual) ** -0.2)
    while True:
        near = np.abs(residual) <= width
        curvature = (
            problem.objective.delta / width * near
            if problem.objective.logarithmic
            else 2.0 + 0 * near
        )
        whole = bend + (jacobian * (weight * curvature)[:, None]).T @ jacobian
        part = whole[np.ix_(free, free)]
        unit = np.sqrt(np.maximum(np.diag(part), 1e-300))
        values = np.linalg.eigvalsh(part / np.outer(unit, unit))
        if values[0] > 1e-12:
            return np.asarray(np.linalg.inv(part))
        if near.all():
            return None
        width *= _WIDER


def _sum_by(scores: Floats, clusters: object) -> Floats:
    if clusters is None:
        return scores
    _, at = np.unique(np.asarray(clusters), return_inverse=True)
    out = np.zeros((int(at.max()) + 1, scores.shape[1]))
    np.add.at(out, at, scores)
    return out


def _from_logs(
    problem: Problem, x: Floats, covariance: Floats, dof: float, level: float
) -> Uncertainty:
    """Intervals symmetric in E, ln A, ln B, alpha and beta."""
    estimates = problem.parameters(x)
    t = float(stdtrit(dof, 0.5 + level / 2))
    half = t * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    unit = np.ones(len(estimates))
    intervals = []
    for k, name in enumerate(problem.names):
        value = float(estimates[k])
        if half[k] == 0:
            intervals.append(_bare(value, level, "held at its bound"))
            continue
        ends = [value - half[k], value + half[k]]
        if name[0] in "AB":
            unit[k] = value
            ends = [value * math.exp(-min(half[k], 700)), value * math.exp(min(half[k], 700))]
        elif name == "E":
            ends[0] = max(ends[0], 0.0)
        intervals.append(
            Interval(
                estimate=value,
                low=float(ends[0]),
                high=float(ends[1]),
                level=level,
                method=SANDWICH,
            )
        )
    return Uncertainty(tuple(intervals), covariance * np.outer(unit, unit))


def _bare(value: float, level: float, reason: str) -> Interval:
    return Interval(estimate=value, level=level, method=SANDWICH, reason=reason)
