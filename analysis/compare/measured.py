"""Multipliers without a law: read off the measured baseline curve, never outside it.

Curves are joined log-log by straight lines. Pure; no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.cells import CellPoint, PairPoint, n_levels
from analysis.compare.types import OUTSIDE
from analysis.laws import crossings


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the measured baseline says of one size: a value, or why not and a bound."""

    ratio: float | None = None
    undefined_because: str | None = None
    above: float | None = None
    """rho exceeds this: the arm's loss lies below every one of the baseline's."""
    below: float | None = None
    """rho stays under this: the arm's loss lies above every one of the baseline's."""


def measured_ratio(pair: PairPoint, baseline_curve: Sequence[CellPoint]) -> Measured:
    """Multiplier at one size from the measured baseline, joined by straight lines.

    Outside the baseline's measured losses there is no value, only a bound that assumes that the
    baseline's loss falls with compute: ``rho > C_max,baseline / C_arm`` where the arm's loss is
    lower than any of the baseline's, ``rho < C_min,baseline / C_arm`` where it is higher.
    Undefined, too, where the curve has this loss at more than one compute.
    """
    curve = lowest_per_level(baseline_curve)
    losses = [point.loss for point in curve]
    if not losses:
        return Measured(undefined_because=OUTSIDE)
    here = math.exp(pair.log_compute_arm)
    if pair.loss_arm < min(losses):
        return Measured(undefined_because=OUTSIDE, above=curve[-1].compute / here)
    if pair.loss_arm > max(losses):
        return Measured(undefined_because=OUTSIDE, below=curve[0].compute / here)
    at = crossings(
        pair.loss_arm, np.log([point.compute for point in curve]), np.log(np.array(losses))
    )
    if len(at) != 1:
        return Measured(undefined_because="baseline curve is not monotone at this loss")
    return Measured(ratio=math.exp(at[0] - pair.log_compute_arm))


def overlap_range(
    pairs: Sequence[PairPoint], baseline_curve: Sequence[CellPoint]
) -> tuple[float, float] | None:
    """Smallest and largest compute of the arm at losses that the baseline was measured at.

    Where the arm leaves the baseline's range between two sizes, its own measured curve says at
    which compute. None without common losses.
    """
    losses = [point.loss for point in lowest_per_level(baseline_curve)]
    if not losses or not pairs:
        return None
    ordered = sorted(pairs, key=lambda pair: pair.log_compute_arm)
    x = np.array([pair.log_compute_arm for pair in ordered])
    y = np.array([pair.loss_arm for pair in ordered])
    lowest, highest = min(losses), max(losses)
    inside = [float(at) for at in x[(y >= lowest) & (y <= highest)]]
    inside += [at for loss in (lowest, highest) for at in crossings(loss, x, np.log(y))]
    return (math.exp(min(inside)), math.exp(max(inside))) if inside else None


def lowest_per_level(curve: Sequence[CellPoint]) -> list[CellPoint]:
    """The curve ordered by compute, with the lowest loss of each compute level."""
    kept: list[CellPoint] = []
    for point in sorted(curve, key=lambda point: point.compute):
        if kept and n_levels(np.log([kept[-1].compute, point.compute])) == 1:
            kept[-1] = min(kept[-1], point, key=lambda p: p.loss)
        else:
            kept.append(point)
    return kept
