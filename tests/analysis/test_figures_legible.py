"""Every figure at its printed size: text on the page and large enough, hover points in place."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from analysis.cells import CURRENCIES, FLOPS, CellPoint, cell_points
from analysis.compare.arms import compare_arms
from analysis.figures import marks
from analysis.figures.block_size import block_size_data, block_size_figure, block_size_hover
from analysis.figures.depth_width import (
    depth_width_data,
    depth_width_figure,
    depth_width_hover,
)
from analysis.figures.e_profile import e_profile_data, e_profile_figure, e_profile_hover
from analysis.figures.forest import forest_data, forest_figure, forest_hover
from analysis.figures.hover import HoverPoint
from analysis.figures.isoflop import isoflop_data, isoflop_figure, isoflop_hover
from analysis.figures.joint_profile import (
    joint_profile_data,
    joint_profile_figure,
    joint_profile_hover,
)
from analysis.figures.loss_compute import (
    loss_compute_data,
    loss_compute_figure,
    loss_compute_hover,
)
from analysis.figures.lr_brackets import lr_brackets_data, lr_brackets_figure, lr_brackets_hover
from analysis.figures.multiplier_curve import (
    multiplier_curve_data,
    multiplier_curve_figure,
    multiplier_curve_hover,
)
from analysis.figures.paired_differences import (
    paired_differences_data,
    paired_differences_figure,
    paired_differences_hover,
)
from analysis.figures.residuals import residuals_data, residuals_figure, residuals_hover
from analysis.figures.style import PAGE_INCHES, TEXT_POINTS, ArmStyle, arm_styles, new_figure
from analysis.fit.block_size import fit_block_size
from analysis.fit.isoflop import IsoFlopPoints, fit_isoflop
from analysis.fit.joint import fit_joint
from analysis.fit.joint_profile import joint_profile
from analysis.fit.shared import SharedFit, fit_shared
from tests.analysis.figure_inputs import KIMI, joint_points, kimi_shapes, lr_runs, rho_curve
from tests.analysis.synthetic_sweep import MULTIPLIERS


@pytest.fixture(scope="module")
def points(used: pd.DataFrame) -> tuple[CellPoint, ...]:
    return cell_points(used, FLOPS)


@pytest.fixture(scope="module")
def law(points: tuple[CellPoint, ...]) -> SharedFit:
    return fit_shared(points, FLOPS)


@pytest.fixture(scope="module")
def styles() -> dict[str, ArmStyle]:
    return arm_styles(MULTIPLIERS, "standard")


def assert_legible(figure: Figure, hover: Sequence[HoverPoint]) -> None:
    """Text is inside the page and at least 7 points; hover points lie on the axes they name."""
    figure.draw_without_rendering()
    page = figure.bbox
    assert figure.get_figwidth() <= PAGE_INCHES
    for axes in figure.axes:
        texts: list[Any] = [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        for text in [*texts, *axes.get_xticklabels(), *axes.get_yticklabels()]:
            if not text.get_visible() or not text.get_text():
                continue
            box = text.get_window_extent()
            assert text.get_fontsize() >= TEXT_POINTS
            assert box.x0 >= page.x0 - 2, text.get_text()
            assert box.x1 <= page.x1 + 2, text.get_text()
            assert box.y0 >= page.y0 - 2, text.get_text()
            assert box.y1 <= page.y1 + 2, text.get_text()
            for legend in figure.legends:
                assert not legend.get_window_extent().overlaps(box), text.get_text()
    for point in hover:
        box = figure.axes[point.axes].bbox
        x, y = figure.axes[point.axes].transData.transform((point.x, point.y))
        assert box.x0 - 1 <= x <= box.x1 + 1, point
        assert box.y0 - 1 <= y <= box.y1 + 1, point
        assert point.text


Drawing = tuple[Figure, Sequence[HoverPoint]]


def _loss(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = loss_compute_data(points, law, "standard", extrapolate_to=1e15)
    return loss_compute_figure(data, looks), loss_compute_hover(data)


def _residuals(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = residuals_data(points, law, "standard")
    return residuals_figure(data, looks), residuals_hover(data)


def _paired(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = paired_differences_data(used, "standard")
    return paired_differences_figure(data, looks), paired_differences_hover(data)


def _rho(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    curves = [rho_curve("full", beyond=True), rho_curve("delta", unbounded=True)]
    data = multiplier_curve_data(curves)
    return multiplier_curve_figure(data, looks), multiplier_curve_hover(data)


def _lr(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = lr_brackets_data(lr_runs(), "standard")
    return lr_brackets_figure(data, looks), lr_brackets_hover(data)


def _shape(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = depth_width_data(kimi_shapes(), "baseline")
    return depth_width_figure(data), depth_width_hover(data)


def _block(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    rows = list(csv.DictReader((KIMI / "block_size.csv").open()))
    sizes = [float(row["block_size"]) for row in rows]
    losses = [float(row["loss_nats"]) for row in rows]
    fit = fit_block_size(sizes, losses)
    data = block_size_data(sizes, losses, fit=fit, standard=1.766, full=1.737)
    assert data.line_loss == pytest.approx(fit.curve(data.line_size))
    return block_size_figure(data), block_size_hover(data)


def _isoflop(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    size = np.geomspace(1e6, 1e8, 7)
    loss = [3 + 0.05 * np.log(size / best) ** 2 for best in (4e6, 1e7, 2e7, 1e9)]
    runs = IsoFlopPoints(
        np.repeat([1e15, 1e16, 1e17, 1e18], 7), np.tile(size, 4), np.concatenate(loss)
    )
    data = isoflop_data(runs, fit_isoflop(runs))
    return isoflop_figure(data), isoflop_hover(data)


def _e(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = e_profile_data(law.profile, interval=law.e_interval, lowest_loss=2.4)
    return e_profile_figure(data), e_profile_hover(data)


def _joint(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    fitted = joint_points()
    surface = joint_profile(fitted, objective="mse")
    data = joint_profile_data(surface, fit_joint(fitted, objective="mse"))
    return joint_profile_figure(data), joint_profile_hover(data)


def _forest(points: Any, law: SharedFit, used: pd.DataFrame, looks: Any) -> Drawing:
    data = forest_data({c.name: compare_arms(used, "standard", c) for c in CURRENCIES})
    return forest_figure(data, looks), forest_hover(data)


@pytest.mark.parametrize(
    "draw", [_loss, _residuals, _paired, _rho, _lr, _shape, _block, _isoflop, _e, _joint, _forest]
)
def test_text_is_legible_and_hover_points_lie_on_their_axes(
    draw: Callable[..., Drawing],
    points: tuple[CellPoint, ...],
    law: SharedFit,
    used: pd.DataFrame,
    styles: dict[str, ArmStyle],
) -> None:
    assert_legible(*draw(points, law, used, styles))


def test_fourteen_arms_are_named_beside_their_lines() -> None:
    rng = np.random.default_rng(0)
    arms = ["standard", *(f"variant_{i}" for i in range(13))]
    shift = dict(zip(arms, rng.normal(0, 0.02, len(arms)), strict=True))
    cells = [
        CellPoint(arm, f"s{k}", c, 50 * c**-0.1 * (1 + shift[arm]) + 0.001 * k, None, 1, 1, ())
        for arm in arms
        for k, c in enumerate((1e12, 3e12, 9e12))
    ]
    data = loss_compute_data(cells, fit_shared(cells, FLOPS), "standard")
    figure = loss_compute_figure(data, arm_styles(arms, "standard"))
    named = [text for text in figure.axes[1].texts if text.get_text() in arms]
    assert {text.get_text() for text in named} == set(arms)
    assert_legible(figure, ())
    boxes = sorted((t.get_window_extent() for t in named), key=lambda box: box.y0)
    assert all(a.y1 <= b.y0 + 1 for a, b in itertools.pairwise(boxes))


def test_thousands_of_points_become_one_image_in_vector_files() -> None:
    axes = new_figure(3, 2).subplots()
    look = arm_styles(["a"], "a")["a"]
    marks.points(axes, np.arange(3000), np.arange(3000), look)
    marks.points(axes, np.arange(30), np.arange(30), look)
    assert [bool(line.get_rasterized()) for line in axes.lines] == [True, False]
