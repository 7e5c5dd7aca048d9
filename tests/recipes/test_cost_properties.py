"""Closed-form costs are real counts at any shape, not only at those of the contract suite."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from recipes.base import Options, Shape, available
from tests.recipes.contract import Recipe, costs_what_is_counted, keeps_the_state_it_declares

SHAPES = st.builds(
    Shape, n_layers=st.integers(1, 6), d_model=st.integers(2, 16).map(lambda half: 2 * half)
)


def fits(options: Options, shape: Shape) -> bool:
    try:
        options.check(shape)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("cls", available().values(), ids=lambda cls: cls.name)
@settings(max_examples=40, deadline=None)
@given(data=st.data(), shape=SHAPES)
def test_parameters_flops_and_state_are_what_the_closed_forms_say(
    cls: Recipe, data: st.DataObject, shape: Shape
) -> None:
    # Examples with explicit block sizes exist from two layers on; what fits one layer is filtered.
    examples = cls.example_options(Shape(max(2, shape.n_layers), shape.d_model))
    fitting = [options for options in examples if fits(options, shape)]
    assume(fitting)
    options = data.draw(st.sampled_from(fitting), label="options")
    costs_what_is_counted(cls, options, shape)
    keeps_the_state_it_declares(cls, options, shape)
