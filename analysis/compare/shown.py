"""A multiplier for reading: no interval that says nothing.

Text only; the numbers themselves stay in the results.
"""

from __future__ import annotations

from dataclasses import replace

from analysis.compare.types import Multiplier
from analysis.estimates import TOO_WIDE, Interval, ratio_parts, too_wide


def ratio_text(multiplier: Multiplier) -> str:
    """``1.24 [1.19, 1.30]``, or what of it is defined."""
    return " ".join(ratio_parts(multiplier.ratio)).strip()


def judged_width(interval: Interval) -> Interval:
    """The same interval; one that is too wide carries that as its reason, its ends kept."""
    if not too_wide(interval):
        return interval
    return replace(
        interval,
        reason=f"too wide to be of use: its ends differ by a factor of more than {TOO_WIDE:g}",
    )
