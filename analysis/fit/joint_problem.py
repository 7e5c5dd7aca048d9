"""The joint law as a bounded minimisation in centred logs, for one arm or several.

Coordinates are ``x = (E / scale, a_1 .. a_K, b_1 .. b_K, alpha, beta)`` for K arms, beta left out
when tied to alpha: ``P = E + exp(a_k - alpha u) + exp(b_k - beta v)`` with u = ln N and v = ln D
minus their means. Centring takes the correlation between coefficients and exponents out: from
sensible starts every search ends at the optimum, where uncentred only 8% do. E enters linearly so
that E = 0 is an ordinary bound and not a limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import BadValue
from analysis.fit.huber import Block, Objective, Terms, slopes, terms_of, value_of
from analysis.fit.joint_points import JointPoints
from analysis.laws import Floats

EXPONENT_BOUNDS = (1e-3, 4.0)
SMALLEST_TERM = 1e-9
"""A falling term of this size, in units of the lowest loss, counts as absent."""
LARGEST_TERM = 1e4
_EPSILON = 1e-15
ROUNDING = 1e-9
"""Objective per unit of weight, relative residuals, whose gradient float64 no longer resolves."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Points of a fit made ready to be evaluated."""

    objective: Objective
    blocks: tuple[Block, ...]
    """One per arm."""
    indices: tuple[NDArray[np.intp], ...]
    """Where the points of each block stand in the data."""
    maps: tuple[Floats, ...]
    """``[5, p]`` from x to the local parameters of each block."""
    names: tuple[str, ...]
    """Parameters reported: E, A.., B.., alpha, beta."""
    to_logs: Floats
    """``[len(names), p]`` from x to (E, ln A.., ln B.., alpha, beta), linear."""
    scale: float
    """Lowest loss, nats: the unit of the first coordinate."""

    @property
    def n_points(self) -> int:
        """Points of all arms."""
        return sum(len(block.loss) for block in self.blocks)

    @property
    def n_arms(self) -> int:
        """Arms, one when none was named."""
        return len(self.blocks)

    @property
    def tied(self) -> bool:
        """One exponent serves N and D."""
        return bool(self.to_logs.shape[1] == 2 * self.n_arms + 2)

    @property
    def floor(self) -> float:
        """Objective below which a fit is exact: gradients are measured against no less."""
        return ROUNDING * self._unit**2 * self._total_weight

    def rounding(self, value: Floats) -> Floats:
        """Error that float64 leaves in an objective of this value, from that of the residuals.

        ``sum w |psi| eps``, bounded by ``2 eps (F sum w)^(1/2)``.
        """
        error = 2 * _EPSILON * self._unit * np.sqrt(self._total_weight * value)
        return np.asarray(error + _EPSILON * (10 * value + self.floor))

    @property
    def _unit(self) -> float:
        """Size of what residuals are differences of."""
        return 1.0 if self.objective.logarithmic else 2 * self.scale

    @property
    def _total_weight(self) -> float:
        return float(sum(block.weight.sum() for block in self.blocks))

    def bounds(self) -> tuple[Floats, Floats]:
        """Lowest and highest x."""
        k, unit = self.n_arms, np.log(self.scale)
        ends = []
        for e, term, exponent in (
            (0.0, np.log(SMALLEST_TERM) + unit, EXPONENT_BOUNDS[0]),
            (10.0, np.log(LARGEST_TERM) + unit, EXPONENT_BOUNDS[1]),
        ):
            ends.append([e, *[term] * (2 * k), *[exponent] * (1 if self.tied else 2)])
        return np.array(ends[0]), np.array(ends[1])

    def terms(self, x: Floats, counts: Floats | None = None) -> Terms:
        """Objective and derivatives at ``x`` ``[R, p]``, points repeated ``counts`` ``[R, n]``."""
        total: list[Floats] = []
        for block, at, local in zip(self.blocks, self.indices, self.maps, strict=True):
            one = terms_of(x @ local.T, block, self.objective, _columns(counts, at))
            parts = [
                one.value,
                one.gradient @ local,
                local.T @ one.hessian @ local,
                local.T @ one.gauss @ local,
            ]
            total = parts if not total else [a + b for a, b in zip(total, parts, strict=True)]
        return Terms(*total)

    def value(self, x: Floats, counts: Floats | None = None) -> Floats:
        """Objective ``[R]`` at ``x`` ``[R, p]``."""
        values = [
            value_of(x @ local.T, block, self.objective, _columns(counts, at))
            for block, at, local in zip(self.blocks, self.indices, self.maps, strict=True)
        ]
        return np.asarray(np.sum(values, axis=0))

    def slopes(self, x: Floats) -> Floats:
        """Derivative of every residual by ``x`` ``[p]``, in the order of the data: ``[n, p]``."""
        out = np.empty((self.n_points, len(x)))
        for block, at, local in zip(self.blocks, self.indices, self.maps, strict=True):
            out[at] = slopes((x @ local.T)[None], block, self.objective)[0] @ local
        return out

    def parameters(self, x: Floats) -> Floats:
        """Reported parameters ``[R, len(names)]``, A and B in the units of N and D."""
        logs = np.asarray(x @ self.to_logs.T)
        coefficients = slice(1, 1 + 2 * self.n_arms)
        logs[..., coefficients] = np.exp(logs[..., coefficients])
        return logs

    def coordinates(self, parameters: Mapping[str, float]) -> Floats:
        """Coordinates ``[p]`` of given E, A, B, alpha, beta.

        Raises
        ------
        BadValue
            A parameter is missing, not finite, or a coefficient is not positive.
        """
        missing = [name for name in self.names if name not in parameters]
        if missing:
            raise BadValue(f"the law needs {', '.join(self.names)}; missing: {', '.join(missing)}")
        values = np.array([float(parameters[name]) for name in self.names])
        coefficients = slice(1, 1 + 2 * self.n_arms)
        if not np.isfinite(values).all() or not (values[coefficients] > 0).all():
            raise BadValue("A and B must be positive and every parameter finite")
        if self.tied and values[-1] != values[-2]:
            raise BadValue("alpha and beta differ, but the fit ties them")
        values[coefficients] = np.log(values[coefficients])
        return np.asarray(np.linalg.lstsq(self.to_logs, values, rcond=None)[0])


def make_problem(points: JointPoints, objective: Objective, *, tied: bool = False) -> Problem:
    """Centre the logs and lay out the coordinates."""
    groups = points.arm_indices()
    log_n, log_d = np.log(points.n_params), np.log(points.tokens)
    centre = float(log_n.mean()), float(log_d.mean())
    scale = float(points.loss_nats.min())
    weight = np.ones(len(points)) if points.weights is None else points.weights
    blocks = tuple(
        Block(log_n[at] - centre[0], log_d[at] - centre[1], points.loss_nats[at], weight[at], scale)
        for at in groups
    )
    labels = [f"[{arm}]" for arm in points.arm_names] or [""]
    names = ("E", *("A" + at for at in labels), *("B" + at for at in labels), "alpha", "beta")
    return Problem(
        objective=objective,
        blocks=blocks,
        indices=tuple(groups),
        maps=tuple(_local_map(k, len(groups), tied) for k in range(len(groups))),
        names=names,
        to_logs=_to_logs(len(groups), tied, scale, centre),
        scale=scale,
    )


def _local_map(arm: int, n_arms: int, tied: bool) -> Floats:
    p = 2 * n_arms + (2 if tied else 3)
    local = np.zeros((5, p))
    for row, column in enumerate((0, 1 + arm, 1 + n_arms + arm, 1 + 2 * n_arms, p - 1)):
        local[row, column] = 1.0
    return local


def _to_logs(n_arms: int, tied: bool, scale: float, centre: tuple[float, float]) -> Floats:
    """``ln A = a + alpha mean(ln N)``, ``ln B = b + beta mean(ln D)``."""
    p = 2 * n_arms + (2 if tied else 3)
    linear = np.zeros((2 * n_arms + 3, p))
    linear[0, 0] = scale
    for k in range(n_arms):
        linear[1 + k, 1 + k] = linear[1 + n_arms + k, 1 + n_arms + k] = 1.0
        linear[1 + k, 1 + 2 * n_arms] = centre[0]
        linear[1 + n_arms + k, p - 1] = centre[1]
    linear[-2, 1 + 2 * n_arms] = linear[-1, p - 1] = 1.0
    return linear


def _columns(counts: Floats | None, at: NDArray[np.intp]) -> Floats | None:
    if counts is None or len(at) == counts.shape[1]:
        return counts
    return counts[:, at]
