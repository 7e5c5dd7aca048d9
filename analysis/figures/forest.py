"""The forest of iso-loss multipliers: one row per arm, one bar per currency.

``forest_data`` is pure and tested on numbers; ``draw_forest`` neither filters nor fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.cells import CURRENCIES
from analysis.compare.shown import ratio_text
from analysis.compare.types import Multiplier
from analysis.figures.hover import HoverPoint, interval_text
from analysis.figures.labels import legend_above
from analysis.figures.style import MUTED, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import ratio_axis

# The headline currency is filled and heavy, the others open and light.
_CURRENCY_LOOKS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "fillstyle": "full", "ms": 5.0, "lw": 2.4},
    {"marker": "o", "fillstyle": "none", "ms": 4.0, "lw": 0.9},
    {"marker": "s", "fillstyle": "none", "ms": 3.8, "lw": 0.9},
    {"marker": "D", "fillstyle": "none", "ms": 3.6, "lw": 0.9},
)
_ROW_INCHES = 0.44


@dataclass(frozen=True)
class ForestBar:
    """One multiplier with its interval."""

    currency: str
    estimate: float | None
    low: float | None
    high: float | None
    family_low: float | None = None
    """Family-wise interval over the arms, in the headline currency."""
    family_high: float | None = None


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
    labels: tuple[str, ...] = ()
    """Of the currencies, in the order of the bars."""
    level: float = 0.95

    @property
    def drawable(self) -> bool:
        """At least one multiplier has a value."""
        return any(bar.estimate is not None for row in self.rows for bar in row.bars)


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
        bars = tuple(_bar(m, family=m is head) for m in found)
        measured = tuple(at.measured for at in head.by_size if at.measured is not None)
        rows.append(ForestRow(head.arm, bars, measured, ratio_text(head)))
    values = [1.0, *(bar.estimate for row in rows for bar in row.bars if bar.estimate is not None)]
    widest = (min(values) / 2, max(values) * 2)
    labels = {currency.name: currency.label for currency in CURRENCIES}
    return ForestData(
        first[0].baseline if first else "",
        tuple(rows),
        widest,
        tuple(labels.get(name, name) for name in by_currency),
        first[0].ratio.level if first else 0.95,
    )


def _bar(m: Multiplier, *, family: bool) -> ForestBar:
    """One bar; the family-wise interval is shown where it is wider than the arm's own."""
    low, high = m.simultaneous.low, m.simultaneous.high
    shown = family and low is not None and high is not None and m.simultaneous != m.ratio
    return ForestBar(
        m.currency,
        m.ratio.estimate,
        m.ratio.low,
        m.ratio.high,
        low if shown else None,
        high if shown else None,
    )


def draw_forest(data: ForestData, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Multipliers with intervals, one row per arm; the first currency is filled, others open.

    The thin whisker is the family-wise interval, ticks above are read off the measured baseline.
    """
    for i, row in enumerate(data.rows):
        look = styles[row.arm]
        for k, bar in enumerate(row.bars):
            _draw_bar(bar, i + _offset(k), axes, {"color": look.colour} | _CURRENCY_LOOKS[k])
        if i:
            axes.axhline(i - 0.38, color="#e4e4e4", lw=0.6, zorder=0)
        axes.plot(row.measured, [i - 0.2] * len(row.measured), "|", color=MUTED, ms=5, mew=0.9)
        axes.annotate(
            row.text, (1.01, i), xycoords=("axes fraction", "data"), va="center", fontsize=7.5
        )
    axes.axvline(1.0, color="black", lw=0.8)
    axes.set_xscale("log")
    _limits(axes, data.widest)
    ratio_axis(axes.xaxis)
    axes.set_yticks(range(len(data.rows)), [row.arm for row in data.rows])
    axes.set_ylim(len(data.rows) - 0.36, -0.45)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0, labelsize=8)
    axes.set_xlabel(f"compute {data.baseline} needs for the same loss, relative to the arm")


def _offset(k: int) -> float:
    """Rows below the arm's own: the headline bar sits on it."""
    return 0.0 if k == 0 else 0.05 + 0.13 * k


def _draw_bar(bar: ForestBar, y: float, axes: Axes, look: Mapping[str, Any]) -> None:
    if bar.estimate is None:
        return
    if bar.family_low is not None and bar.family_high is not None:
        axes.plot([bar.family_low, bar.family_high], [y, y], color=look["color"], lw=0.8)
        for end in (bar.family_low, bar.family_high):
            axes.plot(end, y, "|", color=look["color"], ms=5, mew=0.8)
    if bar.low is not None and bar.high is not None:
        axes.plot([bar.low, bar.high], [y, y], color=look["color"], lw=look["lw"])
    axes.plot(bar.estimate, y, **look)


def forest_figure(data: ForestData, styles: Mapping[str, ArmStyle]) -> Figure:
    """The forest of multipliers with its key."""
    figure = new_figure(PAGE_INCHES, 0.95 + _ROW_INCHES * len(data.rows))
    with in_style():
        axes = figure.subplots()
        draw_forest(data, axes, styles)
        legend_above(figure, _forest_key(data), columns=2)
    return figure


def _forest_key(data: ForestData) -> list[Line2D]:
    percent = f"{100 * data.level:g}%"
    labels = [
        f"{label}, {percent} interval" if k == 0 else label for k, label in enumerate(data.labels)
    ]
    key = [
        Line2D([], [], color=MUTED, label=label, **look)
        for label, look in zip(labels, _CURRENCY_LOOKS, strict=False)
    ]
    if any(bar.family_low is not None for row in data.rows for bar in row.bars):
        text = f"{percent} for all arms at once"
        key.insert(1, Line2D([], [], color=MUTED, lw=0.8, marker="|", ms=5, mew=0.8, label=text))
    if any(row.measured for row in data.rows):
        text = "read off the measured baseline"
        key.append(Line2D([], [], marker="|", ls="", color=MUTED, ms=5, mew=0.9, label=text))
    return key


def _limits(axes: Axes, narrow: tuple[float, float]) -> None:
    """Limits that hold 1 and stay inside ``narrow``: one huge interval must not hide the rest."""
    low, high = axes.get_xlim()
    axes.set_xlim(min(max(low, narrow[0]), 0.95), max(min(high, narrow[1]), 1.05))


def forest_hover(data: ForestData) -> tuple[HoverPoint, ...]:
    """Every multiplier with its interval."""
    found = []
    for i, row in enumerate(data.rows):
        for k, bar in enumerate(row.bars):
            if bar.estimate is None:
                continue
            label = data.labels[k] if k < len(data.labels) else bar.currency
            text = f"{row.arm}, {label}: {bar.estimate:.3f}x {interval_text(bar.low, bar.high, 3)}"
            if bar.family_low is not None:
                ends = interval_text(bar.family_low, bar.family_high, 3)
                text += f"; for all arms at once {ends}"
            found.append(HoverPoint(axes=0, x=bar.estimate, y=i + _offset(k), text=text))
    return tuple(found)
