"""The numbers behind the figures of laws, multipliers, shapes and learning rates."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.cells import FLOPS, CellPoint, cell_points
from analysis.estimates import Interval
from analysis.figures.block_size import block_size_data, block_size_hover
from analysis.figures.depth_width import (
    ShapeLoss,
    depth_width_data,
    depth_width_hover,
    shapes_of,
)
from analysis.figures.e_profile import e_profile_data
from analysis.figures.isoflop import isoflop_data
from analysis.figures.joint_profile import (
    joint_profile_data,
)
from analysis.figures.labels import spread
from analysis.figures.loss_compute import (
    loss_compute_data,
    loss_compute_hover,
)
from analysis.figures.lr_brackets import lr_brackets_data
from analysis.figures.multiplier_curve import (
    multiplier_curve_data,
)
from analysis.figures.paired_differences import (
    mean_interval,
    paired_differences_data,
)
from analysis.figures.residuals import residuals_data
from analysis.figures.style import ArmStyle, arm_styles
from analysis.figures.ticks import even_ticks, log_ticks, ratio_ticks
from analysis.fit.isoflop import IsoFlopPoints, fit_isoflop
from analysis.fit.joint import EProfilePoint, fit_joint
from analysis.fit.joint_profile import joint_profile
from analysis.fit.profile import ProfilePoint
from analysis.fit.shared import SharedFit, fit_shared
from analysis.fit.surface import SurfacePoints, fit_surface
from tests.analysis.figure_inputs import joint_points, kimi_shapes, lr_runs, rho_curve
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


def test_bands_follow_the_law_and_stop_at_the_data_unless_asked(
    points: tuple[CellPoint, ...], law: SharedFit
) -> None:
    data = loss_compute_data(points, law, "standard")
    assert data.beyond is None
    for curve in data.curves:
        assert curve.fit_compute[-1] == pytest.approx(curve.compute.max())
        low, high = law.band(curve.arm, curve.fit_compute)
        assert np.array_equal(curve.fit_low, low)
        assert np.array_equal(curve.fit_high, high)
        assert (curve.fit_low < curve.fit_loss).all()


def test_extrapolation_is_drawn_only_beyond_the_largest_compute(
    points: tuple[CellPoint, ...], law: SharedFit
) -> None:
    largest = max(point.compute for point in points)
    data = loss_compute_data(points, law, "standard", extrapolate_to=10 * largest)
    assert data.beyond == (largest, 10 * largest)
    assert data.curves[0].fit_compute[-1] == pytest.approx(10 * largest)
    within = loss_compute_data(points, law, "standard", extrapolate_to=largest / 2)
    assert within.beyond is None
    assert within.curves[0].fit_compute[-1] == pytest.approx(within.curves[0].compute.max())


def test_hover_names_arm_size_compute_loss_and_seeds(
    points: tuple[CellPoint, ...], law: SharedFit
) -> None:
    found = loss_compute_hover(loss_compute_data(points, law, "standard"))
    point = next(p for p in points if p.arm == "full" and p.size == "8x160")
    expected = f"{point.loss:.4f} nats (2 seeds, sd {point.seed_sd:.4f})"
    texts = [h.text for h in found if h.axes == 0 and h.x == point.compute and h.y == point.loss]
    assert [text.split(": ")[1] for text in texts] == [expected]
    assert texts[0].startswith("full, 8x160, 2.7e13 FLOPs")


def test_multiplier_axis_holds_one_and_is_not_blown_up_by_an_unbounded_band() -> None:
    data = multiplier_curve_data([rho_curve("full", beyond=True), rho_curve("delta")])
    low, high = data.shown
    assert low < 1.0 < 1.3 * 1.1 < high
    assert high < 2 * 1.3 * 1.3
    assert low > 1.0 / 2 / 1.3
    assert len(data.curves[0].beyond_compute) == 2
    assert len(data.curves[1].beyond_compute) == 0


def test_residuals_are_losses_minus_each_arms_own_law(
    points: tuple[CellPoint, ...], law: SharedFit
) -> None:
    data = residuals_data(points, law, "standard")
    assert data.arms[0].arm == "standard"
    everything: list[float] = []
    for arm in data.arms:
        own = [p for p in points if p.arm == arm.arm]
        a, alpha = law.log_coefficients[arm.arm], law.exponent.estimate
        by_hand = [p.loss - math.exp(a) * p.compute**-alpha for p in own]  # type: ignore[operator]
        assert arm.residual == pytest.approx(by_hand, abs=1e-12)
        everything += by_hand
    assert data.rms == pytest.approx(law.rms_nats)
    quantiles = {r: q for a in data.arms for r, q in zip(a.residual, a.quantile, strict=True)}
    ordered = [quantiles[r] for r in sorted(quantiles)]
    n = len(everything)
    blom = stats.norm.ppf((np.arange(1, n + 1) - 0.375) / (n + 0.25))
    assert ordered == pytest.approx(list(blom))


def test_seed_sd_is_pooled_by_degrees_of_freedom(law: SharedFit) -> None:
    def cell(sd: float | None, n: int) -> CellPoint:
        return CellPoint("standard", "s", 1e12, 3.0, sd, n, 1, (3.0,) * n)

    data = residuals_data([cell(0.01, 2), cell(0.02, 4), cell(None, 1)], law, "standard")
    assert data.seed_sd == pytest.approx(math.sqrt((0.01**2 + 3 * 0.02**2) / 4))


def test_mean_interval_is_students() -> None:
    values = [-0.031, -0.027, -0.040]
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 2, np.mean(values), stats.sem(values))
    assert (found.low, found.high) == pytest.approx((low, high))
    assert mean_interval([0.5]).bounded is False


def test_differences_are_paired_by_seed_at_every_size(used: pd.DataFrame) -> None:
    data = paired_differences_data(used, "standard")
    assert data.sizes == ("2x64", "4x96", "6x128", "8x160")
    assert "standard" not in data.arms
    at = next(d for d in data.differences if d.arm == "full" and d.size == "6x128")
    rows = used[used["size"] == "6x128"].pivot_table("loss_nats", "seed", "arm")
    assert at.each == pytest.approx(list(rows["full"] - rows["standard"]))
    assert at.difference.estimate == pytest.approx(float((rows["full"] - rows["standard"]).mean()))
    assert at.n_pairs == 2


def test_a_rate_at_the_edge_is_told_from_a_bracketed_one() -> None:
    data = lr_brackets_data(lr_runs(), "standard")
    assert [b.arm for b in data.brackets] == ["standard", "full"]
    standard, full = data.brackets
    assert standard.interior
    assert standard.values[standard.best] == 2e-3
    assert standard.loss == pytest.approx((2.0, 1.9, 1.95))
    assert not full.interior
    assert full.n_seeds == (2, 2, 2)
    assert not lr_brackets_data(lr_runs().query("arm == 'delta'"), "standard").drawable


def test_depth_width_map_finds_the_published_optima_and_gains() -> None:
    data = depth_width_data(kimi_shapes(), "baseline")
    base, arm, gain = data.maps
    assert base.values.shape == (5, 5)
    places = [(data.depths[m.best[0]], data.widths[m.best[1]]) for m in (base, arm) if m.best]
    assert places == [(0.3, 60.0), (0.3, 45.0)]
    assert np.nanmin(gain.values) == pytest.approx(1.909 - 1.890)
    assert (gain.values > 0).all()


def test_shapes_that_were_not_run_stay_empty() -> None:
    shapes = [s for s in kimi_shapes() if (s.arm, s.depth, s.width) != ("attnres", 0.3, 45.0)]
    _, arm, gain = depth_width_data(shapes, "baseline").maps
    assert np.isnan(arm.values).sum() == np.isnan(gain.values).sum() == 1
    assert not any("0.3, width 45" in h.text for h in depth_width_hover(
        depth_width_data(shapes, "baseline")) if h.axes > 0)  # fmt: skip


def test_a_surface_without_an_inner_optimum_marks_none() -> None:
    rising = [(d, w, 1.0 + 0.1 * d + 0.01 * w) for d in (1.0, 2.0, 4.0) for w in (8.0, 16.0, 32.0)]
    depth, width, loss = (np.array(column) for column in zip(*rising, strict=True))
    fit = fit_surface(SurfacePoints(first=depth, second=width, loss_nats=loss))
    shapes = [ShapeLoss("standard", *row) for row in rising]
    data = depth_width_data(shapes, "standard", fits={"standard": fit})
    assert data.maps[0].optimum is None


def test_shapes_come_from_one_budget(used: pd.DataFrame) -> None:
    assert len({(s.depth, s.width) for s in shapes_of(used)}) == 1


def test_block_sizes_are_averaged_over_seeds_and_ordered() -> None:
    data = block_size_data([4, 2, 4], [1.75, 1.74, 1.77], standard=1.80)
    assert list(data.block_size) == [2, 4]
    assert list(data.loss) == pytest.approx([1.74, 1.76])
    assert data.n_seeds == (1, 2)
    assert data.seed_sd[0] is None
    assert "S = 4: 1.7600 nats (2 seeds, sd 0.0141), -0.0400 to standard" in [
        h.text for h in block_size_hover(data)
    ]


def test_isoflop_figure_keeps_refused_budgets_without_a_minimum() -> None:
    size = np.geomspace(1e6, 1e8, 7)
    inside = 3 + 0.05 * np.log(size / 1e7) ** 2
    falling = 2 - 0.1 * np.log(size / 1e7)
    points = IsoFlopPoints(
        np.repeat([1e15, 1e16], 7), np.tile(size, 2), np.concatenate([inside, falling])
    )
    data = isoflop_data(points, fit_isoflop(points))
    first, second = data.curves
    assert first.minimum == pytest.approx((1e7, 3.0))
    assert first.refused is None
    assert second.minimum is None
    assert len(data.refused) == 1
    assert data.refused[0].startswith("1e16 FLOPs: ")
    assert len(first.size) == len(second.size) == 7


def test_isoflop_line_is_the_fitted_law_with_its_band() -> None:
    budgets = np.array([1e15, 1e16, 1e17, 1e18])
    spread_by = np.exp(np.linspace(-1.5, 1.5, 7))
    size = np.outer(1e6 * (budgets / 1e15) ** 0.5, spread_by)
    loss = 3 + 0.05 * np.log(spread_by) ** 2 + 0 * size
    points = IsoFlopPoints(np.repeat(budgets, 7), size.ravel(), loss.ravel())
    data = isoflop_data(points, fit_isoflop(points))
    n_star = next(a for a in data.allocations if a.symbol == "N")
    assert n_star.line == pytest.approx(1e6 * (n_star.line_flops / 1e15) ** 0.5, rel=1e-6)
    assert n_star.exponent.startswith("0.500")
    assert (n_star.low <= n_star.line * (1 + 1e-12)).all()


def test_profile_of_e_reads_both_kinds_of_law() -> None:
    one = e_profile_data(
        [ProfilePoint(1.0, 0.2, 0.01), ProfilePoint(0.0, 0.1, 0.02)],
        interval=Interval(estimate=0.9, low=0.5, high=1.2, method="profile"),
    )
    assert list(one.asymptote) == [0.0, 1.0]
    assert list(one.misfit) == [0.02, 0.01]
    assert (one.low, one.high, one.estimate) == (0.5, 1.2, 0.9)
    two = e_profile_data([EProfilePoint(0.0, 4.0, 0.3, 0.4), EProfilePoint(1.0, 2.0, 0.5, 0.6)])
    assert list(two.misfit) == [2.0, 1.0]
    assert list(two.exponents["beta"]) == [0.4, 0.6]
    assert two.low is None


def test_joint_profile_is_relative_to_the_fit_and_marks_its_minimum() -> None:
    points = joint_points()
    fit = fit_joint(points, objective="mse")
    surface = joint_profile(points, objective="mse")
    data = joint_profile_data(surface, fit, published={"alpha": 0.34, "beta": 0.28})
    assert data.relative.min() >= 1 - 1e-9
    assert data.relative == pytest.approx(surface.objective / fit.certificate.objective)
    assert data.marks[0].alpha == fit.value("alpha")
    assert data.marks[-1].kind == "published"


def test_labels_are_moved_apart_and_stay_in_order() -> None:
    placed = spread([0.5, 0.51, 0.1, 0.505], 0.1, 0.0, 1.0)
    assert placed[2] == 0.1
    assert sorted(placed) == pytest.approx([0.1, 0.405, 0.505, 0.605])
    assert placed[0] < placed[3] < placed[1]
    crowded = spread([0.5] * 11, 0.2, 0.0, 1.0)
    assert sorted(crowded) == pytest.approx(list(np.linspace(0, 1, 11)))


@pytest.mark.parametrize(
    ("low", "high"), [(1e12, 1e12 * 1.8), (1e12, 3e13), (1e9, 1e24), (0.3, 0.32), (2.0, 7.9e5)]
)
def test_an_axis_has_a_handful_of_ticks_within_its_limits(low: float, high: float) -> None:
    for ticks in (log_ticks(low, high, 6), even_ticks(math.log(low), math.log(high), 6)):
        assert 2 <= len(ticks) <= 6
    ticks = log_ticks(low, high, 6)
    assert low * (1 - 1e-9) <= min(ticks)
    assert max(ticks) <= high * (1 + 1e-9)


@pytest.mark.parametrize(("low", "high"), [(0.97, 1.03), (0.6, 1.9), (0.05, 40.0)])
def test_multiplier_ticks_include_one(low: float, high: float) -> None:
    assert 1.0 in ratio_ticks(low, high)
    assert 3 <= len(ratio_ticks(low, high)) <= 8
