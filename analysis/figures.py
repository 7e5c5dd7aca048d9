"""Figures of a sweep: loss against compute, and the iso-loss multipliers.

Each is ``<name>_data(...)``, pure and tested on numbers, and ``draw_<name>(data, axes)``, which
neither filters nor fits. ``sweep_figures`` puts them together with conventions and counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from analysis.cells import CURRENCIES, CellPoint
from analysis.compare import Multiplier
from analysis.estimates import ratio_parts
from analysis.figures_style import (
    MUTED,
    ArmStyle,
    arm_legend,
    compute_axis,
    in_style,
    new_figure,
)
from analysis.fit import FitResult
from analysis.laws import Floats

# The headline currency is filled and heavy, the others open and light.
_CURRENCY_LOOKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "fillstyle": "full", "ms": 6.0, "lw": 1.6},
    {"marker": "o", "fillstyle": "none", "ms": 4.5, "lw": 0.9},
    {"marker": "s", "fillstyle": "none", "ms": 4.5, "lw": 0.9},
)


@dataclass(frozen=True)
class ArmCurve:
    """Points of one arm and, where a law was fitted, its line."""

    arm: str
    compute: Floats
    loss: Floats
    seed_compute: Floats
    seed_loss: Floats
    fit_compute: Floats
    fit_loss: Floats
    residual: Floats
    """Loss minus the baseline's law at the same compute, nats; empty without a fit."""
    fit_residual: Floats


@dataclass(frozen=True)
class LossComputeData:
    """Loss against training FLOPs."""

    baseline: str
    curves: tuple[ArmCurve, ...]
    asymptote: float
    exponent: float | None


@dataclass(frozen=True)
class ForestBar:
    """One multiplier with its interval."""

    currency: str
    estimate: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class ForestRow:
    """The multipliers of one arm."""

    arm: str
    bars: tuple[ForestBar, ...]
    measured: tuple[float, ...]
    """Read off the measured baseline at each size where that is defined, in the first currency."""
    text: str


@dataclass(frozen=True)
class ForestData:
    """Multipliers of all arms, best first."""

    baseline: str
    rows: tuple[ForestRow, ...]
    widest: tuple[float, float]
    """What the axis may span at most: twice beyond the smallest and largest estimate."""


def loss_compute_data(
    points: Sequence[CellPoint], fit: FitResult | None, baseline: str
) -> LossComputeData:
    """Points and fitted lines of every arm, the baseline first, then in the order given."""
    arms = sorted(dict.fromkeys(p.arm for p in points), key=lambda arm: arm != baseline)
    curves = tuple(_curve(arm, [p for p in points if p.arm == arm], fit, baseline) for arm in arms)
    return LossComputeData(
        baseline,
        curves,
        fit.asymptote if fit else 0.0,
        fit.exponent.estimate if fit else None,
    )


def _curve(arm: str, points: Sequence[CellPoint], fit: FitResult | None, baseline: str) -> ArmCurve:
    compute = np.array([point.compute for point in points])
    loss = np.array([point.loss for point in points])
    seeds = [(p.compute, value) for p in points for value in p.seed_losses]
    none = np.array([])
    line = np.geomspace(compute.min(), compute.max(), 60) if fit else none
    comparable = fit is not None and baseline in fit.log_coefficients
    return ArmCurve(
        arm=arm,
        compute=compute,
        loss=loss,
        seed_compute=np.array([c for c, _ in seeds]),
        seed_loss=np.array([value for _, value in seeds]),
        fit_compute=line,
        fit_loss=fit.loss(arm, line) if fit else none,
        residual=loss - fit.loss(baseline, compute) if fit and comparable else none,
        fit_residual=fit.loss(arm, line) - fit.loss(baseline, line) if fit and comparable else none,
    )


def forest_data(by_currency: Mapping[str, Sequence[Multiplier]]) -> ForestData:
    """Multipliers of every arm in every currency, ordered by the first currency's estimate.

    Parameters
    ----------
    by_currency
        Currency name to its comparison, the headline currency first.
    """
    first = next(iter(by_currency.values()), ())
    order = sorted(first, key=lambda m: (m.ratio.estimate is None, -(m.ratio.estimate or 0.0)))
    rows = []
    for head in order:
        found = [
            m for multipliers in by_currency.values() for m in multipliers if m.arm == head.arm
        ]
        bars = tuple(
            ForestBar(m.currency, m.ratio.estimate, m.ratio.low, m.ratio.high) for m in found
        )
        measured = tuple(at.measured for at in head.by_size if at.measured is not None)
        rows.append(ForestRow(head.arm, bars, measured, ratio_text(head)))
    values = [1.0, *(bar.estimate for row in rows for bar in row.bars if bar.estimate is not None)]
    widest = (min(values) / 2, max(values) * 2)
    return ForestData(first[0].baseline if first else "", tuple(rows), widest)


def ratio_text(multiplier: Multiplier) -> str:
    """``1.24 [1.19, 1.30]``, or what of it is defined."""
    return " ".join(ratio_parts(multiplier.ratio)).strip()


def draw_loss_compute(data: LossComputeData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Loss against training FLOPs, log-log: seed runs small, means large, laws as lines."""
    for curve in data.curves:
        look = styles[curve.arm]
        axes.plot(
            curve.seed_compute, curve.seed_loss, look.marker, color=look.colour, ms=2, alpha=0.5
        )
        axes.plot(curve.compute, curve.loss, look.marker, color=look.colour)
        axes.plot(curve.fit_compute, curve.fit_loss, color=look.colour, ls=look.dash)
    compute_axis(axes)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    ticks = [tick for tick in _nice_ticks(low, high) if low <= tick <= high]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("validation loss, nats per token")


def draw_loss_gap(data: LossComputeData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Loss minus the baseline's law at equal FLOPs: what the first panel cannot resolve."""
    for curve in data.curves:
        if not len(curve.residual):
            continue
        look = styles[curve.arm]
        axes.plot(curve.compute, curve.residual, look.marker, color=look.colour)
        axes.plot(curve.fit_compute, curve.fit_residual, color=look.colour, ls=look.dash)
    compute_axis(axes)
    axes.set_ylabel(f"loss minus law of {data.baseline}, nats")


def draw_forest(data: ForestData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Multipliers with intervals, one row per arm; the first currency is filled, others open."""
    for i, row in enumerate(data.rows):
        look = styles[row.arm]
        for k, bar in enumerate(row.bars):
            _draw_bar(bar, i + 0.22 * k, axes, {"color": look.colour} | _CURRENCY_LOOKS[k])
        axes.plot(row.measured, [i - 0.22] * len(row.measured), "|", color=MUTED, ms=6)
        axes.annotate(
            row.text, (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=8
        )
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set_xscale("log")
    _ratio_ticks(axes, data.widest)
    axes.set_yticks(range(len(data.rows)), [row.arm for row in data.rows])
    axes.set_ylim(len(data.rows) - 0.3, -0.6)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(f"compute {data.baseline} needs for the same loss, relative to the arm")


def _draw_bar(bar: ForestBar, y: float, axes: Axes, look: Mapping[str, Any]) -> None:
    if bar.estimate is None:
        return
    if bar.low is not None and bar.high is not None:
        axes.plot([bar.low, bar.high], [y, y], color=look["color"], lw=look["lw"])
    axes.plot(bar.estimate, y, **look)


def loss_compute_figure(data: LossComputeData, styles: Mapping[str, ArmStyle]) -> Figure:
    """Loss against compute, beside the gap to the baseline's law."""
    gap = any(len(curve.residual) for curve in data.curves)
    figure = new_figure(8.2 if gap else 5.2, 4.4)
    with in_style():
        axes = figure.subplots(1, 2 if gap else 1, squeeze=False, gridspec_kw={"wspace": 0.08})[0]
        draw_loss_compute(data, axes[0], styles)
        if gap:
            draw_loss_gap(data, axes[1], styles)
        arm_legend(figure, [curve.arm for curve in data.curves], styles)
    return figure


def forest_figure(data: ForestData, styles: Mapping[str, ArmStyle]) -> Figure:
    """The forest of multipliers with its key."""
    figure = new_figure(7.2, 1.9 + 0.46 * len(data.rows))
    with in_style():
        axes = figure.subplots()
        draw_forest(data, axes, styles)
        figure.legend(handles=_forest_key(), loc="outside upper left", ncols=2)
    return figure


def _forest_key() -> list[Line2D]:
    labels = [currency.label for currency in CURRENCIES]
    labels[0] += ", 95% interval"
    bars = [
        Line2D([], [], color=MUTED, label=label, **look)
        for label, look in zip(labels, _CURRENCY_LOOKS, strict=True)
    ]
    read_off = "read off the measured baseline"
    return [*bars, Line2D([], [], marker="|", ls="", color=MUTED, label=read_off)]


def _ratio_ticks(axes: Axes, narrow: tuple[float, float]) -> None:
    """Limits that hold 1 and stay inside ``narrow``: one huge interval must not hide the rest."""
    low, high = axes.get_xlim()
    low, high = min(max(low, narrow[0]), 0.95), max(min(high, narrow[1]), 1.05)
    axes.set_xlim(low, high)
    axes.xaxis.set_major_locator(FixedLocator(_ratio_grid(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))


def _ratio_grid(low: float, high: float) -> list[float]:
    """Ticks that include 1: evenly spaced over narrow ranges, 1-2-5 over wide ones."""
    if high / low > 2.5:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        digits = (1, 2, 5) if high / low > 20 else (1, 1.5, 2, 3, 5, 7)
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
    else:
        step = next(s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if (high - low) / s <= 8)
        first = math.ceil((low - 1) / step)
        ticks = [round(1 + step * k, 4) for k in range(first, math.floor((high - 1) / step) + 1)]
    return [tick for tick in ticks if low <= tick <= high]


def _nice_ticks(low: float, high: float) -> list[float]:
    """About five evenly spaced round values between two positive losses."""
    span = high - low
    magnitude = 10.0 ** math.floor(math.log10(span / 5))
    step = next(m * magnitude for m in (1, 2, 5, 10) if span / (m * magnitude) <= 6)
    first = math.ceil(low / step)
    return [round(step * k, 10) for k in range(first, math.floor(high / step) + 1)]
