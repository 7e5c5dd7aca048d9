"""Designs of the same comparison: sizes times seeds, what each costs and what it would find."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.estimates import TooFewData
from analysis.laws import Floats
from analysis.simulate.declared import DeclaredGrid
from analysis.simulate.forecast import MIN_STEP
from analysis.simulate.power import Question, Tell, weakest
from analysis.simulate.world import World

SIZES = (3, 4, 5, 6, 7, 8)
SEEDS = (1, 2, 3, 4, 5)


@dataclass(frozen=True, kw_only=True)
class Design:
    """One choice of sizes and seeds, with the arm that it knows worst."""

    n_sizes: int
    n_seeds: int
    runs: int
    flops: float
    """Training FLOPs of all arms."""
    half_width_percent: float
    bounded: float
    power: float
    declared: bool
    """The grid asks for exactly this."""
    cheapest: bool = False
    """No cheaper design of the table has the power asked for."""


def designs(
    grid: DeclaredGrid,
    world: World,
    question: Question,
    *,
    sizes: Sequence[int] = SIZES,
    seeds: Sequence[int] = SEEDS,
    tell: Tell | None = None,
) -> tuple[Design, ...]:
    """Try every choice of sizes and seeds over the grid's range of compute.

    Raises
    ------
    TooFewData
        The grid has one compute level: no ladder to put more rungs on.
    """
    asked = _seeds_per_size(grid)
    tried = []
    for n_sizes in sizes:
        for n_seeds in seeds:
            design = redesigned(grid, n_sizes, n_seeds)
            width, bounded, power = weakest(design, world, question)
            tried.append(
                Design(
                    n_sizes=n_sizes,
                    n_seeds=n_seeds,
                    runs=design.n_runs,
                    flops=design.flops,
                    half_width_percent=width,
                    bounded=bounded,
                    power=power,
                    declared=(n_sizes, n_seeds) == (grid.n_sizes, asked),
                )
            )
            if tell:
                tell("designs", len(tried) / (len(sizes) * len(seeds)))
    return _marked(tried, question.power)


def redesigned(grid: DeclaredGrid, n_sizes: int, n_seeds: int) -> DeclaredGrid:
    """The arms of a grid on a ladder of ``n_sizes`` rungs with ``n_seeds`` seeds each.

    With as many rungs as the grid has, its own; else evenly spaced in ln C from its smallest size
    to its largest, or beyond where that leaves less than :data:`MIN_STEP` between two. What an arm
    costs beside the baseline is interpolated along the ladder.
    """
    own = grid.ladder()
    base = own[0][np.isfinite(own[0])]
    rungs = base if n_sizes == len(base) else _rungs(base, n_sizes)
    ladder = np.stack([rungs + _offset(own, arm, rungs) for arm in range(len(own))])
    return DeclaredGrid(
        arms=grid.arms,
        size_of=np.repeat(np.arange(n_sizes, dtype=np.int64), n_seeds),
        log_compute=np.repeat(ladder, n_seeds, axis=1),
    )


def _rungs(base: Floats, n_sizes: int) -> Floats:
    low, high = float(base.min()), float(base.max())
    if high - low < math.log(MIN_STEP):
        raise TooFewData(
            "designs need a ladder: the sizes of the grid span less than a factor "
            f"{MIN_STEP} of compute. Give the grid two sizes or budgets that differ more"
        )
    return np.linspace(low, max(high, low + (n_sizes - 1) * math.log(MIN_STEP)), n_sizes)


def _offset(own: Floats, arm: int, rungs: Floats) -> Floats:
    """``ln C_arm - ln C_baseline`` along the ladder; 0 for an arm that shares no size."""
    both = np.isfinite(own[0]) & np.isfinite(own[arm])
    if not both.any():
        return np.zeros_like(rungs)
    order = np.argsort(own[0][both])
    gaps = (own[arm] - own[0])[both][order]
    return np.asarray(np.interp(rungs, own[0][both][order], gaps), dtype=np.float64)


def _seeds_per_size(grid: DeclaredGrid) -> int | None:
    """Pairs per size where all sizes and arms have equally many."""
    counts = set(grid.n_pairs().ravel().tolist())
    return counts.pop() if len(counts) == 1 and grid.n_settings == 1 else None


def _marked(tried: Sequence[Design], power: float) -> tuple[Design, ...]:
    enough = [design for design in tried if design.power >= power]
    best = min(enough, key=lambda design: (design.flops, design.runs), default=None)
    return tuple(replace(design, cheapest=design is best) for design in tried)
