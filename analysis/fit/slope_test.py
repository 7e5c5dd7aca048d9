"""Do the arms share one exponent? F-test and AICc of separate slopes, paired by size.

Arms trained at the same sizes share deviations (data order, shape, schedule). The test therefore
works on the differences from the mean over arms at each size: every size has a free effect of its
own, and slopes are compared within sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from analysis.cells import CellPoint, n_levels
from analysis.estimates import Interval, TooFewData
from analysis.fit.quantiles import aicc, f_tail, t_quantile
from analysis.fit.shared_solve import Table, fit_line
from analysis.laws import Floats, log_excess

MIN_SIZES = 3


@dataclass(frozen=True, kw_only=True)
class SlopeTest:
    """Shared against separate exponents."""

    f: float
    p: float
    dof: tuple[int, int]
    """Of the numerator and of the residuals."""
    aicc_shared: float
    aicc_separate: float
    """Infinite where separate slopes leave too few points to compare."""
    slopes: Mapping[str, Interval]
    """Each arm's own exponent, t interval with n - 2 dof."""
    differences: Mapping[str, Interval]
    """Each arm's exponent minus the mean over arms, from the paired differences."""
    preferred: Literal["shared", "separate"]
    text: str


def slope_test(
    points: Sequence[CellPoint], asymptote: float = 0.0, *, level: float = 0.95
) -> SlopeTest:
    """Test whether the arms' exponents differ.

    ``z_ij = ln(L - E)_ij + s (x_ij - x_j)`` carries arm i at size j to the size's mean ln C with
    the shared slope s. The two models are ``z_ij = u_j + c_i`` and ``z_ij = u_j + c_i - d_i x_j``;
    with all arms at all n sizes the F-test has (k - 1) and (k - 1)(n - 2) degrees of freedom. AICc
    counts the contrasts within sizes as observations.

    Parameters
    ----------
    points
        One per arm and size.
    asymptote
        Pinned E, nats.
    level
        Confidence level; separate slopes are preferred when p < 1 - level and AICc agrees.

    Raises
    ------
    TooFewData
        Fewer than two arms that share three sizes.
    """
    if not points:
        raise TooFewData("no point to compare exponents from")
    table = _paired(Table.of(points))
    levels = n_levels(table.x)
    if levels < MIN_SIZES:
        raise TooFewData(f"comparing exponents needs {MIN_SIZES} compute levels, got {levels}")
    y = log_excess(table.loss, asymptote)
    shared = fit_line(table, y, asymptote)
    at_size = _size_means(table)
    z = y + shared.alpha * (table.x - at_size)
    arms, sizes = table.indicators, np.eye(table.n_sizes)[table.size]
    trend = arms * (at_size - at_size.mean())[:, None]
    rss_shared, rank_shared = _rss(np.hstack([sizes, arms]), z)
    rss_separate, rank = _rss(np.hstack([sizes, arms, -trend]), z)
    used_sizes = len(np.unique(table.size))
    contrasts, extra = len(z) - used_sizes, rank - rank_shared
    dof = len(z) - rank
    f = _ratio((rss_shared - rss_separate) / extra, rss_separate / dof)
    p = f_tail(f, extra, dof)
    few = aicc(rss_shared, contrasts, rank_shared - used_sizes)
    many = aicc(rss_separate, contrasts, rank - used_sizes)
    separate = p < 1 - level and many < few
    return SlopeTest(
        f=f,
        p=p,
        dof=(extra, dof),
        aicc_shared=few,
        aicc_separate=many,
        slopes={arm: _slope(table, y, i, level) for i, arm in enumerate(table.arms)},
        differences=_differences(table, z, at_size, rss_separate / dof, dof, level),
        preferred="separate" if separate else "shared",
        text=_text(f, p, (extra, dof), few, many, separate),
    )


def _paired(table: Table) -> Table:
    """Keep sizes with two arms or more, and arms with three such sizes or more."""
    keep = np.ones(len(table.x), bool)
    while True:
        per_size = np.bincount(table.size[keep], minlength=table.n_sizes)
        alone = keep & (per_size[table.size] < 2)
        per_arm = np.bincount(table.arm[keep & ~alone], minlength=len(table.arms))
        short = keep & (per_arm[table.arm] < MIN_SIZES)
        if not (alone | short).any():
            break
        keep &= ~(alone | short)
    if not keep.any():
        raise TooFewData(
            f"comparing exponents needs two arms that share {MIN_SIZES} sizes; "
            "train the arms at the same sizes"
        )
    kept = sorted(set(table.arm[keep].tolist()))
    if len(kept) < 2:
        raise TooFewData("one arm: comparing exponents needs two that share sizes")
    sizes = sorted(set(table.size[keep].tolist()))
    return Table(
        x=table.x[keep],
        loss=table.loss[keep],
        arms=tuple(table.arms[i] for i in kept),
        arm=np.array([kept.index(i) for i in table.arm[keep]]),
        size=np.array([sizes.index(i) for i in table.size[keep]]),
        n_sizes=len(sizes),
    )


def _size_means(table: Table) -> Floats:
    """Mean ln C over the arms at each point's size, ``[n]``."""
    count = np.bincount(table.size)
    return np.asarray((np.bincount(table.size, weights=table.x) / count)[table.size])


def _rss(design: Floats, y: Floats) -> tuple[float, int]:
    solution, _, rank, _ = np.linalg.lstsq(design, y, rcond=1e-10)
    residual = y - design @ solution
    return float(residual @ residual), int(rank)


def _slope(table: Table, y: Floats, arm: int, level: float) -> Interval:
    at = table.arm == arm
    x, z = table.x[at] - table.x[at].mean(), y[at] - y[at].mean()
    alpha = -float(x @ z) / float(x @ x)
    residual, dof = z + alpha * x, int(at.sum()) - 2
    half = t_quantile(level, dof) * np.sqrt(float(residual @ residual) / dof / float(x @ x))
    return Interval(
        estimate=alpha,
        low=float(alpha - half),
        high=float(alpha + half),
        level=level,
        method="least squares of the arm alone, n - 2 dof",
    )


def _differences(
    table: Table, z: Floats, at_size: Floats, variance: float, dof: int, level: float
) -> dict[str, Interval]:
    """Exponent of each arm minus the mean over arms, in the model with separate slopes."""
    k = len(table.arms)
    sizes = np.eye(table.n_sizes)[table.size]
    trend = table.indicators * (at_size - at_size.mean())[:, None]
    design = np.hstack([sizes, table.indicators, -trend])
    inverse = np.linalg.pinv(design, rcond=1e-10)
    contrast = np.hstack([np.zeros((k, design.shape[1] - k)), np.eye(k) - 1 / k]) @ inverse
    estimate = contrast @ z
    half = t_quantile(level, dof) * np.sqrt(variance * (contrast * contrast).sum(axis=1))
    return {
        arm: Interval(
            estimate=float(estimate[i]),
            low=float(estimate[i] - half[i]),
            high=float(estimate[i] + half[i]),
            level=level,
            method=f"paired by size, {dof} dof",
        )
        for i, arm in enumerate(table.arms)
    }


def _ratio(numerator: float, denominator: float) -> float:
    if denominator > 0:
        return max(numerator, 0.0) / denominator
    return float("inf") if numerator > 0 else 0.0


def _text(f: float, p: float, dof: tuple[int, int], few: float, many: float, separate: bool) -> str:
    if np.isinf(many):
        criterion = "AICc cannot judge separate slopes on so few points"
    else:
        criterion = f"AICc of separate slopes minus shared {many - few:+.1f}"
    verdict = (
        "the exponents differ: read multipliers by size"
        if separate
        else "one shared exponent suffices"
    )
    return (
        f"{verdict} (F({dof[0]}, {dof[1]}) = {f:.3g}, p = {p:.2g}; {criterion}; on the differences "
        "from the mean over arms at each size, because arms share a size's deviation)"
    )
