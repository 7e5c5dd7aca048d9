"""Batches of tokens as pure functions.

A training batch depends on (corpus, seq_len, batch_tokens, seed, step) and on nothing else: no
epochs, no reader state, so resuming is exact and arms that share a seed see the same text. The
validation set is fixed. Works on the arrays of a :class:`~harness.corpora.TokenCorpus`; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from harness.corpora import TokenCorpus
from harness.errors import DataError
from harness.tokenization import Tokens

Batch = npt.NDArray[np.int64]

STREAM = 0x6461_7461
"""Second half of the Philox key: keeps the data stream apart from other uses of a run's seed."""


class TokenBatches:
    """Random windows of the training split, drawn with replacement by a counter-based generator.

    Window starts are uniform over all positions where ``seq_len + 1`` tokens fit; windows may
    cross documents, which a separator token marks.

    Parameters
    ----------
    corpus
        Where the tokens come from.
    seq_len
        Tokens of context.
    batch_tokens
        Targets per optimiser step; a multiple of ``seq_len``.
    seed
        Chooses the sequence of batches, in 0..2^64-1.

    Raises
    ------
    DataError
        The training split is shorter than one window, or ``batch_tokens`` is no multiple.
    """

    def __init__(self, corpus: TokenCorpus, *, seq_len: int, batch_tokens: int, seed: int) -> None:
        _require_multiple("train.batch_tokens", batch_tokens, seq_len)
        self.n_starts = len(corpus.train) - seq_len
        if self.n_starts < 1:
            raise DataError(
                f"corpus '{corpus.info.name}' has {len(corpus.train)} training tokens, but one "
                f"window of data.seq_len {seq_len} needs {seq_len + 1}."
            )
        self.n_sequences = batch_tokens // seq_len
        self._train = corpus.train
        self._seq_len = seq_len
        self._key = np.array([seed, STREAM], dtype=np.uint64)

    def starts(self, step: int) -> Batch:
        """Positions of the windows of one step, ``[batch_tokens // seq_len]``.

        Philox4x64-10 (Salmon et al., SC 2011) with key (seed, STREAM) and counter (0, step, 0, 0);
        raw 64-bit words modulo the number of starts (bias below n_starts / 2^64). Raw words,
        because numpy promises their stability and not that of its integer sampling.
        """
        counter = np.array([0, step, 0, 0], dtype=np.uint64)
        words = np.random.Philox(key=self._key, counter=counter).random_raw(self.n_sequences)
        return (words % np.uint64(self.n_starts)).astype(np.int64)

    def batch(self, step: int) -> Batch:
        """Windows of one step, ``[batch_tokens // seq_len, seq_len + 1]``.

        Columns ``[:-1]`` are inputs, ``[1:]`` their targets.
        """
        return _windows(self._train, self.starts(step), self._seq_len)


def validation_starts(corpus: TokenCorpus, *, seq_len: int, eval_tokens: int) -> Batch:
    """Positions of the fixed validation windows, ``[eval_tokens // seq_len]``.

    Window i of n starts at floor(i (n_val_tokens - 1) / n): evenly spread over the whole split, so
    that a small set still samples all its documents, and never sharing a target.

    Raises
    ------
    DataError
        ``eval_tokens`` is no multiple of ``seq_len``, or the split has fewer targets.
    """
    _require_multiple("train.eval_tokens", eval_tokens, seq_len)
    n_targets = len(corpus.val) - 1
    if eval_tokens > n_targets:
        most = n_targets // seq_len * seq_len
        raise DataError(
            f"train.eval_tokens {eval_tokens} exceeds the validation split of corpus "
            f"'{corpus.info.name}': {n_targets} targets, at most {most} in windows of "
            f"data.seq_len {seq_len}."
        )
    n = eval_tokens // seq_len
    return np.arange(n, dtype=np.int64) * n_targets // n


def validation_batches(
    corpus: TokenCorpus, *, seq_len: int, eval_tokens: int, batch_seqs: int
) -> Iterator[Batch]:
    """Yield the fixed validation windows in groups, each ``[<= batch_seqs, seq_len + 1]``.

    Exactly ``eval_tokens`` targets in all, none of them twice; only the last group may be smaller.

    Raises
    ------
    DataError
        As :func:`validation_starts`, at the call and not at the first batch.
    """
    starts = validation_starts(corpus, seq_len=seq_len, eval_tokens=eval_tokens)
    groups = range(0, len(starts), batch_seqs)
    return (_windows(corpus.val, starts[i : i + batch_seqs], seq_len) for i in groups)


def validation_bytes_per_token(corpus: TokenCorpus, *, seq_len: int, eval_tokens: int) -> float:
    """Bytes of text per target of the fixed validation set.

    Exact for the targets that :func:`validation_batches` yields, where
    ``corpus.info.val_bytes_per_token`` is the mean of the whole split. Both are 1 for bytes.
    """
    groups = validation_batches(corpus, seq_len=seq_len, eval_tokens=eval_tokens, batch_seqs=64)
    total = sum(int(corpus.token_bytes[group[:, 1:]].sum(dtype=np.int64)) for group in groups)
    return total / eval_tokens


def bits_per_byte(loss_nats: float, bytes_per_token: float) -> float:
    """Loss per byte of text, comparable over tokenizers: loss_nats / ln 2 / bytes_per_token.

    Parameters
    ----------
    loss_nats
        Mean cross-entropy per token, in nats.
    bytes_per_token
        Mean bytes of text behind the same tokens.
    """
    return loss_nats / math.log(2) / bytes_per_token


def _windows(tokens: Tokens, starts: Batch, seq_len: int) -> Batch:
    windows: Batch = tokens[starts[:, None] + np.arange(seq_len + 1)].astype(np.int64)
    return windows


def _require_multiple(name: str, value: int, seq_len: int) -> None:
    if value < seq_len or value % seq_len:
        raise DataError(f"{name} must be a multiple of data.seq_len {seq_len}, got {value}.")
