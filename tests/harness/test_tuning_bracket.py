"""The bracket: finds the best point of a lattice, tries nothing twice, and gives up in the end."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.tuning.bracket import (
    MAX_EXTENSIONS,
    Result,
    bracket_of,
    most_points,
    next_points,
)
from harness.tuning.space import Choices, Dimension, Geometric, Range

Loss = Callable[[Mapping[str, Any]], float]
LR = {"train.lr": Geometric(0.02, 2.0)}


def search(
    dimensions: Mapping[str, Dimension], loss: Loss, trials: int | None = None, seed: int = 0
) -> list[Result]:
    """Follow the bracket to its end; points end one at a time, in any order."""
    order = random.Random(seed)
    done: list[Result] = []
    running: list[dict[str, Any]] = []
    for _ in range(200):
        seen = [*done, *(Result(values, None) for values in running)]
        order.shuffle(seen)
        points = next_points(dimensions, seen, trials)
        if points is None:
            assert not running
            return done
        for point in points:
            assert point not in [r.values for r in seen], "proposed twice"
        running += points
        assert running, "waits for nothing"
        ended = running.pop(order.randrange(len(running)))
        done.append(Result(ended, loss(ended)))
    raise AssertionError("the search does not end")


def best(results: list[Result]) -> Mapping[str, Any]:
    finite = [(r.loss or 0.0, i) for i, r in enumerate(results) if math.isfinite(r.loss or 0)]
    return results[min(finite)[1]].values


def valley(at: float, left: float, right: float, power: float) -> Callable[[float], float]:
    """Falls up to ``at`` in ln(value) and rises after it, as steeply as given."""

    def loss(value: float) -> float:
        distance = math.log(value) - math.log(at)
        return float((left if distance < 0 else right) * abs(distance) ** power)

    return loss


SLOPE = st.floats(0.01, 100)


@settings(max_examples=60, deadline=None)
@given(
    steps=st.floats(-5.9, 5.9),
    left=SLOPE,
    right=SLOPE,
    power=st.floats(0.5, 4),
    factor=st.floats(1.2, 10),
    seed=st.integers(0, 1000),
)
def test_the_best_point_of_the_lattice_is_found(
    steps: float, left: float, right: float, power: float, factor: float, seed: int
) -> None:
    dims = {"train.lr": Geometric(0.02, factor)}
    loss = valley(0.02 * factor**steps, left, right, power)
    found = search(dims, lambda values: loss(float(values["train.lr"])), seed=seed)
    lattice = [0.02 if k == 0 else float(f"{0.02 * factor**k:.3g}") for k in range(-9, 10)]
    assert loss(best(found)["train.lr"]) == min(map(loss, lattice))
    tried = [r.values["train.lr"] for r in found]
    assert min(tried) < best(found)["train.lr"] < max(tried)
    assert len(found) <= most_points(dims) == 3 + MAX_EXTENSIONS


@settings(max_examples=20, deadline=None)
@given(
    at=st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    choice=st.integers(0, 3),
    slopes=st.tuples(SLOPE, SLOPE, SLOPE, SLOPE),
    seed=st.integers(0, 1000),
)
def test_fields_that_do_not_interact_are_each_brought_to_their_best(
    at: tuple[float, float], choice: int, slopes: tuple[float, float, float, float], seed: int
) -> None:
    dims: dict[str, Dimension] = {
        "train.lr": Geometric(0.02, 2.0),
        "train.weight_decay": Choices((0.0, 0.1, 0.2, 0.4), 0.1),
        "train.residual_lr_scale": Geometric(0.1, 3.0),
    }
    rate = valley(0.02 * 2.0 ** at[0], slopes[0], slopes[1], 2)
    scale = valley(0.1 * 3.0 ** at[1], slopes[2], slopes[3], 2)
    wanted = (0.0, 0.1, 0.2, 0.4)[choice]

    def loss(values: Mapping[str, Any]) -> float:
        numbers = rate(values["train.lr"]) + scale(values["train.residual_lr_scale"])
        return numbers + float(values["train.weight_decay"] != wanted)

    found = search(dims, loss, seed=seed)
    chosen = best(found)
    lattices = [
        [0.02 if k == 0 else float(f"{0.02 * 2.0**k:.3g}") for k in range(-9, 10)],
        [0.1 if k == 0 else float(f"{0.1 * 3.0**k:.3g}") for k in range(-9, 10)],
    ]
    assert chosen["train.weight_decay"] == wanted
    assert rate(chosen["train.lr"]) == min(map(rate, lattices[0]))
    assert scale(chosen["train.residual_lr_scale"]) == min(map(scale, lattices[1]))
    assert len(found) <= most_points(dims) == 9 + 3 + 8


def test_the_first_points_surround_the_start() -> None:
    points = next_points(LR, [])
    assert points == [{"train.lr": 0.01}, {"train.lr": 0.02}, {"train.lr": 0.04}]


def test_a_bracket_around_the_start_needs_three_points() -> None:
    found = search(LR, lambda values: valley(0.02, 1, 1, 2)(values["train.lr"]))
    assert sorted(r.values["train.lr"] for r in found) == [0.01, 0.02, 0.04]


@settings(max_examples=30, deadline=None)
@given(at=st.floats(-3, 3), slope=SLOPE, refine=st.integers(1, 3), seed=st.integers(0, 1000))
def test_refining_comes_as_close_as_its_last_step(
    at: float, slope: float, refine: int, seed: int
) -> None:
    dims = {"train.lr": Geometric(0.02, 2.0, refine=refine)}
    loss = valley(0.02 * 2.0**at, slope, slope, 2)
    found = search(dims, lambda values: loss(values["train.lr"]), seed=seed)
    missed = abs(math.log2(best(found)["train.lr"] / 0.02) - at)
    assert missed <= 0.5 ** (refine + 1) + 0.01  # rounded to three digits
    assert len(found) <= most_points(dims) == 3 + MAX_EXTENSIONS + 2 * refine


def test_a_start_far_off_is_left_behind_step_by_step() -> None:
    found = search(LR, lambda values: valley(0.5, 1, 1, 2)(values["train.lr"]))
    tried = sorted(r.values["train.lr"] for r in found)
    assert tried == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28]


def test_a_search_that_only_falls_gives_up_after_its_limit() -> None:
    found = search(LR, lambda values: -values["train.lr"])
    assert len(found) == 3 + MAX_EXTENSIONS
    assert best(found)["train.lr"] == max(r.values["train.lr"] for r in found)


def test_diverged_points_are_worse_than_any_other() -> None:
    def loss(values: Mapping[str, Any]) -> float:
        rate = float(values["train.lr"])
        return math.inf if rate > 0.03 else valley(0.3, 1, 1, 1)(rate)

    found = search(LR, loss)
    assert best(found)["train.lr"] == 0.02
    assert sorted(r.values["train.lr"] for r in found) == [0.01, 0.02, 0.04]


def test_when_all_diverge_the_search_goes_down_until_one_does_not() -> None:
    def loss(values: Mapping[str, Any]) -> float:
        rate = float(values["train.lr"])
        return math.nan if rate > 0.002 else valley(0.0006, 1, 1, 1)(rate)

    assert best(search(LR, loss))["train.lr"] == 0.000625


def test_a_field_of_which_every_point_diverged_ends_the_search() -> None:
    dims: dict[str, Dimension] = {**LR, "train.weight_decay": Choices((0.0, 0.1), 0.1)}
    found = search(dims, lambda values: math.inf)
    assert len(found) == 3 + MAX_EXTENSIONS
    assert {r.values["train.weight_decay"] for r in found} == {0.1}


def test_equal_losses_leave_the_value_next_to_the_start() -> None:
    assert len(search(LR, lambda values: 3.0)) == 3
    dims: dict[str, Dimension] = {"train.weight_decay": Choices((0.0, 0.1, 0.2), 0.1), **LR}
    found = search(dims, lambda values: 3.0)
    assert {r.values["train.weight_decay"] for r in found if r.values["train.lr"] != 0.02} == {0.1}


@pytest.mark.parametrize("trials", [1, 2, 3, 4, 7])
def test_no_more_trials_are_asked_for_than_there_may_be(trials: int) -> None:
    assert len(search(LR, lambda values: -values["train.lr"], trials)) == trials


def test_nothing_to_search_is_finished_at_once() -> None:
    assert next_points({}, []) is None


def test_a_range_that_may_not_widen_is_searched_up_to_its_ends() -> None:
    dims = {"x": Range(0.1, 1.6, log=True, start=0.2, least=0.1, most=1.6)}
    found = search(dims, lambda values: -values["x"])
    assert sorted(r.values["x"] for r in found) == [0.1, 0.2, 0.4, 0.8, 1.6]


def test_a_range_that_may_widen_is_left_where_the_best_lies_outside() -> None:
    dims = {"x": Range(0.1, 1.6, log=True, start=0.2, least=0.0)}
    found = search(dims, lambda values: valley(3.2, 1, 1, 2)(values["x"]))
    assert best(found)["x"] == 3.2
    assert max(r.values["x"] for r in found) == 6.4


def test_a_linear_range_is_searched_by_equal_steps_and_stays_where_the_field_ends() -> None:
    dims = {"train.decay_frac": Range(0.2, 0.8, start=0.3, least=0.0, most=1.0)}
    found = search(dims, lambda values: -values["train.decay_frac"])
    assert sorted(r.values["train.decay_frac"] for r in found) == [0.2, 0.35, 0.5, 0.65, 0.8, 0.95]


def test_the_compared_points_of_each_field_hold_the_others_fixed() -> None:
    dims: dict[str, Dimension] = {**LR, "train.weight_decay": Choices((0.0, 0.1), 0.1)}
    rate = valley(0.04, 1, 1, 2)
    found = search(dims, lambda v: rate(v["train.lr"]) + v["train.weight_decay"])
    lines = bracket_of(dims, found)
    assert [r.values["train.lr"] for r in lines["train.lr"]] == [0.01, 0.02, 0.04, 0.08]
    assert {r.values["train.weight_decay"] for r in lines["train.lr"]} == {0.1}
    assert [r.values for r in lines["train.weight_decay"]] == [
        {"train.lr": 0.04, "train.weight_decay": 0.0},
        {"train.lr": 0.04, "train.weight_decay": 0.1},
    ]
