"""Figures of single sources, and of parallel streams: weight is not importance.

What a source contributes against its weight, what the loss loses without it against its mass, and
whether streams mix at all. A panel per arm; colour and marker tell what kind a source is.
``*_data`` is pure; ``draw_*`` neither filters nor computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from analysis.diagnostics import BY_MIXING, Measurement, Row, floats
from analysis.figures.labels import arm_legend
from analysis.figures.style import (
    MUTED,
    PAGE_INCHES,
    TEXT_POINTS,
    ArmStyle,
    in_style,
    new_figure,
)
from analysis.figures.ticks import plain_log_ticks
from analysis.laws import Floats

Role = Literal["embedding", "newest", "older"]
# Colours and markers of the roles that a source can play; Okabe and Ito's, as for arms.
ROLES: dict[Role, tuple[str, str]] = {
    "embedding": ("#000000", "o"),
    "newest": ("#D55E00", "^"),
    "older": ("#0072B2", "s"),
}
MIXING_PANELS = {
    "off_diagonal_mass": "off-diagonal mass",
    "grad_norm": "gradient that reaches the mixing, L2",
    "row_sum_error": "largest |row sum − 1|",
    "column_sum_error": "largest |column sum − 1|",
}
CAUSES_CAPTION = (
    "One source hidden from every read that has another, the other weights renormalised: change "
    "of the mean loss per token (nats) on the diagnostics batch, above 0 where the source helps. "
    "Weight: mean over tokens and over those reads. Axis: logarithmic beyond 0.01."
)
CONTRIBUTIONS_CAPTION = (
    "One point per read and source. Contribution: mean over tokens of the RMS over features of "
    "weight times source, as a share of its read's sum. Above the dashes a source adds more than "
    "its weight says."
)
MIXING_CAPTION = (
    "Of the matrix that carries the streams past a sublayer. Off-diagonal mass: mean over tokens "
    "and rows; 0: streams never mix. Gradient: over the parameters that move the matrix, before "
    "clipping; 0: the mixing cannot train. Sums: largest distance from 1 over tokens."
)
LINEAR_BELOW = 0.01
"""Change in loss, nats, below which the axis is linear: smaller ones are noise of one batch."""
_LABELLED = 3


@dataclass(frozen=True)
class Contributions:
    """Every source of every read of one run that has a choice."""

    arm: str
    weight: Floats
    """Mean weight over tokens."""
    share: Floats
    """Norm of a_i v_i over the sum of those of its read."""
    roles: tuple[Role, ...]


@dataclass(frozen=True)
class Causes:
    """What masking each source does to the loss of one run."""

    arm: str
    sources: tuple[str, ...]
    mass: Floats
    """Mean weight over the reads that see the source and have another."""
    loss_change: Floats
    """Nats; masked minus unmasked."""


@dataclass(frozen=True)
class MixingProfile:
    """Health of the mixing of parallel streams of one run, by read."""

    arm: str
    t: Floats
    values: Mapping[str, Floats]
    """By name in ``BY_MIXING``."""


def contributions(run: Measurement) -> Contributions:
    """Weights and contributions of one run, read by read; empty where not measured."""
    weight: list[float] = []
    share: list[float] = []
    roles: list[Role] = []
    for read in _choosing(run):
        if not read.get("contributions"):
            continue
        total = sum(read["contributions"])
        weight += read["mean_weights"]
        share += [part / total if total else math.nan for part in read["contributions"]]
        roles += _roles(read["labels"])
    return Contributions(run.arm, floats(weight), floats(share), tuple(roles))


def causes(run: Measurement) -> Causes:
    """Mass and change in loss of every source of one run; empty where not measured."""
    masked = run.row.get("masking") or ()
    mass = source_mass(run)
    return Causes(
        arm=run.arm,
        sources=tuple(str(one["source"]) for one in masked),
        mass=floats([mass.get(one["source"]) for one in masked]),
        loss_change=floats([one["loss_change_nats"] for one in masked]),
    )


def source_mass(run: Measurement) -> dict[str, float]:
    """Mean weight of every source over the reads that see it and have another."""
    seen: dict[str, list[float]] = {}
    for read in _choosing(run):
        for label, weight in zip(read["labels"], read["mean_weights"], strict=True):
            seen.setdefault(label, []).append(weight)
    return {label: float(np.mean(weights)) for label, weights in seen.items()}


def mixing_profile(run: Measurement) -> MixingProfile:
    """Mixing health of one run; empty for recipes with one stream."""
    rows = run.row.get("mixing") or ()
    values = {name: floats([row[name] for row in rows]) for name in BY_MIXING}
    return MixingProfile(run.arm, floats([row["t"] for row in rows]), values)


def _choosing(run: Measurement) -> list[Row]:
    return [read for read in run.reads if len(read["labels"]) > 1]


def _roles(labels: Sequence[str]) -> list[Role]:
    last = len(labels) - 1
    return [
        "embedding" if label == "embedding" else "newest" if i == last else "older"
        for i, label in enumerate(labels)
    ]


def draw_contributions(data: Contributions, axes: Axes) -> None:
    """Share of a read's contribution against weight; on the diagonal weight tells all."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    low = min(0.5, *(float(x[x > 0].min(initial=0.5)) for x in (data.weight, data.share))) / 1.5
    axes.plot([low, 1], [low, 1], color=MUTED, lw=0.9, ls=(0, (2, 2)))
    for role, (colour, marker) in ROLES.items():
        at = np.array([found == role for found in data.roles], dtype=bool)
        many = len(data.roles) > 800
        axes.plot(
            data.weight[at],
            data.share[at],
            marker,
            color=colour,
            markersize=2 if many else 3.5,
            alpha=0.7,
            rasterized=many,
        )
    axes.set_xlim(low, 1.2)
    axes.set_ylim(low, 1.2)
    plain_log_ticks(axes)
    subs = (1.0,) if low < 0.02 else (1.0, 2.0, 5.0)
    axes.xaxis.set_major_locator(LogLocator(subs=subs, numticks=9))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(axes.yaxis.get_major_formatter()))


def draw_causes(data: Causes, axes: Axes) -> None:
    """Change in loss against mass, the outstanding sources by name."""
    axes.axhline(0, color=MUTED, lw=0.9, ls=(0, (2, 2)))
    axes.plot(data.mass, data.loss_change, "o", color="#0072B2", markersize=4)
    axes.set_yscale("symlog", linthresh=LINEAR_BELOW, linscale=0.6)
    for label in labels(data):
        axes.annotate(
            label.text,
            (label.mass, label.loss_change),
            xytext=(-4 if label.on_left else 4, 3 if label.above else -8),
            textcoords="offset points",
            ha="right" if label.on_left else "left",
            fontsize=TEXT_POINTS,
        )
    axes.margins(x=0.12, y=0.15)
    axes.xaxis.set_major_locator(MaxNLocator(4))


@dataclass(frozen=True)
class Label:
    """A source's name and where it goes: off the panel's edge, away from the nearest other."""

    text: str
    mass: float
    loss_change: float
    on_left: bool
    above: bool


def labels(data: Causes) -> list[Label]:
    """Names of the outstanding sources: those of the largest changes in loss, and of most mass."""
    named, middle = _outstanding(data), (data.mass.min() + data.mass.max()) / 2
    placed = []
    for i in named:
        others = [j for j in range(len(data.sources)) if j != i]
        nearest = min(others, key=lambda j: abs(data.mass[j] - data.mass[i]), default=i)
        above = bool(data.loss_change[i] >= data.loss_change[nearest])
        at = float(data.mass[i]), float(data.loss_change[i])
        placed.append(Label(data.sources[i], *at, on_left=bool(at[0] > middle), above=above))
    return placed


def _outstanding(data: Causes) -> list[int]:
    by_change = np.argsort(-np.abs(data.loss_change), kind="stable")[:_LABELLED]
    marked = [int(i) for i in by_change if abs(data.loss_change[i]) >= LINEAR_BELOW]
    return sorted({*marked, int(np.argmax(data.mass))})


def contributions_figure(found: Sequence[Contributions]) -> Figure:
    """Contribution against weight, a panel per arm."""
    figure, grid = _panels(len(found))
    with in_style():
        for axes, data in zip(grid, found, strict=False):
            draw_contributions(data, axes)
            axes.set_title(data.arm, fontsize=8.5)
        _outer_labels(grid, len(found), "mean weight", "share of contribution")
        handles = [
            Line2D([], [], color=colour, marker=marker, ls="", markersize=4.5, label=role)
            for role, (colour, marker) in ROLES.items()
        ]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles))
    return figure


def causes_figure(found: Sequence[Causes]) -> Figure:
    """Change in loss against mass, a panel per arm."""
    figure, grid = _panels(len(found), same_y=True)
    with in_style():
        for axes, data in zip(grid, found, strict=False):
            draw_causes(data, axes)
            axes.set_title(data.arm, fontsize=8.5)
        low, high = grid[0].get_ylim()
        grid[0].set_ylim(min(low, -LINEAR_BELOW), max(high, 10 * LINEAR_BELOW))
        grid[0].yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _outer_labels(grid, len(found), "mean weight where seen", "loss change, nats")
    return figure


def mixing_figure(found: Sequence[MixingProfile], styles: Mapping[str, ArmStyle]) -> Figure:
    """Health of stream mixing by read, a line per arm."""
    measured = {
        name: title
        for name, title in MIXING_PANELS.items()
        if any(np.isfinite(profile.values[name]).any() for profile in found)
    }
    figure = new_figure(PAGE_INCHES, 5.6)
    with in_style():
        grid = figure.subplots(2, 2).ravel()
        for axes in grid[len(measured) :]:
            axes.set_axis_off()
        for axes, (name, title) in zip(grid, measured.items(), strict=False):
            for profile in found:
                y = profile.values[name]
                axes.plot(profile.t, y, **styles[profile.arm].line(len(y)))
            axes.set_title(title)
            axes.set_xlabel("sublayer whose output the mixed streams take up")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            if name == "off_diagonal_mass":
                axes.set_ylim(bottom=0)
            elif any((profile.values[name] > 0).any() for profile in found):
                axes.set_yscale("log")
                if name == "grad_norm":
                    # Streams that are still equal leave rounding noise, many decades down.
                    low, top = axes.get_ylim()
                    axes.set_ylim(max(low, 1e-5 * top), top)
                plain_log_ticks(axes)
        arm_legend(figure, [profile.arm for profile in found], styles)
    return figure


def _panels(n: int, *, same_y: bool = False) -> tuple[Figure, Sequence[Axes]]:
    columns = min(3, n)
    rows = math.ceil(n / columns)
    figure = new_figure(min(PAGE_INCHES, max(5.2, 1.2 + 2.4 * columns)), 0.9 + 2.4 * rows)
    with in_style():
        grid = figure.subplots(rows, columns, squeeze=False, sharey=same_y).ravel()
        for axes in grid[n:]:
            axes.set_axis_off()
    return figure, list(grid)


def _outer_labels(grid: Sequence[Axes], n: int, x: str, y: str) -> None:
    columns = min(3, n)
    for i, axes in enumerate(grid[:n]):
        if i % columns == 0:
            axes.set_ylabel(y)
        if i + columns >= n:
            axes.set_xlabel(x)
