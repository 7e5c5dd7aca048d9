"""Hover values of a figure: transparent targets over its image, placed in percent.

No script: a target is a focusable element whose text a style sheet shows on hover, tap and focus.
Percent of the figure are the same at any size of the image. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from matplotlib.figure import Figure

MAX_TARGETS = 400
"""Targets of one figure; more would make the page slow and could not be told apart."""


class Point(Protocol):
    """A value of a figure in data coordinates (``analysis.figures.hover``)."""

    @property
    def axes(self) -> int:
        """Index in ``figure.axes``."""

    @property
    def x(self) -> float:
        """Data coordinate."""

    @property
    def y(self) -> float:
        """Data coordinate."""

    @property
    def text(self) -> str:
        """What is shown."""


@dataclass(frozen=True)
class Target:
    """One value on the image."""

    left: float
    """Percent of the image's width from its left edge."""
    top: float
    """Percent of the image's height from its upper edge."""
    text: str

    @property
    def side(self) -> str:
        """Where the text opens so that it stays on the image: ``ne``, ``nw``, ``se``, ``sw``."""
        return ("s" if self.top < 50 else "n") + ("e" if self.left < 50 else "w")


@dataclass(frozen=True)
class Overlay:
    """The targets of one figure."""

    targets: tuple[Target, ...]
    n_values: int
    """Values that lie on the image, shown or not."""

    @property
    def note(self) -> str:
        """What a reader must know of targets left out; empty when all are there."""
        shown = len(self.targets)
        if shown == self.n_values:
            return ""
        return f"Values on hover: {shown} of {self.n_values}, thinned evenly."


def overlay(figure: Figure, points: Sequence[Point], most: int = MAX_TARGETS) -> Overlay:
    """Place values on the image of a figure that has been rendered.

    Parameters
    ----------
    figure
        Rendered, so that its layout is solved.
    points
        Values in data coordinates; those outside their axes' limits are left out.
    most
        Targets to keep, evenly thinned in the order given.
    """
    placed = [target for target in (_place(figure, point) for point in points) if target]
    if len(placed) <= most:
        return Overlay(tuple(placed), len(placed))
    kept = np.unique(np.linspace(0, len(placed) - 1, most).round().astype(int))
    return Overlay(tuple(placed[i] for i in kept), len(placed))


def _place(figure: Figure, point: Point) -> Target | None:
    axes = figure.axes[point.axes]
    x, y = axes.transData.transform((point.x, point.y))
    if not (math.isfinite(x) and math.isfinite(y)):
        return None
    box, page = axes.bbox, figure.bbox
    # A marker on the frame is seen; half a pixel decides nothing.
    inside = box.x0 - 1 <= x <= box.x1 + 1 and box.y0 - 1 <= y <= box.y1 + 1
    if not inside:
        return None
    left, top = 100 * (x - page.x0) / page.width, 100 * (page.y1 - y) / page.height
    return Target(round(float(left), 2), round(float(top), 2), point.text)
