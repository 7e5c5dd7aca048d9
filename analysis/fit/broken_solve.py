"""Search of the broken power law: a scan that needs no start, then Levenberg-Marquardt. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.fit.power_solution import ROUNDING
from analysis.laws import Floats

Flags = NDArray[np.bool_]

WIDTHS = (0.01, 0.5)
"""Widths of the break allowed, as shares of the range of ln x."""
E_TOP = 0.98
"""Largest E sought, as a share of the lowest loss."""
_N_BREAKS, _N_WIDTHS, _N_STARTS = 33, 9, 6
_STEPS = 400


@dataclass(frozen=True)
class Minimum:
    """A polished minimum."""

    theta: Floats
    """(a, alpha, change, ln C_b, ln w, E if free), in centred ln x."""
    objective: float
    residual: Floats
    """``[n]`` weighted."""
    jacobian: Floats
    """``[n, p]`` of the fitted values, weighted."""


@dataclass(frozen=True)
class BrokenData:
    """Points, bounds and objective."""

    x: Floats
    """Centred ln x, ``[n]``."""
    loss: Floats
    root_weights: Floats
    centre: float
    pinned: float | None
    low: Floats
    high: Floats

    @property
    def free(self) -> bool:
        """E is sought."""
        return self.pinned is None

    @property
    def n_unknowns(self) -> int:
        """Five, and E if free."""
        return len(self.low)

    @property
    def rounding(self) -> float:
        """Objective below which residuals are rounding of the losses."""
        return 1e-24 * float(self.root_weights @ self.root_weights)

    def predict(self, theta: Floats) -> Floats:
        """Loss at the points, nats."""
        log_excess, _ = _shape(self.x, theta)
        return np.asarray(self.asymptote(theta) + np.exp(log_excess))

    def asymptote(self, theta: Floats) -> float:
        """E of a candidate."""
        return float(theta[5]) if self.pinned is None else self.pinned

    def evaluate(self, theta: Floats) -> Minimum:
        """Residuals and Jacobian: in L when E is free, in ln(L - E) when it is pinned."""
        log_excess, gradient = _shape(self.x, theta)
        if self.pinned is None:
            excess = np.exp(log_excess)
            residual = self.loss - theta[5] - excess
            jacobian = np.column_stack([gradient * excess[:, None], np.ones_like(excess)])
        else:
            residual = np.log(self.loss - self.pinned) - log_excess
            jacobian = gradient
        residual = residual * self.root_weights
        jacobian = jacobian * self.root_weights[:, None]
        return Minimum(theta, float(residual @ residual), residual, jacobian)

    def held(self, theta: Floats) -> Flags:
        """Parameters at a bound, ``[p]``."""
        span = np.where(np.isfinite(self.high - self.low), self.high - self.low, 0.0)
        near = 1e-9 * span
        return np.asarray((theta <= self.low + near) | (theta >= self.high - near))

    def at_bound(self, theta: Floats) -> tuple[str, ...]:
        """Names of the parameters at a bound."""
        names = ("A", "alpha", "change", "C_b", "w", "E")
        return tuple(n for n, held in zip(names, self.held(theta), strict=False) if held)

    def gradient(self, at: Minimum) -> float:
        """Largest cosine between the residuals and a direction that is not held at a bound."""
        columns = at.jacobian[:, ~self.held(at.theta)]
        basis, triangle = np.linalg.qr(columns)
        diagonal = np.abs(np.diag(triangle))
        basis = basis[:, diagonal > 1e-10 * diagonal.max()]
        scale = float(np.linalg.norm(at.residual + at.jacobian[:, 0]))
        size = max(float(np.linalg.norm(at.residual)), ROUNDING * scale)
        return float(np.abs(basis.T @ at.residual).max() / size)

    def units(self, theta: Floats) -> tuple[Floats, Floats]:
        """Jacobian from theta to (E, ln A, alpha, change, ln C_b, ln w), and these out of logs."""
        a, alpha, change, log_break, log_width = (float(v) for v in theta[:5])
        to = np.zeros((6, len(theta)))
        if self.pinned is None:
            to[0, 5] = 1
        to[1, 0], to[1, 1], to[2, 1], to[3, 2], to[4, 3], to[5, 4] = 1, self.centre, 1, 1, 1, 1
        values = np.array(
            [
                self.asymptote(theta),
                np.exp(a + alpha * self.centre),
                alpha,
                change,
                np.exp(log_break + self.centre),
                np.exp(log_width),
            ]
        )
        return to, values


def broken_data(
    x: Sequence[float] | Floats,
    loss: Sequence[float] | Floats,
    weights: Sequence[float] | Floats | None,
    pinned: float | None,
) -> BrokenData:
    """Centre the points; keep two points on each side of the break."""
    log_x, losses = np.log(np.asarray(x, np.float64)), np.asarray(loss, np.float64)
    centre = float(log_x.mean())
    z = log_x - centre
    ordered = np.unique(z)
    widths = np.log(np.array(WIDTHS) * (ordered[-1] - ordered[0]))
    low = [-np.inf, -np.inf, -np.inf, ordered[1], widths[0]]
    high = [np.inf, np.inf, np.inf, ordered[-2], widths[1]]
    if pinned is None:
        low, high = [*low, 0.0], [*high, E_TOP * float(losses.min())]
    w = np.ones_like(losses) if weights is None else np.asarray(weights, np.float64)
    return BrokenData(z, losses, np.sqrt(w), centre, pinned, np.array(low), np.array(high))


def search(data: BrokenData) -> tuple[list[Minimum], float]:
    """Polished minima, lowest first, and the lowest objective among their starts."""
    starts = _starts(data)
    lowest = min(data.evaluate(start).objective for start in starts)
    found = [_polish(data, start) for start in starts]
    return sorted(found, key=lambda m: m.objective), max(lowest, data.rounding)


def _shape(x: Floats, theta: Floats) -> tuple[Floats, Floats]:
    """``ln(L - E)`` and its derivatives with respect to theta but for E, ``[n]`` and ``[n, 5]``."""
    a, alpha, change, log_break, log_width = theta[:5]
    width = np.exp(log_width)
    u = (x - log_break) / width
    soft, sigmoid = width * np.logaddexp(0.0, u), 0.5 * (1 + np.tanh(u / 2))
    columns = [
        np.ones_like(x),
        -x,
        -soft,
        change * sigmoid,
        -change * (soft - (x - log_break) * sigmoid),
    ]
    return a - alpha * x - change * soft, np.column_stack(columns)


def _starts(data: BrokenData) -> list[Floats]:
    """Best nodes of the scan, at distinct breaks and E."""
    breaks = np.linspace(data.low[3], data.high[3], _N_BREAKS)
    widths = np.linspace(data.low[4], data.high[4], _N_WIDTHS)
    lowest = float(data.loss.min())
    asymptotes = [data.pinned] if data.pinned is not None else np.linspace(0, 0.95, 20) * lowest
    kept: list[tuple[float, Floats]] = []
    for e in asymptotes:
        nodes = _scan(data, float(e), breaks, widths)
        kept += nodes
    kept.sort(key=lambda node: node[0])
    return [theta for _, theta in kept[:_N_STARTS]]


def _scan(data: BrokenData, e: float, breaks: Floats, widths: Floats) -> list[tuple[float, Floats]]:
    """Local minima over the break of the linear fit at one E, the width profiled out."""
    excess = data.loss - e
    root = data.root_weights * (excess if data.free else 1.0)
    b, w = (grid.ravel() for grid in np.meshgrid(breaks, widths, indexing="ij"))
    u = (data.x - b[:, None]) / np.exp(w)[:, None]
    soft = np.exp(w)[:, None] * np.logaddexp(0.0, u)
    ones = np.ones_like(soft)
    design = np.stack([ones, -data.x * ones, -soft], axis=2) * root[:, None]
    y = np.log(excess) * root
    basis, triangle = np.linalg.qr(design)
    projected = np.einsum("mnk,n->mk", basis, y)
    rss = ((y - np.einsum("mnk,mk->mn", basis, projected)) ** 2).sum(axis=1)
    table = rss.reshape(len(breaks), len(widths))
    best_width = table.argmin(axis=1)
    profile = np.concatenate([[np.inf], table.min(axis=1), [np.inf]])
    at = np.flatnonzero((profile[1:-1] <= profile[:-2]) & (profile[1:-1] <= profile[2:]))
    nodes = []
    for i in at:
        m = int(i) * len(widths) + int(best_width[i])
        linear = np.linalg.lstsq(triangle[m], projected[m], rcond=1e-12)[0]
        tail = [e] if data.free else []
        nodes.append((float(rss[m]), np.array([*linear, b[m], w[m], *tail])))
    return nodes


def _polish(data: BrokenData, theta: Floats) -> Minimum:
    """Levenberg-Marquardt with the parameters at a bound held while the descent points outward."""
    at, damping = data.evaluate(np.clip(theta, data.low, data.high)), 1e-4
    for _ in range(_STEPS):
        pull = at.jacobian.T @ at.residual
        low, high = at.theta <= data.low, at.theta >= data.high
        go = ~((low & (pull <= 0)) | (high & (pull >= 0)))
        if data.gradient(at) < 1e-11 or damping > 1e14:
            break
        normal = at.jacobian[:, go].T @ at.jacobian[:, go]
        scale = np.diag(np.maximum(np.diag(normal), 1e-14 * np.trace(normal)))
        step = np.zeros_like(at.theta)
        step[go] = np.linalg.solve(normal + damping * scale, pull[go])
        tried = data.evaluate(np.clip(at.theta + step, data.low, data.high))
        if tried.objective < at.objective:
            at, damping = tried, max(damping / 10, 1e-15)
        else:
            damping *= 5
    return at
