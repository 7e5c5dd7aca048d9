"""Every registered recipe keeps the contract, at every example option set."""

from __future__ import annotations

import os

import pytest
import torch

from recipes.base import Options, Shape, available, get
from tests.recipes.contract import CHECKS, SHAPES, Check, Recipe, gradients, model_of, option_sets
from tests.recipes.toy import tokens

SHAPE = Shape(n_layers=3, d_model=12)


def recipes_under_test() -> list[Recipe]:
    named = os.environ.get("ISOLOSS_RECIPES", "")
    if named:
        return [get(name.strip()) for name in named.split(",")]
    return list(available().values())


def label(cls: Recipe, options: Options) -> str:
    given = options.model_dump(exclude_defaults=True)
    return f"{cls.name}({', '.join(f'{key}={value}' for key, value in given.items())})"


CASES = [
    pytest.param(cls, options, id=label(cls, options))
    for cls in recipes_under_test()
    for options in option_sets(cls, SHAPE)
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize(("cls", "options"), CASES)
def test_recipe(cls: Recipe, options: Options, check: Check) -> None:
    check(cls, options, SHAPE)


@pytest.mark.parametrize("cls", recipes_under_test(), ids=lambda cls: cls.name)
def test_every_example_option_set_fits_some_shape(cls: Recipe) -> None:
    for shape in SHAPES:
        examples = [options.model_dump() for options in cls.example_options(shape)]
        fitting = [options.model_dump() for options in option_sets(cls, shape)]
        if examples == fitting:
            return
    pytest.fail(f"no shape of {SHAPES} admits every example option set of {cls.name}")


BY_SHAPE = {"costs_what_is_counted", "keeps_the_state_it_declares", "agrees_with_the_equations"}


@pytest.mark.parametrize("shape", [s for s in SHAPES if s != SHAPE], ids=str)
@pytest.mark.parametrize("cls", recipes_under_test(), ids=lambda cls: cls.name)
def test_cost_and_equations_hold_at_other_shapes(cls: Recipe, shape: Shape) -> None:
    for options in option_sets(cls, shape):
        for check in CHECKS:
            if check.__name__ in BY_SHAPE:
                check(cls, options, shape)


@pytest.mark.parametrize("cls", recipes_under_test(), ids=lambda cls: cls.name)
@pytest.mark.parametrize("n_layers", [2, 64])
def test_forward_and_backward_stay_finite(cls: Recipe, n_layers: int) -> None:
    shape = Shape(n_layers=n_layers, d_model=8)
    options = option_sets(cls, shape)[0]
    grads = gradients(model_of(cls, options, shape), tokens(batch=1, length=4))
    for name, grad in grads.items():
        assert grad is None or grad.isfinite().all(), name


@pytest.mark.slow
def test_inductor_computes_what_eager_does() -> None:
    full = get("full")
    model = model_of(full, full.Options(), Shape(n_layers=1, d_model=8)).double()
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    torch.testing.assert_close(compiled(tokens()), model(tokens()), rtol=1e-10, atol=1e-10)
