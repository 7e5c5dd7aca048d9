"""Options of the attention-residual family in combinations nobody chose by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from recipes.base import Options, Shape, get
from tests.recipes import contract

POOL: dict[str, list[Any]] = {
    "query": ["static", "input_dependent", "none"],
    "query_init_std": [0.0, 0.3],
    "recency_init": [0.0, 1.5],
    "frozen_queries": [False, True],
    "key_norm": ["rms_gain", "rms", "none"],
    "key_rank": [None, 3],
    "key_norm_scope": ["slice", "full"],
    "heads": [1, 2],
    "weighting": ["softmax", "sigmoid"],
    "logit_scale": ["one", "inverse_sqrt_rank"],
    "temperature": [1.0, 0.7],
    "window": [None, 1, 2],
    "embedding_source": [True, False],
    "final_read": [True, False],
    "block_size": [None, 1, 2, 3],
    "block_sizes": [None, (1, 5), (2, 4)],
    "tail": ["short", "balanced"],
    "include_partial": [True, False],
    "value_scale": ["sum", "mean"],
    "count_prior": [False, True],
    "source": ["sublayer", "block_sum", "cumulative"],
    "combine": ["add", "replace"],
    "as_released": [False, True],
    "widths": [(1,), (1, 2)],
    "convolve": ["keys", "values", "both"],
    "share_taps": [True, False],
    "mixing": ["adaptive", "static"],
}
SHAPES = (Shape(n_layers=3, d_model=8), Shape(n_layers=1, d_model=8))
CHECKS = [
    contract.agrees_with_the_equations,
    contract.costs_what_is_counted,
    contract.keeps_the_state_it_declares,
    contract.gives_gradient_to_every_live_parameter,
    contract.keeps_its_init_identity,
    contract.names_every_weight_that_diagnostics_see,
    contract.computes_the_same_by_every_kernel,
]


@st.composite
def options_of(draw: st.DrawFn, name: str, shape: Shape) -> Options:
    """A few switches turned at once; what the recipe refuses is not drawn."""
    kind = get(name).Options
    offered = sorted(set(POOL) & set(kind.model_fields))
    turned = draw(st.lists(st.sampled_from(offered), min_size=2, max_size=5, unique=True))
    drawn = {option: draw(st.sampled_from(POOL[option])) for option in turned}
    options = kind.model_validate(drawn)
    try:
        options.check(shape)
    except ValueError:
        assume(False)
    return options


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["full", "block", "delta", "low_rank", "multi_stream"])
@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_switches_turned_together_keep_the_contract(
    name: str, shape: Shape, data: st.DataObject
) -> None:
    options = data.draw(options_of(name, shape))
    for check in CHECKS:
        check(get(name), options, shape)
