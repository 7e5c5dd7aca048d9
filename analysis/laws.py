"""Scaling laws as pure formulas.

Symbols, used nowhere else in the code base:

====== ==========================================================================
L      loss, nats per token
E      irreducible loss (asymptote), nats per token
C      compute in the currency at hand: training FLOPs, seconds or tokens
N, D   parameters, training tokens
a      log coefficient of an arm
alpha  exponent of C, or of N beside D, > 0 when loss falls; shared by arms unless said
A, B   coefficients of N^-alpha and D^-beta
beta   exponent of D
rho    iso-loss compute multiplier C_baseline(L) / C_arm(L); > 1: the arm is cheaper
====== ==========================================================================

No I/O, no fitting.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import FitRefused

Floats = NDArray[np.float64]


def loss_at(compute: Floats | float, a: float, alpha: float, asymptote: float = 0.0) -> Floats:
    """Loss of the power law ``L(C) = E + exp(a) C^-alpha``, in nats."""
    return asymptote + np.exp(a - alpha * np.log(np.asarray(compute, dtype=np.float64)))


def compute_at(loss: Floats | float, a: float, alpha: float, asymptote: float = 0.0) -> Floats:
    """Compute at which the power law reaches a loss: ``C = (exp(a) / (L - E))^(1/alpha)``.

    NaN where the loss is at or below the asymptote.
    """
    excess = np.asarray(loss, dtype=np.float64) - asymptote
    with np.errstate(invalid="ignore", divide="ignore"):
        compute = np.exp((a - np.log(excess)) / alpha)
    return np.where(excess > 0, compute, np.nan)


def log_excess(loss: Floats | float, asymptote: float = 0.0) -> Floats:
    """``ln(L - E)``: what is linear in ``ln C``.

    Raises
    ------
    FitRefused
        A loss is at or below the asymptote.
    """
    excess = np.asarray(loss, dtype=np.float64) - asymptote
    if not (excess > 0).all():
        raise FitRefused(
            f"the pinned E must lie below every loss, got E = {asymptote:.6g} "
            f"and a loss of {excess.min() + asymptote:.6g}"
        )
    return np.log(excess)


def log_multiplier(mean_log_ratio: float, alpha: float, mean_log_compute_ratio: float) -> float:
    """``ln rho`` of an arm whose exponent equals the baseline's.

    ``ln rho = m / alpha + mean ln(C_b / C_v)`` with ``m = mean [ln(L_b - E) - ln(L_v - E)]``. The
    second term carries a pair that spent unequal compute to a common loss; at equal compute this
    is ``rho = ((L_b - E) / (L_v - E))^(1/alpha)``.
    """
    return mean_log_ratio / alpha + mean_log_compute_ratio


def crossings(loss: float, log_compute: Floats, log_loss: Floats) -> list[float]:
    """Every ``ln C`` at which a measured curve, joined log-log by straight lines, has this loss.

    Parameters
    ----------
    loss
        Loss sought, nats.
    log_compute, log_loss
        ``[n]`` the measured curve, sorted by compute.

    Returns
    -------
    list
        Empty outside the measured range; more than one where the curve is not monotone.
    """
    target = float(np.log(loss))
    found: list[float] = []
    for i in range(len(log_loss) - 1):
        first, second = float(log_loss[i]), float(log_loss[i + 1])
        if first == second or not min(first, second) <= target <= max(first, second):
            continue
        share = (target - first) / (second - first)
        at = float(log_compute[i] + share * (log_compute[i + 1] - log_compute[i]))
        if not found or abs(at - found[-1]) > 1e-12:
            found.append(at)
    return found


def joint_loss(
    n_params: Floats | float,
    tokens: Floats | float,
    *,
    asymptote: float,
    a: float,
    b: float,
    alpha: float,
    beta: float,
) -> Floats:
    """Loss of ``L(N, D) = E + A N^-alpha + B D^-beta`` with ``A = exp(a)``, ``B = exp(b)``, nats.

    Hoffmann et al. 2022, arXiv 2203.15556, equation 2.
    """
    n, d = np.log(np.asarray(n_params, np.float64)), np.log(np.asarray(tokens, np.float64))
    return asymptote + np.exp(a - alpha * n) + np.exp(b - beta * d)


def optimal_allocation(
    flops: Floats | float, *, a: float, b: float, alpha: float, beta: float, flops_per_nd: float = 6
) -> tuple[Floats, Floats]:
    """Parameters and tokens of least loss under ``C = k N D``.

    ``N* = G (C/k)^(beta/(alpha+beta))``, ``D* = (C/k) / N*``,
    ``G = (alpha A / (beta B))^(1/(alpha+beta))`` (arXiv 2203.15556, equation 4).
    """
    budget = np.log(np.asarray(flops, np.float64) / flops_per_nd)
    log_g = (np.log(alpha / beta) + a - b) / (alpha + beta)
    log_n = log_g + beta / (alpha + beta) * budget
    return np.exp(log_n), np.exp(budget - log_n)


def broken_power_loss(
    compute: Floats | float,
    *,
    asymptote: float,
    a: float,
    alpha: float,
    change: float,
    log_break: float,
    width: float,
) -> Floats:
    """Power law with one smooth break: ``E + exp(a) C^-alpha (1 + (C/C_b)^(1/w))^(-change w)``.

    Slope ``alpha`` well below ``C_b = exp(log_break)``, ``alpha + change`` well above; ``w``
    is the width of the break in ln C (Caballero et al. 2022, arXiv 2210.14891, equation 1).
    """
    x = np.log(np.asarray(compute, np.float64))
    bend = change * width * np.logaddexp(0.0, (x - log_break) / width)
    return asymptote + np.exp(a - alpha * x - bend)
