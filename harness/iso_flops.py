"""Runs that spend a declared compute: batches small enough that whole steps meet it.

A run is a whole number of steps, so a budget is met within half a step. The batch of a size and
budget leaves the backbone :data:`MIN_STEPS` steps: that is within 0.5%, and within
:data:`TOLERANCE` for every recipe of up to twice the backbone's FLOPs. It depends on no recipe, so
all arms of one size and budget share it, and an arm that is added changes no other's runs. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import PositiveFloat, PositiveInt

from harness.config import ModelConfig, Strict
from harness.cost import TRAIN_PER_FORWARD, forward_flops_per_token
from harness.errors import GridError
from harness.yaml12 import Document

if TYPE_CHECKING:
    from harness.records import RunCost
    from harness.resolve import GridRun

KEY = "iso_flops"
TOLERANCE = 0.01
"""Largest deviation of a run's FLOPs from the declared ones."""
MIN_STEPS = 100
"""Optimiser steps that a batch leaves the backbone at least."""


class Growth(Strict):
    """A batch that grows with compute: ``tokens (C / at_flops)^exponent``."""

    tokens: PositiveInt
    """Tokens per optimiser step at ``at_flops``."""
    at_flops: PositiveFloat
    """Training FLOPs at which the batch has ``tokens``."""
    exponent: PositiveFloat = 0.3271
    """Power of compute; the default is that of DeepSeek LLM (arXiv 2401.02954, equation 1)."""


Batch = Growth | Literal["fixed"] | None
"""A growth rule; ``fixed``: ``train.batch_tokens`` as it is; None: the same, or less if need be."""


def batch_tokens(
    batch: Batch, budget_flops: float, flops_per_token: float, seq_len: int, declared: int
) -> int | None:
    """Return the batch of one size and budget, a multiple of ``seq_len``.

    Parameters
    ----------
    batch
        The rule.
    budget_flops
        Declared training FLOPs.
    flops_per_token
        Training FLOPs per token of the backbone, without any recipe's own.
    seq_len
        Tokens of context.
    declared
        ``train.batch_tokens``.

    Returns
    -------
    int
        None where even one sequence per step leaves fewer than :data:`MIN_STEPS` steps.
    """
    if batch == "fixed":
        return declared
    wanted = declared
    if batch is not None:
        grown = batch.tokens * (budget_flops / batch.at_flops) ** batch.exponent
        wanted = max(1, round(grown / seq_len)) * seq_len
    most = math.floor(budget_flops / (MIN_STEPS * flops_per_token * seq_len)) * seq_len
    return min(wanted, most) or None


def backbone_flops_per_token(model: ModelConfig, seq_len: int, vocab_size: int) -> int:
    """Training FLOPs per token of the backbone, which the batch is chosen by."""
    return TRAIN_PER_FORWARD * forward_flops_per_token(model, seq_len, vocab_size)


def too_small(budget_flops: float, flops_per_token: int, model: ModelConfig, seq_len: int) -> str:
    """Say why a budget has no batch at a size, and what would mend it."""
    needed = MIN_STEPS * flops_per_token * seq_len
    size = f"n_layers {model.n_layers}, d_model {model.d_model}"
    return (
        f"{budget_flops:.3g} FLOPs are less than {MIN_STEPS} steps of one sequence at {size}, "
        f"which are {needed:.3g}. Raise the budget, exclude the size, or shorten data.seq_len."
    )


def check_met(document: Document, runs: Iterable[tuple[GridRun, RunCost]]) -> None:
    """Refuse runs of ``iso_flops`` whose whole steps miss the declared compute.

    Raises
    ------
    GridError
        One message per cell beyond :data:`TOLERANCE`.
    """
    problems: dict[str, None] = {}
    for run, cost in runs:
        train = run.config.train
        wanted = train.budget.value
        off = abs(cost.flops - wanted) / wanted
        if run.budget_at[0] != KEY or off <= TOLERANCE:
            continue
        seq_len = run.config.data.seq_len
        least = wanted * 2 * TOLERANCE / cost.flops_per_token  # half a step is the tolerance
        mend = math.floor(least / seq_len) * seq_len
        advice = f"Lower train.batch_tokens to {mend}" if mend else "Raise the budget"
        message = (
            f"{run.cell}: {cost.steps} steps of {train.batch_tokens} tokens miss {wanted:g} FLOPs "
            f"by {100 * off:.1f}%, more than {100 * TOLERANCE:g}%. {advice}."
        )
        problems[document.problem(run.budget_at, message)] = None
    if problems:
        raise GridError(list(problems))
