"""k-hop induction: k times "the token after the last earlier occurrence", at every position.

Rule: a string of ``length`` letters, uniform without immediate repeats; its first token is the
number of hops k, uniform in 1 .. ``max_hops``. One hop leads from position i to ``1 + max{j < i:
s_j = s_i}``. The label of position i is the letter where k hops lead, or ``~`` where one of them
finds no earlier occurrence. Depth of order log k is necessary and sufficient (Sanford et al.).

Deviations: no k = 0, which copies the token and needs no depth; nothing is asked at the first
token, where the authors' code asks for a blank. Published size: four letters, 98 of them, k up to
16; the defaults are near it.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field, PositiveInt, model_validator

from harness.tasks.base import IGNORED, Examples, Graded, Task, task
from harness.tasks.draws import Draws, Ints


class KHopOptions(Graded):
    """Options of k-hop induction."""

    letters: int = Field(default=4, ge=3, le=1000)
    """Letters of the alphabet; with two, a string without repeats would be no choice."""
    length: PositiveInt = 100
    """Letters of a string."""
    max_hops: PositiveInt = 16
    """Largest number of hops."""

    @model_validator(mode="after")
    def _fits(self) -> KHopOptions:
        if self.max_hops > self.length - 2:
            raise ValueError(
                f"max_hops must not exceed length - 2, the hops that a string has room for: "
                f"got max_hops {self.max_hops}, length {self.length}"
            )
        return self


@task("k_hop", revision=1)
class KHop(Task):
    """Tokens 0 .. letters-1 are letters, then ``~``, then the numbers of hops from 1."""

    Options = KHopOptions
    options: KHopOptions
    summary = "k-fold 'token after the last earlier occurrence of this one', at every position"
    source = (
        "Sanford, Hsu, Telgarsky 2024, Transformers, parallel computation, and logarithmic depth, "
        "arXiv 2402.09268; without k = 0"
    )
    graded_by = "hops"

    @property
    def seq_len(self) -> int:
        """The number of hops and ``length`` letters."""
        return self.options.length + 1

    @property
    def vocab_size(self) -> int:
        """Letters, ``~`` and numbers of hops."""
        return self.options.letters + 1 + self.options.max_hops

    @property
    def levels(self) -> tuple[int, ...]:
        """Hops 1 .. ``max_hops``."""
        return tuple(range(1, self.options.max_hops + 1))

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        """Write strings, and numbers of hops up to ``hardest``."""
        nowhere = self.options.letters
        hops = 1 + draws.integers(hardest, n, 1)
        strings = np.full((n, self.seq_len), nowhere)
        strings[:, 1:] = strings_without_repeats(draws, n, self.options.length, nowhere)
        labels = np.take_along_axis(strings, follow(hop_targets(strings), hops), axis=1)
        labels[:, 0] = IGNORED
        inputs = strings.copy()
        inputs[:, :1] = nowhere + hops
        difficulty = np.where(labels == IGNORED, 0, hops)
        return Examples(inputs, labels, difficulty)


def strings_without_repeats(draws: Draws, n: int, length: int, letters: int) -> Ints:
    """Uniform strings whose neighbours differ, ``[n, length]``."""
    steps = 1 + draws.integers(letters - 1, n, length)
    steps[:, :1] = draws.integers(letters, n, 1)
    return np.cumsum(steps, axis=1) % letters


def hop_targets(strings: Ints) -> Ints:
    """Where one hop leads from each column, ``[n, length + 1]``; column 0 stands for nowhere.

    Sorted by letter, stably, the last earlier occurrence of a letter is the entry before.
    """
    order = np.argsort(strings.astype(np.int16), axis=1, kind="stable")
    letters = np.take_along_axis(strings, order, axis=1)
    targets = np.zeros_like(order)
    targets[:, 1:] = np.where(letters[:, 1:] == letters[:, :-1], order[:, :-1] + 1, 0)
    found = np.empty_like(order)
    np.put_along_axis(found, order, targets, axis=1)
    found[:, 0] = 0
    return found


def follow(targets: Ints, hops: Ints) -> Ints:
    """Apply each row's map ``hops`` times, ``[n, columns]``, by repeated squaring."""
    here = np.broadcast_to(np.arange(targets.shape[1]), targets.shape)
    left = hops
    while left.any():
        here = np.where(left % 2 == 1, np.take_along_axis(targets, here, axis=1), here)
        targets = np.take_along_axis(targets, targets, axis=1)
        left = left // 2
    return here
