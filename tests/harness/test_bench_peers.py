"""What `isoloss bench` times ours against: same computation, equal loop, never required."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from harness.bench import run as bench_module
from harness.bench.memory import memory_of
from harness.bench.naive import NaiveFull
from harness.bench.peers import PEERS, AttnResFull, FlaNaive, HyperConnected, Peer
from harness.bench.plan import BASELINE, BenchPlan, choose_recipes, parse_recipe, parse_shape
from harness.bench.rows import BenchRow
from harness.bench.run import Bench
from harness.bench.show import bench_tables
from harness.bench.steps import forward_backward, recipe_part

CPU = torch.device("cpu")
SHAPE = parse_shape("2x16x64", 32)


def grown_bytes(part: nn.Module, n_layers: int) -> int:
    shape = parse_shape(f"{n_layers}x16x64", 32)
    memory = memory_of(forward_backward(part, shape, "fp32", CPU, shape.sequences), CPU)
    return memory.peak - memory.base


def test_memory_of_the_naive_read_grows_with_the_square_of_depth_and_ours_does_not() -> None:
    depths = (4, 8, 16)
    naive = [grown_bytes(NaiveFull(2 * n, 16), n) for n in depths]
    shapes = [parse_shape(f"{n}x16x64", 32) for n in depths]
    ours = [grown_bytes(recipe_part(parse_recipe("full"), s, "auto"), s.n_layers) for s in shapes]
    assert (naive[2] - naive[1]) / (naive[1] - naive[0]) > 3
    assert naive[2] > 4 * ours[2]


@pytest.mark.parametrize("peer", [NaiveFull, FlaNaive])
def test_a_peer_computes_what_its_counterpart_computes(peer: type[nn.Module]) -> None:
    if peer is FlaNaive:
        pytest.importorskip("einops")
        if reason := PEERS[2].missing():
            pytest.skip(reason)
    ours = recipe_part(parse_recipe("full"), SHAPE, "torch").double()
    theirs = peer(SHAPE.n_sublayers, SHAPE.d_model).double()
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(ours.residual.queries.shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        ours.residual.queries.copy_(queries)
        for own, query in zip(list(theirs.queries)[1:], queries, strict=True):
            own.copy_(query)
    x = torch.randn(2, 5, SHAPE.d_model, generator=generator, dtype=torch.float64)
    # fla-core computes in fp32 whatever it is given.
    tolerance = 1e-5 if peer is FlaNaive else 1e-10
    assert torch.allclose(ours(x), theirs(x), rtol=tolerance, atol=tolerance)


def test_attn_res_sums_its_sources_at_the_end() -> None:
    pytest.importorskip("attn_res")
    ours = recipe_part(parse_recipe("full"), SHAPE, "torch")
    theirs = AttnResFull(SHAPE.n_sublayers, SHAPE.d_model)
    x = torch.randn(2, 5, SHAPE.d_model)
    n_sources = SHAPE.n_sublayers + 1
    assert torch.allclose(theirs(x), n_sources * ours(x), rtol=1e-5, atol=1e-6)


def residual_rows(monkeypatch: pytest.MonkeyPatch, peers: tuple[Peer, ...]) -> list[BenchRow]:
    monkeypatch.setattr(bench_module, "PEERS", peers)
    plan = BenchPlan(choose_recipes(["full"], []), (SHAPE,), ("residual",), repeats=2)
    bench = Bench(plan, CPU, lambda line: None)
    return list(bench.timed("residual", [bench.residual(SHAPE)]))[-1]


def test_memory_is_told_before_the_first_round() -> None:
    plan = BenchPlan(choose_recipes(["full"], []), (SHAPE,), ("step",), repeats=1)
    bench = Bench(plan, CPU, lambda line: None)
    before, after = bench.timed("step", [bench.steps(SHAPE)])
    assert [row.rounds for row in before] == [0, 0]
    assert [row.rounds for row in after] == [1, 1]
    assert all(row.peak_bytes and row.seconds is None for row in before)
    assert [row.peak_bytes for row in before] == [row.peak_bytes for row in after]


def test_a_peer_that_is_not_installed_is_listed_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Peer("absent", "full", "made up", "isoloss-no-such-distribution", NaiveFull)
    rows = residual_rows(monkeypatch, (absent,))
    assert [row.subject for row in rows] == [BASELINE, "full", "absent"]
    assert rows[-1].note == "not installed: pip install isoloss-no-such-distribution"
    assert rows[-1].seconds is None
    assert rows[1].rounds == 2


def test_a_peer_with_another_interface_is_listed_as_such() -> None:
    def make(n_sublayers: int, d_model: int) -> nn.Module:
        raise AttributeError("no such operator")

    peer = Peer("changed", "full", "made up", "torch", make)
    assert peer.missing() == "cannot be used: no such operator"


def test_a_peer_that_would_not_fit_the_memory_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_module, "available_bytes", lambda device: 100_000)
    rows = residual_rows(monkeypatch, (PEERS[0],))
    assert "would need" in rows[-1].note
    assert "100kB are free" in rows[-1].note
    assert rows[-1].seconds is None


def test_under_autocast_ours_get_fp32_and_peers_bf16() -> None:
    seen: list[torch.dtype] = []
    for part in (recipe_part(parse_recipe("full"), SHAPE, "torch"), NaiveFull(4, 16)):
        part.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].dtype))
        forward_backward(part, SHAPE, "bf16", CPU, 1)()
        seen.append(next(part.parameters()).dtype)
    assert seen == [torch.float32, torch.float32, torch.bfloat16, torch.bfloat16]


def test_hyper_connections_compute_what_ours_compute() -> None:
    pytest.importorskip("hyper_connections")
    ours = recipe_part(parse_recipe("hyper_connections"), SHAPE, "torch")
    theirs = HyperConnected("HyperConnections", SHAPE.n_sublayers, SHAPE.d_model)
    own = ours.residual
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        for t, their in enumerate(theirs.connections):
            their.static_alpha.copy_(own.static[t, :, :-1])
            their.static_beta.copy_(own.static[t, :, -1])
            their.dynamic_alpha_fn.copy_(own.projections[t, :-1].t())
            their.dynamic_beta_fn.copy_(own.projections[t, -1])
            their.dynamic_alpha_scale.copy_(own.scales[t, 0])
            their.dynamic_beta_scale.copy_(own.scales[t, 1])
            their.norm.gamma.copy_(own.gains[t] - 1)  # stored as what is added to one
    x = torch.randn(2, 5, SHAPE.d_model, generator=generator)
    assert torch.allclose(ours(x), theirs(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["HyperConnections", "ManifoldConstrainedHyperConnections"])
def test_hyper_connections_take_every_parameter_forward_and_back(kind: str) -> None:
    pytest.importorskip("hyper_connections")
    part = HyperConnected(kind, SHAPE.n_sublayers, SHAPE.d_model)
    forward_backward(part, SHAPE, "fp32", CPU, 1)()
    assert all(parameter.grad is not None for parameter in part.parameters())


@pytest.mark.parametrize(("quartiles", "warned"), [((1.00, 1.04), False), ((0.7, 2.8), True)])
def test_rounds_that_disagree_are_pointed_out(quartiles: tuple[float, float], warned: bool) -> None:
    row = BenchRow("step", "full", "recipe", "", 2, 4, 32, 512, 128, ratio=1.02)
    row = replace(row, ratio_low=quartiles[0], ratio_high=quartiles[1])
    notes = [text for text in bench_tables([row]) if str(text).startswith("note: ")]
    assert bool(notes) == warned
    assert all("full at 2x32x512" in str(note) for note in notes)
