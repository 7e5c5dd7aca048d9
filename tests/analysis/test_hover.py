"""Values over the image of a figure: where they lie, and which are left out."""

from __future__ import annotations

import itertools
import math

import pytest
from matplotlib.figure import Figure

from analysis.figures.hover import HoverPoint
from analysis.figures.style import new_figure, render
from analysis.page.hover_overlay import Target, overlay


@pytest.fixture(scope="module")
def figure() -> Figure:
    """Axes over the right half of a figure, x logarithmic from 1 to 100, y from 0 to 10."""
    figure = new_figure(4.0, 2.0)
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.5, 0.0, 0.5, 1.0))
    axes.set_xscale("log")
    axes.set_xlim(1.0, 100.0)
    axes.set_ylim(0.0, 10.0)
    render(figure, "svg")
    return figure


def at(x: float, y: float, text: str = "t") -> HoverPoint:
    return HoverPoint(axes=0, x=x, y=y, text=text)


def test_a_value_lies_in_percent_of_the_image_from_its_upper_left(figure: Figure) -> None:
    (target,) = overlay(figure, [at(10.0, 7.5, "ten")]).targets
    assert target == Target(75.0, 25.0, "ten")


def test_positions_do_not_depend_on_the_resolution(figure: Figure) -> None:
    before = overlay(figure, [at(3.0, 2.0)])
    render(figure, "png")
    assert overlay(figure, [at(3.0, 2.0)]) == before


def test_values_outside_the_axes_or_not_finite_are_left_out(figure: Figure) -> None:
    points = [at(1000.0, 5.0), at(10.0, 11.0), at(-1.0, 5.0), at(10.0, math.nan), at(1.0, 0.0)]
    found = overlay(figure, points)
    assert [(t.left, t.top) for t in found.targets] == [(50.0, 100.0)]
    assert found.note == ""


def test_many_values_are_thinned_evenly_and_the_figure_says_so(figure: Figure) -> None:
    points = [at(10.0, 10 * i / 999, str(i)) for i in range(1000)]
    found = overlay(figure, points, most=10)
    kept = [int(target.text) for target in found.targets]
    assert (kept[0], kept[-1], len(kept)) == (0, 999, 10)
    assert max(b - a for a, b in itertools.pairwise(kept)) == 111
    assert found.note == "Values on hover: 10 of 1000, thinned evenly."


@pytest.mark.parametrize(
    ("left", "top", "side"), [(10, 10, "se"), (90, 10, "sw"), (10, 90, "ne"), (90, 90, "nw")]
)
def test_the_text_opens_towards_the_middle(left: float, top: float, side: str) -> None:
    assert Target(left, top, "t").side == side
