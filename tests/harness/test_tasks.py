"""Every shipped task against its rule: labels, difficulty, curriculum, reproducible batches."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.tasks import IGNORED, Draws, Examples, Task, available, build_task
from tests.harness import brute_force

CASES: list[tuple[str, dict[str, Any]]] = [
    ("s3_words", {}),
    ("s3_words", {"length": 1}),
    ("a5_words", {"length": 9, "curriculum_steps": 20}),
    ("mqar", {}),
    ("mqar", {"n_pairs": 12, "length": 48, "vocab_size": 26, "power_a": 1.0}),
    ("mqar", {"n_pairs": 3, "length": 40, "vocab_size": 200, "random_non_queries": True}),
    ("mqar", {"n_pairs": 1, "length": 4, "vocab_size": 4}),
    ("k_hop", {}),
    ("k_hop", {"letters": 3, "length": 30, "max_hops": 5, "curriculum_steps": 100}),
    ("k_hop", {"letters": 26, "length": 60, "max_hops": 1}),
    ("mano", {}),
    ("mano", {"prime": 23, "max_operators": 16, "curriculum_steps": 64}),
    ("mano", {"prime": 2, "max_operators": 1}),
    ("depo", {}),
    ("depo", {"n_words": 20, "min_words": 6, "n_queries": 6, "max_hops": 9, "word_tokens": 3}),
    ("depo", {"n_words": 2, "min_words": 2, "n_queries": 1, "max_hops": 3, "word_tokens": 2}),
    ("depo", {"max_hops": 3, "curriculum_steps": 7}),
]
N = 40


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{len(case[1])}")
def task(request: pytest.FixtureRequest) -> Task:
    return build_task(*request.param)


def solve(task: Task, tokens: list[int], asked: Sequence[int]) -> brute_force.Answers:
    solver = brute_force.SOLVERS[task.name]
    fillers_may_look_like_keys = getattr(task.options, "random_non_queries", False)
    return solver(task.options, tokens, *([asked] if fillers_may_look_like_keys else []))


def last(n: int, examples: Examples) -> Examples:
    return Examples(examples.inputs[-n:], examples.labels[-n:], examples.difficulty[-n:])


def assert_solved(task: Task, examples: Examples, hardest: int) -> None:
    rows = zip(examples.inputs.tolist(), examples.labels, examples.difficulty, strict=True)
    for tokens, labels, difficulty in rows:
        asked = np.flatnonzero(labels != IGNORED).tolist()
        answers = solve(task, tokens, asked)
        expected = {t: a for t, a in answers.items() if a[1] <= hardest}
        assert {t: (labels[t], difficulty[t]) for t in asked} == expected
        assert not difficulty[labels == IGNORED].any()


def test_every_shipped_task_has_an_independent_solver_and_is_tried() -> None:
    shipped = {name for name, cls in available().items() if cls.__module__.startswith("harness.")}
    assert shipped == set(brute_force.SOLVERS) == {name for name, _ in CASES}


def test_labels_and_difficulty_are_those_of_an_independent_solver(task: Task) -> None:
    assert_solved(task, task.held_out(N), task.levels[-1])
    assert_solved(task, task.training(seed=3, step=10**9, n=N), task.levels[-1])
    assert_solved(task, last(3, task.held_out(2048)), task.levels[-1])


def test_curriculum_limits_what_is_asked_and_ends_with_everything(task: Task) -> None:
    for hardest in {task.levels[0], task.levels[len(task.levels) // 2]}:
        examples = task.sample(Draws(0, 0), N, hardest)
        assert_solved(task, examples, hardest)
        assert examples.difficulty[examples.asked].min() >= 1
        assert examples.difficulty.max() <= hardest
    steps = getattr(task.options, "curriculum_steps", None)
    reached = [task.hardest_at(step) for step in range(0, steps or 1)]
    assert reached == sorted(reached)
    assert Counter(reached).keys() == set(task.levels if steps else task.levels[-1:])
    assert task.hardest_at(10**12) == task.levels[-1]


def test_sequences_have_the_promised_shape_tokens_and_equally_many_labels(task: Task) -> None:
    for examples in (task.held_out(N), task.training(1, 2, N), task.training(1, 2, 1)):
        for array in (examples.inputs, examples.labels, examples.difficulty):
            assert array.shape == (len(examples.inputs), task.seq_len)
            assert array.dtype == np.int64
        assert examples.inputs.min() >= 0
        assert examples.inputs.max() < task.vocab_size
        labels = examples.labels[examples.asked]
        assert labels.min() >= 0
        assert labels.max() < task.vocab_size
        assert len(set(examples.asked.sum(axis=1).tolist())) == 1


def test_batches_are_pure_functions_of_seed_and_step(task: Task) -> None:
    def batch(seed: int, step: int) -> bytes:
        examples = build_task(task.name, task.options.model_dump()).training(seed, step, 16)
        parts = (examples.inputs, examples.labels, examples.difficulty)
        return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)

    keys = [(0, 0), (0, 1), (1, 0), (1, 1), (2**63, 7)]
    batches = [batch(*key) for key in keys]
    assert [batch(*key) for key in reversed(keys)] == batches[::-1]
    if task.info.label_entropy_nats > 1:  # the smallest sets have few different sequences
        assert len(set(batches)) == len(keys)


def test_validation_set_is_fixed_and_reached_by_no_training_seed(task: Task) -> None:
    held_out = task.held_out(16).inputs
    assert np.array_equal(held_out, task.held_out(16).inputs)
    if task.info.label_entropy_nats > 1:
        assert not np.array_equal(held_out, task.training(0, 0, 16).inputs)


def test_facts_of_a_task_are_those_of_fresh_sequences(task: Task) -> None:
    examples = task.sample(Draws(11, 5), 1000, task.levels[-1])
    labels = Counter(examples.labels[examples.asked].tolist())
    info = task.info
    assert (info.vocab_size, info.seq_len, info.levels) == (
        task.vocab_size,
        task.seq_len,
        task.levels,
    )
    assert labels.most_common(1)[0][1] / labels.total() == pytest.approx(info.chance, abs=0.03)
    shares = [count / labels.total() for count in labels.values()]
    entropy = sum(-share * math.log(share) for share in shares)
    assert info.label_entropy_nats == pytest.approx(entropy, abs=0.03)
    assert info.label_entropy_nats <= math.log(task.vocab_size)
    assert set(np.unique(examples.difficulty[examples.asked])) == set(task.levels)


def test_identity_depends_on_options_that_differ_from_their_defaults_only() -> None:
    plain = build_task("mqar", {}).info.sha256
    assert plain == build_task("mqar", {"n_pairs": 8}).info.sha256
    others = [build_task("mqar", {"n_pairs": 9}), build_task("mqar", {"power_a": 0.5})]
    assert len({plain, *(other.info.sha256 for other in (*others, build_task("k_hop", {})))}) == 4


def test_a_task_that_changes_its_sequences_needs_a_new_revision() -> None:
    found = {}
    for name, cls in available().items():
        if name in brute_force.SOLVERS:
            examples = build_task(name, {}).training(5, 6, 7)
            parts = np.stack([examples.inputs, examples.labels, examples.difficulty])
            found[name, cls.revision] = hashlib.sha256(parts.astype("<i8").tobytes()).hexdigest()
    assert {key: digest[:8] for key, digest in found.items()} == PINNED


PINNED = {
    ("a5_words", 1): "791082e4",
    ("depo", 1): "d95f334e",
    ("k_hop", 1): "76c6741b",
    ("mano", 1): "6a0a0c81",
    ("mqar", 1): "f3f06622",
    ("s3_words", 1): "cfd52d4d",
}
"""First digits of the digest of one batch, by task and revision."""
