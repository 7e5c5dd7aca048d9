"""Best values along compute, and the laws that carried them to sizes without a search.

``tuned_values_data`` is pure and tested on numbers; ``draw_tuned_values`` neither filters nor fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from analysis.cells import FLOPS
from analysis.figures.hover import HoverPoint, short
from analysis.figures.labels import legend_above
from analysis.figures.lr_brackets import field_label, rate_text
from analysis.figures.style import COLUMN_INCHES, MUTED, PAGE_INCHES, ArmStyle, in_style, new_figure
from analysis.figures.ticks import compute_axis, few, log_ticks, size_axis
from analysis.tuning.types import ChosenCell, Tuning

_COLUMNS = 2
_EDGE: dict[str, Any] = {"marker": "x", "ms": 8.0, "mew": 1.2}
_DASHES: Any = (0, (3, 2))


@dataclass(frozen=True)
class TunedLine:
    """The law of one arm."""

    arm: str
    coefficient: float
    exponent: float
    measured: tuple[float, float]
    """Smallest and largest searched size."""
    reach: float
    """Largest size that it was used at, or the largest searched one."""


@dataclass(frozen=True)
class TunedPoint:
    """The value of one arm at one size."""

    arm: str
    size: str
    x: float
    value: float
    searched: bool
    interior: bool


@dataclass(frozen=True)
class TunedPanel:
    """One searched field."""

    path: str
    over: str
    """flops or n_params."""
    points: tuple[TunedPoint, ...]
    lines: tuple[TunedLine, ...]


@dataclass(frozen=True)
class TunedValuesData:
    """All numeric fields that have values at two sizes or more."""

    panels: tuple[TunedPanel, ...]

    @property
    def drawable(self) -> bool:
        """Some field has two sizes."""
        return bool(self.panels)

    @property
    def arms(self) -> tuple[str, ...]:
        """In the order of the cells."""
        return tuple(dict.fromkeys(point.arm for panel in self.panels for point in panel.points))


def tuned_values_data(tuning: Tuning) -> TunedValuesData:
    """Values by field, arm and size with the laws; fields of words or of values at zero are not."""
    panels = []
    for path in tuning.tuned.searched:
        laws = [at for at in tuning.laws if at.law.path == path]
        over = laws[0].law.over if laws else "flops"
        points = tuple(_points(tuning.cells, path, over))
        lines = tuple(
            TunedLine(
                at.law.arm,
                at.law.coefficient,
                at.law.exponent,
                (min(at.law.x), max(at.law.x)),
                max([*at.law.x, *at.used_at]),
            )
            for at in laws
        )
        if len({point.x for point in points}) > 1 and all(point.value > 0 for point in points):
            panels.append(TunedPanel(path, over, points, lines))
    return TunedValuesData(tuple(panels))


def _points(cells: Sequence[ChosenCell], path: str, over: str) -> Iterator[TunedPoint]:
    for cell in cells:
        value = cell.chosen.values.get(path)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        yield TunedPoint(
            arm=cell.arm,
            size=cell.size,
            x=float(cell.chosen.flops if over == "flops" else cell.chosen.n_params),
            value=float(value),
            searched=cell.chosen.by == "search",
            interior=cell.chosen.interior.get(path, True),
        )


def draw_tuned_values(panel: TunedPanel, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Value against size; a law is solid over the searched sizes and dashed beyond."""
    if panel.over == "flops":
        compute_axis(axes, FLOPS, most=4)
    else:
        axes.set_xscale("log")
        size_axis(axes.xaxis, most=4)
        axes.set_xlabel("parameters")
    axes.set_yscale("log")
    few(axes.yaxis, log_ticks, 5)
    axes.yaxis.set_major_formatter(FuncFormatter(rate_text))
    axes.set_ylabel(field_label(panel.path))
    for line in panel.lines:
        colour = styles[line.arm].colour
        for span, dash in ((line.measured, "-"), ((line.measured[1], line.reach), _DASHES)):
            if span[1] > span[0]:
                x = np.geomspace(*span, 2)
                y = line.coefficient * x**line.exponent
                axes.plot(x, y, color=colour, ls=dash, lw=1.0)
    for point in panel.points:
        look = styles[point.arm]
        fill = "full" if point.searched else "none"
        axes.plot(
            point.x, point.value, look.marker, color=look.colour, fillstyle=fill, ms=4.5, mew=0.9
        )
        if not point.interior:
            axes.plot(point.x, point.value, color=look.colour, **_EDGE)


def tuned_values_figure(data: TunedValuesData, styles: Mapping[str, ArmStyle]) -> Figure:
    """One panel per field."""
    columns = min(_COLUMNS, len(data.panels))
    rows = -(-len(data.panels) // columns)
    width = COLUMN_INCHES * 1.3 if columns == 1 else PAGE_INCHES
    figure = new_figure(width, 0.7 + 2.2 * rows)
    with in_style():
        grid = figure.subplots(rows, columns, squeeze=False)
        for i, axes in enumerate(grid.flat):
            if i >= len(data.panels):
                axes.remove()
                continue
            draw_tuned_values(data.panels[i], axes, styles)
        legend_above(figure, [*_arms(data, styles), *_key(data)])
    return figure


def _arms(data: TunedValuesData, styles: Mapping[str, ArmStyle]) -> list[Line2D]:
    """Entries of marker and colour alone: dashes mean extrapolation here."""
    looks = [(arm, styles[arm]) for arm in data.arms]
    return [
        Line2D([], [], ls="-", lw=1.0, color=look.colour, marker=look.marker, ms=4.5, label=arm)
        for arm, look in looks
    ]


def _key(data: TunedValuesData) -> list[Line2D]:
    points = [point for panel in data.panels for point in panel.points]
    key = [Line2D([], [], ls="", color=MUTED, marker="o", ms=4.5, label="searched")]
    if not all(point.interior for point in points):
        key.append(Line2D([], [], ls="", color=MUTED, label="best at the edge", **_EDGE))
    if not all(point.searched for point in points):
        look: dict[str, Any] = {"marker": "o", "fillstyle": "none", "ms": 4.5, "mew": 0.9}
        key.append(Line2D([], [], ls="", color=MUTED, label="transferred", **look))
        key.append(Line2D([], [], ls=_DASHES, color=MUTED, lw=1.0, label="law, extrapolated"))
    return key


def tuned_values_hover(data: TunedValuesData) -> tuple[HoverPoint, ...]:
    """Every value, and where it comes from."""
    found = []
    for i, panel in enumerate(data.panels):
        unit = "FLOPs" if panel.over == "flops" else "parameters"
        for point in panel.points:
            source = "searched" if point.searched else "transferred"
            edge = "" if point.interior else ", at the edge of those tried"
            text = (
                f"{point.arm}, {point.size}, {short(point.x)} {unit}: "
                f"{panel.path} {point.value:.3g}, {source}{edge}"
            )
            found.append(HoverPoint(axes=i, x=point.x, y=point.value, text=text))
    return tuple(found)
