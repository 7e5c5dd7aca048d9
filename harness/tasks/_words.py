"""Word problems of finite groups: what the two files with a group share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from harness.tasks.base import IGNORED, Examples, Graded, Task
from harness.tasks.draws import Draws, Ints

Permutation = tuple[int, ...]


class WordOptions(Graded):
    """Options of a word problem."""

    length: PositiveInt = 16
    """Group elements in a sequence."""


class WordProblem(Task):
    """Elements ``x_1 … x_T``, uniform; the label at every position is ``y_t = x_t o y_(t-1)``.

    A beginning-of-sequence token leads: without it, rotary positions cannot tell ``[a]`` from
    ``[a, a]``. Tokens 0 .. |G|-1 are elements in the order of :attr:`elements`, |G| the beginning.
    """

    Options = WordOptions
    options: WordOptions
    graded_by = "length"
    elements: ClassVar[Sequence[Permutation]]
    """The group, as permutations of 0..k-1; ``(a o b)(i) = a(b(i))``."""
    products: ClassVar[Ints]
    """``[|G|, |G|]``: index of ``a o b``."""

    @property
    def seq_len(self) -> int:
        """The beginning and ``length`` elements."""
        return self.options.length + 1

    @property
    def vocab_size(self) -> int:
        """Elements of the group and the beginning."""
        return len(self.elements) + 1

    @property
    def levels(self) -> tuple[int, ...]:
        """Lengths 1 .. ``length``: every prefix is a word of its own."""
        return tuple(range(1, self.options.length + 1))

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        """Write words; prefixes longer than ``hardest`` are not asked for."""
        length, order = self.options.length, len(self.elements)
        words = draws.integers(order, n, length)
        inputs = np.concatenate([np.full((n, 1), order), words], axis=1)
        labels = np.full((n, length + 1), IGNORED)
        labels[:, 1] = words[:, 0]
        for t in range(1, hardest):
            labels[:, t + 1] = self.products[words[:, t], labels[:, t]]
        lengths = np.broadcast_to(np.arange(length + 1), labels.shape)
        return Examples(inputs, labels, np.where(labels == IGNORED, 0, lengths))


def even(permutation: Permutation) -> bool:
    """Whether a permutation has an even number of inversions."""
    pairs = itertools.combinations(permutation, 2)
    return sum(a > b for a, b in pairs) % 2 == 0


def multiplication_table(elements: Sequence[Permutation]) -> Ints:
    """Indices of ``a o b``, ``[|G|, |G|]``."""
    index = {element: i for i, element in enumerate(elements)}
    rows = [[index[tuple(a[i] for i in b)] for b in elements] for a in elements]
    return np.array(rows, dtype=np.int64)
