"""Shape at fixed compute and the block size, on the numbers of arXiv 2603.15031."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.estimates import TooFewData
from analysis.fit.block_size import fit_block_size
from analysis.fit.surface import SurfacePoints, fit_surface, gain_test

KIMI = Path(__file__).parents[1] / "data" / "attnres_kimi2026"
GRID = pd.read_csv(KIMI / "depth_width.csv")
AXES = ("heads_per_layer", "width_per_layer")


def published(arm: str) -> SurfacePoints:
    first, second, loss = (GRID[name].to_numpy(float) for name in (*AXES, arm))
    return SurfacePoints(first=first, second=second, loss_nats=loss, names=AXES)


def bowl(first: float, second: float, noise: float = 0.0, seed: int = 0) -> SurfacePoints:
    a, b = (v.ravel() for v in np.meshgrid([4.0, 6, 8, 12, 16], [128.0, 192, 256, 384, 512]))
    u, v = np.log(a / first), np.log(b / second)
    loss = 2.0 + 0.03 * u**2 + 0.01 * u * v + 0.05 * v**2
    return SurfacePoints(
        first=a, second=b, loss_nats=loss + np.random.default_rng(seed).normal(0, noise, len(a))
    )


def test_known_optimum_is_found_exactly_and_bracketed() -> None:
    fit = fit_surface(bowl(7.0, 300.0))
    assert fit.optimum["n_layers"].estimate == pytest.approx(7.0, rel=1e-8)
    assert fit.optimum["d_model"].estimate == pytest.approx(300.0, rel=1e-8)
    assert fit.bracketed == {"n_layers": True, "d_model": True}
    assert fit.predict(7.0, 300.0) == pytest.approx(2.0)


def test_interval_of_the_optimum_covers_the_truth_as_often_as_it_says() -> None:
    found = [fit_surface(bowl(8.0, 256.0, noise=0.001, seed=k)).optimum for k in range(400)]
    covered = np.mean([not at["n_layers"].excludes(8.0) for at in found])
    assert abs(covered - 0.95) < 3 * (0.95 * 0.05 / 400) ** 0.5


def test_optimum_outside_the_shapes_is_said_not_to_be_bracketed() -> None:
    fit = fit_surface(bowl(40.0, 256.0))
    assert fit.bracketed == {"n_layers": False, "d_model": True}
    assert fit.notes[0].startswith("optimum_not_bracketed: in n_layers")


def test_published_grid_does_not_bracket_the_shape_of_the_baseline() -> None:
    fit = fit_surface(published("baseline"))
    assert not fit.bracketed["heads_per_layer"]
    assert all(at.estimate is None for at in fit.optimum.values())
    # The paper's own reading: the lowest cells, d/L of 60 for the baseline and 45 for AttnRes.
    assert fit.extras["lowest_width_per_layer"] == pytest.approx(60)
    assert fit_surface(published("attnres")).extras["lowest_width_per_layer"] == pytest.approx(45)


def test_published_gain_is_what_the_paper_shows_and_not_constant() -> None:
    gain = GRID["baseline"] - GRID["attnres"]
    found = gain_test(GRID[AXES[0]], GRID[AXES[1]], gain)
    assert (found.smallest, found.largest) == pytest.approx((0.019, 0.063), abs=1e-9)
    assert found.p < 0.01
    assert "changes with shape" in found.text


def test_gain_test_has_the_p_of_an_f_test() -> None:
    from scipy import stats

    rng = np.random.default_rng(4)
    a, b, gain = rng.uniform(1, 9, 15), rng.uniform(1, 9, 15), rng.normal(0, 1, 15)
    u, v = np.log(a), np.log(b)
    design = np.column_stack([np.ones(15), u, v, u * u, u * v, v * v])
    many = float(np.linalg.lstsq(design, gain, rcond=None)[1][0])
    few = float(((gain - gain.mean()) ** 2).sum())
    p = stats.f.sf((few - many) / 5 / (many / 9), 5, 9)
    assert gain_test(a, b, gain).p == pytest.approx(p, rel=1e-10)


@pytest.mark.parametrize("gain", [0.0, 0.25])
def test_a_gain_that_is_the_same_everywhere_shows_no_trend(gain: float) -> None:
    shapes = bowl(8.0, 256.0)
    found = gain_test(shapes.first, shapes.second, np.full(len(shapes.first), gain))
    assert (found.f, found.p) == (0.0, 1.0)
    assert "shows no trend" in found.text


def test_a_ladder_of_sizes_is_no_surface() -> None:
    n = np.arange(2.0, 12)
    with pytest.raises(TooFewData, match="vary together"):
        fit_surface(SurfacePoints(first=n, second=32 * n, loss_nats=4 - 0.1 * np.log(n)))


def test_single_runs_give_a_trend_along_block_size_but_no_interval_per_size() -> None:
    table = pd.read_csv(KIMI / "block_size.csv")
    fit = fit_block_size(table["block_size"], table["loss_nats"])
    assert all(not at.above_best.bounded for at in fit.levels if at.above_best.estimate)
    assert fit.largest_as_good is None
    assert fit.notes[0].startswith("single_runs: ")
    slope, rest = np.polyfit(np.log2(table["block_size"]), table["loss_nats"], 1)
    assert fit.trend.estimate == pytest.approx(slope)
    assert rest
    assert fit.trend.excludes(0.0)


def test_replicates_tell_which_block_sizes_are_as_good_as_the_best() -> None:
    rng = np.random.default_rng(1)
    sizes, losses, names = [], [], []
    for seed in range(6):
        lucky = rng.normal(0, 0.05)
        for s, excess in ((2, 0.0), (4, 0.0), (8, 0.004), (16, 0.012)):
            sizes.append(s)
            losses.append(1.8 + excess + lucky + rng.normal(0, 0.0008))
            names.append(seed)
    fit = fit_block_size(sizes, losses, names)
    assert fit.largest_as_good == 4
    assert fit.model == "quadratic"
    # The seeds' common luck, sixty times the noise, is out of the residual.
    assert fit.rms_nats < 0.0015


def test_two_block_sizes_are_no_trend() -> None:
    with pytest.raises(TooFewData, match="needs 3 of them, got 2"):
        fit_block_size([2, 4, 4], [1.8, 1.9, 1.91], [0, 0, 1])


def test_replicates_that_ran_other_block_sizes_do_not_pass_for_an_effect_of_block_size() -> None:
    # Every doubling costs 0.01 nats; the large model ran the coarse blocks.
    small = {2: 0.0, 4: 0.01, 8: 0.02}
    large = {8: 0.02, 16: 0.03, 32: 0.04}
    rows = [(s, 3.0 + gap, "small") for s, gap in small.items()]
    rows += [(s, 2.0 + gap, "large") for s, gap in large.items()]
    fit = fit_block_size(*(list(column) for column in zip(*rows, strict=True)))
    assert fit.best == 2
    assert fit.trend.estimate == pytest.approx(0.01)
    losses = [at.loss_nats for at in fit.levels]
    assert np.diff(losses) == pytest.approx(0.01)


def test_block_sizes_without_a_common_replicate_are_refused() -> None:
    with pytest.raises(TooFewData, match="cannot be compared"):
        fit_block_size([2, 4, 8, 16], [3.0, 3.1, 2.0, 2.1], ["a", "a", "b", "b"])
