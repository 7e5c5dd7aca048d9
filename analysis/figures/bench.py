"""Figures of `isoloss bench`: step time and memory over the baseline's, the residual part, depth.

Each is ``<name>_data(table)``, pure and tested on numbers, and ``draw_<name>(data, axes)``, which
neither filters nor fits. The table is ``bench.csv``: one row per part, shape and subject.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator

from analysis.figures.style import (
    MUTED,
    ArmStyle,
    arm_styles,
    caption,
    in_style,
    new_figure,
    save,
)
from analysis.laws import Floats

BASELINE = "standard"
CLOSED = (0, (4, 1.5))
"""Dashes of what follows from closed forms."""


@dataclass(frozen=True)
class Bar:
    """One subject at one shape: a value with its quartiles, and what it could be at best."""

    subject: str
    peer: bool
    value: float
    low: float
    high: float
    floor: float
    """NaN where there is none."""
    memory: float
    """Steps: peak over the baseline's."""


@dataclass(frozen=True)
class Panel:
    """All subjects at one shape, in the order measured."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class PolynomialFit:
    """Least squares of relative errors: ``coefficients[k]`` multiplies ``M^k``."""

    coefficients: tuple[float, ...]
    worst: float
    """Largest relative distance of a point from the curve."""

    def __call__(self, m: Floats) -> Floats:
        """Evaluate the polynomial."""
        return np.asarray(np.polynomial.polynomial.polyval(m, np.asarray(self.coefficients)))


@dataclass(frozen=True)
class DepthCurve:
    """One recipe at several depths."""

    subject: str
    sublayers: Floats
    seconds: Floats
    peak_bytes: Floats
    extra_s: Floats
    """Step time beyond the baseline's; NaN where none was found."""
    floor_s: Floats
    """Closed form of it; NaN for the baseline."""
    floor_step_s: Floats
    """The baseline's measured step and that floor; NaN for the baseline."""
    predicted_bytes: Floats
    """Closed form of the peak."""
    time_fit: PolynomialFit | None
    """a + b M + c M^2, from four depths on."""
    memory_fit: PolynomialFit | None
    """The same; c is what the per-token weights of every read take, small beside a source."""


def read_bench(path: Path) -> pd.DataFrame:
    """Read ``bench.csv``; an empty note is an empty text."""
    return pd.read_csv(path, keep_default_na=True).fillna({"note": "", "counterpart": ""})


def step_data(table: pd.DataFrame) -> tuple[Panel, ...]:
    """Step time over the baseline's by shape; the floor is 1 plus the moving of bytes."""
    return _panels(table, "step", _step_bar)


def residual_data(table: pd.DataFrame) -> tuple[Panel, ...]:
    """Seconds of the residual part alone by shape, ours and peers, with the closed-form floor."""
    return _panels(table, "residual", _residual_bar)


def _panels(
    table: pd.DataFrame, part: str, bar: Callable[[pd.Series, float], Bar]
) -> tuple[Panel, ...]:
    shapes = _timed(table, part).groupby(["n_layers", "d_model", "batch_tokens"], sort=False)
    panels = []
    for _, group in shapes:
        base_s = float(group.loc[group["subject"] == BASELINE, "seconds"].iloc[0])
        bars = tuple(bar(row, base_s) for _, row in group.iterrows())
        panels.append(Panel(_title(group.iloc[0]), bars))
    return tuple(panels)


def _step_bar(row: pd.Series, base_s: float) -> Bar:
    return _bar(row, "ratio", 1 + float(row["floor_s"]) / base_s, float(row["peak_ratio"]))


def _residual_bar(row: pd.Series, base_s: float) -> Bar:
    return _bar(row, "seconds", float(row["floor_s"]), float(row["peak_bytes"]))


def _bar(row: pd.Series, name: str, floor: float, memory: float) -> Bar:
    value, low, high = (float(row[name + end]) for end in ("", "_low", "_high"))
    return Bar(str(row["subject"]), row["origin"] == "peer", value, low, high, floor, memory)


def depth_data(table: pd.DataFrame) -> tuple[DepthCurve, ...]:
    """Time and memory by depth with quadratic fits and closed forms, the baseline first."""
    rows = _timed(table, "depth").sort_values("n_sublayers", kind="stable")
    base_s = rows[rows["subject"] == BASELINE].set_index("n_sublayers")["seconds"]
    curves = []
    for subject, group in rows.groupby("subject", sort=False):
        sublayers, seconds, peak = (
            _floats(group[name]) for name in ("n_sublayers", "seconds", "peak_bytes")
        )
        curves.append(
            DepthCurve(
                subject=str(subject),
                sublayers=sublayers,
                seconds=seconds,
                peak_bytes=peak,
                extra_s=_floats(group["moving_s"]),
                floor_s=_floats(group["floor_s"]),
                floor_step_s=_floats(group["n_sublayers"].map(base_s) + group["floor_s"]),
                predicted_bytes=_floats(group["predicted_bytes"]),
                time_fit=fit_polynomial(sublayers, seconds, degree=2),
                memory_fit=fit_polynomial(sublayers, peak, degree=2),
            )
        )
    return tuple(sorted(curves, key=lambda curve: curve.subject != BASELINE))


def fit_polynomial(m: Floats, y: Floats, degree: int) -> PolynomialFit | None:
    """Fit ``y = sum_k c_k m^k`` by least squares of ``(fit - y) / y``.

    Returns None with fewer than ``degree + 2`` different depths: such a curve could not miss.
    """
    if len(np.unique(m)) < degree + 2:
        return None
    powers = np.vander(m, degree + 1, increasing=True)
    coefficients = np.linalg.lstsq(powers / y[:, None], np.ones_like(y), rcond=None)[0]
    found = np.where(abs(coefficients) < 1e-9 * abs(coefficients).max(), 0.0, coefficients)
    return PolynomialFit(tuple(map(float, found)), float(np.max(abs(powers @ found / y - 1))))


def _timed(table: pd.DataFrame, part: str) -> pd.DataFrame:
    return table[(table["part"] == part) & table["seconds"].notna()]


def _title(row: pd.Series) -> str:
    return f"{row['n_layers']} layers, width {row['d_model']}, {row['batch_tokens']:,} tokens"


def _floats(values: pd.Series) -> Floats:
    return np.asarray(values, dtype=float)


def draw_step_time(panel: Panel, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Ratio of step times with quartiles, the floor as a tick."""
    _draw_bars(panel, axes, styles)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_xlabel(f"step time over {BASELINE}'s")
    axes.set_title(panel.title)


def draw_step_memory(panel: Panel, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Ratio of peak memory."""
    for i, bar in enumerate(panel.bars):
        look = styles[bar.subject]
        axes.plot(bar.memory, i, look.marker, color=look.colour)
    axes.axvline(1.0, color="black", lw=0.8)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    axes.set_xlabel(f"peak memory over {BASELINE}'s")


def draw_residual(panel: Panel, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    """Seconds of the residual part on a logarithmic axis; peers are open."""
    _draw_bars(panel, axes, styles)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(EngFormatter("s"))
    axes.set_xlabel("forward and backward of the residual part")
    axes.set_title(panel.title)


def _draw_bars(panel: Panel, axes: Axes, styles: Mapping[str, ArmStyle]) -> None:
    for i, bar in enumerate(panel.bars):
        look = styles[bar.subject]
        fill = "none" if bar.peer else "full"
        axes.plot([bar.low, bar.high], [i, i], color=look.colour, lw=1.6)
        axes.plot(bar.value, i, look.marker, color=look.colour, fillstyle=fill)
        if math.isfinite(bar.floor):
            axes.plot(bar.floor, i, "|", color=MUTED, ms=11, mew=1.4)
    axes.set_yticks(range(len(panel.bars)), [bar.subject for bar in panel.bars])
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def draw_depth_time(
    curves: Sequence[DepthCurve], axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Step time by depth, with the closed-form floor."""
    for c in curves:
        _draw_depth(c, c.seconds, c.time_fit, c.floor_step_s, axes, styles[c.subject])
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_ylabel("time of a step")


def draw_depth_extra(
    curves: Sequence[DepthCurve], axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Time beyond the baseline's, log-log, over the closed-form floor (dashed)."""
    for curve in curves:
        look = styles[curve.subject]
        axes.plot(curve.sublayers, curve.extra_s, look.marker, color=look.colour)
        axes.plot(curve.sublayers, curve.floor_s, color=look.colour, ls=CLOSED)
    axes.set_xscale("log")
    axes.set_yscale("log")
    depths = sorted({float(m) for curve in curves for m in curve.sublayers})
    axes.set_xticks(depths, [f"{m:g}" for m in depths])
    axes.set_xticks([], minor=True)
    axes.yaxis.set_major_formatter(EngFormatter("s"))
    axes.set_ylabel(f"time of a step beyond {BASELINE}'s")


def draw_depth_memory(
    curves: Sequence[DepthCurve], axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Peak memory by depth, with its closed form."""
    for c in curves:
        _draw_depth(c, c.peak_bytes, c.memory_fit, c.predicted_bytes, axes, styles[c.subject])
    axes.yaxis.set_major_formatter(EngFormatter("B"))
    axes.set_ylabel("peak memory of a step")


def _draw_depth(
    curve: DepthCurve,
    measured: Floats,
    fit: PolynomialFit | None,
    closed_form: Floats,
    axes: Axes,
    look: ArmStyle,
) -> None:
    """Points, the quadratic fit (solid), the closed form (dashed)."""
    m = curve.sublayers
    axes.plot(m, measured, look.marker, color=look.colour)
    axes.plot(m, closed_form, color=look.colour, ls=CLOSED)
    if fit is not None:
        line = np.linspace(float(m.min()), float(m.max()), 60)
        axes.plot(line, fit(line), color=look.colour, lw=0.9)


def fit_sentences(curves: Sequence[DepthCurve]) -> list[str]:
    """What the fits found, and how far the farthest point lies from them."""
    return [
        f"Quadratic fit of {curve.subject}: step {_polynomial(curve.time_fit, 1e3, 'ms')}, "
        f"memory {_polynomial(curve.memory_fit, 1e-6, 'MB')}."
        for curve in curves
        if curve.time_fit is not None and curve.memory_fit is not None
    ]


def _polynomial(fit: PolynomialFit, scale: float, unit: str) -> str:
    """``1.2 + 3 M - 0.04 M^2 ms (points within 1.5%)``."""
    text = f"{scale * fit.coefficients[0]:.3g}"
    for power, coefficient in enumerate(fit.coefficients[1:], start=1):
        sign = "-" if coefficient < 0 else "+"
        variable = "M" if power == 1 else f"M^{power}"
        text += f" {sign} {abs(scale * coefficient):.3g} {variable}"
    return f"{text} {unit} (points within {100 * fit.worst:.1f}%)"


def step_figure(panels: Sequence[Panel]) -> Figure:
    """Time beside memory, one row of panels per shape."""
    styles = _styles(panels)
    figure = new_figure(8.2, sum(0.9 + 0.32 * len(panel.bars) for panel in panels) + 1.0)
    with in_style():
        grid = figure.subplots(len(panels), 2, squeeze=False, width_ratios=[3, 2], sharey="row")
        for (left, right), panel in zip(grid, panels, strict=True):
            draw_step_time(panel, left, styles)
            draw_step_memory(panel, right, styles)
            right.grid(visible=False, axis="y")
        figure.legend(handles=_key(peers=False), loc="outside upper left", ncols=2)
    return figure


def residual_figure(panels: Sequence[Panel]) -> Figure:
    """The residual part alone, one panel per shape."""
    styles = _styles(panels)
    peers = any(bar.peer for panel in panels for bar in panel.bars)
    figure = new_figure(7.2, sum(0.9 + 0.3 * len(panel.bars) for panel in panels) + 1.0)
    with in_style():
        for axes, panel in zip(
            figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True
        ):
            draw_residual(panel, axes, styles)
        figure.legend(handles=_key(peers=peers), loc="outside upper left", ncols=3)
    return figure


def depth_figure(curves: Sequence[DepthCurve]) -> Figure:
    """Time, time beyond the baseline's, and memory by depth."""
    styles = arm_styles((curve.subject for curve in curves), BASELINE)
    handles = _depth_key(curves, styles)
    figure = new_figure(9.6, 4.0 + 0.18 * math.ceil(len(handles) / 3))
    with in_style():
        panels = figure.subplots(1, 3)
        for draw, axes in zip(
            (draw_depth_time, draw_depth_extra, draw_depth_memory), panels, strict=True
        ):
            draw(curves, axes, styles)
            axes.set_xlabel("sublayers M")
        figure.legend(handles=handles, loc="outside upper left", ncols=3)
    return figure


def _depth_key(curves: Sequence[DepthCurve], styles: Mapping[str, ArmStyle]) -> list[Line2D]:
    looks = [(curve.subject, styles[curve.subject]) for curve in curves]
    arms = [Line2D([], [], color=s.colour, marker=s.marker, ls="", label=arm) for arm, s in looks]
    fitted = any(curve.time_fit is not None for curve in curves)
    fit = [Line2D([], [], color=MUTED, lw=0.9, label="quadratic fit")] if fitted else []
    floor = "closed-form floor (time), closed form (memory)"
    return [*arms, *fit, Line2D([], [], color=MUTED, ls=CLOSED, label=floor)]


def _styles(panels: Sequence[Panel]) -> dict[str, ArmStyle]:
    return arm_styles((bar.subject for panel in panels for bar in panel.bars), BASELINE)


def _key(*, peers: bool) -> list[Line2D]:
    key = [
        Line2D([], [], color=MUTED, ls="", marker="o", label="median, quartiles"),
        Line2D([], [], color=MUTED, ls="", marker="|", ms=11, label="floor from bytes moved"),
    ]
    if peers:
        text = "pseudocode and packages"
        key.append(Line2D([], [], color=MUTED, ls="", marker="o", fillstyle="none", label=text))
    return key


def bench_figures(
    table: pd.DataFrame, conventions: Mapping[str, str], folder: Path
) -> tuple[str, ...]:
    """Draw what the table has rows for, as svg, png and pdf; return the names drawn.

    Parameters
    ----------
    table
        As :func:`read_bench` returns it.
    conventions
        Sentences by topic: machine, times, step, residual, memory, predicted, floor.
    folder
        Where the figures go.
    """
    figures: dict[str, tuple[Figure, list[str]]] = {}
    if panels := step_data(table):
        figures["bench_step"] = (step_figure(panels), ["step", "memory", "floor"])
    if panels := residual_data(table):
        figures["bench_residual"] = (residual_figure(panels), ["residual", "floor"])
    curves = depth_data(table)
    if curves:
        figures["bench_depth"] = (
            depth_figure(curves),
            ["step", "memory", "predicted", "floor"],
        )
    for name, (figure, topics) in figures.items():
        told = [conventions[topic] for topic in ("machine", "times", *topics)]
        told += fit_sentences(curves) if name == "bench_depth" else []
        caption(figure, told)
        save(figure, folder, name)
    return tuple(figures)
