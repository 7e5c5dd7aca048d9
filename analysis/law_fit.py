"""What every fitted law carries: estimates, their covariance, a certificate, and every doubt.

Data types and their reading form; does no fitting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from analysis.estimates import Exclusion, Interval
from analysis.laws import Floats

COMPETITOR_MARGIN = 0.10
"""A second minimum whose objective is within this share of the best is reported."""
GRADIENT_TOLERANCE = 1e-6
"""Largest projected gradient, relative to the objective, of a fit that counts as converged."""


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """Another minimum of the same objective."""

    parameters: Mapping[str, float]
    objective: float


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """Evidence that a fit is the minimum it claims to be, whatever an optimiser said of itself."""

    objective: float
    """Value of the objective at the estimate."""
    gradient: float
    """Norm of the projected (sub)gradient in centred, scaled coordinates over the objective."""
    best_profile: float | None = None
    """Lowest objective on the grid that was searched; None for a closed form."""
    n_starts: int = 1
    n_agreeing: int = 1
    """Starts that ended at the estimate (objective within 1e-6 relative)."""
    at_bound: tuple[str, ...] = ()
    """Parameters whose best value lies at the edge of what was allowed."""
    unmoved: tuple[str, ...] = ()
    """Parameters that stayed at their start although the objective depends on them."""
    competitors: tuple[Competitor, ...] = ()
    """Distinct minima within :data:`COMPETITOR_MARGIN` of the best."""

    @property
    def problems(self) -> tuple[str, ...]:
        """What speaks against the fit; empty when it is certified."""
        found = []
        if not math.isfinite(self.objective):
            found.append("objective_not_finite")
        if not self.gradient <= GRADIENT_TOLERANCE:
            found.append("gradient_not_zero")
        if self.best_profile is not None and self.best_profile < self.objective * (1 - 1e-9):
            found.append("better_profile_node")
        if self.unmoved:
            found.append("fit_equals_start")
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class LawFit:
    """A fitted law with its doubts.

    Coefficients are kept at full precision with their covariance: rounded ones are no fit (three
    digits of a published law allow 1.20 to 1.31 for a claim of 1.25).
    """

    law: str
    """The formula, in the symbols of ``parameters``."""
    method: str
    """Objective, algorithm, and how the intervals were made."""
    parameters: Mapping[str, Interval]
    """Estimate and interval by symbol, in the formula's own units."""
    covariance: tuple[tuple[float, ...], ...] | None = None
    """Rows and columns in the order of ``parameters``; None where none is defined."""
    certificate: Certificate
    domain: Mapping[str, tuple[float, float]]
    """Smallest and largest fitted value of each variable; beyond it is extrapolation."""
    n_points: int
    n_levels: int
    """Distinct levels of the variable that has the fewest."""
    rms_nats: float
    """Root mean square residual in loss, nats per token; NaN where the law is of something else."""
    flop_convention: str | None = None
    """How C was counted; None where no C enters."""
    notes: tuple[str, ...] = ()
    """Doubts, each beginning with a name in snake_case: ``e_not_identified: ...``."""
    exclusions: tuple[Exclusion, ...] = ()
    data_sha256: str
    extras: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of this law, named with their unit."""

    def value(self, name: str) -> float:
        """Estimate of one parameter."""
        estimate = self.parameters[name].estimate
        return math.nan if estimate is None else estimate

    def inside(self, **variables: float) -> bool:
        """Tell whether a point lies within the fitted domain in every variable given."""
        return all(
            low * (1 - 1e-9) <= variables[name] <= high * (1 + 1e-9)
            for name, (low, high) in self.domain.items()
            if name in variables
        )

    def __str__(self) -> str:
        return describe(self)


def describe(fit: LawFit) -> str:
    """A fit as a readable report of several lines, each number with its interval."""
    lines = [fit.law, f"  method      {fit.method}"]
    lines += [f"  {name:<11} {_interval(at)}" for name, at in fit.parameters.items()]
    spans = [f"{name} {low:.4g} to {high:.4g}" for name, (low, high) in fit.domain.items()]
    lines.append(f"  fitted on   {fit.n_points} points, {fit.n_levels} levels; {', '.join(spans)}")
    if math.isfinite(fit.rms_nats):
        lines.append(f"  residual    {fit.rms_nats:.3g} nats rms")
    lines += [f"  {name:<11} {value:.6g}" for name, value in fit.extras.items()]
    lines.append(f"  certificate {_certificate(fit.certificate)}")
    lines += [f"  doubt       {note}" for note in fit.notes]
    if fit.flop_convention:
        lines.append(f"  compute     {fit.flop_convention}")
    lines += [f"  excluded    {text}" for text in _exclusions(fit.exclusions)]
    lines.append(f"  data        sha256 {fit.data_sha256[:16]}")
    return "\n".join(lines)


def _interval(at: Interval) -> str:
    if at.estimate is None:
        return f"undefined ({at.reason})"
    if at.low is None or at.high is None:
        why = f" ({at.reason})" if at.reason else ""
        return f"{at.estimate:.6g} [no interval]{why}"
    return f"{at.estimate:.6g} [{at.low:.6g}, {at.high:.6g}] {100 * at.level:g}%"


def _certificate(certificate: Certificate) -> str:
    problems = certificate.problems
    parts = [
        ("NOT CERTIFIED: " + ", ".join(problems)) if problems else "minimum",
        f"objective {certificate.objective:.11g}",
        f"gradient {certificate.gradient:.1e}",
        f"{certificate.n_agreeing} of {certificate.n_starts} starts agree",
    ]
    if certificate.at_bound:
        parts.append(f"at bound: {', '.join(certificate.at_bound)}")
    for other in certificate.competitors:
        listed = ", ".join(f"{name} {value:.4g}" for name, value in other.parameters.items())
        parts.append(f"competing minimum {other.objective:.6g} at {listed}")
    return "; ".join(parts)


def _exclusions(exclusions: Sequence[Exclusion]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for item in exclusions:
        by_reason.setdefault(item.reason, []).append(item.run_id)
    return [
        f"{len(ids)} because {reason}: {', '.join(ids[:4])}{', …' if len(ids) > 4 else ''}"
        for reason, ids in by_reason.items()
    ]


def linear_gradient(design: Floats, residual: Floats, weights: Floats | None = None) -> float:
    """Largest cosine between the residuals and a column of a linear model: 0 at its minimum.

    Parameters
    ----------
    design
        ``[n, k]`` columns of the model.
    residual
        ``[n]`` measured minus fitted.
    weights
        ``[n]`` weights of the squares.
    """
    root = np.ones(len(residual)) if weights is None else np.sqrt(weights)
    columns, rest = design * root[:, None], residual * root
    scale = np.sqrt((columns**2).sum(axis=0)) * max(float(np.sqrt(rest @ rest)), 1e-12)
    return float(np.max(np.abs(columns.T @ rest) / scale))
