"""Loss against the block size S of a block residual: how coarse may depth attention get?

Three models of the trend are weighed by AICc: none, a line in ln S, a parabola in ln S. Where sizes
or seeds repeat, every S is compared with the best S on their common replicates; single runs give a
trend but no interval per S.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import BadValue, Interval, TooFewData, data_sha256
from analysis.fit.quantiles import aicc, t_quantile
from analysis.law_fit import Certificate, LawFit, linear_gradient
from analysis.laws import Floats

MIN_SIZES = 3
"""Distinct block sizes below which no trend is fitted."""
Codes = NDArray[np.intp]
_MODELS = ("constant", "linear", "quadratic")


@dataclass(frozen=True, kw_only=True)
class BlockSizeLevel:
    """One block size."""

    block_size: float
    loss_nats: float
    """In the mean replicate, nats."""
    n: int
    above_best: Interval
    """Loss minus that of the best S, paired over replicates, nats."""


@dataclass(frozen=True, kw_only=True)
class BlockSizeFit(LawFit):
    """The trend of loss along S."""

    levels: tuple[BlockSizeLevel, ...]
    best: float
    """S of the lowest mean loss."""
    largest_as_good: float | None
    """Largest S whose loss is not distinguishable from the best's; None without intervals."""
    trend: Interval
    """Change of loss per doubling of S by a line in ln S, nats."""
    model: str
    """What AICc prefers; with few points it asks for strong evidence."""
    coefficients: tuple[float, ...]
    """Of the chosen polynomial in centred ln S, highest power first, nats."""
    centre: float

    def curve(self, block_size: Floats | float) -> Floats:
        """Fitted loss at S, nats."""
        x = np.log(np.asarray(block_size, np.float64)) - self.centre
        return np.asarray(np.polyval(self.coefficients, x))


def fit_block_size(
    block_sizes: Sequence[float] | Floats,
    losses_nats: Sequence[float] | Floats,
    replicates: Sequence[Hashable] | None = None,
    *,
    level: float = 0.95,
) -> BlockSizeFit:
    """Fit the trend of loss along block size.

    Replicates shift all their losses together (a larger model, a lucky seed): each has an effect of
    its own in the least squares, ``L_rs = u_r + P(ln S)``, so S is compared within replicates.

    Parameters
    ----------
    block_sizes, losses_nats
        ``[n]`` sublayers per block and final loss.
    replicates
        ``[n]`` what a run shares with runs of other S: its size and seed. None: single runs.
    level
        Confidence level.

    Raises
    ------
    TooFewData
        Fewer than three block sizes, or replicates that no block size links.
    BadValue
        A number that is not positive and finite, or two runs of one S and replicate.
    """
    sizes, grid = _table(block_sizes, losses_nats, replicates)
    row, replicate = np.nonzero(~np.isnan(grid))
    y, centre = grid[row, replicate], float(np.log(sizes).mean())
    at = np.log(sizes)[row] - centre
    mean = _adjusted_means(grid)
    chosen, scores = _choose(at, y, replicate)
    found = _polynomial(at, y, replicate, chosen)
    best = int(np.argmin(mean))
    levels = tuple(_level(sizes, grid, mean, i, best, level) for i in range(len(sizes)))
    t = t_quantile(level, found.dof) if found.dof > 0 else np.nan
    names = [f"c{power}" for power in range(chosen, -1, -1)]
    errors = np.sqrt(np.diag(found.covariance))
    return BlockSizeFit(
        law="L = " + " + ".join(f"{name} x^{name[1:]}" for name in names) + ", x = centred ln S",
        method=f"least squares, replicate effects removed, model by AICc ({', '.join(scores)})",
        parameters={
            name: Interval(
                estimate=float(value),
                low=float(value - t * error) if found.dof > 0 else None,
                high=float(value + t * error) if found.dof > 0 else None,
                level=level,
                method=f"t interval, {found.dof} dof",
                reason=None if found.dof > 0 else "no degrees of freedom",
            )
            for name, value, error in zip(names, found.coefficients, errors, strict=True)
        },
        covariance=tuple(tuple(float(v) for v in line) for line in found.covariance),
        certificate=Certificate(objective=found.rss, gradient=found.gradient),
        domain={"S": (float(sizes.min()), float(sizes.max()))},
        n_points=len(y),
        n_levels=len(sizes),
        rms_nats=float(np.sqrt(found.rss / len(y))),
        notes=_notes(grid, levels),
        data_sha256=data_sha256(zip(at.tolist(), replicate.tolist(), y.tolist(), strict=True)),
        extras={"best_block_size": float(sizes[best])},
        levels=levels,
        best=float(sizes[best]),
        largest_as_good=_largest_as_good(levels),
        trend=_trend(at, y, replicate, level),
        model=_MODELS[chosen],
        coefficients=tuple(float(value) for value in found.coefficients),
        centre=centre,
    )


def _table(
    block_sizes: Sequence[float] | Floats,
    losses: Sequence[float] | Floats,
    replicates: Sequence[Hashable] | None,
) -> tuple[Floats, Floats]:
    """``[s]`` block sizes and ``[s, r]`` losses, NaN where a replicate lacks one."""
    s, loss = np.asarray(block_sizes, np.float64), np.asarray(losses, np.float64)
    if len(s) != len(loss) or (replicates is not None and len(replicates) != len(s)):
        raise BadValue(f"unequal lengths: {len(s)} block sizes, {len(loss)} losses")
    if not (np.isfinite(s) & (s > 0) & np.isfinite(loss) & (loss > 0)).all():
        raise BadValue("block sizes and losses must be positive and finite")
    sizes, row = np.unique(s, return_inverse=True)
    if len(sizes) < MIN_SIZES:
        raise TooFewData(f"a trend along block size needs {MIN_SIZES} of them, got {len(sizes)}")
    names = list(replicates) if replicates is not None else [0] * len(s)
    order = {name: i for i, name in enumerate(dict.fromkeys(names))}
    grid = np.full((len(sizes), len(order)), np.nan)
    for i, name, value in zip(row, names, loss, strict=True):
        if not np.isnan(grid[i, order[name]]):
            raise BadValue(f"two runs of block size {sizes[i]:g} in replicate {name}; average them")
        grid[i, order[name]] = value
    return sizes, grid


@dataclass(frozen=True, kw_only=True)
class _Polynomial:
    """Least squares of a polynomial with an effect per replicate."""

    coefficients: Floats
    """Highest power first; the constant is the mean over replicates."""
    covariance: Floats
    rss: float
    dof: int
    gradient: float


def _polynomial(x: Floats, y: Floats, replicate: Codes, degree: int) -> _Polynomial:
    """Powers and losses centred within replicates, which removes their effects exactly."""
    powers = np.vander(x, degree + 1)[:, :-1]
    inside, rest = _centred(powers, replicate), _centred(y[:, None], replicate)[:, 0]
    slopes: Floats = np.asarray(np.linalg.lstsq(inside, rest, rcond=None)[0], np.float64)
    residual = rest - inside @ slopes
    rss = float(residual @ residual)
    dof = len(y) - len(np.unique(replicate)) - degree
    variance = rss / max(1, dof)
    block = np.linalg.inv(inside.T @ inside) * variance if degree else np.zeros((0, 0))
    middle = powers.mean(axis=0)
    cross = -(block @ middle)
    corner = variance / len(y) + middle @ block @ middle
    covariance = np.block([[block, cross[:, None]], [cross[None, :], np.array([[corner]])]])
    return _Polynomial(
        coefficients=np.append(slopes, y.mean() - middle @ slopes),
        covariance=np.asarray(covariance, np.float64),
        rss=rss,
        dof=dof,
        gradient=linear_gradient(inside, residual) if degree else 0.0,
    )


def _centred(columns: Floats, replicate: Codes) -> Floats:
    member = np.eye(replicate.max() + 1)[replicate]
    means = (member.T @ columns) / member.sum(axis=0)[:, None]
    return np.asarray(columns - means[replicate])


def _adjusted_means(grid: Floats) -> Floats:
    """Loss of each S in the mean replicate, whichever replicates ran it: two-way least squares."""
    row, replicate = np.nonzero(~np.isnan(grid))
    n_sizes, n_replicates = grid.shape
    design = np.hstack([np.eye(n_sizes)[row], np.eye(n_replicates)[replicate][:, 1:]])
    if np.linalg.matrix_rank(design) < design.shape[1]:
        raise TooFewData(
            "some block sizes ran only where the others did not (other sizes or seeds), so they "
            "cannot be compared; run them at a common size and seed"
        )
    found = np.linalg.lstsq(design, grid[row, replicate], rcond=None)[0]
    return np.asarray(found[:n_sizes] + found[n_sizes:].sum() / n_replicates)


def _choose(x: Floats, y: Floats, replicate: Codes) -> tuple[int, list[str]]:
    """Degree with the lowest AICc, and all scores in words."""
    highest = min(2, len(np.unique(x)) - 2)
    n_replicates = len(np.unique(replicate))
    found = [
        aicc(_polynomial(x, y, replicate, degree).rss, len(y), degree + n_replicates)
        for degree in range(highest + 1)
    ]
    words = [f"{name} {score:.1f}" for name, score in zip(_MODELS, found, strict=False)]
    return int(np.argmin(found)), words


def _trend(x: Floats, y: Floats, replicate: Codes, level: float) -> Interval:
    found = _polynomial(x, y, replicate, 1)
    slope, error = (
        float(np.log(2) * v) for v in (found.coefficients[0], np.sqrt(found.covariance[0, 0]))
    )
    method = f"line in ln S, t interval, {found.dof} dof"
    if found.dof < 1:
        return Interval(estimate=slope, method=method, level=level, reason="too few points")
    half = t_quantile(level, found.dof) * error
    return Interval(estimate=slope, low=slope - half, high=slope + half, level=level, method=method)


def _level(
    sizes: Floats, grid: Floats, mean: Floats, i: int, best: int, level: float
) -> BlockSizeLevel:
    gap = grid[i] - grid[best]
    gap = gap[~np.isnan(gap)]
    n = int((~np.isnan(grid[i])).sum())
    method = f"paired t interval, {max(0, len(gap) - 1)} dof"
    low = high = reason = None
    if i == best:
        low = high = 0.0
    elif len(gap) < 2:
        reason = f"{len(gap)} common replicate: at least 2 needed"
    else:
        half = t_quantile(level, len(gap) - 1) * float(gap.std(ddof=1)) / np.sqrt(len(gap))
        low, high = float(gap.mean() - half), float(gap.mean() + half)
    above = Interval(
        estimate=float(gap.mean()) if len(gap) else None,
        low=low,
        high=high,
        level=level,
        method=method,
        reason=reason,
    )
    return BlockSizeLevel(
        block_size=float(sizes[i]), loss_nats=float(mean[i]), n=n, above_best=above
    )


def _largest_as_good(levels: Sequence[BlockSizeLevel]) -> float | None:
    known = [at for at in levels if at.above_best.bounded]
    if len(known) < len(levels):
        return None
    return max(at.block_size for at in known if not at.above_best.excludes(0.0))


def _notes(grid: Floats, levels: Sequence[BlockSizeLevel]) -> tuple[str, ...]:
    notes = []
    if grid.shape[1] == 1:
        notes.append(
            "single_runs: one run per block size, so no block size has an interval; the trend's "
            "interval comes from the scatter around it"
        )
    elif np.isnan(grid).any():
        notes.append("incomplete: not every replicate has every block size")
    return tuple(notes)
