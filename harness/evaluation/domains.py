"""Bits per byte by domain: the loss on the validation split of corpora, prose against code.

The windows are those of training's own validation: evenly spread over the split, ``seq_len`` tokens
each, none of them sharing a target. A corpus of another tokenizer is encoded in the model's own.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

from harness.corpora import describe
from harness.errors import DataError
from harness.evaluation.base import Entry, Evaluation, Metrics, Settings

if TYPE_CHECKING:
    from harness.loading import LoadedModel

REVISION = 1
BATCH_SEQS = 32
"""Sequences of a forward pass, as in training's validation: the same sums, bit for bit."""


def entries(argument: str | None, settings: Settings) -> list[Entry]:
    """One entry for each corpus; ``domains:CORPUS`` names one."""
    return [_entry(corpus, settings) for corpus in ([argument] if argument else settings.corpora)]


def _entry(corpus: str, settings: Settings) -> Entry:
    info = describe(corpus)
    return Entry(
        name=f"domains:{info.name}",
        measure=functools.partial(measure, corpus=corpus, tokens=settings.tokens),
        headline=("bits_per_byte",),
        identity={"corpus": info.sha256, "tokens": settings.tokens, "revision": REVISION},
    )


def measure(subject: LoadedModel, *, corpus: str, tokens: int) -> Metrics:
    """Loss on the validation split of one corpus.

    Parameters
    ----------
    tokens
        Targets to score, rounded down to whole windows; as many as there are where the split has
        fewer.

    Returns
    -------
    dict
        ``bits_per_byte = loss_nats / ln 2 x n_tokens / n_bytes``, ``nats_per_byte``, ``loss_nats``
        (per token), ``n_tokens`` and ``n_bytes``: targets, and the bytes of text behind exactly
        these; ``n_documents_left_out``.

    Raises
    ------
    DataError
        The split is shorter than one window, or there is no such corpus.
    """
    import torch

    from harness.data import validation_batches
    from harness.evaluation.text import in_tokenizer
    from harness.module import token_loss

    spelled, left_out = in_tokenizer(corpus, subject.tokenizer)
    seq_len = subject.config.data.seq_len
    n_tokens = min(tokens, len(spelled.val) - 1) // seq_len * seq_len
    if not n_tokens:
        raise DataError(
            f"corpus '{corpus}': fewer targets than one window of {seq_len} tokens "
            f"({len(spelled.val) - 1} in its validation split, {tokens} asked for)."
        )
    device = next(subject.model.parameters()).device
    total, n_bytes = 0.0, 0
    with torch.no_grad():
        for batch in validation_batches(
            spelled, seq_len=seq_len, eval_tokens=n_tokens, batch_seqs=BATCH_SEQS
        ):
            loss = token_loss(subject.model, torch.from_numpy(batch).to(device))
            total += loss.item() * len(batch) * seq_len
            n_bytes += int(spelled.token_bytes[batch[:, 1:]].sum(dtype="int64"))
    return {
        "bits_per_byte": total / math.log(2) / n_bytes,
        "nats_per_byte": total / n_bytes,
        "loss_nats": total / n_tokens,
        "n_tokens": n_tokens,
        "n_bytes": n_bytes,
        "n_documents_left_out": left_out,
    }


EVALUATION = Evaluation(
    name="domains",
    summary="bits per byte on the validation split of corpora: prose (sotu) and code (pysrc)",
    entries=entries,
    default=True,
)
