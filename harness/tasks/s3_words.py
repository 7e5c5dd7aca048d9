"""Word problem of S3: composing permutations of three things."""

from __future__ import annotations

import itertools

from harness.tasks._words import WordProblem, multiplication_table
from harness.tasks.base import task


@task("s3_words", revision=1)
class S3Words(WordProblem):
    """The easy case: S3 is solvable, so that shallow shortcuts exist in principle."""

    summary = "product of all permutations of three things so far, at every position"
    source = "Merrill, Petty, Sabharwal 2024, arXiv 2404.08819; a beginning token is added"
    elements = tuple(itertools.permutations(range(3)))
    products = multiplication_table(elements)
