"""Student's t and its power in closed form: numpy and math alone, so that `plan` starts fast.

A test holds them against scipy.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from analysis.laws import Floats

_STEPS = 400
"""Intervals of Simpson's rule over the distribution of the standard error."""


def t_inside(t: float, dof: int) -> float:
    """Probability that ``|T| < t`` for whole degrees of freedom.

    Finite series in ``theta = atan(t / sqrt(dof))`` (Abramowitz and Stegun 26.7.3 and 26.7.4).
    """
    theta = math.atan(t / math.sqrt(dof))
    cos2 = math.cos(theta) ** 2
    odd = dof % 2
    term = math.cos(theta) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, dof, 2):
        total += term
        term *= cos2 * k / (k + 1)
    total *= math.sin(theta)
    return (theta + total) * 2 / math.pi if odd else total


@functools.cache
def t_critical(p: float, dof: int) -> float:
    """The ``t`` with ``P(|T| > t) = p``: 2.776 for 0.05 and 4 degrees of freedom."""
    low, high = 0.0, 1.0
    while 1 - t_inside(high, dof) > p:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - t_inside(middle, dof) > p else (low, middle)
    return high


def t_power(shift: float, critical: float, dof: int) -> float:
    """Probability that a noncentral ``T`` of this shift has ``|T| > critical``.

    ``T = (Z + shift) / U`` with ``dof U^2`` chi-square: normal tails, averaged over U.
    """
    u, weights = _error_grid(dof)
    upper = np.array([_normal(shift - critical * at) for at in u])
    lower = np.array([_normal(-shift - critical * at) for at in u])
    return float(weights @ (upper + lower))


def t_shift(power: float, critical: float, dof: int) -> float:
    """The shift at which :func:`t_power` is ``power``."""
    low, high = 0.0, 2 * critical + 10
    for _ in range(30):
        middle = (low + high) / 2
        enough = t_power(middle, critical, dof) >= power
        low, high = (low, middle) if enough else (middle, high)
    return high


def median_share(dof: int) -> float:
    """Median of chi-square over its degrees of freedom (Wilson and Hilferty 1931)."""
    return (1 - 2 / (9 * dof)) ** 3


def _error_grid(dof: int) -> tuple[Floats, Floats]:
    """Values of ``U`` and their probabilities."""
    u = np.linspace(1e-9, 1 + 8 / math.sqrt(2 * dof), _STEPS + 1)
    log_density = (dof - 1) * np.log(u) - dof * u * u / 2
    simpson = np.ones(_STEPS + 1)
    simpson[1:-1:2], simpson[2:-1:2] = 4.0, 2.0
    weights = simpson * np.exp(log_density - log_density.max())
    return u, np.asarray(weights / weights.sum(), dtype=np.float64)


def _normal(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2))
