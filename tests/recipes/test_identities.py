"""Identities between recipes, in float64: the ways in which published code has gone wrong."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.attention_residual import AttentionResidual
from recipes.base import Shape, get, parse_options
from recipes.depth_attention import CACHED, COUNTABLE, EPS, Keys
from recipes.depth_schedule import block_ends
from recipes.lean_read import LEAN
from tests.recipes.contract import gradients, model_of, stream_parts, walk
from tests.recipes.toy import ToyModel, make, randomise, tokens

SHAPES = [Shape(n_layers=3, d_model=12), Shape(n_layers=5, d_model=16)]


def model(name: str, shape: Shape, **options: Any) -> ToyModel:
    return model_of(get(name), parse_options(name, options, shape), shape).double()


def pair(shape: Shape, one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]]) -> Any:
    """Two models with the same random parameters, those of the recipes included."""
    first, second = model(one[0], shape, **one[1]), model(other[0], shape, **other[1])
    randomise(first.residual)
    second.residual.load_state_dict(first.residual.state_dict(), strict=True)
    return first, second


def assert_same(first: ToyModel, second: ToyModel) -> None:
    torch.testing.assert_close(first(tokens()), second(tokens()), rtol=1e-11, atol=1e-11)
    ours, theirs = gradients(first, tokens()), gradients(second, tokens())
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


ZERO_QUERY = [
    ("full", {}),
    ("block", {}),
    ("block", {"block_size": 1}),
    ("block", {"block_size": 5}),
    ("block", {"n_blocks": 4, "tail": "balanced"}),
    ("block", {"n_blocks": 1}),
    ("low_rank", {"key_rank": 2}),
    ("low_rank", {"key_rank": 12, "block_size": 1}),
    ("delta", {}),
    ("delta", {"combine": "replace", "source": "block_sum", "block_size": 2}),
    ("multi_stream", {}),
    ("multi_stream", {"share_taps": False, "convolve": "keys"}),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("name", "options"), ZERO_QUERY, ids=str)
def test_zero_queries_are_the_standard_residual_in_logits_and_gradients(
    name: str, options: dict[str, Any], shape: Shape
) -> None:
    ours, baseline = model(name, shape, **options), model("standard", shape)
    # EPS of the pre-norm is the only difference: it weighs m^2 more behind a mean over m sources.
    torch.testing.assert_close(ours(tokens()), baseline(tokens()), rtol=1e-8, atol=1e-8)
    expected = gradients(baseline, tokens())
    found = gradients(ours, tokens())
    torch.testing.assert_close({n: found[n] for n in expected}, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    "options", [{"source": "block_sum", "block_size": 2}, {"source": "cumulative"}]
)
def test_added_block_sums_and_cumulative_states_are_not_standard(options: dict[str, Any]) -> None:
    shape = SHAPES[1]
    ours, baseline = model("delta", shape, **options), model("standard", shape)
    assert (ours(tokens()) - baseline(tokens())).abs().max() > 0.01


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("full", {}), ("block", {"block_size": 1})),
        (("full", {}), ("delta", {"combine": "replace"})),
        (
            ("block", {"block_size": 4}),
            ("delta", {"combine": "replace", "source": "block_sum", "block_size": 4}),
        ),
        (("block", {"n_blocks": 2}), ("block", {"n_blocks": 2, "tail": "balanced"})),
    ],
    ids=str,
)
def test_recipes_that_are_one_equation_give_one_result(one: Any, other: Any, shape: Shape) -> None:
    assert_same(*pair(shape, one, other))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("options", [{"block_size": 1}, {"block_size": 4}, {"n_blocks": 3}])
def test_low_rank_at_full_rank_is_block(options: dict[str, Any], shape: Shape) -> None:
    block = ("block", {**options, "key_norm": "rms"})
    assert_same(*pair(shape, block, ("low_rank", {**options, "key_rank": shape.d_model})))


def test_one_head_without_convolution_is_block() -> None:
    first, second = model("block", SHAPES[0]), model("multi_stream", SHAPES[0], widths=[1])
    randomise(first.residual)
    with torch.no_grad():
        second.residual.queries.copy_(first.residual.queries[:, None])
        second.residual.gains.copy_(first.residual.gains[:, None])
    torch.testing.assert_close(first(tokens()), second(tokens()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream", "delta"])
def test_reads_of_one_source_own_no_query(name: str) -> None:
    residual = model(name, SHAPES[0]).residual
    assert isinstance(residual, AttentionResidual)
    assert 0 not in residual.plan.readers
    assert len(residual.queries) == len(residual.plan.readers)
    expected = SHAPES[0].n_sublayers - (name == "delta")  # reads 1 .. M; delta has no final one
    assert len(residual.plan.readers) == expected


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream", "delta"])
def test_queries_start_at_zero_and_all_but_dead_ones_receive_gradient(name: str) -> None:
    ours = model(name, SHAPES[1])
    assert not ours.residual.queries.any()
    gradients(ours, tokens())
    assert ours.residual.queries.grad.flatten(1).any(dim=1).all()


def test_query_init_std_is_the_standard_deviation_of_the_queries() -> None:
    residual = model("full", Shape(n_layers=20, d_model=64), query_init_std=0.02).residual
    assert residual.queries.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("full", {}),
        ("full", {"query": "none", "heads": 2}),
        ("full", {"query": "input_dependent"}),
        ("full", {"window": 2, "embedding_source": False}),
        ("block", {}),
        ("delta", {"source": "block_sum", "block_size": 2}),
        ("multi_stream", {}),
    ],
    ids=str,
)
def test_a_read_starts_with_its_newest_source_favoured_by_recency_init(
    name: str, options: dict[str, Any]
) -> None:
    residual = model(name, SHAPES[1], recency_init=1.5, **options).residual
    embedding, outputs = stream_parts(SHAPES[1])
    for t, state in walk(residual, embedding, outputs):
        weights = residual.depth_weights(state, t)
        if weights is not None and len(weights) > 1:
            others = torch.ones_like(weights[1:])
            favoured = torch.full_like(weights[:1], math.exp(1.5))
            expected = torch.cat([others, favoured]) / (len(others) + math.exp(1.5))
            torch.testing.assert_close(weights, expected)


def test_large_recency_over_cumulative_states_is_the_standard_residual() -> None:
    # The start of public code (wdlctc/open-attention-residuals), whose sources are states.
    states = {"source": "cumulative", "combine": "replace", "recency_init": 60.0}
    ours, baseline = model("delta", SHAPES[1], **states), model("standard", SHAPES[1])
    torch.testing.assert_close(ours(tokens()), baseline(tokens()), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream", "delta"])
def test_reads_own_a_recency_logit_only_where_asked(name: str) -> None:
    residual = model(name, SHAPES[1], recency_init=1.5).residual
    logits = residual.get_parameter("recency")
    torch.testing.assert_close(logits, torch.full((len(residual.plan.readers),), 1.5).double())
    plain = {key for key, _ in residual.named_parameters()} - {"recency"}
    assert {key for key, _ in model(name, SHAPES[1]).residual.named_parameters()} == plain


def test_frozen_queries_stay_out_of_training() -> None:
    ours = model("full", SHAPES[0], frozen_queries=True)
    assert not ours.residual.queries.requires_grad
    assert gradients(ours, tokens())["residual.queries"] is None


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream", "delta"])
def test_weights_of_every_read_add_up_to_one(name: str) -> None:
    shape = SHAPES[1]
    residual = model(name, shape).residual
    randomise(residual)
    embedding, outputs = stream_parts(shape)
    for t, state in walk(residual, embedding, outputs):
        weights = residual.depth_weights(state, t)
        if weights is not None:
            torch.testing.assert_close(weights.sum(0), torch.ones_like(embedding[..., 0]))


def running_sum(embedding: Tensor, outputs: list[Tensor], t: int) -> Tensor:
    return torch.stack([embedding, *outputs[:t]]).sum(0)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(
    ("name", "options"),
    [("full", {}), ("block", {}), ("block", {"block_size": 3}), ("low_rank", {}), ("delta", {})],
    ids=str,
)
def test_disjoint_sources_add_up_to_the_running_sum(
    name: str, options: dict[str, Any], shape: Shape
) -> None:
    residual = model(name, shape, **options).residual
    embedding, outputs = stream_parts(shape)
    for t, state in walk(residual, embedding, outputs):
        if residual.plan.reads_at(t):
            total = torch.stack([s.value for s in residual.sources(state, t)]).sum(0)
            torch.testing.assert_close(total, running_sum(embedding, outputs, t))


@pytest.mark.parametrize("n_layers", [4, 5])
def test_source_k_of_added_blocks_is_a_difference_of_the_stream(n_layers: int) -> None:
    shape = Shape(n_layers=n_layers, d_model=12)
    residual = model("delta", shape, source="block_sum", block_size=4).residual
    embedding, outputs = stream_parts(shape)
    bank = list(walk(residual, embedding, outputs))[-1][1].bank
    ends = [e for e in residual.plan.ends if e < shape.n_sublayers]
    assert len(bank) == 1 + len(ends)
    for source, start, end in zip(bank[1:], [0, *ends], ends, strict=False):
        change = running_sum(embedding, outputs, end) - running_sum(embedding, outputs, start)
        torch.testing.assert_close(source.value, change)


def test_a_completed_delta_block_is_first_seen_by_the_next_mlp() -> None:
    residual = model(
        "delta", Shape(n_layers=4, d_model=12), source="block_sum", block_size=4
    ).residual
    assert [residual.plan.n_sources(t) for t in range(9)] == [0, 1, 1, 1, 1, 2, 2, 2, 0]


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream", "delta"])
def test_the_embedding_is_a_source_once(name: str) -> None:
    residual = model(name, SHAPES[0]).residual
    embedding, outputs = stream_parts(SHAPES[0])
    for t, state in walk(residual, embedding, outputs):
        if residual.plan.reads_at(t):
            values = [source.value for source in residual.sources(state, t)]
            assert sum(torch.equal(value, embedding) for value in values) == 1


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream"])
def test_the_head_sees_a_read_of_all_sources_and_not_the_last_one(name: str) -> None:
    residual = model(name, SHAPES[1]).residual
    embedding, outputs = stream_parts(SHAPES[1])
    state = list(walk(residual, embedding, outputs))[-1][1]
    final = residual.finish(state)
    expected = running_sum(embedding, outputs, len(outputs)) / len(state.bank)
    torch.testing.assert_close(final, expected)
    assert (final - residual.stream(state)).abs().max() > 0.1


def test_source_labels_name_sublayers_blocks_and_the_partial() -> None:
    full, block = model("full", SHAPES[0]).residual, model("block", SHAPES[0]).residual
    assert full.source_labels(3) == ["embedding", "t0", "t1", "t2"]
    assert [block.source_labels(t) for t in (0, 1, 4, 5, 6)] == [
        ["embedding"],
        ["embedding", "partial"],
        ["embedding", "block 1"],
        ["embedding", "block 1", "partial"],
        ["embedding", "block 1", "block 2"],
    ]


@pytest.mark.parametrize("rank", [3, 12])
def test_every_formulation_of_the_read_is_the_paper_pseudocode(rank: int) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(2, 5, 12, generator=generator, dtype=torch.float64) for _ in range(4)]
    query = torch.randn(rank, generator=generator, dtype=torch.float64)
    stacked = torch.stack(values)
    keys = torch.nn.functional.rms_norm(stacked[..., 12 - rank :], (rank,), eps=EPS)
    weights = torch.einsum("d,nbtd->nbt", query, keys).softmax(0)
    expected = torch.einsum("nbt,nbtd->btd", weights, stacked)
    for ops in (CACHED, COUNTABLE, LEAN):
        scores = [ops.enter(v, query[None, None], Keys(heads=1, width=rank))[1][0] for v in values]
        found = torch.stack(scores).softmax(0)
        torch.testing.assert_close(found[..., 0], weights)
        torch.testing.assert_close(ops.mix(found, values), expected)


@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        ((10, 4, None, "short"), (4, 8, 10)),
        ((10, 4, None, "balanced"), (4, 7, 10)),
        ((10, None, 4, "balanced"), (3, 5, 8, 10)),
        ((10, None, 4, "short"), (3, 6, 9, 10)),
        ((12, None, None, "short"), (4, 8, 12)),
        ((10, 4, None, "short", 2), (4, 8, 10)),
        ((10, None, 2, "balanced", 2), (6, 10)),
        ((6, 6, None, "short"), (6,)),
    ],
    ids=str,
)
def test_block_ends_follow_the_declared_convention(arguments: Any, ends: tuple[int, ...]) -> None:
    assert block_ends(*arguments) == ends


def test_published_configurations_have_their_published_blocks() -> None:
    # Kimi K3: 93 layers, 12 per block, 8 blocks, the last short. Kimi Linear: 27 layers, S = 6.
    assert len(block_ends(186, 24, None, "short")) == 8
    assert 186 - block_ends(186, 24, None, "short")[-2] == 18
    assert len(block_ends(54, 6, None, "short")) == 9


def test_parameters_of_full_follow_the_published_count() -> None:
    # One query and one gain per read of two sources or more: M reads of width d, twice.
    shape = Shape(n_layers=36, d_model=4096)
    delta = get("delta").cost(shape, get("delta").Options())
    # arXiv 2605.18855 states 589 824 at this shape, the dead first read's 2 d included.
    assert delta.params == 589_824 - 2 * 4096


@pytest.mark.parametrize("name", ["full", "block", "low_rank"])
def test_elements_moved_are_every_source_read_and_every_sum_written(name: str) -> None:
    residual = model(name, SHAPES[1]).residual
    m, d = SHAPES[1].n_sublayers, SHAPES[1].d_model
    n_sources = [len(residual.source_labels(t)) for t in range(m + 1)]
    reads = sum(n + 1 for n in n_sources if n > 1)
    # A sublayer that found a partial adds to it: partial and output read, their sum written.
    sums = sum("partial" in residual.source_labels(t) for t in range(m))
    cost = type(residual).cost(SHAPES[1], residual.options)
    assert cost.elements_moved_per_token == d * (reads + 3 * sums)


def test_standard_moves_three_vectors_per_sublayer() -> None:
    # arXiv 2603.15031, table 1: read 2 d, write d.
    cost = get("standard").cost(SHAPES[0], get("standard").Options())
    assert cost.elements_moved_per_token == 3 * SHAPES[0].d_model * SHAPES[0].n_sublayers


def test_state_and_schedule_are_plain_values() -> None:
    plan = model("block", SHAPES[0]).residual.plan
    assert plan == dataclasses.replace(plan)
    assert make(get("full"), get("full").Options(), SHAPES[0]).plan.readers == (1, 2, 3, 4, 5, 6)
