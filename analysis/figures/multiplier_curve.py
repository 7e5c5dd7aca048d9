"""The iso-loss multiplier along compute, with its band; what is extrapolated is hatched.

``multiplier_curve_data`` is pure and tested on numbers; ``draw_multiplier_curve`` neither filters
nor fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.cells import FLOPS, Currency
from analysis.compare.curve import MultiplierCurve
from analysis.figures import marks
from analysis.figures.hover import HoverPoint, interval_text, short
from analysis.figures.labels import LEGEND_MOST, arm_legend, label_ends, note_in
from analysis.figures.style import COLUMN_INCHES, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import compute_axis, padded, ratio_axis
from analysis.laws import Floats

_WIDEST = 2.0
"""How far the axis may reach beyond the smallest and largest estimate: a factor."""


@dataclass(frozen=True)
class RhoCurve:
    """rho(C) of one arm."""

    arm: str
    compute: Floats
    rho: Floats
    low: Floats
    """NaN where the band is unbounded."""
    high: Floats
    beyond_compute: Floats
    """Extrapolated part; empty where none was asked for."""
    beyond_low: Floats
    """Envelope over pinned E, bands included; 0 and infinity where unbounded."""
    beyond_high: Floats
    beyond_rho_low: Floats
    """Envelope of the estimates alone."""
    beyond_rho_high: Floats


@dataclass(frozen=True)
class MultiplierCurveData:
    """rho(C) of every arm whose losses overlap the baseline's."""

    baseline: str
    level: float
    curves: tuple[RhoCurve, ...]
    currency: Currency
    shown: tuple[float, float]
    """What the axis of rho spans."""

    @property
    def drawable(self) -> bool:
        """At least one arm has a curve."""
        return bool(self.curves)


def multiplier_curve_data(
    curves: Sequence[MultiplierCurve], *, currency: Currency = FLOPS
) -> MultiplierCurveData:
    """Multipliers along compute with bands, in the order given."""
    found = tuple(_curve(curve) for curve in curves)
    estimates = [1.0, *(float(v) for c in found for v in c.rho if math.isfinite(v))]
    ends = [
        float(v)
        for c in found
        for values in (c.low, c.high, c.beyond_low, c.beyond_high)
        for v in values
        if math.isfinite(v) and v > 0
    ]
    low, high = min(estimates) / _WIDEST, max(estimates) * _WIDEST
    within = [min(max(v, low), high) for v in (*estimates, *ends)]
    return MultiplierCurveData(
        baseline=curves[0].baseline if curves else "",
        level=curves[0].level if curves else 0.95,
        curves=found,
        currency=currency,
        shown=padded([*within, 0.98, 1.02], log=True),
    )


def _curve(curve: MultiplierCurve) -> RhoCurve:
    beyond = curve.extrapolated
    none: tuple[float, ...] = ()
    return RhoCurve(
        arm=curve.arm,
        compute=np.asarray(curve.compute, dtype=float),
        rho=np.asarray(curve.rho, dtype=float),
        low=np.asarray(curve.low, dtype=float),
        high=np.asarray(curve.high, dtype=float),
        beyond_compute=np.asarray(beyond.compute if beyond else none, dtype=float),
        beyond_low=np.asarray(beyond.low if beyond else none, dtype=float),
        beyond_high=np.asarray(beyond.high if beyond else none, dtype=float),
        beyond_rho_low=np.asarray(beyond.rho_low if beyond else none, dtype=float),
        beyond_rho_high=np.asarray(beyond.rho_high if beyond else none, dtype=float),
    )


def draw_multiplier_curve(
    data: MultiplierCurveData, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Rho against the arm's compute; bands shaded, what is extrapolated over hatches."""
    compute_axis(axes, data.currency)
    axes.set_yscale("log")
    axes.set_ylim(*data.shown)
    ratio_axis(axes.yaxis)
    axes.axhline(1.0, color="black", lw=0.8)
    filled = len(data.curves) <= LEGEND_MOST
    for curve in data.curves:
        look = styles[curve.arm]
        if filled:
            marks.band(axes, curve.compute, curve.low, curve.high, look.colour)
        axes.plot(curve.compute, curve.rho, **look.line(len(curve.rho)))
        if len(curve.beyond_compute):
            _draw_beyond(curve, axes, look, data.shown)
    reached = [c.beyond_compute for c in data.curves if len(c.beyond_compute)]
    if reached:
        marks.shade_beyond(axes, min(map(np.min, reached)), max(map(np.max, reached)))
        note_in(
            axes, "hatched: extrapolated; thin lines\nand bands: envelope over pinned E", y=0.97
        )
    axes.set_xlabel(f"{axes.get_xlabel()} of the arm")
    axes.set_ylabel("iso-loss multiplier ρ(C)")


def _draw_beyond(curve: RhoCurve, axes: Axes, look: ArmStyle, shown: tuple[float, float]) -> None:
    low = np.clip(np.nan_to_num(curve.beyond_low, nan=shown[0]), *shown)
    high = np.clip(np.nan_to_num(curve.beyond_high, nan=shown[1], posinf=shown[1]), *shown)
    marks.band(axes, curve.beyond_compute, low, high, look.colour)
    for edge in (curve.beyond_rho_low, curve.beyond_rho_high):
        axes.plot(curve.beyond_compute, edge, color=look.colour, ls=look.dash, lw=0.7)


def multiplier_curve_figure(data: MultiplierCurveData, styles: Mapping[str, ArmStyle]) -> Figure:
    """rho(C) of every arm."""
    arms = [curve.arm for curve in data.curves]
    many = len(arms) > LEGEND_MOST
    height = 2.7 + 0.1 * max(0, len(arms) - 16)
    figure = new_figure(PAGE_INCHES if len(arms) > 3 else COLUMN_INCHES, height)
    with in_style():
        axes = figure.subplots()
        draw_multiplier_curve(data, axes, styles)
        if many:
            ends = {c.arm: (float(c.compute[-1]), float(c.rho[-1])) for c in data.curves}
            label_ends(axes, ends, styles, 0.85 * height)
        else:
            figure_arms = arms if len(arms) > 1 else []
            arm_legend(figure, figure_arms, styles)
            if len(arms) == 1:
                axes.set_title(arms[0])
    return figure


def multiplier_curve_hover(data: MultiplierCurveData) -> tuple[HoverPoint, ...]:
    """A handful of values along every curve."""
    found = []
    for c in data.curves:
        for i in np.unique(np.linspace(0, len(c.rho) - 1, 9).round().astype(int)):
            x, y = float(c.compute[i]), float(c.rho[i])
            band = interval_text(float(c.low[i]), float(c.high[i]), 3)
            text = f"{c.arm}, {short(x)} {data.currency.unit}: {y:.3f}x {band}"
            found.append(HoverPoint(axes=0, x=x, y=y, text=text))
    return tuple(found)
