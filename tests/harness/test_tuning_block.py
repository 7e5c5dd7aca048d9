"""The tune block of a grid: what it holds, every mistake with its place, and its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.errors import GridError
from harness.schema import grid_schema
from harness.tuning.config import GeometricSearch, RangeSearch
from harness.yaml12 import parse_yaml
from tests.harness.grid_texts import BASE, load

ARMS = BASE + "axes: {residual: [standard, full, delta]}\n"
SEARCH = "search: {train.lr: {factor: 2}}"


def test_a_block_is_read_with_its_defaults(tmp_path: Path) -> None:
    block = """\
tune:
  search:
    train.lr: {start: 2e-2, factor: 2}
    train.residual_lr_scale: {low: 0.03, high: 1.0, log: true}
    train.weight_decay: [0, 0.1]
"""
    tune = load(tmp_path, ARMS + block).tune
    assert tune is not None
    assert list(tune.search) == [*("train.lr", "train.residual_lr_scale", "train.weight_decay")]
    assert tune.search["train.lr"] == GeometricSearch(start=0.02, factor=2.0)
    assert tune.search["train.residual_lr_scale"] == RangeSearch(low=0.03, high=1.0, log=True)
    assert tune.search["train.weight_decay"] == [0.0, 0.1]
    assert (tune.method, tune.trials, tune.seed, tune.equal_rate) == ("bracket", 12, 1000, True)
    assert (tune.sizes, tune.transfer, tune.at_edge, tune.stop.pruner) == (
        *(None, None, "widen", "none"),
    )


def test_a_grid_without_the_block_is_not_tuned(tmp_path: Path) -> None:
    assert load(tmp_path, BASE).tune is None


def test_sections_may_be_nested_and_values_given_on_the_command_line(tmp_path: Path) -> None:
    text = ARMS + "tune: {search: {train: {lr: {factor: 3}}}}\n"
    tune = load(tmp_path, text, ["tune.trials=5", "tune.stop.pruner=median"]).tune
    assert tune is not None
    assert tune.search == {"train.lr": GeometricSearch(factor=3.0)}
    assert (tune.trials, tune.stop.pruner) == (5, "median")


# One mistake each: what stands in the braces of tune, dotted path below it, what is said.
MISTAKES: dict[str, tuple[str, str, str]] = {
    "unknown key": (f"{SEARCH}, trails: 9", "trails", "did you mean 'trials'?"),
    "unknown method": (f"{SEARCH}, method: grid", "method", "must be one of 'bracket', 'tpe'"),
    "unknown key of stop": (f"{SEARCH}, stop: {{prunner: asha}}", "stop.prunner", "'pruner'?"),
    "unknown pruner": (f"{SEARCH}, stop: {{pruner: hyperband}}", "stop.pruner", "must be one of"),
    "no search": ("trials: 9", "search", "is required"),
    "empty search": ("search: {}", "search", "must be a mapping of fields"),
    "search a list": ("search: [train.lr]", "search", "Write train.lr: {factor: 2}"),
    "unknown field": ("search: {train.lrr: {}}", "search.train.lrr", "did you mean 'train.lr'?"),
    "no section": ("search: {lr: {}}", "search.lr", "write train.lr"),
    "a shape": ("search: {model.n_layers: [2, 4]}", "search.model.n_layers", "Put it under axes"),
    "the arm": ("search: {residual: [full]}", "search.residual", "Put it under axes"),
    "the budget": ("search: {train.budget: [1]}", "search.train.budget", "compared at"),
    "a part of the budget": (
        "search: {train.budget.flops: [1]}",
        "search.train.budget.flops",
        "compared at",
    ),
    "the validation set": (
        "search: {train.eval_tokens: [1]}",
        "search.train.eval_tokens",
        "validation sets",
    ),
    "a scalar": ("search: {train.lr: 0.1}", "search.train.lr", "must be {factor: 2}"),
    "unknown key of a field": (
        "search: {train.lr: {facter: 2}}",
        "search.train.lr.facter",
        "did you mean 'factor'?",
    ),
    "two kinds of search": (
        "search: {train.lr: {low: 1e-3, factor: 2}}",
        "search.train.lr",
        "Keep one of them",
    ),
    "factor 1e300": (
        "search: {train.lr: {factor: 1e300}}",
        "search.train.lr.factor",
        "at most 100",
    ),
    "factor 1": ("search: {train.lr: {factor: 1}}", "search.train.lr.factor", "at least 1.1"),
    "start 0": ("search: {train.lr: {start: 0}}", "search.train.lr.start", "greater than 0"),
    "start beyond the field": (
        "search: {train.decay_frac: {start: 2}}",
        "search.train.decay_frac.start",
        "at most 1",
    ),
    "high missing": ("search: {train.lr: {low: 1e-3}}", "search.train.lr.high", "is required"),
    "low above high": ("search: {train.lr: {low: 2, high: 1}}", "search.train.lr", "Swap them"),
    "low equals high": ("search: {train.lr: {low: 1, high: 1}}", "search.train.lr", "below high"),
    "log of 0": (
        "search: {train.weight_decay: {low: 0, high: 1, log: true}}",
        *("search.train.weight_decay", "above 0 with log"),
    ),
    "narrow log": (
        "search: {train.lr: {low: 1, high: 1.2, log: true}}",
        "search.train.lr",
        "too close",
    ),
    "low beyond the field": (
        "search: {train.lr: {low: -1, high: 1}}",
        "search.train.lr.low",
        "greater than 0",
    ),
    "range of integers": (
        "search: {train.batch_tokens: {low: 1, high: 9}}",
        *("search.train.batch_tokens", "List the values to try"),
    ),
    "range of names": (
        "search: {train.optimizer: {factor: 2}}",
        "search.train.optimizer",
        "List the values",
    ),
    "no choices": ("search: {train.lr: []}", "search.train.lr", "has no values to choose from"),
    "one choice": ("search: {train.lr: [0.1]}", "search.train.lr", "leaves no choice"),
    "equal choices": ("search: {train.lr: [1, 1.0]}", "search.train.lr", "leaves no choice"),
    "bad choice": ("search: {train.lr: [0.1, fast]}", "search.train.lr[1]", "must be a number"),
    "unknown option": (
        "search: {residual.sped: [1, 2]}",
        "search.residual.sped",
        "unknown option 'sped'",
    ),
    "seed of the sweep": (f"{SEARCH}, seed: 0", "seed", "none of the sweep's own seeds, got 0"),
    "sizes alone": (f"{SEARCH}, sizes: 2", "sizes", "Add transfer: flops"),
    "one size": (f"{SEARCH}, sizes: 1, transfer: flops", "sizes", "at least 2"),
    "transfer alone": (f"{SEARCH}, transfer: flops", "transfer", "every size is searched"),
    "short bracket": (f"{SEARCH}, trials: 2", "trials", "at least 3 for a bracket"),
    "cmaes of lists": (
        "search: {train.lr: [1, 2], train.beta1: {low: 0, high: 0.9}}, method: cmaes",
        *("method", "Write tpe"),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_one_mistake_gives_one_message_with_its_place(tmp_path: Path, name: str) -> None:
    block, path, says = MISTAKES[name]
    with pytest.raises(GridError) as caught:
        load(tmp_path, f"{ARMS}tune: {{{block}}}\n")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:7: tune.{path}: "), problem
    assert says in problem


# What the block says of the grid: axes or base of the grid, the search, its path, what is said.
CONTRADICTIONS: dict[str, tuple[str, str, str, str]] = {
    "varied": (
        "axes: {train.lr: [0.1, 0.2]}",
        *("train.lr: {factor: 2}", "train.lr", "the grid varies it, too"),
    ),
    "arms that a search would make one": (
        "axes: {residual: [{name: block, block_size: 2}, {name: block, block_size: 4}]}",
        *("residual.block_size: [1, 2]", "residual.block_size", "the grid varies it, too"),
    ),
    "no effect on any arm": (
        "axes: {residual: [standard]}",
        *("train.residual_lr_scale: {factor: 2}", "train.residual_lr_scale", "no effect on any"),
    ),
    "own value 0": (
        "axes: {train.weight_decay: [0.0]}",
        *("train.weight_decay: {factor: 2}", "train.weight_decay", "needs a start above 0"),
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_search_that_contradicts_the_grid_is_refused(tmp_path: Path, name: str) -> None:
    axes, search, path, says = CONTRADICTIONS[name]
    with pytest.raises(GridError) as caught:
        load(tmp_path, f"{BASE}{axes}\ntune: {{search: {{{search}}}}}\n")
    (problem,) = caught.value.problems
    assert problem.startswith(f"{tmp_path / 'grid.yaml'}:7: tune.search.{path}: "), problem
    assert says in problem


def test_mistakes_inside_and_outside_the_block_are_told_together(tmp_path: Path) -> None:
    text = ARMS + "tune: {search: {train.lr: []}, trails: 9}\nseeds: [x]\n"
    with pytest.raises(GridError) as caught:
        load(tmp_path, text)
    assert len(caught.value.problems) == 3


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found = grid_schema()
    assert all("description" in part for part in found["properties"]["tune"]["properties"].values())
    return found


def _errors(schema: dict[str, Any], block: str) -> list[Any]:
    jsonschema = pytest.importorskip("jsonschema")
    value = parse_yaml(f"{ARMS}tune: {{{block}}}\n", "grid.yaml").value
    return list(jsonschema.Draft202012Validator(schema).iter_errors(value))


@pytest.mark.parametrize(
    "block",
    [
        SEARCH,
        "search: {train.lr: {start: 2e-2, factor: 2}, residual.beta: [1, 2]}, sizes: 2",
        "search: {train.beta1: {low: 0.1, high: 0.9}}, method: tpe, stop: {pruner: asha}",
    ],
)
def test_the_schema_accepts_a_block(schema: dict[str, Any], block: str) -> None:
    assert _errors(schema, block) == []


@pytest.mark.parametrize(
    "block",
    [
        "trials: 9",
        "search: {}",
        "search: {train.lrr: {factor: 2}}",
        "search: {train.budget: [1, 2]}",
        "search: {train.lr: 2}",
        f"{SEARCH}, method: grid",
        f"{SEARCH}, stop: {{pruner: maybe}}",
    ],
)
def test_the_schema_sees_a_mistake(schema: dict[str, Any], block: str) -> None:
    assert _errors(schema, block)
