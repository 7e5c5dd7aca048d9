"""A tiny language model around a recipe: the loop of the design, and nothing else.

Attention and MLP sublayers alternate, each behind its own pre-norm; the epsilon is small enough for
fp64 identities. Parameters come from one seeded generator, so that recipes share them bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from recipes.base import Residual, Shape

VOCAB = 11


class PreNorm(nn.Module):
    def __init__(self, d: int, eps: float = 1e-12) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(d))
        self.eps = eps

    def forward(self, u: Tensor) -> Tensor:
        wide = u if u.dtype == torch.float64 else u.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + self.eps).rsqrt()
        return (normed * self.gain).to(u.dtype)


class Mlp(nn.Module):
    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = PreNorm(d)
        self.inner, self.outer = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(self.norm(u))))


class Attention(nn.Module):
    """One causal head."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.qkv = PreNorm(d), nn.Linear(d, 3 * d, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(u)).chunk(3, dim=-1)
        scores = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, float("-inf")).softmax(-1).to(v.dtype) @ v


class ToyModel(nn.Module):
    def __init__(self, residual: Residual, *, seed: int = 0) -> None:
        super().__init__()
        shape = residual.shape
        self.embedding = nn.Embedding(VOCAB, shape.d_model)
        self.sublayers = nn.ModuleList(
            (Attention, Mlp)[t % 2](shape.d_model) for t in range(shape.n_sublayers)
        )
        self.norm, self.head = PreNorm(shape.d_model), nn.Linear(shape.d_model, VOCAB, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
        self.residual = residual
        self.checkpointed = False

    def forward(self, tokens: Tensor) -> Tensor:
        state = self.residual.start(self.embedding(tokens))
        for t, sublayer in enumerate(self.sublayers):
            if self.checkpointed:
                state = checkpoint(self.step, sublayer, state, t, use_reentrant=False)
            else:
                state = self.step(sublayer, state, t)
        return self.head(self.norm(self.residual.finish(state)))

    def step(self, sublayer: Callable[[Tensor], Tensor], state: object, t: int) -> object:
        u, state = self.residual.read(state, t)
        return self.residual.write(state, sublayer(u), t)


def tokens(batch: int = 2, length: int = 5, seed: int = 0) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def make(cls: type[Residual], options: object, shape: Shape, seed: int = 0) -> Residual:
    residual = cls(shape, options)
    residual.reset_parameters(torch.Generator().manual_seed(seed))
    return residual


def randomise(module: nn.Module, seed: int = 1, std: float = 0.3) -> None:
    """Move every parameter off its special initial value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.add_(std * noise.to(parameter.dtype))


def loss_of(model: ToyModel, ids: Tensor) -> Tensor:
    """Next-token loss, which sends gradient to every part of the model."""
    logits = model(ids[:, :-1]).flatten(0, 1)
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(wide, ids[:, 1:].flatten())
