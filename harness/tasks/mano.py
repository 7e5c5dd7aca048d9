"""Modular arithmetic in prefix notation: the value of an expression, computed without writing.

Rule: an expression of l operators is an operator from ``+ - *``, uniform, an expression of k and
one of l-1-k operators, k uniform in 0 .. l-1; without operators it is a number, uniform in
0 .. ``prime`` - 1. After ``=`` stands its value modulo ``prime``. l is uniform in 1 ..
``max_operators``. The depth of the tree is the depth of what must be composed.

Deviations: a beginning token in place of the published one that tells l; one expression in a
sequence, not as many as fit; only the answer is asked for. Published: prime 23. The defaults are a
size that a small model begins to learn on a CPU.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from pydantic import Field, model_validator

from harness.tasks.base import IGNORED, Examples, Graded, Task, task
from harness.tasks.draws import Draws, Ints

OPERATORS = 3
"""``+``, ``-`` and ``*``."""


class ManoOptions(Graded):
    """Options of modular arithmetic."""

    prime: int = Field(default=7, ge=2, le=199)
    """Numbers are counted modulo this."""
    max_operators: int = Field(default=4, ge=1, le=64)
    """Largest number of operators of an expression."""

    @model_validator(mode="after")
    def _prime(self) -> ManoOptions:
        factor = next((d for d in range(2, self.prime) if self.prime % d == 0), None)
        if factor is not None:
            raise ValueError(f"prime must be prime, got {self.prime}, which {factor} divides")
        return self


@task("mano", revision=1)
class Mano(Task):
    """Tokens: the numbers, ``+``, ``-``, ``*``, ``=``, the beginning, and padding after ``=``."""

    Options = ManoOptions
    options: ManoOptions
    summary = "the value of an expression in prefix notation, modulo a prime"
    source = (
        "Allen-Zhu 2025, Physics of Language Models: Part 4.1, arXiv 2512.17351, task Mano; one "
        "expression in a sequence"
    )
    graded_by = "operators"

    @property
    def seq_len(self) -> int:
        """The beginning, the longest expression and ``=``."""
        return 2 * self.options.max_operators + 3

    @property
    def vocab_size(self) -> int:
        """Numbers, operators, ``=``, beginning and padding."""
        return self.options.prime + OPERATORS + 3

    @property
    def levels(self) -> tuple[int, ...]:
        """Operators 1 .. ``max_operators``."""
        return tuple(range(1, self.options.max_operators + 1))

    @cached_property
    def _results(self) -> Ints:
        """``[operator, left, right]``: values."""
        x, y = np.indices((self.options.prime, self.options.prime))
        return np.stack([x + y, x - y, x * y]) % self.options.prime

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        """Write expressions of up to ``hardest`` operators."""
        prime, most = self.options.prime, self.options.max_operators
        count = 1 + draws.integers(hardest, n)
        trees = Trees(draws.orders(n, most).T, count)
        operators = draws.integers(OPERATORS, most, n)
        numbers = draws.integers(prime, most + 1, n)
        equals, beginning, padding = range(prime + OPERATORS, self.vocab_size)
        inputs = np.full((self.seq_len + 1, n), padding)  # the last row takes what is unused
        inputs[0] = beginning
        np.put_along_axis(inputs, 1 + trees.nodes, prime + operators, axis=0)
        np.put_along_axis(inputs, 1 + trees.leaves, numbers, axis=0)
        labels = np.full((n, self.seq_len), IGNORED)
        ends, rows = 2 * count + 2, np.arange(n)
        inputs[ends, rows] = equals
        labels[rows, ends] = trees.evaluate(operators, numbers, self._results)
        difficulty = np.where(labels == IGNORED, 0, count[:, None])
        return Examples(np.ascontiguousarray(inputs[:-1].T), labels, difficulty)


class Trees:
    """Binary trees of operators, one per column, whose left sizes are uniform.

    Read from left to right with the operators between their operands, a tree is an order of its
    operators: the smallest is the root, and cuts the rest into left and right. In a random order
    every place is equally likely to be the smallest, at every level.

    Parameters
    ----------
    order
        Random orders of 0 .. m-1, ``[m, n]``.
    count
        Operators in use, ``[n]``: the first places of a column.
    """

    def __init__(self, order: Ints, count: Ints) -> None:
        m = len(order)
        self.count = count
        place = np.arange(m, dtype=np.int16)[:, None]  # small: [m, m, n] are made of it
        used = place < count
        self.ranks = np.where(used, order, -1).astype(np.int16)
        above = self.ranks < self.ranks[:, None]  # [i, j, n]: j bounds what i spans
        right = np.arange(m) > place  # [i, j]: j stands right of i
        first = np.where(above & right.T[:, :, None], place + 1, 0).max(axis=1)
        self.first = first.astype(np.int64)
        """First number that an operator spans, ``[m, n]``."""
        self.last = np.where(above & right[:, :, None], place, m).min(axis=1).astype(np.int64)
        """Last number that an operator spans, ``[m, n]``."""
        over = right[:, :, None] & used & (first <= place[:, None])  # i in j's left operand
        before = over.sum(axis=1)  # operators right of i that precede it in prefix order
        beyond = 2 * m + 2
        self.nodes = np.where(used, 2 * self.first + before, beyond)
        """Places of the operators in prefix order, ``[m, n]``; 2 m + 2 where unused."""
        self.leaves = np.full((m + 1, len(count)), beyond)
        """Places of the numbers in prefix order, ``[m + 1, n]``; 2 m + 2 where unused."""
        self.leaves[:-1] = np.where(used, 2 * place + before + 1, beyond)
        np.put_along_axis(self.leaves, count[None], 2 * count[None], axis=0)

    def evaluate(self, operators: Ints, numbers: Ints, results: Ints) -> Ints:
        """Return the values of the trees, ``[n]``, for ``results[operator, left, right]``.

        From the leaves up: the value of a subtree stands at both ends of what it spans, and so
        next to the operator above it.
        """
        m, n = self.ranks.shape
        columns = np.arange(n)
        left = np.argsort(-self.ranks, axis=0, kind="stable") * n + columns
        first, last = (ends.ravel()[left] * n + columns for ends in (self.first, self.last))
        right, side, table = left + n, results.shape[1], results.ravel()
        entry = operators.ravel()[left] * side**2
        values, value = numbers.flatten(), np.empty((m, n), dtype=np.int64)
        for step in range(m):
            x, y = values[left[step]], values[right[step]]
            value[step] = table[entry[step] + x * side + y]
            values[first[step]] = values[last[step]] = value[step]
        return value[self.count - 1, columns]
