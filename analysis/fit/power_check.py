"""Is a published ``L = E + A x^-alpha`` the minimum of its own objective, or an optimiser's start?

Our own certified optimum is the judge; what the other optimiser said of itself is not asked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimates import BadValue
from analysis.fit.power import Objective, PowerFit, fit_power
from analysis.laws import Floats

TOLERANCE = 1e-3
"""Relative excess of the objective that rounding and a lax stopping rule may explain."""
SAME = 1e-6
"""Relative difference within which two numbers are one, printed to eight digits."""
_SYMBOLS = ("E", "A", "alpha")


@dataclass(frozen=True, kw_only=True)
class PowerCheck:
    """A published law beside the minimum."""

    fit: PowerFit
    """The minimum of the same objective on the same points."""
    objective: float
    """At the published values."""
    excess_relative: float
    """Published objective over the minimum, less one."""
    is_minimum: bool
    problems: tuple[str, ...]
    """``fit_equals_start``, ``not_a_minimum``; empty when the published law stands."""
    text: str


def check_power(
    x: Sequence[float] | Floats,
    loss_nats: Sequence[float] | Floats,
    published: Mapping[str, float],
    *,
    weights: Sequence[float] | Floats | None = None,
    objective: Objective = "mse",
    starts: Sequence[Mapping[str, float]] = (),
) -> PowerCheck:
    """Judge a published law with free E by the minimum of its own objective.

    Parameters
    ----------
    x, loss_nats, weights
        ``[n]`` the points it was fitted on, and 1 / sd^2.
    published
        ``E``, ``A`` and ``alpha``.
    objective
        ``"mse"`` or ``"log"``, as it was fitted.
    starts
        Start values the other optimiser used. Without them, values that are all round (as they
        are, or as logarithms) and not the minimum are taken for a start.

    Raises
    ------
    BadValue
        A symbol is missing from ``published``.
    FitRefused
        The points carry no such law.
    """
    missing = [name for name in _SYMBOLS if name not in published]
    if missing:
        raise BadValue(f"a published law needs E, A and alpha, got no {', '.join(missing)}")
    fit = fit_power(x, loss_nats, asymptote="free", weights=weights, objective=objective)
    at = _objective(x, loss_nats, published, weights, objective)
    excess = at / fit.certificate.objective - 1
    minimum = excess <= TOLERANCE
    problems = []
    if not minimum and _is_start(published, starts):
        problems.append("fit_equals_start")
    if not minimum:
        problems.append("not_a_minimum")
    return PowerCheck(
        fit=fit,
        objective=at,
        excess_relative=excess,
        is_minimum=minimum,
        problems=tuple(problems),
        text=_text(published, fit, excess, problems),
    )


def _objective(
    x: Sequence[float] | Floats,
    loss_nats: Sequence[float] | Floats,
    law: Mapping[str, float],
    weights: Sequence[float] | Floats | None,
    objective: Objective,
) -> float:
    loss = np.asarray(loss_nats, np.float64)
    w = np.ones_like(loss) if weights is None else np.asarray(weights, np.float64)
    fitted = law["E"] + law["A"] * np.asarray(x, np.float64) ** -law["alpha"]
    residual = np.log(loss / fitted) if objective == "log" else loss - fitted
    return float(w @ residual**2)


def _is_start(published: Mapping[str, float], starts: Sequence[Mapping[str, float]]) -> bool:
    for start in starts:
        if all(math.isclose(published[n], start[n], rel_tol=SAME) for n in _SYMBOLS):
            return True
    return not starts and all(_round(published[name]) for name in _SYMBOLS)


def _round(value: float) -> bool:
    """A number that a person would choose: two digits, or e to such a number."""
    near = [value] if value <= 0 else [value, math.log(value)]
    return any(math.isclose(v, float(f"{v:.2g}"), rel_tol=SAME, abs_tol=SAME) for v in near)


def _text(
    published: Mapping[str, float], fit: PowerFit, excess: float, problems: Sequence[str]
) -> str:
    said = ", ".join(f"{name} {published[name]:.6g}" for name in _SYMBOLS)
    ours = ", ".join(f"{name} {fit.value(name):.6g}" for name in _SYMBOLS)
    if not problems:
        return f"{said}: the minimum, objective within {max(excess, 0.0):.1e} of ours ({ours})"
    why = "the optimiser returned its start" if "fit_equals_start" in problems else "not a minimum"
    return (
        f"{', '.join(problems)}: {said} is no fit ({why}): its objective is {1 + excess:.3g} times "
        f"that of {ours}"
    )
