"""Multi-query associative recall: the control, which needs two layers of attention and no depth.

Rule: pairs ``K V K V …`` of ``n_pairs`` different keys (1 .. V/2-1) and different values
(V/2 .. V-1) lead; in the two-token slots after them every key returns once, at slots drawn without
replacement with ``p(i) ~ i^(power_a - 1)``, i from 1; its label is its value.

Published grid: ``length`` 64 .. 512, ``n_pairs`` 4 .. 64, ``vocab_size`` 8192. The defaults are a
size that two layers learn within a minute on a CPU.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from harness.tasks.base import IGNORED, Examples, Task, TaskOptions, task
from harness.tasks.draws import Draws, Floats

FILLER = 0
"""Token of positions that hold neither a pair nor a query."""


class MqarOptions(TaskOptions):
    """Options of multi-query associative recall."""

    n_pairs: PositiveInt = 8
    """Keys with a value, each asked for once."""
    length: PositiveInt = 48
    """Tokens of a sequence, even; two for every pair and two for every query at least."""
    vocab_size: int = Field(default=64, ge=4)
    """Tokens of the vocabulary, even: keys in its lower half, values in its upper half."""
    power_a: PositiveFloat = 0.01
    """Exponent a of the distance of queries: 1 is uniform, near 0 keeps them close."""
    random_non_queries: bool = False
    """Random tokens in place of the filler 0."""

    @model_validator(mode="after")
    def _fits(self) -> MqarOptions:
        n, length, vocab = self.n_pairs, self.length, self.vocab_size
        if length % 2 or vocab % 2:
            raise ValueError(f"length {length} and vocab_size {vocab} must be even")
        if 4 * n > length:
            raise ValueError(
                f"4 n_pairs must fit length, two tokens for a pair and two for its query: "
                f"n_pairs {n} needs length {4 * n} or more, got {length}"
            )
        if n > vocab // 2 - 1:
            raise ValueError(
                f"n_pairs must not exceed the vocab_size / 2 - 1 = {vocab // 2 - 1} keys "
                f"of vocab_size {vocab}, got {n}"
            )
        return self


@task("mqar", revision=1)
class Mqar(Task):
    """Key-value pairs, then their keys again in random order and places."""

    Options = MqarOptions
    options: MqarOptions
    summary = "the value that each repeated key had at the beginning"
    source = (
        "Arora, Eyuboglu, Timalsina, Johnson, Poli, Zou, Rudra, Re 2023, Zoology, "
        "arXiv 2312.04927; as published"
    )
    graded_by = "pairs"

    @property
    def seq_len(self) -> int:
        """All tokens of the options' length."""
        return self.options.length

    @property
    def vocab_size(self) -> int:
        """Keys, values and the filler."""
        return self.options.vocab_size

    @property
    def levels(self) -> tuple[int, ...]:
        """The number of pairs, the same in every sequence."""
        return (self.options.n_pairs,)

    @cached_property
    def _slot_weights(self) -> Floats:
        slots = self.options.length // 2 - self.options.n_pairs
        return np.arange(1, slots + 1, dtype=np.float64) ** (self.options.power_a - 1)

    def sample(self, draws: Draws, n: int, hardest: int) -> Examples:
        """Write pairs and queries; there is one level only, so ``hardest`` changes nothing."""
        o, half = self.options, self.options.vocab_size // 2
        keys = 1 + draws.picks(n, half - 1, o.n_pairs)
        values = half + draws.picks(n, half, o.n_pairs)
        asked = 2 * (o.n_pairs + draws.weighted_picks(self._slot_weights, n, o.n_pairs))
        inputs = np.full((n, o.length), FILLER)
        if o.random_non_queries:
            inputs = draws.integers(o.vocab_size, n, o.length)
        inputs[:, 0 : 2 * o.n_pairs : 2] = keys
        inputs[:, 1 : 2 * o.n_pairs : 2] = values
        np.put_along_axis(inputs, asked, keys, axis=1)
        labels = np.full((n, o.length), IGNORED)
        np.put_along_axis(labels, asked, values, axis=1)
        return Examples(inputs, labels, np.where(labels == IGNORED, 0, o.n_pairs))
