"""Simulated studies: the truth comes back, noise has its known size, formulas meet Monte Carlo."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import nctdtr, stdtrit

from analysis.cells import FLOPS, pair_points
from analysis.collect import collect, usable
from analysis.compare.fieller import iso_loss_ratio, p_value
from analysis.compare.holm import holm as holm_of_one
from analysis.compare.matching import match_table
from analysis.estimates import BadValue, TooFewData
from analysis.laws import Floats
from analysis.simulate import closed_form
from analysis.simulate.batched import holm, ratios, size_means
from analysis.simulate.declared import DeclaredGrid, declared
from analysis.simulate.design import designs, redesigned
from analysis.simulate.forecast import forecast, forecast_lines
from analysis.simulate.measured import measured
from analysis.simulate.play import draw_noise, play, true_loss
from analysis.simulate.power import Question, outlook
from analysis.simulate.world import World, choose_world
from harness.records import read_manifest
from tests.analysis.synthetic_sweep import build_sweep

QUIET = 1e-7


def ladder(
    n_sizes: int, n_seeds: int = 1, arms: int = 2, span: float = 8.4, dearer: float = 1.0
) -> DeclaredGrid:
    """Equally spaced sizes; every arm spends ``dearer`` times the FLOPs of the one before."""
    base = np.repeat(np.linspace(0, math.log(span), n_sizes) + math.log(1e18), n_seeds)
    return DeclaredGrid(
        arms=("standard", *(f"arm{i}" for i in range(1, arms))),
        size_of=np.repeat(np.arange(n_sizes), n_seeds),
        log_compute=base + np.log(dearer) * np.arange(arms)[:, None],
    )


def frame(grid: DeclaredGrid, losses: Floats) -> pd.DataFrame:
    """Runs of one study as ``collect`` would give them."""
    rows = [
        {
            "arm": arm,
            "size": f"s{size}",
            "size_key": f"s{size}",
            "pair_key": f"s{size}",
            "seed": match,
            "flops": math.exp(grid.log_compute[i, match]),
            "loss_nats": losses[i, match],
            "status": "done" if np.isfinite(losses[i, match]) else "diverged",
            "excluded_because": None if np.isfinite(losses[i, match]) else "diverged",
        }
        for i, arm in enumerate(grid.arms)
        for match, size in enumerate(grid.size_of)
        if np.isfinite(grid.log_compute[i, match])
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("grid", "world"),
    [
        (ladder(4, 2, 4, dearer=1.07), World(alpha=0.055, divergence=0.2)),
        (ladder(3, 1, 3), World(alpha=0.02, seed_sd=0.02, shared_sd=0.01)),
        (ladder(2, 2, 3), World(divergence=0.3)),
        (ladder(5, 1, 3, span=1.3), World(alpha=0.3, divergence=0.1)),
    ],
    ids=["divergence", "unbounded or no slope", "two sizes", "close sizes"],
)
def test_many_studies_at_once_equal_the_comparison_of_one(grid: DeclaredGrid, world: World) -> None:
    effects = np.linspace(0.9, 1.3, len(grid.arms) - 1)
    noise = draw_noise(grid, world, 8, np.random.default_rng(3))
    losses = play(grid, world, effects, noise)
    found = ratios(size_means(grid, losses))
    adjusted = holm(found.p)
    for k in range(len(losses)):
        runs = usable(frame(grid, losses[k]))
        tested: dict[int, float] = {}
        for i, arm in enumerate(grid.arms[1:]):
            pairs = pair_points(match_table(runs, FLOPS).match(arm, "standard"))
            one, p = iso_loss_ratio(pairs), p_value(pairs)
            expected = [math.nan if v is None else v for v in (one.estimate, one.low, one.high, p)]
            got = [float(v[k, i]) for v in (found.ratio, found.low, found.high, found.p)]
            assert got == pytest.approx(expected, rel=1e-12, nan_ok=True), (k, arm)
            if p is not None:
                tested[i] = p
        for i, value in zip(tested, holm_of_one(list(tested.values())), strict=True):
            assert adjusted[k, i] == pytest.approx(value, rel=1e-12)


def test_a_quiet_world_gives_its_multiplier_back() -> None:
    question = Question(effect=1.25, studies=5)
    world = World(seed_sd=QUIET, shared_sd=QUIET)
    for arm in outlook(ladder(4, 2, 3, dearer=1.1), world, question):
        assert arm.median == pytest.approx(1.25, rel=1e-5)
        assert (arm.bounded, arm.power) == (1, 1)


def test_an_arm_has_the_loss_of_the_baseline_at_rho_times_the_compute() -> None:
    world = World(alpha=0.3, asymptote=1.6, loss=2.5, growth=0.05)
    grid = ladder(5)
    losses = true_loss(grid, world, np.array([1.2]))
    x = grid.log_compute[0] - grid.log_compute[0].mean()
    rho = 1.2 * np.exp(0.05 * x)
    assert losses[1] == pytest.approx(1.6 + 0.9 * (rho * np.exp(x)) ** -0.3, rel=1e-12)
    assert losses[0, 2] == pytest.approx(2.5, rel=1e-12)


@pytest.mark.parametrize(("n_sizes", "sd_percent"), [(5, 2.0), (3, 2.5)])
def test_three_thousandths_of_a_nat_move_the_ratio_by_two_percent(
    n_sizes: int, sd_percent: float
) -> None:
    """By the delta method ``sd(ln rho) = sqrt(2 / n) sd(L) / (alpha L)``, here at 1.8 nats."""
    world = World(alpha=0.055, seed_sd=0.003 / 1.8)
    grid = ladder(n_sizes)
    noise = draw_noise(grid, world, 4000, np.random.default_rng(0))
    found = ratios(size_means(grid, play(grid, world, np.array([1.1]), noise)))
    sd = float(np.log(found.ratio).std())
    assert sd == pytest.approx(math.sqrt(2 / n_sizes) * world.seed_sd / world.alpha, rel=0.05)
    assert round(200 * sd) / 2 == sd_percent
    if n_sizes == 3:
        half = 50 * np.median((found.high - found.low) / found.ratio)
        assert half == pytest.approx(9, abs=0.5)
    covered = ~found.excludes(1.1)
    assert covered.mean() == pytest.approx(0.95, abs=0.015)


def test_what_arms_share_costs_nothing_of_the_multiplier() -> None:
    question = Question(studies=2000)
    alone = outlook(ladder(5), World(shared_sd=0.0), question)[0]
    shared = outlook(ladder(5), World(shared_sd=0.006), question)[0]
    assert shared.half_width_percent == pytest.approx(alone.half_width_percent, rel=0.05)


def test_an_effect_of_one_is_found_no_oftener_than_promised() -> None:
    grid, question = ladder(4, 2, arms=5), Question(effect=1.0, studies=2000)
    arms = outlook(grid, World(), question)
    assert all(arm.power == arm.false_alarms for arm in arms)
    assert sum(arm.power for arm in arms) <= 0.06, "family-wise, four arms"
    (alone,) = outlook(ladder(4), World(), question)
    assert alone.power == pytest.approx(0.05, abs=0.012)


def test_power_is_that_of_the_noncentral_t() -> None:
    world, grid = World(shared_sd=0.0), ladder(5)
    (arm,) = outlook(grid, world, Question(effect=1.1, studies=4000))
    shift = world.alpha * math.log(1.1) / (math.sqrt(2 / 5) * world.seed_sd)
    critical = stdtrit(4, 0.975)
    expected = 1 - nctdtr(4, shift, critical)
    assert arm.power == pytest.approx(expected, abs=3 * math.sqrt(expected / 4 / 4000))
    (at_limit,) = outlook(grid, world, Question(effect=arm.detectable or 0, studies=4000))
    assert at_limit.power == pytest.approx(0.8, abs=0.005)


@pytest.mark.parametrize(
    ("n_sizes", "n_seeds", "arms", "world"),
    [
        (3, 1, 2, World(alpha=0.055, seed_sd=0.0015)),
        (4, 2, 6, World()),
        (5, 1, 2, World(alpha=0.055, shared_sd=0.0)),
        (8, 3, 4, World()),
    ],
)
def test_the_forecast_agrees_with_playing(
    n_sizes: int, n_seeds: int, arms: int, world: World
) -> None:
    grid = ladder(n_sizes, n_seeds, arms)
    expected = forecast(grid, world)
    played = outlook(grid, world, Question(effect=1.0, studies=1500))
    assert expected is not None
    widths = [arm.half_width_percent for arm in played]
    assert expected.half_width_percent == pytest.approx(np.mean(widths), rel=0.05)
    gains = [math.log(arm.detectable or math.inf) for arm in played]
    assert math.log(expected.detectable or 1) == pytest.approx(np.mean(gains), rel=0.05)


def test_the_forecast_names_a_ladder_that_halves_the_interval() -> None:
    found = forecast(ladder(4, 2))
    assert found is not None
    assert found.halved_by_sizes is not None
    short = forecast(ladder(4, 2, span=3.0))
    assert short is not None
    assert short.halved_by_sizes is None, "3x leaves less than 1.25x between so many"
    more = forecast(ladder(found.halved_by_sizes, 2))
    less = forecast(ladder(found.halved_by_sizes - 1, 2))
    assert more is not None
    assert less is not None
    assert (more.half_width_percent or 0) <= (found.half_width_percent or 0) / 2 * 1.03
    assert (less.half_width_percent or 0) > (found.half_width_percent or 0) / 2 * 0.97


def test_a_forecast_says_what_it_assumes_and_where_there_is_none() -> None:
    found = forecast(ladder(4, 2))
    assert found is not None
    text = "\n".join(forecast_lines(found))
    assert "assumed: alpha 0.1" in text
    assert "0.003 by seed" in text
    assert forecast(ladder(2, 5)) is None
    noisy = forecast(ladder(3, span=1.5), World(alpha=0.01, seed_sd=0.01))
    assert noisy is not None
    assert noisy.half_width_percent is None
    assert noisy.detectable is None
    assert forecast(ladder(5, span=1.04)) is None, "one compute level"
    assert "unbounded" in forecast_lines(noisy)[0]


@pytest.mark.parametrize("dof", [1, 2, 3, 4, 7, 30, 99])
def test_student_without_scipy_equals_scipy(dof: int) -> None:
    for p in (0.2, 0.05, 0.05 / 12):
        assert closed_form.t_critical(p, dof) == pytest.approx(stdtrit(dof, 1 - p / 2), rel=1e-9)
    critical = float(stdtrit(dof, 0.975))
    for shift in (0.0, 1.0, 3.5):
        exact = 1 - nctdtr(dof, shift, critical) + nctdtr(dof, shift, -critical)
        assert closed_form.t_power(shift, critical, dof) == pytest.approx(exact, abs=2e-6)
    found = closed_form.t_shift(0.8, critical, dof)
    assert closed_form.t_power(found, critical, dof) == pytest.approx(0.8, abs=1e-6)


def test_a_forecast_loads_neither_pandas_nor_scipy() -> None:
    check = (
        "import analysis.simulate.forecast, analysis.simulate.declared, sys; "
        "print(sorted({'pandas', 'scipy', 'matplotlib', 'torch'} & set(sys.modules)))"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, cwd=root)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_declared_grid_pairs_what_the_analysis_pairs(tmp_path: Path) -> None:
    paths = build_sweep(tmp_path)
    manifest, runs = read_manifest(paths), usable(collect(paths))
    grid = declared(manifest.runs[::-1], manifest.baseline)
    assert grid.n_runs == len(runs) == len(manifest.runs)
    assert grid.flops == pytest.approx(runs["flops"].sum(), rel=1e-12)
    for i, arm in enumerate(grid.arms[1:]):
        pairs = pair_points(match_table(runs, FLOPS).match(arm, grid.arms[0]))
        assert grid.n_pairs()[i].tolist() == [pair.n_seeds for pair in pairs]
        assert grid.ladder()[0] == pytest.approx([pair.log_compute_base for pair in pairs])
        assert grid.ladder()[1 + i] == pytest.approx([pair.log_compute_arm for pair in pairs])
    with pytest.raises(TooFewData, match="another arm"):
        declared([run for run in manifest.runs if run.arm == "standard"], "standard")


def test_runs_teach_the_world_that_they_were_drawn_from() -> None:
    world = World(alpha=0.07, loss=2.2, shared_sd=0.004, seed_sd=0.002, divergence=0.1)
    grid = ladder(6, 12, arms=5)
    losses = play(grid, world, np.ones(4), draw_noise(grid, world, 1, np.random.default_rng(5)))
    told = measured(frame(grid, losses[0]), "standard")
    assert told["alpha"] == pytest.approx(0.07, rel=0.05)
    assert told["loss"] == pytest.approx(2.2, rel=0.01)
    assert told["seed_sd"] == pytest.approx(0.002, rel=0.1)
    assert told["shared_sd"] == pytest.approx(0.004, rel=0.15)
    assert told["divergence"] == pytest.approx(0.1, abs=0.04)


def test_runs_that_teach_nothing_are_refused_with_the_reason() -> None:
    two = ladder(2, 4)
    with pytest.raises(TooFewData, match="fewer than 3 sizes"):
        measured(frame(two, true_loss(two, World(), np.ones(1))), "standard")
    bare = ladder(3)
    with pytest.raises(TooFewData, match="2 degrees of freedom"):
        measured(frame(bare, true_loss(bare, World(), np.ones(1))), "standard")


def test_given_numbers_win_over_measured_ones_and_those_over_assumptions() -> None:
    world, sources = choose_world(
        {"seed_sd": 0.01, "asymptote": None}, {"seed_sd": 0.02, "alpha": 0.05}, "measured in x"
    )
    assert (world.seed_sd, world.alpha, world.shared_sd) == (0.01, 0.05, 0.003)
    assert [sources[n] for n in ("seed_sd", "alpha", "shared_sd")] == [
        "given",
        "measured in x",
        "assumed",
    ]
    raised, _ = choose_world({"asymptote": 1.5, "loss": 2.0}, {"alpha": 0.05}, "x")
    slope = (2.0 - 1.5) * raised.alpha / 2.0
    assert slope == pytest.approx(0.05), "d ln L / d ln C at the middle stays"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("alpha", 0.0),
        ("alpha", math.nan),
        ("asymptote", 3.5),
        ("seed_sd", 0.0),
        ("shared_sd", -0.1),
        ("divergence", 1.0),
        ("growth", 2.0),
    ],
)
def test_a_world_that_cannot_be_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(BadValue, match=name.replace("_", "-")):
        World(**{name: value})


def test_diverged_runs_are_lost_in_pairs_and_sizes_go_with_them() -> None:
    grid, world = ladder(4, 1, arms=2), World(divergence=0.25)
    noise = draw_noise(grid, world, 4000, np.random.default_rng(0))
    assert np.isnan(noise).mean() == pytest.approx(0.25, abs=0.01)
    (arm,) = outlook(grid, world, Question(studies=4000))
    kept = 0.75**2
    three_or_more = kept**4 + 4 * kept**3 * (1 - kept)
    assert arm.bounded == pytest.approx(three_or_more, abs=0.03)


def test_designs_cost_what_they_run_and_the_cheapest_that_suffices_is_marked() -> None:
    grid, question = ladder(4, 2, arms=3, dearer=1.1), Question(effect=1.1, studies=300)
    tried = designs(grid, World(), question, sizes=(3, 4, 6), seeds=(1, 2, 4))
    own = next(design for design in tried if design.declared)
    assert (own.n_sizes, own.n_seeds, own.runs) == (4, 2, 24)
    assert own.flops == pytest.approx(grid.flops, rel=1e-12)
    six = redesigned(grid, 6, 1)
    base = six.log_compute[0]
    assert np.diff(base) == pytest.approx(np.full(5, math.log(8.4) / 5))
    assert six.log_compute[2] - base == pytest.approx(np.full(6, 2 * math.log(1.1)))
    enough = [design for design in tried if design.power >= 0.8]
    (best,) = (design for design in tried if design.cheapest)
    assert best.flops == min(design.flops for design in enough)
    nowhere = designs(grid, World(), Question(effect=1.001, studies=50), sizes=(3,), seeds=(1,))
    assert not any(design.cheapest for design in nowhere)


def test_a_ladder_too_short_for_its_rungs_goes_upwards_and_one_rung_is_refused() -> None:
    grown = redesigned(ladder(2, span=2.0), 8, 1)
    assert np.diff(grown.log_compute[0]) == pytest.approx(np.full(7, math.log(1.25)))
    assert grown.log_compute[0, 0] == pytest.approx(math.log(1e18))
    with pytest.raises(TooFewData, match="two sizes or budgets"):
        redesigned(ladder(1), 3, 1)


def test_the_same_seed_plays_the_same_studies() -> None:
    first, again = (outlook(ladder(3), World(), Question(studies=50)) for _ in range(2))
    other = outlook(ladder(3), World(), Question(studies=50, seed=1))
    assert first == again != other
