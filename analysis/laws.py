"""Scaling laws as pure formulas.

Symbols, used nowhere else in the code base:

====== ==========================================================================
L      loss, nats per token
E      irreducible loss (asymptote), nats per token
C      compute in the currency at hand: training FLOPs, or seconds
a      log coefficient of an arm
alpha  exponent, > 0 when loss falls with compute; shared by arms unless said
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
