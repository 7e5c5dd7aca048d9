"""Depth against width at fixed compute: losses of baseline and arm, and the gain between them.

``depth_width_data`` is pure and tested on numbers; ``draw_map`` neither filters nor fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from analysis.figures.hover import HoverPoint
from analysis.figures.labels import legend_above
from analysis.figures.style import (
    COLUMN_INCHES,
    MUTED,
    PAGE_INCHES,
    TEXT_POINTS,
    in_style,
    new_figure,
)
from analysis.fit.surface import SurfaceFit
from analysis.laws import Floats
from analysis.study_shapes import at_best_rate, shape_axes

AXIS_LABELS = {
    "n_layers": "layers",
    "d_model": "width",
    "heads_per_layer": "heads per layer",
    "width_per_layer": "width per layer",
}
"""What the axes of a map are called, by column."""
_NUMBERS_MOST = 7
"""Columns beyond which a panel has no room for a number in every cell."""
_OPTIMUM: dict[str, Any] = {"marker": "o", "ms": 14.0, "fillstyle": "none", "ls": ""}


@dataclass(frozen=True)
class ShapeLoss:
    """Loss of one arm at one shape, seeds averaged."""

    arm: str
    depth: float
    width: float
    loss: float


@dataclass(frozen=True)
class ShapeMap:
    """One panel."""

    title: str
    values: Floats
    """``[depths, widths]``; NaN where nothing was run."""
    best: tuple[int, int] | None
    """Cell of the lowest loss or the largest gain."""
    optimum: tuple[float, float] | None
    """Fitted (depth, width); None where none was given."""
    gain: bool


@dataclass(frozen=True)
class DepthWidthData:
    """Maps that share their axes."""

    depths: tuple[float, ...]
    widths: tuple[float, ...]
    depth_label: str
    width_label: str
    maps: tuple[ShapeMap, ...]

    @property
    def drawable(self) -> bool:
        """There are at least two depths and two widths."""
        return min(len(self.depths), len(self.widths)) > 1 and bool(self.maps)


def shapes_of(used: pd.DataFrame) -> tuple[ShapeLoss, ...]:
    """Mean loss by arm and shape of the runs that share the most common budget.

    Budgets are compared as declared (``budget_kind``, ``budget_value``): a map over shapes means
    nothing across budgets. Of several learning rates at a shape the best one counts.
    """
    axes = shape_axes(used)
    rows = used.dropna(subset=axes)
    budgets = ["budget_kind", "budget_value"]
    if len(rows) and set(budgets) <= set(rows):
        kind, value = rows.groupby(budgets).size().idxmax()
        rows = rows[(rows["budget_kind"] == kind) & (rows["budget_value"] == value)]
    rows = at_best_rate(rows, ["arm", *axes])
    means = rows.groupby(["arm", *axes], sort=False)["loss_nats"].mean()
    return tuple(
        ShapeLoss(str(arm), float(depth), float(width), float(loss))
        for (arm, depth, width), loss in means.items()
    )


def depth_width_data(
    shapes: Iterable[ShapeLoss],
    baseline: str,
    *,
    arm: str | None = None,
    fits: Mapping[str, SurfaceFit] | None = None,
    depth_label: str = "layers",
    width_label: str = "width",
) -> DepthWidthData:
    """Losses of the baseline and of one arm over depth and width, and baseline minus arm.

    Parameters
    ----------
    shapes
        One per arm and shape.
    baseline
        Arm of the first map.
    arm
        The other one; the first of ``shapes`` that is not the baseline unless given.
    fits
        Surfaces by arm, fitted over (depth, width); an optimum that is not bracketed along both
        is not drawn.
    depth_label, width_label
        What the axes count.
    """
    found = list(shapes)
    others = [name for name in dict.fromkeys(s.arm for s in found) if name != baseline]
    names = [baseline, *([arm] if arm else others[:1])]
    found = [s for s in found if s.arm in names]
    depths = tuple(sorted({s.depth for s in found}))
    widths = tuple(sorted({s.width for s in found}))
    grids = {name: np.full((len(depths), len(widths)), np.nan) for name in names}
    for s in found:
        grids[s.arm][depths.index(s.depth), widths.index(s.width)] = s.loss
    fitted = {name: _optimum(fit) for name, fit in (fits or {}).items()}
    maps = [
        ShapeMap(name, grid, _lowest(grid), fitted.get(name), gain=False)
        for name, grid in grids.items()
        if np.isfinite(grid).any()
    ]
    if len(maps) == 2:
        gain = grids[baseline] - grids[names[1]]
        if np.isfinite(gain).any():
            maps.append(ShapeMap("gain", gain, _lowest(-gain), None, gain=True))
    return DepthWidthData(depths, widths, depth_label, width_label, tuple(maps))


def _optimum(fit: SurfaceFit) -> tuple[float, float] | None:
    """Fitted (depth, width) of least loss, where it lies inside the measured shapes."""
    if not all(fit.bracketed.get(name, False) for name in fit.names):
        return None
    depth, width = (fit.optimum[name].estimate for name in fit.names)
    return None if depth is None or width is None else (depth, width)


def _lowest(grid: Floats) -> tuple[int, int] | None:
    if not np.isfinite(grid).any():
        return None
    row, column = np.unravel_index(int(np.nanargmin(grid)), grid.shape)
    return int(row), int(column)


def draw_map(data: DepthWidthData, shown: ShapeMap, axes: Axes, span: tuple[float, float]) -> None:
    """One map: numbers in the cells, the best outlined, cells that were not run hatched."""
    colours = colormaps["PuOr" if span[0] < 0 < span[1] else "cividis"]
    axes.set_facecolor("white")
    rows, columns = shown.values.shape
    filled = np.ma.masked_invalid(shown.values)
    axes.pcolormesh(
        np.arange(columns + 1) - 0.5, np.arange(rows + 1) - 0.5, filled,
        cmap=colours, vmin=span[0], vmax=span[1], edgecolors="white", lw=0.5,
    )  # fmt: skip
    for (row, column), value in np.ndenumerate(shown.values):
        if not math.isfinite(value):
            axes.add_patch(_cell(row, column, fc="#f4f4f4", ec="#aaaaaa", hatch="////", lw=0.5))
        elif columns <= _NUMBERS_MOST:
            share = (value - span[0]) / ((span[1] - span[0]) or 1.0)
            text = f"{1000 * value:.0f}" if shown.gain else f"{value:.3f}"
            ink = _ink(colours(share))
            middle: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 5}
            axes.text(column, row, text, fontsize=TEXT_POINTS, color=ink, **middle)
    if shown.best is not None:
        axes.add_patch(_cell(*shown.best, fc="none", ec="white", lw=2.6, zorder=3))
        axes.add_patch(_cell(*shown.best, fc="none", ec="black", lw=1.3, zorder=3.1))
    if shown.optimum is not None:
        depth, width = shown.optimum
        place = (_place(width, data.widths), _place(depth, data.depths))
        axes.plot(*place, zorder=4, color="white", mew=2.0, **_OPTIMUM)
        axes.plot(*place, zorder=4.1, color="black", mew=0.9, **_OPTIMUM)
    _frame(data, axes)
    axes.set_title(shown.title + (", 0.001 nats" if shown.gain else ", nats"))


def _frame(data: DepthWidthData, axes: Axes) -> None:
    axes.set_xticks(range(len(data.widths)), [f"{w:g}" for w in data.widths])
    axes.set_yticks(range(len(data.depths)), [f"{d:g}" for d in data.depths])
    axes.set_xlim(-0.5, len(data.widths) - 0.5)
    axes.set_ylim(-0.5, len(data.depths) - 0.5)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(data.width_label)


def _cell(row: int, column: int, **look: Any) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **look)


def _ink(colour: Sequence[float]) -> str:
    """Black or white, whichever has the higher contrast (WCAG relative luminance)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in colour[:3]]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "black" if (luminance + 0.05) ** 2 > 0.05 * 1.05 else "white"


def _place(value: float, levels: Sequence[float]) -> float:
    """Position among cells, interpolated in the logarithm."""
    return float(np.interp(math.log(value), np.log(levels), np.arange(len(levels))))


def depth_width_figure(data: DepthWidthData) -> Figure:
    """Baseline, arm and gain side by side; the losses share their colours."""
    n = len(data.maps)
    width = PAGE_INCHES if n > 1 else COLUMN_INCHES
    panel = (width - 0.7) / n
    cell = min(panel / len(data.widths), 0.42)
    figure = new_figure(width, 0.95 + max(1.2, cell * len(data.depths)))
    with in_style():
        panels = figure.subplots(1, n, squeeze=False, sharey=True)[0]
        for axes, shown in zip(panels, data.maps, strict=True):
            draw_map(data, shown, axes, _span(data, gain=shown.gain))
        panels[0].set_ylabel(data.depth_label)
        legend_above(figure, _key(data))
    return figure


def _span(data: DepthWidthData, *, gain: bool) -> tuple[float, float]:
    """Colour range of the losses together, of the gain alone (symmetric if it changes sign)."""
    values = np.concatenate([m.values.ravel() for m in data.maps if m.gain == gain])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    if gain and low < 0 < high:
        return -max(-low, high), max(-low, high)
    return low, high


def _key(data: DepthWidthData) -> list[Line2D]:
    square: dict[str, Any] = {"marker": "s", "ls": "", "ms": 6.5, "mec": "black", "color": "none"}
    key = [Line2D([], [], label="lowest loss, largest gain", mew=1.3, **square)]
    if any(m.optimum for m in data.maps):
        look = _OPTIMUM | {"ms": 7.0}
        key.append(Line2D([], [], label="fitted optimum", color="black", mew=1.2, **look))
    if any(np.isnan(m.values).any() for m in data.maps):
        look = square | {"mec": MUTED, "color": "#f4f4f4"}
        key.append(Line2D([], [], label="hatched: not run", mew=0.5, **look))
    return key


def depth_width_hover(data: DepthWidthData) -> tuple[HoverPoint, ...]:
    """Every cell that was run."""
    found = []
    for panel, shown in enumerate(data.maps):
        for (row, column), value in np.ndenumerate(shown.values):
            if not math.isfinite(value):
                continue
            at = f"{data.depth_label} {data.depths[row]:g}, "
            at += f"{data.width_label} {data.widths[column]:g}"
            number = f"{value:+.4f}" if shown.gain else f"{value:.4f}"
            best = ("; largest gain" if shown.gain else "; lowest") * ((row, column) == shown.best)
            text = f"{shown.title}, {at}: {number} nats{best}"
            found.append(HoverPoint(axes=panel, x=float(column), y=float(row), text=text))
    return tuple(found)
