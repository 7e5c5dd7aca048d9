"""Traps that no other test notices, or only slowly, by accident or with an optional package.

Defaults, which the equations follow whatever they are; precision; the start, in the backbone too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.config import ModelConfig, ResidualConfig
from harness.model import Transformer
from recipes.base import Shape, get, parse_options
from recipes.depth_attention import EPS
from tests.recipes.contract import gradients, model_of, stream_parts, walk
from tests.recipes.toy import make, randomise, tokens

SHAPE = Shape(n_layers=3, d_model=12)


@pytest.mark.parametrize(
    ("name", "rank"), [("full", 12), ("block", 12), ("delta", 12), ("low_rank", 3)]
)
def test_by_default_logits_are_the_papers_unscaled_dot_products(name: str, rank: int) -> None:
    residual: Any = make(get(name), get(name).Options(), SHAPE).double()
    randomise(residual, std=1.0)
    queries, gains = residual.get_parameter("queries"), dict(residual.named_parameters())
    scaled = queries * gains.get("gains", torch.ones_like(queries))
    embedding, outputs = stream_parts(SHAPE)
    for row, t in enumerate(residual.plan.readers):
        state = dict(walk(residual, embedding, outputs))[t]
        values = torch.stack(residual.depth_values(state, t) or [])
        keys = nn.functional.rms_norm(values[..., 12 - rank :], (rank,), eps=EPS)
        torch.testing.assert_close(
            residual.depth_weights(state, t), (keys @ scaled[row]).softmax(0)
        )


@pytest.mark.parametrize(
    ("name", "options", "kernel"),
    [
        ("full", {}, "torch"),
        ("full", {}, "cached"),
        ("block", {}, "torch"),
        ("block", {}, "cached"),
        ("block", {}, "two_phase"),
        ("low_rank", {}, "torch"),
    ],
    ids=str,
)
def test_a_bf16_read_is_the_exact_one_rounded_once(
    name: str, options: dict[str, Any], kernel: str
) -> None:
    parsed = parse_options(name, options, SHAPE)
    ours, exact = (make(get(name), parsed, SHAPE).bfloat16() for _ in range(2))
    for residual in (ours, exact):
        randomise(residual, std=1.0)
        residual.use_kernel(kernel)
    exact.double()
    embedding, outputs = stream_parts(SHAPE, torch.bfloat16)
    wide = walk(exact, embedding.double(), [y.double() for y in outputs])
    for (t, state), (_, wide_state) in zip(walk(ours, embedding, outputs), wide, strict=True):
        found, expected = ours.read(state, t)[0], exact.read(wide_state, t)[0]
        assert found.dtype == torch.bfloat16
        # Half a unit in the last of 8 bits, and the rounding of fp32 where sources cancel.
        torch.testing.assert_close(found.double(), expected, rtol=2**-8, atol=1e-5)


def backbone_gradients(model: Transformer, ids: Tensor) -> dict[str, Tensor]:
    backbone = {n: p for n, p in model.named_parameters() if not n.startswith("residual.")}
    logits = model(ids[:, :-1]).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
    grads = torch.autograd.grad(loss, list(backbone.values()))
    return dict(zip(backbone, grads, strict=True))


@pytest.mark.parametrize("name", ["full", "block", "low_rank", "multi_stream", "delta"])
def test_the_backbone_leaves_a_recipe_its_start_as_the_standard_residual(name: str) -> None:
    config = ModelConfig(n_layers=3, d_model=32, head_dim=16)
    ours, standard = (
        Transformer(config, ResidualConfig(name=each), 11, seed=0).double()
        for each in (name, "standard")
    )
    torch.testing.assert_close(ours(tokens()), standard(tokens()), rtol=1e-5, atol=1e-5)
    found, expected = (backbone_gradients(model, tokens()) for model in (ours, standard))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("init", ["paired", "staggered"])
@pytest.mark.parametrize("mixing", ["sinkhorn", "permutations"])
def test_streams_differ_enough_for_their_mixing_to_have_a_gradient(mixing: str, init: str) -> None:
    options = parse_options("mhc", {"mixing": mixing, "init": init}, SHAPE)
    biases = gradients(model_of(get("mhc"), options, SHAPE).double(), tokens())["residual.biases"]
    assert biases is not None
    by_logit = biases.abs()
    of_writes, of_mixing = by_logit[:, 4:8].max(), by_logit[1:-1, 8:].amax(-1)
    # Streams that start equal leave rounding, 1e-17; these leave 2e-4 and more.
    assert (of_mixing > 1e-6 * of_writes).all()
