"""Quantiles and tails of t, F and chi-square without ``scipy.stats``, slow to import."""

from __future__ import annotations

import math

from scipy.special import chdtrc, chdtri, fdtrc, fdtri, stdtr, stdtrit


def t_quantile(level: float, dof: int) -> float:
    """Half-width in standard errors of a two-sided t interval: 2.776 for 95% and 4."""
    return float(stdtrit(dof, 0.5 + level / 2))


def t_tail(statistic: float, dof: int) -> float:
    """Probability of a larger absolute t."""
    return float(2 * stdtr(dof, -abs(statistic)))


def f_quantile(level: float, dof: int, dof_error: int) -> float:
    """The F value that is exceeded with probability 1 - level."""
    return float(fdtri(dof, dof_error, level))


def f_tail(statistic: float, dof: int, dof_error: int) -> float:
    """Probability of a larger F."""
    return float(fdtrc(dof, dof_error, statistic))


def chi2_quantile(probability: float, dof: int) -> float:
    """The chi-square value below which a share ``probability`` lies."""
    return float(chdtri(dof, 1 - probability))


def chi2_tail(statistic: float, dof: int) -> float:
    """Probability of a larger chi-square."""
    return float(chdtrc(dof, statistic))


def aicc(rss: float, n: int, n_unknowns: int) -> float:
    """Corrected Akaike criterion of least squares: ``n ln(RSS/n) + 2K + 2K(K+1)/(n-K-1)``.

    K counts the unknowns and the residual variance (Hurvich and Tsai 1989). Infinite where n is at
    most K + 1: such a law has too many unknowns for these data.
    """
    k = n_unknowns + 1
    if n <= k + 1:
        return math.inf
    fit = -math.inf if rss <= 0 else n * math.log(rss / n)
    return fit + 2 * k + 2 * k * (k + 1) / (n - k - 1)
