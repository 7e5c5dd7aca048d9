"""Closed-form parameters and FLOPs against real counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from harness.config import Budget, ModelConfig, ResidualConfig, RunConfig
from harness.cost import count_params, forward_flops_per_token, peak_bytes, run_cost, steps_for
from harness.model import Transformer
from recipes.base import Shape, get

SHAPES: list[dict[str, Any]] = [
    {"n_layers": 2, "d_model": 32, "head_dim": 16},
    {"n_layers": 3, "d_model": 64, "head_dim": 16, "n_kv_heads": 2, "qk_norm": True},
    {"n_layers": 5, "d_model": 48, "head_dim": 8, "d_ff": 80, "tied_head": True},
]
RECIPES = ["standard", "full", "block", "delta", "low_rank", "multi_stream"]
VOCAB, SEQ_LEN, BATCH = 61, 32, 2


def config_of(residual: str, shape: dict[str, Any]) -> RunConfig:
    return RunConfig.model_validate(
        {
            "residual": {"name": residual},
            "model": shape,
            "data": {"seq_len": SEQ_LEN},
            "train": {"budget": {"tokens": 4800}, "batch_tokens": SEQ_LEN * BATCH},
        }
    )


def counted_flops(model: Transformer, *, backward: bool) -> int:
    """FLOPs of one batch by torch's counter, with attention as plain matmuls."""
    countable = getattr(model.residual, "use_countable_ops", None)
    if countable is not None:
        countable()
    tokens = torch.randint(0, VOCAB, (BATCH, SEQ_LEN))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        logits = model(tokens)
        if backward:
            logits.sum().backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "grouped", "tied"])
@pytest.mark.parametrize("residual", RECIPES)
def test_parameters_and_forward_flops_equal_real_counts(
    residual: str, shape: dict[str, Any]
) -> None:
    config = config_of(residual, shape)
    model = Transformer(config.model, config.residual, VOCAB, seed=0)
    recipe = get(residual)
    price = recipe.cost(Shape(config.model.n_layers, config.model.d_model), recipe.Options())
    cost = run_cost(config, price, VOCAB)
    assert cost.n_params == sum(parameter.numel() for parameter in model.parameters())
    assert cost.flops_per_token * BATCH * SEQ_LEN == 3 * counted_flops(model, backward=False)


def test_peak_memory_of_a_known_model_is_the_one_that_a_run_states() -> None:
    shape = {"n_layers": 2, "d_model": 32, "head_dim": 16, "d_ff": 80}
    config = config_of("full", shape)
    recipe = get("full")
    price = recipe.cost(Shape(2, 32), recipe.Options())
    cost = run_cost(config, price, VOCAB)
    tokens = SEQ_LEN * BATCH
    per_token = 2 * (12 * 32 + 5 * 80) + 3 * VOCAB + price.state_elements_per_token
    expected = 4 * (4 * cost.n_params + tokens * per_token)
    found = {
        precision: peak_bytes(config.model, precision, tokens, cost.n_params, VOCAB, price)
        for precision in ("fp32", "bf16", "fp64")
    }
    assert found == {"fp32": expected, "bf16": expected, "fp64": 2 * expected}
    assert cost.state_bytes == expected


@pytest.mark.parametrize("shape", SHAPES, ids=["plain", "grouped", "tied"])
def test_backward_costs_twice_forward(shape: dict[str, Any]) -> None:
    model = Transformer(ModelConfig(**shape), ResidualConfig(name="standard"), VOCAB, seed=0)
    forward = counted_flops(model, backward=False)
    assert counted_flops(model, backward=True) == 3 * forward


def test_forward_flops_of_a_known_model() -> None:
    # GPT-2-small-like: 12 layers of width 768, 4 d^2 attention and 3 d d_ff MLP weights.
    model = ModelConfig(n_layers=12, d_model=768, head_dim=64, d_ff=2048)
    weights = 12 * (4 * 768**2 + 3 * 768 * 2048)
    expected = 2 * (weights + 768 * 50257) + 12 * 4 * 1024 * 768
    assert forward_flops_per_token(model, 1024, 50257) == expected
    assert count_params(model, 50257).attention == 12 * 4 * 768**2


@pytest.mark.parametrize(
    ("budget", "steps"),
    [
        (Budget(tokens=1000), 10),
        (Budget(tokens=1040), 10),
        (Budget(tokens=1), 1),
        (Budget(flops=7.4e5), 7),
        (Budget(tokens_per_param=20), 200),
    ],
)
def test_steps_come_closest_to_the_declared_budget(budget: Budget, steps: int) -> None:
    assert steps_for(budget, flops_per_token=1000, n_params=1000, batch_tokens=100) == steps
