"""Numbers for reading: rounded to what they carry, each with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

from analysis.estimates import Interval, ratio_parts
from analysis.page.table import Cell

DASH = "–"


def number(value: float | None, spec: str, absent: str = DASH) -> str:
    """A value under a format; a dash for null and NaN."""
    return absent if value is None or math.isnan(value) else rounded(value, spec)


def rounded(value: float, spec: str) -> str:
    """A value under a format, never a zero with a minus."""
    text = format(value, spec)
    return format(0.0, spec) if text.startswith("-") and float(text) == 0 else text


def ratio_text(interval: Interval) -> str:
    """A multiplier with its interval in one string."""
    return " ".join(part for part in ratio_parts(interval) if part)


def ratio_cell(interval: Interval | None) -> Cell:
    """A multiplier with its interval; a dash for None."""
    return Cell(DASH) if interval is None else Cell(*ratio_parts(interval))


def estimate_texts(interval: Interval, spec: str = ".4g") -> tuple[str, str]:
    """Value and interval of any other estimate under one format."""
    if interval.estimate is None or not math.isfinite(interval.estimate):
        return "undefined", ""
    main = rounded(interval.estimate, spec)
    if interval.low is None and interval.high is None:
        return main, "[no interval]"
    low = "-inf" if interval.low is None else rounded(interval.low, spec)
    high = "inf" if interval.high is None else rounded(interval.high, spec)
    return main, f"[{low}, {high}]"


def estimate_cell(interval: Interval | None, spec: str = ".4g") -> Cell:
    """An estimate with its interval; a dash for None."""
    return Cell(DASH) if interval is None else Cell(*estimate_texts(interval, spec))


def ends(interval: Interval | None, name: str) -> dict[str, float | None]:
    """Estimate and interval ends as columns of a csv."""
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}


def percent(level: float) -> str:
    """A confidence level in words: ``95%``."""
    return f"{100 * level:g}%"


def listed(names: list[str], most: int = 6) -> str:
    """Names joined by commas, ``and`` before the last; beyond ``most`` the rest is counted."""
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def first_of_a_kind(notes: Sequence[str]) -> list[str]:
    """Notes that begin with the same name told once, the others counted."""
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(note.partition(":")[0], []).append(note)
    return [
        same[0] if len(same) == 1 else f"{same[0]}; {len(same) - 1} more like it"
        for same in kinds.values()
    ]
