"""Doubts about one multiplier: a crossing, differing exponents, seed noise against the sizes'."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import fdtrc

from analysis.cells import MatchedSize, PairPoint
from analysis.compare.fieller import iso_loss_ratio, iso_loss_ratio_by_size, paired_moments
from analysis.compare.types import MIN_SIZES, Multiplier
from analysis.estimates import Interval
from analysis.laws import Floats, log_excess

CROSSING_MARGIN = 1.1
"""An arm crosses the baseline only if it is at least so far from it, as a ratio, at both ends."""
WIDER = 1.25
"""How much wider an interval of ln rho must get to be worth a note."""
LACK_OF_FIT = 0.05
"""p below which the scatters over seeds and over sizes are said to disagree."""


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Scatter of the paired differences ``ln(L_b - E) - ln(L_v - E)`` within sizes, pooled."""

    variance: float
    dof: int
    runs: tuple[int, ...]
    """Pairs of runs at each size."""


def seed_spread(matched: Sequence[MatchedSize], asymptote: float = 0.0) -> SeedSpread | None:
    """Pool the scatter over repeated pairs; None where no size has two."""
    gaps: list[Floats] = [
        log_excess(size.losses_base, asymptote) - log_excess(size.losses_arm, asymptote)
        for size in matched
    ]
    dof = sum(len(gap) - 1 for gap in gaps)
    if not dof:
        return None
    squares = sum(float(((gap - gap.mean()) ** 2).sum()) for gap in gaps)
    return SeedSpread(variance=squares / dof, dof=dof, runs=tuple(len(gap) for gap in gaps))


def crossing(
    pairs: Sequence[PairPoint], trend: Interval, spread: SeedSpread | None = None
) -> str | None:
    """Say that the arm is better at one end of the compute range and worse at the other.

    One number then means nothing. The rule: the multipliers by size at the smallest and the
    largest size lie on opposite sides of 1, each by :data:`CROSSING_MARGIN` or more; they move in
    one direction from size to size, or their trend is significant; and where runs were repeated,
    both ends exceed two standard errors of the repeats.
    """
    paired = paired_moments(pairs)
    if isinstance(paired, str) or len(pairs) < MIN_SIZES:
        return None
    logs = paired.differences / paired.slope
    first, last = float(logs[0]), float(logs[-1])
    if first * last >= 0 or min(abs(first), abs(last)) < math.log(CROSSING_MARGIN):
        return None
    steps = np.diff(logs)
    one_way = bool((steps > 0).all() or (steps < 0).all())
    if not (one_way or trend.excludes(0.0)):
        return None
    if spread is not None:
        errors = [math.sqrt(spread.variance / spread.runs[at]) / paired.slope for at in (0, -1)]
        if abs(first) < 2 * errors[0] or abs(last) < 2 * errors[1]:
            return None
    ends = f"{math.exp(first):.2f} at {pairs[0].size} but {math.exp(last):.2f} at {pairs[-1].size}"
    once = "" if spread is not None else "; one run per size, so noise is not excluded"
    return f"crossing: the multiplier is {ends}, one number would hide it; read it by size{once}"


def seed_doubt(pairs: Sequence[PairPoint], spread: SeedSpread | None) -> str | None:
    """Hold the scatter over sizes, from which the interval is made, against that over seeds.

    If one multiplier holds at every size, the means over ``k_i`` repeats scatter over sizes with
    variance ``sigma^2 mean(1/k_i)``; the ratio of the two estimates is F-distributed. Seeds that
    scatter more than sizes say that the interval is narrow by luck, sizes that scatter more than
    seeds that the multiplier differs by size.
    """
    paired = paired_moments(pairs)
    if spread is None or isinstance(paired, str) or len(pairs) < MIN_SIZES:
        return None
    n = len(pairs)
    expected = spread.variance * float(np.mean([1 / runs for runs in spread.runs]))
    seen = float(paired.differences.var(ddof=1))
    if not (expected > 0 and seen > 0):
        return None
    factor = math.exp(math.sqrt(expected / n) / paired.slope)
    if float(fdtrc(spread.dof, n - 1, expected / seen)) < LACK_OF_FIT:
        return (
            "seed_noise: repeats scatter more than sizes do, so the interval is narrower than "
            f"seeds allow: their noise alone is a standard error of a factor of {factor:.3g}"
        )
    if float(fdtrc(n - 1, spread.dof, seen / expected)) < LACK_OF_FIT:
        return (
            "lack_of_fit: sizes scatter more than repeats explain, so the multiplier differs by "
            "size; the interval is that of its mean over these sizes"
        )
    return None


def slope_doubt(pairs: Sequence[PairPoint], level: float = 0.95) -> str | None:
    """Say so where shared deviations make the slope less certain than the interval assumes."""
    pooled, by_size = iso_loss_ratio(pairs, level), iso_loss_ratio_by_size(pairs, level)
    widths = [_log_width(pooled), _log_width(by_size)]
    if not 0 < widths[0] * WIDER < widths[1]:
        return None
    wider = "is unbounded" if not by_size.bounded else f"is {widths[1] / widths[0]:.1f} times wider"
    return (
        "shared_deviations: what the arms share at a size is far larger than what they do not, so "
        f"the interval is too narrow; with the slope's variance over size means it {wider}"
    )


def _log_width(interval: Interval) -> float:
    """Width of ln rho; infinite where unbounded, 0 where there is no interval to judge."""
    if interval.estimate is None:
        return 0.0
    if not interval.low or not interval.high:
        return math.inf
    return math.log(interval.high / interval.low)


def reading_notes(found: Multiplier) -> list[str]:
    """What to mind in reading the number: differing exponents, sizes beyond the baseline's."""
    notes = []
    if found.slope_difference.excludes(0.0):
        notes.append("exponents_differ: the multiplier changes with compute, read it by size")
    if found.extrapolated_at:
        sizes = ", ".join(found.extrapolated_at)
        notes.append(f"extrapolated: outside the baseline's measured losses at {sizes}")
    return notes
