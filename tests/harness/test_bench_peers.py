"""What `isoloss bench` times ours against: same computation, equal loop, never required."""

from __future__ import annotations

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
    absent = Peer("absent", "full", "isoloss-no-such-distribution", NaiveFull)
    rows = residual_rows(monkeypatch, (absent,))
    assert [row.subject for row in rows] == [BASELINE, "full", "absent"]
    assert rows[-1].note == "not installed: pip install isoloss-no-such-distribution"
    assert rows[-1].seconds is None
    assert rows[1].rounds == 2


def test_a_peer_with_another_interface_is_listed_as_such() -> None:
    def make(n_sublayers: int, d_model: int) -> nn.Module:
        raise AttributeError("no such operator")

    peer = Peer("changed", "full", "torch", make)
    assert peer.missing() == "cannot be used: no such operator"


def test_a_peer_that_would_not_fit_the_memory_is_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench_module, "available_bytes", lambda device: 100_000)
    rows = residual_rows(monkeypatch, (PEERS[0],))
    assert "would need" in rows[-1].note
    assert "100kB are free" in rows[-1].note
    assert rows[-1].seconds is None


@pytest.mark.parametrize("kind", ["HyperConnections", "ManifoldConstrainedHyperConnections"])
def test_hyper_connections_take_every_parameter_forward_and_back(kind: str) -> None:
    pytest.importorskip("hyper_connections")
    part = HyperConnected(kind, SHAPE.n_sublayers, SHAPE.d_model)
    forward_backward(part, SHAPE, "fp32", CPU, 1)()
    assert all(parameter.grad is not None for parameter in part.parameters())
