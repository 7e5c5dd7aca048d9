"""Bootstrap of a joint law that was already fitted."""

from __future__ import annotations

from analysis.fit.huber import Objective
from analysis.fit.joint import JointFit, JointPoints
from analysis.fit.joint_problem import Problem, make_problem
from analysis.fit.joint_resample import bootstrap
from analysis.laws import Floats


def bootstrap_joint(
    points: JointPoints, fit: JointFit, *, replicates: int = 4000, seed: int = 42
) -> Floats:
    """Refit resampled points by the objective of ``fit``.

    Parameters
    ----------
    points
        What ``fit`` was fitted on. Points with one cluster label are resampled together.
    fit
        The fit, where every replicate starts.
    replicates, seed
        How many, and the seed of numpy's legacy generator.

    Returns
    -------
    Floats
        ``[replicates, parameters]`` in the order of ``fit.parameters``: E, A, B, alpha, beta. NaN
        rows for replicates with too few distinct points.
    """
    problem = problem_of(points, fit)
    x = problem.coordinates({name: fit.value(name) for name in fit.parameters})
    return bootstrap(problem, points, x, replicates=replicates, seed=seed)


def problem_of(points: JointPoints, fit: JointFit) -> Problem:
    """The minimisation that ``fit`` solved, on these points."""
    objective = Objective(fit.objective, fit.delta if fit.objective == "huber" else 1e-3)
    return make_problem(points, objective, tied=fit.tied)
