"""Decoding with a cache: a new token costs one pass over itself, whatever the recipe.

A recipe's state belongs to one pass over the depth, so none of it has to outlive a token: what a
read returns is a function of the embedding and of the sublayers' outputs, of the token itself and,
for recipes that mix tokens, of the :meth:`~recipes.base.Residual.token_reach` tokens before it.
Those outputs are kept, one short window per sublayer, and the residual stream is run over the
window and the new tokens. The sublayers see the new tokens alone; attention keeps keys and values.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.decoding.cache import KeyValues, Recent
from harness.layers import Attention, Sublayer
from harness.model import Transformer


class Decoder:
    """Reads sequences piece by piece; gives the logits that one pass over the whole would give.

    Parameters
    ----------
    model
        Any recipe; its parameters are neither changed nor given gradients.

    Notes
    -----
    The first piece sets the number of rows. Pieces may have any length; rounding apart, the logits
    do not depend on how a sequence is cut.
    """

    def __init__(self, model: Transformer) -> None:
        residual = model.residual
        reach = residual.token_reach(residual.shape, residual.options)
        self.model = model
        self._embeddings = Recent(reach)
        self._outputs = [Recent(reach) for _ in model.sublayers]
        self._attended = [KeyValues() for _ in model.sublayers]

    @torch.no_grad()
    def prefill(self, tokens: Tensor) -> Tensor:
        """Read the next tokens of every row, [B, T]; return their logits, [B, T, vocab_size]."""
        return self.model.logits(self._hidden(tokens))

    @torch.no_grad()
    def last(self, tokens: Tensor) -> Tensor:
        """Read the next tokens of every row, [B, T]; return the last one's logits, [B, V]."""
        return self.model.logits(self._hidden(tokens)[:, -1])

    def step(self, tokens: Tensor) -> Tensor:
        """Read one token of every row, [B]; return its logits, [B, vocab_size]."""
        return self.last(tokens[:, None])

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows of the batch alone, in this order; int64 [n]."""
        parts: list[Recent | KeyValues] = [self._embeddings, *self._outputs, *self._attended]
        for part in parts:
            part.keep(rows)

    def _hidden(self, tokens_BT: Tensor) -> Tensor:
        """Return what the final norm sees of the new tokens, [B, T, D]."""
        residual, n_new = self.model.residual, tokens_BT.shape[1]
        state = residual.start(self._embeddings.extend(self.model.embedding(tokens_BT)))
        for t, sublayer in enumerate(self.model.sublayers):
            u_BTD, state = residual.read(state, t)
            y_BTD = _output(sublayer, u_BTD[:, -n_new:], self._attended[t])  # type: ignore[arg-type]
            y_BTD = self._outputs[t].extend(y_BTD * self.model.branch_multiplier)
            state = residual.write(state, y_BTD, t)
        return residual.finish(state)[:, -n_new:]


def _output(sublayer: Sublayer, u_BTD: Tensor, cache: KeyValues) -> Tensor:
    body, x_BTD = sublayer.body, sublayer.norm(u_BTD)
    if isinstance(body, Attention):
        return attend(body, x_BTD, cache)
    return body(x_BTD)  # type: ignore[no-any-return]


def attend(attention: Attention, x_BTD: Tensor, cache: KeyValues) -> Tensor:
    """Attend from new tokens to themselves and to all before; [B, T, D] to [B, T, D].

    Parameters
    ----------
    cache
        Keys, rotated, and values of the tokens before; the new ones are entered.
    """
    first = cache.n_tokens
    q_BHTE, k_BKTE = attention.queries_and_keys(x_BTD)
    keys, values = cache.extend(attention.rotary.at(k_BKTE, first), attention.values(x_BTD))
    mixed_BHTE = F.scaled_dot_product_attention(
        attention.rotary.at(q_BHTE, first),
        keys,
        values,
        attn_mask=_visible(first, q_BHTE),
        is_causal=first == 0,
        enable_gqa=attention.grouped,
    )
    return attention.merged(mixed_BHTE)


def _visible(first: int, q_BHTE: Tensor) -> Tensor | None:
    """Which tokens each new one sees, [T, N]; None where the plain causal mask, or none, does."""
    n_new = q_BHTE.shape[-2]
    if first == 0 or n_new == 1:
        return None
    everything = torch.ones(n_new, first + n_new, dtype=torch.bool, device=q_BHTE.device)
    return everything.tril(first)
