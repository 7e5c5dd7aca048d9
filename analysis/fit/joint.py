"""The law of two variables, ``L(N, D) = E + A N^-alpha + B D^-beta`` (arXiv 2203.15556).

Several arms may share E, alpha and beta, each with its own A and B (arXiv 2602.07712).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.estimates import BadValue, Exclusion, Interval, NotConverged, data_sha256
from analysis.fit.huber import Objective, ObjectiveName
from analysis.fit.joint_doubts import check_settings, doubts
from analysis.fit.joint_eprofile import EProfile, EProfilePoint, profile_e
from analysis.fit.joint_intervals import (
    SANDWICH,
    from_draws,
    n_independent,
    residuals_at,
    sandwich,
)
from analysis.fit.joint_points import JointPoints, check_points, fewest_levels
from analysis.fit.joint_problem import Problem, make_problem
from analysis.fit.joint_resample import bootstrap
from analysis.fit.joint_search import AGREES, Found, search
from analysis.law_fit import LawFit
from analysis.laws import Floats, joint_loss, optimal_allocation

__all__ = ["EProfilePoint", "JointFit", "JointPoints", "fit_joint"]


@dataclass(frozen=True, kw_only=True)
class JointFit(LawFit):
    """A fitted law of two variables.

    ``parameters`` are E, A, B, alpha, beta; with arms ``A[arm]`` and ``B[arm]`` of each.
    """

    objective: ObjectiveName
    delta: float
    """Of the Huber loss, natural log; NaN for ``mse``."""
    tied: bool
    """alpha and beta were fitted as one."""
    arms: tuple[str, ...] = ()
    level: float = 0.95
    dof: int
    """Independent points, or clusters, less the unknowns."""
    e_interval: Interval
    """Profile interval of E: the values at which the best law is not significantly worse."""
    e_profile: tuple[EProfilePoint, ...]
    draws: Floats | None = field(default=None, repr=False, compare=False)
    """``[replicates, parameters]`` of the bootstrap, in the order of ``parameters``."""

    def coefficient(self, symbol: str, arm: str | None = None) -> float:
        """A or B of an arm.

        Raises
        ------
        BadValue
            The fit has arms and none, or an unknown one, was named.
        """
        if not self.arms and arm is None:
            return self.value(symbol)
        if arm not in self.arms:
            raise BadValue(f"name one arm of {', '.join(self.arms) or 'none'}, got {arm}")
        return self.value(f"{symbol}[{arm}]")

    def predict(self, n_params: Floats, tokens: Floats, arm: str | None = None) -> Floats:
        """Loss in nats at N parameters and D tokens."""
        return joint_loss(
            n_params,
            tokens,
            asymptote=self.value("E"),
            a=_log(self.coefficient("A", arm)),
            b=_log(self.coefficient("B", arm)),
            alpha=self.value("alpha"),
            beta=self.value("beta"),
        )

    def optimum(
        self, flops: Floats, arm: str | None = None, flops_per_nd: float = 6
    ) -> tuple[Floats, Floats]:
        """Parameters N* and tokens D* of least loss under ``C = flops_per_nd N D``."""
        return optimal_allocation(
            flops,
            a=_log(self.coefficient("A", arm)),
            b=_log(self.coefficient("B", arm)),
            alpha=self.value("alpha"),
            beta=self.value("beta"),
            flops_per_nd=flops_per_nd,
        )


def fit_joint(
    points: JointPoints,
    *,
    objective: ObjectiveName = "huber",
    delta: float = 1e-3,
    tie_exponents: bool = False,
    level: float = 0.95,
    replicates: int = 0,
    seed: int = 42,
    exclusions: Sequence[Exclusion] = (),
) -> JointFit:
    """Fit ``L(N, D) = E + A N^-alpha + B D^-beta`` to its certified global minimum.

    Parameters
    ----------
    points
        Losses with N, D, and where given weights, arms and clusters.
    objective, delta
        ``huber``: SUM of Huber losses of ln residuals, linear beyond delta (natural log), as
        Hoffmann et al. 2022 (arXiv 2203.15556, equation 3); ``mse``: sum of squares of L.
    tie_exponents
        Fit one exponent for both terms, for data that cannot tell two apart.
    level
        Confidence level of every interval.
    replicates, seed
        Bootstrap replicates for percentile intervals; 0 gives sandwich intervals. Points are
        resampled, or clusters where the points name them.
    exclusions
        Runs left out, carried into the result.

    Raises
    ------
    TooFewData
        Too few points or levels, N and D that move together, or most replicates so.
    BadValue
        delta, level or replicates out of range.
    NotConverged
        No minimum could be certified.
    """
    check_settings(delta=delta, level=level, replicates=replicates)
    n_unknowns = 2 * max(1, len(points.arm_names)) + (2 if tie_exponents else 3)
    notes = check_points(points, n_unknowns=n_unknowns, tied=tie_exponents)
    problem = make_problem(points, Objective(objective, delta), tied=tie_exponents)
    found, e_profile = _search(problem, points, level)
    draws, failed = None, 0
    if replicates:
        draws = bootstrap(problem, points, found.x, replicates=replicates, seed=seed)
        failed = int((~np.isfinite(draws).all(axis=1)).sum())
    estimates = problem.parameters(found.x)
    spread = (
        sandwich(problem, found.x, points, level=level)
        if draws is None
        else from_draws(problem.names, estimates, draws, level)
    )
    return JointFit(
        law=_law(points.arm_names, tie_exponents),
        method=_method(problem, points, replicates, seed),
        parameters=dict(zip(problem.names, spread.intervals, strict=True)),
        covariance=spread.rows,
        certificate=found.certificate,
        domain={
            "N": (float(points.n_params.min()), float(points.n_params.max())),
            "D": (float(points.tokens.min()), float(points.tokens.max())),
        },
        n_points=len(points),
        n_levels=fewest_levels(points),
        rms_nats=float(np.sqrt(np.mean(residuals_at(problem, found.x)[1] ** 2))),
        notes=notes + doubts(found.certificate, e_profile.interval, failed, replicates),
        exclusions=tuple(exclusions),
        data_sha256=_hash(points),
        objective=objective,
        delta=delta if objective == "huber" else math.nan,
        tied=tie_exponents,
        arms=points.arm_names,
        level=level,
        dof=n_independent(points) - len(found.x),
        e_interval=e_profile.interval,
        e_profile=e_profile.points,
        draws=draws,
    )


def _search(problem: Problem, points: JointPoints, level: float) -> tuple[Found, EProfile]:
    """Search, and once more from the profile of E should that have found a lower point.

    The profile is the one witness that does not start where the search did.
    """
    found = search(problem)
    dof = max(1, n_independent(points) - len(found.x))
    profile = profile_e(problem, found.x, found.value, dof=dof, level=level)
    if _lower(profile, found, problem):
        found = search(problem, profile.lowest[None])
        profile = profile_e(problem, found.x, found.value, dof=dof, level=level)
    if _lower(profile, found, problem):
        raise NotConverged(
            f"better_profile_node: a pinned E reaches an objective of {profile.lowest_value:.8g}, "
            f"the search only {found.value:.8g}: look at the data for duplicates and extreme values"
        )
    return found, profile


def _lower(profile: EProfile, found: Found, problem: Problem) -> bool:
    return profile.lowest_value < found.value - AGREES * max(found.value, problem.floor)


def _law(arms: tuple[str, ...], tied: bool) -> str:
    a, b = ("A[arm]", "B[arm]") if arms else ("A", "B")
    return f"L(N, D) = E + {a} N^-alpha + {b} D^-{'alpha' if tied else 'beta'}"


def _method(problem: Problem, points: JointPoints, replicates: int, seed: int) -> str:
    parts = [f"{problem.objective}, variable projection and Newton"]
    if points.weights is not None:
        parts.append("weighted")
    unit = "points" if points.clusters is None else f"{n_independent(points)} clusters"
    if replicates:
        parts.append(f"percentile intervals of {replicates} bootstraps of {unit}, seed {seed}")
    else:
        parts.append(f"{SANDWICH}, {unit} independent")
    return "; ".join(parts)


def _hash(points: JointPoints) -> str:
    columns = [points.n_params.tolist(), points.tokens.tolist(), points.loss_nats.tolist()]
    extras = (points.weights, points.arms, points.clusters)
    columns += [np.asarray(extra).tolist() for extra in extras if extra is not None]
    return data_sha256(zip(*columns, strict=True))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
