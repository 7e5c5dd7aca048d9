"""The validation text of a corpus, document by document, in any tokenizer. No torch."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from harness.corpora import TokenCorpus, open_corpus, tokenizer_of
from harness.errors import DataError
from harness.tokenization import Tokenizer, token_dtype, tokenizer_sha256


def documents(corpus: str) -> Iterator[bytes]:
    """Documents of the validation split, in the order of their hash: a random one.

    Raises
    ------
    DataError
        There is no such corpus.
    """
    tokenizer = tokenizer_of(corpus)
    tokens = open_corpus(corpus).val
    ends = [*np.flatnonzero(tokens == tokenizer.separator).tolist(), len(tokens)]
    first = 0
    for end in ends:
        yield tokenizer.decode(np.asarray(tokens[first:end]))
        first = end + 1


def in_tokenizer(corpus: str, tokenizer: Tokenizer) -> tuple[TokenCorpus, int]:
    """A corpus whose validation split is spelled in a model's tokenizer.

    Where that is the corpus' own, it is the corpus as it is. Otherwise every document is decoded to
    bytes and encoded anew, one separator between two, so that the same bytes stand behind it; the
    training split stays as it is and must not be read. Documents that are not UTF-8 are left out
    for tokenizers that take text only.

    Returns
    -------
    TokenCorpus
        With the tokenizer's ids and bytes per id.
    int
        Documents left out.

    Raises
    ------
    DataError
        There is no such corpus, or no document of it is UTF-8.
    """
    opened = open_corpus(corpus)
    if tokenizer_sha256(tokenizer_of(corpus)) == tokenizer_sha256(tokenizer):
        return opened, 0
    return _encoded(corpus, opened.info.sha256, _Hashed(tokenizer))


class _Hashed:
    """A tokenizer that is equal to any other of its vocabulary: a key of a cache."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.sha256 = tokenizer, tokenizer_sha256(tokenizer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashed) and other.sha256 == self.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)


@functools.lru_cache(maxsize=4)
def _encoded(corpus: str, _sha256: str, key: _Hashed) -> tuple[TokenCorpus, int]:
    """Once per process: the runs of a sweep share it."""
    tokenizer, opened = key.tokenizer, open_corpus(corpus)
    every = list(documents(corpus))
    kept = every if tokenizer.kind == "byte" else [text for text in every if _is_utf8(text)]
    if not kept:
        raise DataError(f"corpus '{corpus}': no document of its validation split is UTF-8 text.")
    separator = np.array([tokenizer.separator])
    parts = [part for tokens in tokenizer.encode(kept) for part in (separator, tokens)]
    val = np.concatenate(parts[1:]).astype(token_dtype(tokenizer.vocab_size))
    lengths = tokenizer.token_bytes()
    return dataclasses.replace(opened, val=val, token_bytes=lengths), len(every) - len(kept)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
