"""Published traffic, parameter and FLOP counts come out of our formulas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.base import ResidualCost, Shape, get, parse_options
from recipes.depth_io import (
    block_two_phase,
    full_two_phase,
    standard,
    streams,
    two_phase,
)
from recipes.depth_schedule import Schedule, block_ends

D = 1024
KIMI_M, KIMI_S, KIMI_N = 128, 16, 8
"""The typical case of arXiv 2603.15031, table 1."""


def full_plan(n_sublayers: int) -> Schedule:
    return Schedule(n_sublayers, tuple(range(1, n_sublayers + 1)))


def block_plan(n_sublayers: int, block_size: int) -> Schedule:
    return Schedule(n_sublayers, block_ends(n_sublayers, block_size, None, "short"))


def price(recipe: str, n_layers: int, d_model: int, **options: Any) -> ResidualCost:
    shape = Shape(n_layers=n_layers, d_model=d_model)
    return get(recipe).cost(shape, parse_options(recipe, options, shape))


def test_the_table_of_the_paper_comes_out() -> None:
    assert standard(D) == 3 * D
    assert streams(D, 4) == 34 * D + 48
    assert full_two_phase(D, KIMI_S, KIMI_N) == 24 * D
    assert block_two_phase(D, KIMI_S, KIMI_N) == 5.5 * D


def test_sums_over_the_paper_case_lie_an_eighth_of_a_vector_from_its_table() -> None:
    full, block = two_phase(full_plan(KIMI_M), KIMI_S), two_phase(block_plan(KIMI_M, KIMI_S))
    assert full.per_sublayer == 24 + 2 / KIMI_S
    assert block.per_sublayer == 5.5 - 2 / KIMI_S


@given(d=st.integers(1, 4096), m=st.integers(1, 16))
def test_parallel_streams_move_what_the_closed_form_says(d: int, m: int) -> None:
    assert streams(d, m) == (8 * m + 2) * d + 2 * m * m + 4 * m


@settings(max_examples=80, deadline=None)
@given(data=st.data(), n_sublayers=st.integers(1, 120))
def test_sums_differ_from_the_closed_forms_by_the_embedding_and_the_ends_of_groups(
    data: st.DataObject, n_sublayers: int
) -> None:
    m = n_sublayers
    s = data.draw(st.integers(1, m))
    n = -(-m // s)
    last = m - (n - 1) * s
    full = m * (two_phase(full_plan(m), s).per_sublayer - full_two_phase(1, s, n))
    block = m * (two_phase(block_plan(m, s)).per_sublayer - block_two_phase(1, s, n))
    assert full == pytest.approx(2 * n + (n - 1 - last) * (s - last), abs=1e-9)
    if m % s == 0:
        assert block == pytest.approx(-2 * n, abs=1e-9)
    assert -2 * n - 1e-9 <= block <= -n + 1e-9


@settings(max_examples=40, deadline=None)
@given(n_sublayers=st.integers(1, 60))
def test_one_read_per_group_reads_every_source_of_every_read_once(n_sublayers: int) -> None:
    plan = full_plan(n_sublayers)
    alone = two_phase(plan, 1)
    assert alone.phase_2_reads == 0
    assert alone.phase_1_reads == 2 * sum(plan.n_sources(t) for t in range(n_sublayers))
    assert alone.final_read == 2 * (n_sublayers + 1) + 2


def test_grouping_by_the_square_root_moves_the_least() -> None:
    by_size = {s: two_phase(full_plan(64), s).per_sublayer for s in (1, 2, 4, 8, 16, 32, 64)}
    assert min(by_size, key=lambda s: by_size[s]) == 8
    assert full_two_phase(1, 8, 8) == 2 * 64**0.5


def test_a_schedule_that_keeps_the_stream_is_refused() -> None:
    with pytest.raises(ValueError, match="keeps the stream"):
        two_phase(Schedule(8, (4, 8), additive=True, final=False))


def test_standard_moves_three_vectors_per_sublayer_in_its_recipe_too() -> None:
    assert price("standard", 5, D).elements_moved_per_token == 10 * standard(D)


@pytest.mark.parametrize("recipe", ["mhc", "hyper_connections"])
def test_recipes_with_parallel_streams_move_what_the_table_says(recipe: str) -> None:
    assert price(recipe, 5, D, n_streams=4).elements_moved_per_token == 10 * (34 * D + 48)


# Parameters.


def test_one_query_and_one_gain_per_sublayer_and_one_pair_for_the_head() -> None:
    # "One RMSNorm and one pseudo-query per layer" (arXiv 2603.15031, section 5), and the final
    # read; the first read has one source, and needs neither.
    assert price("full", 16, 1168).params == 32 * 2 * 1168
    assert price("block", 16, 1168, block_size=4).params == 32 * 2 * 1168


def test_delta_has_the_parameters_its_authors_state() -> None:
    # 589.8K at width 4096 and 36 layers, which is 0.008 % of 7.57B; 2 d of it is a dead first read.
    params = price("delta", 36, 4096).params
    assert params == 589_824 - 2 * 4096
    assert round(100 * params / 7.57e9, 3) == 0.008


def test_a_public_reproduction_adds_as_many_parameters_as_full() -> None:
    # nanogpt-attnres-repro states +29.1K at 48 layers of width 150; 2 d of it is a dead first read.
    assert price("full", 48, 150).params == 29_100 - 2 * 150


@pytest.mark.parametrize("rank", [128, 256, 1024])
def test_low_rank_has_one_query_of_length_r_per_sublayer(rank: int) -> None:
    # arXiv 2607.09694: 48 active queries for 24 layers, without gains.
    assert price("low_rank", 24, D, n_blocks=8, tail="balanced", key_rank=rank).params == 48 * rank


def test_mhc_has_ninety_six_d_per_sublayer_and_what_does_not_grow_with_d() -> None:
    # n d (n^2 + 2 n) at n = 4 (arXiv 2512.24880), and n^2 + 2 n biases and 3 gates.
    assert price("mhc", 12, D).params == 24 * (96 * D + 24 + 3)


def test_hyper_connections_have_d_times_n_plus_three_per_sublayer() -> None:
    # arXiv 2409.19606: dynamic weights d (n + 2) and a norm d; static weights n (n + 2), 2 scales.
    assert price("hyper_connections", 12, D, n_streams=4).params == 24 * (7 * D + 24 + 2)


# FLOPs.


def layer_flops(d: int, d_ff: float) -> float:
    """Matmul FLOPs per token of a Llama layer with a SwiGLU, attention scores left out."""
    return 2 * (4 * d * d + 3 * d * d_ff)


def share_of_layers(cost: ResidualCost, n_layers: int, d: int, d_ff: float) -> float:
    """Routing FLOPs in percent of the sublayers'."""
    return 100 * cost.flops_per_token / (n_layers * layer_flops(d, d_ff))


def test_routing_takes_the_share_of_flops_that_low_rank_paper_counts() -> None:
    # LR-AttnRes code, 24 layers of width 1024: full 0.813 %, block of N = 8 0.175 %. Both digits
    # follow from a SwiGLU rounded up from 8/3 d to 2816, which we infer from them.
    full, block = price("full", 24, D), price("block", 24, D, n_blocks=8)
    assert round(share_of_layers(full, 24, D, 2816), 3) == 0.813
    assert round(share_of_layers(block, 24, D, 2816), 3) == 0.175


def test_full_and_block_cost_close_to_the_rules_of_thumb() -> None:
    # M / (6 d) = 0.78 % and (N + 1) / (6 d) = 0.15 % of 12 d^2 per sublayer; exact: M + 3, N + 3.
    m, n = 48, 8
    full, block = price("full", 24, D), price("block", 24, D, n_blocks=n)
    assert full.flops_per_token == 2 * D * m * (m + 3)
    assert block.flops_per_token == 2 * D * m * (n + 3)
    share = 100 / (12 * D * D * m)
    thumb = [2 * D * m * m * share, 2 * D * m * (n + 1) * share]
    assert [round(percent, 2) for percent in thumb] == [0.78, 0.15]


@pytest.mark.parametrize(("divisor", "saved"), [(8, 43.75), (4, 37.5), (1, 0.0)])
def test_low_rank_saves_the_published_share_of_routing_flops(divisor: int, saved: float) -> None:
    # (d - r) / (2 d), arXiv 2607.09694.
    block = price("block", 24, D, n_blocks=8).flops_per_token
    low = price("low_rank", 24, D, n_blocks=8, key_rank=D // divisor).flops_per_token
    assert 100 * (1 - low / block) == saved


# State.


def test_the_cache_of_a_long_prefill_has_its_published_size() -> None:
    # arXiv 2603.15031, section 4.2: 15 GB for 8 blocks and 128K tokens; width 7168 in bf16.
    d = 7168
    vectors = price("block", 64, d, n_blocks=8).state_elements_per_token // d
    assert vectors == 8 + 1
    assert 15.0 <= (vectors - 1) * 2**17 * d * 2 / 1e9 < 15.5


@pytest.mark.parametrize(("n_layers", "block_size", "sources"), [(27, 6, 10), (93, 24, 9)])
def test_published_models_end_with_their_published_sources(
    n_layers: int, block_size: int, sources: int
) -> None:
    # Kimi Linear 48B: 9 blocks and the embedding. Kimi K3: 8 blocks, the last short.
    assert block_plan(2 * n_layers, block_size).n_sources(2 * n_layers) == sources
