"""IsoFLOP curves with their minima, and what the minima say of N* and D* along compute.

``isoflop_data`` is pure and tested on numbers; the ``draw_`` functions neither filter nor fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.estimates import ratio_parts
from analysis.figures import marks
from analysis.figures.hover import HoverPoint, short
from analysis.figures.labels import legend_above
from analysis.figures.style import (
    MUTED,
    PAGE_INCHES,
    TEXT_POINTS,
    ArmStyle,
    in_style,
    new_figure,
    palette,
)
from analysis.figures.ticks import compute_axis, loss_axis, size_axis
from analysis.fit.allocation import AllocationFit
from analysis.fit.isoflop import IsoFlopComparison, IsoFlopFit, IsoFlopMinimum, IsoFlopPoints
from analysis.laws import Floats

_LINE_POINTS = 60
_ROOM = 0.08
"""Share of the panel of N* and D* that one line of its key takes."""
_CURVE_MARKERS = "osD^vP"
_REFUSED: dict[str, Any] = {"marker": "x", "ms": 6.5, "mew": 1.5}
_FOUND: dict[str, Any] = {"marker": "*", "ms": 8.0, "mec": "black", "mew": 0.6}
_BUDGETS_NAMED = 12
"""Budgets beyond which the key names six of them; colours run from light to dark."""
_NEAR = 8.0
"""Factor in N around a curve's lowest loss that must be in view."""


@dataclass(frozen=True)
class IsoFlopCurve:
    """Losses at one budget."""

    flops: float
    size: Floats
    """Parameters, increasing."""
    loss: Floats
    line_size: Floats
    """The interpolating curve where one was given; empty otherwise."""
    line_loss: Floats
    minimum: tuple[float, float] | None
    """(N*, loss) where it is bracketed."""
    refused: str | None
    """Why there is no minimum."""


@dataclass(frozen=True)
class Allocation:
    """An optimum along compute: points and, where a law was fitted, its line with an interval."""

    symbol: str
    flops: Floats
    value: Floats
    line_flops: Floats
    line: Floats
    low: Floats
    high: Floats
    exponent: str
    """``0.49 [0.46, 0.53]``; empty without a law."""


@dataclass(frozen=True)
class IsoFlopData:
    """Curves by budget, the optima along compute."""

    curves: tuple[IsoFlopCurve, ...]
    allocations: tuple[Allocation, ...]
    method: str
    others: tuple[tuple[str, Floats, Floats], ...] = ()
    """Other methods: name, budgets, N*."""

    @property
    def drawable(self) -> bool:
        """There is at least one curve."""
        return bool(self.curves)

    @property
    def refused(self) -> tuple[str, ...]:
        """Budgets without a minimum, each with its reason."""
        return tuple(f"{short(c.flops)} FLOPs: {c.refused}" for c in self.curves if c.refused)


def isoflop_data(
    points: IsoFlopPoints, fit: IsoFlopFit, comparison: IsoFlopComparison | None = None
) -> IsoFlopData:
    """Curves, minima and allocation laws ready to draw.

    Parameters
    ----------
    points
        Every run, the ones outside the fit's window too.
    fit
        Minima by one method, the refused budgets, the laws of N* and D*.
    comparison
        N* by the other methods and the joint law, drawn beside.
    """
    budgets = np.array(sorted(fit.curves))
    own = np.array([_nearest(budgets, float(flops)) for flops in points.flops])
    found = {m.flops: m for m in fit.minima}
    refused = dict(fit.refused)
    curves = tuple(
        _curve(points, own == budget, fit, budget, found.get(budget), refused.get(budget))
        for budget in map(float, budgets)
    )
    pairs = (
        _allocation("N", [m.flops for m in fit.minima], [m.n_star for m in fit.minima], fit.n_law),
        _allocation("D", [m.flops for m in fit.minima], [m.d_star for m in fit.minima], fit.d_law),
    )
    others = tuple(_others(fit, comparison)) if comparison is not None else ()
    return IsoFlopData(curves, tuple(a for a in pairs if len(a.flops)), fit.method, others)


def _nearest(budgets: Floats, value: float) -> float:
    return float(budgets[np.argmin(abs(np.log(budgets / value)))])


def _curve(
    points: IsoFlopPoints,
    at: NDArray[np.bool_],
    fit: IsoFlopFit,
    budget: float,
    best: IsoFlopMinimum | None,
    refused: str | None,
) -> IsoFlopCurve:
    size, loss = points.size[at], points.loss_nats[at]
    order = np.argsort(size, kind="stable")
    joined = fit.curves[budget][0]
    line = np.geomspace(joined.min(), joined.max(), _LINE_POINTS)
    line_loss = fit.curve(budget, line)
    known = np.isfinite(line_loss)
    held = best is not None and best.bracketed
    return IsoFlopCurve(
        flops=budget,
        size=size[order],
        loss=loss[order],
        line_size=line[known],
        line_loss=line_loss[known],
        minimum=(best.n_star, best.loss_star) if best is not None and held else None,
        refused=None if held else refused or "no bracketed minimum",
    )


def _allocation(
    symbol: str, flops: Sequence[float], value: Sequence[float], law: AllocationFit | None
) -> Allocation:
    none = np.array([])
    line = np.geomspace(min(flops), max(flops), _LINE_POINTS) if law is not None else none
    low, high = law.band(line) if law is not None else (none, none)
    return Allocation(
        symbol=symbol,
        flops=np.array(flops, dtype=float),
        value=np.array(value, dtype=float),
        line_flops=line,
        line=law.predict(line) if law is not None else none,
        low=low,
        high=high,
        exponent=" ".join(ratio_parts(law.parameters["a"])) if law is not None else "",
    )


def _others(fit: IsoFlopFit, comparison: IsoFlopComparison) -> Iterator[tuple[str, Floats, Floats]]:
    for name, other in comparison.fits.items():
        if name != fit.method and other.minima:
            at = np.array([(m.flops, m.n_star) for m in other.minima])
            yield str(name), at[:, 0], at[:, 1]
    if comparison.joint:
        at = np.array(comparison.joint)
        yield "joint law", at[:, 0], at[:, 1]


def draw_curves(data: IsoFlopData, axes: Axes) -> None:
    """Loss against parameters by budget; a star is a bracketed minimum, a cross a refused one."""
    axes.set_xscale("log")
    size_axis(axes.xaxis)
    loss_axis(axes, log=False)
    for curve, look in zip(data.curves, _looks(data), strict=True):
        axes.plot(curve.size, curve.loss, color=look.colour, lw=0.5, ls=(0, (1, 1)))
        axes.plot(curve.line_size, curve.line_loss, color=look.colour, lw=1.1)
        marks.points(axes, curve.size, curve.loss, look, size=3)
        if curve.minimum is not None:
            axes.plot(*curve.minimum, color=look.colour, ls="", zorder=4, **_FOUND)
        elif len(curve.loss):
            lowest = int(np.argmin(curve.loss))
            place = (curve.size[lowest], curve.loss[lowest])
            axes.plot(*place, color="#D55E00", ls="", zorder=4, **_REFUSED)
    top, n_above = _top(data)
    if n_above:
        axes.set_ylim(top=top)
        said = f"{n_above} {'loss' if n_above == 1 else 'losses'} above the panel"
        axes.set_title(said, loc="right", fontsize=TEXT_POINTS, color=MUTED)
    axes.set_xlabel("parameters N")
    axes.set_ylabel("validation loss, nats per token")


def _top(data: IsoFlopData) -> tuple[float, int]:
    """Upper end of the losses shown, so that minima can be seen, and how many lie above it."""
    losses = np.concatenate([curve.loss for curve in data.curves])
    near = []
    for curve in data.curves:
        best = curve.size[np.argmin(curve.loss)]
        near.append(curve.loss[abs(np.log(curve.size / best)) <= np.log(_NEAR)].max())
    low, high = float(losses.min()), float(max(near))
    top = high + 0.08 * (high - low)
    return top, int((losses > top).sum())


def _looks(data: IsoFlopData) -> tuple[ArmStyle, ...]:
    """Budgets from light to dark, so that their order also shows in grey."""
    colours = colormaps["cividis_r"](np.linspace(0.15, 1.0, max(2, len(data.curves))))
    return tuple(
        ArmStyle(
            "#" + "".join(f"{round(255 * c):02x}" for c in colour[:3]),
            _CURVE_MARKERS[i % len(_CURVE_MARKERS)],
            "-",
        )
        for i, colour in enumerate(colours[: len(data.curves)])
    )


def draw_allocation(data: IsoFlopData, axes: Axes) -> None:
    """N* and D* against compute, log-log, with the fitted lines and their intervals."""
    compute_axis(axes)
    axes.set_yscale("log")
    size_axis(axes.yaxis)
    for allocation, look in zip(data.allocations, palette(2), strict=False):
        if len(allocation.low):
            marks.band(axes, allocation.line_flops, allocation.low, allocation.high, look.colour)
        axes.plot(allocation.line_flops, allocation.line, color=look.colour, ls=look.dash)
        marks.points(axes, allocation.flops, allocation.value, look)
    for (_, flops, n_star), look in zip(data.others, palette(8)[2:], strict=False):
        marks.points(axes, flops, n_star, look, size=5.5, fillstyle="none")
    axes.set_ylabel("optimum: parameters, tokens")


def isoflop_figure(data: IsoFlopData) -> Figure:
    """Curves beside the optima along compute."""
    two = bool(data.allocations)
    figure = new_figure(PAGE_INCHES if two else 0.6 * PAGE_INCHES, 3.1)
    with in_style():
        panels = figure.subplots(1, 2 if two else 1, squeeze=False)[0]
        draw_curves(data, panels[0])
        if two:
            draw_allocation(data, panels[1])
            key = _law_key(data)
            low, high = panels[1].get_ylim()
            panels[1].set_ylim(low, high * (high / low) ** (_ROOM * len(key)))
            panels[1].legend(handles=key, loc="upper left", borderaxespad=0.2)
        legend_above(figure, [*_budget_key(data), *_minimum_key(data)])
    return figure


def _budget_key(data: IsoFlopData) -> list[Line2D]:
    n, looks = len(data.curves), _looks(data)
    named = range(n) if n <= _BUDGETS_NAMED else np.linspace(0, n - 1, 6).round().astype(int)
    key = []
    for i in named:
        label = f"{short(data.curves[i].flops)} FLOPs"
        look = looks[i]
        key.append(Line2D([], [], color=look.colour, marker=look.marker, ms=4, label=label))
    if n > _BUDGETS_NAMED:
        key.append(Line2D([], [], ls="", label=f"({n} budgets)"))
    return key


def _minimum_key(data: IsoFlopData) -> list[Line2D]:
    key = []
    if any(c.minimum for c in data.curves):
        key.append(Line2D([], [], ls="", color="white", label="bracketed minimum", **_FOUND))
    if any(c.refused for c in data.curves):
        key.append(Line2D([], [], ls="", color="#D55E00", label="lowest, refused", **_REFUSED))
    return key


def _law_key(data: IsoFlopData) -> list[Line2D]:
    key = []
    for allocation, look in zip(data.allocations, palette(2), strict=False):
        law = f" ∝ C^{allocation.exponent}" if allocation.exponent else ""
        dash = look.dash if law else ""
        label = f"{allocation.symbol}*{law}"
        key.append(Line2D([], [], color=look.colour, marker=look.marker, ls=dash, label=label))
    for (name, *_), look in zip(data.others, palette(8)[2:], strict=False):
        mark: dict[str, Any] = {
            "marker": look.marker,
            "ms": 5.5,
            "mew": 0.6,
            "fillstyle": "none",
            "ls": "",
        }
        key.append(Line2D([], [], color=look.colour, label=f"N*, {name}", **mark))
    return key


def isoflop_hover(data: IsoFlopData) -> tuple[HoverPoint, ...]:
    """Every run in view, then every optimum along compute."""
    found = []
    top, _ = _top(data)
    for curve in data.curves:
        at = f"{short(curve.flops)} FLOPs"
        if curve.minimum is not None:
            n, loss = curve.minimum
            text = f"{at}: minimum {loss:.4f} nats at N* = {n:.3g}"
            found.append(HoverPoint(axes=0, x=n, y=loss, text=text))
        lowest = int(np.argmin(curve.loss))
        for i, (n, loss) in enumerate(zip(curve.size, curve.loss, strict=True)):
            text = f"{at}, {n:.3g} parameters: {loss:.4f} nats"
            text += f"; no minimum: {curve.refused}" if curve.refused and i == lowest else ""
            if loss <= top:
                found.append(HoverPoint(axes=0, x=float(n), y=float(loss), text=text))
    for a in data.allocations:
        for flops, value in zip(a.flops, a.value, strict=True):
            text = f"{short(float(flops))} FLOPs: {a.symbol}* = {value:.3g}, {data.method}"
            found.append(HoverPoint(axes=1, x=float(flops), y=float(value), text=text))
    for name, budgets, n_star in data.others:
        for flops, value in zip(budgets, n_star, strict=True):
            text = f"{short(float(flops))} FLOPs: N* = {value:.3g}, {name}"
            found.append(HoverPoint(axes=1, x=float(flops), y=float(value), text=text))
    return tuple(found)
