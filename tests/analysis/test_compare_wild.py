from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from analysis.cells import PairPoint
from analysis.compare.fieller import iso_loss_ratio
from analysis.compare.matching import SizeRuns
from analysis.compare.simultaneous import simultaneous
from analysis.compare.unpaired import unpaired_ratio
from analysis.compare.wild import WEBB, wild_bootstrap
from analysis.estimates import Interval
from tests.analysis.published_losses import KIMI_ARMS, draw_pairs, kimi_pairs


def log_width(interval: Interval) -> float:
    assert interval.low is not None
    assert interval.high is not None
    return float(np.log(interval.high / interval.low))


def own_runs(pairs: list[PairPoint]) -> tuple[list[SizeRuns], list[SizeRuns]]:
    """The same points with nothing said of which belong together."""
    base = [
        SizeRuns(size=p.size, log_compute=p.log_compute_base, losses=np.array([p.loss_base]))
        for p in pairs
    ]
    arm = [
        SizeRuns(size=p.size, log_compute=p.log_compute_arm, losses=np.array([p.loss_arm]))
        for p in pairs
    ]
    return base, arm


def unequal_pairs() -> list[PairPoint]:
    """Arms at unequal compute, the difference itself unequal from size to size."""
    rng = np.random.default_rng(8)
    x = np.log(np.geomspace(1.0, 20.0, 6))
    x_arm = x + np.array([0.05, 0.02, 0.08, 0.03, 0.06, 0.01])
    y, y_arm = (own + rng.normal(0, 0.002, 6) for own in (1 - 0.06 * x, 1 - 0.06 * (x_arm + 0.2)))
    return [
        PairPoint(f"s{i}", x[i], x_arm[i], y[i], y_arm[i], np.exp(y[i]), np.exp(y_arm[i]), 1)
        for i in range(6)
    ]


def refitted(pairs: list[PairPoint], y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Parallel lines by least squares on the stacked design: coefficients (a_b, a_v, s), fit."""
    n = len(pairs)
    x = np.array([p.log_compute_base for p in pairs] + [p.log_compute_arm for p in pairs])
    design = np.column_stack([np.repeat([1.0, 0.0], n), np.repeat([0.0, 1.0], n), -x])
    found = np.linalg.lstsq(design, y, rcond=None)[0]
    return found, design @ found


def test_webb_weights_have_mean_zero_and_variance_one() -> None:
    assert len(set(WEBB)) == 6
    assert (WEBB.mean(), (WEBB**2).mean()) == pytest.approx((0.0, 1.0))


def test_wild_bootstrap_agrees_with_refitting_every_sample_by_least_squares() -> None:
    pairs, n, replicates = kimi_pairs("block_attnres"), 5, 300
    y = np.array([p.log_excess_base for p in pairs] + [p.log_excess_arm for p in pairs])
    (a_base, a_arm, slope), fitted = refitted(pairs, y)
    estimate = (a_base - a_arm) / slope
    drawn = []
    for weights in np.random.default_rng(3).choice(WEBB, (replicates, n)):
        residual = np.tile(weights, 2) * (y - fitted) * np.sqrt(5 / 4)
        (one, other, s), _ = refitted(pairs, fitted + residual)
        drawn.append((one - other) / s - estimate)
    t_over_z = 2.7764451051977987 / 1.959963984540054
    low, high = np.quantile(drawn, [0.025, 0.975])
    expected = np.exp([estimate, estimate - t_over_z * high, estimate - t_over_z * low])
    found = wild_bootstrap(pairs, replicates=replicates, seed=3)
    assert (found.estimate, found.low, found.high) == pytest.approx(tuple(expected), rel=1e-9)


def test_wild_bootstrap_repeats_under_one_seed_and_barely_moves_under_another() -> None:
    pairs = kimi_pairs("block_attnres")
    first, again, other = (wild_bootstrap(pairs, seed=seed) for seed in (0, 0, 1))
    assert first == again
    assert other.low != first.low
    assert (other.low, other.high) == pytest.approx((first.low, first.high), rel=0.01)


def test_wild_bootstrap_gives_no_interval_from_two_sizes_or_without_a_sure_slope() -> None:
    assert not wild_bootstrap(kimi_pairs("block_attnres")[:2]).bounded
    pairs = draw_pairs(np.random.default_rng(1), 3, 1.2, 0.0, 0.06)
    found = wild_bootstrap(pairs)
    assert (found.bounded, found.estimate is None or found.reason is not None) == (False, True)


def test_unpaired_interval_of_the_published_table() -> None:
    pairs = kimi_pairs("block_attnres")
    found, _ = unpaired_ratio(*own_runs(pairs))
    # Computed independently of this code base.
    assert (found.low, found.high) == pytest.approx((1.145, 1.341), abs=5e-4)
    assert log_width(found) > 1.7 * log_width(iso_loss_ratio(pairs))


@pytest.mark.parametrize("pairs", [kimi_pairs("block_attnres"), unequal_pairs()], ids=["t", "u"])
def test_fieller_ends_are_where_a_plain_test_of_each_value_turns(pairs: list[PairPoint]) -> None:
    n = len(pairs)
    y = np.array([p.log_excess_base for p in pairs] + [p.log_excess_arm for p in pairs])
    coefficients, fitted = refitted(pairs, y)
    slope = float(coefficients[2])
    gap_x = np.array([p.log_compute_base - p.log_compute_arm for p in pairs])
    z = np.array([p.log_excess_base - p.log_excess_arm for p in pairs]) + slope * gap_x
    s_xx = 0.0
    for side in ("log_compute_base", "log_compute_arm"):
        x = np.array([getattr(p, side) for p in pairs])
        s_xx += float(((x - x.mean()) ** 2).sum())
    v_slope = float(((y - fitted) ** 2).sum()) / (2 * n - 3) / s_xx
    critical = {5: 2.7764451051977987, 6: 2.5705818356363146}[n]

    shift, mean, v_mean = float(gap_x.mean()), float(z.mean()), float(z.var(ddof=1)) / n

    def refuted(log_rho: float) -> bool:
        away = log_rho - shift
        off = mean - slope * log_rho
        return bool(abs(off) > critical * math.sqrt(v_mean + away**2 * v_slope))

    kept = [value for value in np.linspace(-0.5, 1.0, 30_001).tolist() if not refuted(value)]
    found = iso_loss_ratio(pairs)
    assert found.low is not None
    assert found.high is not None
    # To the step of the grid.
    assert np.log([found.low, found.high]) == pytest.approx([kept[0], kept[-1]], abs=5.1e-5)


def test_unpaired_ends_follow_from_least_squares_and_a_numeric_gradient() -> None:
    pairs = unequal_pairs()
    y = np.array([p.log_excess_base for p in pairs] + [p.log_excess_arm for p in pairs])

    def log_ratio(values: np.ndarray) -> float:
        (a_base, a_arm, slope), _ = refitted(pairs, values)
        return float((a_base - a_arm) / slope)

    # Every point moved by itself: no formula for the variance of m, s or their covariance.
    step = 1e-6
    gradient = [
        (log_ratio(y + step * unit) - log_ratio(y - step * unit)) / (2 * step)
        for unit in np.eye(len(y))
    ]
    variance = float(((y - refitted(pairs, y)[1]) ** 2).sum()) / 9
    half = 2.2621571627982053 * np.sqrt(variance * np.sum(np.square(gradient)))
    expected = np.exp(log_ratio(y) + np.array([0.0, -half, half]))
    found, p = unpaired_ratio(*own_runs(pairs))
    assert (found.estimate, found.low, found.high) == pytest.approx(tuple(expected), rel=1e-6)
    assert p is not None
    assert (p < 0.05) == found.excludes(1.0)


def test_family_wise_interval_of_one_arm_is_its_own() -> None:
    pairs = kimi_pairs("block_attnres")
    alone, own = simultaneous({"block": pairs})["block"], iso_loss_ratio(pairs)
    assert (alone.low, alone.high) == pytest.approx((own.low, own.high), rel=1e-12)


def test_arms_cost_what_sidak_says_and_less_than_bonferroni() -> None:
    pairs = kimi_pairs("block_attnres")
    family = simultaneous({arm: kimi_pairs(arm) for arm in KIMI_ARMS})["block_attnres"]
    sidak = iso_loss_ratio(pairs, 0.95 ** (1 / 3))
    assert (family.low, family.high) == pytest.approx((sidak.low, sidak.high), rel=1e-12)
    bonferroni = log_width(iso_loss_ratio(pairs, 1 - 0.05 / 3))
    assert log_width(iso_loss_ratio(pairs)) < log_width(family) < bonferroni


@pytest.mark.parametrize("n_sizes", [3, 5])
def test_a_family_of_six_arms_is_left_out_at_most_5_times_in_100(n_sizes: int) -> None:
    rng, missed, n_worlds = np.random.default_rng(17), 0, 500
    for _ in range(n_worlds):
        # Six arms against one baseline, none different: they share its errors.
        base = draw_pairs(rng, n_sizes, 1.0, 0.003, 0.0015)
        arms = {
            str(k): [
                replace(pair, log_excess_arm=pair.log_excess_base + gap)
                for pair, gap in zip(base, own - common, strict=True)
            ]
            for common in [rng.normal(0, 0.0015, n_sizes)]
            for k, own in enumerate(rng.normal(0, 0.0015, (6, n_sizes)))
        }
        missed += any(at.excludes(1.0) for at in simultaneous(arms).values())
    assert missed / n_worlds < 0.05 + 3 * (0.05 * 0.95 / n_worlds) ** 0.5


def test_arm_without_an_estimate_leaves_the_family_alone() -> None:
    pairs = kimi_pairs("block_attnres")
    found = simultaneous({"block": pairs, "nothing": [], "two": pairs[:2]})
    assert found["nothing"].estimate is None
    assert not found["two"].bounded
    assert found["block"].low == pytest.approx(iso_loss_ratio(pairs).low)
