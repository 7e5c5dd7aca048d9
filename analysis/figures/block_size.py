"""Loss against the block size S, between the standard residual and full depth attention.

``block_size_data`` is pure and tested on numbers; ``draw_block_size`` neither filters nor fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import marks
from analysis.figures.hover import HoverPoint, seeds_text
from analysis.figures.style import COLUMN_INCHES, TEXT_POINTS, in_style, new_figure, palette
from analysis.figures.ticks import loss_axis, padded
from analysis.fit.block_size import BlockSizeFit
from analysis.laws import Floats


@dataclass(frozen=True)
class BlockSizeData:
    """Loss by sublayers per block."""

    block_size: Floats
    """Distinct, increasing."""
    loss: Floats
    """Mean over seeds, nats."""
    seed_sd: tuple[float | None, ...]
    n_seeds: tuple[int, ...]
    each_size: Floats
    """Every run."""
    each_loss: Floats
    line_size: Floats
    """The fitted curve; empty where there is none."""
    line_loss: Floats
    standard: float | None
    """Loss of the standard residual, nats."""
    full: float | None
    """Loss of full depth attention (S = 1), nats."""

    @property
    def drawable(self) -> bool:
        """At least two block sizes."""
        return len(self.block_size) > 1


def block_size_data(
    block_sizes: Sequence[float],
    losses: Sequence[float],
    *,
    fit: BlockSizeFit | None = None,
    standard: float | None = None,
    full: float | None = None,
) -> BlockSizeData:
    """Mean loss by block size, with a fitted curve and the two limits.

    Parameters
    ----------
    block_sizes, losses
        ``[n]``, one per run.
    fit
        The trend along S.
    standard, full
        Losses of the two ends, nats, drawn as lines.
    """
    s, loss = np.asarray(block_sizes, dtype=float), np.asarray(losses, dtype=float)
    levels = np.unique(s)
    groups = [loss[s == level] for level in levels]
    none = np.array([])
    line = np.geomspace(levels.min(), levels.max(), 60) if fit is not None else none
    return BlockSizeData(
        block_size=levels,
        loss=np.array([float(group.mean()) for group in groups]),
        seed_sd=tuple(float(g.std(ddof=1)) if len(g) > 1 else None for g in groups),
        n_seeds=tuple(len(group) for group in groups),
        each_size=s,
        each_loss=loss,
        line_size=line,
        line_loss=fit.curve(line) if fit is not None else none,
        standard=standard,
        full=full,
    )


def draw_block_size(data: BlockSizeData, axes: Axes) -> None:
    """Means joined or on the fitted curve, single runs small, the two limits as lines."""
    look = palette(2)[1]
    if len(data.line_size):
        axes.plot(data.line_size, data.line_loss, color=look.colour)
    else:
        axes.plot(data.block_size, data.loss, color=look.colour, lw=0.8)
    if max(data.n_seeds) > 1:
        marks.points(axes, data.each_size, data.each_loss, look, size=1.8, alpha=0.6)
    marks.points(axes, data.block_size, data.loss, look)
    axes.set_xscale("log")
    axes.set_xticks(data.block_size, [f"{s:g}" for s in data.block_size])
    axes.set_xticks([], minor=True)
    values = [*data.each_loss, *data.line_loss, *_limits(data).values()]
    axes.set_ylim(*padded([float(v) for v in values], 0.12))
    loss_axis(axes, log=False)
    for name, value in _limits(data).items():
        dash = "-" if name == "standard" else (0, (5, 1.5))
        axes.axhline(value, color="black", lw=0.9, ls=dash)
        text = f"{name}, {value:.3f}"
        axes.annotate(
            text, (1.0, value), xycoords=("axes fraction", "data"), fontsize=TEXT_POINTS,
            xytext=(0, 2), textcoords="offset points", ha="right", va="bottom",
        )  # fmt: skip
    axes.set_xlabel("block size S, sublayers per block")
    axes.set_ylabel("validation loss, nats")


def _limits(data: BlockSizeData) -> dict[str, float]:
    named = {"standard": data.standard, "full (S = 1)": data.full}
    return {name: value for name, value in named.items() if value is not None}


def block_size_figure(data: BlockSizeData) -> Figure:
    """The curve alone."""
    figure = new_figure(COLUMN_INCHES, 2.4)
    with in_style():
        draw_block_size(data, figure.subplots())
    return figure


def block_size_hover(data: BlockSizeData) -> tuple[HoverPoint, ...]:
    """Every block size."""
    found = []
    for s, loss, n, sd in zip(data.block_size, data.loss, data.n_seeds, data.seed_sd, strict=True):
        text = f"S = {s:g}: {loss:.4f} nats ({seeds_text(n, sd)})"
        if data.standard is not None and math.isfinite(data.standard):
            text += f", {loss - data.standard:+.4f} to standard"
        found.append(HoverPoint(axes=0, x=float(s), y=float(loss), text=text))
    return tuple(found)
