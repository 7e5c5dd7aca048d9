"""The paired comparison of ``analysis.compare`` for thousands of studies at once.

The same formulas as :mod:`analysis.compare.fieller` and :mod:`analysis.compare.holm` on arrays; a
test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from analysis.cells import SAME_LEVEL
from analysis.compare.types import MIN_SIZES
from analysis.fit.quantiles import t_quantile
from analysis.laws import Floats
from analysis.simulate.declared import DeclaredGrid


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Multipliers of many studies, ``[studies, arms - 1]`` each."""

    ratio: Floats
    """NaN where undefined."""
    low: Floats
    """NaN where unbounded."""
    high: Floats
    p: Floats
    """Of rho = 1; NaN where not tested."""

    @property
    def bounded(self) -> NDArray[np.bool_]:
        """Both ends are there."""
        return np.isfinite(self.low) & np.isfinite(self.high)

    def excludes(self, value: float) -> NDArray[np.bool_]:
        """The bounded intervals that leave a value out."""
        return self.bounded & ((value < self.low) | (value > self.high))


@dataclass(frozen=True, kw_only=True)
class SizeMeans:
    """Means over the matched runs at each size, ``[studies, arms - 1, sizes]``; NaN for none."""

    x_base: Floats
    x_arm: Floats
    y_base: Floats
    y_arm: Floats


def size_means(grid: DeclaredGrid, losses: Floats, asymptote: float = 0.0) -> SizeMeans:
    """Average matched runs to one pair per arm and size (:func:`analysis.cells.pair_points`).

    Parameters
    ----------
    grid
        Compute and matches.
    losses
        ``[studies, arms, matches]`` nats; NaN for a run without one.
    asymptote
        Pinned E, nats.
    """
    with np.errstate(invalid="ignore"):
        y = np.log(losses - asymptote)
    both = np.isfinite(y[:, 1:]) & np.isfinite(y[:, :1])
    counts = np.add.reduceat(both.astype(np.float64), grid.starts, axis=2)
    counts[counts == 0] = np.nan

    def mean(values: Floats) -> Floats:
        totals = np.add.reduceat(np.where(both, values, 0.0), grid.starts, axis=2)
        return np.asarray(totals / counts, dtype=np.float64)

    x = grid.log_compute
    return SizeMeans(
        x_base=mean(x[None, :1]),
        x_arm=mean(x[None, 1:]),
        y_base=mean(y[:, :1]),
        y_arm=mean(y[:, 1:]),
    )


def ratios(means: SizeMeans, level: float = 0.95) -> Ratios:
    """Paired Fieller estimate and test of each study and arm.

    :func:`analysis.compare.fieller.iso_loss_ratio` and ``p_value`` on arrays.
    """
    n = np.isfinite(means.y_base).sum(axis=-1).astype(np.float64)
    x_base, x_arm = _centred(means.x_base), _centred(means.x_arm)
    y_base, y_arm = _centred(means.y_base), _centred(means.y_arm)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        s_xx = np.nansum(x_base**2 + x_arm**2, axis=-1)
        slope = -np.nansum(x_base * y_base + x_arm * y_arm, axis=-1) / s_xx
        bend = slope[..., None]
        rss = np.nansum((y_base + bend * x_base) ** 2 + (y_arm + bend * x_arm) ** 2, axis=-1)
        v_s = rss / (2 * n - 3) / s_xx
        gap = means.x_base - means.x_arm
        z = (means.y_base - means.y_arm) + bend * gap
        shift, z_mean = np.nansum(gap, axis=-1) / n, np.nansum(z, axis=-1) / n
        v_m = np.nansum((z - z_mean[..., None]) ** 2, axis=-1) / (n - 1) / n
        m = z_mean - slope * shift
        ratio = np.exp(m / slope + shift)
        lead = slope**2 - _t_squared(n, level) * v_s
        inner = (m * slope) ** 2 - lead * (m**2 - _t_squared(n, level) * v_m)
        root = np.sqrt(np.maximum(0.0, inner))
        low, high = (np.exp(shift + (m * slope + sign * root) / lead) for sign in (-1, 1))
        p = _p(m + slope * shift, v_m + shift**2 * v_s, n)
    defined = (_levels(means.x_base) >= 2) & (slope > 0)
    tested = defined & (n >= MIN_SIZES)
    closed = tested & (lead > 0)
    return Ratios(
        ratio=np.where(defined, ratio, np.nan),
        low=np.where(closed, low, np.nan),
        high=np.where(closed, high, np.nan),
        p=np.where(tested, p, np.nan),
    )


def holm(p: Floats) -> Floats:
    """Holm-adjusted p-values along the last axis; NaN were not tested and do not count."""
    order = np.argsort(p, axis=-1)
    ranked = np.take_along_axis(p, order, axis=-1)
    tested = np.isfinite(p).sum(axis=-1, keepdims=True)
    raised = np.minimum(1.0, (tested - np.arange(p.shape[-1])) * ranked)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(raised, axis=-1), axis=-1)
    return adjusted


def _centred(values: Floats) -> Floats:
    counts = np.maximum(1, np.isfinite(values).sum(axis=-1, keepdims=True))
    return np.asarray(values - np.nansum(values, axis=-1, keepdims=True) / counts)


def _t_squared(n: Floats, level: float) -> Floats:
    quantiles = [np.nan] * MIN_SIZES
    quantiles += [t_quantile(level, k - 1) for k in range(MIN_SIZES, int(n.max(initial=0)) + 1)]
    return np.asarray(quantiles)[n.astype(np.int64)] ** 2


def _p(gap: Floats, variance: Floats, n: Floats) -> Floats:
    """Two-sided; a difference without any scatter is certain, none at all is no evidence."""
    p = 2 * stdtr(np.maximum(n - 1, 1), -np.abs(gap) / np.sqrt(variance))
    return np.where(variance > 0, p, np.where(gap == 0, 1.0, 0.0))


def _levels(x: Floats) -> NDArray[np.int64]:
    """Compute levels of each study (:func:`analysis.cells.n_levels`)."""
    gaps = np.diff(np.sort(x, axis=-1), axis=-1)  # NaN sort last
    present = np.isfinite(x).any(axis=-1)
    return np.where(present, 1 + (gaps > np.log(SAME_LEVEL)).sum(axis=-1), 0)
