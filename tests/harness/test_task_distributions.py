"""What generated tasks draw, against the distributions that are published."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from harness.tasks import Draws, build_task
from tests.harness import brute_force

UNLIKELY = 1e-3
"""Smallest p-value of a frequency test; the seeds are fixed, so a test passes always or never."""


def assert_frequencies(drawn: Iterable[Any], expected: Mapping[Any, float]) -> None:
    """Chi-square test of counts against probabilities."""
    counts = Counter(drawn)
    assert counts.keys() <= expected.keys()
    total = counts.total()
    found = stats.chisquare(
        [counts[key] for key in expected], [total * p for p in expected.values()]
    )
    assert found.pvalue > UNLIKELY, (found, counts)


def uniform(outcomes: Iterable[Any]) -> dict[Any, float]:
    every = list(outcomes)
    return dict.fromkeys(every, 1 / len(every))


def rows(array: Any) -> list[tuple[int, ...]]:
    return [tuple(row) for row in array.tolist()]


def test_words_are_uniform_elements_of_a_group_of_the_right_order() -> None:
    for name, order in (("s3_words", 6), ("a5_words", 60)):
        task = build_task(name, {"length": 2})
        assert task.vocab_size == order + 1
        words = task.sample(Draws(0, 0), 18_000, 2).inputs[:, 1:]
        pairs = uniform(itertools.product(range(order), repeat=2))
        assert_frequencies(rows(words), pairs)


def test_mqar_solver_agrees_with_the_published_example() -> None:
    options = build_task("mqar", {"n_pairs": 2, "length": 16, "vocab_size": 12}).options
    tokens = [2, 8, 4, 7, 0, 0, 4, 0, 0, 0, 0, 0, 2, 0, 0]  # docstring of zoology's generator
    assert brute_force.mqar(options, tokens) == {6: (7, 2), 12: (8, 2)}


def test_mqar_keys_and_values_are_uniform_without_replacement() -> None:
    options = {"n_pairs": 2, "length": 8, "vocab_size": 8}
    inputs = build_task("mqar", options).sample(Draws(0, 0), 6000, 2).inputs
    assert_frequencies(rows(inputs[:, 0:4:2]), uniform(itertools.permutations([1, 2, 3], 2)))
    assert_frequencies(rows(inputs[:, 1:4:2]), uniform(itertools.permutations([4, 5, 6, 7], 2)))


@pytest.mark.parametrize("power_a", [0.01, 0.7, 1.0])
def test_mqar_queries_lie_at_published_distances(power_a: float) -> None:
    options = {"n_pairs": 2, "length": 12, "vocab_size": 8, "power_a": power_a}
    examples = build_task("mqar", options).sample(Draws(0, 0), 6000, 2)
    weights = [i ** (power_a - 1) for i in (1, 2, 3, 4)]
    p = [weight / sum(weights) for weight in weights]
    slots = []
    for tokens in examples.inputs.tolist():
        assert all(tokens[t] == 0 for t in range(5, 12, 2))
        slots.append(tuple((tokens.index(key, 4) - 4) // 2 for key in (tokens[0], tokens[2])))
    both = {(i, j): p[i] * p[j] / (1 - p[i]) for i, j in itertools.permutations(range(4), 2)}
    assert_frequencies(slots, both)


@pytest.mark.parametrize(("m", "k"), [(4, 4), (5, 2), (17, 2), (25, 3)])
def test_picks_are_uniform_in_subset_and_order(m: int, k: int) -> None:
    picks = Draws(0, 0).picks(12_000, m, k)
    assert all(len(set(row)) == k for row in rows(picks))
    pairs = uniform(itertools.permutations(range(m), 2))
    assert_frequencies(rows(picks[:, :2]), pairs)
    assert_frequencies(rows(picks[:, [0, -1]]), pairs)


def test_random_numbers_are_uniform_below_their_bounds() -> None:
    draws = Draws(0, 0)
    assert_frequencies(draws.integers(7, 7000).tolist(), uniform(range(7)))
    mixed = draws.integers(np.array([[2], [3], [5]]), 3, 5000)
    for row, below in zip(mixed, (2, 3, 5), strict=True):
        assert_frequencies(row.tolist(), uniform(range(below)))
    tenths = (draws.uniform(10_000) * 10).astype(int)
    assert_frequencies(tenths.tolist(), uniform(range(10)))
    weights = np.array([3.0, 0.0, 1.0, 4.0])
    chosen = draws.choices(weights, 8000).tolist()
    assert_frequencies(chosen, {0: 3 / 8, 2: 1 / 8, 3: 4 / 8})


def test_k_hop_strings_are_uniform_among_those_without_immediate_repeats() -> None:
    options = {"letters": 3, "length": 5, "max_hops": 2}
    inputs = build_task("k_hop", options).sample(Draws(0, 0), 5000, 2).inputs
    strings = itertools.product(range(3), repeat=5)
    allowed = [s for s in strings if all(a != b for a, b in itertools.pairwise(s))]
    assert_frequencies(rows(inputs[:, 1:]), uniform(allowed))
    assert_frequencies(inputs[:, 0].tolist(), uniform([4, 5]))


def test_mano_trees_have_uniform_left_sizes_and_operators() -> None:
    task = build_task("mano", {"prime": 3, "max_operators": 3})
    trees = [
        brute_force.mano_tree(task.options, tokens[1:])[0]
        for tokens in task.sample(Draws(0, 0), 9000, 3).inputs.tolist()
    ]

    def size(tree: Any) -> int:
        return 0 if isinstance(tree, int) else 1 + size(tree[1]) + size(tree[2])

    def shape(tree: Any) -> Any:
        return "n" if isinstance(tree, int) else (shape(tree[1]), shape(tree[2]))

    assert_frequencies(map(size, trees), uniform([1, 2, 3]))
    two: list[Any] = [("n", ("n", "n")), (("n", "n"), "n")]
    three: dict[Any, float] = {(("n", "n"), ("n", "n")): 1 / 3}
    three |= {("n", child): 1 / 6 for child in two} | {(child, "n"): 1 / 6 for child in two}
    assert_frequencies([shape(tree) for tree in trees if size(tree) == 3], three)
    small = [(tree[0], tree[1], tree[2]) for tree in trees if size(tree) == 1]
    assert_frequencies(small, uniform(itertools.product("+-*", range(3), range(3))))


def test_mano_chance_of_one_operator_is_that_of_zero() -> None:
    p = 7
    zero = 2 / 3 * 1 / p + 1 / 3 * (1 - (1 - 1 / p) ** 2)  # products are zero more often than sums
    assert build_task("mano", {"max_operators": 1}).info.chance == pytest.approx(zero, abs=0.02)


def test_depo_edges_form_one_uniform_cycle_in_random_order() -> None:
    options = {"n_words": 4, "min_words": 4, "n_queries": 4, "max_hops": 3}
    task = build_task("depo", options)
    found, edges, queried = [], [], []
    for tokens in task.sample(Draws(0, 0), 6000, 3).inputs.tolist():
        successor, queries, _ = brute_force.depo_parts(task.options, tokens)
        walk = [(0,)]
        while successor[walk[-1]] != (0,):
            walk.append(successor[walk[-1]])
        found.append(tuple(word for (word,) in walk))
        edges.append(tuple(word for (word,) in successor))
        queried.append(tuple(word for _, (word,), _ in queries))
    assert_frequencies(found, uniform((0, *rest) for rest in itertools.permutations([1, 2, 3])))
    assert_frequencies(edges, uniform(itertools.permutations(range(4))))
    assert_frequencies(queried, uniform(itertools.permutations(range(4))))


def test_depo_sizes_and_hops_are_drawn_as_published() -> None:
    options = {"n_words": 9, "min_words": 3, "n_queries": 3, "max_hops": 5, "word_tokens": 2}
    task = build_task("depo", options)
    sizes, hops = [], []
    for tokens in task.sample(Draws(0, 0), 3000, 5).inputs.tolist():
        successor, queries, _ = brute_force.depo_parts(task.options, tokens)
        sizes.append(len(successor))
        hops += [k for k, _, _ in queries]
    weights = {n: 1 / (n + math.sqrt(9)) for n in range(3, 10)}
    total = sum(weights.values())
    assert_frequencies(sizes, {n: weight / total for n, weight in weights.items()})
    assert_frequencies(hops, uniform(range(1, 6)))
