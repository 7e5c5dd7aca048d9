"""How well each pair of exponents can fit: a map with contours, the optimum and its rivals.

``joint_profile_data`` is pure and tested on numbers; ``draw_joint_profile`` neither filters nor
fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from analysis.figures.hover import HoverPoint
from analysis.figures.labels import legend_above
from analysis.figures.style import COLUMN_INCHES, in_style, new_figure
from analysis.figures.ticks import even_ticks, few, log_ticks
from analysis.fit.joint import JointFit
from analysis.fit.joint_profile import JointProfile
from analysis.laws import Floats

CONTOURS = (1.1, 1.5, 2.0, 5.0, 20.0, 100.0)
"""Multiples of the least objective that lines are drawn at."""
SHOWN = 4.0
"""Multiple up to which a pair of exponents must be on the map; the rest is cut off."""
_MARKS: dict[str, dict[str, Any]] = {
    "minimum": {"marker": "*", "ms": 9},
    "competing minimum": {"marker": "v", "ms": 6},
    "published": {"marker": "s", "ms": 5},
}


@dataclass(frozen=True)
class ProfileMark:
    """A named pair of exponents."""

    kind: str
    """``minimum``, ``competing minimum`` or ``published``."""
    alpha: float
    beta: float
    relative: float | None
    """Objective over the least; None where it is not known."""


@dataclass(frozen=True)
class JointProfileData:
    """The profile over (alpha, beta), relative to the objective at the fit."""

    alphas: Floats
    betas: Floats
    relative: Floats
    """``[len(alphas), len(betas)]`` lowest objective over the fit's."""
    marks: tuple[ProfileMark, ...]

    @property
    def drawable(self) -> bool:
        """The surface has values."""
        return bool(np.isfinite(self.relative).any())


def joint_profile_data(
    profile: JointProfile,
    fit: JointFit,
    *,
    published: Mapping[str, float] | None = None,
) -> JointProfileData:
    """Profile relative to the fit, with the minima.

    Parameters
    ----------
    profile
        Lowest objective at every pair of exponents.
    fit
        The minimum, with its competitors.
    published
        ``alpha`` and ``beta`` of a published law to mark.
    """
    least = fit.certificate.objective
    marks = [ProfileMark("minimum", fit.value("alpha"), fit.value("beta"), 1.0)]
    for other in fit.certificate.competitors:
        at = other.parameters
        if "alpha" in at and "beta" in at:
            relative = other.objective / least
            marks.append(ProfileMark("competing minimum", at["alpha"], at["beta"], relative))
    if published is not None:
        marks.append(ProfileMark("published", published["alpha"], published["beta"], None))
    return JointProfileData(
        np.asarray(profile.alphas, dtype=float),
        np.asarray(profile.betas, dtype=float),
        np.asarray(profile.objective, dtype=float) / least,
        tuple(marks),
    )


def draw_joint_profile(data: JointProfileData, axes: Axes) -> Any:
    """Map of the relative objective (logarithmic, light is good) with labelled contours.

    Returns the image, for a colour bar.
    """
    shown = np.log10(np.clip(data.relative, 1.0, 10 * CONTOURS[-1]).T)
    image = axes.pcolormesh(
        data.alphas, data.betas, shown, cmap="cividis_r", shading="nearest", rasterized=True
    )
    levels = [np.log10(level) for level in CONTOURS if level < 10 ** shown.max()]
    if levels:
        lines = axes.contour(
            data.alphas, data.betas, shown, levels=levels, colors="black", linewidths=0.6
        )
        texts = axes.clabel(lines, fmt=lambda level: f"{10**level:g}x", fontsize=7)
        for text in texts:
            text.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    for mark in data.marks:
        axes.plot(mark.alpha, mark.beta, **_look(mark.kind))
    good = np.asarray(data.relative <= SHOWN)
    axes.set_xlim(*_window(data.alphas, good, [mark.alpha for mark in data.marks]))
    axes.set_ylim(*_window(data.betas, good.T, [mark.beta for mark in data.marks]))
    few(axes.xaxis, even_ticks, 6)
    few(axes.yaxis, even_ticks, 6)
    axes.grid(visible=False)
    axes.set_xlabel("exponent of parameters, α")
    axes.set_ylabel("exponent of tokens, β")
    return image


def _decades(low: float, high: float, most: int) -> list[float]:
    """Logarithms of round multiples."""
    return [math.log10(value) for value in log_ticks(10**low, 10**high, most)]


def _window(levels: Floats, inside: NDArray[np.bool_], also: list[float]) -> tuple[float, float]:
    """Range of the exponents along the first axis that fit tolerably, and two nodes around."""
    kept = np.flatnonzero(inside.sum(axis=1))
    if not len(kept):
        return float(levels[0]), float(levels[-1])
    low, high = levels[max(kept[0] - 2, 0)], levels[min(kept[-1] + 2, len(levels) - 1)]
    return min(float(low), *also), max(float(high), *also)


def _look(kind: str) -> dict[str, Any]:
    return {"ls": "", "color": "white", "mec": "black", "mew": 0.9, **_MARKS[kind]}


def joint_profile_figure(data: JointProfileData) -> Figure:
    """The map with its colour bar and key."""
    figure = new_figure(COLUMN_INCHES, 3.1)
    with in_style():
        axes = figure.subplots()
        image = draw_joint_profile(data, axes)
        bar = figure.colorbar(image, ax=axes, pad=0.02)
        few(bar.ax.yaxis, _decades, 8)
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{10**value:.3g}x"))
        bar.set_label("least objective, over the minimum")
        kinds = dict.fromkeys(mark.kind for mark in data.marks)
        legend_above(figure, [Line2D([], [], label=kind, **_look(kind)) for kind in kinds])
    return figure


def joint_profile_hover(data: JointProfileData) -> tuple[HoverPoint, ...]:
    """The marked minima."""
    return tuple(
        HoverPoint(
            axes=0,
            x=mark.alpha,
            y=mark.beta,
            text=f"{mark.kind}: alpha {mark.alpha:.4f}, beta {mark.beta:.4f}"
            + (f", objective {mark.relative:.4g} of the least" if mark.relative else ""),
        )
        for mark in data.marks
    )
