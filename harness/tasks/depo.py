"""Pointer chasing in Depo form: k steps along a directed cycle whose edges stand in random order.

Rule: n different words in random order form one cycle; its n edges ``word successor`` follow the
beginning in random order; then come ``n_queries`` times ``HOP_k word ANS answer``, about different
words, k uniform in 1 .. ``max_hops``, the answer k steps on; the answers are asked for. n is
drawn from ``min_words`` .. ``n_words`` with ``p(n) ~ 1 / (n + sqrt(n_words))``. Where k exceeds n
the walk goes round.

Deviations: all words have ``word_tokens`` tokens (published 5 to 7), from the smallest alphabet
that makes ``n_words`` of them (published three letters); one problem in a sequence, padded at its
end, all of them with as many queries (published: fewer where n is smaller); the validation set
is drawn as the training batches are (published: largest n, powers of two as k). As published, the
last token of a word of several comes from a second alphabet and so marks its end. Published
sizes: n in 3 .. 100, k up to 16, 10 queries. Small models stay at chance for thousands of steps
without a curriculum.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from harness.tasks.base import IGNORED, Examples, Graded, Task, task
from harness.tasks.draws import Draws, Floats, Ints


class DepoOptions(Graded):
    """Options of pointer chasing."""

    n_words: PositiveInt = 8
    """Largest number of words on the cycle."""
    min_words: int = Field(default=5, ge=2)
    """Smallest number of words on the cycle."""
    max_hops: PositiveInt = 4
    """Largest number of steps that a query asks for."""
    n_queries: PositiveInt = 5
    """Queries in a sequence, about different words."""
    word_tokens: int = Field(default=1, ge=1, le=8)
    """Tokens of a word."""

    @model_validator(mode="after")
    def _fits(self) -> DepoOptions:
        if self.min_words > self.n_words:
            raise ValueError(
                f"min_words must not exceed n_words, got min_words {self.min_words}, n_words "
                f"{self.n_words}"
            )
        if self.n_queries > self.min_words:
            raise ValueError(
                f"n_queries must not exceed min_words, because queries are about different words: "
                f"got n_queries {self.n_queries}, min_words {self.min_words}"
            )
        return self

    @property
    def alphabet(self) -> int:
        """Fewest letters that make ``n_words`` words."""
        letters = 1
        while letters**self.word_tokens < self.n_words:
            letters += 1
        return letters


@task("depo", revision=1)
class Depo(Task):
    """Tokens: letters, letters that end words of several, HOP_1 .., ANS, beginning, padding."""

    Options = DepoOptions
    options: DepoOptions
    summary = "the word k steps on along a cycle of words, for several words"
    source = (
        "Allen-Zhu 2025, Physics of Language Models: Part 4.1, arXiv 2512.17351, task Depo; words "
        "of equal length, one problem in a sequence"
    )
    graded_by = "hops"

    @property
    def seq_len(self) -> int:
        """The beginning, the edges of the longest cycle and the queries."""
        o = self.options
        return 1 + 2 * o.n_words * o.word_tokens + o.n_queries * self._query_tokens

    @property
    def vocab_size(self) -> int:
        """Letters, hops, ANS, beginning and padding."""
        return self._letters + self.options.max_hops + 3

    @property
    def levels(self) -> tuple[int, ...]:
        """Hops 1 .. ``max_hops``."""
        return tuple(range(1, self.options.max_hops + 1))

    @property
    def _letters(self) -> int:
        return self.options.alphabet * min(self.options.word_tokens, 2)

    @property
    def _query_tokens(self) -> int:
        return 2 + 2 * self.options.word_tokens

    @cached_property
    def _spelling(self) -> Ints:
        """Tokens of every word, ``[words, word_tokens]``."""
        letters, tokens = self.options.alphabet, self.options.word_tokens
        spelling: Ints = np.indices((letters,) * tokens).reshape(tokens, -1).T.copy()
        spelling[:, -1] += self._letters - letters
        return spelling

    @cached_property
    def _weights(self) -> Floats:
        o = self.options
        sizes: Floats = np.arange(o.min_words, o.n_words + 1, dtype=np.float64)
        return 1 / (sizes + math.sqrt(o.n_words))

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        """Write cycles and queries of up to ``hardest`` steps."""
        o = self.options
        size = o.min_words + draws.choices(self._weights, n, 1)
        cycle = self._spelling[draws.picks(n, len(self._spelling), o.n_words)]
        edges, starts = (first_places(draws, o.n_words, size) for _ in range(2))
        hops = 1 + draws.integers(hardest, n, o.n_queries)
        inputs = np.full((n, self.seq_len), self.vocab_size - 1)
        inputs[:, 0] = self.vocab_size - 2
        inputs[:, 1 : 1 + 2 * o.n_words * o.word_tokens] = self._edges(cycle, edges, size)
        labels = np.full(inputs.shape, IGNORED)
        difficulty = np.zeros_like(inputs)
        columns = 1 + 2 * size * o.word_tokens + np.arange(o.n_queries * self._query_tokens)
        blocks = self._queries(cycle, starts[:, : o.n_queries], hops, size)
        for array, block in zip((inputs, labels, difficulty), blocks, strict=True):
            np.put_along_axis(array, columns, block.reshape(columns.shape), axis=1)
        return Examples(inputs, labels, difficulty)

    def _edges(self, cycle: Ints, order: Ints, size: Ints) -> Ints:
        """Spell the edges in this order, padding after the last, ``[n, 2 n_words word_tokens]``."""
        ends = np.stack([order, (order + 1) % size], axis=2).reshape(len(order), -1)
        spelled = spell(cycle, ends).reshape(len(order), -1)
        used = np.arange(spelled.shape[1]) < 2 * size * self.options.word_tokens
        return np.where(used, spelled, self.vocab_size - 1)

    def _queries(self, cycle: Ints, starts: Ints, hops: Ints, size: Ints) -> tuple[Ints, ...]:
        """Inputs, labels and difficulty of the queries, each ``[n, n_queries, tokens]``."""
        w = self.options.word_tokens
        inputs = np.empty((*starts.shape, self._query_tokens), dtype=np.int64)
        labels, difficulty = np.full(inputs.shape, IGNORED), np.zeros_like(inputs)
        inputs[:, :, 0] = self._letters - 1 + hops
        inputs[:, :, 1 : 1 + w] = spell(cycle, starts)
        inputs[:, :, 1 + w] = self.vocab_size - 3
        inputs[:, :, 2 + w :] = labels[:, :, 1 + w : -1] = spell(cycle, (starts + hops) % size)
        difficulty[:, :, 1 + w : -1] = hops[:, :, None]
        return inputs, labels, difficulty


def first_places(draws: Draws, m: int, size: Ints) -> Ints:
    """Random orders of 0 .. size-1, then the rest of 0 .. m-1, ``[n, m]``."""
    order = draws.orders(len(size), m)
    unused = np.argsort(order >= size, axis=1, kind="stable")
    return np.take_along_axis(order, unused, axis=1)


def spell(cycle: Ints, places: Ints) -> Ints:
    """Tokens of the words at these places of the cycle, ``[n, places, word_tokens]``."""
    return np.take_along_axis(cycle, places[:, :, None], axis=1)
