"""How an optimum moves with compute: ``ln N* = ln k + a ln C``, a weighted log-log line.

Used for N*(C), D*(C), the optimal learning rate, and any other power law without an asymptote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.cells import n_levels
from analysis.estimates import BadValue, Interval, TooFewData, data_sha256
from analysis.fit.quantiles import t_quantile
from analysis.law_fit import Certificate, LawFit, linear_gradient
from analysis.laws import Floats

MIN_BUDGETS = 3
"""Budgets below which no line is fitted: two always lie on one."""


@dataclass(frozen=True, kw_only=True)
class AllocationFit(LawFit):
    """A fitted line in logs."""

    centre: float
    """Weighted mean of ln C."""
    centre_value: float
    """Fitted ln of the optimum there."""
    errors: tuple[float, float]
    """Standard errors of the line's height at the centre and of the exponent."""
    dof: int
    level: float

    def predict(self, flops: Floats | float) -> Floats:
        """Optimum at ``flops``, in its own unit."""
        x = np.log(np.asarray(flops, np.float64)) - self.centre
        return np.exp(self.centre_value + self.value("a") * x)

    def band(self, flops: Floats | float) -> tuple[Floats, Floats]:
        """Pointwise confidence band of the line, t with n - 2 degrees of freedom."""
        x = np.log(np.asarray(flops, np.float64)) - self.centre
        half = t_quantile(self.level, self.dof) * np.hypot(self.errors[0], self.errors[1] * x)
        middle = self.predict(flops)
        return middle * np.exp(-half), middle * np.exp(half)


def fit_allocation(
    flops: Sequence[float] | Floats,
    optimum: Sequence[float] | Floats,
    *,
    symbol: str = "N*",
    weights: Sequence[float] | Floats | None = None,
    level: float = 0.95,
) -> AllocationFit:
    """Fit ``ln(optimum) = ln k + a ln C`` by weighted least squares.

    Parameters
    ----------
    flops, optimum
        ``[n]`` budgets and what is best at each, both positive.
    symbol
        What the optimum is called.
    weights
        ``[n]`` precision of ln(optimum), ``1 / sd^2``; multiplies the squared residual.
    level
        Confidence level.

    Raises
    ------
    TooFewData
        Fewer than three distinct budgets.
    BadValue
        A number that is not positive and finite.
    """
    x, y, w = _checked(flops, optimum, weights)
    centre, height, slope = _line(x, y, w)
    residual = y - height - slope * (x - centre)
    dof = len(x) - 2
    variance = float(w @ residual**2) / dof
    s_xx = float(w @ (x - centre) ** 2)
    errors = (float(np.sqrt(variance / w.sum())), float(np.sqrt(variance / s_xx)))
    log_k = height - slope * centre
    log_k_error = float(np.hypot(errors[0], centre * errors[1]))
    t = t_quantile(level, dof)
    student = f"t interval, {dof} dof"
    design = np.column_stack([np.ones_like(x), x - centre])
    spread = float(w @ (y - np.average(y, weights=w)) ** 2)
    return AllocationFit(
        law=f"{symbol} = k C^a",
        method=f"{'weighted ' if weights is not None else ''}least squares on logs",
        parameters={
            name: Interval(
                estimate=value,
                low=value - t * error,
                high=value + t * error,
                level=level,
                method=student,
            )
            for name, value, error in (("ln_k", log_k, log_k_error), ("a", slope, errors[1]))
        },
        covariance=(
            (log_k_error**2, -centre * errors[1] ** 2),
            (-centre * errors[1] ** 2, errors[1] ** 2),
        ),
        certificate=Certificate(
            objective=float(w @ residual**2), gradient=linear_gradient(design, residual, w)
        ),
        domain={"C": (float(np.exp(x.min())), float(np.exp(x.max())))},
        n_points=len(x),
        n_levels=n_levels(x),
        rms_nats=float("nan"),
        data_sha256=data_sha256(zip(x.tolist(), y.tolist(), w.tolist(), strict=True)),
        extras={
            "rms_ln": float(np.sqrt(np.mean(residual**2))),
            "r2": 1 - float(w @ residual**2) / spread if spread else 1.0,
        },
        centre=centre,
        centre_value=height,
        errors=errors,
        dof=dof,
        level=level,
    )


def _checked(
    flops: Sequence[float] | Floats,
    optimum: Sequence[float] | Floats,
    weights: Sequence[float] | Floats | None,
) -> tuple[Floats, Floats, Floats]:
    c, best = np.asarray(flops, np.float64), np.asarray(optimum, np.float64)
    w = np.ones_like(c) if weights is None else np.asarray(weights, np.float64)
    if not len(c) == len(best) == len(w):
        raise BadValue(f"unequal lengths: {len(c)} budgets, {len(best)} optima, {len(w)} weights")
    for name, values in (("budgets", c), ("optima", best), ("weights", w)):
        if not (np.isfinite(values) & (values > 0)).all():
            raise BadValue(f"{name} must be positive and finite")
    n = n_levels(np.log(c))
    if n < MIN_BUDGETS:
        raise TooFewData(f"a line along compute needs {MIN_BUDGETS} budgets, got {n}; add budgets")
    return np.log(c), np.log(best), w


def _line(x: Floats, y: Floats, w: Floats) -> tuple[float, float, float]:
    """Centre, height there, and slope of the weighted line."""
    centre = float(np.average(x, weights=w))
    height = float(np.average(y, weights=w))
    dx = x - centre
    return centre, height, float(w @ (dx * y) / (w @ dx**2))
