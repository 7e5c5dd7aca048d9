"""Solvers of the shipped tasks, one sequence at a time, from the published rules.

Plain Python, and nothing of ``harness.tasks`` but the options: each takes the tokens of one
sequence and returns what stands at every position that is asked, with its difficulty.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

Answers = dict[int, tuple[int, int]]
"""Position: (label, difficulty)."""


def cycles(permutation: Sequence[int]) -> int:
    """Count the cycles of a permutation."""
    seen: set[int] = set()
    count = 0
    for start in permutation:
        count += start not in seen
        while start not in seen:
            seen.add(start)
            start = permutation[start]
    return count


def words(elements: list[tuple[int, ...]], tokens: list[int]) -> Answers:
    """Let each element act in turn on a row of things, after all those before it."""
    assert tokens[0] == len(elements)
    row = list(range(len(elements[0])))
    answers = {}
    for t, token in enumerate(tokens[1:], start=1):
        row = [elements[token][thing] for thing in row]
        answers[t] = (elements.index(tuple(row)), t)
    return answers


def s3_words(options: Any, tokens: list[int]) -> Answers:
    """All permutations of three, in alphabetical order."""
    return words(sorted(itertools.permutations(range(3))), tokens)


def a5_words(options: Any, tokens: list[int]) -> Answers:
    """Permutations of five with an even sign, (-1)^(5 - cycles), in alphabetical order."""
    every = sorted(itertools.permutations(range(5)))
    return words([p for p in every if (5 - cycles(p)) % 2 == 0], tokens)


def mqar(options: Any, tokens: list[int], asked: Sequence[int] | None = None) -> Answers:
    """Look every key up that returns; ``asked`` is needed where fillers may look like keys."""
    context = 2 * options.n_pairs
    value = dict(zip(tokens[0:context:2], tokens[1:context:2], strict=True))
    assert len(value) == options.n_pairs
    places = range(context, len(tokens)) if asked is None else asked
    return {t: (value[tokens[t]], options.n_pairs) for t in places if tokens[t] in value}


def k_hop(options: Any, tokens: list[int]) -> Answers:
    """Search the string backwards, k times, at every position."""
    hops, string = tokens[0] - options.letters, tokens[1:]
    answers = {}
    for t in range(len(string)):
        here: int | None = t
        for _ in range(hops):
            earlier = [] if here is None else [j for j in range(here) if string[j] == string[here]]
            here = earlier[-1] + 1 if earlier else None
        answers[1 + t] = (options.letters if here is None else string[here], hops)
    return answers


def mano_tree(options: Any, tokens: list[int]) -> tuple[Any, int]:
    """Parse one expression at the front: a number, or [operator, left, right]; and its length."""
    if tokens[0] < options.prime:
        return tokens[0], 1
    left, m = mano_tree(options, tokens[1:])
    right, n = mano_tree(options, tokens[1 + m :])
    return ["+-*"[tokens[0] - options.prime], left, right], 1 + m + n


def infix(tree: Any) -> str:
    """Write a tree as Python does, in full brackets."""
    return str(tree) if isinstance(tree, int) else f"({infix(tree[1])}{tree[0]}{infix(tree[2])})"


def mano(options: Any, tokens: list[int]) -> Answers:
    """Let Python compute the expression between the beginning and ``=``."""
    equals, beginning, padding = (options.prime + i for i in (3, 4, 5))
    tree, length = mano_tree(options, tokens[1:])
    assert tokens[0] == beginning
    assert tokens[1 + length] == equals
    assert set(tokens[2 + length :]) <= {padding}
    text = infix(tree)
    answer = eval(text, {"__builtins__": {}})
    return {1 + length: (answer % options.prime, sum(c in "+-*" for c in text))}


def depo_parts(options: Any, tokens: list[int]) -> tuple[dict[Any, Any], list[Any], int]:
    """Read the edges as {word: successor}, the queries as (k, word, answer), and where they begin.

    Hop tokens are told from letters by how many tokens there are: the three last ones of the
    vocabulary are ANS, beginning, padding, and HOP_1 .. stand before them.
    """
    w = options.word_tokens
    letters = next(a for a in itertools.count(1) if a**w >= options.n_words) * min(w, 2)
    hop = range(letters, letters + options.max_hops)
    ans, beginning, padding = (letters + options.max_hops + i for i in range(3))
    assert tokens[0] == beginning
    start = next(t for t, token in enumerate(tokens) if token in hop)
    spelled = [tuple(tokens[t : t + w]) for t in range(1, start, w)]
    assert all(word[-1] >= letters // 2 * (w > 1) for word in spelled)
    queries, t = [], start
    for _ in range(options.n_queries):
        assert tokens[t] in hop
        assert tokens[t + 1 + w] == ans
        word, answer = tuple(tokens[t + 1 : t + 1 + w]), tuple(tokens[t + 2 + w : t + 2 + 2 * w])
        queries.append((tokens[t] - letters + 1, word, answer))
        t += 2 + 2 * w
    assert set(tokens[t:]) <= {padding}
    assert len(set(spelled[::2])) == len(spelled) // 2
    return dict(zip(spelled[::2], spelled[1::2], strict=True)), queries, start


def depo(options: Any, tokens: list[int]) -> Answers:
    """Walk along the edges; the model says each answer's tokens one position ahead."""
    successor, queries, start = depo_parts(options, tokens)
    w = options.word_tokens
    answers: Answers = {}
    for i, (hops, word, written) in enumerate(queries):
        for _ in range(hops):
            word = successor[word]
        assert word == written
        ans = start + i * (2 + 2 * w) + 1 + w
        answers |= {ans + j: (token, hops) for j, token in enumerate(word)}
    return answers


SOLVERS: dict[str, Callable[..., Answers]] = {
    "s3_words": s3_words,
    "a5_words": a5_words,
    "mqar": mqar,
    "k_hop": k_hop,
    "mano": mano,
    "depo": depo,
}
