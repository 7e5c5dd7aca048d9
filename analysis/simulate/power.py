"""What a grid would find in a world: interval widths, coverage, power, the smallest multiplier.

Monte Carlo over studies with common noise: the same draws under every multiplier that is tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.estimates import BadValue
from analysis.laws import Floats
from analysis.simulate.batched import Ratios, holm, ratios, size_means
from analysis.simulate.declared import DeclaredGrid
from analysis.simulate.play import draw_noise, play
from analysis.simulate.world import World, check_effect, check_power

LARGEST_EFFECT = 10.0
"""Multiplier up to which the smallest detectable one is sought."""
SEARCH_STEPS = 11
"""Halvings of ln 10: the last step is 0.1%."""
CHUNK = 2_000_000
"""Losses played at a time: 16 MB of each array."""

Tell = Callable[[str, float], None]
"""Takes what is being done and the share of it that is done."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is asked of every design."""

    effect: float = 1.10
    """Multiplier to be found, at the middle of the ladder."""
    power: float = 0.8
    """Probability of finding it that is good enough."""
    level: float = 0.95
    """Confidence level; 1 - level is the family-wise error of the verdicts."""
    studies: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        check_effect(self.effect)
        check_power(self.power)
        if not 1 <= self.studies <= 1_000_000:
            raise BadValue(f"studies must be 1 to 1,000,000, got {self.studies}")


@dataclass(frozen=True, kw_only=True)
class ArmOutlook:
    """What the studies say of one arm."""

    arm: str
    median: float
    """Of the estimates, where the truth is the effect asked for."""
    half_width_percent: float
    """Median half width of the interval in % of the estimate; infinite where unbounded."""
    bounded: float
    """Share of studies whose interval has two ends."""
    coverage: float
    """Share of the bounded intervals that hold the truth; NaN where there is none."""
    power: float
    """Share of studies that find the effect when no other arm has one, after Holm."""
    false_alarms: float
    """Share of studies that find something where no arm has any effect, after Holm."""
    detectable: float | None
    """Smallest multiplier found with the power asked for; None where none up to 10 is."""


def outlook(
    grid: DeclaredGrid, world: World, question: Question, tell: Tell | None = None
) -> tuple[ArmOutlook, ...]:
    """Play a grid many times and describe what its analysis would say of each arm.

    Widths and coverage are taken where every arm has the effect; power where one arm at a time has
    it and the others equal the baseline, the hardest case for Holm's correction.

    Parameters
    ----------
    grid
        Runs and their compute.
    world
        The truth.
    question
        Effect, power, level, studies.
    tell
        Called with the progress.
    """
    watch = _Progress(tell, f"{grid.n_runs} runs", SEARCH_STEPS + 2)
    n_others = len(grid.arms) - 1
    effects = np.full(n_others, question.effect)
    alike = _analysed(grid, world, question, effects, watch)
    nothing = _analysed(grid, world, question, np.ones(n_others), watch)
    found = _found_alone(alike, nothing, effects, question.level)
    alarms = _found_alone(nothing, nothing, np.ones(n_others), question.level)
    smallest = _detectable(grid, world, question, nothing, watch)
    return tuple(
        ArmOutlook(
            arm=arm,
            median=float(np.nanmedian(alike.ratio[:, i])) if _any(alike.ratio[:, i]) else math.nan,
            half_width_percent=_half_width(alike, i),
            bounded=float(alike.bounded[:, i].mean()),
            coverage=_coverage(alike, i, question.effect),
            power=float(found[:, i].mean()),
            false_alarms=float(alarms[:, i].mean()),
            detectable=smallest[i],
        )
        for i, arm in enumerate(grid.arms[1:])
    )


def weakest(grid: DeclaredGrid, world: World, question: Question) -> tuple[float, float, float]:
    """Half width (%), share bounded and power of the arm of a grid that is known worst."""
    effects = np.full(len(grid.arms) - 1, question.effect)
    watch = _Progress(None, "", 2)
    alike = _analysed(grid, world, question, effects, watch)
    nothing = _analysed(grid, world, question, np.ones_like(effects), watch)
    found = _found_alone(alike, nothing, effects, question.level)
    arms = range(len(effects))
    width = max(_half_width(alike, i) for i in arms)
    return width, float(alike.bounded.mean(axis=0).min()), float(found.mean(axis=0).min())


def _analysed(
    grid: DeclaredGrid, world: World, question: Question, effects: Floats, watch: _Progress
) -> Ratios:
    """Ratios of all studies, some at a time; each part has a stream of random numbers."""
    parts = []
    for number, studies in _parts(grid, question.studies):
        noise = draw_noise(grid, world, studies, np.random.default_rng([question.seed, number]))
        losses = play(grid, world, effects, noise)
        parts.append(ratios(size_means(grid, losses), question.level))
        watch.add(studies / question.studies)
    return Ratios(
        **{
            name: np.concatenate([getattr(part, name) for part in parts])
            for name in ("ratio", "low", "high", "p")
        }
    )


def _parts(grid: DeclaredGrid, studies: int) -> Iterator[tuple[int, int]]:
    size = max(1, CHUNK // grid.log_compute.size)
    for number, start in enumerate(range(0, studies, size)):
        yield number, min(size, studies - start)


def _found_alone(
    with_effect: Ratios, nothing: Ratios, effects: Floats, level: float
) -> NDArray[np.bool_]:
    """Verdicts ``[studies, arms - 1]`` where each arm in turn is the only one with an effect.

    As :func:`analysis.compare.arms.compare_arms`: Holm-adjusted p below 1 - level and an interval
    that leaves out 1; on the right side of it where the effect has a side.
    """
    verdicts = np.empty(with_effect.p.shape, dtype=bool)
    for i, effect in enumerate(effects):
        p = nothing.p.copy()
        p[:, i] = with_effect.p[:, i]
        verdicts[:, i] = holm(p)[:, i] < 1 - level
        if effect != 1:
            verdicts[:, i] &= (with_effect.ratio[:, i] > 1) == (effect > 1)
    return verdicts & with_effect.excludes(1.0)


def _detectable(
    grid: DeclaredGrid, world: World, question: Question, nothing: Ratios, watch: _Progress
) -> list[float | None]:
    """Bisection over ln rho, all arms at once: power grows with the multiplier."""
    n_others = len(grid.arms) - 1
    low, high = np.zeros(n_others), np.full(n_others, math.log(LARGEST_EFFECT))
    for _ in range(SEARCH_STEPS):
        middle = (low + high) / 2
        effects = np.exp(middle)
        with_effect = _analysed(grid, world, question, effects, watch)
        power = _found_alone(with_effect, nothing, effects, question.level).mean(axis=0)
        enough = power >= question.power
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    found = high < math.log(LARGEST_EFFECT)
    return [float(np.exp(value)) if ok else None for value, ok in zip(high, found, strict=True)]


def _half_width(found: Ratios, arm: int) -> float:
    half = 50 * (found.high[:, arm] - found.low[:, arm]) / found.ratio[:, arm]
    return float(np.median(np.where(found.bounded[:, arm], half, np.inf)))


def _coverage(found: Ratios, arm: int, truth: float) -> float:
    bounded = found.bounded[:, arm]
    missed = found.excludes(truth)[:, arm]
    return float(1 - missed[bounded].mean()) if bounded.any() else math.nan


def _any(values: Floats) -> bool:
    return bool(np.isfinite(values).any())


class _Progress:
    """Adds up parts of a known number of rounds."""

    def __init__(self, tell: Tell | None, label: str, rounds: int) -> None:
        self._tell, self._label, self._rounds, self._done = tell, label, rounds, 0.0

    def add(self, share: float) -> None:
        """Report that a share of one round is done."""
        self._done += share
        if self._tell:
            self._tell(self._label, min(1.0, self._done / self._rounds))
