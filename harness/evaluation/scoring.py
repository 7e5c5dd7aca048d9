"""Log-probabilities of given tokens: rows of unequal length in batches, and long texts in windows.

Rows are padded on the right, which a causal model does not see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

BATCH_TOKENS = 8192
"""Tokens of a forward pass."""
BATCH_LOGITS = 1 << 26
"""Logits of a forward pass: 256 MB in fp32."""
Floats = npt.NDArray[np.float64]
Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Row:
    """Tokens of which the last ``n_targets`` are scored, given all that stand before them."""

    tokens: tuple[int, ...]
    n_targets: int


@torch.no_grad()
def score(
    model: Model, rows: Sequence[Row], *, vocab_size: int, endings: Tensor | None = None
) -> tuple[list[Floats], Floats]:
    """Score rows of tokens.

    Parameters
    ----------
    model
        Token ids [B, T] to logits [B, T, vocab_size]; on one device, in evaluation mode.
    rows
        What to score; at least one token precedes the targets of each.
    endings
        Sets of tokens, boolean [K, vocab_size]: for each row, how likely it is that the token
        after its last is one of the set. None: not asked.

    Returns
    -------
    list of array
        For each row, ln p of its targets, [n_targets].
    array
        ln p of each set after each row, [len(rows), K]; K = 0 without ``endings``.
    """
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].tokens))
    targets: list[Floats] = [np.empty(0)] * len(rows)
    after = np.empty((len(rows), 0 if endings is None else len(endings)))
    device = _device_of(model)
    budget = max(1, min(BATCH_TOKENS, BATCH_LOGITS // vocab_size))
    for batch in _batches([(i, len(rows[i].tokens)) for i in order], budget):
        padded = _padded([rows[i].tokens for i in batch]).to(device)
        log_probs = torch.log_softmax(model(padded).float(), dim=-1)
        for place, i in enumerate(batch):
            row, end = rows[i], len(rows[i].tokens)
            first = end - row.n_targets
            wanted = padded[place, first:end, None]
            found = log_probs[place, first - 1 : end - 1].gather(-1, wanted)[:, 0]
            targets[i] = found.double().cpu().numpy()
            if endings is not None:
                last = log_probs[place, end - 1].double().cpu()
                sets = [torch.logsumexp(last[chosen], dim=0).item() for chosen in endings]
                after[i] = sets
    return targets, after


def windows(context: Sequence[int], targets: Sequence[int], seq_len: int) -> list[Row]:
    """Rows that score every target once, none of them reading more than ``seq_len`` tokens.

    Where context and targets do not fit together, targets come in pieces of ``seq_len // 2``, each
    after as much of what stands before it as fits; fewer than that come in one.

    Parameters
    ----------
    context
        At least one token.
    """
    tokens = (*context, *targets)
    piece = len(targets) if len(tokens) <= seq_len + 1 else max(1, seq_len // 2)
    rows = []
    for first in range(len(context), len(tokens), max(1, piece)):
        end = min(first + piece, len(tokens))
        rows.append(Row(tokens[max(0, end - seq_len - 1) : end], end - first))
    return rows


def _batches(lengths: Sequence[tuple[int, int]], budget: int) -> list[list[int]]:
    """Group rows, ordered by length, so that a padded batch holds at most ``budget`` tokens."""
    groups: list[list[int]] = []
    for index, length in lengths:
        if not groups or (len(groups[-1]) + 1) * length > budget:
            groups.append([])
        groups[-1].append(index)
    return groups


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    padded = torch.zeros(len(rows), max(map(len, rows)), dtype=torch.int64)
    for place, row in enumerate(rows):
        padded[place, : len(row)] = torch.tensor(row)
    return padded


def _device_of(model: Model) -> torch.device:
    if isinstance(model, torch.nn.Module):
        return next(model.parameters()).device
    return torch.device("cpu")
