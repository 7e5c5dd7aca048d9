"""What diagnostics say of a model, against autograd, finite differences and naive recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.config import Execution
from harness.diagnostics import Gradients, measure, mixing_health
from harness.model import Transformer
from harness.module import token_loss
from harness.paths import SweepPaths
from harness.records import read_jsonl
from recipes.base import Options, Residual, Shape, available
from tests.conftest import make_config, plan_run, run_folder
from tests.harness.test_training import train_once

VOCAB = 13


def build(recipe: str, options: dict[str, Any] | None = None, **model: int) -> Transformer:
    """A model in fp64 whose recipe has left its initial values."""
    shape = {"n_layers": 3, "d_model": 8, "head_dim": 4, **model}
    config = make_config(recipe, options, model=shape)
    built = Transformer(config.model, config.residual, VOCAB, seed=0).double()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in built.residual.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(0.3 * noise)
    return built


def tokens(sequences: int = 2, length: int = 5) -> Tensor:
    return torch.randint(VOCAB, (sequences, length), generator=torch.Generator().manual_seed(0))


def rms(x: Tensor) -> float:
    return float(x.detach().square().mean().sqrt())


def test_norms_are_those_that_hooks_see() -> None:
    model, seen = build("standard"), []

    def look(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
        seen.append((args[0], output))

    handles = [part.register_forward_hook(look) for part in model.sublayers]
    embedded = model.embedding(tokens()[:, :-1])
    model(tokens()[:, :-1])
    for handle in handles:
        handle.remove()
    found = measure(model, tokens())
    assert found["input_rms"] == pytest.approx([rms(u) for u, _ in seen])
    assert found["output_rms"] == pytest.approx([rms(y) for _, y in seen])
    sums = [embedded + sum(y for _, y in seen[: t + 1]) for t in range(6)]
    assert found["state_rms"] == pytest.approx([rms(total) for total in sums])
    assert found["reads"] == found["mixing"] == []


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("standard", {}), ("full", {}), ("block", {"block_size": 4}), ("block", {"block_size": 3})],
)
def test_gradient_by_layer_agrees_with_finite_differences(
    recipe: str, options: dict[str, Any]
) -> None:
    """An output enters the state as it is, so that pushing it is pushing the state."""
    model, ids, step = build(recipe, options, n_layers=2), tokens(1, 3), 1e-5

    def pushed(sublayer: nn.Module, index: int, by: float) -> float:
        def push(module: nn.Module, args: tuple[Tensor], output: Tensor) -> Tensor:
            moved = output.clone()
            moved.view(-1)[index] += by
            return moved

        handle = sublayer.register_forward_hook(push)
        with torch.no_grad():
            loss = token_loss(model, ids).item()
        handle.remove()
        return loss

    found = measure(model, ids)
    for layer, value in enumerate(found["layer_grad_rms"]):
        sublayer = model.sublayers[2 * layer + 1]
        slopes = [
            (pushed(sublayer, i, step) - pushed(sublayer, i, -step)) / (2 * step) for i in range(16)
        ]
        assert value == pytest.approx(rms(torch.tensor(slopes)), rel=1e-4)


def test_the_state_has_a_gradient_where_the_output_has_none() -> None:
    config = make_config("rezero", {}, model={"n_layers": 3})
    model = Transformer(config.model, config.residual, VOCAB, seed=0).double()
    found = measure(model, tokens())
    assert found["grad_rms"] == [0.0] * 6
    assert all(value > 0 for value in found["layer_grad_rms"])


@pytest.mark.parametrize(
    ("recipe", "options"),
    [("full", {}), ("block", {"block_size": 2}), ("delta", {}), ("multi_stream", {})],
)
def test_kernels_agree_on_every_gradient(recipe: str, options: dict[str, Any]) -> None:
    model, found = build(recipe, options), []
    for kernel in ("torch", "cached"):
        model.residual.use_kernel(kernel)
        row = measure(model, tokens())
        health = [read["query_grad_norm"] or 0.0 for read in row["reads"]]
        found.append(row["layer_grad_rms"] + row["grad_rms"] + row["param_grad_l2"] + health)
    assert found[0] == pytest.approx(found[1], rel=1e-6)


def test_parameter_and_query_gradients_are_those_of_backward() -> None:
    model = build("full")
    found = measure(model, tokens())
    assert all(parameter.grad is None for parameter in model.parameters())
    token_loss(model, tokens()).backward()
    for part, value in zip(model.sublayers, found["param_grad_l2"], strict=True):
        joined = torch.cat([p.grad.flatten() for p in part.parameters()])
        assert value == pytest.approx(joined.norm().item(), rel=1e-6)
    queries = model.residual.queries
    assert (found["reads"][0]["query_norm"], found["reads"][0]["query_grad_norm"]) == (None, None)
    for row, read in enumerate(found["reads"][1:]):
        assert read["query_norm"] == pytest.approx(queries[row].norm().item(), rel=1e-6)
        assert read["query_grad_norm"] == pytest.approx(queries.grad[row].norm().item(), rel=1e-6)


def test_bare_logits_are_queries_by_source() -> None:
    model = build("full", {"query": "none"})
    reads = measure(model, tokens())["reads"]
    queries, start = model.residual.queries, 0
    for read in reads[1:]:
        rows = queries[start : start + len(read["labels"])]
        assert read["query_norm"] == pytest.approx(rows.norm().item(), rel=1e-6)
        start += len(read["labels"])
    assert start == len(queries)


def test_frozen_queries_have_a_norm_and_no_gradient() -> None:
    read = measure(build("block", {"frozen_queries": True}), tokens())["reads"][1]
    assert read["query_norm"] > 0
    assert read["query_grad_norm"] is None


def naive_full_loss(model: Transformer, ids: Tensor, hidden: int | None) -> float:
    """Full attention residuals from the equations, without source ``hidden`` (0: the embedding)."""
    residual = model.residual
    sources = [model.embedding(ids[:, :-1])]

    def read(t: int) -> Tensor:
        if t == 0:
            return sources[0]
        query = residual.queries[t - 1] * residual.gains[t - 1]
        kept = [v for i, v in enumerate(sources) if i != hidden]
        keys = [v / (v.square().mean(-1, keepdim=True) + 1e-8).sqrt() for v in kept]
        powers = [(key * query).sum(-1, keepdim=True).exp() for key in keys]
        return sum(p * v for p, v in zip(powers, kept, strict=True)) / sum(powers)

    with torch.no_grad():
        for t, sublayer in enumerate(model.sublayers):
            sources.append(sublayer(read(t)))
        logits = model.head(model.final_norm(read(len(model.sublayers))))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).item()


def test_masking_a_source_changes_the_loss_as_the_equations_say() -> None:
    model, ids = build("full"), tokens()
    found = measure(model, ids, causal=True)
    plain = naive_full_loss(model, ids, None)
    assert found["batch_loss_nats"] == pytest.approx(plain, abs=1e-12)
    assert [one["source"] for one in found["masking"]] == [
        "embedding",
        *(f"t{t}" for t in range(6)),
    ]
    for source, one in enumerate(found["masking"]):
        expected = naive_full_loss(model, ids, source) - plain
        assert one["loss_change_nats"] == pytest.approx(expected, abs=1e-12)
        assert abs(expected) > 1e-6


def with_masking() -> list[str]:
    """Recipes that can hide a source."""
    return [name for name, cls in available().items() if cls.masking is not Residual.masking]


@pytest.mark.parametrize("recipe", with_masking())
def test_resuming_at_the_first_read_of_a_source_is_a_whole_masked_pass(recipe: str) -> None:
    model, ids = build(recipe), tokens()
    found = measure(model, ids, causal=True)
    assert found["masking"]
    for one in found["masking"]:
        with torch.no_grad(), model.residual.masking(one["source"]):
            loss = token_loss(model, ids).item()
        expected = loss - found["batch_loss_nats"]
        assert one["loss_change_nats"] == pytest.approx(expected, abs=1e-12)


def test_the_two_phase_kernel_hides_the_same_sources() -> None:
    model, ids = build("block", {"block_size": 2}), tokens()
    changes = []
    for kernel in ("torch", "two_phase"):
        model.residual.use_kernel(kernel)
        masking = measure(model, ids, causal=True)["masking"]
        changes.append([one["loss_change_nats"] for one in masking])
    assert changes[0] == pytest.approx(changes[1], abs=1e-12)


def test_the_price_counts_passes_from_the_first_read_of_each_source() -> None:
    found = measure(build("full"), tokens(), causal=True)
    # Embedding and t0 from read 1 of 6, t1 from read 2, ... t5 from the final read, which is free.
    shares = [5 / 6, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0]
    assert found["cost"]["forward_passes"] == pytest.approx(1 + sum(shares))
    assert (found["cost"]["backward_passes"], found["cost"]["sequences"]) == (1, 2)
    assert measure(build("full"), tokens())["cost"]["forward_passes"] == 1.0


def test_recipes_without_sources_are_not_masked() -> None:
    assert measure(build("standard"), tokens(), causal=True)["masking"] == []
    assert measure(build("standard"), tokens())["masking"] is None


def test_sources_are_compared_where_the_read_mixes_them() -> None:
    model, ids = build("block", {"block_size": 2}), tokens()
    reads = measure(model, ids)["reads"]
    state, banked = model.residual.start(model.embedding(ids[:, :-1])), []
    for t, sublayer in enumerate(model.sublayers):
        banked.append(model.residual.depth_values(state, t))
        weights = model.residual.depth_weights(state, t)
        parts = [
            (a[..., None] * v).square().mean(-1).sqrt().mean()
            for a, v in zip(weights, banked[-1], strict=True)
        ]
        assert reads[t]["contributions"] == pytest.approx([p.item() for p in parts], rel=1e-5)
        u, state = model.residual.read(state, t)
        state = model.residual.write(state, sublayer(u), t)
    pair = banked[3][:2]
    cosine = nn.functional.cosine_similarity(*pair, dim=-1).mean().item()
    assert len(reads[2]["labels"]) == 2
    assert reads[2]["adjacent_cosine"] == pytest.approx(cosine, rel=1e-5)


class TwoStreams(Residual):
    """Two streams, mixed by a softmax over learned logits, row by row; one row per sublayer."""

    def __init__(self, scale: float) -> None:
        super().__init__(Shape(n_layers=1, d_model=4), Options())
        self.fused = nn.Parameter(torch.zeros(2, 2, 3, dtype=torch.float64))
        with torch.no_grad():
            self.fused[..., 0] = torch.tensor([scale, -scale], dtype=torch.float64)
            self.fused[..., 2] = 1.0

    def mix(self, state: Tensor, t: int) -> Tensor:
        matrix = self.fused[t, :, :2].softmax(-1)
        return matrix.expand(*state.shape[:2], 2, 2)

    def stream_mixing(self, state: Tensor, t: int) -> Tensor:
        return self.mix(state, t)


@pytest.mark.parametrize(("scale", "alive"), [(0.5, True), (4000.0, False)])
def test_a_mixing_that_cannot_train_is_told_from_one_that_does(scale: float, alive: bool) -> None:
    residual = TwoStreams(scale)
    streams = torch.randn(1, 3, 2, 4, dtype=torch.float64)
    mixed = residual.mix(streams, 0) @ streams * residual.fused[0, :, 2:].sum()
    gradients = Gradients(mixed.square().sum(), [residual.fused])
    found = mixing_health(residual, [streams, streams, streams], gradients)
    assert [one["t"] for one in found] == [0, 1]
    logits = gradients(residual.fused)[0, :, :2]
    assert found[0]["grad_norm"] == pytest.approx(logits.norm().item(), rel=1e-6)
    assert (found[0]["grad_norm"] > 0) == alive
    assert found[1]["grad_norm"] == 0.0
    assert found[0]["off_diagonal_mass"] == pytest.approx(
        residual.mix(streams, 0)[0, 0].fliplr().diagonal().mean().item()
    )


def test_streams_of_a_recipe_are_watched_at_every_sublayer() -> None:
    found = measure(build("mhc"), tokens())
    assert [one["t"] for one in found["mixing"]] == list(range(6))
    assert all(one["row_sum_error"] < 1e-2 for one in found["mixing"])


@contextmanager
def forward_count(model: Transformer) -> Iterator[list[int]]:
    calls = [0]

    def count(*_: object) -> None:
        calls[0] += 1

    handle = model.head.register_forward_hook(count)
    yield calls
    handle.remove()


def test_diagnostics_without_the_causal_check_take_one_forward_pass() -> None:
    model = build("full")
    with forward_count(model) as calls:
        measure(model, tokens())
    assert calls == [1]


def test_only_the_last_diagnostics_of_a_run_ask_for_causes(sweep: SweepPaths) -> None:
    run = plan_run("block", {"block_size": 2})
    paths = run_folder(sweep, run)
    train_once(run, paths, Execution(n_evals=1, n_diagnostics=2))
    first, last = read_jsonl(paths.diagnostics)
    assert first["masking"] is None
    assert [one["source"] for one in last["masking"]][:2] == ["embedding", "partial"]
    assert len(last["layer_grad_rms"]) == 2
