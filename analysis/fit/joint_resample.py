"""Bootstrap of the joint law: every replicate is the same problem with other counts.

Replicates start at the fit and are minimised in batches by the same Newton steps, so that 4,000 of
them cost about as much as twenty optimiser calls.
"""

from __future__ import annotations

import numpy as np

from analysis.fit.joint_newton import minimise
from analysis.fit.joint_points import JointPoints
from analysis.fit.joint_problem import Problem
from analysis.laws import Floats

BATCH_ELEMENTS = 24_000
"""Points times replicates handled at once: a few megabytes, which a core's cache holds."""
CONVERGED = 1e-6
_WARM = 1e-2


def bootstrap(
    problem: Problem, points: JointPoints, x: Floats, *, replicates: int, seed: int
) -> Floats:
    """Parameters ``[replicates, parameters]`` of resampled data; NaN where no fit exists."""
    counts = resample(points, replicates, seed)
    size = max(1, BATCH_ELEMENTS // len(points))
    draws = []
    for i in range(0, replicates, size):
        some = counts[i : i + size]
        ends = minimise(problem, np.repeat(x[None], len(some), 0), counts=some, damping=_WARM)
        parameters = problem.parameters(ends.x)
        parameters[(ends.gradient > CONVERGED) | ~_enough(problem, some)] = np.nan
        draws.append(parameters)
    return np.concatenate(draws)


def resample(points: JointPoints, replicates: int, seed: int) -> Floats:
    """How often each replicate holds each point: ``[replicates, n]``.

    Points are drawn within arms, so that none vanishes; clusters are drawn whole, and overall where
    one spans arms. numpy's legacy generator reproduces published bootstraps draw for draw.
    """
    random = np.random.RandomState(seed)
    units = np.arange(len(points)) if points.clusters is None else _codes(points.clusters)
    groups = [np.unique(units[at]) for at in points.arm_indices()]
    if sum(map(len, groups)) > units.max() + 1:
        groups = [np.arange(units.max() + 1)]
    counts = np.zeros((replicates, int(units.max()) + 1))
    rows = np.arange(replicates)[:, None]
    for group in groups:
        drawn = random.randint(0, len(group), size=(replicates, len(group)))
        np.add.at(counts, (rows, group[drawn]), 1.0)
    return counts[:, units]


def _codes(labels: object) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.unique(np.asarray(labels), return_inverse=True)[1].ravel()


def _enough(problem: Problem, counts: Floats) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Replicates with more distinct points than unknowns, and two in every arm."""
    enough = (counts > 0).sum(axis=1) > problem.to_logs.shape[1] - 1
    for at in problem.indices:
        enough &= (counts[:, at] > 0).sum(axis=1) >= 2
    return np.asarray(enough)
