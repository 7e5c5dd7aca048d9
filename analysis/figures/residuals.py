"""Residuals of the law: along compute, and against what normal ones would be.

``residuals_data`` is pure and tested on numbers; the ``draw_`` functions neither filter nor fit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri

from analysis.cells import FLOPS, SAME_LEVEL, CellPoint, Currency
from analysis.figures import marks
from analysis.figures.hover import HoverPoint, seeds_text, short
from analysis.figures.labels import arm_legend, note_in
from analysis.figures.style import PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import compute_axis, even_ticks, few, loss_axis
from analysis.fit.shared import SharedFit
from analysis.laws import Floats


@dataclass(frozen=True)
class ArmResiduals:
    """Residuals of one arm, in the order of its sizes."""

    arm: str
    sizes: tuple[str, ...]
    compute: Floats
    residual: Floats
    """Loss minus the arm's own law, nats."""
    quantile: Floats
    """Where a standard normal has the residual's rank among those of all arms."""
    n_seeds: tuple[int, ...]


@dataclass(frozen=True)
class ResidualsData:
    """Residuals of all arms."""

    baseline: str
    arms: tuple[ArmResiduals, ...]
    rms: float
    """Root mean square over all points, nats."""
    seed_sd: float | None
    """Standard deviation over seeds of one run, nats; None where no cell has two."""
    currency: Currency

    @property
    def drawable(self) -> bool:
        """There is at least one residual."""
        return any(len(arm.residual) for arm in self.arms)


def residuals_data(
    points: Sequence[CellPoint],
    fit: SharedFit,
    baseline: str,
    *,
    seed_sd: float | None = None,
    currency: Currency = FLOPS,
) -> ResidualsData:
    """Loss of every point minus its arm's law, with normal quantiles of the ranks.

    Quantiles are at ``(rank - 3/8) / (n + 1/4)`` (Blom 1958). Without ``seed_sd`` it is pooled over
    the cells that have seeds: the root of the mean of their variances, weighted by ``n - 1``.
    """
    fitted = [p for p in points if p.arm in fit.log_coefficients]
    residual = np.array([p.loss - float(fit.loss(p.arm, np.array(p.compute))) for p in fitted])
    ranks = np.empty(len(residual))
    ranks[np.argsort(residual, kind="stable")] = np.arange(1, len(residual) + 1)
    quantile = ndtri((ranks - 0.375) / (len(residual) + 0.25))
    names = sorted(dict.fromkeys(p.arm for p in fitted), key=lambda arm: arm != baseline)
    arms = []
    for name in names:
        at = [i for i, p in enumerate(fitted) if p.arm == name]
        arms.append(
            ArmResiduals(
                arm=name,
                sizes=tuple(fitted[i].size for i in at),
                compute=np.array([fitted[i].compute for i in at]),
                residual=residual[at],
                quantile=quantile[at],
                n_seeds=tuple(fitted[i].n_seeds for i in at),
            )
        )
    rms = float(np.sqrt(np.mean(residual**2))) if len(residual) else 0.0
    return ResidualsData(baseline, tuple(arms), rms, seed_sd or _pooled(fitted), currency)


def _pooled(points: Sequence[CellPoint]) -> float | None:
    known = [(p.seed_sd, p.n_seeds - 1) for p in points if p.seed_sd is not None and p.n_seeds > 1]
    dof = sum(n for _, n in known)
    return math.sqrt(sum(n * sd * sd for sd, n in known) / dof) if dof else None


def draw_residuals(data: ResidualsData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Residuals along compute, joined by arm; shaded is one standard deviation over seeds."""
    compute_axis(axes, data.currency)
    if data.seed_sd is not None:
        axes.axhspan(-data.seed_sd, data.seed_sd, facecolor="#999999", alpha=0.2, lw=0, zorder=0)
    axes.axhline(0.0, color="black", lw=0.8)
    for arm in data.arms:
        look = styles[arm.arm]
        # Several sizes at one budget have no order along compute.
        if (np.diff(np.log(arm.compute)) > math.log(SAME_LEVEL)).all():
            axes.plot(arm.compute, arm.residual, color=look.colour, ls=look.dash, lw=0.7, alpha=0.8)
        marks.points(axes, arm.compute, arm.residual, look, size=marks.size_of(len(arm.compute), 4))
    axes.margins(y=0.12)
    loss_axis(axes, log=False)
    if data.seed_sd is not None:
        note_in(axes, f"shaded: sd over seeds, {data.seed_sd:.2g} nats", x=0.02, y=0.97)
    axes.set_ylabel("loss minus the arm's law, nats")


def draw_quantiles(data: ResidualsData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Residuals against normal quantiles; on the line they are normal with their own rms."""
    ends = np.array([min(a.quantile.min() for a in data.arms) - 0.3,
                     max(a.quantile.max() for a in data.arms) + 0.3])  # fmt: skip
    axes.plot(ends, ends * data.rms, color="black", lw=0.8)
    for arm in data.arms:
        size = marks.size_of(len(arm.residual), 4)
        marks.points(axes, arm.quantile, arm.residual, styles[arm.arm], size=size)
    loss_axis(axes, log=False)
    few(axes.xaxis, even_ticks, 6)
    axes.set_xlabel("normal quantile of the rank")
    note_in(axes, f"line: normal, sd {data.rms:.2g} nats")


def residuals_figure(data: ResidualsData, styles: Mapping[str, ArmStyle]) -> Figure:
    """Residuals along compute beside their normal quantiles."""
    figure = new_figure(PAGE_INCHES, 2.9)
    with in_style():
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        draw_residuals(data, left, styles)
        draw_quantiles(data, right, styles)
        arm_legend(figure, [arm.arm for arm in data.arms], styles)
    return figure


def residuals_hover(data: ResidualsData) -> tuple[HoverPoint, ...]:
    """Every residual, in both panels."""
    found = []
    for arm in data.arms:
        for i, value in enumerate(arm.residual):
            x, y = float(arm.compute[i]), float(value)
            at = f"{arm.arm}, {arm.sizes[i]}, {short(x)} {data.currency.unit}"
            text = f"{at}: {y:+.4f} nats to its law ({seeds_text(arm.n_seeds[i], None)})"
            found.append(HoverPoint(axes=0, x=x, y=y, text=text))
            found.append(HoverPoint(axes=1, x=float(arm.quantile[i]), y=y, text=text))
    return tuple(found)
