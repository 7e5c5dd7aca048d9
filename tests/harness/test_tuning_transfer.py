"""Laws over sizes: known ones are recovered, and their intervals hold what they say."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tuning.transfer import fit_transfer, optimum, predicted, scatter

SIZES = [1e15, 4e15, 2e16, 1e17]


@settings(max_examples=50, deadline=None)
@given(exponent=st.floats(-1.5, 1.5), at_first=st.floats(1e-4, 1.0))
def test_a_power_law_is_recovered(exponent: float, at_first: float) -> None:
    best = [at_first * (x / SIZES[0]) ** exponent for x in SIZES]
    law = fit_transfer("full", "train.lr", "flops", SIZES, best)
    assert law.exponent == pytest.approx(exponent, abs=1e-9)
    far = at_first * 1000**exponent
    assert predicted(law, 1000 * SIZES[0]) == pytest.approx(far, rel=0.006)


def test_the_interval_of_the_exponent_covers_in_about_95_of_100_cases() -> None:
    noise, covered, n = random.Random(1), 0, 400
    for _ in range(n):
        best = [0.02 * (x / 1e16) ** -0.1 * math.exp(noise.gauss(0, 0.2)) for x in SIZES]
        law = fit_transfer("full", "train.lr", "flops", SIZES, best)
        interval = law.exponent_interval
        assert interval is not None
        covered += interval[0] < -0.1 < interval[1]
    assert 0.95 * n - 3 * math.sqrt(0.95 * 0.05 * n) <= covered <= n


def test_sizes_without_a_trend_share_their_mean() -> None:
    best = [0.02, 0.5, 0.01, 0.9]
    law = fit_transfer("full", "train.residual_lr_scale", "flops", SIZES, best)
    assert law.exponent_interval is not None
    assert law.exponent_interval[0] < 0 < law.exponent_interval[1]
    mean = math.exp(sum(map(math.log, best)) / 4)
    assert predicted(law, 1e21) == pytest.approx(mean, rel=0.006)
    assert law.notes[0].startswith("no trend over the sizes")


def test_other_arms_say_how_sure_a_slope_is() -> None:
    best = [0.02 * (x / SIZES[0]) ** -0.3 * f for x, f in zip(SIZES, (1, 1.2, 0.9, 1), strict=True)]
    alone = fit_transfer("full", "train.lr", "flops", SIZES[:3], best[:3])
    assert alone.exponent == 0
    steady = scatter(SIZES, [0.01 * (x / SIZES[0]) ** -0.3 for x in SIZES])
    around = scatter(SIZES[:3], best[:3]) + steady + steady + steady
    together = fit_transfer("full", "train.lr", "flops", SIZES[:3], best[:3], around)
    assert together.exponent == pytest.approx(-0.3, abs=0.05)
    # By hand: s^2 over 7 degrees of freedom, t = 2.3646.
    logs = [math.log(x) for x in SIZES[:3]]
    spread = sum((at - sum(logs) / 3) ** 2 for at in logs)
    half = 2.3646 * math.sqrt(around.squares / 7 / spread)
    assert together.exponent_interval is not None
    assert together.exponent_interval[1] - together.exponent == pytest.approx(half, rel=1e-4)


def test_two_sizes_give_a_line_without_an_interval_and_say_so() -> None:
    law = fit_transfer("full", "train.lr", "n_params", [1e6, 1e8], [0.04, 0.01])
    assert law.exponent == pytest.approx(math.log(0.25) / math.log(100))
    assert law.exponent_interval is None
    assert "no interval" in law.notes[0]
    assert predicted(law, 1e7) == 0.02


def test_sizes_of_equal_flops_share_one_value() -> None:
    law = fit_transfer("full", "train.lr", "flops", [1e16, 1e16], [0.01, 0.04])
    assert (law.exponent, predicted(law, 5e18)) == (0.0, 0.02)
    assert "have one flops" in law.notes[0]


def test_equal_best_values_are_carried_as_they_are_and_without_an_interval() -> None:
    law = fit_transfer("full", "train.lr", "flops", SIZES, [0.02] * 4)
    assert (law.exponent, predicted(law, 5e18)) == (0.0, 0.02)
    assert law.exponent_interval is None
    assert "have one train.lr" in law.notes[0]


def test_predictions_have_three_digits() -> None:
    law = fit_transfer("full", "train.lr", "flops", [1e15, 3e15, 9e15], [0.031, 0.021, 0.0131])
    assert predicted(law, 7e16) == float(f"{predicted(law, 7e16):.3g}")


@settings(max_examples=100, deadline=None)
@given(at=st.floats(0.011, 0.039), curvature=st.floats(0.01, 10), factor=st.floats(1.5, 4))
def test_the_minimum_of_a_parabola_is_found_between_its_points(
    at: float, curvature: float, factor: float
) -> None:
    values = [0.02 * factor**k for k in (-3, -2, -1, 0, 1, 2, 3)]
    losses = [3 + curvature * math.log(v / at) ** 2 for v in values]
    assert optimum(values, losses) == pytest.approx(at, rel=1e-6)


@given(st.lists(st.floats(0.1, 9.9), min_size=3, max_size=9))
def test_the_optimum_stays_between_the_neighbours_of_the_best_point(losses: list[float]) -> None:
    values = [0.01 * 2**k for k in range(len(losses))]
    found = optimum(values, losses)
    at = losses.index(min(losses))
    assert values[max(at - 1, 0)] <= found <= values[min(at + 1, len(values) - 1)]


def test_without_two_worse_neighbours_the_best_point_is_the_optimum() -> None:
    assert optimum([0.01, 0.02, 0.04], [1.0, 2.0, 3.0]) == 0.01
    assert optimum([0.01, 0.02, 0.04], [2.0, 1.0, math.inf]) == 0.02
