"""Loss against compute: points and laws of every arm, beside the gap to the baseline's law.

``loss_compute_data`` is pure and tested on numbers; the ``draw_`` functions neither filter nor fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cells import FLOPS, CellPoint, Currency
from analysis.figures import marks
from analysis.figures.hover import HoverPoint, seeds_text, short
from analysis.figures.labels import LEGEND_MOST, arm_legend, label_ends, note_in
from analysis.figures.style import COLUMN_INCHES, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import compute_axis, loss_axis, padded
from analysis.fit.shared import SharedFit
from analysis.laws import Floats

_LINE_POINTS = 60
_BANDS_MOST = 4
"""Arms whose bands are filled beside the losses; more would hide each other."""


@dataclass(frozen=True)
class ArmCurve:
    """Points of one arm and, where a law was fitted, its line."""

    arm: str
    sizes: tuple[str, ...]
    compute: Floats
    loss: Floats
    n_seeds: tuple[int, ...]
    seed_sd: tuple[float | None, ...]
    seed_compute: Floats
    seed_loss: Floats
    fit_compute: Floats
    fit_loss: Floats
    fit_low: Floats
    """Pointwise band of the law, nats; empty where the fit gives none."""
    fit_high: Floats
    residual: Floats
    """Loss minus the baseline's law at the same compute, nats; empty without a fit."""
    fit_residual: Floats
    baseline_fit: Floats
    """The baseline's law along ``fit_compute``."""


@dataclass(frozen=True)
class LossComputeData:
    """Loss against compute in one currency."""

    baseline: str
    curves: tuple[ArmCurve, ...]
    asymptote: float
    exponent: float | None
    currency: Currency = FLOPS
    beyond: tuple[float, float] | None = None
    """From the largest measured compute to where the laws are drawn; None where they end there."""

    @property
    def drawable(self) -> bool:
        """There is at least one point."""
        return bool(self.curves)


def loss_compute_data(
    points: Sequence[CellPoint],
    fit: SharedFit | None,
    baseline: str,
    *,
    currency: Currency = FLOPS,
    extrapolate_to: float | None = None,
) -> LossComputeData:
    """Points and fitted lines of every arm, the baseline first, then in the order given.

    Parameters
    ----------
    points
        One per arm and size.
    fit
        The shared law, or None for points alone.
    baseline
        Arm whose law the others are held against.
    currency
        What ``points.compute`` counts.
    extrapolate_to
        Compute up to which laws are drawn, beyond the measured; None draws no extrapolation.
    """
    arms = sorted(dict.fromkeys(p.arm for p in points), key=lambda arm: arm != baseline)
    largest = max((point.compute for point in points), default=0.0)
    beyond = None
    if fit and extrapolate_to is not None and extrapolate_to > largest:
        beyond = (largest, extrapolate_to)
    stop = extrapolate_to if beyond else None
    curves = tuple(
        _curve(arm, [p for p in points if p.arm == arm], fit, baseline, stop) for arm in arms
    )
    return LossComputeData(
        baseline,
        curves,
        fit.asymptote if fit else 0.0,
        fit.exponent.estimate if fit else None,
        currency,
        beyond,
    )


def _curve(
    arm: str,
    points: Sequence[CellPoint],
    fit: SharedFit | None,
    baseline: str,
    stop: float | None,
) -> ArmCurve:
    compute = np.array([point.compute for point in points])
    loss = np.array([point.loss for point in points])
    seeds = [(p.compute, value) for p in points for value in p.seed_losses]
    none = np.array([])
    line = np.geomspace(compute.min(), stop or compute.max(), _LINE_POINTS) if fit else none
    comparable = fit is not None and baseline in fit.log_coefficients
    low, high = fit.band(arm, line) if fit else (none, none)
    base = fit.loss(baseline, line) if fit and comparable else none
    return ArmCurve(
        arm=arm,
        sizes=tuple(point.size for point in points),
        compute=compute,
        loss=loss,
        n_seeds=tuple(point.n_seeds for point in points),
        seed_sd=tuple(point.seed_sd for point in points),
        seed_compute=np.array([c for c, _ in seeds]),
        seed_loss=np.array([value for _, value in seeds]),
        fit_compute=line,
        fit_loss=fit.loss(arm, line) if fit else none,
        fit_low=low,
        fit_high=high,
        residual=loss - fit.loss(baseline, compute) if fit and comparable else none,
        fit_residual=fit.loss(arm, line) - base if fit and comparable else none,
        baseline_fit=base,
    )


def draw_loss_compute(data: LossComputeData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Loss against compute, log-log: seed runs small, means large, laws as lines with bands."""
    compute_axis(axes, data.currency)
    loss_axis(axes, log=True)
    filled = len(data.curves) <= _BANDS_MOST
    n_runs = sum(len(curve.seed_loss) for curve in data.curves)
    for curve in data.curves:
        look = styles[curve.arm]
        if filled and len(curve.fit_low):
            marks.band(axes, curve.fit_compute, curve.fit_low, curve.fit_high, look.colour)
        if len(curve.seed_loss) > len(curve.loss):
            marks.points(
                axes, curve.seed_compute, curve.seed_loss, look, size=1.8, of=n_runs, alpha=0.5
            )
        marks.points(axes, curve.compute, curve.loss, look, size=marks.size_of(len(curve.loss)))
        axes.plot(curve.fit_compute, curve.fit_loss, color=look.colour, ls=look.dash)
    if data.beyond:
        marks.shade_beyond(axes, *data.beyond)
        note_in(axes, "extrapolated", y=0.97)
    axes.set_ylabel("validation loss, nats per token")


def draw_loss_gap(data: LossComputeData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Loss minus the baseline's law at equal compute: what the first panel cannot resolve.

    Bands are those of each arm's own law, of the baseline's alone where arms are many.
    """
    compute_axis(axes, data.currency)
    loss_axis(axes, log=False)
    for curve in data.curves:
        if not len(curve.residual):
            continue
        look = styles[curve.arm]
        if _with_band(data, curve):
            low, high = curve.fit_low - curve.baseline_fit, curve.fit_high - curve.baseline_fit
            marks.band(axes, curve.fit_compute, low, high, look.colour)
        size = marks.size_of(len(curve.residual))
        marks.points(axes, curve.compute, curve.residual, look, size=size)
        axes.plot(curve.fit_compute, curve.fit_residual, color=look.colour, ls=look.dash)
    axes.set_ylim(*padded(_gap_range(data)))
    if data.beyond:
        marks.shade_beyond(axes, *data.beyond)
    axes.set_ylabel(f"loss minus law of {data.baseline}, nats")


def _with_band(data: LossComputeData, curve: ArmCurve) -> bool:
    """Of many arms the baseline alone has a band: more would hide each other."""
    few = len(data.curves) <= _BANDS_MOST
    return bool(len(curve.fit_low)) and (few or curve.arm == data.baseline)


def _gap_range(data: LossComputeData) -> list[float]:
    """What the gap panel must hold: points and lines; a band that dwarfs them may run out."""
    values = [v for c in data.curves for v in (*c.residual, *c.fit_residual)]
    span = max(values) - min(values)
    bands = [
        v
        for c in data.curves
        if len(c.residual) and _with_band(data, c)
        for v in (*(c.fit_low - c.baseline_fit), *(c.fit_high - c.baseline_fit))
    ]
    low, high = min(values) - span / 2, max(values) + span / 2
    return values + [float(np.clip(v, low, high)) for v in bands]


def loss_compute_figure(data: LossComputeData, styles: Mapping[str, ArmStyle]) -> Figure:
    """Loss against compute, beside the gap to the baseline's law."""
    gap = any(len(curve.residual) for curve in data.curves)
    many = len(data.curves) > LEGEND_MOST
    height = 3.2 + (0.11 * max(0, len(data.curves) - 20) if many else 0.0)
    figure = new_figure(PAGE_INCHES if gap or many else COLUMN_INCHES, height)
    with in_style():
        axes = figure.subplots(1, 2 if gap else 1, squeeze=False)[0]
        draw_loss_compute(data, axes[0], styles)
        if gap:
            draw_loss_gap(data, axes[1], styles)
        if many:
            label_ends(axes[-1], _ends(data, gap=gap), styles, 0.82 * height)
        else:
            arm_legend(figure, [curve.arm for curve in data.curves], styles)
    return figure


def _ends(data: LossComputeData, *, gap: bool) -> dict[str, tuple[float, float]]:
    """Last point of what the right panel shows of each arm."""
    ends = {}
    for c in data.curves:
        line = (c.fit_residual if gap else c.fit_loss) if len(c.fit_loss) else c.loss
        at = c.fit_compute if len(c.fit_compute) else c.compute
        if len(line):
            ends[c.arm] = (float(at[-1]), float(line[-1]))
    return ends


def loss_compute_hover(data: LossComputeData) -> tuple[HoverPoint, ...]:
    """Every mean in the first panel, its gap in the second."""
    found = []
    for c in data.curves:
        for i, (compute, loss) in enumerate(zip(c.compute, c.loss, strict=True)):
            at = f"{c.arm}, {c.sizes[i]}, {short(float(compute))} {data.currency.unit}"
            seeds = seeds_text(c.n_seeds[i], c.seed_sd[i])
            text = f"{at}: {loss:.4f} nats ({seeds})"
            found.append(HoverPoint(axes=0, x=float(compute), y=float(loss), text=text))
            if len(c.residual):
                gap = float(c.residual[i])
                text = f"{at}: {gap:+.4f} nats to the law of {data.baseline} ({seeds})"
                found.append(HoverPoint(axes=1, x=float(compute), y=gap, text=text))
    return tuple(found)
