"""Seed noise from replicates: how far one run's loss is from its cell's mean, and where.

Also what a law's residuals say beside it: whether their variance changes along an axis, and whether
they are larger than seeds alone would make them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.estimates import BadValue, Interval, TooFewData
from analysis.fit.quantiles import chi2_quantile, chi2_tail, f_tail
from analysis.laws import Floats

ALPHA = 0.05
"""Significance of the tests that add a note."""
MIN_CELLS_TREND = 3
"""Cells with replicates below which no trend of the noise is sought."""


@dataclass(frozen=True, kw_only=True)
class NoiseLevel:
    """Replicates of one cell."""

    cell: str
    loss_nats: float
    """Mean over the replicates."""
    sd_nats: float
    n: int


@dataclass(frozen=True, kw_only=True)
class NoiseModel:
    """Standard deviation of a single run's loss over seeds."""

    sd_nats: Interval
    """Pooled within cells, chi-square interval."""
    relative_sd: Interval
    """Of ln L: sd over loss."""
    by_level: tuple[NoiseLevel, ...]
    """Cells with replicates, highest loss first."""
    dof: int
    """Replicates less cells."""
    n_replicates: int
    """Runs in cells with two or more."""
    n_cells: int
    power: float | None
    """gamma of ``sd = s (L / L0)^gamma``; None below three cells."""
    power_p: float | None
    """Score test of gamma = 0."""
    depends_on_loss: bool
    """The test rejects gamma = 0 at 5%."""
    loss_centre: float
    """L0, geometric mean over cells weighted by their degrees of freedom, nats."""
    scale_nats: float
    """s, nats."""
    notes: tuple[str, ...]
    text: str

    def sd_at(self, loss_nats: Floats | float) -> Floats:
        """Noise at a loss, nats: pooled, or ``s (L / L0)^gamma`` where it depends on loss."""
        loss = np.asarray(loss_nats, np.float64)
        if not self.depends_on_loss or self.power is None:
            return np.full_like(loss, self.sd_nats.estimate or 0.0)
        return np.asarray(self.scale_nats * (loss / self.loss_centre) ** self.power)


def fit_noise(
    losses: Sequence[float] | Floats,
    cells: Sequence[Hashable],
    *,
    level: float = 0.95,
) -> NoiseModel:
    """Seed noise from runs that differ in their seed alone.

    The pooled variance is ``sum_c sum_i (L_ci - mean_c)^2 / sum_c (n_c - 1)`` with a chi-square
    interval. Whether it changes with loss is a score test of gamma = 0 in
    ``ln sd_c = ln s + gamma ln(L_c / L0)``, each cell's sample variance being chi-square about its
    own; gamma is the maximum-likelihood estimate.

    Parameters
    ----------
    losses
        ``[n]`` final losses in nats, every run.
    cells
        ``[n]`` what a run shares with its replicates: configuration and budget without the seed.
    level
        Confidence level.

    Raises
    ------
    TooFewData
        No cell has two runs.
    BadValue
        A loss that is not positive and finite, or lengths that differ.
    """
    loss = np.asarray(losses, np.float64)
    if len(loss) != len(cells):
        raise BadValue(f"{len(loss)} losses, {len(cells)} cells: give one cell per loss")
    if not (np.isfinite(loss) & (loss > 0)).all():
        raise BadValue("every loss must be positive and finite")
    groups = _replicated(loss, cells)
    if not groups:
        raise TooFewData("seed noise needs two runs that differ in nothing but the seed")
    dof = np.array([len(group) - 1 for _, group in groups])
    variance = np.array([group.var(ddof=1) for _, group in groups])
    mean = np.array([group.mean() for _, group in groups])
    relative = np.array([np.log(group).var(ddof=1) for _, group in groups])
    pooled = _pooled(dof, variance, level)
    centre = float(np.exp(dof @ np.log(mean) / dof.sum()))
    power, p, scale = _trend(dof, variance, np.log(mean / centre))
    depends = p is not None and p < ALPHA
    notes = _notes(dof, depends, power, p)
    return NoiseModel(
        sd_nats=pooled,
        relative_sd=_pooled(dof, relative, level),
        by_level=_levels(groups),
        dof=int(dof.sum()),
        n_replicates=int(sum(len(group) for _, group in groups)),
        n_cells=len(groups),
        power=power,
        power_p=p,
        depends_on_loss=depends,
        loss_centre=centre,
        scale_nats=scale if depends else (pooled.estimate or 0.0),
        notes=notes,
        text=_text(pooled, int(dof.sum()), len(groups), notes),
    )


def weights_from_sd(sd: Sequence[float] | Floats) -> Floats:
    """Weights of squared residuals, ``1 / sd^2``, for :func:`analysis.fit.power.fit_power`.

    A ``scipy.optimize.curve_fit`` takes ``sigma=sd`` instead; ``sigma=1/sd**2`` turns the weights
    upside down.

    Raises
    ------
    BadValue
        A standard deviation that is not positive and finite.
    """
    values = np.asarray(sd, np.float64)
    if not (np.isfinite(values) & (values > 0)).all():
        raise BadValue("every standard deviation must be positive and finite")
    return np.asarray(1 / values**2)


def interpolated_sd(
    loss_nats: Floats | float, low: tuple[float, float], high: tuple[float, float]
) -> Floats:
    """Noise between two known (loss, sd), linear in logs and flat beyond them.

    Porian et al. 2024, arXiv 2406.19146: from 0.002 nats at low loss to 0.05 at high loss.
    """
    at = np.log(np.asarray(loss_nats, np.float64))
    ends = np.log([low[0], high[0]]), np.log([low[1], high[1]])
    return np.asarray(np.exp(np.interp(at, *ends)))


@dataclass(frozen=True, kw_only=True)
class VarianceTrend:
    """Does the variance of residuals change along an axis?"""

    statistic: float
    p: float
    note: str | None
    """``residual_variance_depends_on_compute: ...`` where it does."""


def variance_trend(
    x: Sequence[float] | Floats, residuals: Sequence[float] | Floats, *, axis: str = "compute"
) -> VarianceTrend:
    """Studentised Breusch-Pagan test of residuals against ``ln x``.

    ``n R^2`` of the squared residuals on ln x, chi-square with one degree of freedom (Koenker
    1981): asks nothing of the residuals' shape.

    Raises
    ------
    TooFewData
        Fewer than four points, or one value of x.
    """
    u = np.asarray(residuals, np.float64) ** 2
    z = np.log(np.asarray(x, np.float64))
    z = z - z.mean()
    n, spread = len(u), float(z @ z)
    if n < 4 or spread == 0:
        raise TooFewData("a trend of the residual variance needs four points at different x")
    total = float(((u - u.mean()) ** 2).sum())
    slope = float(z @ u) / spread
    statistic = n * slope * slope * spread / total if total > 0 else 0.0
    p = chi2_tail(statistic, 1)
    note = None
    if p < ALPHA:
        way = "grows" if slope > 0 else "falls"
        note = (
            f"residual_variance_depends_on_{axis}: it {way} with {axis} (p = {p:.2g}); "
            "weight by 1/sd^2"
        )
    return VarianceTrend(statistic=statistic, p=p, note=note)


@dataclass(frozen=True, kw_only=True)
class LackOfFit:
    """A law's residuals against seed noise."""

    f: float
    p: float
    dof: tuple[int, int]
    note: str | None
    """``lack_of_fit: ...`` where the law misses more than seeds explain."""


def lack_of_fit(
    residuals: Sequence[float] | Floats,
    n_unknowns: int,
    noise: NoiseModel,
    *,
    n_seeds: Sequence[int] | None = None,
) -> LackOfFit:
    """F-test of a law's residuals against pooled seed noise.

    ``F = [sum_i n_i r_i^2 / (n - p)] / s^2`` with n - p and the noise's degrees of freedom: above 1
    when the law, not the seeds, makes the misses.

    Parameters
    ----------
    residuals
        ``[n]`` of cell means, nats.
    n_unknowns
        p, unknowns the law was fitted with.
    noise
        From replicates of the same runs, or of others like them.
    n_seeds
        ``[n]`` runs behind each mean; one each unless given.

    Raises
    ------
    TooFewData
        No degree of freedom is left.
    """
    r = np.asarray(residuals, np.float64)
    counts = np.ones(len(r)) if n_seeds is None else np.asarray(n_seeds, np.float64)
    dof = len(r) - n_unknowns
    if dof < 1:
        raise TooFewData(f"lack of fit needs more than {n_unknowns} cell means, got {len(r)}")
    variance = (noise.sd_nats.estimate or 0.0) ** 2
    mean_square = float(counts @ (r * r)) / dof
    f = mean_square / variance if variance > 0 else math.inf
    p = f_tail(f, dof, noise.dof) if math.isfinite(f) else 0.0
    note = None
    if p < ALPHA:
        note = (
            f"lack_of_fit: residuals are {math.sqrt(f):.1f} times what seeds alone would make "
            f"(F({dof}, {noise.dof}) = {f:.3g}, p = {p:.2g}); the law or the sizes deviate"
        )
    return LackOfFit(f=f, p=p, dof=(dof, noise.dof), note=note)


def _replicated(loss: Floats, cells: Sequence[Hashable]) -> list[tuple[str, Floats]]:
    by_cell: dict[Hashable, list[float]] = {}
    for value, cell in zip(loss.tolist(), cells, strict=True):
        by_cell.setdefault(cell, []).append(value)
    return [(str(cell), np.array(v)) for cell, v in by_cell.items() if len(v) > 1]


def _pooled(dof: Floats, variance: Floats, level: float) -> Interval:
    total = int(dof.sum())
    squares = float(dof @ variance)
    ends = [math.sqrt(squares / chi2_quantile(0.5 + sign * level / 2, total)) for sign in (1, -1)]
    return Interval(
        estimate=math.sqrt(squares / total),
        low=ends[0],
        high=ends[1],
        level=level,
        method=f"pooled within cells, chi-square with {total} dof",
    )


def _trend(
    dof: Floats, variance: Floats, log_loss: Floats
) -> tuple[float | None, float | None, float]:
    """gamma, its p-value and the scale s; gamma is None where it cannot be sought."""
    pooled = float(dof @ variance / dof.sum())
    spread = float(dof @ log_loss**2)
    if len(dof) < MIN_CELLS_TREND or spread < 1e-12 or not (variance > 0).all():
        return None, None, math.sqrt(pooled)
    score = float(dof * (variance / pooled - 1) @ log_loss) / 2
    p = chi2_tail(score**2 / (spread / 2), 1)
    intercept, slope = math.log(pooled), 0.0
    for _ in range(100):
        fitted = np.exp(intercept + slope * log_loss)
        working = variance / fitted - 1
        steps = float(dof @ working / dof.sum()), float(dof * working @ log_loss / spread)
        intercept, slope = intercept + np.clip(steps[0], -1, 1), slope + np.clip(steps[1], -5, 5)
        if max(abs(steps[0]), abs(steps[1])) < 1e-12:
            break
    return float(slope) / 2, p, math.exp(float(intercept) / 2)


def _levels(groups: Sequence[tuple[str, Floats]]) -> tuple[NoiseLevel, ...]:
    found = [
        NoiseLevel(cell=cell, loss_nats=float(v.mean()), sd_nats=float(v.std(ddof=1)), n=len(v))
        for cell, v in groups
    ]
    return tuple(sorted(found, key=lambda at: -at.loss_nats))


def _notes(dof: Floats, depends: bool, power: float | None, p: float | None) -> tuple[str, ...]:
    notes = []
    if depends:
        notes.append(
            f"noise_depends_on_loss: sd goes as L^{power:.2g} (p = {p:.2g}); weight by 1/sd^2"
        )
    if dof.sum() < 4:
        notes.append(
            f"few_replicates: {int(dof.sum())} degrees of freedom, the sd is known to a factor only"
        )
    return tuple(notes)


def _text(pooled: Interval, dof: int, n_cells: int, notes: Sequence[str]) -> str:
    said = "; ".join(note.split(": ", 1)[1] for note in notes)
    return (
        f"seed noise {pooled.estimate:.2g} nats [{pooled.low:.2g}, {pooled.high:.2g}] "
        f"({n_cells} cells with replicates, {dof} degrees of freedom)"
        + (f"; {said}" if said else "")
    )
