"""Shared exponents read as efficiency: what an arm's A and B are worth in parameters and tokens.

With E, alpha, beta in common, ``A_arm N^-alpha = A_base (rho_N N)^-alpha``: the arm behaves like
the baseline with ``rho_N`` times the parameters and ``rho_D`` times the tokens
(Volkova et al. 2026, arXiv 2602.07712).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from analysis.estimates import BadValue, Interval, undefined
from analysis.fit.joint import JointFit
from analysis.fit.quantiles import t_quantile
from analysis.laws import Floats


@dataclass(frozen=True)
class RescaledArm:
    """Efficiency factors of an arm; above 1 the arm needs less."""

    rho_n: Interval
    """``(A_arm / A_base)^(-1/alpha)``."""
    rho_d: Interval
    """``(B_arm / B_base)^(-1/beta)``."""


def rescaled_arms(fit: JointFit, baseline: str) -> dict[str, RescaledArm]:
    """Efficiency factors of every other arm against the baseline.

    Percentile intervals where the fit was bootstrapped, else Fieller's from its covariance: the
    logarithm is a ratio, ``ln rho = -(ln A_arm - ln A_base) / alpha``.

    Raises
    ------
    BadValue
        The fit has no arms, or none of that name.
    """
    if baseline not in fit.arms:
        raise BadValue(f"no arm {baseline!r} in the fit: {', '.join(fit.arms) or 'it has no arms'}")
    return {
        arm: RescaledArm(
            _factor(fit, f"A[{arm}]", f"A[{baseline}]", "alpha"),
            _factor(fit, f"B[{arm}]", f"B[{baseline}]", "beta"),
        )
        for arm in fit.arms
        if arm != baseline
    }


def _factor(fit: JointFit, arm: str, base: str, exponent: str) -> Interval:
    idle = [name for name in (arm, base, exponent) if name in fit.certificate.at_bound]
    if idle:
        why = f"{', '.join(idle)} is at its bound: the term has no measured effect"
        return undefined(why, method="from the shared-exponent fit", level=fit.level)
    names = list(fit.parameters)
    at = [names.index(name) for name in (arm, base, exponent)]
    if fit.draws is not None:
        return _from_draws(fit, fit.draws[:, at], at)
    log_ratio = math.log(fit.value(arm) / fit.value(base))
    if fit.covariance is None or fit.dof < 1:
        reason = "the fit has no covariance, or no degrees of freedom"
        return _interval(fit, -log_ratio / fit.value(exponent), None, None, "delta", reason)
    unit = np.array([1 / fit.value(arm), -1 / fit.value(base)])
    block = np.array(fit.covariance)[np.ix_(at, at)]
    cross = float(unit @ block[:2, 2])
    return _fieller(
        fit, log_ratio, fit.value(exponent), (unit @ block[:2, :2] @ unit, cross, block[2, 2])
    )


def _from_draws(fit: JointFit, draws: Floats, at: list[int]) -> Interval:
    """Percentiles of ``ln rho`` over the replicates."""
    names = list(fit.parameters)
    arm, base, exponent = (fit.value(names[k]) for k in at)
    kept = draws[np.isfinite(draws).all(axis=1)]
    logs = -np.log(kept[:, 0] / kept[:, 1]) / kept[:, 2]
    low, high = np.quantile(logs, (0.5 - fit.level / 2, 0.5 + fit.level / 2))
    method = f"percentile bootstrap, {len(kept)} replicates"
    return _interval(fit, -math.log(arm / base) / exponent, float(low), float(high), method, None)


def _fieller(
    fit: JointFit, top: float, bottom: float, covariance: tuple[float, float, float]
) -> Interval:
    """Interval of ``exp(-top / bottom)``: roots x of ``(top - x bottom)^2 = t^2 var(x)``."""
    method = "Fieller on the shared-exponent fit"
    v_top, cross, v_bottom = (float(value) for value in covariance)
    t2 = t_quantile(fit.level, fit.dof) ** 2
    lead = bottom**2 - t2 * v_bottom
    if lead <= 0:
        reason = "unbounded: the exponent is not distinguishable from 0"
        return _interval(fit, -top / bottom, None, None, method, reason)
    middle = top * bottom - t2 * cross
    root = math.sqrt(max(0.0, middle**2 - lead * (top**2 - t2 * v_top)))
    low, high = -(middle + root) / lead, -(middle - root) / lead
    return _interval(fit, -top / bottom, low, high, method, None)


def _interval(
    fit: JointFit,
    log_rho: float,
    low: float | None,
    high: float | None,
    method: str,
    reason: str | None,
) -> Interval:
    return Interval(
        estimate=float(np.exp(log_rho)),
        low=None if low is None else float(np.exp(low)),
        high=None if high is None else float(np.exp(high)),
        level=fit.level,
        method=method,
        reason=reason,
    )
