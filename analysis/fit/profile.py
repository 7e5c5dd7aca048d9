"""The profile of E: what the data say about the asymptote when everything else follows it."""

from __future__ import annotations

from dataclasses import dataclass

from analysis.estimates import Interval

PROFILE_SHARES = (0.0, 0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Pinned E of a sensitivity table, as shares of the lowest loss."""
WIDE = 0.5
"""Width of E's interval, as a share of the lowest loss, above which E counts as unknown."""


@dataclass(frozen=True)
class ProfilePoint:
    """The fit at one pinned E."""

    asymptote: float
    exponent: float
    rms_nats: float


def identification_note(interval: Interval, lowest_loss: float) -> list[str]:
    """Say that E is not identified: its interval reaches zero or the lowest loss, or is wide."""
    low, high = interval.low, interval.high
    if low is None or high is None:
        return [f"e_not_identified: no interval of E ({interval.reason})"]
    if low > 0 and high < 0.98 * lowest_loss and high - low <= WIDE * lowest_loss:
        return []
    return [
        f"e_not_identified: the {100 * interval.level:g}% profile interval of E is "
        f"[{low:.2f}, {high:.2f}] nats with a lowest loss of {lowest_loss:.2f}; "
        "read E as a sensitivity axis and do not extrapolate"
    ]
