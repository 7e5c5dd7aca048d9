"""Search for the global minimum of a joint law, with the evidence that it was found."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analysis.estimates import NotConverged
from analysis.fit.joint_newton import Minima, minimise
from analysis.fit.joint_problem import Problem
from analysis.fit.joint_profile import (
    EXPONENTS,
    FEW_POINTS,
    LS_NODES,
    Surface,
    huber_nodes,
    huber_surface,
    ls_surface,
)
from analysis.law_fit import COMPETITOR_MARGIN, Certificate, Competitor
from analysis.laws import Floats

AGREES = 1e-6
"""Relative difference of objectives below which two searches ended at the same minimum."""
_SPREAD = (0.2, 0.7)
_HUBER_PROFILE = 1 / 3
_NEAR_L1 = 15.0
_CONTINUATION = (30.0, 10.0, 3.0)
_LOOSE = 1e-4


@dataclass(frozen=True, eq=False)
class Found:
    """The lowest minimum and how it was come by."""

    x: Floats
    """``[p]``."""
    value: float
    certificate: Certificate


def search(problem: Problem, extra: Floats | None = None) -> Found:
    """Minimise from the local minima of the profiles and from a spread of exponents.

    Parameters
    ----------
    problem
        What is minimised.
    extra
        ``[k, p]`` further starts.

    Raises
    ------
    NotConverged
        No search ended where the gradient vanishes, or a node of the profile lies lower.
    """
    starts, best_node = _starts(problem)
    if extra is not None:
        starts = np.concatenate([starts, extra])
    ends = minimise(problem, starts)
    best = int(np.argmin(ends.value))
    certificate = Certificate(
        objective=float(ends.value[best]),
        gradient=float(ends.gradient[best]),
        best_profile=None if best_node < problem.floor else best_node,
        n_starts=len(starts),
        n_agreeing=_n_agreeing(problem, ends, best),
        at_bound=at_bound(problem, ends.x[best]),
        unmoved=_unmoved(problem, starts[best], ends, best),
        competitors=_competitors(problem, ends, best),
    )
    if certificate.problems:
        raise NotConverged(
            f"the search for the law ended without a minimum ({', '.join(certificate.problems)}; "
            f"gradient {certificate.gradient:.1e} of the objective): look at the data for "
            "duplicates and extreme values, or choose a larger delta"
        )
    return Found(ends.x[best], float(ends.value[best]), certificate)


def at_bound(problem: Problem, x: Floats) -> tuple[str, ...]:
    """Names of the parameters at the edge of what is allowed."""
    lower, upper = problem.bounds()
    edge = np.flatnonzero((x <= lower) | (x >= upper))
    return tuple(problem.names[int(k)] for k in edge)


def _starts(problem: Problem) -> tuple[Floats, float]:
    """Starts ``[k, p]``, and the lowest objective at any node that was looked at."""
    squares = ls_surface(problem, np.linspace(*EXPONENTS, LS_NODES))
    starts = [squares.starts(), _spread(squares)]
    node = float(problem.value(starts[0]).min())
    roughness = _roughness(problem, float(squares.value.min()))
    if roughness > _HUBER_PROFILE:
        surface = huber_surface(problem, np.linspace(*EXPONENTS, huber_nodes(problem.n_points)))
        starts.append(surface.starts())
        node = min(node, float(surface.value.min()))
    if roughness > _NEAR_L1:
        starts.append(_continued(problem, squares.starts(most=2)))
    return np.concatenate(starts), node


def _roughness(problem: Problem, rss: float) -> float:
    """Residual sd over delta: how far least squares may be from the minimum.

    Infinite for few points, 0 for least squares itself.
    """
    if not problem.objective.logarithmic:
        return 0.0
    if problem.n_points < FEW_POINTS:
        return np.inf
    total = float(sum(block.weight.sum() for block in problem.blocks))
    return float(np.sqrt(rss / total)) / problem.objective.delta


def _spread(surface: Surface) -> Floats:
    """Nodes far apart: they show whether the minimum is reached from everywhere."""
    exponents = np.linspace(*EXPONENTS, LS_NODES)
    near = [int(np.argmin(np.abs(exponents - at))) for at in _SPREAD]
    index = np.arange(len(surface.x)).reshape(surface.shape)
    return surface.x[(index[np.ix_(near, near)] if index.ndim == 2 else index[near]).ravel()]


def _continued(problem: Problem, starts: Floats) -> Floats:
    """Follow the minima of rounder objectives down to the one at hand."""
    x = starts
    for factor in _CONTINUATION:
        rounder = replace(problem.objective, delta=factor * problem.objective.delta)
        x = minimise(replace(problem, objective=rounder), x, tolerance=_LOOSE).x
    return x


def _n_agreeing(problem: Problem, ends: Minima, best: int) -> int:
    margin = AGREES * max(float(ends.value[best]), problem.floor)
    return int(np.sum(ends.value - ends.value[best] <= margin))


def _unmoved(problem: Problem, start: Floats, ends: Minima, best: int) -> tuple[str, ...]:
    """Parameters still at their start although the gradient there is not zero."""
    if ends.gradient[best] <= AGREES:
        return ()
    return tuple(problem.names[int(k)] for k in np.flatnonzero(start == ends.x[best]))


def _competitors(problem: Problem, ends: Minima, best: int) -> tuple[Competitor, ...]:
    """Other minima within the margin, lowest first, each once."""
    found: list[int] = []
    limit = ends.value[best] * (1 + COMPETITOR_MARGIN)
    for k in np.argsort(ends.value):
        if ends.value[k] > limit or ends.gradient[k] > AGREES:
            continue
        if not any(_same(problem, ends, int(k), j) for j in [best, *found]):
            found.append(int(k))
    return tuple(_competitor(problem, ends.x[k], float(ends.value[k])) for k in found[:3])


def _competitor(problem: Problem, x: Floats, value: float) -> Competitor:
    parameters = problem.parameters(x).tolist()
    return Competitor(parameters=dict(zip(problem.names, parameters, strict=True)), objective=value)


def _same(problem: Problem, ends: Minima, i: int, j: int) -> bool:
    gap = abs(float(ends.value[i] - ends.value[j]))
    return gap <= AGREES * max(float(ends.value[j]), problem.floor)
