"""What is told of depth probes: accuracies by arm and depth, differences to the baseline.

Data types only; does no statistics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from analysis.estimates import Interval

Verdict = Literal["better", "worse", "no difference found", "no verdict"]

SOLVED = 0.9
"""Accuracy from which a level counts as solved."""
PASSED = 0.99
"""Accuracy that every seed of a control must reach."""
CONTROLS: Mapping[str, int] = {"mqar": 2}
"""Tasks that need no depth beyond so many layers: every arm must pass them there."""
WAITING = ("planned", "queued", "running")
"""Statuses of runs that have yet to end."""
NO_LOSS_LAWS = (
    "losses of a generated task follow no power law in compute; its accuracies are compared instead"
)


@dataclass(frozen=True, kw_only=True)
class ProbeRun:
    """One usable run of a task."""

    run_id: str
    arm: str
    depth: int
    """Layers."""
    seed: int
    accuracy: float
    """At the last step, over all labels of the validation set."""
    solved: int | None
    """Largest level up to which every one has an accuracy of 90% or more."""
    steps_to_90: int | None
    """None: 90% was not reached for good."""
    by_level: Mapping[int, float] = field(repr=False)
    """Accuracy by level of difficulty; left out of ``fits.json``."""
    steps_by_level: Mapping[int, float] = field(repr=False)
    """Steps to 90% by level; levels that did not get there for good are left out."""


@dataclass(frozen=True, kw_only=True)
class ProbeCell:
    """The runs of one arm at one depth."""

    arm: str
    depth: int
    runs: tuple[ProbeRun, ...]
    """Usable ones, by seed."""
    n_planned: int
    lost: tuple[tuple[str, int], ...]
    """Status and number of the runs that cannot be used."""

    @property
    def ended_badly(self) -> tuple[tuple[str, int], ...]:
        """Those of ``lost`` that will give no accuracy any more: diverged, failed, cancelled."""
        return tuple((status, n) for status, n in self.lost if status not in WAITING)

    @property
    def is_waiting(self) -> bool:
        """Some run has yet to end."""
        return any(status in WAITING for status, _ in self.lost)

    @property
    def accuracy(self) -> Spread | None:
        """Over seeds."""
        return spread_of([run.accuracy for run in self.runs])

    @property
    def solved(self) -> Spread | None:
        """Over seeds."""
        return spread_of([run.solved for run in self.runs if run.solved is not None])

    def at_level(self, level: int) -> Spread | None:
        """Accuracy at one level, over seeds."""
        return spread_of([run.by_level[level] for run in self.runs if level in run.by_level])


@dataclass(frozen=True)
class Spread:
    """Mean and range over seeds."""

    mean: float
    low: float
    high: float
    n: int


def spread_of(values: Sequence[float]) -> Spread | None:
    """Mean, least and greatest; None of nothing."""
    if not values:
        return None
    return Spread(sum(values) / len(values), min(values), max(values), len(values))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """Arm minus baseline in one measure, paired by seed; above 0 the arm is better."""

    interval: Interval
    each: tuple[float, ...]
    """Of every seed."""
    p_value: float | None = None
    """Two-sided, for a difference of 0."""
    p_holm: float | None = None
    """Adjusted for the arms that were tested in this measure at this depth."""
    verdict: Verdict = "no verdict"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One arm against another, at one depth or over several."""

    arm: str
    depths: tuple[int, ...]
    """One; or those over which each seed was averaged."""
    seeds: tuple[int, ...]
    accuracy: Difference
    solved: Difference
    """In levels."""


@dataclass(frozen=True, kw_only=True)
class TuningShare:
    """What tuning does for one arm: all three over the same depths and seeds."""

    arm: str
    equal: Comparison
    """Against the baseline, both at the baseline's values."""
    own: Comparison
    """Against the baseline, each at its own best values."""
    due: Comparison
    """The arm at its own best values against itself at the baseline's."""
    n_runs: int
    n_same: int
    """Runs whose own best values are the baseline's."""
    n_lost: int
    """Runs at the baseline's values that diverged or failed."""
    n_waiting: int
    """Runs at the baseline's values that have not ended."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One task in one setting: every arm at every depth."""

    label: str
    """Task with its options, and what else tells its setting from another."""
    task: str
    graded_by: str
    """What the levels count."""
    chance: float | None
    baseline: str
    arms: tuple[str, ...]
    """The baseline first."""
    depths: tuple[int, ...]
    levels: tuple[int, ...]
    cells: tuple[ProbeCell, ...]
    pooled: tuple[Comparison, ...]
    """Of every arm, over depths."""
    by_depth: tuple[Comparison, ...]
    tuning: tuple[TuningShare, ...] = ()

    @property
    def is_control(self) -> bool:
        """A task that every arm must pass."""
        return self.task in CONTROLS

    def cell(self, arm: str, depth: int) -> ProbeCell | None:
        """The runs of one arm at one depth; None where none was planned."""
        return next((c for c in self.cells if (c.arm, c.depth) == (arm, depth)), None)

    def of_arm(self, arm: str) -> tuple[ProbeCell, ...]:
        """By depth."""
        return tuple(cell for cell in self.cells if cell.arm == arm)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """All tasks of a sweep."""

    baseline: str
    level: float
    items: tuple[Probe, ...]
    """Controls last."""
