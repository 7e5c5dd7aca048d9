"""Figures of what happens inside the models: norms, gradients and depth attention by sublayer.

Drawn for one run per arm (its largest size, last measurement, lowest seed) and, for the MLflow
mirror, for a single run. ``*_data`` is pure; ``draw_*`` neither filters nor computes.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import EngFormatter, MaxNLocator

from analysis.collect import read_diagnostics, read_loss_curve
from analysis.figures_style import (
    ArmStyle,
    arm_legend,
    arm_styles,
    caption,
    in_style,
    new_figure,
    plain_log_ticks,
)
from analysis.laws import Floats
from harness.cost import FLOP_CONVENTION
from harness.paths import RunPaths, SweepPaths

NORMS = {
    "input_rms": "input of the sublayer",
    "output_rms": "output of the sublayer",
    "state_rms": "state leaving the sublayer",
}
_MAX_SOURCE_LABELS = 14


@dataclass(frozen=True)
class DepthProfile:
    """Root mean squares of one run by sublayer; empty where not measured."""

    arm: str
    input_rms: Floats
    output_rms: Floats
    state_rms: Floats
    grad_rms: Floats


@dataclass(frozen=True)
class DepthAttention:
    """Mean depth-attention weights of one run."""

    arm: str
    readers: tuple[int, ...]
    """Sublayer of each row; n_sublayers is the read before the final norm."""
    sources: tuple[str, ...]
    weights: Floats
    """``[n_readers, n_sources]``, NaN where a reader does not see a source."""
    embedding_mass: Floats
    newest_mass: Floats


@dataclass(frozen=True)
class DiagnosticsData:
    """Diagnostics of the chosen run of every arm."""

    size: str
    profiles: tuple[DepthProfile, ...]
    attention: tuple[DepthAttention, ...]


@dataclass(frozen=True)
class LossCurveData:
    """Losses of one run while it trained."""

    train_tokens: Floats
    train_loss: Floats
    val_tokens: Floats
    val_loss: Floats


def diagnostics_data(
    paths: SweepPaths, used: pd.DataFrame, arms: Sequence[str]
) -> DiagnosticsData | None:
    """Read the last diagnostics of each arm at the largest size that most arms finished.

    Profiles come in the order of ``arms``. Returns None when no usable run has diagnostics.
    """
    rows = {run_id: _last(paths.run(run_id)) for run_id in used["run_id"]}
    measured = used[used["run_id"].map(lambda run_id: rows[run_id] is not None).astype(bool)]
    if measured.empty:
        return None
    sizes = measured.groupby("size")
    n_arms, flops = sizes["arm"].nunique(), sizes["flops"].mean()
    size = max(n_arms.index, key=lambda name: (int(n_arms[name]), float(flops[name])))
    here = measured[measured["size"] == size].sort_values("seed").drop_duplicates("arm")
    here = here.sort_values("arm", key=lambda names: names.map(list(arms).index))
    chosen = [(str(r.arm), rows[str(r.run_id)] or {}) for r in here.itertuples()]
    return DiagnosticsData(
        str(size),
        tuple(depth_profile(arm, row) for arm, row in chosen),
        tuple(depth_attention(arm, row) for arm, row in chosen if row.get("reads")),
    )


def depth_profile(arm: str, row: Mapping[str, Any]) -> DepthProfile:
    """Norms by sublayer of one diagnostics row."""
    return DepthProfile(arm, *(_floats(row.get(name)) for name in (*NORMS, "grad_rms")))


def depth_attention(arm: str, row: Mapping[str, Any]) -> DepthAttention:
    """Depth-attention weights of one diagnostics row, aligned by source."""
    reads: Sequence[Mapping[str, Any]] = row["reads"]
    sources = merge_labels([list(read["labels"]) for read in reads])
    weights = np.full((len(reads), len(sources)), np.nan)
    for i, read in enumerate(reads):
        at = [sources.index(label) for label in read["labels"]]
        weights[i, at] = read["mean_weights"]
    return DepthAttention(
        arm=arm,
        readers=tuple(int(read["t"]) for read in reads),
        sources=tuple(sources),
        weights=weights,
        embedding_mass=_floats([read.get("embedding_mass") for read in reads]),
        newest_mass=_floats([read.get("newest_mass") for read in reads]),
    )


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


def loss_curve_data(run: RunPaths) -> LossCurveData:
    """Training and validation losses of one run."""
    rows = read_loss_curve(run)
    train, val = rows[rows["kind"] == "train"], rows[rows["kind"] == "val"]
    return LossCurveData(
        _floats(train["tokens"]),
        _floats(train["loss_nats"]),
        _floats(val["tokens"]),
        _floats(val["loss_nats"]),
    )


def draw_profile(
    values: Sequence[tuple[str, Floats]], axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """One quantity by sublayer, a line per arm, logarithmic."""
    for arm, y in values:
        axes.plot(np.arange(len(y)), y, **styles[arm].line(len(y)))
    axes.set_yscale("log")
    plain_log_ticks(axes)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("sublayer")


def draw_depth_attention(data: DepthAttention, axes: Axes) -> AxesImage:
    """Heat map of mean weights: reader by row, source by column; blank where there is no source."""
    # A square-root scale: with many sources most weights lie far below 1.
    scale = PowerNorm(0.5, vmin=0.0, vmax=1.0)
    image = axes.imshow(data.weights, aspect="auto", cmap="viridis", norm=scale)
    axes.set_title(textwrap.fill(data.arm, 30), fontsize=8.5)
    axes.grid(visible=False)
    every = math.ceil(len(data.sources) / _MAX_SOURCE_LABELS)
    ticks = range(0, len(data.sources), every)
    axes.set_xticks(list(ticks), [data.sources[i] for i in ticks], rotation=90, fontsize=6.5)
    every = math.ceil(len(data.readers) / _MAX_SOURCE_LABELS)
    rows = range(0, len(data.readers), every)
    axes.set_yticks(list(rows), [str(data.readers[i]) for i in rows], fontsize=6.5)
    return image


def draw_mass(
    attention: Sequence[DepthAttention], name: str, axes: Axes, styles: Mapping[str, ArmStyle]
) -> None:
    """Mean weight on one source by reader, a line per arm."""
    for data in attention:
        look = styles[data.arm]
        y = getattr(data, name)
        axes.plot(data.readers, y, **look.line(len(y)))
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("read before sublayer")


def draw_loss_curve(data: LossCurveData, axes: Axes) -> None:
    """Training loss as a line, validation losses as points, against tokens."""
    axes.plot(data.train_tokens, data.train_loss, color="#0072B2", lw=1.0, label="training")
    axes.plot(data.val_tokens, data.val_loss, "o", color="#D55E00", label="validation")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens")
    axes.set_ylabel("loss, nats per token")
    axes.legend()


def norms_figure(data: DiagnosticsData, styles: Mapping[str, ArmStyle]) -> Figure:
    """Input, output and state norms by depth."""
    figure = new_figure(8.2, 3.6)
    with in_style():
        for axes, (name, title) in zip(figure.subplots(1, 3), NORMS.items(), strict=True):
            draw_profile([(p.arm, getattr(p, name)) for p in data.profiles], axes, styles)
            axes.set_title(title)
            if name == "input_rms":
                axes.set_ylabel("root mean square")
        arm_legend(figure, [profile.arm for profile in data.profiles], styles)
    return figure


def gradient_figure(data: DiagnosticsData, styles: Mapping[str, ArmStyle]) -> Figure:
    """Gradient by depth."""
    figure = new_figure(5.2, 3.9)
    with in_style():
        axes = figure.subplots()
        draw_profile([(p.arm, p.grad_rms) for p in data.profiles], axes, styles)
        axes.set_ylabel("RMS of dLoss / d output")
        arm_legend(figure, [profile.arm for profile in data.profiles], styles)
    return figure


def attention_figure(data: DiagnosticsData) -> Figure:
    """Depth-attention heat maps, one panel per arm that reads over depth."""
    n = len(data.attention)
    columns = min(3, n)
    rows = math.ceil(n / columns)
    figure = new_figure(1.0 + 2.5 * columns if n > 1 else 4.6, 0.7 + 2.75 * rows)
    with in_style():
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        image = None
        for axes, attention in zip(grid, data.attention, strict=False):
            image = draw_depth_attention(attention, axes)
        for axes in grid[n:]:
            axes.set_axis_off()
        for axes in grid[:n:columns]:
            axes.set_ylabel("read before sublayer")
        if image is not None:
            figure.colorbar(image, ax=list(grid), label="mean weight", shrink=0.8 / rows, aspect=20)
    return figure


def mass_figure(data: DiagnosticsData, styles: Mapping[str, ArmStyle]) -> Figure:
    """Learned mass on the embedding and on the newest source, by reader."""
    figure = new_figure(7.2, 3.6)
    panels = {"embedding_mass": "mass on the embedding", "newest_mass": "mass on the newest source"}
    with in_style():
        for axes, (name, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
            draw_mass(data.attention, name, axes, styles)
            axes.set_title(title)
        arm_legend(figure, [attention.arm for attention in data.attention], styles)
    return figure


def loss_curve_figure(data: LossCurveData) -> Figure:
    """Loss of one run against tokens."""
    figure = new_figure(5.2, 3.4)
    with in_style():
        draw_loss_curve(data, figure.subplots())
    return figure


def run_figures(run: RunPaths) -> dict[str, Figure]:
    """Figures of one run by name: its loss curve and, where measured, its diagnostics.

    Meant for the MLflow mirror: reads the run's own files only, takes well under a second.
    """
    curve = loss_curve_data(run)
    figures: dict[str, Figure] = {}
    if len(curve.train_loss) or len(curve.val_loss):
        figures["loss_curve"] = loss_curve_figure(curve)
    row = _last(run)
    if row is not None:
        name = run.run_id
        styles = arm_styles([name], name)
        reads = (depth_attention(name, row),) if row.get("reads") else ()
        data = DiagnosticsData("", (depth_profile(name, row),), reads)
        figures["norms_by_depth"] = norms_figure(data, styles)
        figures["gradient_by_depth"] = gradient_figure(data, styles)
        if reads:
            figures["depth_attention"] = attention_figure(data)
    for figure in figures.values():
        caption(figure, [f"Run {run.run_id}; 1 of 1 runs used.", FLOP_CONVENTION])
    return figures


def _last(run: RunPaths) -> dict[str, Any] | None:
    rows = read_diagnostics(run)
    return rows[-1] if rows else None


def _floats(values: Any) -> Floats:
    """As floats, null as NaN."""
    listed = [] if values is None else list(values)
    return np.array([np.nan if value is None else float(value) for value in listed])
