"""IsoFLOP minima: bracketed or refused, their bias known, methods side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.estimates import TooFewData
from analysis.fit.isoflop import (
    IsoFlopPoints,
    compare_isoflop,
    fit_isoflop,
    nearest_budget,
)
from analysis.fit.isoflop_methods import Method
from analysis.laws import Floats, joint_loss, optimal_allocation

DATA = Path(__file__).parents[1] / "data"
# As published, arXiv 2203.15556, equation 10.
LAW = {"a": np.log(406.4), "b": np.log(410.7), "alpha": 0.34, "beta": 0.28}
BUDGETS = np.geomspace(1e18, 1e21, 7)


def from_law(half_span: float, drift: float = 1.0, n: int = 15) -> IsoFlopPoints:
    """Noise-free losses at n sizes up to ``half_span`` times above and below the optimum."""
    best, _ = optimal_allocation(BUDGETS, **LAW)
    off = np.linspace(0, np.log(drift), len(BUDGETS)) - np.log(drift) / 2
    steps = np.linspace(-np.log(half_span), np.log(half_span), n)
    size = np.exp(np.log(best)[:, None] + off[:, None] + steps)
    flops = np.broadcast_to(BUDGETS[:, None], size.shape)
    loss = joint_loss(size, flops / 6 / size, asymptote=1.69, **LAW)
    return IsoFlopPoints(flops.ravel(), size.ravel(), loss.ravel())


@pytest.mark.parametrize(("half_span", "bias"), [(4, 0.013), (8, 0.030), (16, 0.054)])
def test_centred_parabola_finds_the_exponent_and_misses_the_level_as_known(
    half_span: float, bias: float
) -> None:
    fit = fit_isoflop(from_law(half_span))
    truth, _ = optimal_allocation(1e24, **LAW)
    assert fit.n_law is not None
    assert fit.n_law.value("a") == pytest.approx(
        LAW["beta"] / (LAW["alpha"] + LAW["beta"]), abs=1e-9
    )
    assert abs(fit.n_law.predict(1e24) / truth - 1) == pytest.approx(bias, abs=6e-4)


@pytest.mark.parametrize("half_span", [4, 8, 16])
def test_cubic_removes_most_of_the_bias(half_span: float) -> None:
    fit = fit_isoflop(from_law(half_span), method="cubic")
    truth, _ = optimal_allocation(1e24, **LAW)
    assert fit.n_law is not None
    assert abs(fit.n_law.predict(1e24) / truth - 1) < 0.002


def test_drifting_centres_mislead_the_cubic_more_than_the_parabola() -> None:
    points = from_law(16, drift=1 / 3)
    truth, _ = optimal_allocation(1e24, **LAW)
    missed = {}
    for method in ("parabola", "cubic"):
        law = fit_isoflop(points, method=method).n_law
        assert law is not None
        missed[method] = float(law.predict(1e24) / truth - 1)
    assert missed["cubic"] == pytest.approx(-0.09, abs=0.005)
    assert abs(missed["parabola"]) < abs(missed["cubic"])


def test_methods_that_disagree_with_the_law_are_said_to() -> None:
    points = from_law(16, drift=1 / 64)

    class TrueLaw:
        def optimum(self, flops: Floats) -> tuple[Floats, Floats]:
            return optimal_allocation(flops, **LAW)

    notes = compare_isoflop(points, joint=TrueLaw()).notes
    assert any(
        note.startswith("isoflop_law_disagreement: ") and "joint law" in note for note in notes
    )


def test_methods_that_agree_are_not_said_to_disagree() -> None:
    assert compare_isoflop(from_law(4)).notes == ()


# Approach 2 of Hoffmann et al. on the points that Epoch read from their figure.
def test_chinchillas_second_approach_on_the_published_points() -> None:
    table = pd.read_csv(DATA / "chinchilla_epoch" / "svg_extracted_data.csv")
    budgets = [6e18, 1e19, 3e19, 6e19, 1e20, 3e20, 6e20, 1e21, 3e21]
    flops, near = nearest_budget(table["Training FLOP"].to_numpy(), budgets)
    points = IsoFlopPoints(
        flops[near], table["Model Size"].to_numpy()[near], table["loss"].to_numpy()[near]
    )
    fit = fit_isoflop(points)
    assert fit.n_law is not None
    assert fit.n_law.value("a") == pytest.approx(0.506, abs=5e-4)
    assert 70e9 < fit.n_law.predict(5.76e23) < 89e9
    assert any(note.startswith("lowest_at_edge: 3e+21") for note in fit.notes)


@pytest.mark.parametrize("method", ["parabola", "cubic", "akima"])
def test_a_minimum_at_the_edge_is_refused_with_its_reason(method: Method) -> None:
    points = from_law(8)
    best, _ = optimal_allocation(BUDGETS[0], **LAW)
    kept = ~((points.flops == BUDGETS[0]) & (points.size < 2 * best))
    cut = IsoFlopPoints(*(column[kept] for column in (points.flops, points.size, points.loss_nats)))
    sizes_left = int((cut.flops == BUDGETS[0]).sum())
    fit = fit_isoflop(cut, method=method)
    (refused,) = fit.refused
    assert refused[0] == pytest.approx(BUDGETS[0])
    expected = (
        "no minimum inside"
        if sizes_left >= {"parabola": 3, "cubic": 4, "akima": 5}[method]
        else f"sizes, {method} needs"
    )
    assert expected in refused[1]
    assert len(fit.minima) == len(BUDGETS) - 1


def test_concave_curve_has_no_minimum() -> None:
    size = np.geomspace(1e6, 1e7, 5)
    loss = 3.0 - 0.1 * np.log(size / 3e6) ** 2
    fit = fit_isoflop(IsoFlopPoints(np.full(5, 1e17), size, loss))
    assert fit.minima == ()
    assert fit.n_law is None
    assert [note.split(":")[0] for note in fit.notes] == ["too_few_minima", "budget_refused"]


def test_noise_that_hides_the_minimum_refuses_the_budget_and_weights_the_others() -> None:
    points = from_law(4)
    certain = fit_isoflop(points, noise_sd=1e-4)
    assert len(certain.minima) == len(BUDGETS)
    assert certain.n_law is not None
    assert "weighted" in certain.n_law.method
    assert certain.d_law is not None
    # C = 6 N D at every budget, so the two exponents share out one.
    assert certain.n_law.value("a") + certain.d_law.value("a") == pytest.approx(1.0, abs=1e-9)
    hidden = fit_isoflop(points, noise_sd=1.0)
    assert hidden.refused
    assert all("noisy copies" in why for _, why in hidden.refused)


def test_spread_of_a_minimum_over_noisy_copies_is_that_of_the_parabola() -> None:
    points = from_law(4)
    (best, *_) = fit_isoflop(points, noise_sd=1e-3, replicates=4000).minima
    at = points.flops == BUDGETS[0]
    x, loss = np.log(points.size[at]), points.loss_nats[at]
    rng = np.random.default_rng(9)
    vertices = []
    for _ in range(4000):
        c = np.polyfit(x - x.mean(), loss + rng.normal(0, 1e-3, len(x)), 2)
        vertices.append(-c[1] / 2 / c[0])
    assert best.log_n_sd == pytest.approx(float(np.std(vertices)), rel=0.05)


def test_too_few_sizes_at_every_budget_are_refused() -> None:
    with pytest.raises(TooFewData, match="needs 3 sizes at one budget, got at most 2"):
        fit_isoflop(IsoFlopPoints(np.full(2, 1e17), np.array([1e6, 2e6]), np.array([3.0, 2.9])))


def test_tokens_at_the_optimum_are_interpolated_where_given() -> None:
    points = from_law(4)
    tokens = points.flops / 6 / points.size * 2
    own = fit_isoflop(IsoFlopPoints(points.flops, points.size, points.loss_nats, tokens))
    implied = fit_isoflop(points)
    for a, b in zip(own.minima, implied.minima, strict=True):
        assert a.d_star == pytest.approx(2 * b.d_star, rel=1e-6)


def test_curve_passes_where_the_method_says() -> None:
    points = from_law(4)
    fit = fit_isoflop(points, method="akima")
    at = points.flops == BUDGETS[2]
    assert fit.curve(BUDGETS[2], points.size[at]) == pytest.approx(points.loss_nats[at], rel=1e-12)
