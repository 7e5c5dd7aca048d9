"""Decoder-only Transformer: a list of sublayers and one loop.

What differs from a stock Llama: the residual stream belongs to a recipe
(``recipes.base.Residual``), which alone decides what each sublayer reads and where its output
goes. This file knows no recipe by name. Initialisation draws from one seeded generator per part,
so that arms of one seed share every backbone weight bit for bit.
"""

from __future__ import annotations

import hashlib
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from harness.config import ModelConfig, ResidualConfig
from harness.layers import Attention, RMSNorm, Rotary, Sublayer, SwiGLU
from harness.parametrisation import branch_multiplier, hidden_std, logit_multiplier, readout_std
from recipes.base import Residual, Shape, State, build


class Observer(Protocol):
    """Sees a forward pass from inside, for diagnostics."""

    def __call__(self, t: int, before: State, u: Tensor, y: Tensor, after: State) -> None:
        """Called after sublayer ``t`` with the state before its read and after its write."""


def random_stream(part: str, seed: int) -> torch.Generator:
    """Open the random numbers of one part of a model: independent of every other part's."""
    digest = hashlib.sha256(f"{part}:{seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Transformer(nn.Module):
    """Byte or subword language model with a pluggable residual stream.

    Parameters
    ----------
    model
        Shape of the backbone.
    residual
        Recipe and options.
    vocab_size
        Tokens of the vocabulary.
    seed
        The only source of randomness; the global generator is neither read nor advanced.
    """

    def __init__(
        self, model: ModelConfig, residual: ResidualConfig, vocab_size: int, seed: int
    ) -> None:
        super().__init__()
        self.config = model
        self.recompute = False
        self.branch_multiplier = branch_multiplier(model)
        self.logit_multiplier = logit_multiplier(model)
        with torch.random.fork_rng(devices=[]):  # torch's own initialisation draws globally
            self._build(model, vocab_size)
        self._initialise(random_stream("backbone", seed))
        shape = Shape(n_layers=model.n_layers, d_model=model.d_model)
        self.residual: Residual = build(
            residual.name, shape, residual.options, random_stream("residual", seed)
        )

    def _build(self, model: ModelConfig, vocab_size: int) -> None:
        rotary = Rotary(model.head_dim, model.rope_theta)
        self.embedding = nn.Embedding(vocab_size, model.d_model)
        self.sublayers = nn.ModuleList(
            Sublayer(body, RMSNorm(model.d_model, model.norm_eps))
            for _ in range(model.n_layers)
            for body in (Attention(model, rotary), SwiGLU(model))
        )
        self.final_norm = RMSNorm(model.d_model, model.norm_eps)
        self.head = nn.Linear(model.d_model, vocab_size, bias=False)
        if model.tied_head:
            self.head.weight = self.embedding.weight

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        tied = self.config.tied_head
        embedding_std = readout_std(self.config) if tied else 1.0
        self.embedding.weight.normal_(0.0, embedding_std, generator=generator)
        for name, module in self.sublayers.named_modules():
            if isinstance(module, nn.Linear):
                writes_stream = name.endswith("body.output")
                std = hidden_std(self.config, module.in_features, writes_stream)
                module.weight.normal_(0.0, std, generator=generator)
        if not tied:
            self.head.weight.normal_(0.0, readout_std(self.config), generator=generator)

    def forward(self, tokens_BT: Tensor, observer: Observer | None = None) -> Tensor:
        """Return next-token logits, [B, T, vocab_size], for token ids [B, T]."""
        residual = self.residual
        state = residual.start(self.embedding(tokens_BT))
        for t in range(len(self.sublayers)):
            before = state
            u_BTD, state = residual.read(state, t)
            y_BTD = self.output(t, u_BTD)
            state = residual.write(state, y_BTD, t)
            if observer is not None:
                observer(t, before, u_BTD, y_BTD, state)
        return self.logits(residual.finish(state))

    def output(self, t: int, u_BTD: Tensor) -> Tensor:
        """Return what sublayer ``t`` makes of its input, as it is written to the stream."""
        # Only the sublayer is recomputed: a list of sources that grew in a recomputed
        # function would grow twice.
        if self.recompute and self.training:
            y_BTD = checkpoint(self.sublayers[t], u_BTD, use_reentrant=False)
        else:
            y_BTD = self.sublayers[t](u_BTD)
        return _scaled(y_BTD, self.branch_multiplier)

    def logits(self, hidden_BTD: Tensor) -> Tensor:
        """Return the logits of what the residual stream ends in."""
        normed_BTD = _scaled(self.final_norm(hidden_BTD), self.logit_multiplier)
        return self.head(normed_BTD)  # type: ignore[no-any-return]


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x * factor
