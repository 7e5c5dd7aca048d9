from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import curve_fit

from analysis.estimates import TooFewData
from analysis.fit.broken import fit_broken_power
from analysis.laws import Floats, broken_power_loss

COMPUTE = np.geomspace(1e15, 1e21, 14)
TRUTH = {"A": np.exp(4.0), "alpha": 0.04, "change": 0.08, "C_b": 3e17, "w": 0.8}


def law(asymptote: float, noise: float = 0.0, seed: int = 0) -> Floats:
    loss = broken_power_loss(
        COMPUTE,
        asymptote=asymptote,
        a=4.0,
        alpha=0.04,
        change=0.08,
        log_break=np.log(3e17),
        width=0.8,
    )
    return np.asarray(loss + np.random.default_rng(seed).normal(0, noise, len(COMPUTE)))


@pytest.mark.parametrize(("truth", "asymptote"), [(0.0, 0.0), (1.2, 1.2), (1.2, "free")])
def test_known_break_is_recovered_exactly(truth: float, asymptote: float) -> None:
    fit = fit_broken_power(COMPUTE, law(truth), asymptote=asymptote)
    for name, value in TRUTH.items():
        assert fit.value(name) == pytest.approx(value, rel=1e-5), name
    assert fit.value("E") == pytest.approx(truth, abs=1e-6)
    assert fit.supported
    assert fit.certificate.problems == ()
    assert fit.predict(COMPUTE) == pytest.approx(law(truth), rel=1e-9)


def test_noisy_fit_is_the_minimum_that_scipy_finds_from_the_truth() -> None:
    loss = law(0.0, noise=0.01)

    def log_law(c: Floats, a: float, alpha: float, change: float, at: float, w: float) -> Floats:
        x = np.log(c)
        return np.asarray(a - alpha * x - change * w * np.log1p(np.exp((x - at) / w)))

    start = (4.0, 0.04, 0.08, np.log(3e17), 0.8)
    theirs, covariance = curve_fit(log_law, COMPUTE, np.log(loss), p0=start, xtol=1e-14, ftol=1e-14)
    fit = fit_broken_power(COMPUTE, loss)
    rss = float(((np.log(loss) - log_law(COMPUTE, *theirs)) ** 2).sum())
    assert fit.certificate.objective == pytest.approx(rss, rel=1e-8)
    assert fit.value("alpha") == pytest.approx(theirs[1], rel=1e-4)
    assert fit.covariance is not None
    assert fit.covariance[2][2] == pytest.approx(covariance[1, 1], rel=1e-2)


def test_unbroken_data_do_not_support_a_break() -> None:
    supported, rejected = 0, 0
    for seed in range(12):
        noise = np.random.default_rng(seed).normal(0, 0.001, len(COMPUTE))
        fit = fit_broken_power(COMPUTE, 20 * COMPUTE**-0.05 * np.exp(noise))
        supported += fit.supported
        rejected += fit.p < 0.05
        assert fit.certificate.problems == ()
        if not fit.supported:
            assert fit.notes[0].startswith("break_not_supported: the unbroken law suffices")
    assert supported <= 2
    assert rejected <= 4


def test_f_and_aicc_are_those_of_the_two_residual_sums() -> None:
    fit = fit_broken_power(COMPUTE, law(1.2, noise=0.01), asymptote="free")
    before, after = fit.unbroken.certificate.objective, fit.certificate.objective
    assert fit.f == pytest.approx(((before - after) / 3) / (after / (14 - 6)))
    expected = 14 * np.log(after / 14) + 2 * 7 + 2 * 7 * 8 / (14 - 8)
    assert fit.aicc_broken == pytest.approx(expected)
    residual = law(1.2, noise=0.01) - fit.predict(COMPUTE)
    assert after == pytest.approx(float(residual @ residual), rel=1e-9)


def test_seven_levels_are_too_few_for_aicc_to_choose_the_break() -> None:
    few = slice(0, 14, 2)
    fit = fit_broken_power(COMPUTE[few], law(0.0, noise=0.001)[few])
    assert fit.n_levels == 7
    assert not fit.supported
    assert "too few points for AICc" in fit.text


def test_fewer_than_seven_levels_are_refused() -> None:
    with pytest.raises(TooFewData, match="at least 7 distinct levels, got 6"):
        fit_broken_power(COMPUTE[:6], law(0.0)[:6])
