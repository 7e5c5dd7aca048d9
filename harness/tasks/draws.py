"""Random numbers of generated tasks: pure functions of (seed, step), the same with every numpy up
to the last bit of a logarithm.

Built on the raw words of a counter-based generator, because numpy promises their stability and not
that of its sampling.
"""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]

STREAM = 0x7461_736B
"""Second half of the Philox key: keeps tasks apart from other uses of a run's seed."""
HELD_OUT = 0x6865_6C64
"""The same for the validation set, which no training seed reaches."""


class Draws:
    """The random numbers of one batch.

    Philox4x64-10 (Salmon et al., SC 2011) with key (seed, stream) and counter (0, step, 0, 0).

    Parameters
    ----------
    seed
        Chooses the sequence of batches, in 0..2^64-1.
    step
        Optimiser step, from 0.
    stream
        :data:`STREAM` for training, :data:`HELD_OUT` for validation.
    """

    def __init__(self, seed: int, step: int, stream: int = STREAM) -> None:
        key = np.array([seed, stream], dtype=np.uint64)
        counter = np.array([0, step, 0, 0], dtype=np.uint64)
        self._philox = np.random.Philox(key=key, counter=counter)

    def words(self, *shape: int) -> npt.NDArray[np.uint64]:
        """Raw 64-bit words."""
        return self._philox.random_raw(math.prod(shape)).reshape(shape)

    def integers(self, below: int | Ints, *shape: int) -> Ints:
        """Uniform integers in 0..below-1 (bias below ``below`` / 2^64).

        ``below`` may be an array that broadcasts to ``shape``.
        """
        bound = np.asarray(below).astype(np.uint64)
        return (self.words(*shape) % bound).astype(np.int64)

    def uniform(self, *shape: int) -> Floats:
        """Uniform numbers in [0, 1), multiples of 2^-53."""
        return (self.words(*shape) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def orders(self, n: int, m: int) -> Ints:
        """``n`` random orders of 0..m-1, ``[n, m]``."""
        return _smallest(self.words(n, m), m)

    def picks(self, n: int, m: int, k: int) -> Ints:
        """``n`` times ``k`` different numbers of 0..m-1 in random order, ``[n, k]``."""
        if m <= 8 * k:
            return _smallest(self.words(n, m), k)
        order = self.orders(n, k)
        return np.take_along_axis(self._subsets(n, m, k), order, axis=1)

    def _subsets(self, n: int, m: int, k: int) -> Ints:
        """Floyd's algorithm (Bentley, Floyd 1987): time and memory do not grow with ``m``."""
        drawn = self.integers(np.arange(m - k, m)[:, None] + 1, k, n)
        for i in range(1, k):
            taken = (drawn[:i] == drawn[i]).any(axis=0)
            drawn[i, taken] = m - k + i
        return drawn.T

    def weighted_picks(self, weights: Floats, n: int, k: int) -> Ints:
        """``n`` times ``k`` different indices, drawn one after the other, ``[n, k]``.

        Each draw is proportional to the ``weights`` of those left, as in the successive draws of
        ``numpy.random.choice(replace=False, p=...)``: the order of ``E_i / w_i`` with ``E_i``
        exponential (Efraimidis, Spirakis 2006).
        """
        return _smallest(-np.log1p(-self.uniform(n, len(weights))) / weights, k)

    def choices(self, weights: Floats, *shape: int) -> Ints:
        """Indices drawn with probability proportional to ``weights``, ``[len(weights)]``."""
        edges = np.cumsum(weights)
        return np.searchsorted(edges / edges[-1], self.uniform(*shape), side="right").astype(
            np.int64
        )


def _smallest(keys: npt.NDArray[np.uint64] | Floats, k: int) -> Ints:
    """Indices of the ``k`` smallest keys of every row, ascending by key, ``[n, k]``."""
    if k == keys.shape[1]:
        return np.argsort(keys, axis=1, kind="stable").astype(np.int64)
    found = np.argpartition(keys, k, axis=1)[:, :k]
    order = np.argsort(np.take_along_axis(keys, found, axis=1), axis=1)
    return np.take_along_axis(found, order, axis=1).astype(np.int64)
