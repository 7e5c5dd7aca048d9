"""Least squares and covariance of several arms' lines with one slope. Pure numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.cells import CellPoint
from analysis.estimates import Interval, NoMinimum
from analysis.fit.power_solution import rounding_floor
from analysis.fit.power_solve import Candidates, accepted_ranges, power_data, solve
from analysis.fit.profile import identification_note
from analysis.fit.quantiles import f_quantile
from analysis.law_fit import Certificate
from analysis.laws import Floats

ROUNDING = 1e-8
"""Residuals below this share of the fitted values are rounding: no gradient is read from them."""


@dataclass(frozen=True)
class Table:
    """Points as arrays."""

    x: Floats
    """ln C, ``[n]``."""
    loss: Floats
    arms: tuple[str, ...]
    arm: NDArray[np.int64]
    """Index into ``arms``, ``[n]``."""
    size: NDArray[np.int64]
    n_sizes: int

    @classmethod
    def of(cls, points: Sequence[CellPoint]) -> Table:
        """Arrays of the points, arms and sizes in order of first appearance."""
        arms = tuple(dict.fromkeys(point.arm for point in points))
        sizes = tuple(dict.fromkeys(point.size for point in points))
        return cls(
            x=np.log([point.compute for point in points]),
            loss=np.array([point.loss for point in points]),
            arms=arms,
            arm=np.array([arms.index(point.arm) for point in points]),
            size=np.array([sizes.index(point.size) for point in points]),
            n_sizes=len(sizes),
        )

    @property
    def indicators(self) -> Floats:
        """``[n, k]``: one in the column of each point's arm."""
        return np.eye(len(self.arms))[self.arm]


@dataclass(frozen=True)
class Line:
    """A law of every arm with what is known of its neighbourhood."""

    asymptote: float
    alpha: float
    intercepts: Floats
    """a by arm, ``[k]``."""
    jacobian: Floats
    """``[n, p]`` of the fitted values in (E if sought, alpha, a by arm)."""
    residual: Floats
    """``[n]`` in ln(L - E), or in L when E was sought."""
    scale: float
    """Typical size of a fitted value, for rounding."""
    e_interval: Interval | None = None
    alpha_interval: Interval | None = None
    """Profile interval, where E was sought."""
    notes: tuple[str, ...] = ()
    best_scan: float | None = None
    n_starts: int = 1

    def rms_nats(self, table: Table) -> float:
        """Root mean square residual in loss."""
        fitted = self.asymptote + np.exp(self.intercepts[table.arm] - self.alpha * table.x)
        return float(np.sqrt(np.mean((table.loss - fitted) ** 2)))

    def certificate(self, at_bound: tuple[str, ...]) -> Certificate:
        """The gradient is the largest cosine between residuals and a (centred) column."""
        jacobian = self.jacobian
        if self.e_interval is not None and self.asymptote <= 0:
            jacobian = jacobian[:, 1:]
        basis = np.linalg.qr(jacobian)[0]
        floor = ROUNDING * self.scale * np.sqrt(len(self.residual))
        size = max(float(np.linalg.norm(self.residual)), floor)
        return Certificate(
            objective=float(self.residual @ self.residual),
            gradient=float(np.abs(basis.T @ self.residual).max() / size),
            best_profile=self.best_scan,
            n_starts=self.n_starts,
            at_bound=at_bound,
        )


def fit_line(table: Table, y: Floats, asymptote: float) -> Line:
    """Closed form: one intercept per arm, one slope, ``y = ln(L - E)``."""
    groups = table.indicators
    count = groups.sum(axis=0)
    centre_x, centre_y = groups.T @ table.x / count, groups.T @ y / count
    dx, dy = table.x - centre_x[table.arm], y - centre_y[table.arm]
    alpha = -float(dx @ dy) / float(dx @ dx)
    jacobian = np.concatenate([-table.x[:, None], groups], axis=1)
    return Line(asymptote, alpha, centre_y + alpha * centre_x, jacobian, dy + alpha * dx, 1.0)


def law_from_profile(table: Table, level: float) -> Line:
    """Least squares on L with E >= 0 sought, and profile intervals of E and alpha.

    Laws are accepted while ``RSS <= RSS_min (1 + F(1, n_sizes - 3) / (n_sizes - 3))``: exact when
    arms share all their deviations, wider than needed when they share none.
    """
    data = power_data(np.exp(table.x), table.loss, groups=table.indicators)
    minima, scan = solve(data)
    if (minima.coefficient[0] <= 0).any():
        raise NoMinimum("loss does not fall with compute in these data: no law with A > 0 fits")
    dof = table.n_sizes - 3
    threshold = float(minima.objective[0]) * (1 + f_quantile(level, 1, dof) / dof) + data.n * 1e-30
    best_scan = max(float(scan.objective.min()), rounding_floor(data))
    ranges = accepted_ranges(data, float(minima.alpha[0]), threshold)
    e, alpha = (
        Interval(
            estimate=float(at[0]),
            low=low,
            high=high,
            level=level,
            method="profile interval, F(1, n_sizes - 3)",
        )
        for at, (low, high) in (
            (minima.asymptote, ranges.asymptote),
            (minima.alpha, ranges.alpha),
        )
    )
    return _law(table, minima, e, alpha, best_scan, data.centre)


def _law(
    table: Table,
    minima: Candidates,
    e: Interval,
    of_alpha: Interval,
    best_scan: float,
    centre: float,
) -> Line:
    alpha, asymptote = float(minima.alpha[0]), float(minima.asymptote[0])
    intercepts = np.log(minima.coefficient[0]) + alpha * centre
    excess = np.exp(intercepts[table.arm] - alpha * table.x)
    ones = np.ones_like(excess)
    columns = [ones[:, None], (-excess * table.x)[:, None], excess[:, None] * table.indicators]
    return Line(
        asymptote,
        alpha,
        intercepts,
        np.concatenate(columns, axis=1),
        table.loss - asymptote - excess,
        float(table.loss.mean()),
        e,
        of_alpha,
        tuple(identification_note(e, float(table.loss.min()))),
        best_scan,
        len(minima.alpha),
    )


def size_covariance(table: Table, line: Line, dof: int) -> Floats:
    """Covariance of (E, alpha, a by arm) with sizes as the independent observations.

    With H the pseudo-inverse of the Jacobian it is ``H Omega H'``, where Omega is block-diagonal
    over sizes and each block is ``S = R'R / dof`` for the residuals R ``[sizes, arms]``: whatever
    correlation the arms have at a size is in S. A pinned E has zero variance.
    """
    residuals = np.zeros((table.n_sizes, len(table.arms)))
    residuals[table.size, table.arm] = line.residual
    count = np.maximum(table.indicators.sum(axis=0), 1)
    residuals *= np.sqrt(table.n_sizes / count)
    between = residuals.T @ residuals / dof
    few = count < 3
    if few.any() and not few.all():
        pooled = float(np.diag(between)[~few].mean())
        between += np.diag(np.where(few, np.maximum(pooled - np.diag(between), 0.0), 0.0))
    inverse = np.linalg.pinv(line.jacobian, rcond=1e-14)
    by_size = np.zeros((table.n_sizes, len(table.arms), len(inverse)))
    np.add.at(by_size, (table.size, table.arm), inverse.T)
    local = np.tensordot(by_size, between @ by_size, axes=([0, 1], [0, 1]))
    if line.e_interval is not None:
        return np.asarray(local)
    full = np.zeros((len(local) + 1, len(local) + 1))
    full[1:, 1:] = local
    return full
