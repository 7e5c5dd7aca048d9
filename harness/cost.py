"""Parameters, FLOPs, tokens and memory of a run: closed form, no torch.

Convention (printed under every figure): matmuls and convolutions only, 2 per multiply-add; backward
counts twice forward; attention scores and values without causal halving; the head counted, the
embedding lookup not; the residual recipe's own reads and writes counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from harness.config import Budget, ModelConfig, RunConfig
from harness.records import RunCost

FLOP_CONVENTION = (
    "FLOPs: matmuls and convolutions only, 2 per multiply-add, backward = 2x forward, attention "
    "without causal halving, head counted, embedding lookup 0, the variant's own reads and writes "
    "counted."
)
TRAIN_PER_FORWARD = 3
"""Training FLOPs over forward FLOPs: one forward and a backward of twice its price."""
BYTES_PER_ELEMENT = {"fp32": 4, "bf16": 4, "fp64": 8}
"""Bytes of a parameter; bf16 runs under autocast keep fp32 parameters."""


class RecipePrice(Protocol):
    """What this module must know of a recipe's cost (``recipes.base.ResidualCost``)."""

    @property
    def params(self) -> int:
        """Parameters of the recipe."""

    @property
    def flops_per_token(self) -> int:
        """Forward FLOPs of its reads and writes."""

    @property
    def state_elements_per_token(self) -> int:
        """Elements kept per token between sublayers."""


@dataclass(frozen=True)
class ParamCounts:
    """Parameters of the backbone by group."""

    embedding: int
    head: int
    attention: int
    mlp: int
    norms: int

    @property
    def total(self) -> int:
        """All groups."""
        return self.embedding + self.head + self.attention + self.mlp + self.norms


def count_params(model: ModelConfig, vocab_size: int) -> ParamCounts:
    """Count the parameters of the backbone, the recipe's own not included."""
    d, layers = model.d_model, model.n_layers
    kv_width = model.n_key_value_heads * model.head_dim
    return ParamCounts(
        embedding=vocab_size * d,
        head=0 if model.tied_head else vocab_size * d,
        attention=layers * (2 * d * d + 2 * d * kv_width),
        mlp=layers * 3 * d * model.ffn_width,
        norms=layers * (2 * d + (2 * model.head_dim if model.qk_norm else 0)) + d,
    )


def forward_flops_per_token(model: ModelConfig, seq_len: int, vocab_size: int) -> int:
    """Forward FLOPs per token of the backbone under :data:`FLOP_CONVENTION`.

    ``2 (attention + MLP weights) + 4 seq_len d_model n_layers + 2 d_model vocab_size``.
    """
    counts = count_params(model, vocab_size)
    matmuls = 2 * (counts.attention + counts.mlp + vocab_size * model.d_model)
    scores_and_values = 4 * seq_len * model.d_model * model.n_layers
    return matmuls + scores_and_values


def steps_for(budget: Budget, *, flops_per_token: int, n_params: int, batch_tokens: int) -> int:
    """Optimiser steps that come closest to the declared budget, at least one.

    Parameters
    ----------
    flops_per_token
        Training FLOPs per token, the recipe's own included.
    n_params
        All parameters of the model, the recipe's own included.
    """
    if budget.flops is not None:
        tokens = budget.flops / flops_per_token
    elif budget.tokens_per_param is not None:
        tokens = budget.tokens_per_param * n_params
    else:
        tokens = budget.value
    return max(1, round(tokens / batch_tokens))


def run_cost(config: RunConfig, residual: RecipePrice, vocab_size: int) -> RunCost:
    """Closed-form size and price of one run."""
    model, train = config.model, config.train
    counts = count_params(model, vocab_size)
    n_params = counts.total + residual.params
    residual_flops = TRAIN_PER_FORWARD * residual.flops_per_token
    forward = forward_flops_per_token(model, config.data.seq_len, vocab_size)
    per_token = TRAIN_PER_FORWARD * forward + residual_flops
    steps = steps_for(
        train.budget,
        flops_per_token=per_token,
        n_params=n_params,
        batch_tokens=train.batch_tokens,
    )
    tokens = steps * train.batch_tokens
    non_embedding = n_params - counts.embedding - counts.head
    return RunCost(
        n_params=n_params,
        n_params_non_embedding=non_embedding,
        n_params_residual=residual.params,
        flops_per_token=per_token,
        flops_per_token_residual=residual_flops,
        steps=steps,
        tokens=tokens,
        flops=float(per_token * tokens),
        flops_residual=float(residual_flops * tokens),
        flops_6nd=float(6 * non_embedding * tokens),
        state_bytes=peak_bytes(
            model, train.precision, train.batch_tokens, n_params, vocab_size, residual
        ),
    )


def peak_bytes(
    model: ModelConfig,
    precision: str,
    batch_tokens: int,
    n_params: int,
    vocab_size: int,
    residual: RecipePrice,
) -> int:
    """Estimate the peak memory of training with the whole batch in one forward pass, in bytes.

    Weights, gradients and two moments, plus the activations that autograd keeps: about 12 d_model +
    5 d_ff elements per token and layer, three copies of the logits, and the recipe's state.

    Parameters
    ----------
    precision
        ``fp32``, ``bf16`` or ``fp64``, as in :data:`BYTES_PER_ELEMENT`.
    n_params
        All parameters of the model, the recipe's own included.
    """
    width = BYTES_PER_ELEMENT[precision]
    per_token = (
        model.n_layers * (12 * model.d_model + 5 * model.ffn_width)
        + 3 * vocab_size
        + residual.state_elements_per_token
    )
    return width * (4 * n_params + batch_tokens * per_token)
