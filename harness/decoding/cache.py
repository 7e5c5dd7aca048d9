"""What decoding keeps of earlier tokens: keys and values, and the last outputs of each sublayer.

Shapes: B batch, K key/value heads, T new tokens, N all tokens so far, E head_dim, D d_model.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KeyValues:
    """Keys and values of one attention sublayer, in buffers that double when they are full."""

    def __init__(self) -> None:
        self.n_tokens = 0
        """Tokens seen so far."""
        self._buffers: tuple[Tensor, Tensor] | None = None

    def extend(self, k_BKTE: Tensor, v_BKTE: Tensor) -> tuple[Tensor, Tensor]:
        """Enter new tokens; return the keys and values of all, each [B, K, N, E]."""
        first, end = self.n_tokens, self.n_tokens + k_BKTE.shape[-2]
        keys, values = self._with_room(end, k_BKTE, v_BKTE)
        keys[:, :, first:end] = k_BKTE
        values[:, :, first:end] = v_BKTE
        self.n_tokens = end
        return keys[:, :, :end], values[:, :, :end]

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows of the batch alone."""
        if self._buffers is not None:
            keys, values = self._buffers
            self._buffers = keys[rows], values[rows]

    def _with_room(self, end: int, *like: Tensor) -> tuple[Tensor, Tensor]:
        if self._buffers is not None and self._buffers[0].shape[-2] >= end:
            return self._buffers
        keys, values = (_empty(x_BKTE, 1 << (end - 1).bit_length()) for x_BKTE in like)
        for new, old in zip((keys, values), self._buffers or (), strict=False):
            new[:, :, : self.n_tokens] = old[:, :, : self.n_tokens]
        self._buffers = keys, values
        return keys, values


def _empty(like_BKTE: Tensor, capacity: int) -> Tensor:
    batch, heads, _, width = like_BKTE.shape
    return like_BKTE.new_empty(batch, heads, capacity, width)


class Recent:
    """The newest tokens of a sequence of vectors, as many as a recipe's reads reach back.

    Parameters
    ----------
    reach
        Tokens kept; 0 keeps nothing.
    """

    def __init__(self, reach: int) -> None:
        self._reach = reach
        self._kept: Tensor | None = None

    def extend(self, x_BTD: Tensor) -> Tensor:
        """Return what is kept and the new tokens, then keep the newest of them."""
        if not self._reach:
            return x_BTD
        seen = x_BTD if self._kept is None else torch.cat((self._kept, x_BTD), dim=1)
        self._kept = seen[:, -self._reach :]
        return seen

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows of the batch alone."""
        if self._kept is not None:
            self._kept = self._kept[rows]
