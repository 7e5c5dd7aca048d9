from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analysis.cells import FLOPS, CellPoint, cell_points, n_levels
from analysis.collect import collect, usable
from analysis.estimates import FitRefused
from analysis.fit import fit_shared, pooled_slope
from analysis.laws import compute_at, crossings, log_excess, loss_at
from tests.analysis.synthetic_sweep import ALPHA, LOG_A, MULTIPLIERS, World, build_sweep, run_id


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
    assert result.notes == ("E is not identified: its profile has no interior minimum",)


def test_exponent_interval_holds_the_truth_when_arms_share_deviations() -> None:
    arms = {"a": 1.0, "b": 1.2, "c": 1.3, "d": 0.9}
    covered = 0
    for seed in range(300):
        exponent = fit_shared(points(arms, noise=0.004, seed=seed), FLOPS).exponent
        covered += not exponent.excludes(ALPHA)
    assert 0.92 <= covered / 300 <= 0.98


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
    from scipy import stats

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
