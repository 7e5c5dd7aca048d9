"""What every estimate of ``analysis`` carries: value, interval, method, doubts.

Data types only, shared by ``fit``, ``compare`` and ``report``; does no statistics.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass

from harness.errors import IsolossError


class FitRefused(IsolossError):
    """The data cannot carry the estimate that was asked for: the message says what is missing."""


class TooFewData(FitRefused):
    """Fewer distinct sizes, budgets or seeds than the law has unknowns to find."""


class BadValue(FitRefused):
    """A number that the law cannot take: a loss at or below E, a size of zero, a NaN."""


class NoMinimum(FitRefused):
    """A minimum is not bracketed: the lowest point lies at the edge, or the curve has none."""


class NotConverged(FitRefused):
    """The optimiser did not reach a minimum: no certificate, so no number."""


class NotComparable(FitRefused):
    """Losses of different evaluation sets, tokenisers or FLOP conventions stand in one table."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate and its confidence interval.

    ``low`` and ``high`` are None when no finite interval exists; ``reason`` then says why. An
    ``estimate`` of None means that not even a point value is defined.
    """

    estimate: float | None
    low: float | None = None
    high: float | None = None
    level: float = 0.95
    method: str
    reason: str | None = None

    @property
    def bounded(self) -> bool:
        """Both ends are finite numbers."""
        return self.low is not None and self.high is not None

    def excludes(self, value: float) -> bool:
        """Tell whether a bounded interval leaves ``value`` out; False when unbounded."""
        if self.low is None or self.high is None:
            return False
        return value < self.low or value > self.high


@dataclass(frozen=True)
class Exclusion:
    """A run that entered no fit."""

    run_id: str
    arm: str
    reason: str


TOO_WIDE = 100.0
"""Upper over lower end of a ratio's interval above which its ends are not shown."""


def ratio_parts(interval: Interval) -> tuple[str, str]:
    """Value and interval for reading: ``("1.24", "[1.19, 1.30]")``.

    Two decimals, three where the interval is narrower than 0.04; ``("undefined", "")``,
    ``("1.24", "[no interval]")`` and, where the upper end is more than :data:`TOO_WIDE` times the
    lower, ``("1.24", "[too wide]")``: such ends stay in the data, they tell a reader nothing.
    """
    if interval.estimate is None:
        return "undefined", ""
    if interval.low is None or interval.high is None:
        return _fixed(interval.estimate, 2), "[no interval]"
    if too_wide(interval):
        return _fixed(interval.estimate, 2), "[too wide]"
    decimals = 3 if interval.high - interval.low < 0.04 else 2
    ends = ", ".join(_fixed(end, decimals) for end in (interval.low, interval.high))
    return _fixed(interval.estimate, decimals), f"[{ends}]"


def too_wide(interval: Interval) -> bool:
    """Tell whether a ratio's interval spans more than a factor of :data:`TOO_WIDE`."""
    if interval.low is None or interval.high is None:
        return False
    return not interval.high <= TOO_WIDE * interval.low


def _fixed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}" if 0.01 <= value < 100 else f"{value:.3g}"


def undefined(reason: str, *, method: str, level: float = 0.95) -> Interval:
    """Build an estimate that does not exist, with the reason."""
    return Interval(estimate=None, method=method, level=level, reason=reason)


def data_sha256(rows: Iterable[tuple[object, ...]]) -> str:
    """Hash the numbers behind an estimate, whatever their order (SHA-256, hex)."""
    text = json.dumps(sorted(json.dumps(row) for row in rows))
    return hashlib.sha256(text.encode()).hexdigest()
