"""Figures of depth attention: where reads look, how sharply, at how redundant sources.

Attention, MLP and head reads are kept apart. Colours tell arms, or what kind a source is; both
differ in marker too. ``*_data`` is pure; ``draw_*`` neither filters nor computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator

from analysis.diagnostics import BY_READ, Kind, Measurement, floats, kind_of
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

KIND_NAMES: dict[Kind, str] = {"attention": "attention", "mlp": "MLP", "head": "head"}
HEAT_MAP_CAPTION = (
    "Mean weight over batch and tokens: one row per read before that layer's attention or MLP, one "
    "bar per source for the read before the head. Blank: no such source. t3: output of sublayer 3 "
    "(attention even, MLP odd, from 0); partial: the block under way. Square-root colour scale."
)
SHARPNESS_CAPTION = (
    "Mean over tokens of a read's largest weight; reads of two sources or more. Dashes: uniform "
    "weights, 1 / sources. Do not compare reads of different numbers of sources by height, but by "
    "distance from the dashes."
)
_MAX_SOURCE_LABELS = 9
_MAX_LAYER_LABELS = 6


@dataclass(frozen=True)
class LineFigure:
    """A figure of quantities by read."""

    name: str
    title: str
    panels: Mapping[str, str]
    """Title by name in ``ReadProfile.values``."""
    caption: str
    unit_range: bool = True
    """Quantities lie between 0 and 1 and share that axis."""
    folded: bool = False


LINE_FIGURES = (
    LineFigure(
        "learned_mass",
        "Where reads look",
        {
            "embedding_mass": "weight on the embedding",
            "newest_mass": "weight on the newest source",
            "older_mass": "weight on all older sources",
            "normalised_entropy": "entropy / ln(sources)",
        },
        "Mean over tokens, reads of two sources or more; the read at n_sublayers feeds the head. "
        "Newest: the block under way where it is a source. Entropy 1: uniform weights.",
    ),
    LineFigure(
        "source_redundancy",
        "Redundancy of sources",
        {"adjacent_cosine": "cosine of adjacent sources", "rank_share": "effective rank / sources"},
        "At up to 256 tokens. Cosine of neighbours in depth, mean over them. Effective rank: "
        "participation ratio of the Gram matrix of the sources at unit length; 1 / sources: all "
        "alike, 1: orthogonal.",
        unit_range=False,
        folded=True,
    ),
    LineFigure(
        "query_health",
        "Queries and dependence on the input",
        {
            "query_norm": "query, L2 norm",
            "query_grad_norm": "its gradient, L2 norm",
            "token_variance": "variance of weights",
        },
        "By read; a read of one source owns no query. Gradient of the mean loss per token (nats), "
        "before clipping. Variance over tokens, summed over sources; 0: the same weights at every "
        "token.",
        unit_range=False,
        folded=True,
    ),
)


@dataclass(frozen=True)
class HeatMap:
    """Mean weights of the reads of one kind."""

    layers: tuple[int, ...]
    weights: Floats
    """``[n_reads, n_sources]``, NaN where a read does not see a source."""


@dataclass(frozen=True)
class DepthAttention:
    """Mean depth-attention weights of one run, by kind of read, on one axis of sources."""

    arm: str
    sources: tuple[str, ...]
    maps: Mapping[Kind, HeatMap]
    """Kinds without a read are absent."""


@dataclass(frozen=True)
class ReadProfile:
    """Numbers of every read of one run."""

    arm: str
    t: Floats
    """Sublayer of each read; n_sublayers for the one before the head."""
    kinds: tuple[Kind, ...]
    n_sources: Floats
    values: Mapping[str, Floats]
    """By name in ``BY_READ``, and ``rank_share`` = effective_rank / n_sources; NaN where null."""


def depth_attention(run: Measurement) -> DepthAttention:
    """Depth-attention weights of one run, aligned by source and split by kind of read."""
    sources = merge_labels([list(read["labels"]) for read in run.reads])
    rows: dict[Kind, list[Floats]] = {}
    layers: dict[Kind, list[int]] = {}
    for read in run.reads:
        kind = kind_of(read["t"], run.n_sublayers)
        row = np.full(len(sources), np.nan)
        row[[sources.index(label) for label in read["labels"]]] = read["mean_weights"]
        rows.setdefault(kind, []).append(row)
        layers.setdefault(kind, []).append(int(read["t"]) // 2)
    maps = {kind: HeatMap(tuple(layers[kind]), np.array(rows[kind])) for kind in rows}
    return DepthAttention(run.arm, tuple(sources), maps)


def merge_labels(rows: Sequence[Sequence[str]]) -> list[str]:
    """Order all source labels so that every row's own order is kept (oldest first)."""
    merged: list[str] = []
    for labels in rows:
        at = 0
        for label in labels:
            if label in merged:
                at = merged.index(label) + 1
            else:
                merged.insert(at, label)
                at += 1
    return merged


def read_profile(run: Measurement) -> ReadProfile:
    """Numbers of the reads of one run, those of a single source left out: they choose nothing."""
    reads = [read for read in run.reads if len(read["labels"]) > 1]
    n_sources = floats([len(read["labels"]) for read in reads])
    values = {name: floats([read.get(name) for read in reads]) for name in BY_READ}
    return ReadProfile(
        arm=run.arm,
        t=floats([read["t"] for read in reads]),
        kinds=tuple(kind_of(read["t"], run.n_sublayers) for read in reads),
        n_sources=n_sources,
        values=values | {"rank_share": values["effective_rank"] / n_sources},
    )


def draw_heat_map(data: HeatMap, sources: Sequence[str], axes: Axes) -> AxesImage:
    """Heat map of mean weights: read by row, source by column; blank where there is no source."""
    # A square-root scale: with many sources most weights lie far below 1.
    scale = PowerNorm(0.5, vmin=0.0, vmax=1.0)
    image = axes.imshow(
        data.weights, aspect="auto", cmap="viridis", norm=scale, interpolation="none"
    )
    axes.grid(visible=False)
    _source_ticks(sources, axes)
    rows = range(0, len(data.layers), math.ceil(len(data.layers) / _MAX_LAYER_LABELS))
    axes.set_yticks(list(rows), [str(data.layers[i]) for i in rows], fontsize=TEXT_POINTS)
    return image


def draw_head_bars(data: HeatMap, sources: Sequence[str], axes: Axes) -> None:
    """Mean weights of the read before the head, a bar per source."""
    axes.bar(np.arange(len(sources)), np.nan_to_num(data.weights[0]), color="#0072B2")
    axes.set_xlim(-0.5, len(sources) - 0.5)
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.set_axisbelow(True)
    axes.grid(visible=False, axis="x")
    axes.tick_params(axis="y", labelsize=TEXT_POINTS)
    _source_ticks(sources, axes)


def _source_ticks(sources: Sequence[str], axes: Axes) -> None:
    ticks = range(0, len(sources), math.ceil(len(sources) / _MAX_SOURCE_LABELS))
    axes.set_xticks(list(ticks), [sources[i] for i in ticks], rotation=90, fontsize=TEXT_POINTS)


def draw_by_read(
    profiles: Sequence[ReadProfile], name: str, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """One number by read, a line per arm."""
    for profile in profiles:
        y = profile.values[name]
        axes.plot(profile.t, y, **styles[profile.arm].line(len(y)))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("read before sublayer")


def draw_sharpness(
    profiles: Sequence[ReadProfile], kind: Kind, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Mean largest weight against the number of sources, for one kind of read."""
    for profile in profiles:
        here = np.array([found == kind for found in profile.kinds], dtype=bool)
        look = styles[profile.arm]
        x, y = profile.n_sources[here], profile.values["max_weight"][here]
        axes.plot(x, y, look.marker, color=look.colour, markersize=4, alpha=0.8)
    most = max((profile.n_sources.max() for profile in profiles if len(profile.t)), default=2.0)
    grid = np.geomspace(2, max(3.0, most), 50)
    axes.plot(grid, 1 / grid, color=MUTED, lw=0.9, ls=(0, (2, 2)))
    axes.set_yscale("log")
    axes.set_ylim(0.8 / grid[-1], 1.1)
    plain_log_ticks(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_title(f"before {'the head' if kind == 'head' else KIND_NAMES[kind]}")
    axes.set_xlabel("sources of the read")


def attention_figure(data: Sequence[DepthAttention]) -> Figure:
    """Heat maps of reads before attention and MLP, bars for the head: a row per arm."""
    n = len(data)
    figure = new_figure(PAGE_INCHES, 0.5 + 2.2 * n)
    with in_style():
        grid = figure.subplots(n, 3, squeeze=False, width_ratios=(1, 1, 0.8))
        image: AxesImage | None = None
        for axes, attention in zip(grid, data, strict=True):
            image = _attention_row(attention, list(axes)) or image
        if image is not None:
            bar = figure.colorbar(
                image, ax=list(grid[:, 2]), label="mean weight", shrink=0.9 / n, aspect=18
            )
            bar.set_ticks([0, 0.1, 0.25, 0.5, 1.0])
    return figure


def _attention_row(attention: DepthAttention, axes: Sequence[Axes]) -> AxesImage | None:
    image = None
    for panel, kind in zip(axes, KIND_NAMES, strict=True):
        found = attention.maps.get(kind)
        panel.set_title(f"before {'the head' if kind == 'head' else KIND_NAMES[kind]}", fontsize=8)
        if found is None:
            panel.set_axis_off()
            panel.text(0.5, 0.5, "no read", ha="center", color=MUTED, transform=panel.transAxes)
        elif kind == "head":
            draw_head_bars(found, attention.sources, panel)
        else:
            image = draw_heat_map(found, attention.sources, panel)
            panel.set_ylabel("layer", fontsize=7.5)
    axes[0].set_title(f"{attention.arm}\nbefore attention", fontsize=8)
    return image


def by_read_figure(
    profiles: Sequence[ReadProfile], lines: LineFigure, styles: Mapping[str, ArmStyle]
) -> Figure | None:
    """One panel per measured quantity, a line per arm; None where nothing was measured."""
    found = {
        name: title
        for name, title in lines.panels.items()
        if any(np.isfinite(profile.values[name]).any() for profile in profiles)
    }
    if not found:
        return None
    columns = 3 if len(found) == 3 else min(len(found), 2)
    rows = math.ceil(len(found) / columns)
    figure = new_figure(PAGE_INCHES if columns > 1 else 5.2, 0.9 + 2.5 * rows)
    with in_style():
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes, (name, title) in zip(grid, found.items(), strict=False):
            draw_by_read(profiles, name, axes, styles)
            axes.set_title(title)
            if lines.unit_range:
                axes.set_ylim(-0.02, 1.02)
        for axes in grid[len(found) :]:
            axes.set_axis_off()
        arm_legend(figure, [profile.arm for profile in profiles], styles)
    return figure


def sharpness_figure(profiles: Sequence[ReadProfile], styles: Mapping[str, ArmStyle]) -> Figure:
    """Largest weight against number of sources, by kind of read; dashes: uniform reads."""
    kinds = [kind for kind in KIND_NAMES if any(kind in profile.kinds for profile in profiles)]
    figure = new_figure(PAGE_INCHES, 3.4)
    with in_style():
        grid = figure.subplots(1, len(kinds), squeeze=False, sharey=True).ravel()
        for axes, kind in zip(grid, kinds, strict=True):
            draw_sharpness(profiles, kind, axes, styles)
        grid[0].set_ylabel("largest weight")
        arm_legend(figure, [profile.arm for profile in profiles], styles)
    return figure
