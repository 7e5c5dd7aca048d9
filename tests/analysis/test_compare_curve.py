from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.cells import CellPoint, PairPoint
from analysis.compare.curve import multiplier_curve
from analysis.compare.sensitivity import sensitivity
from analysis.estimates import FitRefused, TooFewData
from analysis.fit.shared import PROFILE_SHARES
from tests.analysis.published_losses import draw_pairs, kimi_pairs, kimi_runs

T_95_3 = 3.182446305284263
"""Student's t, 97.5%, 3 degrees of freedom."""


def curve_of(pairs: list[PairPoint]) -> list[CellPoint]:
    return [
        CellPoint("baseline", p.size, math.exp(p.log_compute_base), p.loss_base, None, 1, 1, ())
        for p in pairs
    ]


def lines(base: tuple[float, float], arm: tuple[float, float]) -> list[PairPoint]:
    """Noise-free pairs of two power laws, each (ln coefficient, exponent)."""
    x = np.log(np.geomspace(1e3, 1e5, 5))
    y_base, y_arm = base[0] - base[1] * x, arm[0] - arm[1] * x
    return [
        PairPoint(f"s{i}", x[i], x[i], y_base[i], y_arm[i], np.exp(y_base[i]), np.exp(y_arm[i]), 1)
        for i in range(5)
    ]


def test_curve_is_the_exact_ratio_of_two_power_laws_with_exponents_of_their_own() -> None:
    pairs = lines((1.5, 0.08), (1.6, 0.10))
    found = multiplier_curve(pairs, curve_of(pairs), n=9)
    # C_base at the arm's loss, from the two laws themselves.
    loss = [1.6 - 0.10 * math.log(c) for c in found.compute]
    exact = [math.exp((1.5 - y) / 0.08) / c for y, c in zip(loss, found.compute, strict=True)]
    assert found.rho == pytest.approx(exact, rel=1e-9)
    assert exact[-1] > 1.2 * exact[0]


def test_one_exponent_gives_a_flat_curve_at_the_multiplier() -> None:
    pairs = lines((1.5, 0.08), (1.5 - 0.08 * math.log(1.25), 0.08))
    found = multiplier_curve(pairs, curve_of(pairs), n=7)
    assert found.rho == pytest.approx([1.25] * 7, rel=1e-9)


def test_band_is_that_of_the_paired_regression_line_where_the_slope_is_sure() -> None:
    # Independent noise a thousand times below what the arms' exponent explains; a gap near zero.
    rng = np.random.default_rng(6)
    exact = lines((1.5, 0.5), (1.5, 0.5))
    noisy = [p.log_excess_arm + rng.normal(0, 1e-4) for p in exact]
    pairs = [
        replace(p, log_excess_arm=y, loss_arm=math.exp(y))
        for p, y in zip(exact, noisy, strict=True)
    ]
    found = multiplier_curve(pairs, curve_of(pairs), n=5)
    x = np.array([p.log_compute_base for p in pairs])
    gaps = np.array([p.log_excess_base - p.log_excess_arm for p in pairs])
    design = np.column_stack([np.ones(5), x])
    coefficients, rss, *_ = np.linalg.lstsq(design, gaps, rcond=None)
    covariance = rss[0] / 3 * np.linalg.inv(design.T @ design)
    for compute, low, high in zip(found.compute, found.low, found.high, strict=True):
        row = np.array([1.0, math.log(compute)])
        half = T_95_3 * math.sqrt(row @ covariance @ row)
        ends = [(row @ coefficients - half) / 0.5, (row @ coefficients + half) / 0.5]
        assert np.log([low, high]) == pytest.approx(ends, abs=2e-3 * half / 0.5)


def test_band_ends_at_the_values_that_the_paired_regression_just_refutes() -> None:
    pairs = kimi_pairs("block_attnres")
    found = multiplier_curve(pairs, curve_of(pairs), n=5)
    x = np.array([p.log_compute_base for p in pairs])
    y_base = np.array([p.log_excess_base for p in pairs])
    y_arm = np.array([p.log_excess_arm for p in pairs])
    s_xx = ((x - x.mean()) ** 2).sum()
    gap, gap_at_0 = np.polyfit(x, y_base - y_arm, 1)
    v_gap = ((y_base - y_arm - gap * x - gap_at_0) ** 2).sum() / 3
    slope, level = np.polyfit(x, (y_base + y_arm) / 2, 1)
    v_slope = (((y_base + y_arm) / 2 - slope * x - level) ** 2).sum() / 3 / s_xx
    for compute, ends in zip(found.compute, zip(found.low, found.high, strict=True), strict=True):
        for r in np.log(ends):
            middle = math.log(compute) + r / 2
            off = gap_at_0 + gap * middle + slope * r
            variance = v_gap * (0.2 + (middle - x.mean()) ** 2 / s_xx) + r**2 * v_slope
            assert abs(off) / math.sqrt(variance) == pytest.approx(T_95_3, rel=1e-6)


def test_curve_ends_where_the_baseline_was_last_measured() -> None:
    pairs = kimi_pairs("block_attnres")
    found = multiplier_curve(pairs, curve_of(pairs), arm="block")
    largest = math.exp(pairs[-1].log_compute_arm)
    # The loss at the largest size, 1.693, is below all of the baseline's: the curve stops before.
    assert found.domain[1] == pytest.approx(largest)
    assert found.compute[-1] == pytest.approx(found.overlap[1])
    assert math.exp(pairs[-2].log_compute_arm) < found.overlap[1] < largest
    assert found.extrapolated is None
    assert (found.arm, found.baseline, len(found.compute)) == ("block", "baseline", 60)


def test_smallest_middle_and_largest_lie_on_the_curve() -> None:
    pairs = kimi_pairs("full_attnres")
    found = multiplier_curve(pairs, curve_of(pairs), n=5)
    at = (found.smallest, found.middle, found.largest)
    assert [one.compute for one in at] == pytest.approx([found.compute[i] for i in (0, 2, 4)])
    assert [one.ratio.estimate for one in at] == pytest.approx([found.rho[i] for i in (0, 2, 4)])
    assert [one.ratio.low for one in at] == pytest.approx([found.low[i] for i in (0, 2, 4)])


def test_extrapolation_comes_only_when_asked_and_holds_every_pinned_asymptote() -> None:
    pairs = kimi_pairs("block_attnres")
    end = 10 * math.exp(pairs[-1].log_compute_base)
    found = multiplier_curve(pairs, curve_of(pairs), extrapolate_to=end).extrapolated
    assert found is not None
    assert found.note.startswith("extrapolated: ")
    assert found.compute[-1] == pytest.approx(end)
    assert found.asymptotes[0] == 0.0
    assert found.asymptotes[-1] == pytest.approx(0.9 * 1.693)
    for e in found.asymptotes:
        moved = kimi_pairs("block_attnres", e)
        alone = multiplier_curve(moved, curve_of(moved), extrapolate_to=end, shares=(e / 1.693,))
        assert alone.extrapolated is not None
        rho = alone.extrapolated.rho_low[-1]
        assert found.rho_low[-1] <= rho * (1 + 1e-9)
        assert rho <= found.rho_high[-1] * (1 + 1e-9)
    # In range E moves the ratio by 2%; ten times beyond, by more than a third.
    assert found.rho_high[-1] > 1.3 * found.rho_low[-1]


def test_envelope_widens_with_the_distance_from_the_data() -> None:
    pairs = kimi_pairs("block_attnres")
    end = 100 * math.exp(pairs[-1].log_compute_base)
    found = multiplier_curve(pairs, curve_of(pairs), extrapolate_to=end).extrapolated
    assert found is not None
    width = np.log(np.array(found.high) / np.array(found.low))
    assert (np.diff(width) > 0).all()


def test_no_common_losses_are_refused() -> None:
    pairs = lines((1.5, 0.1), (0.2, 0.1))
    with pytest.raises(FitRefused, match="no common losses"):
        multiplier_curve(pairs, curve_of(pairs))


def test_two_sizes_make_no_curve() -> None:
    pairs = kimi_pairs("block_attnres")[:2]
    with pytest.raises(TooFewData, match="needs 3 sizes, got 2"):
        multiplier_curve(pairs, curve_of(pairs))


def test_uncertain_slope_leaves_the_band_open_and_says_so() -> None:
    pairs = draw_pairs(np.random.default_rng(1), 3, 1.2, 0.02, 0.02)
    found = multiplier_curve(pairs, curve_of(pairs))
    assert all(math.isnan(low) for low in found.low)
    assert found.middle.ratio.reason is not None
    assert found.middle.ratio.reason.startswith("unbounded: ")


def test_pinned_asymptotes_up_to_nine_tenths_barely_move_the_published_ratio_in_its_rows() -> None:
    runs = kimi_runs().assign(run_id="", status="done", excluded_because=None, in_grid=True)
    runs = runs.assign(flops_without_residual=np.nan, train_s=np.nan)
    rows = sensitivity(runs, "block_attnres", "baseline")
    found = [row.ratio.estimate for row in rows if row.kind == "E"]
    # Equal compute: ((L_b - E) / (L_v - E))^(1 / s) at the geometric mean, s by polyfit.
    table = kimi_pairs("block_attnres")
    lowest = min(p.loss_arm for p in table)
    x = [p.log_compute_base for p in table]
    for share, ratio in zip(PROFILE_SHARES, found, strict=True):
        losses = np.array([(p.loss_base, p.loss_arm) for p in table])
        y = np.log(losses - share * lowest)
        slope = -np.polyfit(x, y.mean(axis=1), 1)[0]
        assert ratio == pytest.approx(math.exp((y[:, 0] - y[:, 1]).mean() / slope), rel=1e-9)
    # Computed independently of this code base, for E up to 1.6 nats.
    assert found[0] == pytest.approx(1.239, abs=5e-4)
    assert all(1.2385 < value < 1.2645 for value in found if value)
    dropped = [row.ratio.estimate for row in rows if row.kind.startswith("drop_")]
    assert all(1.215 < value < 1.255 for value in dropped if value)
    assert len(dropped) == 2
