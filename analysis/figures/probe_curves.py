"""Small panels of curves over seeds: accuracy by length, solved length by depth, along training.

Data types and drawing; ``probe_panels`` makes the data. Drawing neither filters nor fits.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.figures import marks
from analysis.figures.hover import HoverPoint
from analysis.figures.labels import key_of, legend_above
from analysis.figures.style import MUTED, PAGE_INCHES, TEXT_POINTS, ArmStyle, in_style, new_figure
from analysis.figures.ticks import even_ticks, few

_TITLE_CHARACTERS = 92
"""Characters of a title of 7 points across the page."""
_BASELINE_COLOUR = "#000000"
_MARKERS = "osD^vPX"
_REFERENCES: tuple[Any, ...] = ((0, (4, 2)), (0, (1, 1.5)))


@dataclass(frozen=True, kw_only=True)
class CurveLine:
    """One line with its range over seeds."""

    name: str
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    n_seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class CurvePanel:
    """Lines that are compared with each other."""

    title: str
    lines: tuple[CurveLine, ...]


@dataclass(frozen=True, kw_only=True)
class CurvesData:
    """Panels on common axes."""

    panels: tuple[CurvePanel, ...]
    x_label: str
    y_label: str
    references: tuple[tuple[float, str], ...] = ()
    """Height and name of horizontal lines."""
    limits: tuple[float, float]
    """Of y."""
    unit: Literal["share", "points", "count"] = "share"
    """Of y: shares and their differences are shown in percent."""
    bands: bool = True
    """Ranges over seeds are shaded; not where many lines cross."""
    whole_x: tuple[int, ...] = ()
    """Places along x where these are few whole numbers: each gets a tick, evenly spaced."""

    @property
    def drawable(self) -> bool:
        """Some panel has a line."""
        return any(panel.lines for panel in self.panels)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the lines, in order of appearance."""
        return tuple(dict.fromkeys(line.name for panel in self.panels for line in panel.lines))


def depth_looks(depths: Sequence[int]) -> dict[str, ArmStyle]:
    """Looks of depths: the deeper the darker, so that their order is seen in grey as well."""
    shades = mpl.colormaps["viridis"](np.linspace(0.82, 0.0, max(2, len(depths))))
    return {
        layers(depth): ArmStyle(to_hex(shades[i]), _MARKERS[i % len(_MARKERS)], "-")
        for i, depth in enumerate(depths)
    }


def layers(depth: int) -> str:
    """``1 layer``, ``8 layers``."""
    return f"{depth} layer{'s' if depth != 1 else ''}"


def curves_figure(data: CurvesData, looks: Mapping[str, ArmStyle]) -> Figure:
    """Panels in rows of at most four, with one key above them."""
    columns = _columns(len(data.panels))
    rows = -(-len(data.panels) // columns)
    figure = new_figure(PAGE_INCHES, 0.75 + (1.65 if columns > 3 else 1.9) * rows)
    with in_style():
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for i, axes in enumerate(grid.flat):
            if i >= len(data.panels):
                axes.remove()
                continue
            axes.tick_params(labelbottom=i + columns >= len(data.panels))
            _draw(data, data.panels[i], axes, looks, _TITLE_CHARACTERS // columns)
            if i >= columns * (rows - 1):
                axes.set_xlabel(data.x_label)
            if i % columns == 0:
                axes.set_ylabel(data.y_label)
        legend_above(figure, _key(data, looks))
    return figure


def _columns(n: int) -> int:
    """Three or four, whichever leaves fewer gaps."""
    return min(n, min((4, 3), key=lambda columns: -n % columns))


def _draw(
    data: CurvesData, panel: CurvePanel, axes: Axes, looks: Mapping[str, ArmStyle], width: int
) -> None:
    for i, (height, _) in enumerate(data.references):
        axes.axhline(height, color=MUTED, lw=0.8, ls=_REFERENCES[i % 2], zorder=1)
    for line in panel.lines:
        look, x = looks[line.name], _places(data, line.x)
        if data.bands:
            marks.band(axes, x, line.low, line.high, look.colour)
        every = 1 if len(x) <= 20 else len(x) // 8
        front = look.colour == _BASELINE_COLOUR
        axes.plot(
            x, line.mean, color=look.colour, ls=look.dash, lw=1.6 if front else 1.1,
            marker=look.marker, ms=2.8, markevery=every, zorder=3 if front else 2,
        )  # fmt: skip
    axes.set_ylim(*data.limits)
    if data.whole_x:
        axes.set_xticks(range(len(data.whole_x)), [str(x) for x in data.whole_x])
        axes.set_xlim(-0.3, len(data.whole_x) - 0.7)
    else:
        few(axes.xaxis, even_ticks, 5)
    few(axes.yaxis, even_ticks, 6)
    axes.yaxis.set_major_formatter(FuncFormatter(_TICKS[data.unit]))
    title = textwrap.fill(panel.title.replace("(", " (", 1), width)
    axes.set_title(title.replace(" (", "("), fontsize=TEXT_POINTS, pad=3)


def _places(data: CurvesData, x: Sequence[float]) -> list[float]:
    return [data.whole_x.index(int(value)) for value in x] if data.whole_x else list(x)


def _plain(value: float, _: object = None) -> str:
    return f"{value:g}".replace("-", "−")


_TICKS: Mapping[str, Callable[[float, object], str]] = {
    "share": lambda value, _: f"{100 * value:.0f}%",
    "points": lambda value, _: _plain(round(100 * value, 6)),
    "count": _plain,
}


def _key(data: CurvesData, looks: Mapping[str, ArmStyle]) -> list[Line2D]:
    """Lines that no panel is named after, then the horizontal ones."""
    titles = {panel.title for panel in data.panels}
    named = [key_of(name, looks[name]) for name in data.names if name not in titles]
    return named + [
        Line2D([], [], color=MUTED, lw=0.8, ls=_REFERENCES[i % 2], label=name)
        for i, (_, name) in enumerate(data.references)
        if name
    ]


def curves_hover(data: CurvesData) -> tuple[HoverPoint, ...]:
    """Every mean with its range over seeds."""
    found = []
    for i, panel in enumerate(data.panels):
        for line in panel.lines:
            points = zip(line.x, line.mean, line.low, line.high, line.n_seeds, strict=True)
            for place, (x, mean, low, high, n) in zip(_places(data, line.x), points, strict=True):
                said = _said(data, mean, low, high, n)
                text = f"{panel.title}, {line.name}, {data.x_label} {x:g}: {said}"
                found.append(HoverPoint(axes=i, x=place, y=mean, text=text))
    return tuple(found)


def _said(data: CurvesData, mean: float, low: float, high: float, n: int) -> str:
    """``83.1% (80.2% to 86.0%, 3 seeds)``; of a difference the interval in brackets."""
    scale, form = (1.0, "{:.3g}") if data.unit == "count" else (100.0, "{:.1f}")
    form += "%" if data.unit == "share" else ""
    value, *ends = (form.format(scale * number) for number in (mean, low, high))
    if data.unit == "points":
        return f"{value} points {'[' + ', '.join(ends) + ']' if n > 1 else ''}, {n} seeds"
    return f"{value} (1 seed)" if n < 2 else f"{value} ({ends[0]} to {ends[1]}, {n} seeds)"
