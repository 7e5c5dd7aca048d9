"""Word problem of A5: composing even permutations of five things."""

from __future__ import annotations

import itertools

from harness.tasks._words import WordProblem, even, multiplication_table
from harness.tasks.base import task


@task("a5_words", revision=1)
class A5Words(WordProblem):
    """The hard case: A5 is not solvable, so the problem is complete for NC1 (Barrington)."""

    summary = "product of all even permutations of five things so far, at every position"
    source = (
        "Merrill, Petty, Sabharwal 2024, arXiv 2404.08819; Merrill, Sabharwal 2025, arXiv "
        "2503.03961; a beginning token is added"
    )
    elements = tuple(p for p in itertools.permutations(range(5)) if even(p))
    products = multiplication_table(elements)
