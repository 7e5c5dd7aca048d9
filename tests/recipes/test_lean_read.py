"""The memory-lean read: gradients by notes on the graph, in every way a graph can be walked."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recipes.base import RecipeError, Shape, get, parse_options
from recipes.depth_attention import CACHED, DepthOps, Keys
from recipes.lean_read import LEAN
from tests.recipes.contract import gradients, random_model
from tests.recipes.toy import tokens

SHAPE = Shape(n_layers=4, d_model=12)
KEYS = {
    "full width": Keys(heads=1, width=12),
    "slice": Keys(heads=1, width=4),
    "slice, whole norm": Keys(heads=1, width=4, whole_norm=True),
    "heads": Keys(heads=3, width=4),
    "heads, whole norm": Keys(heads=3, width=4, whole_norm=True),
    "raw": Keys(heads=1, width=12, normalised=False),
    "raw heads": Keys(heads=3, width=4, normalised=False),
}
M = 5


def inputs(keys: Keys, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Embedding, queries, and one matrix per sublayer."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, 12), (M, keys.heads, keys.width), *([(12, 12)] * M)]
    drawn = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    return [x.requires_grad_() for x in drawn]


def stack_of(ops: DepthOps, keys: Keys, given: list[Tensor]) -> list[Tensor]:
    """Run M sublayers over reads of everything before; return what each saw."""
    value, queries, *matrices = given
    bank: list[tuple[Tensor, tuple[Tensor, ...], int]] = []
    seen = []
    for t, matrix in enumerate(matrices):
        bank.append((*ops.enter(value, queries[t:], keys), t))
        weights = torch.stack([scores[t - first] for _, scores, first in bank]).softmax(0)
        seen.append(ops.mix(weights, [source for source, _, _ in bank]))
        value = torch.tanh(seen[-1].to(matrix.dtype) @ matrix)
    return seen


@pytest.mark.parametrize("name", KEYS)
def test_gradients_equal_those_of_plain_operations(name: str) -> None:
    given = inputs(KEYS[name])
    found = torch.autograd.grad(stack_of(LEAN, KEYS[name], given)[-1].square().sum(), given[:-1])
    plain = torch.autograd.grad(stack_of(CACHED, KEYS[name], given)[-1].square().sum(), given[:-1])
    torch.testing.assert_close(found, plain, rtol=1e-11, atol=1e-11)


def test_gradients_equal_finite_differences() -> None:
    keys = KEYS["heads, whole norm"]

    def last(*given: Tensor) -> Tensor:
        return stack_of(LEAN, keys, list(given))[-1]

    assert torch.autograd.gradcheck(last, inputs(keys))


def test_sources_may_lie_in_memory_in_any_order() -> None:
    keys = KEYS["slice"]
    given = inputs(keys)
    turned = [given[0].detach().mT.contiguous().mT.requires_grad_(), *given[1:]]
    assert not turned[0].is_contiguous()
    found, expected = (
        torch.autograd.grad(stack_of(LEAN, keys, leaves)[-1].square().sum(), leaves[:2])
        for leaves in (turned, given)
    )
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_a_graph_walked_twice_gives_the_same_gradient_twice() -> None:
    given = inputs(KEYS["slice"])
    loss = stack_of(LEAN, KEYS["slice"], given)[-1].square().sum()
    first = torch.autograd.grad(loss, given[:2], retain_graph=True)
    again = torch.autograd.grad(loss, given[:2])
    torch.testing.assert_close(first, again, rtol=0, atol=0)


def test_notes_of_an_unfinished_walk_are_not_counted_again() -> None:
    keys = KEYS["full width"]
    given = inputs(keys)
    seen = stack_of(LEAN, keys, given)
    # This walk stops before the embedding's node and leaves notes of the last read on it.
    torch.autograd.grad(seen[-1].square().sum(), seen[-2], retain_graph=True)
    found = torch.autograd.grad(seen[2].square().sum(), given[0])
    fresh = inputs(keys)
    expected = torch.autograd.grad(stack_of(CACHED, keys, fresh)[2].square().sum(), fresh[0])
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_gradients_accumulate_over_batches() -> None:
    model = random_model(get("full"), get("full").Options(), SHAPE)
    expected = {name: 2 * grad for name, grad in gradients(model, tokens()).items()}
    model(tokens()[:, :-1])  # a forward pass without a backward leaves nothing behind
    gradients(model, tokens())
    loss = nn.functional.cross_entropy(
        model(tokens()[:, :-1]).flatten(0, 1), tokens()[:, 1:].flatten()
    )
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_recomputed_sublayers_give_the_same_gradient_without_doubling_sources() -> None:
    model = random_model(get("full"), get("full").Options(), SHAPE)
    plain = gradients(model, tokens())
    forward = [sublayer.forward for sublayer in model.sublayers]
    for sublayer, original in zip(model.sublayers, forward, strict=True):
        sublayer.forward = lambda u, f=original: checkpoint(f, u, use_reentrant=True)
    torch.testing.assert_close(gradients(model, tokens()), plain, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_stays_near_fp64(dtype: torch.dtype) -> None:
    keys = KEYS["full width"]
    given = inputs(keys, dtype)
    wide = [x.detach().double().requires_grad_() for x in given]
    found = torch.autograd.grad(stack_of(LEAN, keys, given)[-1].square().sum(), given[:2])
    exact = torch.autograd.grad(stack_of(CACHED, keys, wide)[-1].square().sum(), wide[:2])
    # Sums are fp32; bf16 rounds outputs and matrix products of five sublayers, 2^-8 each.
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == dtype
        error = (ours.double() - theirs).norm() / theirs.norm()
        assert error < tolerance


def saved_elements(ops: DepthOps, depth: int) -> int:
    """Elements of distinct tensors that autograd keeps for reads over ``depth`` sources."""
    kept: dict[int, int] = {}

    def pack(x: Tensor) -> Tensor:
        kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1, 16, 256, generator=generator, requires_grad=True)
    queries = torch.randn(depth, 1, 256, generator=generator, requires_grad=True)
    alive: list[Any] = []
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        bank: list[tuple[Tensor, tuple[Tensor, ...], int]] = []
        for t in range(depth):
            bank.append((*ops.enter(value, queries[t:], Keys(heads=1, width=256)), t))
            weights = torch.stack([scores[t - first] for _, scores, first in bank]).softmax(0)
            value = ops.mix(weights, [source for source, _, _ in bank])
            alive.append((value, weights))
    return sum(kept.values())


def test_what_autograd_keeps_grows_with_depth_and_not_with_its_square() -> None:
    source = 16 * 256
    kept = {depth: saved_elements(LEAN, depth) / source for depth in (16, 32, 64)}
    # One vector per source; the logits, weights and queries of M readers are M^2 / D of a vector.
    growth = (kept[64] - kept[32]) / (kept[32] - kept[16])
    assert kept[64] < 1.6 * 64
    assert growth < 2.5


def test_one_graph_serves_all_reads_under_compile() -> None:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    model = random_model(get("full"), get("full").Options(), SHAPE)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    for seed in range(3):
        compiled(tokens(seed=seed))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("name", "options", "kernel", "words"),
    [
        ("full", {}, "two_phase", "blocks of two sublayers"),
        ("block", {"query": "input_dependent"}, "two_phase", "static queries"),
        ("block", {"window": 2}, "two_phase", "see every source"),
        ("delta", {}, "two_phase", "replace the stream"),
        ("multi_stream", {}, "fla", "block and full"),
        ("full", {"heads": 2}, "fla", "one head"),
        ("full", {}, "cuda", "must be one of"),
    ],
)
def test_a_kernel_that_cannot_compute_a_recipe_says_why(
    name: str, options: dict[str, Any], kernel: str, words: str
) -> None:
    residual = get(name)(SHAPE, parse_options(name, options, SHAPE))
    with pytest.raises(RecipeError, match=words):
        residual.use_kernel(kernel)


@pytest.mark.parametrize("options", [{}, {"query": "none"}, {"query": "input_dependent"}], ids=str)
def test_a_second_derivative_is_refused_and_not_wrong(options: dict[str, Any]) -> None:
    model = random_model(get("full"), parse_options("full", options, SHAPE), SHAPE)
    loss = nn.functional.cross_entropy(
        model(tokens()[:, :-1]).flatten(0, 1), tokens()[:, 1:].flatten()
    )
    with pytest.raises(RuntimeError, match="use kernel 'cached'"):
        torch.autograd.grad(loss, list(model.sublayers.parameters()), create_graph=True)


@pytest.mark.parametrize("keep", [False, True])
def test_a_walk_that_stops_short_leaves_nothing_behind(keep: bool) -> None:
    keys = KEYS["full width"]
    given = inputs(keys)
    seen = stack_of(LEAN, keys, given)
    alive = [weakref.ref(u) for u in seen]
    torch.autograd.grad(seen[-1].square().sum(), seen[-2], retain_graph=keep)
    del seen
    gc.collect()
    assert not any(ref() is not None for ref in alive)


def test_an_embedding_that_does_not_train_leaves_the_other_gradients_alone() -> None:
    keys = KEYS["heads"]
    given = inputs(keys)
    trained = torch.autograd.grad(stack_of(LEAN, keys, given)[-1].square().sum(), given[1:-1])
    given[0].requires_grad_(False)
    frozen = torch.autograd.grad(stack_of(LEAN, keys, given)[-1].square().sum(), given[1:-1])
    torch.testing.assert_close(frozen, trained, rtol=0, atol=0)
