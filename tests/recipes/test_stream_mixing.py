"""How streams mix: gradients, movement and double stochasticity of the matrices of mHC."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recipes.hyper_connections import StreamResidual, Streams
from recipes.mhc import MHC, permutation_matrices, sinkhorn
from tests.recipes.contract import gradients, stream_parts, walk
from tests.recipes.test_baselines import MIXINGS, SHAPE, model
from tests.recipes.toy import loss_of, randomise, tokens


def mixing_logits(residual: Any, gradient: bool = False) -> Tensor:
    biases = residual.biases.grad if gradient else residual.biases
    return biases[:, 2 * residual.options.n_streams :]


def off_diagonal(matrices: Tensor) -> Tensor:
    return matrices[..., ~torch.eye(matrices.shape[-1], dtype=torch.bool)]


def test_every_off_diagonal_mixing_logit_has_a_gradient_at_init() -> None:
    ours = model("mhc")
    gradients(ours, tokens())
    gradient = off_diagonal(mixing_logits(ours.residual, gradient=True).unflatten(-1, (4, 4)))
    scale = gradient[1:].abs().max()
    assert (gradient[1:].abs() > 1e-3 * scale).all()
    assert (gradient[0].abs() < 1e-12 * scale).all(), "the first sublayer sees equal streams"


def test_the_sum_of_the_streams_does_not_see_the_last_permutations() -> None:
    ours = model("mhc", mixing="permutations")
    gradients(ours, tokens())
    by_sublayer = mixing_logits(ours.residual, gradient=True).abs().amax(-1)
    dead = by_sublayer < 1e-12 * by_sublayer.max()
    assert dead.tolist() == [True, False, False, False, False, True]


def test_streams_that_start_equal_leave_the_mixing_without_gradient() -> None:
    ours = model("mhc")
    with torch.no_grad():
        ours.residual.biases[:, 4:8] = 0.0  # what every output enters: evenly
    found = gradients(ours, tokens())["residual.biases"]
    assert found[:, 8:].abs().max() < 1e-12 * found[:, 4:8].abs().max()


@pytest.mark.parametrize("init", ["paired", "staggered"])
@pytest.mark.parametrize("mixing", MIXINGS)
def test_the_mixing_matrix_moves_within_a_few_steps(mixing: str, init: str) -> None:
    ours = model("mhc", mixing=mixing, init=init)
    residual, x0 = ours.residual, ours.embedding(tokens()).detach()

    def matrices() -> Tensor:
        state = Streams(residual.start(x0).streams + stream_parts(SHAPE)[0][..., None, :])
        found = [residual.stream_mixing(state, t) for t in range(1, SHAPE.n_sublayers - 1)]
        return torch.stack(found).detach()

    before = matrices()
    optimizer = torch.optim.Adam(ours.parameters(), lr=1e-2)
    for step in range(20):
        optimizer.zero_grad()
        loss_of(ours, tokens(seed=step)).backward()
        optimizer.step()
    moved = off_diagonal(matrices() - before).abs().mean(dim=(1, 2, 3))
    assert (moved > 0.01 * off_diagonal(before).mean()).all()


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_stream_first_takes_mixing_init_of_the_others(n: int, mixing: str) -> None:
    residual = model("mhc", n_streams=n, mixing=mixing, mixing_init=0.1).residual
    matrix = residual.stream_mixing(residual.start(stream_parts(SHAPE)[0]), 1)[0, 0]
    expected = torch.full((n * n - n,), 0.1 / (n - 1), dtype=torch.float64)
    torch.testing.assert_close(off_diagonal(matrix), expected, rtol=1e-6, atol=0)


def test_the_default_mixing_is_a_logit_of_about_minus_four() -> None:
    assert MHC.Options().off_logit() == pytest.approx(-4.04, abs=0.01)


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("std", [0.0, 1.0])
def test_rows_sum_to_one_and_columns_too_where_they_can(mixing: str, std: float) -> None:
    residual = model("mhc", mixing=mixing).residual
    randomise(residual, std=std)
    embedding, outputs = stream_parts(SHAPE)
    for t, state in walk(residual, embedding, outputs):
        matrix = residual.stream_mixing(state, t)
        if matrix is None:
            assert t == SHAPE.n_sublayers
            continue
        assert (matrix >= 0).all()
        assert (matrix.sum(-1) - 1).abs().max() < 1e-12
        if mixing == "permutations" or std == 0:
            assert (matrix.sum(-2) - 1).abs().max() < 1e-12


def test_twenty_iterations_leave_the_columns_what_the_docstring_says() -> None:
    noise = torch.randn(20_000, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    logits = MHC.Options().off_logit() * (1 - torch.eye(4)) + noise
    errors = (sinkhorn(logits, 20).sum(-2) - 1).abs().amax(-1)
    assert errors.median() == pytest.approx(0.005, abs=0.001)
    assert errors.max() == pytest.approx(0.03, abs=0.01)


def test_sinkhorn_converges_as_slowly_as_the_docstring_says() -> None:
    # A deviation shrinks by c^2 an iteration where the limit is c I + (1 - c) / n.
    options = MHC.Options(mixing_init=0.05)
    noise = 1e-3 * torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).double()
    logits = options.off_logit() * (1 - torch.eye(4)) + noise
    errors = [(sinkhorn(logits, k).sum(-2) - 1).norm().item() for k in (20, 21)]
    assert errors[1] / errors[0] == pytest.approx((1 - 0.05 * 4 / 3) ** 2, rel=1e-2)


def test_sinkhorn_has_the_gradient_of_its_iterations() -> None:
    logits = torch.randn(3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 20), logits)


def test_permutations_are_all_of_them_the_identity_first() -> None:
    matrices = permutation_matrices(4).view(-1, 4, 4)
    assert len({tuple(m.flatten().tolist()) for m in matrices}) == 24
    assert torch.equal(matrices[0], torch.eye(4))
    assert (matrices.sum(1) == 1).all()
    assert (matrices.sum(2) == 1).all()


@pytest.mark.parametrize("name", ["hyper_connections", "mhc"])
def test_stream_mixing_is_what_a_read_does_to_the_streams(name: str) -> None:
    residual = model(name).residual
    assert isinstance(residual, StreamResidual)
    randomise(residual)
    embedding, outputs = stream_parts(SHAPE)
    for t, state in walk(residual, embedding, outputs):
        matrix = residual.stream_mixing(state, t)
        if matrix is not None:
            mixed = residual.read(state, t)[1].streams
            torch.testing.assert_close(matrix @ state.streams, mixed)
