"""Optima along compute: held against the exponents that Porian et al. published."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.estimates import BadValue, TooFewData
from analysis.fit.allocation import fit_allocation
from analysis.fit.isoflop import IsoFlopPoints, fit_isoflop

DATA = Path(__file__).parents[1] / "data"
PORIAN = DATA / "porian2024"
SETTING = ["source", "hparams", "warmup", "decay", "param_count", "val"]


def configurations(table: str) -> dict[tuple[str, ...], pd.DataFrame]:
    # Budgets whose minimum lay at the edge have no optimum there.
    rows = pd.read_csv(PORIAN / table).dropna(subset=["n"])
    return {tuple(str(part) for part in key): rows for key, rows in rows.groupby(SETTING)}


OPTIMA = configurations("isoflop_optima.csv")
FITS = pd.read_csv(PORIAN / "published_fits.csv")


def published(key: tuple[str, ...], kind: str) -> pd.Series:
    rows = FITS[(FITS[SETTING] == list(key)).all(axis=1) & (FITS["kind"] == kind)]
    return rows.iloc[0]


@pytest.mark.parametrize("key", OPTIMA, ids="-".join)
def test_the_published_exponents_come_out_weighted_and_unweighted(key: tuple[str, ...]) -> None:
    rows, basic, weighted = OPTIMA[key], published(key, "basic"), published(key, "weighted")
    plain = fit_allocation(rows["flops"], rows["n"])
    assert plain.value("a") == pytest.approx(basic["n_exponent"], abs=1e-6)
    assert np.exp(plain.value("ln_k")) == pytest.approx(basic["n_coef"], rel=1e-4)
    assert plain.extras["r2"] == pytest.approx(basic["n_r2"], abs=1e-6)
    by_sd = fit_allocation(rows["flops"], rows["n"], weights=1 / rows["n_star_std"] ** 2)
    assert by_sd.value("a") == pytest.approx(weighted["n_exponent"], abs=1e-6)


def test_the_summary_of_expected_values_is_met() -> None:
    expected = json.loads((DATA / "expected.json").read_text())
    key = ("summary_df", "tuned", "short", "const", "standard", "val")
    rows = OPTIMA[key]
    assert fit_allocation(rows["flops"], rows["n"]).value("a") == pytest.approx(
        expected["porian_tuned_standard"]["a_basic"], abs=1e-6
    )


def test_interval_is_that_of_an_ordinary_regression() -> None:
    from scipy import stats

    rng = np.random.default_rng(5)
    c = np.geomspace(1e15, 1e19, 7)
    best = 3e-2 * c**0.5 * np.exp(rng.normal(0, 0.1, 7))
    fit = fit_allocation(c, best)
    judge = stats.linregress(np.log(c), np.log(best))
    half = stats.t.ppf(0.975, 5) * judge.stderr
    at = fit.parameters["a"]
    assert (at.low, at.high) == pytest.approx((judge.slope - half, judge.slope + half), rel=1e-10)
    low, high = fit.band(np.array([1e21]))
    assert low[0] < fit.predict(1e21) < high[0]
    assert not fit.inside(C=1e21)


def test_interval_covers_the_true_exponent_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    c = np.geomspace(1e15, 1e19, 6)
    fits = [fit_allocation(c, 3e-2 * c**0.5 * np.exp(rng.normal(0, 0.1, 6))) for _ in range(600)]
    covered = np.mean([not fit.parameters["a"].excludes(0.5) for fit in fits])
    assert abs(covered - 0.95) < 3 * (0.95 * 0.05 / 600) ** 0.5


def test_akima_minima_agree_with_the_published_medians_within_their_spread() -> None:
    checked = 0
    for key, points in configurations("isoflop_points.csv").items():
        columns = [points[name].to_numpy(float) for name in ("flops", "n", "loss")]
        found = fit_isoflop(IsoFlopPoints(*columns), method="akima").minima
        for best in found:
            rows = OPTIMA[key]
            row = rows[np.isclose(rows["flops"], best.flops, rtol=1e-3)]
            if row.empty:
                continue
            gap = abs(np.log(best.n_star / float(row["n"].iloc[0])))
            assert gap < float(row["n_star_std"].iloc[0]), (key, best.flops)
            checked += 1
    assert checked > 90


def test_two_budgets_or_a_negative_optimum_are_refused() -> None:
    with pytest.raises(TooFewData, match="needs 3 budgets, got 2"):
        fit_allocation([1e15, 1e16, 1e16], [1e6, 2e6, 2e6])
    with pytest.raises(BadValue, match="optima must be positive"):
        fit_allocation([1e15, 1e16, 1e17], [1e6, -2e6, 2e6])
