from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.cells import FLOPS, CellPoint, cell_points, n_levels
from analysis.collect import collect, usable
from analysis.estimates import FitRefused, NoMinimum, TooFewData
from analysis.fit.power import fit_power
from analysis.fit.shared import SharedFit, fit_shared, pooled_slope
from analysis.fit.slope_test import slope_test
from analysis.laws import compute_at, crossings, log_excess, loss_at
from tests.analysis.synthetic_sweep import ALPHA, LOG_A, MULTIPLIERS, World, build_sweep, run_id

DATA = Path(__file__).parents[1] / "data"


def points(
    arms: dict[str, float],
    sizes: int = 5,
    asymptote: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
) -> list[CellPoint]:
    rng = np.random.default_rng(seed)
    compute = np.geomspace(1e12, 1e14, sizes)
    made = []
    for i, c in enumerate(compute):
        shared = rng.normal(0, noise)
        for arm, rho in arms.items():
            loss = asymptote + np.exp(LOG_A - ALPHA * np.log(rho * c) + shared)
            made.append(CellPoint(arm, str(i), float(c), float(loss), None, 1, 1, (float(loss),)))
    return made


def test_known_law_is_recovered_exactly(tmp_path: Path) -> None:
    used = usable(collect(build_sweep(tmp_path)))
    result = fit_shared(cell_points(used, FLOPS), FLOPS)
    assert result.exponent.estimate == pytest.approx(ALPHA, rel=1e-9)
    for arm, rho in MULTIPLIERS.items():
        assert result.log_coefficients[arm] == pytest.approx(LOG_A - ALPHA * np.log(rho), rel=1e-9)
    assert (result.n_points, result.n_levels) == (24, 4)
    assert result.rms_nats < 1e-9


def test_exponent_is_recovered_when_the_asymptote_is_pinned_at_the_truth() -> None:
    result = fit_shared(points({"a": 1.0, "b": 1.3}, asymptote=0.8), FLOPS, asymptote=0.8)
    assert result.exponent.estimate == pytest.approx(ALPHA, rel=1e-9)
    best = min(result.profile, key=lambda point: point.rms_nats)
    assert 0 < best.asymptote < 1.6
    assert result.at_bound == ()


def test_asymptote_that_the_data_do_not_identify_is_flagged() -> None:
    result = fit_shared(points({"a": 1.0, "b": 1.3}), FLOPS)
    assert result.at_bound == ("E",)
    assert result.notes == ("e_not_identified: its profile has no interior minimum",)


def test_asymptote_is_said_to_be_unknown_where_its_interval_is_wide_though_e_is_pinned() -> None:
    fits = [
        fit_shared(points({"a": 1.0, "b": 1.3}, noise=0.003, asymptote=1.8, seed=seed), FLOPS)
        for seed in range(40)
    ]
    told = [any(note.startswith("e_not_identified: ") for note in fit.notes) for fit in fits]
    assert np.mean(told) > 0.5


@pytest.fixture(scope="module")
def noisy_fits() -> list[SharedFit]:
    arms = {"a": 1.0, "b": 1.2, "c": 1.3, "d": 0.9}
    return [fit_shared(points(arms, noise=0.004, seed=seed), FLOPS) for seed in range(300)]


def test_exponent_interval_holds_the_truth_when_arms_share_deviations(
    noisy_fits: list[SharedFit],
) -> None:
    covered = [not fit.exponent.excludes(ALPHA) for fit in noisy_fits]
    assert 0.92 <= np.mean(covered) <= 0.98


@pytest.mark.parametrize("compute", [1e12, 1e13, 1e15])
def test_band_holds_the_true_law_when_arms_share_deviations(
    noisy_fits: list[SharedFit], compute: float
) -> None:
    truth = np.exp(LOG_A - ALPHA * np.log(1.3 * compute))
    ends = [fit.band("c", compute) for fit in noisy_fits]
    covered = [low[0] <= truth <= high[0] for low, high in ends]
    assert 0.92 <= np.mean(covered) <= 0.98


def test_intervals_are_those_of_the_size_means_when_every_arm_ran_at_every_size() -> None:
    rng = np.random.default_rng(3)
    made = [
        replace(p, loss=p.loss * float(np.exp(rng.normal(0, 0.003))))
        for p in points({"a": 1.0, "b": 1.3, "c": 0.8}, noise=0.004)
    ]
    fit = fit_shared(made, FLOPS)
    x = np.log(np.geomspace(1e12, 1e14, 5))
    y = np.log([[p.loss for p in made if p.size == str(i)] for i in range(5)])
    reference = stats.linregress(x, y.mean(axis=1))
    half = stats.t.ppf(0.975, 3) * reference.stderr
    assert fit.exponent.estimate == pytest.approx(-reference.slope, rel=1e-10)
    assert fit.exponent.high == pytest.approx(-reference.slope + half, rel=1e-9)
    assert fit.log_coefficients["b"] == pytest.approx(
        y[:, 1].mean() + fit.value("alpha") * x.mean(), rel=1e-10
    )


def test_sought_asymptote_of_several_arms_is_recovered_exactly() -> None:
    fit = fit_shared(points({"a": 1.0, "b": 1.3}, asymptote=0.8), FLOPS, asymptote="profile")
    assert fit.asymptote == pytest.approx(0.8, rel=1e-6)
    assert fit.exponent.estimate == pytest.approx(ALPHA, rel=1e-6)
    assert fit.certificate.problems == ()


def test_sought_asymptote_of_one_arm_is_that_of_the_power_law() -> None:
    made = points({"a": 1.0}, sizes=7, asymptote=0.8, noise=0.002)
    shared = fit_shared(made, FLOPS, asymptote="profile")
    alone = fit_power([p.compute for p in made], [p.loss for p in made], asymptote="profile")
    assert shared.asymptote == pytest.approx(alone.value("E"), rel=1e-9)
    for name in ("E", "alpha"):
        assert shared.parameters[name].high == pytest.approx(alone.parameters[name].high, rel=1e-9)
    assert np.array(shared.covariance)[1, 1] == pytest.approx(np.array(alone.covariance)[2, 2])


def test_sought_asymptote_needs_four_sizes_and_a_falling_loss() -> None:
    with pytest.raises(TooFewData, match="at least 4 sizes at distinct compute, got 3"):
        fit_shared(points({"a": 1.0}, sizes=3), FLOPS, asymptote="profile")
    rising = [replace(p, loss=10 - p.loss / 10) for p in points({"a": 1.0})]
    with pytest.raises(NoMinimum):
        fit_shared(rising, FLOPS, asymptote="profile")


def steeper(made: list[CellPoint], arm: str, by: float) -> list[CellPoint]:
    return [
        replace(p, loss=p.loss * (p.compute / 1e13) ** -by) if p.arm == arm else p for p in made
    ]


def noisy(made: list[CellPoint], seed: int, sd: float = 0.001) -> list[CellPoint]:
    rng = np.random.default_rng(seed)
    return [replace(p, loss=p.loss * float(np.exp(rng.normal(0, sd)))) for p in made]


def test_slope_test_is_the_f_test_on_differences_from_the_mean_over_arms() -> None:
    made = noisy(points({"a": 1.0, "b": 1.2, "c": 0.9}, noise=0.01), 0)
    y = np.log([[p.loss for p in made if p.size == str(i)] for i in range(5)])
    x = np.log(np.geomspace(1e12, 1e14, 5))
    d = y - y.mean(axis=1, keepdims=True)
    shared = separate = 0.0
    for arm in range(3):
        shared += float(((d[:, arm] - d[:, arm].mean()) ** 2).sum())
        line = np.polyfit(x, d[:, arm], 1)
        separate += float(((d[:, arm] - np.polyval(line, x)) ** 2).sum())
    test = slope_test(made)
    expected = (shared - separate) / 2 / (separate / 6)
    assert test.dof == (2, 6)
    assert test.f == pytest.approx(expected, rel=1e-6)
    assert test.p == pytest.approx(float(stats.f.sf(expected, 2, 6)), rel=1e-6)
    assert test.aicc_shared == pytest.approx(
        10 * np.log(shared / 10) + 2 * 3 + 2 * 3 * 4 / (10 - 4), rel=1e-6
    )
    own = np.polyfit(x, y[:, 1], 1)[0]
    assert test.slopes["b"].estimate == pytest.approx(-own)


def test_shared_deviations_do_not_hide_a_steeper_arm() -> None:
    flat = points({"a": 1.0, "b": 1.2}, noise=0.02)
    assert slope_test(noisy(flat, 1)).preferred == "shared"
    test = slope_test(noisy(steeper(flat, "b", 0.01), 1))
    assert test.preferred == "separate"
    assert test.differences["b"].excludes(0.0)
    assert test.differences["b"].estimate == pytest.approx(0.005, abs=0.001)


def test_slope_test_rejects_equal_slopes_five_times_in_a_hundred() -> None:
    made = points({"a": 1.0, "b": 1.2, "c": 0.9}, noise=0.01)
    rejected = [slope_test(noisy(made, seed)).p < 0.05 for seed in range(300)]
    assert 0.02 <= np.mean(rejected) <= 0.08


def test_slope_test_leaves_out_sizes_that_only_one_arm_ran_at() -> None:
    made = noisy(points({"a": 1.0, "b": 1.2}), 0)
    lone = [p for p in made if p.arm == "a" or p.size != "4"]
    assert slope_test(lone).f == pytest.approx(slope_test([p for p in lone if p.size != "4"]).f)
    with pytest.raises(TooFewData, match="two arms that share 3 sizes"):
        slope_test(points({"a": 1.0}))


def test_published_attnres_arms_share_one_exponent() -> None:
    rows = pd.read_csv(DATA / "attnres_kimi2026" / "table2_losses.csv")
    arms = ["baseline", "block_attnres", "full_attnres", "mhc_lite"]
    compute = 6 * rows["active_params"] * rows["tokens"]
    made = [
        CellPoint(arm, str(i), float(c), float(loss), None, 1, 1, (float(loss),))
        for arm in arms
        for i, (c, loss) in enumerate(zip(compute, rows[arm], strict=True))
    ]
    test = slope_test(made)
    assert (test.preferred, test.dof) == ("shared", (3, 9))
    assert "one shared exponent suffices" in test.text


def test_fewer_than_three_compute_levels_are_refused() -> None:
    with pytest.raises(FitRefused, match="at least 3 distinct compute levels, got 2"):
        fit_shared(points({"a": 1.0, "b": 1.2}, sizes=2), FLOPS)


def test_no_points_are_refused_not_crashed_on() -> None:
    with pytest.raises(FitRefused, match="got 0"):
        fit_shared([], FLOPS)


def test_three_levels_spread_over_arms_with_two_sizes_each_are_refused() -> None:
    made = points({"a": 1.0}, sizes=3)[:2] + points({"b": 1.0}, sizes=3)[1:]
    with pytest.raises(FitRefused, match="one arm with 3 sizes, got at most 2"):
        fit_shared(made, FLOPS)


def test_asymptote_above_a_loss_is_refused() -> None:
    with pytest.raises(FitRefused, match="must lie below every loss, got E = 9"):
        fit_shared(points({"a": 1.0}), FLOPS, asymptote=9.0)


def test_seeds_of_a_cell_count_as_one_point(tmp_path: Path) -> None:
    used = usable(collect(build_sweep(tmp_path, World(seeds=(0, 1, 2), noise=0.002))))
    cells = [cell for cell in cell_points(used, FLOPS) if cell.arm == "full"]
    assert [cell.n_seeds for cell in cells] == [3, 3, 3, 3]
    first = used[(used["arm"] == "full") & (used["size"] == "2x64")]["loss_nats"]
    assert cells[0].loss == pytest.approx(first.mean())
    assert cells[0].seed_sd == pytest.approx(first.std(ddof=1))


def test_diverged_run_never_enters_a_fit(tmp_path: Path) -> None:
    world = World(statuses={run_id("full", 3, seed): "diverged" for seed in (0, 1)})
    used = usable(collect(build_sweep(tmp_path, world)))
    result = fit_shared(cell_points(used, FLOPS), FLOPS)
    assert result.n_points == 23
    assert result.exponent.estimate == pytest.approx(ALPHA, rel=1e-9)


def test_data_hash_changes_with_a_loss_and_not_with_the_order() -> None:
    made = points({"a": 1.0, "b": 1.3})
    same = fit_shared(made[::-1], FLOPS).data_sha256
    other = fit_shared(points({"a": 1.0, "b": 1.31}), FLOPS).data_sha256
    assert fit_shared(made, FLOPS).data_sha256 == same != other


def test_pooled_slope_of_one_line_is_that_of_scipy() -> None:
    x, y = np.array([0.0, 1.0, 2.0, 4.0]), np.array([1.0, 0.8, 0.75, 0.3])
    slope, variance = pooled_slope([(x, y)])
    reference = stats.linregress(x, y)
    assert slope == pytest.approx(-reference.slope)
    assert variance == pytest.approx(reference.stderr**2)


def test_budgets_within_five_percent_are_one_level() -> None:
    assert n_levels(np.log([1.0, 1.04, 3.0, 3.1, 9.0])) == 3
    assert n_levels(np.array([])) == 0


def test_compute_at_inverts_loss_at_and_is_nan_below_the_asymptote() -> None:
    loss = loss_at(np.array([1e12, 1e13]), 4.0, 0.1, 0.5)
    assert compute_at(loss, 4.0, 0.1, 0.5) == pytest.approx([1e12, 1e13])
    assert np.isnan(compute_at(0.5, 4.0, 0.1, 0.5))
    with pytest.raises(FitRefused):
        log_excess(0.5, 0.5)


def test_crossings_at_a_measured_point_are_counted_once() -> None:
    x, y = np.log([1.0, 2.0, 4.0]), np.log([4.0, 2.0, 1.0])
    assert crossings(2.0, x, y) == pytest.approx([np.log(2.0)])
    assert crossings(5.0, x, y) == []
