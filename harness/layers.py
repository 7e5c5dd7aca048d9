"""Building blocks of the backbone: RMSNorm, rotary attention, SwiGLU.

Shapes: B batch, T tokens, D d_model, H query heads, K key/value heads, E head_dim, F d_ff.
Matrices are initialised fan-in, N(0, 1/fan_in); the projections that write to the residual stream
are scaled down by a further sqrt(n_sublayers), so that their sum keeps one scale whatever the
depth: that of the embedding, unless a tied head makes the embedding smaller. What other
parametrisations change is in ``parametrisation``.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from harness.config import ModelConfig


class RMSNorm(nn.Module):
    """Root-mean-square norm with a learned gain, ``x / sqrt(mean(x^2) + eps) * gain``.

    Statistics are taken in fp32 at least (fp64 for fp64 input), whatever the input's precision.
    Source: Zhang and Sennrich 2019, equation 4.
    """

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last axis."""
        wide = x if x.dtype == torch.float64 else x.float()
        normed = F.rms_norm(wide, (x.shape[-1],), self.gain.to(wide.dtype), self.eps)
        return normed.to(x.dtype)


class Rotary(nn.Module):
    """Rotary position embedding, half-split pairing (Su et al. 2021, equation 34).

    Pairs coordinate i with i + E/2, the layout of the released Llama weights in ``transformers``.
    """

    def __init__(self, head_dim: int, theta: float) -> None:
        super().__init__()
        self.head_dim, self.theta = head_dim, theta
        self._tables: dict[tuple[int, torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def tables(self, n_tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of every position, each [T, E], computed in fp64 and cached."""
        key = (n_tokens, like.dtype, like.device)
        if key not in self._tables:
            exponent = torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim
            positions = torch.arange(n_tokens, dtype=torch.float64)
            angles_TE = torch.outer(positions, self.theta**-exponent).repeat(1, 2)
            self._tables[key] = (angles_TE.cos().to(like), angles_TE.sin().to(like))
        return self._tables[key]

    def forward(self, x_BHTE: Tensor) -> Tensor:
        """Rotate queries or keys by their position."""
        return _rotated(x_BHTE, *self.tables(x_BHTE.shape[-2], x_BHTE))

    def at(self, x_BHTE: Tensor, first: int) -> Tensor:
        """Rotate queries or keys of which the first stands at position ``first``.

        The tables grow by doubling, so that decoding token by token rarely makes one.
        """
        end = first + x_BHTE.shape[-2]
        cos_TE, sin_TE = self.tables(1 << (end - 1).bit_length(), x_BHTE)
        return _rotated(x_BHTE, cos_TE[first:end], sin_TE[first:end])


def _rotated(x_BHTE: Tensor, cos_TE: Tensor, sin_TE: Tensor) -> Tensor:
    left, right = x_BHTE.chunk(2, dim=-1)
    return x_BHTE * cos_TE + torch.cat((-right, left), dim=-1) * sin_TE


class Attention(nn.Module):
    """Causal self-attention with rotary positions, grouped query heads and optional QK-norm."""

    def __init__(self, model: ModelConfig, rotary: Rotary) -> None:
        super().__init__()
        d, kv_width = model.d_model, model.n_key_value_heads * model.head_dim
        self.head_dim = model.head_dim
        self.grouped = model.n_key_value_heads != model.n_heads
        self.rotary = rotary
        self.query = nn.Linear(d, d, bias=False)
        self.key = nn.Linear(d, kv_width, bias=False)
        self.value = nn.Linear(d, kv_width, bias=False)
        self.output = nn.Linear(d, d, bias=False)
        self.query_norm = RMSNorm(model.head_dim, model.norm_eps) if model.qk_norm else None
        self.key_norm = RMSNorm(model.head_dim, model.norm_eps) if model.qk_norm else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Attend; [B, T, D] to [B, T, D]."""
        q_BHTE, k_BKTE = self.queries_and_keys(x_BTD)
        mixed_BHTE = F.scaled_dot_product_attention(
            self.rotary(q_BHTE),
            self.rotary(k_BKTE),
            self.values(x_BTD),
            is_causal=True,
            enable_gqa=self.grouped,
        )
        return self.merged(mixed_BHTE)

    def queries_and_keys(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries [B, H, T, E] and keys [B, K, T, E], not yet rotated."""
        q_BHTE, k_BKTE = self._heads(self.query, x_BTD), self._heads(self.key, x_BTD)
        if self.query_norm is not None and self.key_norm is not None:
            q_BHTE, k_BKTE = self.query_norm(q_BHTE), self.key_norm(k_BKTE)
        return q_BHTE, k_BKTE

    def values(self, x_BTD: Tensor) -> Tensor:
        """Return values, [B, K, T, E]."""
        return self._heads(self.value, x_BTD)

    def merged(self, mixed_BHTE: Tensor) -> Tensor:
        """Return what attention writes, of what its heads have seen; to [B, T, D]."""
        return self.output(mixed_BHTE.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, projection: nn.Module, x_BTD: Tensor) -> Tensor:
        projected: Tensor = projection(x_BTD)
        return projected.view(*x_BTD.shape[:2], -1, self.head_dim).transpose(1, 2)


class SwiGLU(nn.Module):
    """Gated MLP, ``down(silu(gate(x)) * up(x))`` (Shazeer 2020, equation 6)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(model.d_model, model.ffn_width, bias=False)
        self.up = nn.Linear(model.d_model, model.ffn_width, bias=False)
        self.output = nn.Linear(model.ffn_width, model.d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Transform every token alone; [B, T, D] to [B, T, D]."""
        return self.output(F.silu(self.gate(x_BTD)) * self.up(x_BTD))  # type: ignore[no-any-return]


class Sublayer(nn.Module):
    """Pre-norm and the attention or MLP behind it: one step of the residual stream."""

    def __init__(self, body: Attention | SwiGLU, norm: RMSNorm) -> None:
        super().__init__()
        self.norm = norm
        self.body = body

    def forward(self, u_BTD: Tensor) -> Tensor:
        """Return the sublayer's output y = F(rms(u)); [B, T, D] to [B, T, D]."""
        return self.body(self.norm(u_BTD))  # type: ignore[no-any-return]
