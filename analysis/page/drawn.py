"""A figure with what the page says about it."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from analysis.figures.hover import HoverPoint


@dataclass(frozen=True)
class Drawn:
    """A figure with its title, words and values."""

    name: str
    title: str
    text: str
    """What it shows and what it does not; under the figure on the page."""
    figure: Figure
    definition: str = ""
    """What is shown, in what unit; printed under the figure with the counts."""
    n_runs: int = 0
    """Runs of the sweep that are in a figure of single runs."""
    folded: bool = False
    """Behind a click on the page."""
    hover: tuple[HoverPoint, ...] = ()
    """Values to be read on the page."""
