"""Two objectives of ``L(N, D) = E + A N^-alpha + B D^-beta``, exact derivatives, in batches.

``huber``
    ``F = sum_i w_i huber_delta(ln P_i - ln L_i)``, huber(r) = r^2 / 2 for ``|r| <= delta``, else
    ``delta (|r| - delta / 2)``: the SUM that Hoffmann et al. 2022 (arXiv 2203.15556, equation 3)
    minimise, delta in natural log. With the mean instead, the usual tolerances of L-BFGS stop
    every start early (arXiv 2404.10102).
``mse``
    ``F = sum_i w_i (P_i - L_i)^2``, the residual sum of squares in nats squared.

Everything is evaluated for many parameter vectors at once: starts of one fit, or bootstrap
replicates that differ in their counts. Pure; no optimiser here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from analysis.laws import Floats

ObjectiveName = Literal["huber", "mse"]


@dataclass(frozen=True)
class Objective:
    """What is minimised."""

    name: ObjectiveName
    delta: float = 1e-3
    """Where the Huber loss turns linear, in natural log; unused by ``mse``."""

    @property
    def logarithmic(self) -> bool:
        """Residuals are taken in ln L."""
        return self.name == "huber"

    def __str__(self) -> str:
        if self.logarithmic:
            return f"sum of Huber losses of ln L, delta {self.delta:g}"
        return "sum of squared residuals of L"


@dataclass(frozen=True)
class PointLoss:
    """Loss of every residual r with what its minimisation needs; same shape as ``r``."""

    value: Floats
    slope: Floats
    """First derivative, psi(r)."""
    curvature: Floats
    """Second derivative, psi'(r)."""
    weight: Floats
    """``psi(r) / r``: the weight of iteratively reweighted least squares."""


@dataclass(frozen=True, eq=False)
class Block:
    """Points of one arm in centred logs; every array ``[n]``."""

    u: Floats
    """ln N minus its mean over all arms."""
    v: Floats
    """ln D minus its mean over all arms."""
    loss: Floats
    weight: Floats
    scale: float
    """Nats per unit of the first coordinate, so that all are of order one."""

    @cached_property
    def log_loss(self) -> Floats:
        """Natural logarithm of the loss."""
        return np.log(self.loss)

    @cached_property
    def basis(self) -> Floats:
        """``[n, 6]`` the columns 1, u, v, u^2, uv, v^2."""
        u, v = self.u, self.v
        return np.stack([np.ones_like(u), u, v, u * u, u * v, v * v], axis=1)


@dataclass(frozen=True)
class Terms:
    """Objective and derivatives of R parameter vectors."""

    value: Floats
    """``[R]``."""
    gradient: Floats
    """``[R, p]``."""
    hessian: Floats
    """``[R, p, p]``, exact where no residual is at +-delta."""
    gauss: Floats
    """``[R, p, p]``, positive semidefinite: the matrix of iteratively reweighted least squares."""


def point_loss(residual: Floats, objective: Objective) -> PointLoss:
    """Loss of residuals of any shape with its first two derivatives."""
    if not objective.logarithmic:
        two = np.full_like(residual, 2.0)
        return PointLoss(residual * residual, 2 * residual, two, two)
    delta = objective.delta
    size = np.abs(residual)
    slope = np.clip(residual, -delta, delta)
    value = slope * (residual - 0.5 * slope)
    curvature = (size <= delta).astype(np.float64)
    return PointLoss(value, slope, curvature, delta / np.maximum(size, delta))


def predict(theta: Floats, block: Block) -> tuple[Floats, Floats, Floats]:
    """Loss P and its two falling terms, each ``[R, n]``, of local parameters ``[R, 5]``.

    Local parameters are ``(E / scale, a, b, alpha, beta)`` with
    ``P = E + exp(a - alpha u) + exp(b - beta v)``.
    """
    in_n = np.exp(theta[:, 1, None] - theta[:, 3, None] * block.u)
    in_d = np.exp(theta[:, 2, None] - theta[:, 4, None] * block.v)
    return theta[:, 0, None] * block.scale + in_n + in_d, in_n, in_d


def residuals(predicted: Floats, block: Block, objective: Objective) -> Floats:
    """Residuals the objective is taken of: ``ln P - ln L`` or ``P - L``."""
    if objective.logarithmic:
        return np.log(predicted) - block.log_loss
    return predicted - block.loss


def slopes(theta: Floats, block: Block, objective: Objective) -> Floats:
    """Derivative of every residual by the local parameters, ``[R, n, 5]``."""
    predicted, in_n, in_d = predict(theta, block)
    per = predicted if objective.logarithmic else np.ones_like(predicted)
    columns = [np.full_like(per, block.scale), in_n, in_d, -in_n * block.u, -in_d * block.v]
    return np.stack([column / per for column in columns], axis=2)


def value_of(
    theta: Floats, block: Block, objective: Objective, counts: Floats | None = None
) -> Floats:
    """Objective ``[R]`` of local parameters ``[R, 5]``; ``counts`` ``[R, n]`` repeats points."""
    weight = block.weight if counts is None else block.weight * counts
    residual = residuals(predict(theta, block)[0], block, objective)
    return np.asarray((weight * point_loss(residual, objective).value).sum(axis=1))


def terms_of(
    theta: Floats, block: Block, objective: Objective, counts: Floats | None = None
) -> Terms:
    """Objective, gradient and both second-order matrices of local parameters ``[R, 5]``.

    With ``g`` the slope of a residual and ``z_N = a - alpha u``, ``z_D = b - beta v``,
    ``hessian = sum w [(psi' - k psi) g g' + psi sum_j p_j dz_j dz_j']``, where k = 1 and
    p_j = exp(z_j) / P in logs, k = 0 and p_j = exp(z_j) otherwise.
    """
    predicted, in_n, in_d = predict(theta, block)
    loss = point_loss(residuals(predicted, block, objective), objective)
    weight = block.weight if counts is None else block.weight * counts
    per_e = np.full_like(predicted, block.scale)
    bend = loss.curvature
    if objective.logarithmic:
        per_e, in_n, in_d = block.scale / predicted, in_n / predicted, in_d / predicted
        bend = bend - loss.slope
    psi = weight * loss.slope
    products = np.empty((15, *predicted.shape))
    parts = (per_e, in_n, in_d)
    for k, part in enumerate(parts):
        np.multiply(psi, part, out=products[k])
    for first, c in ((3, weight * bend), (9, weight * loss.weight)):
        for k, (i, j) in enumerate(((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))):
            np.multiply(c * parts[i], parts[j], out=products[first + k])
    sums = products @ block.basis
    hessian, gauss = _squares(sums[3:])
    for row, other, term, columns in ((1, 3, 1, (0, 1, 3)), (2, 4, 2, (0, 2, 5))):
        one, across, square = (sums[term][:, column] for column in columns)
        hessian[:, row, row] += one
        hessian[:, row, other] -= across
        hessian[:, other, row] -= across
        hessian[:, other, other] += square
    gradient = sums[[0, 1, 2, 1, 2], :, [0, 0, 0, 1, 2]].T * [1, 1, 1, -1, -1]
    return Terms((weight * loss.value).sum(1), gradient, hessian, gauss)


# sum_i c g g' for g = (per_e, in_n, in_d, -u in_n, -v in_d): u and v are the same for every
# parameter vector, so that all entries come from one matrix product of six factors with the basis
# (1, u, v, u^2, uv, v^2). Factor (c e e, c e n, c e d, c n n, c n d, c d d), column, sign:
_FACTOR = np.array(
    [[0, 1, 2, 1, 2], [1, 3, 4, 3, 4], [2, 4, 5, 4, 5], [1, 3, 4, 3, 4], [2, 4, 5, 4, 5]]
)
_COLUMN = np.array(
    [[0, 0, 0, 1, 2], [0, 0, 0, 1, 2], [0, 0, 0, 1, 2], [1, 1, 1, 3, 4], [2, 2, 2, 4, 5]]
)
_SIGN = np.outer([1, 1, 1, -1, -1], [1, 1, 1, -1, -1])


def _squares(sums: Floats) -> Floats:
    """``[2, R, 5, 5]`` from the sums ``[2 x 6 factors, R, 6 columns]``."""
    by_factor = sums.reshape(2, 6, *sums.shape[1:])
    entries = by_factor[:, _FACTOR, :, _COLUMN].transpose(2, 3, 0, 1)
    return np.asarray(np.ascontiguousarray(entries) * _SIGN)
