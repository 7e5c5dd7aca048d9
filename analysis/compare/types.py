"""What a comparison with the baseline yields: multiplier, its intervals, its values by size.

Data types only; does no statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analysis.estimates import Interval

Verdict = Literal["baseline", "better", "worse", "no difference found", "undefined"]

MIN_SIZES = 3
"""Sizes below which no interval is given."""
OUTSIDE = "outside measured baseline range"


@dataclass(frozen=True, kw_only=True)
class SizeRatio:
    """The multiplier at one size."""

    size: str
    compute: float
    """The arm's compute there, geometric mean over seeds."""
    from_law: float | None
    """exp((y_b - y_v) / s + ln(C_b / C_v)) with the pooled slope s."""
    measured: float | None
    """Baseline compute interpolated log-log at the arm's loss, over the arm's compute."""
    undefined_because: str | None
    above: float | None = None
    """Where the arm is better than the baseline ever was: rho > C_max,baseline / C_arm."""
    below: float | None = None
    """Where the arm is worse than the baseline ever was: rho < C_min,baseline / C_arm."""
    loss_difference: float
    """Arm minus baseline, nats, at the budgets as run."""
    n_seeds: int


@dataclass(frozen=True, kw_only=True)
class Multiplier:
    """Iso-loss compute multiplier of one arm in one currency."""

    arm: str
    baseline: str
    currency: str
    asymptote: float
    ratio: Interval
    """rho and its interval: paired Fieller, or the delta method where nothing can be paired.

    The spread over sizes, from which it is made, holds the seed noise of each size's mean.
    """
    wild: Interval
    """The same by a wild bootstrap of the paired sizes: a check that assumes no normality."""
    simultaneous: Interval
    """Family-wise over the arms of this currency: all of them cover at once, 95 times in 100."""
    slope: float | None
    """Pooled exponent of the two arms over the paired sizes."""
    slope_difference: Interval
    """Exponent of the arm minus the baseline's: positive when the gain grows with compute."""
    p_value: float | None
    """Two-sided, for rho = 1."""
    p_holm: float | None
    """Adjusted for the number of arms compared in this currency."""
    verdict: Verdict
    paired: bool
    """By seed and settings; False where only means over each arm's own runs could be compared."""
    n_sizes: int
    domain: tuple[float, float] | None
    """Smallest and largest compute of the arm that were compared."""
    overlap: tuple[float, float] | None
    """The part of ``domain`` whose losses the baseline was measured at; None where there is none.
    """
    by_size: tuple[SizeRatio, ...]
    by_asymptote: tuple[tuple[float, float | None], ...]
    """rho when E is pinned elsewhere: (E in nats, rho)."""
    notes: tuple[str, ...]

    @property
    def extrapolated_at(self) -> tuple[str, ...]:
        """Sizes where the arm's loss lies outside what the baseline was measured at."""
        return tuple(at.size for at in self.by_size if at.undefined_because == OUTSIDE)
