"""Objective of the joint law over its two exponents, everything else solved for.

At given exponents E, A and B enter linearly, so a whole grid of exponents is least squares in one
batch (variable projection): a handful of weighted sums per node, A and B non-negative by trying
every column subset, E by safeguarded Newton on the convex function that is left. The Huber
objective repeats that with the weights of iteratively reweighted least squares. Local minima of
both surfaces start the fit; the surface itself is a figure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.fit.huber import Objective, ObjectiveName, point_loss
from analysis.fit.joint_points import JointPoints
from analysis.fit.joint_problem import SMALLEST_TERM, Problem, make_problem
from analysis.laws import Floats

EXPONENTS = (0.02, 1.5)
FEW_POINTS = 40
"""Points below which every extra search is cheap and worth it."""
LS_NODES = 32
"""Exponents per axis of the least-squares profile."""
_HUBER_NODES = (10, 30)
_HUBER_WORK = 24_000
_IRLS_STEPS = 8
_NEWTON_STEPS = 30
_NEWTON_INNER = 3


@dataclass(frozen=True, eq=False)
class JointProfile:
    """Lowest objective at every pair of exponents."""

    alphas: Floats
    betas: Floats
    objective: Floats
    """``[len(alphas), len(betas)]``."""


@dataclass(frozen=True, eq=False)
class Surface:
    """Solutions at the nodes of an exponent grid; a diagonal of it when exponents are tied."""

    shape: tuple[int, ...]
    x: Floats
    """``[nodes, p]`` coordinates of :class:`analysis.fit.joint_problem.Problem`."""
    value: Floats
    """``[nodes]`` what was minimised at each node: the sum of squares, or the objective itself."""

    def starts(self, most: int = 8) -> Floats:
        """The lowest local minima, ``[k, p]``."""
        minima = np.flatnonzero(_local_minima(self.value.reshape(self.shape)))
        return self.x[minima[np.argsort(self.value[minima])][:most]]


@dataclass(frozen=True, eq=False)
class Sums:
    """Weighted sums over the points of every arm: ``[arms, nodes]``, or ``[arms, 1]``."""

    one: Floats
    n: Floats
    d: Floats
    nn: Floats
    dd: Floats
    nd: Floats
    y: Floats
    ny: Floats
    dy: Floats
    yy: Floats


def joint_profile(
    points: JointPoints,
    *,
    objective: ObjectiveName = "huber",
    delta: float = 1e-3,
    nodes: int = 30,
) -> JointProfile:
    """Profile surface of the objective for a figure.

    Parameters
    ----------
    points
        As for :func:`analysis.fit.joint.fit_joint`.
    objective, delta
        What is minimised over E, A, B at each node.
    nodes
        Exponents per axis, from 0.02 to 1.5.
    """
    problem = make_problem(points, Objective(objective, delta))
    grid = np.linspace(*EXPONENTS, nodes)
    surface = huber_surface(problem, grid) if objective == "huber" else ls_surface(problem, grid)
    return JointProfile(grid, grid, problem.value(surface.x).reshape(nodes, nodes))


def huber_nodes(n_points: int) -> int:
    """Exponents per axis that a Huber profile of this many points can afford."""
    low, high = _HUBER_NODES
    return int(np.clip(np.sqrt(_HUBER_WORK / n_points), low, high))


def ls_surface(problem: Problem, grid: Floats) -> Surface:
    """Least squares on L at every node; for a logarithmic objective relative residuals.

    Weights are ``w / L^2`` there, which makes a relative residual nearly a logarithmic one.

    Parameters
    ----------
    problem
        Points and objective.
    grid
        ``[k]`` exponents of either axis.
    """
    e, a, b, rss = _solve(_stack_ls(problem, grid), _highest(problem))
    alphas, betas, shape = _axes(problem, grid)
    return Surface(shape, _coordinates(problem, e, a, b, alphas, betas), rss)


def pinned_starts(problem: Problem, grid: Floats, pinned: Floats) -> Floats:
    """The node of least squares at every pinned E (nats, ``[k]``): coordinates ``[k, p]``."""
    sums = _stack_ls(problem, grid)
    alphas, betas, _ = _axes(problem, grid)
    rows = []
    for e in pinned:
        a, b, rss, _, _ = _solve_pair(sums, np.full(len(alphas), e))
        at = slice(i := int(np.argmin(rss)), i + 1)
        one = _coordinates(problem, np.array([e]), a[:, at], b[:, at], alphas[at], betas[at])
        rows.append(one[0])
    return np.array(rows)


def huber_surface(problem: Problem, grid: Floats) -> Surface:
    """The Huber objective at every node, by reweighted least squares for (E, A, B).

    The weight ``psi(r) / ((P - L) P)``, r = ln P - ln L, makes the fixed point stationary for the
    objective itself and not for an approximation of it.
    """
    alphas, betas, shape = _axes(problem, grid)
    start = ls_surface(problem, grid)
    arms = [
        (np.exp(-np.outer(alphas, block.u)), np.exp(-np.outer(betas, block.v)), block)
        for block in problem.blocks
    ]
    e, a, b = _coefficients(problem, start.x)
    for _ in range(_IRLS_STEPS):
        sums = []
        for k, (in_n, in_d, block) in enumerate(arms):
            predicted = e[:, None] + a[k][:, None] * in_n + b[k][:, None] * in_d
            weight = block.weight * _irls_weight(predicted, block.loss, problem.objective)
            sums.append(_node_sums(weight, in_n, in_d, block.loss))
        e, a, b, _ = _solve(_stack(sums), _highest(problem), start=e, steps=_NEWTON_INNER)
    x = _coordinates(problem, e, a, b, alphas, betas)
    value = problem.value(x)
    worse = ~(value <= (at_start := problem.value(start.x)))
    x[worse], value[worse] = start.x[worse], at_start[worse]
    return Surface(shape, x, value)


def _irls_weight(predicted: Floats, loss: Floats, objective: Objective) -> Floats:
    predicted = np.maximum(predicted, 1e-3 * loss)
    residual = np.log(predicted / loss)
    gap = predicted - loss
    near = np.abs(gap) < 1e-9 * loss
    per_gap = np.where(near, 1 / loss, residual / np.where(near, 1.0, gap))
    return np.asarray(point_loss(residual, objective).weight * per_gap / predicted)


def _axes(problem: Problem, grid: Floats) -> tuple[Floats, Floats, tuple[int, ...]]:
    """Exponents of every node, and the shape that the nodes fill."""
    if problem.tied:
        return grid, grid, grid.shape
    alphas, betas = np.meshgrid(grid, grid, indexing="ij")
    return alphas.ravel(), betas.ravel(), alphas.shape


def _stack_ls(problem: Problem, grid: Floats) -> Sums:
    return _stack([_ls_sums(problem, arm, grid) for arm in range(problem.n_arms)])


def _stack(arms: list[tuple[Floats, ...]]) -> Sums:
    return Sums(*(np.stack(column) for column in zip(*arms, strict=True)))


def _ls_sums(problem: Problem, arm: int, grid: Floats) -> tuple[Floats, ...]:
    """Sums of one arm over the grid: matrix products of ``[k, n]``, ten arrays ``[nodes or 1]``."""
    block = problem.blocks[arm]
    w = block.weight / block.loss**2 if problem.objective.logarithmic else block.weight
    in_n, in_d, y = np.exp(-np.outer(grid, block.u)), np.exp(-np.outer(grid, block.v)), block.loss
    cross = (in_n * w) @ in_d.T
    k = len(grid)

    def along(values: Floats, axis: int) -> Floats:
        if problem.tied:
            return values
        return np.repeat(values, k) if axis == 0 else np.tile(values, k)

    return (
        np.array([w.sum()]),
        along(in_n @ w, 0),
        along(in_d @ w, 1),
        along(in_n**2 @ w, 0),
        along(in_d**2 @ w, 1),
        np.diagonal(cross) if problem.tied else cross.ravel(),
        np.array([w @ y]),
        along(in_n @ (w * y), 0),
        along(in_d @ (w * y), 1),
        np.array([w @ (y * y)]),
    )


def _node_sums(w: Floats, in_n: Floats, in_d: Floats, y: Floats) -> tuple[Floats, ...]:
    """The same sums with weights ``[nodes, n]`` of their own at every node."""
    wn, wd = w * in_n, w * in_d
    return (
        w.sum(1),
        wn.sum(1),
        wd.sum(1),
        np.einsum("ij,ij->i", wn, in_n),
        np.einsum("ij,ij->i", wd, in_d),
        np.einsum("ij,ij->i", wn, in_d),
        w @ y,
        wn @ y,
        wd @ y,
        w @ (y * y),
    )


def _solve(
    sums: Sums,
    highest: float,
    *,
    start: Floats | None = None,
    steps: int = _NEWTON_STEPS,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Non-negative E ``[nodes]``, A and B ``[arms, nodes]`` of least squares, and its value.

    With A and B solved for, the sum of squares is convex in E with a piecewise linear derivative:
    Newton ends at its root in a few steps, a bracket keeps it from cycling.
    """
    nodes = sums.nn.shape[1]
    low, high = np.zeros(nodes), np.full(nodes, highest)
    e = 0.5 * high if start is None else np.minimum(start, high)
    for _ in range(steps):
        _, _, _, slope, bend = _solve_pair(sums, e)
        low, high = np.where(slope < 0, e, low), np.where(slope < 0, high, e)
        guess = e - slope / np.maximum(bend, 1e-300)
        outside = (guess <= low) & (low > 0) | (guess >= high)
        following = np.where(outside, 0.5 * (low + high), np.maximum(guess, 0.0))
        moved, e = np.abs(following - e), following
        if (moved <= 1e-13 * highest).all():
            break
    return e, *_solve_pair(sums, e)[:3]


def _solve_pair(sums: Sums, e: Floats) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    """A, B >= 0 at given E; the sum of squares, and its first two derivatives by E (halved)."""
    rn, rd = sums.ny - e * sums.n, sums.dy - e * sums.d
    det = sums.nn * sums.dd - sums.nd**2
    safe = np.where(det > 1e-14 * sums.nn * sums.dd, det, np.inf)
    a, b = (rn * sums.dd - rd * sums.nd) / safe, (rd * sums.nn - rn * sums.nd) / safe
    both = (a > 0) & (b > 0)
    only_n, only_d = np.maximum(rn, 0.0) / sums.nn, np.maximum(rd, 0.0) / sums.dd
    first = only_n * rn >= only_d * rd
    a = np.where(both, a, np.where(first, only_n, 0.0))
    b = np.where(both, b, np.where(first, 0.0, only_d))
    rss = (sums.yy - 2 * e * sums.y + e * e * sums.one - a * rn - b * rd).sum(0)
    slope = -(sums.y - e * sums.one - a * sums.n - b * sums.d).sum(0)
    taken_both = (sums.n**2 * sums.dd + sums.d**2 * sums.nn - 2 * sums.n * sums.d * sums.nd) / safe
    taken_one = np.where(a > 0, sums.n**2 / sums.nn, np.where(b > 0, sums.d**2 / sums.dd, 0.0))
    bend = (sums.one - np.where(both, taken_both, taken_one)).sum(0)
    return a, b, rss, slope, bend


def _highest(problem: Problem) -> float:
    return max(float(block.loss.max()) for block in problem.blocks)


def _coordinates(
    problem: Problem, e: Floats, a: Floats, b: Floats, alphas: Floats, betas: Floats
) -> Floats:
    smallest = SMALLEST_TERM * problem.scale
    logs = [np.log(np.maximum(term, smallest)) for term in (*a, *b)]
    exponents = [alphas] if problem.tied else [alphas, betas]
    return np.stack([e / problem.scale, *logs, *exponents], axis=1)


def _coefficients(problem: Problem, x: Floats) -> tuple[Floats, Floats, Floats]:
    k = problem.n_arms
    return x[:, 0] * problem.scale, np.exp(x[:, 1 : 1 + k]).T, np.exp(x[:, 1 + k : 1 + 2 * k]).T


def _local_minima(surface: Floats) -> Floats:
    """Nodes not above any of their neighbours, diagonal ones included."""
    padded = np.pad(surface, 1, constant_values=np.inf)
    lowest = np.ones(surface.shape, bool)
    for shift in np.ndindex(*(3,) * surface.ndim):
        at = tuple(slice(s, s + n) for s, n in zip(shift, surface.shape, strict=True))
        lowest &= surface <= padded[at]
    return lowest
