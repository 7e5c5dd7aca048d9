from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from analysis.estimates import BadValue, TooFewData
from analysis.fit.noise import (
    NoiseModel,
    fit_noise,
    interpolated_sd,
    lack_of_fit,
    variance_trend,
    weights_from_sd,
)
from analysis.laws import Floats

OLMO = Path(__file__).parents[1] / "data" / "olmo_ladder" / "c4_final_losses.csv"


def replicates(
    seed: int, gamma: float, n_cells: int = 6, n_seeds: int = 4
) -> tuple[Floats, list[int]]:
    """Losses whose sd is 0.003 (L / 3)^gamma."""
    rng = np.random.default_rng(seed)
    levels = np.geomspace(2, 5, n_cells)
    sd = 0.003 * (levels / 3) ** gamma
    losses = levels[:, None] + rng.normal(size=(n_cells, n_seeds)) * sd[:, None]
    return losses.ravel(), [i for i in range(n_cells) for _ in range(n_seeds)]


def test_pooled_sd_and_interval_are_those_of_a_plain_loop() -> None:
    losses, cells = replicates(0, 0.0)
    squares, dof = 0.0, 0
    for cell in range(6):
        own = [loss for loss, c in zip(losses, cells, strict=True) if c == cell]
        squares += sum((loss - sum(own) / 4) ** 2 for loss in own)
        dof += 3
    noise = fit_noise(losses, cells)
    assert noise.sd_nats.estimate == pytest.approx((squares / dof) ** 0.5)
    assert noise.sd_nats.low == pytest.approx((squares / stats.chi2.ppf(0.975, dof)) ** 0.5)
    assert noise.sd_nats.high == pytest.approx((squares / stats.chi2.ppf(0.025, dof)) ** 0.5)
    assert (noise.dof, noise.n_cells, noise.n_replicates) == (18, 6, 24)


def test_interval_of_the_sd_holds_the_truth_19_times_in_20() -> None:
    held = [not fit_noise(*replicates(seed, 0.0)).sd_nats.excludes(0.003) for seed in range(250)]
    assert 0.93 <= np.mean(held) <= 0.97


def olmo_pairs() -> tuple[list[float], list[str]]:
    rows = pd.read_csv(OLMO).set_index("run")["c4_ce_last"]
    sizes = [name.removesuffix("-1xC-rerun") for name in rows.index if name.endswith("-1xC-rerun")]
    assert sorted(sizes) == ["190M", "1B", "370M", "3B", "760M"]
    losses = [float(rows[f"{size}-1xC{tail}"]) for size in sizes for tail in ("", "-rerun")]
    return losses, [size for size in sizes for _ in range(2)]


def test_olmo_reruns_differ_by_half_a_millinat_to_a_millinat() -> None:
    losses, cells = olmo_pairs()
    noise = fit_noise(losses, cells)
    gaps = [abs(losses[i] - losses[i + 1]) for i in range(0, 10, 2)]
    assert (round(min(gaps), 4), round(max(gaps), 4)) == (0.0005, 0.0011)
    assert noise.sd_nats.estimate == pytest.approx(np.sqrt(np.mean(np.square(gaps)) / 2))
    assert [level.cell for level in noise.by_level] == ["190M", "370M", "760M", "1B", "3B"]
    assert sorted(level.sd_nats for level in noise.by_level) == pytest.approx(
        sorted(gap / np.sqrt(2) for gap in gaps)
    )
    assert not noise.depends_on_loss


def test_noise_that_grows_with_loss_is_found_with_its_power() -> None:
    losses, cells = replicates(1, 4.0, n_cells=12, n_seeds=8)
    noise = fit_noise(losses, cells)
    assert noise.depends_on_loss
    assert noise.power == pytest.approx(4.0, abs=0.6)
    assert noise.sd_at(2.0) == pytest.approx(0.003 * (2 / 3) ** 4, rel=0.25)
    assert noise.sd_at(5.0) == pytest.approx(0.003 * (5 / 3) ** 4, rel=0.25)
    assert noise.notes[0].startswith("noise_depends_on_loss: sd goes as L^")


def test_power_is_where_the_likelihood_of_the_cells_is_highest() -> None:
    losses, cells = replicates(2, 2.0)
    noise = fit_noise(losses, cells)
    groups = losses.reshape(6, 4)
    variance, mean = groups.var(axis=1, ddof=1), groups.mean(axis=1)

    def minus_log_likelihood(gamma: float) -> float:
        shape = mean ** (2 * gamma)
        scale = np.mean(variance / shape)
        return float(np.sum(3 * (np.log(scale * shape) + variance / (scale * shape))))

    grid = np.linspace(-5, 8, 13001)
    best = grid[np.argmin([minus_log_likelihood(gamma) for gamma in grid])]
    assert noise.power == pytest.approx(best, abs=0.0011)


def test_constant_noise_is_called_dependent_five_times_in_a_hundred() -> None:
    found = [fit_noise(*replicates(seed, 0.0)).depends_on_loss for seed in range(250)]
    assert 0.02 <= np.mean(found) <= 0.08


def test_constant_noise_is_the_same_everywhere() -> None:
    noise = fit_noise(*replicates(3, 0.0))
    assert noise.sd_at(np.array([2.0, 9.0])) == pytest.approx([noise.sd_nats.estimate] * 2)


def test_noise_needs_two_runs_of_one_cell() -> None:
    with pytest.raises(TooFewData, match="two runs that differ in nothing but the seed"):
        fit_noise([3.0, 2.0], ["a", "b"])
    with pytest.raises(BadValue, match="2 losses, 1 cells"):
        fit_noise([3.0, 2.0], ["a"])
    with pytest.raises(BadValue, match="positive and finite"):
        fit_noise([3.0, np.nan], ["a", "a"])


def test_one_pair_says_how_little_it_knows() -> None:
    noise = fit_noise([3.0, 3.002, 2.5], ["a", "a", "b"])
    assert noise.notes[0].startswith("few_replicates: 1 degrees of freedom")
    assert noise.power is None


def test_weights_are_one_over_the_square_and_need_a_positive_sd() -> None:
    assert weights_from_sd([0.5, 2.0]) == pytest.approx([4.0, 0.25])
    with pytest.raises(BadValue):
        weights_from_sd([0.1, 0.0])


def test_interpolated_sd_is_flat_beyond_its_ends_and_geometric_between() -> None:
    sd = interpolated_sd(np.array([1.0, 3.0, np.sqrt(18.0), 6.0, 9.0]), (3, 0.002), (6, 0.05))
    assert sd == pytest.approx([0.002, 0.002, 0.01, 0.05, 0.05])


def test_variance_trend_is_n_r_squared_of_the_squared_residuals() -> None:
    rng = np.random.default_rng(0)
    x = np.geomspace(1e15, 1e19, 12)
    residuals = rng.normal(size=12) * np.linspace(1, 3, 12)
    trend = variance_trend(x, residuals)
    r = stats.linregress(np.log(x), residuals**2).rvalue
    assert trend.statistic == pytest.approx(12 * r**2)
    assert trend.p == pytest.approx(float(stats.chi2.sf(12 * r**2, 1)))


def test_residuals_that_spread_at_low_compute_are_named() -> None:
    x = np.geomspace(1e15, 1e19, 24)
    sign = np.where(np.arange(24) % 2, 1.0, -1.0)
    trend = variance_trend(x, sign * np.geomspace(0.05, 0.002, 24))
    assert trend.note is not None
    assert trend.note.startswith("residual_variance_depends_on_compute: it falls with compute")
    assert variance_trend(x, sign * 0.01).note is None
    with pytest.raises(TooFewData):
        variance_trend(x[:3], sign[:3])


def noise_of(sd: float) -> NoiseModel:
    """Ten pairs whose pooled sd is exactly ``sd``."""
    half = sd / np.sqrt(2)
    losses = [level + side for level in range(2, 12) for side in (-half, half)]
    return fit_noise(losses, [level for level in range(2, 12) for _ in range(2)])


def test_lack_of_fit_compares_the_residual_mean_square_with_seed_noise() -> None:
    residuals, seeds = np.array([0.01, -0.02, 0.01, 0.0, 0.005]), [1, 2, 1, 1, 2]
    mean_square = (0.01**2 + 2 * 0.02**2 + 0.01**2 + 2 * 0.005**2) / 3
    test = lack_of_fit(residuals, 2, noise_of(0.01), n_seeds=seeds)
    assert test.f == pytest.approx(mean_square / 0.01**2)
    assert test.dof == (3, 10)
    assert test.p == pytest.approx(float(stats.f.sf(test.f, 3, 10)))
    assert lack_of_fit(residuals, 2, noise_of(0.002)).note is not None
    assert lack_of_fit(residuals, 2, noise_of(0.02)).note is None
    with pytest.raises(TooFewData, match="more than 5 cell means"):
        lack_of_fit(residuals, 5, noise_of(0.01))
