"""Code cloze: does a model know which identifier, which bracket comes next in held-out code?

The likeliest candidate is the model's answer. What is compared are probabilities of events that
exclude each other, so that no correction for length is needed, nor would be right:

* an identifier: p(its characters) x p(the next character ends it); without the end, a name that
  begins another one (``x`` and ``x_max``) would always be at least as likely;
* a bracket: p(the next character is this one), summed over all tokens that begin with it.

Blanks before an identifier go with it, since subword tokenizers join them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from harness.corpora import describe
from harness.errors import DataError, IsolossError
from harness.evaluation.base import Entry, Evaluation, Metrics, Settings
from harness.evaluation.code_items import Item, bracket_items, identifier_items

if TYPE_CHECKING:
    from torch import Tensor

    from harness.evaluation.scoring import Floats
    from harness.loading import LoadedModel
    from harness.tokenization import Tokenizer

REVISION = 1
N_ITEMS = 255
"""Questions of each kind, where nothing else is asked: an interval of about 6 points."""
Z_95 = 1.959963984540054
"""Normal quantile of a 95% interval."""


def entries(argument: str | None, settings: Settings) -> list[Entry]:
    """Both kinds of question; ``code_cloze:identifiers`` or ``code_cloze:brackets`` is one."""
    if argument not in (None, *_KINDS):
        raise IsolossError(
            f"code_cloze has no part '{argument}'. There are: {', '.join(sorted(_KINDS))}."
        )
    info = describe(settings.code_corpus)
    n = settings.limit or N_ITEMS
    return [
        Entry(
            name=f"code_cloze:{kind}",
            measure=functools.partial(
                measure, kind=kind, corpus=settings.code_corpus, sha256=info.sha256, n=n
            ),
            headline=("accuracy",),
            identity={"corpus": info.sha256, "items": n, "revision": REVISION},
        )
        for kind in ([argument] if argument else sorted(_KINDS))
    ]


@functools.lru_cache(maxsize=8)
def items(kind: str, corpus: str, sha256: str, n: int) -> tuple[Item, ...]:
    """Questions from the validation split of a corpus; once per process.

    Raises
    ------
    DataError
        The split holds no Python code to ask about.
    """
    from harness.evaluation.text import documents

    found = _KINDS[kind][0](documents(corpus), n)
    if not found:
        raise DataError(
            f"corpus '{corpus}': its validation split holds no Python code to ask about. "
            "Name one that does: --code-corpus"
        )
    return tuple(found)


def measure(subject: LoadedModel, *, kind: str, corpus: str, sha256: str, n: int) -> Metrics:
    """Answer the questions of one kind.

    Returns
    -------
    dict
        ``accuracy`` with its Wilson 95% interval ``accuracy_low`` .. ``accuracy_high``; ``chance``;
        ``choice_loss_nats``: mean -ln p(right candidate | one of the candidates); ``n_items``; for
        identifiers ``accuracy_by_count``: that of the commonest candidate of each context.
    """
    asked = items(kind, corpus, sha256, n)
    scores = _KINDS[kind][1](subject, asked)
    right = np.array([item.answer for item in asked])
    hits = int((scores.argmax(axis=1) == right).sum())
    low, high = wilson(hits, len(asked))
    chosen = scores[np.arange(len(asked)), right] - np.logaddexp.reduce(scores, axis=1)
    counted = [item.guess == item.answer for item in asked if item.guess is not None]
    by_count = {"accuracy_by_count": sum(counted) / len(counted)} if counted else {}
    return {
        "accuracy": hits / len(asked),
        "accuracy_low": low,
        "accuracy_high": high,
        "chance": 1 / scores.shape[1],
        "choice_loss_nats": -float(chosen.mean()),
        "n_items": len(asked),
        **by_count,
    }


def wilson(hits: int, n: int, z: float = Z_95) -> tuple[float, float]:
    """Wilson's score interval of a share (Wilson 1927): (p + z^2/2n +- z s) / (1 + z^2/n), where
    s^2 = p (1 - p) / n + z^2 / 4n^2.
    """
    share = hits / n
    half = z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def identifier_scores(subject: LoadedModel, asked: Sequence[Item]) -> Floats:
    """Ln p(candidate, then its end | context), ``[n_items, n_candidates]``."""
    from harness.evaluation.scoring import Row, score

    tokenizer, seq_len = subject.tokenizer, subject.config.data.seq_len
    rows = []
    for item in asked:
        context = item.context.rstrip(b" ")
        blanks = item.context[len(context) :]
        before, *after = tokenizer.encode([context, *(blanks + c for c in item.candidates)])
        room = max(1, seq_len - max(map(len, after)))
        rows += [Row((*before.tolist()[-room:], *own.tolist()), len(own)) for own in after]
    ends = beginning_with(tokenizer, lambda byte: not _continues_identifier(byte))
    targets, endings = score(
        subject.model, rows, vocab_size=tokenizer.vocab_size, endings=ends[None]
    )
    spelled = np.array([log_probs.sum() for log_probs in targets])
    return (spelled + endings[:, 0]).reshape(len(asked), -1)


def bracket_scores(subject: LoadedModel, asked: Sequence[Item]) -> Floats:
    """Ln p(the next character is the candidate | context), ``[n_items, n_candidates]``."""
    import torch

    from harness.evaluation.scoring import Row, score

    tokenizer, seq_len = subject.tokenizer, subject.config.data.seq_len
    encoded = tokenizer.encode([item.context for item in asked])
    rows = [Row(tuple(tokens.tolist()[-seq_len:]), 0) for tokens in encoded]
    sets = [beginning_with(tokenizer, c[0].__eq__) for c in asked[0].candidates]
    _, endings = score(
        subject.model, rows, vocab_size=tokenizer.vocab_size, endings=torch.stack(sets)
    )
    return endings


def beginning_with(tokenizer: Tokenizer, wanted: Callable[[int], bool]) -> Tensor:
    """Tokens whose first byte is wanted, boolean ``[vocab_size]``; the separator is a byte 0."""
    import torch

    lengths = tokenizer.token_bytes().astype(np.int64)
    spelled = np.flatnonzero(lengths).astype(np.uint32)  # tiktoken leaves some ids unused
    text = tokenizer.decode(spelled)
    starts = np.cumsum(lengths[spelled]) - lengths[spelled]
    chosen = torch.zeros(tokenizer.vocab_size, dtype=torch.bool)
    chosen[spelled.astype(np.int64)] = torch.tensor([bool(wanted(text[at])) for at in starts])
    return chosen


def _continues_identifier(byte: int) -> bool:
    """Letters, digits, underscores, and whatever is not ASCII."""
    return byte >= 128 or chr(byte).isalnum() or byte == ord("_")


_KINDS = {
    "identifiers": (identifier_items, identifier_scores),
    "brackets": (bracket_items, bracket_scores),
}

EVALUATION = Evaluation(
    name="code_cloze",
    summary="held-out code: which identifier, which bracket comes next",
    entries=entries,
    default=True,
)
