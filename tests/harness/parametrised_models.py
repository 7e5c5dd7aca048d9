"""Small models of every parametrisation, and a few steps of training."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.config import ModelConfig, ResidualConfig, TrainConfig
from harness.model import Transformer
from harness.module import token_loss
from harness.optimiser import build_optimizer

VOCAB = 16
MUP: dict[str, Any] = {"parametrisation": "mup", "base_d_model": 64}
COMPLETEP: dict[str, Any] = {"parametrisation": "completep", "base_d_model": 64, "base_n_layers": 4}


def model_of(residual: str = "standard", seed: int = 0, **shape: Any) -> Transformer:
    config = ModelConfig.model_validate({"n_layers": 2, "d_model": 64, "head_dim": 16, **shape})
    return Transformer(config, ResidualConfig(name=residual), VOCAB, seed)


def settings(optimizer: str = "adamw", **values: Any) -> TrainConfig:
    given = {"budget": {"tokens": 1}, "optimizer": optimizer, "residual_lr_scale": 1.0, **values}
    return TrainConfig.model_validate(given)


def tokens(seed: int = 7, batch: int = 2, length: int = 9, vocab: int = VOCAB) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (batch, length), generator=generator)


def trained(model: Transformer, train: TrainConfig, batch: Tensor, steps: int) -> list[float]:
    """Losses before every step on one batch."""
    optimizer, losses = build_optimizer(model, train), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = token_loss(model, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
