"""Baselines against their papers' counts, an independent package, and each other."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from recipes import hyper_connections as hc
from recipes.base import RecipeError, Shape, get, parse_options
from recipes.hyper_connections import Streams
from recipes.mhc import MHC
from tests.recipes.contract import (
    SHAPES,
    model_of,
    stream_parts,
    walk,
)
from tests.recipes.toy import ToyModel, make, randomise, tokens

SHAPE = Shape(n_layers=3, d_model=12)
MIXINGS = ["sinkhorn", "permutations"]


def model(name: str, shape: Shape = SHAPE, **options: Any) -> ToyModel:
    return model_of(get(name), parse_options(name, options, shape), shape).double()


def cost(name: str, shape: Shape, **options: Any) -> Any:
    return get(name).cost(shape, parse_options(name, options, shape))


# Hyper-connections and mHC against the package hyper-connections (P. Wang), which shares no code.


def peer_of_hc(residual: Any, t: int) -> Any:
    """The package's module for sublayer ``t``, with our parameters."""
    package = pytest.importorskip("hyper_connections")
    n, d = residual.options.n_streams, residual.shape.d_model
    peer = package.HyperConnections(n, dim=d, layer_index=t).to(residual.static.dtype)
    with torch.no_grad():
        peer.static_alpha.copy_(residual.static[t, :, :-1])
        peer.static_beta.copy_(residual.static[t, :, -1])
        if residual.options.dynamic:
            peer.dynamic_alpha_fn.copy_(residual.projections[t, :-1].t())
            peer.dynamic_beta_fn.copy_(residual.projections[t, -1])
            peer.norm.gamma.copy_(residual.gains[t] - 1)
            peer.dynamic_alpha_scale.copy_(residual.scales[t, 0])
            peer.dynamic_beta_scale.copy_(residual.scales[t, 1])
    return peer


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("n", [2, 4])
def test_hyper_connections_are_those_of_the_package(
    n: int, dynamic: bool, dtype: torch.dtype, bound: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hc, "EPS", 0.0)  # the package divides by the norm without one
    ours = model("hyper_connections", SHAPES[0], n_streams=n, dynamic=dynamic).to(dtype)
    residual = ours.residual
    randomise(residual)
    with torch.no_grad():
        x0 = ours.embedding(tokens())
        state, theirs = residual.start(x0), x0.repeat_interleave(n, dim=0)
        for t, layer in enumerate(ours.sublayers):
            u, state = residual.read(state, t)
            state = residual.write(state, layer(u), t)
            peer_u, add_residual = peer_of_hc(residual, t)(theirs)
            theirs = add_residual(layer(peer_u))
            torch.testing.assert_close(u, peer_u, rtol=bound, atol=bound)
        expected = theirs.unflatten(0, (-1, n)).sum(1)
        torch.testing.assert_close(residual.finish(state), expected, rtol=bound, atol=bound)


def copy_from_peer(residual: MHC, peer: Any, t: int) -> None:
    """Give sublayer ``t`` the package's parameters: stream s alone predicts its own row there."""
    n, d = residual.options.n_streams, residual.shape.d_model
    gain = peer.norm.gamma + 1
    alpha, beta = peer.dynamic_alpha_fn[0] * gain[:, None], peer.dynamic_beta_fn * gain
    phi, bias = torch.zeros(n * (n + 2), n, d), torch.zeros(n * (n + 2))
    for s in range(n):
        phi[s, s], bias[s] = alpha[:, 0], peer.static_alpha[s, 0]
        phi[n + s, s], bias[n + s] = beta, peer.static_beta[s]
        for to in range(n):
            column = 2 * n + n * to + s
            phi[column, s], bias[column] = alpha[:, 1 + to], peer.static_alpha[s, 1 + to]
    residual.projections[t], residual.biases[t] = phi.flatten(1), bias
    scales = (peer.pre_branch_scale, peer.h_post_scale, peer.residual_scale)
    residual.gates[t] = torch.stack([scale.reshape(()) for scale in scales])


def test_mhc_is_that_of_the_package_on_streams_of_one_rms() -> None:
    # The package takes the RMS per stream and the paper over all of them: equal on such streams.
    package = pytest.importorskip("hyper_connections")
    n, shape = 4, Shape(n_layers=2, d_model=16)
    residual = make(MHC, MHC.Options(n_streams=n), shape)
    assert isinstance(residual, MHC)
    generator = torch.Generator().manual_seed(0)
    for t in range(shape.n_sublayers):
        peer = package.mHC(n, dim=shape.d_model, layer_index=t)
        randomise(peer, seed=t)
        streams = torch.randn(2, 5, n, shape.d_model, generator=generator)
        streams = streams / streams.square().mean(-1, keepdim=True).sqrt()
        output = torch.randn(2, 5, shape.d_model, generator=generator)
        with torch.no_grad():
            copy_from_peer(residual, peer, t)
            u, between = residual.read(Streams(streams), t)
            after = residual.write(between, output, t).streams
            peer_u, add_residual = peer(streams.movedim(2, 1).flatten(0, 1))
            expected = add_residual(output).unflatten(0, (-1, n)).movedim(1, 2)
        torch.testing.assert_close(u, peer_u, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)


# Published counts.


@pytest.mark.parametrize("n", [1, 2, 4, 8])
@pytest.mark.parametrize("d", [12, 256])
def test_streams_have_the_published_parameter_counts(n: int, d: int) -> None:
    shape = Shape(n_layers=2, d_model=d)
    mhc = make(get("mhc"), parse_options("mhc", {"n_streams": n}, shape), shape)
    assert mhc.projections[0].numel() == n * d * (n * n + 2 * n)
    assert mhc.biases[0].numel() + mhc.gates[0].numel() == n * n + 2 * n + 3
    ours = make(get("hyper_connections"), get("hyper_connections").Options(n_streams=n), shape)
    assert ours.projections[0].numel() + ours.gains[0].numel() == d * (n + 3)
    assert ours.static[0].numel() == n * n + 2 * n


def test_mhc_adds_96_d_per_sublayer_at_four_streams() -> None:
    one, two = (cost("mhc", Shape(n_layers=8, d_model=d)).params / 16 for d in (256, 257))
    assert two - one == 96
    lite = [
        cost("mhc", Shape(n_layers=8, d_model=d), mixing="permutations").params / 16
        for d in (256, 257)
    ]
    assert lite[1] - lite[0] == 4 * (math.factorial(4) + 8)


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("m", [2, 4, 5])
def test_streams_move_what_table_1_charges_them(m: int, mixing: str) -> None:
    shape = Shape(n_layers=3, d_model=256)
    per_sublayer = (8 * m + 2) * shape.d_model + 2 * m * m + 4 * m
    for name, options in (("mhc", {"mixing": mixing}), ("hyper_connections", {})):
        found = cost(name, shape, n_streams=m, **options).elements_moved_per_token
        assert found == 6 * per_sublayer
    if m == 4:
        assert per_sublayer == 34 * shape.d_model + 48


@pytest.mark.parametrize("n_layers", [2, 12, 48])
def test_dense_former_has_the_published_number_of_weights(n_layers: int) -> None:
    shape = Shape(n_layers=n_layers, d_model=8)
    assert cost("dense_former", shape).params == n_layers * (n_layers + 3) // 2


def test_dense_former_weighs_what_the_published_code_does() -> None:
    # (i + 1 + dilation) // dilation weights after block i where period divides i + 1 (epfml).
    options = get("dense_former").Options(dilation=4, period=5)
    residual = make(get("dense_former"), options, Shape(n_layers=48, d_model=8))
    expected = [(i + 1 + 4) // 4 for i in range(48) if (i + 1) % 5 == 0]
    assert [len(w) for w in residual.weights] == expected
    assert options.sources(10) == [2, 6, 10]


@pytest.mark.parametrize(("n_layers", "epsilon"), [(18, 0.1), (19, 1e-5), (24, 1e-5), (36, 1e-6)])
def test_layer_scale_starts_where_the_paper_does(n_layers: int, epsilon: float) -> None:
    shape = Shape(n_layers=n_layers, d_model=8)
    residual = make(get("layer_scale"), get("layer_scale").Options(), shape)
    assert residual.gains.unique().tolist() == pytest.approx([epsilon])


# Identities.


def test_a_write_without_its_read_is_refused() -> None:
    residual = model("mhc").residual
    embedding, outputs = stream_parts(SHAPE)
    with pytest.raises(ValueError, match="write follows the read"):
        residual.write(residual.start(embedding), outputs[0], 0)


def test_dynamic_hyper_connections_with_zero_maps_are_the_static_ones() -> None:
    dynamic, static = model("hyper_connections"), model("hyper_connections", dynamic=False)
    randomise(dynamic.residual)
    with torch.no_grad():
        dynamic.residual.projections.zero_()
        static.residual.static.copy_(dynamic.residual.static)
    torch.testing.assert_close(dynamic(tokens()), static(tokens()), rtol=1e-12, atol=1e-12)


def test_a_sublayer_first_reads_the_stream_of_its_number() -> None:
    residual = model("hyper_connections").residual
    assert residual.static[:, :, 0].argmax(-1).tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("hyper_connections", {"n_streams": 1}),
        ("hyper_connections", {"n_streams": 1, "dynamic": False}),
        ("dense_former", {}),
        ("dense_former", {"dilation": 2, "period": 3}),
        ("layer_scale", {"init_value": 1.0}),
    ],
    ids=str,
)
def test_starts_as_the_standard_residual_bit_for_bit(name: str, options: dict[str, Any]) -> None:
    ours, baseline = model(name, **options), model("standard")
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        expected = baseline.to(dtype)(tokens())
        torch.testing.assert_close(ours.to(dtype)(tokens()), expected, rtol=0, atol=0)


def test_one_stream_of_mhc_cannot_mix() -> None:
    ours = model("mhc", n_streams=1)
    randomise(ours.residual)
    before = ours(tokens())
    with torch.no_grad():
        ours.residual.biases[:, 2:].add_(3.0)
        ours.residual.projections[:, 2:].mul_(2.0)
    torch.testing.assert_close(ours(tokens()), before, rtol=1e-12, atol=1e-12)


def test_mhc_staggered_as_released_is_not_the_standard_residual() -> None:
    options = parse_options("mhc", {"init": "staggered"})
    assert not MHC.equals_standard_at_init(options)
    ours, baseline = model("mhc", init="staggered"), model("standard")
    assert (ours(tokens()) - baseline(tokens())).abs().max() > 0.01


@pytest.mark.parametrize("per_sublayer", [False, True])
def test_rezero_starts_as_the_identity(per_sublayer: bool) -> None:
    residual = model("rezero", per_sublayer=per_sublayer).residual
    embedding, outputs = stream_parts(SHAPE)
    for t, state in walk(residual, embedding, outputs):
        assert torch.equal(residual.finish(state), embedding), t
    assert len(residual.scales) == (6 if per_sublayer else 3)


def test_post_norm_makes_a_pre_norm_behind_it_idle() -> None:
    ours = model("post_norm")
    embedding, outputs = stream_parts(SHAPE)
    for t, state in walk(ours.residual, embedding, outputs):
        if t > 0:
            torch.testing.assert_close(ours.norm(state), state, rtol=1e-7, atol=1e-7)


def test_dense_former_drops_the_states_that_no_later_sum_reads() -> None:
    shape = Shape(n_layers=6, d_model=12)
    residual = model("dense_former", shape, dilation=2, period=4).residual
    embedding, outputs = stream_parts(shape)
    held = [len(state.outputs) for _, state in walk(residual, embedding, outputs)]
    assert held == [1, 1, 1, 1, 2, 2, 2, 2, 0, 0, 0, 0, 0]  # X_0, X_2, then X_4 itself


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("mhc", {"mixing": "permutations", "n_streams": 6}, r"must not exceed 5, got 6 \(720"),
        ("mhc", {"mixing": "permutations", "sinkhorn_iterations": 5}, "has no meaning"),
        ("mhc", {"mixing_init": 0.75}, "must be below 0.75"),
        ("mhc", {"mixing_init": 0.0}, "greater than 0"),
        ("mhc", {"n_streams": 0}, "greater than or equal to 1"),
        ("dense_former", {"period": 4}, "period must not exceed the model's 3 layers"),
        ("dense_former", {"dilation": 3, "period": 2}, "dilation must not exceed 2"),
        ("layer_scale", {"init_value": 0.0}, "greater than 0"),
        ("post_norm", {"gain": 1}, "not an option of recipe 'post_norm'"),
    ],
    ids=str,
)
def test_nonsense_is_refused_with_the_reason(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(RecipeError, match=reason):
        parse_options(name, options, SHAPE)
