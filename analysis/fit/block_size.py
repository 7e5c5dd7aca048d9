"""Loss against the block size S of a block residual: how coarse may depth attention get?

Three models of the trend are weighed by AICc: none, a line in ln S, a parabola in ln S. Where sizes
or seeds repeat, every S is compared with the best S on their common replicates; single runs give a
trend but no interval per S.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimates import BadValue, Interval, TooFewData, data_sha256
from analysis.fit.quantiles import aicc, t_quantile
from analysis.law_fit import Certificate, LawFit, linear_gradient
from analysis.laws import Floats

MIN_SIZES = 3
"""Distinct block sizes below which no trend is fitted."""
_MODELS = ("constant", "linear", "quadratic")


@dataclass(frozen=True, kw_only=True)
class BlockSizeLevel:
    """One block size."""

    block_size: float
    loss_nats: float
    """Mean over replicates."""
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

    Replicates shift all their losses together (a larger model, a lucky seed); their effects are
    removed by centring before the trend is fitted, and S is compared within replicates.

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
        Fewer than three block sizes.
    BadValue
        A number that is not positive and finite, or two runs of one S and replicate.
    """
    table = _table(block_sizes, losses_nats, replicates)
    sizes, grid = table
    mean = np.nanmean(grid, axis=1)
    effect = np.nanmean(grid - mean[:, None], axis=0)
    x = np.log(np.repeat(sizes, grid.shape[1])).reshape(grid.shape)
    kept = ~np.isnan(grid)
    centre = float(np.log(sizes).mean())
    y, at = (grid - effect)[kept], x[kept] - centre
    n_effects = grid.shape[1] - 1
    chosen, scores = _choose(at, y, n_effects)
    coefficients, covariance, rss = _polynomial(at, y, chosen, n_effects)
    design = np.vander(at, chosen + 1)
    best = int(np.argmin(mean))
    levels = tuple(_level(sizes, grid, i, best, level) for i in range(len(sizes)))
    dof = len(y) - n_effects - chosen - 1
    t = t_quantile(level, dof) if dof > 0 else np.nan
    names = [f"c{power}" for power in range(chosen, -1, -1)]
    errors = np.sqrt(np.diag(covariance))
    return BlockSizeFit(
        law="L = " + " + ".join(f"{name} x^{name[1:]}" for name in names) + ", x = centred ln S",
        method=f"least squares, replicate effects removed, model by AICc ({', '.join(scores)})",
        parameters={
            name: Interval(
                estimate=float(value),
                low=float(value - t * error) if dof > 0 else None,
                high=float(value + t * error) if dof > 0 else None,
                level=level,
                method=f"t interval, {dof} dof",
                reason=None if dof > 0 else "no degrees of freedom",
            )
            for name, value, error in zip(names, coefficients, errors, strict=True)
        },
        covariance=tuple(tuple(float(v) for v in row) for row in covariance),
        certificate=Certificate(
            objective=rss,
            gradient=linear_gradient(design, y - design @ coefficients),
        ),
        domain={"S": (float(sizes.min()), float(sizes.max()))},
        n_points=len(y),
        n_levels=len(sizes),
        rms_nats=float(np.sqrt(rss / len(y))),
        notes=_notes(grid, levels),
        data_sha256=data_sha256(zip(x[kept].tolist(), grid[kept].tolist(), strict=True)),
        extras={"best_block_size": float(sizes[best])},
        levels=levels,
        best=float(sizes[best]),
        largest_as_good=_largest_as_good(levels),
        trend=_trend(at, y, n_effects, level),
        model=_MODELS[chosen],
        coefficients=tuple(float(value) for value in coefficients),
        centre=centre,
    )


def _table(
    block_sizes: Sequence[float] | Floats,
    losses: Sequence[float] | Floats,
    replicates: Sequence[Hashable] | None,
) -> tuple[Floats, Floats]:
    """``[s]`` block sizes and ``[s, r]`` losses, NaN where a replicate lacks one."""
    s, loss = np.asarray(block_sizes, np.float64), np.asarray(losses, np.float64)
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


def _choose(x: Floats, y: Floats, n_effects: int) -> tuple[int, list[str]]:
    """Degree with the lowest AICc, and all scores in words."""
    highest = min(2, len(np.unique(x)) - 2)
    found = [
        aicc(_polynomial(x, y, degree, n_effects)[2], len(y), degree + 1 + n_effects)
        for degree in range(highest + 1)
    ]
    words = [f"{name} {score:.1f}" for name, score in zip(_MODELS, found, strict=False)]
    return int(np.argmin(found)), words


def _trend(x: Floats, y: Floats, n_effects: int, level: float) -> Interval:
    coefficients, covariance, _ = _polynomial(x, y, 1, n_effects)
    dof = len(y) - n_effects - 2
    slope, error = (float(np.log(2) * v) for v in (coefficients[0], np.sqrt(covariance[0, 0])))
    method = f"line in ln S, t interval, {dof} dof"
    if dof < 1:
        return Interval(estimate=slope, method=method, level=level, reason="too few points")
    half = t_quantile(level, dof) * error
    return Interval(estimate=slope, low=slope - half, high=slope + half, level=level, method=method)


def _polynomial(x: Floats, y: Floats, degree: int, n_effects: int) -> tuple[Floats, Floats, float]:
    design = np.vander(x, degree + 1)
    coefficients: Floats = np.linalg.lstsq(design, y, rcond=None)[0].astype(np.float64)
    rss = float(((y - design @ coefficients) ** 2).sum())
    dof = max(1, len(y) - n_effects - degree - 1)
    covariance: Floats = np.linalg.inv(design.T @ design).astype(np.float64) * (rss / dof)
    return coefficients, covariance, rss


def _level(sizes: Floats, grid: Floats, i: int, best: int, level: float) -> BlockSizeLevel:
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
        block_size=float(sizes[i]), loss_nats=float(np.nanmean(grid[i])), n=n, above_best=above
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
