from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import curve_fit

from analysis.estimates import BadValue, NoMinimum, TooFewData
from analysis.fit.noise import weights_from_sd
from analysis.fit.power import PowerFit, fit_power
from analysis.fit.power_check import PowerCheck, check_power
from analysis.laws import Floats

PORIAN = Path(__file__).parents[1] / "data" / "porian2024"
KEYS = ["hparams", "warmup", "decay", "param_count"]
TUNED = ("tuned", "short", "const", "standard")


def porian(config: tuple[str, ...]) -> tuple[Floats, Floats, Floats]:
    """Compute, loss and sd of ln L of the budgets that were fitted."""
    rows = pd.read_csv(PORIAN / "isoflop_optima.csv")
    rows = rows[(rows[KEYS] == list(config)).all(axis=1) & rows["loss"].notna()]
    rows = rows[(rows["flops"] > 1e16) & (rows["flops"] < 5e17)]
    columns = (rows[name].to_numpy(np.float64) for name in ("flops", "loss", "loss_star_std"))
    flops, loss, sd = columns
    return flops, loss, sd


def published(config: tuple[str, ...], kind: str) -> dict[str, float]:
    rows = pd.read_csv(PORIAN / "published_fits.csv")
    row = rows[(rows[KEYS] == list(config)).all(axis=1) & (rows["kind"] == kind)].iloc[0]
    return {name: float(row[name]) for name in ("E", "A", "alpha")}


def configs() -> list[tuple[str, ...]]:
    rows = pd.read_csv(PORIAN / "published_fits.csv")
    return [tuple(row) for row in rows[KEYS].drop_duplicates().itertuples(index=False)]


def values(fit: PowerFit) -> list[float]:
    return [fit.value(name) for name in ("E", "A", "alpha")]


def curve(x: Floats, e: float, log_a: float, alpha: float) -> Floats:
    return np.asarray(e + np.exp(log_a - alpha * np.log(x)))


def noisy_law(seed: int, n: int = 9, sd: float = 0.004) -> tuple[Floats, Floats]:
    x = np.geomspace(1e15, 1e20, n)
    loss = 1.7 + 500 * x**-0.15 + np.random.default_rng(seed).normal(0, sd, n)
    return x, np.asarray(loss)


def test_unweighted_porian_fit_is_the_published_one() -> None:
    flops, loss, _ = porian(TUNED)
    fit = fit_power(flops, loss, asymptote="free", objective="log")
    expected = published(TUNED, "basic")
    assert values(fit) == pytest.approx([expected[n] for n in ("E", "A", "alpha")], rel=1e-6)


def test_weights_of_porian_are_one_over_sd_squared_and_not_its_inverse() -> None:
    flops, loss, sd = porian(TUNED)
    fit = fit_power(flops, loss, asymptote="free", objective="log", weights=weights_from_sd(sd))
    assert round(fit.value("A"), 2) == 120.95
    assert round(fit.value("E"), 4) == 1.9597
    assert round(fit.value("alpha"), 4) == 0.1038


def test_nine_stored_weighted_fits_of_porian_are_their_starts_and_none_is_a_minimum() -> None:
    found: list[PowerCheck] = []
    for config in configs():
        flops, loss, sd = porian(config)
        found.append(
            check_power(
                flops,
                loss,
                published(config, "weighted"),
                weights=weights_from_sd(sd),
                objective="log",
            )
        )
    assert len(found) == 10
    assert sum("fit_equals_start" in check.problems for check in found) == 9
    assert all("not_a_minimum" in check.problems for check in found)
    assert all(check.fit.certificate.problems == () for check in found)


def test_stored_unweighted_fits_of_porian_stand() -> None:
    for config in configs():
        flops, loss, _ = porian(config)
        check = check_power(flops, loss, published(config, "basic"), objective="log")
        assert check.problems == (), config
        assert check.excess_relative + 1e-12 >= 0


def test_start_is_recognised_among_those_named() -> None:
    flops, loss, _ = porian(TUNED)
    law = {"E": 1.2345, "A": 77.7, "alpha": 0.123}
    assert check_power(flops, loss, law).problems == ("not_a_minimum",)
    assert check_power(flops, loss, law, starts=[law]).problems[0] == "fit_equals_start"
    with pytest.raises(BadValue, match="got no alpha"):
        check_power(flops, loss, {"E": 1.0, "A": 2.0})


@pytest.mark.parametrize("weighted", [False, True])
def test_free_fit_and_its_covariance_are_those_of_scipy(weighted: bool) -> None:
    x, loss = noisy_law(1)
    sd = np.linspace(0.002, 0.008, len(x)) if weighted else np.ones(len(x))
    fit = fit_power(x, loss, asymptote="free", weights=weights_from_sd(sd))
    theirs, covariance = curve_fit(
        curve, x, loss, p0=(1.7, 6.2, 0.15), sigma=sd, xtol=1e-14, ftol=1e-14, gtol=1e-14
    )
    assert fit.value("E") == pytest.approx(theirs[0], rel=1e-6)
    assert np.log(fit.value("A")) == pytest.approx(theirs[1], rel=1e-6)
    assert fit.value("alpha") == pytest.approx(theirs[2], rel=1e-6)
    assert fit.covariance is not None
    ours = np.array(fit.covariance) / np.outer([1, fit.value("A"), 1], [1, fit.value("A"), 1])
    assert ours == pytest.approx(covariance, rel=1e-4)


def test_pinned_fit_is_the_straight_line_in_the_log_of_the_excess() -> None:
    x, loss = noisy_law(2)
    slope, intercept = np.polyfit(np.log(x), np.log(loss - 1.6), 1)
    fit = fit_power(x, loss, asymptote=1.6)
    assert fit.value("alpha") == pytest.approx(-slope, rel=1e-9)
    assert fit.value("A") == pytest.approx(np.exp(intercept), rel=1e-8)
    assert fit.predict(1e21) == pytest.approx(1.6 + np.exp(intercept) * 1e21**slope)


def test_pinned_least_squares_on_the_loss_is_that_of_scipy() -> None:
    x, loss = noisy_law(3)
    theirs, _ = curve_fit(lambda c, a, b: curve(c, 1.5, a, b), x, loss, p0=(6.0, 0.15))
    fit = fit_power(x, loss, asymptote=1.5, objective="mse")
    assert fit.value("alpha") == pytest.approx(theirs[1], rel=1e-5)


def test_exact_law_is_recovered_and_certified() -> None:
    x = np.geomspace(1e6, 1e9, 6)
    fit = fit_power(x, 1.9 + 40 * x**-0.3, variable="N", asymptote="free")
    assert values(fit) == pytest.approx([1.9, 40, 0.3], rel=1e-7)
    assert fit.certificate.problems == ()
    assert fit.notes == ()
    assert fit.domain == {"N": (1e6, pytest.approx(1e9))}


def accepted_by_brute_force(x: Floats, loss: Floats) -> tuple[list[float], list[float]]:
    """E and alpha of every law on a fine grid whose F-test passes, A by its normal equation."""
    rows = []
    e = np.linspace(0, loss.min() - 1e-3, 600)
    for alpha in np.linspace(0.05, 0.4, 1401):
        phi = x**-alpha
        a = ((loss - e[:, None]) @ phi) / (phi @ phi)
        residual = loss - e[:, None] - a[:, None] * phi
        rows += [(r, at, alpha) for r, at in zip((residual**2).sum(axis=1), e, strict=True)]
    rss = np.array([row[0] for row in rows])
    f_95 = 5.9873776
    kept = np.flatnonzero(rss <= rss.min() * (1 + f_95 / 6))
    return [rows[i][1] for i in kept], [rows[i][2] for i in kept]


def test_profile_intervals_are_those_of_a_brute_force_scan() -> None:
    x, loss = noisy_law(4, n=9)
    fit = fit_power(x, loss, asymptote="profile")
    asymptotes, exponents = accepted_by_brute_force(x, loss)
    e, alpha = fit.parameters["E"], fit.parameters["alpha"]
    assert (e.low, e.high) == pytest.approx((min(asymptotes), max(asymptotes)), abs=0.006)
    assert (alpha.low, alpha.high) == pytest.approx((min(exponents), max(exponents)), abs=5e-4)
    lowest = min(fit.e_profile, key=lambda point: point.rms_nats)
    assert abs(lowest.asymptote - fit.value("E")) <= 0.98 * loss.min() / 40


def test_profile_interval_of_e_holds_the_truth_19_times_in_20() -> None:
    held = []
    for seed in range(80):
        x, loss = noisy_law(seed)
        interval = fit_power(x, loss, asymptote="free").parameters["E"]
        held.append(not interval.excludes(1.7))
    assert 0.90 <= np.mean(held) <= 0.99


def test_short_range_that_leaves_e_unknown_says_so() -> None:
    x = np.geomspace(1e18, 1e19, 5)
    loss = 1.7 + 500 * x**-0.15 + np.array([1, -2, 2, -1, 0.5]) * 0.003
    fit = fit_power(x, loss, asymptote="free")
    assert fit.notes[0].startswith("e_not_identified: the 95% profile interval of E is [0.00, ")
    assert fit.parameters["E"].low == 0.0


def test_data_without_an_asymptote_put_e_at_its_bound() -> None:
    x = np.geomspace(1e15, 1e19, 6)
    fit = fit_power(x, 20 * x**-0.05 * (1 - 2e-4 * np.log(x / 1e17) ** 2), asymptote="free")
    assert fit.value("E") == 0.0
    assert fit.certificate.at_bound == ("E",)
    assert fit.certificate.problems == ()


def test_three_levels_pin_e_and_four_are_needed_to_seek_it() -> None:
    x, loss = [1e15, 1e16, 1e17], [3.0, 2.5, 2.2]
    assert fit_power(x, loss).n_levels == 3
    with pytest.raises(TooFewData, match="at least 4 distinct levels when E is sought, got 3"):
        fit_power(x, loss, asymptote="free")
    with pytest.raises(TooFewData, match="at least 3 distinct levels, got 1"):
        fit_power([1e15, 1.01e15, 1.02e15], loss)


@pytest.mark.parametrize(
    ("x", "loss", "message"),
    [
        ([1e15, 1e16, 0.0], [3.0, 2.5, 2.2], "every x must be positive and finite, got 0"),
        ([1e15, 1e16, 1e17], [3.0, np.nan, 2.2], "every loss must be positive and finite"),
        ([1e15, 1e16], [3.0, 2.5, 2.2], "differ in length"),
    ],
)
def test_values_no_law_can_take_are_named(x: list[float], loss: list[float], message: str) -> None:
    with pytest.raises(BadValue, match=message):
        fit_power(x, loss)


def test_pinned_asymptote_lies_below_every_loss_and_seeking_it_in_its_own_log_is_refused() -> None:
    x, loss = noisy_law(0)
    with pytest.raises(BadValue, match=r"E = 9 and a loss of"):
        fit_power(x, loss, asymptote=9.0)
    with pytest.raises(BadValue, match="no minimum over E"):
        fit_power(x, loss, asymptote="free", objective="log_excess")


def test_rising_loss_has_no_power_law() -> None:
    with pytest.raises(NoMinimum, match="does not fall"):
        fit_power(np.geomspace(1, 1e4, 5), np.array([1.0, 1.2, 1.4, 1.7, 2.0]), asymptote="free")
    pinned = fit_power(np.geomspace(1, 1e4, 5), np.array([1.0, 1.2, 1.4, 1.7, 2.0]))
    assert pinned.notes[0].startswith("loss_does_not_fall")


def test_scale_of_the_weights_changes_nothing() -> None:
    x, loss = noisy_law(5)
    w = np.linspace(1, 4, len(x))
    one, other = (fit_power(x, loss, asymptote="free", weights=k * w) for k in (1.0, 1e6))
    assert values(one) == pytest.approx(values(other), rel=1e-9)
    assert np.array(one.covariance) == pytest.approx(np.array(other.covariance), rel=1e-6)


def test_fit_reads_as_a_report() -> None:
    x, loss = noisy_law(6)
    text = str(fit_power(x, loss, asymptote="free", flop_convention="6ND"))
    assert text.startswith("L = E + A C^-alpha\n")
    assert "certificate minimum" in text
    assert "compute     6ND" in text
