"""Least squares of ``L = E + A_arm x^-alpha`` as a search over the exponent alone.

For a given alpha the best E and A are two linear unknowns with a closed form, so nothing needs a
start: the exponents are scanned, and the slope of the profiled objective is bisected to zero.
With E >= 0 and A >= 0 the profiled objective keeps a continuous slope (envelope theorem). Every
function is batched over rows of candidates. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.laws import Floats

ALPHA_RANGE = (1e-3, 3.0)
"""Exponents searched; a best value at either end is reported as at its bound."""
_GRID = 241
_BISECTIONS = 52
_RANGE_GRID = 401


@dataclass(frozen=True)
class PowerData:
    """Points in centred logs."""

    z: Floats
    """``ln x - centre``, ``[n]``."""
    loss: Floats
    weights: Floats
    """Multiply squared residuals: 1 / sd^2, or ones."""
    centre: float
    groups: Floats
    """``[n, k]`` ones and zeros: the arm of each point; arms share E and alpha, not A."""

    @property
    def n(self) -> int:
        """Number of points."""
        return len(self.z)

    @property
    def n_unknowns(self) -> int:
        """E, alpha and one A per arm."""
        return 2 + int(self.groups.shape[1])


@dataclass(frozen=True)
class Candidates:
    """Best E and A of each exponent; every field ``[m]`` but for A."""

    alpha: Floats
    asymptote: Floats
    coefficient: Floats
    """A in centred units, ``[m, k]``: ``A = coefficient exp(alpha centre)``."""
    objective: Floats
    """Weighted sum of squared residuals."""
    slope: Floats
    """Derivative of the profiled objective with respect to alpha."""


def power_data(
    x: Floats, loss: Floats, weights: Floats | None = None, groups: Floats | None = None
) -> PowerData:
    """Centre the points; absent weights are ones, absent groups one arm."""
    log_x = np.log(x)
    centre = float(log_x.mean())
    ones = np.ones_like(loss)
    return PowerData(
        log_x - centre,
        loss,
        ones if weights is None else weights,
        centre,
        ones[:, None] if groups is None else groups,
    )


def alpha_grid(n: int = _GRID) -> Floats:
    """Exponents scanned, equally spaced in their logarithm."""
    return np.geomspace(ALPHA_RANGE[0], ALPHA_RANGE[1], n)


def inner_solve(data: PowerData, alpha: Floats, pinned: Floats | None = None) -> Candidates:
    """Best E >= 0 and A >= 0 of each exponent; E given by ``pinned`` where that is not None.

    Parameters
    ----------
    data
        ``[n]`` points.
    alpha
        ``[m]`` exponents.
    pinned
        ``[m]`` values of E, or None to solve for E.
    """
    w, groups = data.weights, data.groups
    phi = np.exp(-alpha[:, None] * data.z)
    sums = _Sums(data, phi)
    asymptote = sums.asymptote() if pinned is None else np.asarray(pinned, np.float64)
    if pinned is None:
        asymptote = np.maximum(asymptote, 0.0)
    coefficient = sums.coefficient(asymptote)
    if pinned is None:
        rising = np.any(coefficient < 0, axis=1)
        asymptote = np.where(rising, float(data.loss @ w) / float(w.sum()), asymptote)
        coefficient = np.where(rising[:, None], 0.0, coefficient)
    coefficient = np.maximum(coefficient, 0.0)
    excess = (coefficient @ groups.T) * phi
    residual = data.loss - asymptote[:, None] - excess
    objective = (residual * residual) @ w
    slope = 2 * ((residual * excess * data.z) @ w)
    return Candidates(alpha, asymptote, coefficient, objective, slope)


class _Sums:
    """Weighted sums over the points of each arm, for a batch of exponents."""

    def __init__(self, data: PowerData, phi: Floats) -> None:
        by_arm = data.weights[:, None] * data.groups
        self.data, self.phi = data, phi
        self.phi_1, self.phi_2 = phi @ by_arm, (phi * phi) @ by_arm
        self.phi_loss = (phi * data.loss) @ by_arm
        self.rest = 1 - phi * ((self.phi_1 / self.phi_2) @ data.groups.T)
        """What of a constant the columns of A cannot follow: E is read from it, ``[m, n]``."""

    def rest_squared(self) -> Floats:
        """Curvature of the objective in E with A following, over two, ``[m]``."""
        total: Floats = (self.rest * self.rest) @ self.data.weights
        return total

    def asymptote(self) -> Floats:
        """Best E of either sign, ``[m]``."""
        best: Floats = ((self.rest * self.data.loss) @ self.data.weights) / self.rest_squared()
        return best

    def coefficient(self, asymptote: Floats) -> Floats:
        """Best A of each arm at a given E, of either sign, ``[m, k]``."""
        return np.asarray((self.phi_loss - asymptote[:, None] * self.phi_1) / self.phi_2)

    def objective(self, asymptote: Floats, coefficient: Floats) -> Floats:
        """Weighted sum of squared residuals, ``[m]``."""
        fitted = asymptote[:, None] + (coefficient @ self.data.groups.T) * self.phi
        total: Floats = ((self.data.loss - fitted) ** 2) @ self.data.weights
        return total


def local_minima(found: Candidates) -> list[int]:
    """Grid indices whose objective is below both neighbours', lowest first."""
    f = np.concatenate([[np.inf], found.objective, [np.inf]])
    here = f[1:-1]
    at = np.flatnonzero((here <= f[:-2]) & (here < f[2:]))
    return [int(i) for i in at[np.argsort(here[at])]]


def refine(data: PowerData, grid: Floats, at: Floats, pinned: Floats | None = None) -> Candidates:
    """Bisect the slope of the profiled objective between the neighbours of grid nodes ``at``.

    A node at the end of the grid whose slope points outward stays at that end.
    """
    nodes = np.asarray(at, np.int64)
    low, high = (
        np.log(grid[np.maximum(nodes - 1, 0)]),
        np.log(grid[np.minimum(nodes + 1, len(grid) - 1)]),
    )
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        falling = inner_solve(data, np.exp(middle), pinned).slope < 0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    return inner_solve(data, np.exp((low + high) / 2), pinned)


def solve(data: PowerData, pinned: float | None = None) -> tuple[Candidates, Candidates]:
    """Every local minimum over alpha, lowest first, and the scan that found them."""
    grid = alpha_grid()
    fixed = None if pinned is None else np.full(len(grid), pinned)
    scan = inner_solve(data, grid, fixed)
    at = np.array(local_minima(scan))
    found = refine(data, grid, at, None if pinned is None else np.full(len(at), pinned))
    order = np.argsort(found.objective, kind="stable")
    return _take(found, order), scan


def solve_each(data: PowerData, pinned: Floats) -> Candidates:
    """The best exponent and coefficient at each pinned E ``[m]``."""
    grid = alpha_grid(81)
    m, k = len(pinned), len(grid)
    scan = inner_solve(data, np.tile(grid, m), np.repeat(pinned, k))
    return refine(data, grid, scan.objective.reshape(m, k).argmin(axis=1), pinned)


def _take(found: Candidates, order: NDArray[np.int64]) -> Candidates:
    return Candidates(
        *(
            getattr(found, name)[order]
            for name in ("alpha", "asymptote", "coefficient", "objective", "slope")
        )
    )


@dataclass(frozen=True)
class Ranges:
    """Extremes of each parameter over all laws whose objective is at most a threshold."""

    alpha: tuple[float, float]
    asymptote: tuple[float, float]


def accepted_ranges(data: PowerData, best_alpha: float, threshold: float) -> Ranges:
    """Profile-likelihood intervals of alpha and E >= 0.

    For one exponent the laws below the threshold fill an ellipse in (E, A) whose extremes have a
    closed form. The range of a parameter over all exponents is exactly the interval that profiling
    this parameter would give.
    """
    ends = _crossings(data, best_alpha, threshold)
    sums = _accepted(data, ends)
    e = sums.asymptote()
    room = np.maximum(threshold - sums.objective(e, sums.coefficient(e)), 0.0)
    half = np.sqrt(room / sums.rest_squared())
    asymptote = (max(0.0, float((e - half).min())), max(0.0, float((e + half).max())))
    return Ranges((ends[0], ends[1]), asymptote)


def coefficient_range(
    data: PowerData, alpha: tuple[float, float], threshold: float
) -> tuple[float, float]:
    """Range of ln A (not centred) of a single arm over the laws below the threshold, E >= 0."""
    exponents = np.geomspace(alpha[0], alpha[1], _RANGE_GRID)
    sums = _accepted(data, alpha)
    e, w = sums.asymptote(), data.weights
    mean_phi, mean_loss = (sums.phi @ w) / w.sum(), float(data.loss @ w) / float(w.sum())
    a = sums.coefficient(e)
    spread = ((sums.phi - mean_phi[:, None]) ** 2) @ w
    half = np.sqrt(np.maximum(threshold - sums.objective(e, a), 0.0) / spread)
    none = np.zeros_like(e)
    bare = sums.coefficient(none)
    room = np.maximum(threshold - sums.objective(none, bare), 0.0)
    bare_half = np.sqrt(room / sums.phi_2[:, 0])
    ends = []
    for sign in (-1, 1):
        free, at_zero = a[:, 0] + sign * half, bare[:, 0] + sign * bare_half
        reached = np.where(mean_loss - free * mean_phi >= 0, free, at_zero)
        ends.append(np.log(np.maximum(reached, 1e-300)) + exponents * data.centre)
    return float(ends[0].min()), float(ends[1].max())


def _accepted(data: PowerData, alpha: Sequence[float]) -> _Sums:
    exponents = np.geomspace(alpha[0], alpha[1], _RANGE_GRID)
    return _Sums(data, np.exp(-exponents[:, None] * data.z))


def _crossings(data: PowerData, inside: float, threshold: float) -> list[float]:
    """Exponents below and above ``inside`` where the profiled objective meets the threshold."""
    near, far = np.log([inside, inside]), np.log(ALPHA_RANGE)
    reached = inner_solve(data, np.exp(far)).objective <= threshold
    for _ in range(_BISECTIONS):
        middle = (near + far) / 2
        accepted = inner_solve(data, np.exp(middle)).objective <= threshold
        near, far = np.where(accepted, middle, near), np.where(accepted, far, middle)
    return [float(v) for v in np.where(reached, ALPHA_RANGE, np.exp(near))]
