"""Marks that several figures share: many points in one artist, bands, the extrapolated range."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from analysis.figures.style import MUTED, RASTERIZE_BEYOND, ArmStyle

BAND_ALPHA = 0.16


def points(
    axes: Axes,
    x: ArrayLike,
    y: ArrayLike,
    look: ArmStyle,
    *,
    size: float = 4.5,
    of: int | None = None,
    **keywords: Any,
) -> None:
    """Markers without a line, one artist however many.

    Thousands become an image; ``of`` is how many such points the panel has in all.
    """
    many = max(np.size(x), of or 0) > RASTERIZE_BEYOND
    axes.plot(
        x, y, look.marker, color=look.colour, ms=size, mew=0.6, rasterized=many or None, **keywords
    )


def size_of(n: int, usual: float = 4.5) -> float:
    """Marker size in points for ``n`` marks of one arm: smaller where they would cover another."""
    return usual if n <= 40 else max(1.8, usual * (40 / n) ** 0.4)


def band(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str) -> None:
    """An interval at every x, shaded and thinly edged so that it also shows in grey."""
    axes.fill_between(
        np.asarray(x), np.asarray(low), np.asarray(high),
        color=colour, alpha=BAND_ALPHA, lw=0, zorder=1,
    )  # fmt: skip


def shade_beyond(axes: Axes, start: float, stop: float) -> None:
    """Hatch the compute that nothing was measured at."""
    axes.axvspan(
        start, stop, facecolor="#f2f2f2", edgecolor="#cfcfcf", hatch="////", lw=0, zorder=0
    )
    axes.axvline(start, color=MUTED, lw=0.7, ls=(0, (2, 2)), zorder=0.5)


def error_bars(axes: Axes, x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str) -> None:
    """Vertical intervals, one artist."""
    axes.vlines(np.asarray(x), np.asarray(low), np.asarray(high), color=colour, lw=1.0)
