"""Is a published fit the minimum of its own objective?

Optimisers report success wherever they stop: of 4,500 textbook starts on the Chinchilla points all
do, and 8% are at the minimum. Evaluating the published parameters settles it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from analysis.estimates import BadValue
from analysis.fit.joint import JointFit, JointPoints
from analysis.fit.joint_bootstrap import problem_of

TOLERANCE = 1e-5
"""Relative excess that rounded parameters and an optimiser's tolerance can explain."""


@dataclass(frozen=True)
class PublishedCheck:
    """A published point under the objective it is said to minimise."""

    objective: float
    """Value there."""
    excess_relative: float
    """``objective / minimum - 1``; negative if the published point is lower than the fit."""
    is_minimum: bool
    """The excess is within :data:`TOLERANCE`."""
    text: str


def check_published(
    points: JointPoints,
    published: Mapping[str, float],
    fit: JointFit,
    *,
    delta: float | None = None,
) -> PublishedCheck:
    """Evaluate a published point under the fit's objective.

    Parameters
    ----------
    points
        What both were fitted on.
    published
        E, A, B, alpha, beta in the units of ``fit.parameters``.
    fit
        The minimum, of the same points.
    delta
        Huber's delta that the publication states; must be the fit's.

    Raises
    ------
    BadValue
        A parameter is missing or not positive, or ``delta`` is not the one of ``fit``.
    """
    if delta is not None and fit.objective == "huber" and delta != fit.delta:
        raise BadValue(f"published with delta {delta:g}, fitted with {fit.delta:g}: refit")
    problem = problem_of(points, fit)
    objective = float(problem.value(problem.coordinates(published)[None])[0])
    base = max(fit.certificate.objective, problem.floor)
    excess = (objective - fit.certificate.objective) / base
    is_minimum = excess <= TOLERANCE
    return PublishedCheck(objective, excess, is_minimum, _text(published, fit, excess, objective))


def _text(published: Mapping[str, float], fit: JointFit, excess: float, objective: float) -> str:
    values = f"objective {objective:.11g}, minimum {fit.certificate.objective:.11g}"
    if excess < -TOLERANCE:
        return f"lower than our fit by {-excess:.2g} of the objective: our fit is not it ({values})"
    if excess <= TOLERANCE:
        return f"the minimum, to {abs(excess):.1g} of the objective ({values})"
    ratios = {name: abs(np.log(published[name] / fit.value(name))) for name in _positive(fit)}
    worst = max(ratios, key=lambda name: ratios[name])
    return (
        f"not the minimum: {excess:.2g} of the objective above it ({values}); furthest off is "
        f"{worst}, {published[worst]:.6g} against {fit.value(worst):.6g}"
    )


def _positive(fit: JointFit) -> list[str]:
    return [name for name in fit.parameters if fit.value(name) > 0]
