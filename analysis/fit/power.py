"""Power law of one variable, ``L = E + A x^-alpha``, with E zero, pinned, free or profiled.

Free E is found by variable projection (:mod:`analysis.fit.power_solve`): the exponent is scanned
and bisected, E >= 0 and A follow in closed form, so that there is no start to return. Pinned E
leaves a straight line in ``ln(L - E)``. E, A and alpha trade off on any affordable range, so the
profile of E is part of every result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.cells import n_levels
from analysis.estimates import BadValue, Exclusion, Interval, TooFewData, data_sha256
from analysis.fit.power_solution import (
    MIN_LEVELS_FREE,
    Solution,
    bounds_hit,
    certificate,
    e_profile,
    least_squares,
    log_line,
    profile_interval,
    profile_intervals,
    rms_nats,
    uncertainty,
)
from analysis.fit.power_solve import PowerData, power_data
from analysis.fit.profile import ProfilePoint, identification_note
from analysis.law_fit import LawFit
from analysis.laws import Floats

Variable = Literal["C", "N", "D"]
Objective = Literal["mse", "log", "log_excess"]
"""Squared residuals of L, of ln L, or of ln(L - E) (pinned E only: a straight line)."""

Mode = Literal["pinned", "free", "profile"]

MIN_LEVELS = 3
_RESIDUALS: dict[Objective, str] = {"mse": "L", "log": "ln L", "log_excess": "ln(L - E)"}


@dataclass(frozen=True, kw_only=True)
class PowerFit(LawFit):
    """A fitted power law of one variable."""

    variable: Variable
    asymptote_mode: Mode
    objective: Objective
    e_profile: tuple[ProfilePoint, ...]
    """Best exponent and rms residual at each pinned E, by least squares on the loss."""
    e_interval: Interval | None
    """Profile interval of E by least squares on the loss; None below four levels or without a
    degree of freedom."""

    def predict(self, x: Floats | float) -> Floats:
        """Loss at ``x``, nats."""
        log_x = np.log(np.asarray(x, np.float64))
        excess = np.exp(math.log(self.value("A")) - self.value("alpha") * log_x)
        return np.asarray(self.value("E") + excess, np.float64)


def fit_power(
    x: Sequence[float] | Floats,
    loss_nats: Sequence[float] | Floats,
    *,
    variable: Variable = "C",
    asymptote: float | Literal["free", "profile"] = 0.0,
    weights: Sequence[float] | Floats | None = None,
    objective: Objective | None = None,
    level: float = 0.95,
    exclusions: Sequence[Exclusion] = (),
    flop_convention: str | None = None,
) -> PowerFit:
    """Fit ``L = E + A x^-alpha`` to one point per level (seeds averaged).

    Parameters
    ----------
    x, loss_nats
        ``[n]`` compute, parameters or tokens (as ``variable`` says), and loss in nats.
    asymptote
        E in nats when pinned. ``"free"`` gives t intervals from the curvature at the minimum,
        ``"profile"`` the same estimate with F-based profile intervals of every parameter.
    weights
        ``[n]`` multiply the squared residuals of the objective, so give 1 / sd^2
        (:func:`analysis.fit.noise.weights_from_sd`) with the sd of L for ``"mse"`` and of ln L
        for ``"log"``. Only their ratios matter.
    objective
        Squared residuals of L (``"mse"``, the default when E is sought), of ln L (``"log"``:
        relative errors, as Porian et al. 2024, arXiv 2406.19146) or of ln(L - E)
        (``"log_excess"``, the default when E is pinned and possible only then).
    level
        Confidence level.

    Raises
    ------
    TooFewData
        Fewer than three distinct levels of x, or four when E is sought.
    BadValue
        A value that is not positive and finite, a pinned E at or above a loss, lengths that differ.
    NoMinimum
        Loss does not fall with x, so that no A > 0 fits.
    """
    data = _checked(x, loss_nats, weights, asymptote)
    mode: Mode = asymptote if isinstance(asymptote, str) else "pinned"
    pinned = None if isinstance(asymptote, str) else float(asymptote)
    chosen: Objective = objective or ("mse" if pinned is None else "log_excess")
    working, solution = _solve(data, pinned, chosen)
    e_interval = profile_interval(working, solution, level)
    intervals, covariance = uncertainty(data, solution, level)
    if pinned is None and e_interval is not None:
        intervals["E"] = e_interval
    if mode == "profile" and e_interval is not None:
        intervals |= profile_intervals(working, solution, level)
    return PowerFit(
        law=f"L = E + A {variable}^-alpha",
        method=_method(mode, chosen, weights is not None, level),
        parameters=intervals,
        covariance=covariance,
        certificate=certificate(solution, bounds_hit(solution)),
        domain={variable: (float(np.min(x)), float(np.max(x)))},
        n_points=data.n,
        n_levels=n_levels(data.z),
        rms_nats=rms_nats(data, solution),
        flop_convention=flop_convention,
        notes=_notes(data, solution, e_interval),
        exclusions=tuple(exclusions),
        data_sha256=_hash(x, data),
        variable=variable,
        asymptote_mode=mode,
        objective=chosen,
        e_profile=e_profile(working, data.loss),
        e_interval=e_interval,
    )


def _solve(
    data: PowerData, pinned: float | None, objective: Objective
) -> tuple[PowerData, Solution]:
    if objective != "log_excess":
        return least_squares(data, pinned, relative=objective == "log")
    if pinned is None:
        raise BadValue(
            "residuals of ln(L - E) have no minimum over E: pin E, or use the objective mse or log"
        )
    return data, log_line(data, pinned)


def _hash(x: Sequence[float] | Floats, data: PowerData) -> str:
    columns = (np.asarray(x, np.float64).tolist(), data.loss.tolist(), data.weights.tolist())
    return data_sha256(zip(*columns, strict=True))


def _checked(
    x: Sequence[float] | Floats,
    loss_nats: Sequence[float] | Floats,
    weights: Sequence[float] | Floats | None,
    asymptote: float | str,
) -> PowerData:
    at, loss = np.asarray(x, np.float64), np.asarray(loss_nats, np.float64)
    w = np.ones_like(loss) if weights is None else np.asarray(weights, np.float64)
    if not at.shape == loss.shape == w.shape or at.ndim != 1:
        raise BadValue(
            f"x, losses and weights differ in length: {at.shape}, {loss.shape}, {w.shape}"
        )
    for name, values in (("x", at), ("loss", loss), ("weight", w)):
        if not (np.isfinite(values) & (values > 0)).all():
            bad = values[~(np.isfinite(values) & (values > 0))][0]
            raise BadValue(f"every {name} must be positive and finite, got {bad:.6g}")
    sought = isinstance(asymptote, str)
    needed, levels = MIN_LEVELS_FREE if sought else MIN_LEVELS, n_levels(np.log(at))
    if levels < needed:
        why = " when E is sought" if sought else ""
        raise TooFewData(
            f"a power law needs at least {needed} distinct levels{why}, got {levels}"
            + ("; pin E, or add sizes" if sought and levels >= MIN_LEVELS else "; add sizes")
        )
    if not isinstance(asymptote, str) and not 0 <= asymptote < loss.min():
        raise BadValue(
            f"the pinned E must lie in [0, every loss), got E = {asymptote:.6g} "
            f"and a loss of {loss.min():.6g}"
        )
    return power_data(at, loss, w)


def _notes(data: PowerData, solution: Solution, e_interval: Interval | None) -> tuple[str, ...]:
    notes = []
    if e_interval is not None and solution.free:
        notes += identification_note(e_interval, float(data.loss.min()))
    if solution.alpha <= 0:
        notes.append("loss_does_not_fall: the fitted exponent is not positive")
    for name in bounds_hit(solution):
        notes.append(f"at_bound: the best {name} lies at the edge of what was allowed")
    if solution.competitors:
        notes.append("competing_minimum: another law fits almost as well, see the certificate")
    if data.n - solution.jacobian.shape[1] < 1:
        notes.append("no_degrees_of_freedom: the law passes through its points by construction")
    return tuple(notes)


def _method(mode: str, objective: Objective, weighted: bool, level: float) -> str:
    how = "E pinned" if mode == "pinned" else "E >= 0 sought"
    text = f"least squares on {_RESIDUALS[objective]}, {how}, "
    if objective == "log_excess":
        text += "closed form"
    else:
        text += "exponent scanned and bisected, the rest in closed form"
    if weighted:
        text += "; squared residuals weighted by 1/sd^2"
    intervals = "profile (F)" if mode == "profile" else "t (A on ln A)"
    if mode == "free":
        intervals += ", that of E by profile (F)"
    return f"{text}; {100 * level:g}% intervals: {intervals}; points independent"


__all__ = [
    "MIN_LEVELS",
    "MIN_LEVELS_FREE",
    "Objective",
    "PowerFit",
    "ProfilePoint",
    "Variable",
    "fit_power",
]
