"""What is told of a search: its trials, its chosen values, its laws, the gain that is due to it.

Data types only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from analysis.estimates import Interval
from harness.tuned import TransferLaw, Tuned, TunedCell

Outcome = Literal["done", "diverged", "stopped early", "failed", "unfinished"]
OUTCOMES: tuple[Outcome, ...] = ("done", "diverged", "stopped early", "failed", "unfinished")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One try of a search."""

    run_id: str
    arm: str
    size: str
    flops: float
    outcome: Outcome
    values: Mapping[str, Any]
    """By dotted path."""
    loss_nats: float | None
    """Final validation loss; None unless it is done."""
    last_step: int | None
    """Optimiser steps that it made."""
    steps: int | None
    """Optimiser steps that it was planned for."""
    why: str
    """Why it has no loss; empty where it is done."""


@dataclass(frozen=True, kw_only=True)
class ChosenCell:
    """The values of one arm at one size of the sweep, as ``tuned.yaml`` has them."""

    arm: str
    size: str
    chosen: TunedCell

    @property
    def at_edge(self) -> tuple[str, ...]:
        """Paths whose best value has no worse one on one side."""
        return tuple(path for path, inside in self.chosen.interior.items() if not inside)


@dataclass(frozen=True, kw_only=True)
class LawReach:
    """A law of transfer, and how far beyond the searched sizes it was used."""

    law: TransferLaw
    used_at: tuple[float, ...]
    """FLOPs or parameters of the sizes that took their value from it, ascending."""

    @property
    def beyond(self) -> float | None:
        """The largest size that took its value over the largest searched one; None unused."""
        return max(self.used_at) / max(self.law.x) if self.used_at else None


@dataclass(frozen=True, kw_only=True)
class TuningGain:
    """The multiplier of one arm in training FLOPs, at the baseline's values and at its own best.

    All three are of the same sizes and seeds.
    """

    arm: str
    equal: Interval
    """Every arm at the baseline's values."""
    own: Interval
    """Every arm at its own best values."""
    due: Interval
    """Compute that the arm needs at the baseline's values over that at its own best, paired."""
    p_holm: float | None
    """Two-sided, for ``due`` = 1, adjusted for the arms that were tested; None untested."""
    n_sizes: int
    n_same: int
    """Sizes at which the arm's best values are the baseline's."""
    n_lost: int
    """Runs at the baseline's values that diverged or failed."""
    n_waiting: int
    """Runs at the baseline's values that have not ended."""

    @property
    def verdict(self) -> str:
        """In words, where the interval excludes 1 and the adjusted p agrees; else nothing found."""
        if 0 < self.n_sizes == self.n_same:
            return "same values"
        if self.due.estimate is None or not self.due.bounded:
            return ""
        if self.due.excludes(1.0) and self.p_holm is not None and self.p_holm < 1 - self.due.level:
            return "tuning helps" if self.due.estimate > 1 else "tuning hurts"
        return "no gain found"


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """Everything that is told of one search."""

    tuned: Tuned
    cells: tuple[ChosenCell, ...]
    """In the order of arms, then of compute; only arms and sizes that the sweep still has."""
    trials: tuple[Trial, ...]
    laws: tuple[LawReach, ...]
    gains: tuple[TuningGain, ...]
    doubts: tuple[str, ...]
    """What to know before trusting the values; each a sentence."""

    def count(self, outcome: Outcome) -> int:
        """Trials that ended so."""
        return sum(trial.outcome == outcome for trial in self.trials)
