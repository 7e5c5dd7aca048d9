"""The joint law against independent arithmetic, known synthetic laws and scipy's optimisers."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import huber

from analysis.estimates import BadValue, NotConverged, TooFewData
from analysis.fit.huber import Objective
from analysis.fit.joint import JointPoints, fit_joint
from analysis.fit.joint_bootstrap import bootstrap_joint
from analysis.fit.joint_problem import make_problem
from analysis.fit.joint_profile import joint_profile
from analysis.fit.joint_search import Found
from analysis.fit.published import check_published
from analysis.fit.rescaled import rescaled_arms
from analysis.law_fit import Certificate

LAW = {"E": 1.7, "A": 400.0, "B": 1200.0, "alpha": 0.34, "beta": 0.31}


def losses(n_params: np.ndarray, tokens: np.ndarray, law: dict[str, float] = LAW) -> np.ndarray:
    return law["E"] + law["A"] * n_params ** -law["alpha"] + law["B"] * tokens ** -law["beta"]


def grid(n_sizes: int = 5, n_budgets: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Every size trained for several multiples of 20 tokens per parameter."""
    sizes, multiples = np.geomspace(1e7, 1e9, n_sizes), np.geomspace(0.25, 16, n_budgets)
    n_params = np.repeat(sizes, n_budgets)
    return n_params, 20 * n_params * np.tile(multiples, n_sizes)


def noisy(seed: int, sd: float = 0.01, n_sizes: int = 5, n_budgets: int = 5) -> JointPoints:
    n_params, tokens = grid(n_sizes, n_budgets)
    noise = np.random.default_rng(seed).standard_t(3, len(n_params))
    return JointPoints(n_params, tokens, losses(n_params, tokens) * np.exp(sd * noise))


@pytest.mark.parametrize("objective", ["huber", "mse"])
def test_noise_free_losses_give_the_law_back(objective: str) -> None:
    n_params, tokens = grid()
    fit = fit_joint(JointPoints(n_params, tokens, losses(n_params, tokens)), objective=objective)
    for name, value in LAW.items():
        assert fit.value(name) == pytest.approx(value, rel=1e-6)
    assert fit.certificate.problems == ()


def test_objectives_equal_a_plain_loop() -> None:
    points = noisy(0)
    for name, delta in (("huber", 1e-3), ("huber", 0.1), ("mse", 1e-3)):
        total = 0.0
        for n, d, loss in zip(points.n_params, points.tokens, points.loss_nats, strict=True):
            predicted = float(losses(n, d))
            if name == "mse":
                total += (predicted - loss) ** 2
                continue
            size = abs(np.log(predicted) - np.log(loss))
            total += size**2 / 2 if size <= delta else delta * (size - delta / 2)
        problem = make_problem(points, Objective(name, delta))
        found = problem.value(problem.coordinates(LAW)[None])[0]
        assert found == pytest.approx(total, rel=1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("name", ["huber", "mse"])
def test_derivatives_equal_finite_differences(name: str, tied: bool) -> None:
    points = noisy(1, sd=0.02)
    arms = np.where(np.arange(len(points)) % 2, "full", "standard")
    weights = np.linspace(0.5, 2, len(points))
    points = JointPoints(points.n_params, points.tokens, points.loss_nats, weights, arms)
    problem = make_problem(points, Objective(name, 0.01), tied=tied)
    p = problem.to_logs.shape[1]
    x = np.array([[0.6, -0.4, -0.3, -0.5, -0.6, 0.3, 0.4][:p]])
    at, step = problem.terms(x), 1e-6 * np.eye(p)
    value = [(problem.value(x + s) - problem.value(x - s))[0] / 2e-6 for s in step]
    np.testing.assert_allclose(at.gradient[0], value, rtol=1e-6, atol=1e-8)
    gradient = [(problem.terms(x + s).gradient - problem.terms(x - s).gradient)[0] for s in step]
    np.testing.assert_allclose(at.hessian[0], np.array(gradient) / 2e-6, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("seed", "delta"), [(0, 1e-3), (1, 1e-2), (2, 0.1)])
def test_no_random_start_of_scipy_ends_below_the_fit(seed: int, delta: float) -> None:
    points, random = noisy(seed, n_sizes=4, n_budgets=4), np.random.default_rng(seed)
    u, v = (np.log(x) - np.log(x).mean() for x in (points.n_params, points.tokens))

    def objective(theta: np.ndarray) -> float:
        e, a, b, alpha, beta = theta
        predicted = np.exp(e) + np.exp(a - alpha * u) + np.exp(b - beta * v)
        return float(huber(delta, np.log(predicted / points.loss_nats)).sum()) / delta**2

    fit = fit_joint(points, delta=delta)
    starts = random.uniform([-1, -3, -3, 0, 0], [1, 1, 1, 1.5, 1.5], size=(30, 5))
    ends = [minimize(objective, start, method="L-BFGS-B").fun * delta**2 for start in starts]
    assert fit.certificate.objective <= min(ends) * (1 + 1e-9)


def test_huber_fit_is_not_moved_by_an_outlier() -> None:
    n_params, tokens = grid()
    loss = losses(n_params, tokens)
    loss[7] *= 1.3
    fit = fit_joint(JointPoints(n_params, tokens, loss))
    squares = fit_joint(JointPoints(n_params, tokens, loss), objective="mse")
    assert fit.value("alpha") == pytest.approx(LAW["alpha"], rel=1e-3)
    assert abs(squares.value("alpha") - LAW["alpha"]) > 0.02


def test_weights_count_points_as_often_as_they_say() -> None:
    points, counts = noisy(2), np.arange(25) % 3 + 1
    repeated = JointPoints(
        *(np.repeat(v, counts) for v in (points.n_params, points.tokens, points.loss_nats))
    )
    weighted = JointPoints(points.n_params, points.tokens, points.loss_nats, counts)
    for objective in ("huber", "mse"):
        one, other = (fit_joint(some, objective=objective) for some in (repeated, weighted))
        assert one.certificate.objective == pytest.approx(other.certificate.objective, rel=1e-9)
        assert one.value("beta") == pytest.approx(other.value("beta"), rel=1e-6)


def test_weights_of_one_over_variance_recover_the_law_under_unequal_noise() -> None:
    n_params, tokens = grid(6, 6)
    sd = np.where(np.arange(36) % 2, 0.1, 1e-4)
    loss = losses(n_params, tokens) + sd * np.random.default_rng(0).normal(size=36)
    plain = fit_joint(JointPoints(n_params, tokens, loss), objective="mse")
    weighted = fit_joint(JointPoints(n_params, tokens, loss, 1 / sd**2), objective="mse")
    assert abs(weighted.value("E") - 1.7) < 0.01 < abs(plain.value("E") - 1.7)


def test_tied_exponents_are_one_parameter() -> None:
    n_params, tokens = grid(5, 2)
    law = LAW | {"beta": LAW["alpha"]}
    points = JointPoints(n_params, tokens, losses(n_params, tokens, law))
    fit = fit_joint(points, tie_exponents=True)
    assert fit.value("alpha") == fit.value("beta") == pytest.approx(law["alpha"], rel=1e-6)
    assert fit.value("A") == pytest.approx(law["A"], rel=1e-5)


def two_arms(seed: int | None) -> JointPoints:
    """An arm worth 1.2 times the parameters and 1.5 times the tokens, on the same grid."""
    n_params, tokens = grid()
    loss = np.concatenate([losses(n_params, tokens), losses(1.2 * n_params, 1.5 * tokens)])
    if seed is not None:
        loss = loss * np.exp(np.random.default_rng(seed).normal(0, 0.003, len(loss)))
    arms = np.repeat(["standard", "full"], len(n_params))
    return JointPoints(np.tile(n_params, 2), np.tile(tokens, 2), loss, arms=arms)


def test_arms_share_exponents_and_differ_in_efficiency() -> None:
    fit = fit_joint(two_arms(None))
    assert list(fit.parameters) == [
        "E", "A[standard]", "A[full]", "B[standard]", "B[full]", "alpha", "beta",
    ]  # fmt: skip
    factors = rescaled_arms(fit, "standard")["full"]
    assert factors.rho_n.estimate == pytest.approx(1.2, rel=1e-5)
    assert factors.rho_d.estimate == pytest.approx(1.5, rel=1e-5)
    n_params, tokens = np.array([3e8]), np.array([1e10])
    expected = losses(1.2 * n_params, 1.5 * tokens)
    np.testing.assert_allclose(fit.predict(n_params, tokens, "full"), expected, rtol=1e-8)


def test_efficiency_intervals_hold_the_truth_and_agree_with_the_bootstrap() -> None:
    points = two_arms(6)
    closed = rescaled_arms(fit_joint(points, objective="mse"), "standard")["full"]
    drawn = rescaled_arms(fit_joint(points, objective="mse", replicates=400), "standard")["full"]
    for interval, truth in ((closed.rho_n, 1.2), (drawn.rho_n, 1.2), (drawn.rho_d, 1.5)):
        assert interval.low < truth < interval.high
    width = [np.log(at.rho_n.high / at.rho_n.low) for at in (closed, drawn)]
    assert 0.5 < width[0] / width[1] < 2


def test_optimum_minimises_the_predicted_loss_at_fixed_compute() -> None:
    n_params, tokens = grid()
    fit = fit_joint(JointPoints(n_params, tokens, losses(n_params, tokens)))
    best_n, best_d = fit.optimum(1e20)
    assert 6 * best_n * best_d == pytest.approx(1e20)
    sizes = np.geomspace(best_n / 10, best_n * 10, 2001)
    values = fit.predict(sizes, 1e20 / 6 / sizes)
    assert sizes[values.argmin()] == pytest.approx(float(best_n), rel=3e-3)


def test_bootstrap_intervals_are_percentiles_of_the_draws() -> None:
    points = noisy(3)
    fit = fit_joint(points, replicates=300, seed=7)
    draws = bootstrap_joint(points, fit, replicates=300, seed=7)
    np.testing.assert_allclose(draws, fit.draws, rtol=1e-6)
    assert fit.parameters["alpha"].low == pytest.approx(np.quantile(draws[:, 3], 0.025), rel=1e-6)
    assert "percentile" in fit.parameters["alpha"].method
    assert "300 bootstraps" in fit.method


def test_clusters_are_resampled_whole() -> None:
    points = noisy(4)
    clusters = np.repeat(list("abcde"), 5)
    by_run = JointPoints(points.n_params, points.tokens, points.loss_nats, clusters=clusters)
    copies = JointPoints(
        *(np.tile(v, 3) for v in (points.n_params, points.tokens, points.loss_nats)),
        clusters=np.tile(np.arange(25).astype(str), 3),
    )
    plain = fit_joint(points, objective="mse")
    tripled = fit_joint(copies, objective="mse")
    assert "5 clusters" in fit_joint(by_run).method
    half = [at.high - at.low for at in (plain.parameters["alpha"], tripled.parameters["alpha"])]
    assert half[1] == pytest.approx(half[0], rel=1e-6)


def test_sandwich_interval_of_least_squares_is_near_the_textbook_one() -> None:
    n_params, tokens = grid(10, 10)
    noise = np.random.default_rng(1).normal(0, 0.01, 100)
    points = JointPoints(n_params, tokens, losses(n_params, tokens) + noise)
    fit = fit_joint(points, objective="mse")
    e, a, b, alpha, beta = (fit.value(name) for name in LAW)
    in_n, in_d = n_params**-alpha, tokens**-beta
    jacobian = np.stack(
        [np.ones(100), in_n, in_d, -a * in_n * np.log(n_params), -b * in_d * np.log(tokens)], axis=1
    )
    residual = points.loss_nats - (e + a * in_n + b * in_d)
    textbook = np.linalg.inv(jacobian.T @ jacobian) * (residual @ residual) / 95
    ratio = np.sqrt(np.diag(np.array(fit.covariance)) / np.diag(textbook))
    assert ((ratio > 0.75) & (ratio < 1.3)).all()


def test_loss_that_bends_below_any_asymptote_gives_zero_and_says_so() -> None:
    n_params, tokens = grid()
    law = LAW | {"E": -0.5}
    loss = losses(n_params, tokens, law) * np.exp(
        0.01 * np.random.default_rng(3).normal(size=len(n_params))
    )
    fit = fit_joint(JointPoints(n_params, tokens, loss), objective="mse")
    names = {note.split(":")[0] for note in fit.notes}
    assert fit.value("E") == 0
    assert fit.certificate.at_bound == ("E",)
    assert {"e_at_zero", "e_not_identified"} <= names
    assert fit.parameters["E"].low is None


def test_too_few_points_are_refused() -> None:
    n_params, tokens = grid()
    loss = losses(n_params, tokens)
    some = [0, 4, 12, 20, 24]
    with pytest.raises(TooFewData, match="at least 6 points"):
        fit_joint(JointPoints(n_params[some], tokens[some], loss[some]))


def test_tokens_that_follow_parameters_are_refused_with_a_way_out() -> None:
    n_params = np.geomspace(1e7, 1e9, 8)
    points = JointPoints(n_params, 20 * n_params, losses(n_params, 20 * n_params))
    for tie in (False, True):
        with pytest.raises(TooFewData, match=r"not separable.*L\(C\)"):
            fit_joint(points, tie_exponents=tie)


@pytest.mark.parametrize(
    ("n_budgets", "advice"), [(1, r"distinct token counts.*L\(C\)"), (2, "tie_exponents")]
)
def test_too_few_token_counts_are_refused_with_a_way_out(n_budgets: int, advice: str) -> None:
    sizes, budgets = np.geomspace(1e7, 1e9, 6), np.geomspace(1e9, 1e10, n_budgets)
    n_params, tokens = np.repeat(sizes, n_budgets), np.tile(budgets, 6)
    with pytest.raises(TooFewData, match=advice):
        fit_joint(JointPoints(n_params, tokens, losses(n_params, tokens)))


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_numbers_that_are_not_positive_and_finite_are_refused(bad: float) -> None:
    n_params, tokens = grid()
    loss = losses(n_params, tokens)
    loss[3] = bad
    with pytest.raises(BadValue, match="loss_nats"):
        JointPoints(n_params, tokens, loss)


def test_bad_settings_are_refused() -> None:
    points = noisy(0)
    for settings in ({"delta": 0.0}, {"level": 1.0}, {"replicates": 5}):
        with pytest.raises(BadValue):
            fit_joint(points, **settings)
    with pytest.raises(BadValue, match="missing: B"):
        check_published(points, {"E": 1, "A": 1, "alpha": 1, "beta": 1}, fit_joint(points))


def test_report_reads_well() -> None:
    text = str(fit_joint(noisy(0)))
    assert "L(N, D) = E + A N^-alpha + B D^-beta" in text
    assert "sum of Huber losses of ln L, delta 0.001" in text
    assert "starts agree" in text


def test_profile_surface_is_nowhere_below_the_fit() -> None:
    points = noisy(6)
    profile = joint_profile(points, nodes=20)
    assert profile.objective.shape == (20, 20)
    assert profile.objective.min() >= fit_joint(points).certificate.objective


def test_bootstrap_that_mostly_cannot_be_fitted_is_refused() -> None:
    n_params, tokens = grid(3, 3)
    some = [0, 2, 4, 6, 8, 1]
    points = JointPoints(n_params[some], tokens[some], losses(n_params, tokens)[some])
    with pytest.raises(TooFewData, match="replicates=0"):
        fit_joint(points, replicates=200)


def test_a_search_that_ends_above_what_a_pinned_e_reaches_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    points = noisy(1)
    problem = make_problem(points, Objective("huber", 1e-3))
    far = problem.coordinates({**LAW, "E": 0.5})
    poor = Found(far, float(problem.value(far[None])[0]), Certificate(objective=1.0, gradient=0.0))
    monkeypatch.setattr("analysis.fit.joint.search", lambda *arguments: poor)
    with pytest.raises(NotConverged, match="better_profile_node"):
        fit_joint(points)


def test_a_term_without_effect_gives_no_efficiency() -> None:
    n_params, tokens = (np.tile(column, 2) for column in grid())
    arms = np.repeat(["base", "arm"], len(n_params) // 2)
    noise = np.random.default_rng(4).normal(0, 1e-3, len(n_params))
    # Tokens only harm: B rests at its bound, and a ratio of two of them says nothing.
    loss = (1.7 + 400 * n_params**-0.34) * (tokens / 1e9) ** 0.01 * np.exp(noise)
    fit = fit_joint(JointPoints(n_params, tokens, loss, arms=arms))
    assert {"B[base]", "B[arm]", "beta"} & set(fit.certificate.at_bound)
    factors = rescaled_arms(fit, "base")["arm"]
    assert factors.rho_d.estimate is None
    assert "no measured effect" in (factors.rho_d.reason or "")


def test_checkpoints_of_one_run_leave_the_degrees_of_freedom_of_its_clusters() -> None:
    n_params, tokens = grid()
    loss = losses(n_params, tokens) * np.exp(np.random.default_rng(2).normal(0, 0.01, len(tokens)))
    clusters = [f"{n:.0f} {k % 2}" for k, n in enumerate(n_params)]
    fit = fit_joint(JointPoints(n_params, tokens, loss, clusters=clusters))
    assert fit.dof == 10 - 5
